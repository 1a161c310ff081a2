//! The service accounts have no right that they do not use: the rules of `deploy/rbac` against the audit log of the host, while a
//! maintenance, requests and an interceptor make the programs do everything they do.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::clients::eventually;
use drydock_tests::cluster::NAMESPACE;
use serde_json::{Value, json};

use crate::bridge;
use crate::stage::{ROOT, Stage, eviction_request, interceptor, requests_of, together, uid};

const NAME: &str = "least-privilege";
/// The prefix of the UIDs of this file.
const UIDS: u16 = 0x4a51;
const PATIENCE: Duration = Duration::from_mins(3);

/// Rights that the log of this host cannot show, and why they are granted. Written `VERB GROUP/RESOURCE`.
const UNSEEN: [(&str, &str); 17] = [
    (
        "create coordination.k8s.io/evictionrequests",
        "drydock-apiserver reviews it for an apply that creates, which the log calls a patch",
    ),
    (
        "coordinate coordination.k8s.io/evictionrequests",
        "drydock-apiserver reviews it",
    ),
    (
        "intercept coordination.k8s.io/evictioninterceptors",
        "drydock-apiserver reviews it",
    ),
    ("get coordination.k8s.io/evictionrequests", "after a conflict"),
    (
        "create events.k8s.io/events",
        "drydock-apiserver records them about policies that it cannot compile",
    ),
    (
        "list admissionregistration.k8s.io/mutatingadmissionpolicies",
        "hosts without streaming lists",
    ),
    (
        "list admissionregistration.k8s.io/mutatingadmissionpolicybindings",
        "hosts without streaming lists",
    ),
    (
        "list admissionregistration.k8s.io/validatingadmissionpolicies",
        "hosts without streaming lists",
    ),
    (
        "list admissionregistration.k8s.io/validatingadmissionpolicybindings",
        "hosts without streaming lists",
    ),
    ("list /nodes", "hosts without streaming lists"),
    ("list /namespaces", "hosts without streaming lists"),
    (
        "list admissionregistration.k8s.io/mutatingwebhookconfigurations",
        "hosts without streaming lists",
    ),
    (
        "list admissionregistration.k8s.io/validatingwebhookconfigurations",
        "hosts without streaming lists",
    ),
    (
        "list policy/poddisruptionbudgets",
        "hosts without streaming lists",
    ),
    (
        "list coordination.k8s.io/evictionrequests",
        "hosts without streaming lists",
    ),
    (
        "list coordination.k8s.io/nodemaintenances",
        "hosts without streaming lists",
    ),
    (
        "list coordination.k8s.io/evictioninterceptors",
        "hosts without streaming lists",
    ),
];

fn texts(value: &Value) -> impl Iterator<Item = &str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// What a role grants, as `VERB GROUP/RESOURCE`.
async fn granted(stage: &Stage, role: &[&str]) -> Result<BTreeSet<String>> {
    let text = stage
        .kubectl()
        .ok(&[&["get"], role, &["-o", "json"]].concat())
        .await?;
    let role: Value = serde_json::from_str(&text)?;
    let mut granted = BTreeSet::new();
    for rule in role["rules"].as_array().context("rules")? {
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                granted.extend(texts(&rule["verbs"]).map(|verb| format!("{verb} {group}/{resource}")));
            }
        }
    }
    ensure!(!granted.is_empty(), "{text}");
    Ok(granted)
}

/// What an account has called.
fn used(stage: &Stage, account: &str) -> Result<BTreeSet<String>> {
    let user = format!("system:serviceaccount:{NAMESPACE}:{account}");
    let log = std::fs::read_to_string(stage.control_plane().audit_log()).context("the audit log")?;
    let mut used = BTreeSet::new();
    // The last line may be incomplete.
    for event in log
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
    {
        if event["user"]["username"] != *user {
            continue;
        }
        let object = &event["objectRef"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let subresource = match text(&object["subresource"]).as_str() {
            "" => String::new(),
            subresource => format!("/{subresource}"),
        };
        used.insert(format!(
            "{} {}/{}{subresource}",
            text(&event["verb"]),
            text(&object["apiGroup"]),
            text(&object["resource"]),
        ));
    }
    Ok(used)
}

async fn every_right_is_used(stage: &Stage, account: &str, roles: &[&[&str]]) -> Result<()> {
    let mut expected = BTreeSet::new();
    for role in roles {
        expected.extend(granted(stage, role).await?);
    }
    for (right, _) in UNSEEN {
        expected.remove(right);
    }
    if !stage.serves_mutating_policies().await? {
        expected
            .retain(|right| !right.starts_with("watch admissionregistration.k8s.io/mutatingadmissionpolic"));
    }
    eventually(&format!("{account} to use its rights"), PATIENCE, async || {
        let unused: Vec<_> = expected.difference(&used(stage, account)?).cloned().collect();
        ensure!(unused.is_empty(), "unused rights of {account}: {unused:?}");
        Ok(Some(()))
    })
    .await
}

fn daemon_set(namespace: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": NAME, "namespace": namespace },
        "spec": {
            "selector": { "matchLabels": { "app": NAME } },
            "template": {
                "metadata": { "labels": { "app": NAME } },
                "spec": {
                    "nodeSelector": { "pool": NAME }, "terminationGracePeriodSeconds": 1,
                    "containers": [{ "name": "main", "image": "main" }],
                },
            },
        },
    })
}

/// Makes the programs do what they do.
async fn act(stage: &Stage, namespace: &str) -> Result<()> {
    let (host, kubectl) = (stage.host()?, stage.kubectl());
    stage.control_plane().add_node(NAME, &[("pool", NAME)]).await?;
    kubectl.apply(&daemon_set(namespace).to_string()).await?;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "plain", "namespace": namespace, "labels": { "app": "plain" } },
        "spec": {
            "nodeName": NAME, "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "main", "image": "main" }],
        },
    });
    kubectl.apply(&pod.to_string()).await?;
    let mut rule = interceptor("least-privilege.example.com", NAME);
    rule["spec"]["matchConditions"] = json!([{ "name": "none", "expression": "pod.metadata.name == 'x'" }]);
    host.post(&format!("{ROOT}/evictioninterceptors"), &rule)
        .await?
        .expect(201)?;
    // A request for a pod that does not exist ends, and is deleted at once.
    let mut request = eviction_request(namespace, "absent", &uid(UIDS, 1));
    request["spec"]["ttlSecondsAfterFinished"] = json!(0);
    host.post(&requests_of(namespace), &request).await?.expect(201)?;
    // The labels of a pod are copied to its request.
    let other = stage.pod(namespace, "labeled").await?;
    let labels = json!({ "metadata": { "labels": { "late": "yes" } } });
    let request = eviction_request(namespace, "labeled", &other);
    host.post(&requests_of(namespace), &request).await?.expect(201)?;
    let path = format!("/api/v1/namespaces/{namespace}/pods/labeled");
    host.patch(&path, drydock_tests::calls::MERGE_PATCH, &labels)
        .await?;
    // Requests of the older version name an existing pod.
    let old = json!({
        "metadata": { "name": uid(UIDS, 3) },
        "spec": {
            "target": { "podRef": { "name": "absent", "uid": uid(UIDS, 3) } },
            "requesters": [{ "name": "drainer.example.com" }],
        },
    });
    let path = format!("/apis/coordination.k8s.io/v1alpha1/namespaces/{namespace}/evictionrequests");
    host.post(&path, &old).await?.expect(404)?;
    // The server looks for a namespace that it does not know.
    let nowhere = eviction_request("least-privilege-nowhere", "absent", &uid(UIDS, 2));
    host.post(&requests_of("least-privilege-nowhere"), &nowhere)
        .await?
        .expect(404)?;
    // The bridge annotates a pod whose eviction waits for an interceptor.
    let bridged = bridge::bridged_namespace(stage, "least-privilege-bridge").await?;
    bridge::evict_annotated_pod(&host, &bridged).await?;
    let requirement = json!({ "key": "pool", "operator": "In", "values": [NAME] });
    let maintenance = json!({
        "metadata": { "name": NAME },
        "spec": {
            "stage": "Drain",
            "nodeSelector": { "nodeSelectorTerms": [{ "matchExpressions": [requirement] }] },
        },
    });
    host.post(&format!("{ROOT}/nodemaintenances"), &maintenance)
        .await?
        .expect(201)?;
    kubectl
        .wait(&format!("nm/{NAME}"), "", "condition=Drained")
        .await?;
    kubectl
        .ok(&["delete", &format!("nm/{NAME}"), "--timeout=50s"])
        .await?;
    Ok(())
}

#[tokio::test]
async fn the_service_accounts_have_no_right_that_they_do_not_use() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace(NAME).await?;
    act(&stage, &namespace).await?;
    every_right_is_used(
        &stage,
        "drydock-apiserver",
        &[&["clusterrole", "drydock-apiserver"]],
    )
    .await?;
    let election = ["role", "drydock-controller-leader-election", "-n", NAMESPACE];
    every_right_is_used(
        &stage,
        "drydock-controller",
        &[
            &["clusterrole", "drydock-controller"],
            &["clusterrole", "drydock-controller-bridge"],
            &election,
        ],
    )
    .await
}
