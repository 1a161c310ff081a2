//! Parts that are stopped or cut off for longer, and a store that is emptied.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::clients::eventually;
use drydock_tests::cluster::{Component, Gate, Part};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::arena::{Arena, Drain, signal, start_controller};
use crate::stage::{PATIENCE, eviction_request, is_true, requests_of, text};

/// Without kube-controller-manager nobody computes a new budget: its pods stay, and the request says why.
pub(super) async fn controller_manager_stopped(arena: &Arena<'_>) -> Result<()> {
    let drain = Drain::prepare(arena, "no-manager").await?;
    drain.add_pods(2, |_| false).await?;
    let pods = format!("/api/v1/namespaces/{}/pods", drain.name);
    arena
        .eventually("the pods to run", async || {
            let list = drain.host.get(&pods).await?.expect(200)?;
            let phases: Vec<_> = list["items"]
                .as_array()
                .into_iter()
                .flatten()
                .map(|it| &it["status"]["phase"])
                .collect();
            ensure!(phases.iter().all(|phase| **phase == "Running"), "{phases:?}");
            Ok(Some(()))
        })
        .await?;
    let manager = arena.cluster.process_id(Component::ControllerManager);
    signal(manager, Signal::STOP)?;
    let blocked = async {
        let budget = json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": { "name": "hold" },
            "spec": { "maxUnavailable": 1, "selector": { "matchLabels": { "app": drain.name } } },
        });
        let budgets = format!("/apis/policy/v1/namespaces/{}/poddisruptionbudgets", drain.name);
        drain.host.post(&budgets, &budget).await?.expect(201)?;
        drain.start().await?;
        arena
            .eventually("the drain to name the budget", async || {
                let maintenance = drain.host.get(&drain.maintenance).await?.expect(200)?;
                let blockers = maintenance["status"]["blockers"]
                    .as_array()
                    .cloned()
                    .unwrap_or_default();
                let is_named = |it: &Value| {
                    it["reason"] == "BudgetNotObserved"
                        && it["message"].as_str().is_some_and(|text| text.contains("hold"))
                };
                Ok((blockers.len() == 2 && blockers.iter().all(is_named)).then_some(()))
            })
            .await
    }
    .await;
    signal(manager, Signal::CONT)?;
    blocked?;
    drain.free_held_pod().await?;
    drain.is_drained().await?;
    drain.every_eviction_was_requested().await?;
    drain.ends_exactly().await
}

/// A controller whose packets are lost leads no longer when the other one begins, and has written nothing since.
pub(super) async fn controller_cut_off(arena: &Arena<'_>) -> Result<()> {
    let drain = Drain::prepare(arena, "cut-off").await?;
    arena.end_controllers();
    let gate = Gate::start(arena.cluster.apiserver_address()).await?;
    let kubeconfig = std::fs::read_to_string(arena.drydock.kubeconfig(Part::Controller))?;
    let kubeconfig = kubeconfig.replace(
        &arena.cluster.apiserver_address().to_string(),
        &gate.address().to_string(),
    );
    let kubeconfig = arena
        .cluster
        .folder()
        .write("behind-the-gate.kubeconfig", kubeconfig)?;
    let first = start_controller(arena.drydock, "behind-the-gate", |command| {
        command.arg("--kubeconfig").arg(kubeconfig);
    })?;
    leads(arena, "behind-the-gate").await?;
    let second = start_controller(arena.drydock, "beside-the-gate", |_| {})?;

    gate.close();
    let pods = format!("/api/v1/namespaces/{}/pods", drain.name);
    drain.add_pods(1, |_| false).await?;
    let uid = text(&drain.host.get(&format!("{pods}/pod-0")).await?.expect(200)?["metadata"]["uid"])?;
    let requests = requests_of(&drain.name);
    let request = eviction_request(&drain.name, "pod-0", &uid);
    drain.host.post(&requests, &request).await?.expect(201)?;
    leads(arena, "beside-the-gate").await?;
    eventually("the second to evict the pod", PATIENCE, async || {
        let request = drain.host.get(&format!("{requests}/{uid}")).await?.expect(200)?;
        Ok(is_true(&request, "Evicted").then_some(()))
    })
    .await?;
    gate.open();
    let log = first.log().to_owned();
    let end = first.ended(Duration::from_mins(1)).await?;
    ensure!(!end.success(), "the first has ended with {end}");
    let log = std::fs::read_to_string(&log).context("the log of the first")?;
    ensure!(log.contains("leadership was lost"), "{log}");
    let evictions = arena.evictions(&drain.name)?;
    ensure!(
        evictions
            .get("pod-0")
            .is_some_and(|posted| posted.accepted.len() == 1),
        "{evictions:?}"
    );
    let events = format!("/apis/events.k8s.io/v1/namespaces/{}/events", drain.name);
    let events = drain.host.get(&events).await?.expect(200)?;
    let items = events["items"].as_array().into_iter().flatten();
    let by_first = items
        .filter(|event| event.to_string().contains("behind-the-gate_"))
        .count();
    ensure!(by_first == 0, "{events}");
    leads(arena, "beside-the-gate").await?;
    second.terminate(Duration::from_mins(1)).await?;
    arena.tend()
}

async fn leads(arena: &Arena<'_>, name: &str) -> Result<()> {
    eventually(&format!("{name} to lead"), PATIENCE, async || {
        let holder = arena.holder().await?;
        Ok(holder.starts_with(name).then_some(()))
    })
    .await
}

/// A leader whose rights are taken away gives up its Lease and says why, and does not lead before it has them again.
pub(super) async fn rights_taken_away(arena: &Arena<'_>) -> Result<()> {
    arena.end_controllers();
    let start = || {
        start_controller(arena.drydock, "without-rights", |command| {
            command.args(["--watch-failure-deadline", "3s"]);
        })
    };
    let first = start()?;
    leads(arena, "without-rights").await?;
    let binding = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/drydock-controller";
    let host = arena.host()?;
    let mut before = host.get(binding).await?.expect(200)?;
    host.delete(binding).await?.expect(200)?;
    // Watches that are open stay open, so those of our kinds are ended with the server.
    arena.drydock.kill_part(Part::ApiServer);
    arena.drydock.start_part(Part::ApiServer).await?;
    let log = first.log().to_owned();
    let end = first.ended(PATIENCE).await?;
    ensure!(!end.success(), "it has ended with {end}");
    let text = std::fs::read_to_string(&log).context("its log")?;
    ensure!(
        text.contains("so the lease was given up") && text.contains("forbidden"),
        "{text}"
    );
    ensure!(arena.holder().await?.is_empty(), "the lease was not given up");

    let second = start()?;
    eventually("the second to be refused", PATIENCE, async || {
        let later = std::fs::read_to_string(&log)?;
        Ok(later[text.len()..].contains("forbidden").then_some(()))
    })
    .await?;
    ensure!(arena.holder().await?.is_empty(), "it leads without rights");
    before["metadata"] = json!({ "name": "drydock-controller", "labels": before["metadata"]["labels"] });
    let bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings";
    host.post(bindings, &before).await?.expect(201)?;
    leads(arena, "without-rights").await?;
    second.terminate(PATIENCE).await?;
    arena.tend()
}

/// The store is emptied in mid-drain: the nodes stay as they are, and people are told.
pub(super) async fn store_emptied(arena: &Arena<'_>) -> Result<()> {
    let drain = Drain::prepare(arena, "emptied").await?;
    drain.add_pods(2, |_| true).await?;
    drain.start().await?;
    drain.is_held().await?;
    arena.drydock.kill_part(Part::ApiServer);
    std::fs::remove_dir_all(arena.drydock.data_dir()).context("empty the store")?;
    arena.drydock.start_part(Part::ApiServer).await?;
    arena.drydock.available().await?;

    for (index, node) in drain.nodes.iter().enumerate() {
        arena.told(node, "MaintenanceVanished").await?;
        arena
            .eventually("the annotation to say so", async || {
                let record = drain.record(index).await?;
                Ok((record["vanished"] == json!([drain.name])).then_some(()))
            })
            .await?;
        let held = drain.node(index).await?;
        ensure!(held["spec"]["unschedulable"] == true, "{held}");
        let pod = format!("/api/v1/namespaces/{}/pods/pod-{index}", drain.name);
        let pod = drain.host.get(&pod).await?.expect(200)?;
        ensure!(pod["metadata"]["deletionTimestamp"].is_null(), "{pod}");
    }
    // A maintenance of the same name takes over, and its nodes come back as they were before the first one.
    drain.start().await?;
    arena
        .eventually("the pods to be requested", async || {
            let list = drain.host.get(&requests_of(&drain.name)).await?.expect(200)?;
            let is_active = list["items"].as_array().is_some_and(|items| items.len() == 2);
            Ok(is_active.then_some(()))
        })
        .await?;
    drain.is_held().await?;
    drain.ends_exactly().await?;
    for request in drain.ended_requests().await? {
        ensure!(
            request.canceled_at.is_some() && request.intent.is_none(),
            "{request:?}"
        );
    }
    Ok(())
}
