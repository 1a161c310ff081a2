//! What a drain survives on a real control plane: lost finalizers, lost annotations, and a maintenance that vanishes
//! without having been completed.

use anyhow::{Result, ensure};
use drydock_tests::calls::{Caller, MERGE_PATCH};
use drydock_tests::clients::{Kubectl, eventually};
use serde_json::{Value, json};

use crate::stage::{PATIENCE, ROOT, Stage, idle_maintenance, requests_of, text, together};

const STATUS_ANNOTATION: &str = "nodemaintenance.coordination.k8s.io/status";
const FINALIZER: &str = "nodemaintenance.k8s.io/maintenance-completion";

/// A drain in progress: two nodes, the second one cordoned by hand, and a pod on each that a budget holds.
struct MidDrain {
    host: Caller,
    kubectl: Kubectl,
    nodes: [String; 2],
    maintenance: String,
    /// The requests of the pods.
    requests: Vec<String>,
}

impl MidDrain {
    async fn start(stage: &Stage, name: &str) -> Result<Self> {
        let kubectl = stage.kubectl();
        let namespace = stage.namespace(name).await?;
        let nodes = ["a", "b"].map(|suffix| format!("{name}-{suffix}"));
        let budget = json!({
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": { "name": "hold", "namespace": namespace },
            "spec": { "minAvailable": 2, "selector": { "matchLabels": { "app": "held" } } },
        });
        kubectl.apply(&budget.to_string()).await?;
        for node in &nodes {
            stage.control_plane().add_node(node, &[("pool", name)]).await?;
            let pod = json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": { "name": node, "namespace": namespace, "labels": { "app": "held" } },
                "spec": {
                    "nodeSelector": { "kubernetes.io/hostname": node },
                    "containers": [{ "name": "main", "image": "main" }],
                },
            });
            kubectl.apply(&pod.to_string()).await?;
            let pod = format!("pod/{node}");
            kubectl.wait(&pod, &namespace, "condition=Ready").await?;
        }
        kubectl.ok(&["cordon", &nodes[1]]).await?;
        let host = stage.host()?;
        let mut maintenance = idle_maintenance(name, name);
        maintenance["spec"]["stage"] = json!("Drain");
        let requirement = json!({ "key": "pool", "operator": "In", "values": [name] });
        maintenance["spec"]["nodeSelector"] =
            json!({ "nodeSelectorTerms": [{ "matchExpressions": [requirement] }] });
        host.post(&format!("{ROOT}/nodemaintenances"), &maintenance)
            .await?
            .expect(201)?;
        let mut requests = Vec::new();
        for node in &nodes {
            let path = format!("/api/v1/namespaces/{namespace}/pods/{node}");
            let uid = text(&host.get(&path).await?.expect(200)?["metadata"]["uid"])?;
            requests.push(format!("{}/{uid}", requests_of(&namespace)));
        }
        let drain = Self {
            host,
            kubectl,
            nodes,
            maintenance: format!("{ROOT}/nodemaintenances/{name}"),
            requests,
        };
        eventually("both pods to be requested", PATIENCE, async || {
            for request in &drain.requests {
                if drain.host.get(request).await?.status != 200 {
                    return Ok(None);
                }
            }
            Ok(Some(()))
        })
        .await?;
        drain.records_are_complete().await?;
        Ok(drain)
    }

    async fn get(&self, path: &str) -> Result<Value> {
        self.host.get(path).await?.expect(200)
    }

    async fn node(&self, index: usize) -> Result<Value> {
        self.get(&format!("/api/v1/nodes/{}", self.nodes[index])).await
    }

    /// The record in the node's annotation; null without one.
    async fn record(&self, index: usize) -> Result<Value> {
        let node = self.node(index).await?;
        let record = node["metadata"]["annotations"][STATUS_ANNOTATION].as_str();
        Ok(record.map_or(Ok(Value::Null), serde_json::from_str)?)
    }

    /// The status names the node that was cordoned before, and both nodes.
    async fn records_are_complete(&self) -> Result<()> {
        eventually("the status to name the nodes", PATIENCE, async || {
            let status = self.get(&self.maintenance).await?["status"].clone();
            let listed = status["nodeStatuses"].as_array().map_or(0, Vec::len);
            ensure!(
                status["cordonedBefore"] == json!([self.nodes[1]]) && listed == 2,
                "{status}"
            );
            Ok(Some(()))
        })
        .await
    }

    /// Both nodes are cordoned, both have a record, and both requests have the requester of maintenances.
    async fn is_held(&self) -> Result<()> {
        for index in [0, 1] {
            let node = self.node(index).await?;
            ensure!(node["spec"]["unschedulable"] == true, "{node}");
            ensure!(!self.record(index).await?.is_null(), "{node}");
            let request = self.get(&self.requests[index]).await?;
            ensure!(
                request["spec"]["requesters"] == json!([{ "name": "nodemaintenance.k8s.io" }]),
                "{request}"
            );
            ensure!(request["metadata"]["deletionTimestamp"].is_null(), "{request}");
        }
        Ok(())
    }

    /// Waits for an Event with this reason about an object with this name.
    async fn told(&self, name: &str, reason: &str) -> Result<()> {
        let selector = format!("involvedObject.name={name},reason={reason}");
        eventually(&format!("the event {reason}"), PATIENCE * 2, async || {
            let arguments = ["get", "events", "-A", "--field-selector", &selector, "-o", "name"];
            let events = self.kubectl.ok(&arguments).await?;
            Ok((!events.trim().is_empty()).then_some(()))
        })
        .await
    }

    /// Completes the maintenance: the first node takes pods again, the second one stays cordoned.
    async fn completes(&self) -> Result<()> {
        let complete = json!({ "spec": { "stage": "Complete" } });
        self.host
            .patch(&self.maintenance, MERGE_PATCH, &complete)
            .await?
            .expect(200)?;
        eventually("the nodes to be released", PATIENCE, async || {
            ensure!(
                self.record(0).await?.is_null() && self.record(1).await?.is_null(),
                "held"
            );
            Ok(Some(()))
        })
        .await?;
        let (first, second) = (self.node(0).await?, self.node(1).await?);
        ensure!(first["spec"]["unschedulable"] != true, "{first}");
        ensure!(second["spec"]["unschedulable"] == true, "{second}");
        self.host.delete(&self.maintenance).await?.expect(200)?;
        Ok(())
    }
}

#[tokio::test]
async fn finalizer_that_a_put_takes_away_comes_back_and_nothing_else_changes() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let drain = MidDrain::start(&stage, "lost-finalizer").await?;
    eventually("a put without finalizers to be accepted", PATIENCE, async || {
        let mut object = drain.get(&drain.maintenance).await?;
        object["metadata"]["finalizers"] = json!([]);
        let response = drain.host.put(&drain.maintenance, &object).await?;
        ensure!(response.status == 200, "{}", response.text());
        Ok(Some(()))
    })
    .await?;
    eventually("the finalizer to come back", PATIENCE, async || {
        let object = drain.get(&drain.maintenance).await?;
        drain.is_held().await?;
        Ok((object["metadata"]["finalizers"] == json!([FINALIZER])).then_some(()))
    })
    .await?;
    drain.told("lost-finalizer", "FinalizerRestored").await?;
    drain.is_held().await?;
    drain.completes().await
}

#[tokio::test]
async fn annotation_that_is_removed_in_mid_drain_comes_back() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let drain = MidDrain::start(&stage, "lost-record").await?;
    let before = [drain.record(0).await?, drain.record(1).await?];
    for (index, before) in before.iter().enumerate() {
        let remove = format!("{STATUS_ANNOTATION}-");
        let name = drain.nodes[index].as_str();
        drain.kubectl.ok(&["annotate", "node", name, &remove]).await?;
        eventually("the annotation to come back", PATIENCE, async || {
            let record = drain.record(index).await?;
            ensure!(
                record["wasUnschedulable"] == before["wasUnschedulable"],
                "{record}"
            );
            ensure!(record["targets"] == before["targets"], "{record}");
            Ok(Some(()))
        })
        .await?;
        drain.told(name, "RecordRestored").await?;
    }
    drain.is_held().await?;
    drain.completes().await
}

#[tokio::test]
async fn nodes_of_a_maintenance_that_vanished_stay_until_their_annotation_is_removed() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let drain = MidDrain::start(&stage, "vanished").await?;
    // Deleted and without finalizers in one go, faster than any controller.
    eventually("the maintenance to vanish", PATIENCE, async || {
        let response = drain.host.delete(&drain.maintenance).await?;
        let bare = json!({ "metadata": { "finalizers": null } });
        drain.host.patch(&drain.maintenance, MERGE_PATCH, &bare).await?;
        Ok((response.status == 404).then_some(()))
    })
    .await?;
    drain.told(&drain.nodes[0], "MaintenanceVanished").await?;
    for index in [0, 1] {
        eventually("the request to be withdrawn", PATIENCE, async || {
            let request = drain.get(&drain.requests[index]).await?;
            let requesters = request["spec"]["requesters"].as_array();
            Ok(requesters.is_none_or(Vec::is_empty).then_some(()))
        })
        .await?;
        let node = drain.node(index).await?;
        ensure!(node["spec"]["unschedulable"] == true, "{node}");
        eventually("the annotation to say so", PATIENCE, async || {
            let record = drain.record(index).await?;
            Ok((record["vanished"] == json!(["vanished"])).then_some(()))
        })
        .await?;
        let remove = format!("{STATUS_ANNOTATION}-");
        let name = drain.nodes[index].as_str();
        drain.kubectl.ok(&["annotate", "node", name, &remove]).await?;
        eventually("the node to be left alone", PATIENCE, async || {
            Ok(drain.record(index).await?.is_null().then_some(()))
        })
        .await?;
        let node = drain.node(index).await?;
        ensure!(node["spec"]["unschedulable"] == true, "{node}");
        drain.kubectl.ok(&["uncordon", name]).await?;
    }
    Ok(())
}

/// Nodes are deleted in mid-drain, and others come under their names. They are held as well, and take pods in the end: the
/// one whose predecessor was cordoned before, too.
#[tokio::test]
async fn nodes_created_under_the_names_of_deleted_ones_are_held_and_come_back() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let name = "new-nodes";
    let drain = MidDrain::start(&stage, name).await?;
    for node in &drain.nodes {
        drain.kubectl.ok(&["delete", "node", node]).await?;
        let label = [("pool", name)];
        let node = drydock_tests::cluster::node(node, &label);
        drain
            .host
            .post("/api/v1/nodes", &serde_json::to_value(&node)?)
            .await?
            .expect(201)?;
    }
    eventually("the new nodes to be held", PATIENCE, async || {
        for index in [0, 1] {
            let record = drain.record(index).await?;
            ensure!(record["maintenances"][0]["name"] == name, "{record}");
            ensure!(record["wasUnschedulable"] == false, "{record}");
        }
        let status = drain.get(&drain.maintenance).await?["status"].clone();
        ensure!(
            status["cordonedBefore"].as_array().is_none_or(Vec::is_empty),
            "{status}"
        );
        Ok(Some(()))
    })
    .await?;
    drain.host.delete(&drain.maintenance).await?.expect(200)?;
    eventually("the maintenance to be completed", PATIENCE, async || {
        Ok((drain.host.get(&drain.maintenance).await?.status == 404).then_some(()))
    })
    .await?;
    for index in [0, 1] {
        let node = drain.node(index).await?;
        ensure!(node["spec"]["unschedulable"] != true, "{node}");
    }
    Ok(())
}

#[tokio::test]
async fn idle_maintenance_from_an_exported_manifest_can_be_deleted() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let mut maintenance = idle_maintenance("exported", "exported");
    maintenance["metadata"]["finalizers"] = json!([FINALIZER]);
    let host = stage.host()?;
    host.post(&format!("{ROOT}/nodemaintenances"), &maintenance)
        .await?
        .expect(201)?;
    stage
        .kubectl()
        .ok(&["delete", "nm", "exported", "--timeout=50s"])
        .await?;
    Ok(())
}
