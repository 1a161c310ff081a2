//! The kubectl plugin `kubectl-drydock`: drains nodes, shows progress, and explains what holds a pod.
//!
//! Start at [`run`]. A command reads objects ([`api`]), hands them to pure code, and prints what comes back.
//!
//! ```text
//! args ──▶ commands ──▶ api ──▶ the cluster
//!              │
//!              └──▶ explain, preflight, progress, interceptors (pure: objects in, text or data out)
//! ```
//!
//! The plugin is an ordinary client: it speaks to the cluster through its public APIs alone, and what it can do can be
//! done with kubectl too.

pub mod api;
pub mod args;
pub mod budgets;
mod commands;
mod completion;
pub mod connection;
pub mod error;
pub mod explain;
#[cfg(test)]
mod golden;
pub mod interceptors;
mod output;
pub mod pods;
pub mod preflight;
pub mod progress;
mod table;
pub mod terminal;
pub mod times;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Parser as _;

use crate::args::Program;
use crate::error::{Error, ExitStatus};

/// Runs the command line, prints what there is to print, and returns the exit code of [`ExitStatus`].
#[must_use]
pub fn run(arguments: Vec<OsString>) -> ExitCode {
    if let Some((_, [command, words @ ..])) = arguments.split_first()
        && command == completion::COMMAND
    {
        // Not parsed: the words are an unfinished command line.
        let words: Vec<String> = words
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        return exit_code(execute(completion::run(&words)));
    }
    let program = match Program::try_parse_from(arguments) {
        Ok(program) => program,
        Err(error) => {
            // Help and version are no errors; their output may have lost its reader.
            drop(error.print());
            let is_help = !error.use_stderr();
            return ExitCode::from(
                if is_help {
                    ExitStatus::Success
                } else {
                    ExitStatus::Usage
                }
                .code(),
            );
        }
    };
    exit_code(execute(commands::run(program)))
}

fn exit_code(result: Result<(), Error>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !matches!(error, Error::OutputClosed | Error::Blocked) {
                terminal::note(&format!("error: {}", terminal::printable(&error.to_string())));
            }
            ExitCode::from(error.exit_status().code())
        }
    }
}

fn execute(command: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
    // It fails only when a provider is installed already, and then there is one.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::io("the runtime", error))?;
    runtime.block_on(async {
        tokio::select! {
            biased;
            result = command => result,
            interrupted = tokio::signal::ctrl_c() => {
                interrupted.map_err(|error| Error::io("signals", error))?;
                Err(Error::Interrupted)
            }
        }
    })
}
