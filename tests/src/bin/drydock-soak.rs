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
//! DRYDOCK_SOAK_ABUSERS=0                   users who abuse the server meanwhile (see `drydock_tests::abuse`)
//! DRYDOCK_BIN_DIR=bin                      the folder of the server's binary
//! ```
//!
//! Exits with 1 when a rule was broken.
#![expect(clippy::print_stdout, reason = "a command line tool")]

use std::process::ExitCode;

use anyhow::{Result, bail};
use drydock_tests::abuse::{Abuser, Volume};
use drydock_tests::clients::Protocol;
use drydock_tests::environment::number;
use drydock_tests::objects::requests_of;
use drydock_tests::soak::{Settings, run, server};
use drydock_tests::standalone::Standalone;
use futures_util::future::try_join_all;

/// Of each abuser, again and again.
const VOLUME: Volume = Volume {
    cancelled: 500,
    refused: 500,
    watches: 50,
    drops: 5,
    targets: 5,
    selectors: 20,
    heavy: 1,
};

/// Abuses the server until it fails.
async fn abuse(server: &Standalone, abusers: usize) -> Result<()> {
    let all = (0..abusers).map(async |_| {
        let client = server.raw_client(Protocol::Http2)?;
        let abuser = Abuser::new(client, requests_of("abuse"));
        loop {
            if let Err(error) = abuser.abuse(VOLUME).await {
                break Err::<(), anyhow::Error>(error);
            }
        }
    });
    let _: Vec<()> = try_join_all(all).await?;
    // Without abusers there is nothing to wait for.
    std::future::pending().await
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    let settings = Settings::from_environment()?;
    let server = server(&settings).await?;
    let abusers = number("DRYDOCK_SOAK_ABUSERS", 0)?;
    let soak = run(&server, &settings, |line| println!("soak: {line}"));
    let summary = tokio::select! {
        summary = soak => summary?,
        result = abuse(&server, abusers) => bail!("the server failed its abusers: {result:?}"),
    };
    println!("soak: {summary}");
    Ok(if summary.passed() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
