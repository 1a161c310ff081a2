//! `--watch` of what has no end of its own: looks again and again, and shows what has changed.

use std::time::Duration;

use super::follow::{Frame, is_transient};
use crate::error::Error;
use crate::terminal::{Terminal, print};

/// How often it is looked.
const INTERVAL: Duration = Duration::from_secs(2);

/// Shows what `look` returns until it says that it is over: in place on a terminal, and elsewhere each time that it changes. A failure
/// that may pass is waited for.
pub(super) async fn repeat(mut look: impl AsyncFnMut() -> Result<(String, Is), Error>) -> Result<(), Error> {
    let is_live = Terminal::detect().is_live;
    let mut frame = Frame::default();
    let mut before = String::new();
    loop {
        match look().await {
            Ok((text, is)) => {
                if is_live {
                    let (_, rows) = Terminal::size();
                    let lines: Vec<String> = text
                        .lines()
                        .take(rows.saturating_sub(1).max(3))
                        .map(str::to_owned)
                        .collect();
                    frame.draw(&lines)?;
                } else if text != before {
                    print(&text)?;
                }
                if is == Is::Over {
                    return Ok(());
                }
                before = text;
            }
            Err(error) if is_transient(&error) && !before.is_empty() => {}
            Err(error) => return Err(error),
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Whether it is looked again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Is {
    /// Yes.
    GoingOn,
    /// No.
    Over,
}
