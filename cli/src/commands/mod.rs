//! The commands, one file each.

mod drain;
mod end;
mod evict;
mod explain;
mod follow;
mod interceptors;
mod preflight;
mod read;
mod release;
mod repeat;
mod status;

use drydock_machinery::clock::SystemClock;

use crate::args::{Command, Program};
use crate::error::Error;

/// Runs a command to its end.
pub(crate) async fn run(program: Program) -> Result<(), Error> {
    let connection = &program.connection;
    let clock = &SystemClock;
    match program.command {
        Command::Drain(flags) => drain::run(&connection.connect().await?, &flags, clock).await,
        Command::Status(flags) => status::run(&connection.connect().await?, &flags, clock).await,
        Command::Explain(flags) => explain::run(&connection.connect().await?, &flags, clock).await,
        Command::Complete(flags) => end::complete(&connection.connect().await?, &flags, clock).await,
        Command::Cancel(flags) => end::cancel(&connection.connect().await?, &flags, clock).await,
        Command::Release(flags) => release::run(&connection.connect().await?, &flags).await,
        Command::Evict(flags) => evict::run(&connection.connect().await?, &flags, clock).await,
        Command::Interceptors(flags) => interceptors::run(&connection.connect().await?, &flags, clock).await,
        Command::Preflight(flags) => preflight::run(&connection.connect().await?, &flags, clock).await,
    }
}
