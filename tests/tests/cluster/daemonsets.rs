//! Pods of DaemonSets on a drained node, on a real control plane.

use anyhow::{Result, ensure};
use drydock_tests::clients::Kubectl;
use serde_json::{Value, json};

use crate::stage::{Stage, together};

/// The name of the node, of its pool and of the maintenance.
const NAME: &str = "drain-tolerant";

fn daemon_set(namespace: &str, name: &str, tolerations: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": {
                    "nodeSelector": { "pool": NAME },
                    "tolerations": tolerations,
                    "terminationGracePeriodSeconds": 1,
                    "containers": [{ "name": "main", "image": "main" }],
                },
            },
        },
    })
}

fn maintenance() -> Value {
    let requirement = json!({ "key": "pool", "operator": "In", "values": [NAME] });
    json!({
        "apiVersion": "coordination.k8s.io/v1alpha3",
        "kind": "NodeMaintenance",
        "metadata": { "name": NAME },
        "spec": {
            "stage": "Drain",
            "nodeSelector": { "nodeSelectorTerms": [{ "matchExpressions": [requirement] }] },
        },
    })
}

/// The UIDs of the pods of a DaemonSet.
async fn uids(kubectl: &Kubectl, namespace: &str, app: &str) -> Result<String> {
    let selector = format!("app={app}");
    let columns = "jsonpath={.items[*].metadata.uid}";
    kubectl
        .ok(&["get", "pods", "-n", namespace, "-l", &selector, "-o", columns])
        .await
}

/// A node with a pod of a DaemonSet that tolerates every taint, and a pod of one that tolerates none.
async fn prepare(stage: &Stage) -> Result<String> {
    let namespace = stage.namespace(NAME).await?;
    let kubectl = stage.kubectl();
    stage.control_plane().add_node(NAME, &[("pool", NAME)]).await?;
    for (name, tolerations) in [("proxy", json!([{ "operator": "Exists" }])), ("agent", json!([]))] {
        let object = daemon_set(&namespace, name, &tolerations);
        kubectl.apply(&object.to_string()).await?;
        let what = format!("daemonset/{name}");
        kubectl
            .ok(&["rollout", "status", &what, "-n", &namespace, "--timeout=55s"])
            .await?;
    }
    Ok(namespace)
}

/// A DaemonSet whose pods tolerate every taint creates them again on a drained node. So the drain leaves them alone: it
/// ends, names them, and evicts none of them.
#[tokio::test]
async fn pods_that_tolerate_every_taint_are_left_alone() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = prepare(&stage).await?;
    let kubectl = stage.kubectl();
    let proxy = uids(&kubectl, &namespace, "proxy").await?;
    ensure!(!proxy.is_empty(), "the DaemonSet has a pod");
    kubectl.apply(&maintenance().to_string()).await?;
    let name = format!("nm/{NAME}");
    kubectl.wait(&name, "", "condition=Drained").await?;

    let agent = uids(&kubectl, &namespace, "agent").await?;
    assert_eq!(agent, "", "the pod without tolerations has left");
    let left = uids(&kubectl, &namespace, "proxy").await?;
    assert_eq!(left, proxy, "the tolerant pod was not evicted");
    let path = "jsonpath={.status.conditions[?(@.type==\"Drained\")].message}";
    let message = kubectl.ok(&["get", &name, "-o", path]).await?;
    ensure!(
        message.contains("DaemonSetPod") && message.contains(&format!("{namespace}/proxy (1)")),
        "{message}"
    );
    let path = "jsonpath={.items[*].metadata.name}";
    let requests = kubectl.ok(&["get", "er", "-n", &namespace, "-o", path]).await?;
    ensure!(!requests.contains(&proxy), "{requests}");

    let patch = "{\"spec\":{\"stage\":\"Complete\"}}";
    kubectl.ok(&["patch", &name, "--type=merge", "-p", patch]).await?;
    kubectl.ok(&["delete", &name, "--timeout=50s"]).await?;
    Ok(())
}
