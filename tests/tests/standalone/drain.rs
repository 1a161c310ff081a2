//! Does a node come out of service without a cluster behind the server, also over the death of both
//! processes?

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::{Caller, MERGE_PATCH};
use drydock_tests::clients::{Protocol, eventually};
use drydock_tests::conformance::ROOT;
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
        let answer = caller.get(path).await?;
        ensure!(answer.status == 404, "{}", answer.text());
        Ok(Some(()))
    })
    .await
}

#[tokio::test]
async fn a_node_is_drained_in_spite_of_deaths_and_comes_back() -> Result<()> {
    let standalone = Standalone::start().await?;
    let caller = standalone.caller(Protocol::Http2)?;
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
    let budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    caller.post(budgets, &budget).await?.expect(201)?;
    for name in ["web-1", "web-2", "database"] {
        eventually(&format!("{name} to run"), PATIENCE, async || {
            let pod = item(&caller, &format!("{PODS}/{name}")).await?;
            Ok((pod["status"]["phase"] == "Running").then_some(()))
        })
        .await?;
    }
    standalone.start_controller().await?;

    let maintenance = json!({
        "metadata": { "name": "replace-disk" },
        "spec": {
            "stage": "Drain", "reason": "a disk is to be replaced",
            "nodeSelector": { "nodeSelectorTerms": [{ "matchExpressions": [
                { "key": "kubernetes.io/hostname", "operator": "In", "values": ["node-a"] },
            ] }] },
        },
    });
    let path = format!("{ROOT}/nodemaintenances");
    caller.post(&path, &maintenance).await?.expect(201)?;
    let path = format!("{path}/replace-disk");
    gone(&caller, &format!("{PODS}/web-1")).await?;
    assert_eq!(
        item(&caller, "/api/v1/nodes/node-a").await?["spec"]["unschedulable"],
        true
    );

    let uid = item(&caller, &format!("{PODS}/database")).await?["metadata"]["uid"].clone();
    let request = format!(
        "{ROOT}/namespaces/default/evictionrequests/{}",
        uid.as_str().context("a uid")?
    );
    let names_budget = async || {
        eventually("the request to name the budget", PATIENCE, async || {
            let request = item(&caller, &request).await?;
            let reports = request["status"]["interceptors"].to_string();
            ensure!(reports.contains("keep-the-database"), "{reports}");
            Ok(Some(()))
        })
        .await
    };
    names_budget().await?;

    // Both die; what they had decided is stored, and they go on from there.
    standalone.kill_controller();
    standalone.kill();
    standalone.start_again().await?;
    names_budget().await?;
    standalone.start_controller().await?;
    item(&caller, &format!("{PODS}/database")).await?;
    caller
        .delete(&format!("{budgets}/keep-the-database"))
        .await?
        .expect(200)?;
    gone(&caller, &format!("{PODS}/database")).await?;
    eventually("Drained", PATIENCE, async || {
        let maintenance = item(&caller, &path).await?;
        let conditions = maintenance["status"]["conditions"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let drained = conditions
            .iter()
            .any(|it| it["type"] == "Drained" && it["status"] == "True");
        ensure!(drained, "{}", maintenance["status"]);
        Ok(Some(()))
    })
    .await?;
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
