//! Drains while their parts are stopped, killed, cut off and emptied, on a control plane of their own: nothing that was
//! promised is lost, and no pod is evicted that nobody asked for.
//!
//! `DRYDOCK_DRAIN_ROUNDS` is the number of rounds of random faults and makes the runs long from [`LONG`] on;
//! `DRYDOCK_FAULT_SEED` chooses their moments.

mod arena;
mod away;
mod canceled;
mod obstacles;
mod rounds;

use anyhow::{Context as _, Result};
use drydock_tests::cluster::{Drydock, shared};

use arena::{Arena, own_cluster};

/// The number of rounds in `make test`: three kinds of faults.
const ROUNDS: u64 = 3;
/// From this number of rounds on, everything runs at full length.
const LONG: u64 = 20;

/// A number from the environment.
fn number(variable: &str, default: u64) -> Result<u64> {
    match std::env::var(variable) {
        Ok(text) if !text.is_empty() => text.parse().with_context(|| format!("{variable}={text}")),
        _ => Ok(default),
    }
}

fn rounds() -> Result<u64> {
    number("DRYDOCK_DRAIN_ROUNDS", ROUNDS)
}

#[tokio::test(flavor = "multi_thread")]
async fn drains_survive_the_faults_of_every_part() -> Result<()> {
    if shared().await?.is_none() {
        return Ok(());
    }
    let cluster = own_cluster().await?;
    let drydock = Drydock::start(&cluster).await?;
    let arena = Arena::new(&cluster, &drydock).await?;
    let seed = number("DRYDOCK_FAULT_SEED", 1)?;
    rounds::random_faults(&arena, rounds()?, seed)
        .await
        .context("random faults")?;
    canceled::requests_canceled_in_mid_drain(&arena, if rounds()? < LONG { 300 } else { 5_000 })
        .await
        .context("requests canceled in mid-drain")?;
    away::controller_manager_stopped(&arena)
        .await
        .context("kube-controller-manager stopped")?;
    away::controller_cut_off(&arena)
        .await
        .context("a controller cut off")?;
    away::rights_taken_away(&arena)
        .await
        .context("rights taken away")?;
    away::store_emptied(&arena).await.context("an emptied store")
}
