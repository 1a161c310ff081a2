//! Runs a command in a pseudo-terminal of a given size, and takes apart what it draws there.

use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

use crate::clients::eventually;
use crate::lock;

/// A command whose standard input and output are a terminal; its standard error is one too.
pub struct PseudoTerminal {
    child: Child,
    drawn: Arc<Mutex<Vec<u8>>>,
    reader: JoinHandle<Result<()>>,
}

impl PseudoTerminal {
    /// Starts a command in a terminal of this many columns and rows.
    ///
    /// # Errors
    /// There is no terminal, or the command cannot be started.
    pub fn spawn(mut command: Command, columns: u16, rows: u16) -> Result<Self> {
        let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).context("open a pseudo-terminal")?;
        grantpt(&controller).context("grant the pseudo-terminal")?;
        unlockpt(&controller).context("unlock the pseudo-terminal")?;
        let size = Winsize {
            ws_row: rows,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        tcsetwinsize(&controller, size).context("set the size of the terminal")?;
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY;
        let terminal = ioctl_tiocgptpeer(&controller, flags).context("open the terminal")?;
        let end =
            || -> Result<Stdio> { Ok(Stdio::from(terminal.try_clone().context("share the terminal")?)) };
        command
            .stdin(end()?)
            .stdout(end()?)
            .stderr(end()?)
            .kill_on_drop(true);
        let child = command.spawn().context("start the command")?;
        // The command holds descriptors too: the output ends only when all are closed.
        drop(command);
        drop(terminal);
        let drawn = Arc::default();
        let reader = tokio::task::spawn_blocking({
            let drawn = Arc::clone(&drawn);
            move || read_all(controller, &drawn)
        });
        Ok(Self { child, drawn, reader })
    }

    /// Waits until the command has drawn this text.
    ///
    /// # Errors
    /// It does not within the deadline.
    pub async fn shows(&self, text: &str, deadline: Duration) -> Result<()> {
        eventually(&format!("the terminal to show {text:?}"), deadline, async || {
            let drawn = String::from_utf8_lossy(&lock(&self.drawn)).contains(text);
            Ok(drawn.then_some(()))
        })
        .await
    }

    /// Waits for the end of the command; returns how it ended and all that it has drawn.
    ///
    /// # Errors
    /// The terminal cannot be read, or what it drew is not UTF-8.
    pub async fn finish(mut self) -> Result<(ExitStatus, String)> {
        let status = self.child.wait().await.context("wait for the command")?;
        self.reader.await.context("the reader of the terminal")??;
        let bytes = std::mem::take(&mut *lock(&self.drawn));
        let text = String::from_utf8(bytes).context("a terminal shows UTF-8")?;
        Ok((status, text))
    }
}

/// Reads until the last descriptor of the other side is closed, which Linux reports as an I/O error.
fn read_all(controller: OwnedFd, drawn: &Mutex<Vec<u8>>) -> Result<()> {
    let mut controller = File::from(controller);
    let mut buffer = [0; 4096];
    loop {
        match controller.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => lock(drawn).extend(buffer.iter().take(count)),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error()) => {
                return Ok(());
            }
            Err(error) => return Err(error).context("read the terminal"),
        }
    }
}

/// The frames of a screen that is redrawn in place: up some lines, clear, draw. Without colours and carriage returns.
#[must_use]
pub fn frames(drawn: &str) -> Vec<String> {
    let mut frames = vec![String::new()];
    let mut rest = drawn;
    while let Some((before, sequence)) = rest.split_once("\u{1b}[") {
        push(&mut frames, before);
        let end = sequence
            .find(|c: char| c.is_ascii_alphabetic())
            .unwrap_or_default();
        let (code, after) = sequence.split_at((end + 1).min(sequence.len()));
        if code == "J" {
            frames.push(String::new());
        }
        rest = after;
    }
    push(&mut frames, rest);
    frames
}

fn push(frames: &mut [String], text: &str) {
    if let Some(frame) = frames.last_mut() {
        frame.push_str(&text.replace('\r', ""));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_begin_where_the_screen_is_cleared() {
        let drawn = "\u{1b}[1mone\u{1b}[0m\r\ntwo\r\n\u{1b}[2A\r\u{1b}[Jthree\r\n";
        assert_eq!(frames(drawn), ["one\ntwo\n", "three\n"]);
    }

    #[tokio::test]
    async fn a_command_sees_a_terminal_of_the_size() {
        let mut command = Command::new("sh");
        command.args(["-c", "test -t 1 && stty size; exit 3"]);
        let terminal = PseudoTerminal::spawn(command, 80, 24).unwrap();
        let (status, drawn) = terminal.finish().await.unwrap();
        assert_eq!((status.code(), drawn.as_str()), (Some(3), "24 80\r\n"));
    }
}
