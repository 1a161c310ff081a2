//! Random faults in the middle of drains.

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::cluster::{Component, Part};
use rustix::process::Signal;
use serde_json::json;

use super::arena::{Arena, Drain, restart, signal};

/// How many pods that nothing holds each drain has.
const FREE_PODS: usize = 8;
/// The latest moment of a fault after the start of a drain, in milliseconds.
const LATEST: u64 = 1_500;

/// What is done to a part.
#[derive(Clone, Copy, Debug)]
enum Fault {
    KillServer,
    StopController,
    KillHost,
    KillController,
    StopServer,
    StopHost,
}

/// In the order of rounds.
const FAULTS: [Fault; 6] = [
    Fault::KillServer,
    Fault::StopController,
    Fault::KillHost,
    Fault::KillController,
    Fault::StopServer,
    Fault::StopHost,
];

impl Fault {
    async fn strike(self, arena: &Arena<'_>, pause: Duration) -> Result<()> {
        let (cluster, drydock) = (arena.cluster, arena.drydock);
        match self {
            Self::KillServer => {
                drydock.kill_part(Part::ApiServer);
                tokio::time::sleep(pause).await;
                drydock.start_part(Part::ApiServer).await
            }
            Self::KillHost => restart(cluster, Component::ApiServer).await,
            Self::KillController => signal(Some(arena.leader().await?), Signal::KILL),
            // For longer than the Lease lasts: another one leads when it goes on.
            Self::StopController => stop_for(Some(arena.leader().await?), Duration::from_secs(7)).await,
            Self::StopServer => stop_for(drydock.process_id(Part::ApiServer), pause).await,
            Self::StopHost => stop_for(cluster.process_id(Component::ApiServer), pause).await,
        }
    }
}

async fn stop_for(process: Option<u32>, pause: Duration) -> Result<()> {
    signal(process, Signal::STOP)?;
    tokio::time::sleep(pause).await;
    signal(process, Signal::CONT)
}

/// Drains nodes in as many rounds, each with a fault at a random moment.
pub(super) async fn random_faults(arena: &Arena<'_>, rounds: u64, seed: u64) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(seed);
    for round in 0..rounds {
        let fault = FAULTS[usize::try_from(round)? % FAULTS.len()];
        let moment = Duration::from_millis(random.u64(..LATEST));
        let pause = Duration::from_millis(random.u64(200..3_000));
        writeln!(
            std::io::stderr(),
            "round {round} of seed {seed}: {fault:?} after {moment:?}, for {pause:?}"
        )?;
        drain_with(arena, &format!("round-{round}"), fault, moment, pause)
            .await
            .with_context(|| format!("round {round} of seed {seed}: {fault:?} after {moment:?}"))?;
    }
    Ok(())
}

async fn drain_with(
    arena: &Arena<'_>,
    name: &str,
    fault: Fault,
    moment: Duration,
    pause: Duration,
) -> Result<()> {
    let drain = Drain::prepare(arena, name).await?;
    drain.add_pods(FREE_PODS, |_| false).await?;
    let held = drain.add_held_pod().await?;
    drain.start().await?;
    tokio::time::sleep(moment).await;
    fault.strike(arena, pause).await?;
    drain.is_held().await?;

    // The request of somebody else for the held pod is there, with both requesters, and its pod as well.
    let requesters = json!([{ "name": "suite.example.com" }, { "name": "nodemaintenance.k8s.io" }]);
    arena
        .eventually("the held pod to be requested by both", async || {
            let request = drain.host.get(&held).await?.expect(200)?;
            ensure!(request["spec"]["requesters"] == requesters, "{request}");
            Ok(Some(()))
        })
        .await?;
    let pod = format!("/api/v1/namespaces/{name}/pods/held");
    let pod = drain.host.get(&pod).await?.expect(200)?;
    ensure!(pod["metadata"]["deletionTimestamp"].is_null(), "{pod}");
    drain.free_held_pod().await?;
    drain.is_drained().await?;

    let requests = drain.ended_requests().await?;
    ensure!(requests.len() == FREE_PODS + 1, "{} requests", requests.len());
    let lost = requests
        .iter()
        .find(|request| !request.is_evicted || request.intent.is_none());
    ensure!(lost.is_none(), "{lost:?}");
    drain.every_eviction_was_requested().await?;
    drain.ends_exactly().await
}
