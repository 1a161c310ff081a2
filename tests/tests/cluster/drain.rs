//! Does a node come out of service as promised: every pod in its turn, and nothing stuck without a reason?

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::{Caller, MERGE_PATCH};
use drydock_tests::clients::{Kubectl, eventually};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::stage::{PATIENCE, Stage, requests_of, text, together};

const NAMESPACE: &str = "drain";
const GUARD: &str = "guard.example.com";

/// A template of pods that only run on this story's nodes.
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

/// Everything that lives on the nodes.
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

/// The program that answers for the guarded pod.
struct Guard {
    caller: Caller,
    path: String,
}

impl Guard {
    async fn report(&self, change: impl Fn(&mut Value)) -> Result<()> {
        let mut request = self.caller.get(&self.path).await?.expect(200)?;
        let version = request["metadata"]["resourceVersion"].clone();
        let reports = request["status"]["interceptors"]
            .as_array_mut()
            .context("reports")?;
        let own = reports.iter_mut().find(|report| report["name"] == GUARD);
        change(own.context("an entry of its own")?);
        // The whole list with the version it was read at: a merge patch replaces lists.
        let patch = json!({
            "metadata": { "resourceVersion": version },
            "status": { "interceptors": reports },
        });
        let path = format!("{}/status", self.path);
        self.caller.patch(&path, MERGE_PATCH, &patch).await?.expect(200)?;
        Ok(())
    }

    /// Waits for its turn and shows itself.
    async fn begin(&self) -> Result<()> {
        eventually("the guard's turn", PATIENCE, async || {
            let request = self.caller.get(&self.path).await?.expect(200)?;
            ensure!(
                request["status"]["activeInterceptors"] == json!([GUARD]),
                "{}",
                request["status"]
            );
            let now = self.caller.get(&self.path).await?.time()?;
            self.report(|own| {
                own["startTime"] = json!(now);
                own["heartbeatTime"] = json!(now);
                own["message"] = json!("saving what is in memory");
            })
            .await?;
            Ok(Some(()))
        })
        .await
    }

    /// Says that it is done. The pod is left to the next interceptor.
    async fn complete(&self) -> Result<()> {
        let now = self.caller.get(&self.path).await?.time()?;
        self.report(|own| own["completionTime"] = json!(now)).await
    }
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
async fn set_the_scene(stage: &Stage) -> Result<()> {
    let kubectl = stage.kubectl();
    stage.namespace(NAMESPACE).await?;
    for name in ["drain-a", "drain-b"] {
        stage.control_plane().add_node(name, &[("pool", "drain")]).await?;
    }
    kubectl.apply(&application().to_string()).await?;
    for what in ["deployment/web", "daemonset/agent"] {
        kubectl
            .ok(&["rollout", "status", what, "-n", NAMESPACE, "--timeout=50s"])
            .await?;
    }
    let pods = ["pod/database", "pod/guarded"];
    for pod in pods {
        kubectl
            .ok(&[
                "wait",
                pod,
                "-n",
                NAMESPACE,
                "--for=condition=Ready",
                "--timeout=50s",
            ])
            .await?;
    }
    eventually("the budget to allow nothing", PATIENCE, async || {
        let path = "jsonpath={.status.currentHealthy},{.status.disruptionsAllowed}";
        let said = kubectl
            .ok(&["get", "pdb", "keep-the-database", "-n", NAMESPACE, "-o", path])
            .await?;
        Ok((said == "1,0").then_some(()))
    })
    .await?;
    kubectl.ok(&["cordon", "drain-b"]).await?;
    Ok(())
}

async fn is_cordoned(kubectl: &Kubectl, node: &str) -> Result<bool> {
    let said = kubectl
        .ok(&["get", "node", node, "-o", "jsonpath={.spec.unschedulable}"])
        .await?;
    Ok(said == "true")
}

/// Waits until the request for a pod's eviction is canceled.
async fn wait_until_canceled(kubectl: &Kubectl, namespace: &str, uid: &str) -> Result<()> {
    kubectl
        .ok(&[
            "wait",
            &format!("er/{uid}"),
            "-n",
            namespace,
            "--for=condition=Canceled",
            "--timeout=50s",
        ])
        .await?;
    Ok(())
}

#[tokio::test]
async fn two_nodes_go_out_of_service_and_come_back() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let kubectl = stage.kubectl();
    set_the_scene(&stage).await?;
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
    let output = kubectl
        .run_with_input(&["apply", "-f", "-"], &maintenance.to_string())
        .await?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );

    // Both nodes take no new pods, and what may leave at once leaves.
    kubectl
        .ok(&[
            "wait",
            "node/drain-a",
            "--for=jsonpath={.spec.unschedulable}=true",
            "--timeout=50s",
        ])
        .await?;
    let left = eventually("the web pods to leave", PATIENCE, async || {
        let pods = pods_on_nodes(&kubectl).await?;
        Ok((!pods.iter().any(|pod| pod.starts_with("web-"))).then_some(pods))
    })
    .await?;
    for stays in ["database", "guarded", "agent-"] {
        ensure!(
            left.iter().any(|pod| pod.starts_with(stays)),
            "{stays} is gone: {left:?}"
        );
    }

    // The guarded pod stays while its interceptor works.
    let guard = Guard {
        caller: stage.host()?,
        path: format!("{}/{guarded}", requests_of(NAMESPACE)),
    };
    guard.begin().await?;
    let shown = kubectl
        .ok(&[
            "get",
            "er",
            &guarded,
            "-n",
            NAMESPACE,
            "-o",
            "wide",
            "--no-headers",
        ])
        .await?;
    for word in [GUARD, "Intercepted", "saving what is in memory"] {
        ensure!(shown.contains(word), "{word}: {shown}");
    }
    kubectl.ok(&["get", "pod", "guarded", "-n", NAMESPACE]).await?;

    // The database stays too, and its request says which budget holds it.
    eventually("the request to name the budget", PATIENCE, async || {
        let arguments = [
            "get",
            "er",
            &database,
            "-n",
            NAMESPACE,
            "-o",
            "wide",
            "--no-headers",
        ];
        let shown = kubectl.ok(&arguments).await?;
        Ok((shown.contains("keep-the-database") && shown.contains("Blocked")).then_some(()))
    })
    .await?;
    ensure!(
        pods_on_nodes(&kubectl).await?.iter().any(|pod| pod == "guarded"),
        "the guard is not done"
    );

    guard.complete().await?;
    let arguments = [
        "wait",
        "pod/guarded",
        "-n",
        NAMESPACE,
        "--for=delete",
        "--timeout=50s",
    ];
    kubectl.ok(&arguments).await?;
    let arguments = [
        "wait",
        &format!("er/{guarded}"),
        "-n",
        NAMESPACE,
        "--for=condition=Evicted",
        "--timeout=50s",
    ];
    kubectl.ok(&arguments).await?;

    // Without the budget the database leaves, soon.
    kubectl.ok(&["get", "pod", "database", "-n", NAMESPACE]).await?;
    let drained = "jsonpath={.status.conditions[?(@.type==\"Drained\")].status}";
    let said = kubectl.ok(&["get", "nm", "replace-disks", "-o", drained]).await?;
    ensure!(said != "True", "drained with the database still there");
    kubectl
        .ok(&["delete", "pdb", "keep-the-database", "-n", NAMESPACE])
        .await?;
    let deleted = Instant::now();
    kubectl
        .ok(&[
            "wait",
            "pod/database",
            "-n",
            NAMESPACE,
            "--for=delete",
            "--timeout=50s",
        ])
        .await?;
    ensure!(
        deleted.elapsed() < Duration::from_secs(10),
        "it took {:?}",
        deleted.elapsed()
    );

    // Then the pods of the DaemonSet, which do not come back.
    kubectl
        .ok(&[
            "wait",
            "nm/replace-disks",
            "--for=condition=Drained",
            "--timeout=55s",
        ])
        .await?;
    ensure!(
        pods_on_nodes(&kubectl).await?.is_empty(),
        "{:?}",
        pods_on_nodes(&kubectl).await?
    );
    let shown = kubectl
        .ok(&["get", "nm", "replace-disks", "--no-headers"])
        .await?;
    ensure!(shown.contains("2/2"), "{shown}");
    let taints = kubectl
        .ok(&["get", "node", "drain-a", "-o", "jsonpath={.spec.taints[*].key}"])
        .await?;
    ensure!(
        taints.contains("nodemaintenance.coordination.k8s.io/drain"),
        "{taints}"
    );

    // Back in service: the one that was cordoned by hand stays so.
    let patch = "{\"spec\":{\"stage\":\"Complete\"}}";
    kubectl
        .ok(&["patch", "nm", "replace-disks", "--type=merge", "-p", patch])
        .await?;
    eventually("the node to take pods", PATIENCE, async || {
        Ok((!is_cordoned(&kubectl, "drain-a").await?).then_some(()))
    })
    .await?;
    ensure!(
        is_cordoned(&kubectl, "drain-b").await?,
        "it was cordoned before the maintenance"
    );
    for what in ["deployment/web", "daemonset/agent"] {
        kubectl
            .ok(&["rollout", "status", what, "-n", NAMESPACE, "--timeout=55s"])
            .await?;
    }
    let traces = "jsonpath={.metadata.annotations}{.spec.taints[*].key}";
    let said = kubectl.ok(&["get", "node", "drain-a", "-o", traces]).await?;
    ensure!(!said.contains("nodemaintenance.coordination.k8s.io"), "{said}");
    kubectl
        .ok(&["delete", "nm", "replace-disks", "--timeout=50s"])
        .await?;
    Ok(())
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
    eventually("the guard to be asked", PATIENCE, async || {
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
    wait_until_canceled(&kubectl, &namespace, &uid).await?;
    let request = stage.host()?.get(&item).await?.expect(200)?;
    let conditions = request["status"]["conditions"].as_array().context("conditions")?;
    let canceled = conditions
        .iter()
        .find(|it| it["type"] == "Canceled")
        .context("Canceled")?;
    assert_eq!(canceled["reason"], "NoRequesters");
    ensure!(
        request["status"]["activeInterceptors"]
            .as_array()
            .is_none_or(Vec::is_empty),
        "{request}"
    );
    kubectl.ok(&["get", "pod", "held", "-n", &namespace]).await?;
    // Final is final.
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
        let kubectl = stage.kubectl();
        kubectl
            .ok(&[
                "wait",
                &format!("er/{uid}"),
                "-n",
                &namespace,
                "--for=condition=Canceled",
                "--timeout=50s",
            ])
            .await?;
        let request = stage
            .host()?
            .get(&format!("{}/{uid}", requests_of(&namespace)))
            .await?
            .expect(200)?;
        let conditions = request["status"]["conditions"].as_array().context("conditions")?;
        let canceled = conditions
            .iter()
            .find(|it| it["type"] == "Canceled")
            .context("Canceled")?;
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
async fn a_maintenance_that_is_deleted_gives_back_what_it_took() -> Result<()> {
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
    kubectl
        .ok(&[
            "wait",
            "pod/held",
            "-n",
            &namespace,
            "--for=condition=Ready",
            "--timeout=50s",
        ])
        .await?;
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
    wait_until_canceled(&kubectl, &namespace, &uid).await?;
    ensure!(
        !is_cordoned(&kubectl, "drain-deleted").await?,
        "it is still cordoned"
    );
    kubectl.ok(&["get", "pod", "held", "-n", &namespace]).await?;
    Ok(())
}
