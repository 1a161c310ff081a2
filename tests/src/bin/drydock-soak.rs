//! The soak: hours of load on a server of its own, checked while it runs (`make soak`).
//!
//! ```text
//! DRYDOCK_SOAK_SECONDS=28800               duration of the load
//! DRYDOCK_SOAK_OBJECTS=150000              objects; 1000000 is a million
//! DRYDOCK_SOAK_OBJECT_BYTES=2700           their size; 1570000 is just below the limit of 1.5 MiB
//! DRYDOCK_SOAK_WRITES=2500                 creates, changes and deletions a second
//! DRYDOCK_SOAK_WATCHERS=5000               watches open at a time
//! DRYDOCK_SOAK_SLOW_PER_THOUSAND=10        watchers that read slowly
//! DRYDOCK_SOAK_RECONNECTS_PER_THOUSAND=10  watchers that reconnect each second
//! DRYDOCK_SOAK_LIST_SECONDS=6              time between lists
//! DRYDOCK_SOAK_BACKUP_SECONDS=600          time between backups
//! DRYDOCK_SOAK_WINDOW_SECONDS=300          the server's history window
//! DRYDOCK_SOAK_GROWTH_MIB_PER_HOUR=16      how fast resident memory may grow after the warm-up
//! DRYDOCK_BIN_DIR=target/release           the folder of the server's binary
//! ```
//!
//! Exits with 1 when a rule was broken.
#![expect(clippy::print_stdout, reason = "a command line tool")]

use std::process::ExitCode;

use anyhow::Result;
use drydock_tests::soak::{Settings, run, server};

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let settings = Settings::from_environment()?;
    let server = server(&settings).await?;
    let summary = run(&server, &settings, |line| println!("soak: {line}")).await?;
    println!("soak: {summary}");
    Ok(if summary.passed() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
