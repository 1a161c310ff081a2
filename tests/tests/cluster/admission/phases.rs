//! What policies and webhooks change is seen by what runs after them: by webhooks, and by the review of the pod.

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::{Caller, Response};
use drydock_tests::clients::{Protocol, eventually};
use serde_json::{Value, json};

use super::LABEL;
use super::reviewer::Reviewer;
use crate::oracle::OURS;
use crate::security::{grant, person};
use crate::stage::{PATIENCE, Stage, eviction_request, requests_of, together};

const REGISTRATION: &str = "admissionregistration.k8s.io/v1";
/// The policies of this file have this name before the name of their namespace.
const POLICY: &str = "changes";

/// A webhook for objects with its path as label.
fn webhook(reviewer: &Reviewer, namespace: &str, path: &str) -> Value {
    json!({
        "name": format!("{path}.{namespace}.example.com"),
        "clientConfig": reviewer.client_config(path),
        "rules": [{ "apiGroups": [OURS], "apiVersions": ["*"], "resources": ["evictionrequests"],
            "operations": ["CREATE"] }],
        "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": namespace } },
        "objectSelector": { "matchLabels": { LABEL: path } },
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    })
}

/// A policy with a JSON patch for objects with a label, and its binding.
fn policy(namespace: &str, label: &str, patch: &str) -> [Value; 2] {
    let name = format!("{POLICY}-{label}.{namespace}");
    let policy = json!({
        "apiVersion": REGISTRATION, "kind": "MutatingAdmissionPolicy", "metadata": { "name": name },
        "spec": {
            "reinvocationPolicy": "Never",
            "matchConstraints": {
                "resourceRules": [{ "apiGroups": [OURS], "apiVersions": ["*"], "operations": ["CREATE"],
                    "resources": ["evictionrequests"] }],
                "objectSelector": { "matchLabels": { LABEL: label } },
            },
            "mutations": [{ "patchType": "JSONPatch", "jsonPatch": { "expression": patch } }],
        },
    });
    let binding = json!({
        "apiVersion": REGISTRATION, "kind": "MutatingAdmissionPolicyBinding", "metadata": { "name": name },
        "spec": { "policyName": name, "matchResources": {
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": namespace } } } },
    });
    [policy, binding]
}

fn labelled(namespace: &str, uid: &str, label: &str) -> Value {
    let mut request = eviction_request(namespace, "web", uid);
    request["metadata"]["labels"] = json!({ LABEL: label });
    request
}

async fn install(stage: &Stage, reviewer: &Reviewer, namespace: &str, has_policies: bool) -> Result<()> {
    let mut items = Vec::new();
    if has_policies {
        let target = "[JSONPatch{op: 'replace', path: '/spec/target/pod/name', value: 'other'}]";
        let label = "[JSONPatch{op: 'add', path: '/metadata/labels/by', value: 'policy'}]";
        items.extend(policy(namespace, "target-by-policy", target));
        items.extend(policy(namespace, "allow", label));
    }
    let paths = ["target", "rename-creates", "allow"];
    items.push(json!({
        "apiVersion": REGISTRATION, "kind": "MutatingWebhookConfiguration", "metadata": { "name": namespace },
        "webhooks": paths.map(|path| webhook(reviewer, namespace, path)),
    }));
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
    stage.kubectl().apply(&list.to_string()).await?;
    Ok(())
}

async fn uninstall(stage: &Stage, namespace: &str, has_policies: bool) -> Result<()> {
    stage
        .kubectl()
        .ok(&["delete", "mutatingwebhookconfiguration", namespace])
        .await?;
    if !has_policies {
        return Ok(());
    }
    for label in ["target-by-policy", "allow"] {
        let name = format!("{POLICY}-{label}.{namespace}");
        for kind in ["mutatingadmissionpolicybinding", "mutatingadmissionpolicy"] {
            stage.kubectl().ok(&["delete", kind, &name]).await?;
        }
    }
    Ok(())
}

/// Checklist 40, 55 and 61: a policy runs before webhooks; a pod that either chose is reviewed, and a name that a webhook chose
/// is checked, through kube-apiserver and at our port. On a host without mutating policies the webhooks run alone.
#[tokio::test]
async fn what_policy_changes_is_seen_by_all_that_runs_later() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("admission-phases").await?;
    let reviewer = Reviewer::start().await?;
    let has_policies = stage.serves_mutating_policies().await?;
    install(&stage, &reviewer, &namespace, has_policies).await?;
    let uid = stage.pod(&namespace, "web").await?;
    let asker = person(&stage, "phases-asker", None)?;
    let rules = json!([
        { "apiGroups": [OURS], "resources": ["evictionrequests"], "verbs": ["create"] },
        { "apiGroups": [""], "resources": ["pods"], "resourceNames": ["web"], "verbs": ["delete"] },
    ]);
    grant(&stage, &namespace, "phases-asker", &rules).await?;
    let path = format!("{}?dryRun=All", requests_of(&namespace));
    let admin = stage.host()?;
    // The administrator may delete every pod.
    let mut labels = vec![("target", "other"), ("allow", "web")];
    if has_policies {
        labels.push(("target-by-policy", "other"));
    }
    for &(label, pod) in &labels {
        eventually(&format!("{label} is in force"), PATIENCE, async || {
            let created = admin
                .post(&path, &labelled(&namespace, &uid, label))
                .await?
                .expect(201)?;
            let is_changed =
                label != "allow" || !has_policies || created["metadata"]["labels"]["by"] == "policy";
            Ok((created["spec"]["target"]["pod"]["name"] == pod && is_changed).then_some(()))
        })
        .await?;
    }
    reviewer.taken("allow");
    let callers = [
        stage.host_as(Some(&asker))?,
        stage.direct_as(Some(&asker), Protocol::Http2)?,
    ];
    for caller in &callers {
        let post = async |caller: &Caller, label: &str| -> Result<Response> {
            caller.post(&path, &labelled(&namespace, &uid, label)).await
        };
        eventually("the rights are in force", PATIENCE, async || {
            let response = post(caller, "none").await?;
            Ok((response.status == 201).then_some(()))
        })
        .await?;
        let forbidden = format!(
            "evictionrequests.coordination.k8s.io \"{uid}\" is forbidden: User \"phases-asker\" cannot delete resource \
             \"pods\" in API group \"\" in the namespace \"{namespace}\": pod \"other\""
        );
        for &(label, _) in labels.iter().filter(|(_, pod)| *pod == "other") {
            post(caller, label)
                .await?
                .expect_error(403, "Forbidden", &forbidden)
                .context(label)?;
        }
        let renamed = post(caller, "rename-creates").await?;
        ensure!(renamed.status == 422, "{}", renamed.text());
        post(caller, "allow").await?.expect(201)?;
        let seen = reviewer.taken("allow");
        ensure!(seen.len() == 1, "{seen:?}");
        let is_changed = seen[0]["request"]["object"]["metadata"]["labels"]["by"] == "policy";
        ensure!(is_changed == has_policies, "{seen:?}");
    }
    uninstall(&stage, &namespace, has_policies).await
}
