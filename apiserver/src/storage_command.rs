//! Work on the files of a store while no server runs on them.
//!
//! Progress is a bar on standard error, for people; the outcome is one JSON document on standard output, for programs.

use std::path::Path;
use std::sync::Mutex;

use drydock_storage::Options;
use drydock_storage::rocks::{self, LifeError, OpenError, Progress, RocksStore};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use serde_json::Value;

use crate::config::StorageCommand;

/// Why a storage command failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The store cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The work failed.
    #[error(transparent)]
    Work(#[from] LifeError),
    /// Verification found damaged values.
    #[error("{count} stored values are damaged: they are named in the report")]
    Damaged {
        /// How many.
        count: usize,
    },
    /// The report cannot be written.
    #[error("the report cannot be written")]
    Report(#[source] std::io::Error),
    /// The work was broken off.
    #[error("the work was broken off")]
    Panicked(#[source] tokio::task::JoinError),
}

/// Carries a command out and prints its report.
///
/// # Errors
/// [`CommandError`].
pub async fn run(command: StorageCommand) -> Result<(), CommandError> {
    tokio::task::spawn_blocking(move || carry_out(&command))
        .await
        .map_err(CommandError::Panicked)?
}

fn carry_out(command: &StorageCommand) -> Result<(), CommandError> {
    let bar = Bar::new();
    let progress = |progress: Progress| bar.show(progress);
    match command {
        StorageCommand::Recover { store, accept_loss } => print(&rocks::recover(
            &Options::new(&store.data_dir),
            *accept_loss,
            &progress,
        )?),
        StorageCommand::Verify(store) => {
            let report = rocks::verify(&Options::new(&store.data_dir), &progress)?;
            let count = report.damaged.len();
            print(&report)?;
            if count > 0 {
                Err(CommandError::Damaged { count })
            } else {
                Ok(())
            }
        }
        StorageCommand::Backup { store, to, keep } => {
            print(&open(&store.data_dir)?.backup(to, *keep, &progress)?)
        }
        StorageCommand::Restore { store, from } => {
            print(&rocks::restore(from, &Options::new(&store.data_dir), &progress)?)
        }
        StorageCommand::Export { store, to } => print(&open(&store.data_dir)?.export(to, &progress)?),
        StorageCommand::Import { store, from } => {
            print(&rocks::import(from, &Options::new(&store.data_dir), &progress)?)
        }
    }
}

fn open(folder: &Path) -> Result<RocksStore, CommandError> {
    if !folder.exists() {
        return Err(OpenError::Missing {
            path: folder.to_owned(),
        }
        .into());
    }
    Ok(RocksStore::open(Options::new(folder))?.0)
}

fn print(report: &impl Serialize) -> Result<(), CommandError> {
    use std::io::Write as _;
    let value: Value = serde_json::to_value(report).map_err(|error| CommandError::Report(error.into()))?;
    let mut text = drydock_machinery::codec::encode_pretty(&value);
    text.push(b'\n');
    std::io::stdout().write_all(&text).map_err(CommandError::Report)
}

/// A bar on standard error; nothing where that is no terminal.
struct Bar(Mutex<ProgressBar>);

impl Bar {
    fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template("{msg:8} {wide_bar} {human_pos}/{human_len} {eta}") {
            bar.set_style(style);
        }
        Self(Mutex::new(bar))
    }

    fn show(&self, progress: Progress) {
        let bar = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        bar.set_message(progress.step);
        if let Some(total) = progress.total {
            bar.set_length(total);
        }
        bar.set_position(progress.done);
    }
}
