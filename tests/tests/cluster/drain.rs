//! Node drains on a real control plane: the order of pods, what holds them, and how a maintenance ends.

use std::time::Duration;

use anyhow::{Result, ensure};
use drydock_tests::calls::MERGE_PATCH;
use drydock_tests::clients::{Kubectl, eventually};
use drydock_tests::cluster::Part;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::actor::Actor;
use crate::stage::{PATIENCE, Stage, condition, requests_of, text, together};

const NAMESPACE: &str = "drain";
const GUARD: &str = "guard.example.com";

/// The spec of pods that run only on this test's nodes.
fn pod_spec() -> Value {
    json!({
        "nodeSelector": { "pool": "drain" },
        "terminationGracePeriodSeconds": 1,
        "containers": [{ "name": "main", "image": "main" }],
    })
}

fn workload(kind: &str, name: &str, more: &Value) -> Value {
    let mut object = json!({
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": { "name": name, "namespace": NAMESPACE },
        "spec": {
            "selector": { "matchLabels": { "app": name } },
            "template": { "metadata": { "labels": { "app": name } }, "spec": pod_spec() },
        },
    });
    for (key, value) in more.as_object().into_iter().flatten() {
        object["spec"][key] = value.clone();
    }
    object
}

fn pod(name: &str, annotations: &Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name, "namespace": NAMESPACE, "labels": { "app": name }, "annotations": annotations,
        },
        "spec": pod_spec(),
    })
}

/// All objects of the application.
fn application() -> Value {
    let priority = format!("interceptor.evictionrequest.coordination.k8s.io/priority_{GUARD}");
    json!({
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            workload("Deployment", "web", &json!({ "replicas": 3 })),
            workload("DaemonSet", "agent", &json!({})),
            pod("database", &json!({})),
            pod("guarded", &json!({ priority: "20000" })),
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": { "name": "keep-the-database", "namespace": NAMESPACE },
                "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "database" } } },
            },
        ],
    })
}

async fn pods_on_nodes(kubectl: &Kubectl) -> Result<Vec<String>> {
    let columns = "custom-columns=NAME:.metadata.name,NODE:.spec.nodeName";
    let listed = kubectl
        .ok(&["get", "pods", "-n", NAMESPACE, "--no-headers", "-o", columns])
        .await?;
    let placed = listed.lines().filter(|line| !line.ends_with("<none>"));
    Ok(placed
        .filter_map(|line| line.split_whitespace().next().map(str::to_owned))
        .collect())
}

/// Two nodes with the application on them, the second one cordoned by hand.
async fn prepare(stage: &Stage) -> Result<()> {
    let kubectl = stage.kubectl();
    stage.namespace(NAMESPACE).await?;
    for name in ["drain-a", "drain-b"] {
        stage.control_plane().add_node(name, &[("pool", "drain")]).await?;
    }
    kubectl.apply(&application().to_string()).await?;
    rolled_out(&kubectl).await?;
    for pod in ["pod/database", "pod/guarded"] {
        kubectl.wait(pod, NAMESPACE, "condition=Ready").await?;
    }
    eventually("the budget to allow nothing", PATIENCE, async || {
        let path = "jsonpath={.status.currentHealthy},{.status.disruptionsAllowed}";
        let status = kubectl
            .ok(&["get", "pdb", "keep-the-database", "-n", NAMESPACE, "-o", path])
            .await?;
        Ok((status == "1,0").then_some(()))
    })
    .await?;
    kubectl.ok(&["cordon", "drain-b"]).await?;
    Ok(())
}

/// Waits until all pods of the workloads run.
async fn rolled_out(kubectl: &Kubectl) -> Result<()> {
    for what in ["deployment/web", "daemonset/agent"] {
        kubectl
            .ok(&["rollout", "status", what, "-n", NAMESPACE, "--timeout=55s"])
            .await?;
    }
    Ok(())
}

async fn is_cordoned(kubectl: &Kubectl, node: &str) -> Result<bool> {
    let status = kubectl
        .ok(&["get", "node", node, "-o", "jsonpath={.spec.unschedulable}"])
        .await?;
    Ok(status == "true")
}

/// The drain of two nodes: a guarded pod, a pod under a budget, a Deployment and a DaemonSet.
struct Drain {
    stage: Stage,
    kubectl: Kubectl,
    /// The UIDs of the pods, which are the names of their requests.
    database: String,
    guarded: String,
}

impl Drain {
    async fn start(stage: Stage) -> Result<Self> {
        prepare(&stage).await?;
        let uid_of = async |pod: &str| {
            let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}");
            text(&stage.host()?.get(&path).await?.expect(200)?["metadata"]["uid"])
        };
        let (database, guarded) = (uid_of("database").await?, uid_of("guarded").await?);
        let maintenance = json!({
            "apiVersion": "coordination.k8s.io/v1alpha3",
            "kind": "NodeMaintenance",
            "metadata": { "name": "replace-disks" },
            "spec": {
                "stage": "Drain",
                "reason": "disks are to be replaced",
                "nodeSelector": { "nodeSelectorTerms": [{
                    "matchExpressions": [{ "key": "pool", "operator": "In", "values": ["drain"] }],
                }] },
            },
        });
        let kubectl = stage.kubectl();
        let output = kubectl
            .run_with_input(&["apply", "-f", "-"], &maintenance.to_string())
            .await?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(Self {
            stage,
            kubectl,
            database,
            guarded,
        })
    }

    /// Both nodes are cordoned, and the pods that nothing holds leave.
    async fn unheld_pods_leave(&self) -> Result<()> {
        let cordoned = "jsonpath={.spec.unschedulable}=true";
        self.kubectl.wait("node/drain-a", "", cordoned).await?;
        let left = eventually("the web pods to leave", PATIENCE, async || {
            let pods = pods_on_nodes(&self.kubectl).await?;
            Ok((!pods.iter().any(|pod| pod.starts_with("web-"))).then_some(pods))
        })
        .await?;
        for stays in ["database", "guarded", "agent-"] {
            ensure!(
                left.iter().any(|pod| pod.starts_with(stays)),
                "{stays} is gone: {left:?}"
            );
        }
        Ok(())
    }

    /// The row of a request in `kubectl get -o wide`.
    async fn row(&self, request: &str) -> Result<String> {
        let arguments = [
            "get",
            "er",
            request,
            "-n",
            NAMESPACE,
            "-o",
            "wide",
            "--no-headers",
        ];
        self.kubectl.ok(&arguments).await
    }

    async fn pod_exists(&self, pod: &str) -> Result<()> {
        self.kubectl.ok(&["get", "pod", pod, "-n", NAMESPACE]).await?;
        Ok(())
    }

    /// The guarded pod stays until its interceptor has completed, the database as long as its budget holds it.
    async fn held_pods_stay(&self) -> Result<()> {
        let guard = Actor {
            caller: self.stage.host()?,
            name: GUARD,
            path: format!("{}/{}", requests_of(NAMESPACE), self.guarded),
        };
        guard.begin("saving what is in memory", &json!({})).await?;
        let row = self.row(&self.guarded).await?;
        for word in [GUARD, "Intercepted", "saving what is in memory"] {
            ensure!(row.contains(word), "{word}: {row}");
        }
        self.pod_exists("guarded").await?;
        eventually("the request to name the budget", PATIENCE, async || {
            let row = self.row(&self.database).await?;
            Ok((row.contains("keep-the-database") && row.contains("Blocked")).then_some(()))
        })
        .await?;
        self.pod_exists("guarded").await?;

        guard.complete().await?;
        self.kubectl.wait("pod/guarded", NAMESPACE, "delete").await?;
        let request = format!("er/{}", self.guarded);
        self.kubectl
            .wait(&request, NAMESPACE, "condition=Evicted")
            .await?;
        self.pod_exists("database").await
    }

    /// Without its budget, the database leaves within 10 s.
    async fn the_database_leaves_without_its_budget(&self) -> Result<()> {
        let drained = "jsonpath={.status.conditions[?(@.type==\"Drained\")].status}";
        let arguments = ["get", "nm", "replace-disks", "-o", drained];
        let status = self.kubectl.ok(&arguments).await?;
        ensure!(status != "True", "drained with the database still there");
        self.kubectl
            .ok(&["delete", "pdb", "keep-the-database", "-n", NAMESPACE])
            .await?;
        let deleted = Instant::now();
        self.kubectl.wait("pod/database", NAMESPACE, "delete").await?;
        ensure!(
            deleted.elapsed() < Duration::from_secs(10),
            "it took {:?}",
            deleted.elapsed()
        );
        Ok(())
    }

    /// The pods of the DaemonSet leave last and do not come back.
    async fn nodes_are_drained(&self) -> Result<()> {
        self.kubectl
            .wait("nm/replace-disks", "", "condition=Drained")
            .await?;
        let left = pods_on_nodes(&self.kubectl).await?;
        ensure!(left.is_empty(), "{left:?}");
        let arguments = ["get", "nm", "replace-disks", "--no-headers"];
        let row = self.kubectl.ok(&arguments).await?;
        ensure!(row.contains("2/2"), "{row}");
        let arguments = ["get", "node", "drain-a", "-o", "jsonpath={.spec.taints[*].key}"];
        let taints = self.kubectl.ok(&arguments).await?;
        ensure!(
            taints.contains("nodemaintenance.coordination.k8s.io/drain"),
            "{taints}"
        );
        Ok(())
    }

    /// Completion uncordons the node that the maintenance has cordoned, and not the one that was cordoned before.
    async fn nodes_come_back(&self) -> Result<()> {
        let patch = "{\"spec\":{\"stage\":\"Complete\"}}";
        self.kubectl
            .ok(&["patch", "nm", "replace-disks", "--type=merge", "-p", patch])
            .await?;
        eventually("the node to take pods", PATIENCE, async || {
            Ok((!is_cordoned(&self.kubectl, "drain-a").await?).then_some(()))
        })
        .await?;
        ensure!(
            is_cordoned(&self.kubectl, "drain-b").await?,
            "it was cordoned before the maintenance"
        );
        rolled_out(&self.kubectl).await?;
        let traces = "jsonpath={.metadata.annotations}{.spec.taints[*].key}";
        let left = self.kubectl.ok(&["get", "node", "drain-a", "-o", traces]).await?;
        ensure!(!left.contains("nodemaintenance.coordination.k8s.io"), "{left}");
        self.kubectl
            .ok(&["delete", "nm", "replace-disks", "--timeout=50s"])
            .await?;
        Ok(())
    }

    /// Every event was understood.
    fn pods_were_watched_over_protobuf(&self) -> Result<()> {
        let log = std::fs::read_to_string(self.stage.drydock.log(Part::Controller))?;
        ensure!(log.contains("pods are watched over protobuf"), "{log}");
        ensure!(!log.contains("pods are watched in JSON"), "{log}");
        Ok(())
    }
}

#[tokio::test]
async fn two_nodes_are_drained_and_come_back() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let drain = Drain::start(stage).await?;
    drain.unheld_pods_leave().await?;
    drain.held_pods_stay().await?;
    drain.the_database_leaves_without_its_budget().await?;
    drain.nodes_are_drained().await?;
    drain.nodes_come_back().await?;
    drain.pods_were_watched_over_protobuf()
}

#[tokio::test]
async fn a_request_without_requesters_is_canceled_and_the_pod_stays() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("drain-withdrawn").await?;
    let kubectl = stage.kubectl();
    let budget = json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": { "name": "hold", "namespace": namespace },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "hold": "yes" } } },
    });
    kubectl.apply(&budget.to_string()).await?;
    let priority = format!("interceptor.evictionrequest.coordination.k8s.io/priority_{GUARD}");
    let mut held = pod("held", &json!({ priority: "20000" }));
    held["metadata"]["namespace"] = json!(namespace);
    held["spec"]["schedulerName"] = json!("nobody");
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let uid = text(&stage.host()?.post(&path, &held).await?.expect(201)?["metadata"]["uid"])?;
    let request = crate::stage::eviction_request(&namespace, "held", &uid);
    stage
        .host()?
        .post(&requests_of(&namespace), &request)
        .await?
        .expect(201)?;
    let item = format!("{}/{uid}", requests_of(&namespace));
    eventually("the guard to be active", PATIENCE, async || {
        let request = stage.host()?.get(&item).await?.expect(200)?;
        ensure!(
            request["status"]["activeInterceptors"] == json!([GUARD]),
            "{}",
            request["status"]
        );
        let names: Vec<_> = request["status"]["targetInterceptors"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|it| it["name"].clone())
            .collect();
        assert_eq!(names, [json!(GUARD), json!("imperative-eviction.k8s.io")]);
        Ok(Some(()))
    })
    .await?;
    let nobody = json!({ "spec": { "requesters": [] } });
    stage
        .host()?
        .patch(&item, MERGE_PATCH, &nobody)
        .await?
        .expect(200)?;
    kubectl
        .wait(&format!("er/{uid}"), &namespace, "condition=Canceled")
        .await?;
    let request = stage.host()?.get(&item).await?.expect(200)?;
    let canceled = condition(&request, "Canceled")?;
    assert_eq!(canceled["reason"], "NoRequesters");
    ensure!(
        request["status"]["activeInterceptors"]
            .as_array()
            .is_none_or(Vec::is_empty),
        "{request}"
    );
    kubectl.ok(&["get", "pod", "held", "-n", &namespace]).await?;
    // A canceled request cannot be revived.
    let again = json!({ "spec": { "requesters": [{ "name": "suite.example.com" }] } });
    let status = stage
        .host()?
        .patch(&item, MERGE_PATCH, &again)
        .await?
        .expect(422)?;
    assert_eq!(status["details"]["causes"][0]["reason"], "FieldValueForbidden");
    Ok(())
}

#[tokio::test]
async fn a_request_for_another_pod_than_it_names_is_canceled() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("drain-mistaken").await?;
    stage.pod(&namespace, "present").await?;
    for (number, name) in [(1, "present"), (2, "absent")] {
        let uid = crate::stage::uid(0xd1a1, number);
        let request = crate::stage::eviction_request(&namespace, name, &uid);
        stage
            .host()?
            .post(&requests_of(&namespace), &request)
            .await?
            .expect(201)?;
        stage
            .kubectl()
            .wait(&format!("er/{uid}"), &namespace, "condition=Canceled")
            .await?;
        let request = stage
            .host()?
            .get(&format!("{}/{uid}", requests_of(&namespace)))
            .await?
            .expect(200)?;
        let canceled = condition(&request, "Canceled")?;
        assert_eq!(canceled["reason"], "ValidationFailed");
        ensure!(
            canceled["message"].as_str().is_some_and(|it| it.contains(name)),
            "{canceled}"
        );
    }
    stage
        .kubectl()
        .ok(&["get", "pod", "present", "-n", &namespace])
        .await?;
    Ok(())
}

#[tokio::test]
async fn a_deleted_maintenance_cancels_its_requests_and_uncordons() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let kubectl = stage.kubectl();
    let namespace = stage.namespace("drain-deleted").await?;
    stage
        .control_plane()
        .add_node("drain-deleted", &[("pool", "drain-deleted")])
        .await?;
    let mut held = pod("held", &json!({}));
    held["metadata"]["namespace"] = json!(namespace);
    held["spec"]["nodeSelector"] = json!({ "pool": "drain-deleted" });
    let budget = json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": { "name": "hold", "namespace": namespace },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "held" } } },
    });
    kubectl
        .apply(&json!({ "apiVersion": "v1", "kind": "List", "items": [held, budget] }).to_string())
        .await?;
    kubectl.wait("pod/held", &namespace, "condition=Ready").await?;
    let mut maintenance = crate::stage::idle_maintenance("called-off", "drain-deleted");
    maintenance["spec"]["stage"] = json!("Drain");
    stage
        .host()?
        .post(
            "/apis/coordination.k8s.io/v1alpha3/nodemaintenances",
            &maintenance,
        )
        .await?
        .expect(201)?;
    let pod = stage
        .host()?
        .get(&format!("/api/v1/namespaces/{namespace}/pods/held"))
        .await?
        .expect(200)?;
    let uid = text(&pod["metadata"]["uid"])?;
    let request = format!("{}/{uid}", requests_of(&namespace));
    eventually("the budget to hold the pod", PATIENCE, async || {
        let request = stage.host()?.get(&request).await?.expect(200)?;
        ensure!(
            request["spec"]["requesters"] == json!([{ "name": "nodemaintenance.k8s.io" }]),
            "{request}"
        );
        ensure!(request["status"].to_string().contains("hold"), "{request}");
        Ok(Some(()))
    })
    .await?;
    ensure!(
        is_cordoned(&kubectl, "drain-deleted").await?,
        "it is not cordoned"
    );

    kubectl
        .ok(&["delete", "nm", "called-off", "--timeout=50s"])
        .await?;
    kubectl
        .wait(&format!("er/{uid}"), &namespace, "condition=Canceled")
        .await?;
    ensure!(
        !is_cordoned(&kubectl, "drain-deleted").await?,
        "it is still cordoned"
    );
    kubectl.ok(&["get", "pod", "held", "-n", &namespace]).await?;
    Ok(())
}
