//! Two controllers and one Lease, on a real control plane: at no time do both act.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::clients::eventually;
use drydock_tests::cluster::{Lifetime, NAMESPACE, Part, Process};
use rustix::process::Signal;
use serde_json::json;

use crate::stage::{PATIENCE, Stage, alone, eviction_request, is_true, requests_of, text};

/// Starts a controller that gives up its Lease two seconds after its last renewal; others wait for three.
fn start(stage: &Stage, name: &str) -> Result<Process> {
    let mut command = stage.drydock.command_of(Part::Controller);
    command
        .args(["--secure-port", "0"])
        .args(["--leader-elect-lease-duration", "3s"])
        .args(["--leader-elect-renew-deadline", "2s"])
        .args(["--leader-elect-retry-period", "500ms"])
        .env("POD_NAME", name);
    let folder = stage.control_plane().folder().path();
    Process::spawn(command, name, folder, Lifetime::WithParent)
}

/// Waits until the Lease is held by the controller of this name.
async fn leads(stage: &Stage, name: &str) -> Result<()> {
    let host = stage.host()?;
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/drydock-controller");
    eventually(&format!("{name} to lead"), PATIENCE, async || {
        let lease = host.get(&lease).await?.expect(200)?;
        let holder = text(&lease["spec"]["holderIdentity"])?;
        Ok(holder.starts_with(name).then_some(()))
    })
    .await
}

#[tokio::test]
async fn a_leader_that_was_stopped_writes_nothing_when_it_goes_on() -> Result<()> {
    let Some(stage) = alone().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("leases").await?;
    let host = stage.host()?;
    stage.drydock.stop_part(Part::Controller).await?;
    let first = start(&stage, "lease-first")?;
    leads(&stage, "lease-first").await?;
    let second = start(&stage, "lease-second")?;

    // The first one is stopped while it has an eviction request to carry out, for longer than the Lease lasts.
    first.signal(Signal::STOP)?;
    let uid = stage.pod(&namespace, "web").await?;
    let request = eviction_request(&namespace, "web", &uid);
    let list = requests_of(&namespace);
    host.post(&list, &request).await?.expect(201)?;
    leads(&stage, "lease-second").await?;
    let path = format!("{list}/{uid}");
    eventually("the second to evict the pod", PATIENCE, async || {
        let request = host.get(&path).await?.expect(200)?;
        Ok(is_true(&request, "Evicted").then_some(()))
    })
    .await?;

    let log = first.log().to_owned();
    first.signal(Signal::CONT)?;
    let end = first.ended(Duration::from_secs(30)).await?;
    ensure!(!end.success(), "the first has ended with {end}");
    let log = std::fs::read_to_string(&log).context("the log of the first")?;
    ensure!(log.contains("leadership was lost"), "{log}");
    let events = format!("/api/v1/namespaces/{namespace}/events");
    let events = host.get(&events).await?.expect(200)?;
    let instances = events["items"].as_array().into_iter().flatten();
    let by_first = instances
        .filter(|event| {
            event["reportingInstance"]
                .as_str()
                .unwrap_or_default()
                .starts_with("lease-first")
        })
        .count();
    assert_eq!(by_first, 0, "{}", json!(events["items"]));
    leads(&stage, "lease-second").await?;

    second.terminate(Duration::from_secs(30)).await?;
    stage.drydock.start_part(Part::Controller).await
}
