//! Drains of the nodes that our own servers run on.

use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::clients::eventually;
use serde_json::{Value, json};

use crate::stage::{PATIENCE, condition, requests_of, together};

const NAMESPACE: &str = "our-servers";
const SERVERS: usize = 3;

/// The Deployment and the budget of `deploy/etcd`, in a namespace and on nodes of this test.
fn manifests() -> Result<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/etcd/apiserver.yaml");
    let text = std::fs::read_to_string(path).context("read the manifest")?;
    let mut items = Vec::new();
    for document in text.split("\n---\n") {
        let mut object: Value = serde_saphyr::from_str(document).context("read YAML")?;
        object["metadata"]["namespace"] = json!(NAMESPACE);
        if object["kind"] == "Deployment" {
            let pod = &mut object["spec"]["template"]["spec"];
            pod["nodeSelector"] = json!({ "pool": NAMESPACE });
            pod["serviceAccountName"] = json!("default");
        }
        items.push(object);
    }
    ensure!(items.len() == 2, "a Deployment and its budget");
    Ok(json!({ "apiVersion": "v1", "kind": "List", "items": items }))
}

/// A maintenance of every node with a server takes one of them, and then waits for the budget.
#[tokio::test]
async fn a_drain_never_takes_the_last_ready_server() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let kubectl = stage.kubectl();
    stage.namespace(NAMESPACE).await?;
    for number in 0..SERVERS {
        let name = format!("{NAMESPACE}-{number}");
        stage
            .control_plane()
            .add_node(&name, &[("pool", NAMESPACE)])
            .await?;
    }
    kubectl.apply(&manifests()?.to_string()).await?;
    let rollout = ["rollout", "status", "deployment/drydock-apiserver"];
    kubectl
        .ok(&[&rollout[..], &["-n", NAMESPACE, "--timeout=55s"]].concat())
        .await?;
    eventually("the budget to allow one", PATIENCE, async || {
        let path = "jsonpath={.status.currentHealthy},{.status.disruptionsAllowed}";
        let status = kubectl
            .ok(&["get", "pdb", "drydock-apiserver", "-n", NAMESPACE, "-o", path])
            .await?;
        Ok((status == "3,1").then_some(()))
    })
    .await?;

    let maintenance = json!({
        "apiVersion": "coordination.k8s.io/v1alpha3",
        "kind": "NodeMaintenance",
        "metadata": { "name": NAMESPACE },
        "spec": {
            "stage": "Drain",
            "reason": "all nodes of our servers",
            "nodeSelector": { "nodeSelectorTerms": [{
                "matchExpressions": [{ "key": "pool", "operator": "In", "values": [NAMESPACE] }],
            }] },
        },
    });
    kubectl.apply(&maintenance.to_string()).await?;
    // No node takes a replacement, so the budget allows no second one.
    let host = stage.host()?;
    eventually("the budget to hold two servers", PATIENCE, async || {
        let requests = host.get(&requests_of(NAMESPACE)).await?.expect(200)?;
        let requests = requests["items"].as_array().context("items")?;
        let is_held = |request: &&Value| {
            condition(request, "Blocked").is_ok_and(|it| it["status"] == "True" && it["reason"] == "Budget")
        };
        Ok((requests.iter().filter(is_held).count() == SERVERS - 1).then_some(()))
    })
    .await?;
    let ready = "jsonpath={.status.readyReplicas}";
    let deployment = ["get", "deployment", "drydock-apiserver", "-n", NAMESPACE];
    let ready = kubectl.ok(&[&deployment[..], &["-o", ready]].concat()).await?;
    ensure!(ready == "2", "{ready} servers are ready");

    kubectl.ok(&["delete", "nm", NAMESPACE, "--timeout=50s"]).await?;
    kubectl
        .ok(&["delete", "namespace", NAMESPACE, "--wait=false"])
        .await?;
    Ok(())
}
