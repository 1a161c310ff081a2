//! A node drain in standalone mode, across a kill of the server and the controller.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::{Caller, MERGE_PATCH};
use drydock_tests::clients::{Protocol, eventually};
use drydock_tests::objects::{ROOT, idle_maintenance, is_true};
use drydock_tests::standalone::Standalone;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_mins(1);
const PODS: &str = "/api/v1/namespaces/default/pods";

fn node(name: &str) -> Value {
    json!({ "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } } })
}

fn pod(name: &str, node: &str) -> Value {
    json!({
        "metadata": { "name": name, "labels": { "app": name } },
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "main", "image": "main" }],
        },
    })
}

async fn item(caller: &Caller, path: &str) -> Result<Value> {
    caller.get(path).await?.expect(200)
}

async fn gone(caller: &Caller, path: &str) -> Result<()> {
    eventually(&format!("{path} to go"), PATIENCE, async || {
        let response = caller.get(path).await?;
        ensure!(response.status == 404, "{}", response.text());
        Ok(Some(()))
    })
    .await
}

const BUDGETS: &str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";

/// Two nodes, three running pods, and a budget that holds one of them.
async fn prepare(caller: &Caller) -> Result<()> {
    for name in ["node-a", "node-b"] {
        caller.post("/api/v1/nodes", &node(name)).await?.expect(201)?;
    }
    for (name, node) in [("web-1", "node-a"), ("web-2", "node-b"), ("database", "node-a")] {
        caller.post(PODS, &pod(name, node)).await?.expect(201)?;
    }
    let budget = json!({
        "metadata": { "name": "keep-the-database" },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "database" } } },
    });
    caller.post(BUDGETS, &budget).await?.expect(201)?;
    for name in ["web-1", "web-2", "database"] {
        eventually(&format!("{name} to run"), PATIENCE, async || {
            let pod = item(caller, &format!("{PODS}/{name}")).await?;
            Ok((pod["status"]["phase"] == "Running").then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// Waits until the request for the database names the budget that holds it.
async fn budget_is_named(caller: &Caller, request: &str) -> Result<()> {
    eventually("the request to name the budget", PATIENCE, async || {
        let request = item(caller, request).await?;
        let reports = request["status"]["interceptors"].to_string();
        ensure!(reports.contains("keep-the-database"), "{reports}");
        Ok(Some(()))
    })
    .await
}

async fn drained(caller: &Caller, maintenance: &str) -> Result<()> {
    eventually("Drained", PATIENCE, async || {
        let maintenance = item(caller, maintenance).await?;
        ensure!(is_true(&maintenance, "Drained"), "{}", maintenance["status"]);
        Ok(Some(()))
    })
    .await
}

#[tokio::test]
async fn a_drain_continues_after_both_processes_are_killed() -> Result<()> {
    let standalone = Standalone::start().await?;
    let caller = standalone.caller(Protocol::Http2)?;
    prepare(&caller).await?;
    standalone.start_controller().await?;

    let mut maintenance = idle_maintenance("replace-disk", "node-a");
    maintenance["spec"]["stage"] = json!("Drain");
    maintenance["spec"]["reason"] = json!("a disk is to be replaced");
    let path = format!("{ROOT}/nodemaintenances");
    caller.post(&path, &maintenance).await?.expect(201)?;
    let path = format!("{path}/replace-disk");
    gone(&caller, &format!("{PODS}/web-1")).await?;
    let cordoned = item(&caller, "/api/v1/nodes/node-a").await?;
    assert_eq!(cordoned["spec"]["unschedulable"], true);

    let database = format!("{PODS}/database");
    let uid = item(&caller, &database).await?["metadata"]["uid"].clone();
    let uid = uid.as_str().context("a uid")?;
    let request = format!("{ROOT}/namespaces/default/evictionrequests/{uid}");
    budget_is_named(&caller, &request).await?;

    standalone.kill_controller();
    standalone.kill();
    standalone.start_again().await?;
    budget_is_named(&caller, &request).await?;
    standalone.start_controller().await?;
    item(&caller, &database).await?;
    let budget = format!("{BUDGETS}/keep-the-database");
    caller.delete(&budget).await?.expect(200)?;
    gone(&caller, &database).await?;
    drained(&caller, &path).await?;
    item(&caller, &format!("{PODS}/web-2"))
        .await
        .context("a pod of another node")?;

    let complete = json!({ "spec": { "stage": "Complete" } });
    caller.patch(&path, MERGE_PATCH, &complete).await?.expect(200)?;
    eventually("the node to take pods", PATIENCE, async || {
        let node = item(&caller, "/api/v1/nodes/node-a").await?;
        ensure!(node["spec"]["unschedulable"] != true, "{}", node["spec"]);
        Ok(Some(()))
    })
    .await?;
    caller.delete(&path).await?.expect(200)?;
    gone(&caller, &path).await
}
