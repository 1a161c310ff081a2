//! Admission webhooks of the cluster: the same webhooks apply to our kind and to a custom resource of the same schema at
//! kube-apiserver, and the same requests have the same responses.
//!
//! All webhooks stand in two configurations, and each is for objects with its own label in the namespaces of this file.

mod credentials;
mod hooks;
mod phases;
mod reviewer;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::MERGE_PATCH;
use drydock_tests::clients::eventually;
use futures_util::future::try_join_all;
use http::Method;
use serde_json::{Value, json};

use self::hooks::{HOOKS, rules};
use self::reviewer::Reviewer;
use crate::oracle::side::{Call, Outcome};
use crate::oracle::subject::Subject;
use crate::oracle::{GROUP, OURS, Pair};
use crate::stage::{PATIENCE, Stage, text, together};

/// The label by which webhooks select objects.
const LABEL: &str = "admission.example.com/case";

/// Cases whose calls last until a timeout, so that few are made.
const SLOW: [&str; 2] = ["late", "late-open"];

/// Both configurations, for one namespace.
async fn install(stage: &Stage, reviewer: &Reviewer, namespace: &str) -> Result<()> {
    for (kind, is_mutating) in [
        ("ValidatingWebhookConfiguration", false),
        ("MutatingWebhookConfiguration", true),
    ] {
        let hooks = HOOKS.iter().filter(|hook| hook.is_mutating == is_mutating);
        let webhooks: Vec<Value> = hooks
            .enumerate()
            .map(|(index, hook)| {
                let mut webhook = json!({
                    "name": format!("{}-{index}.{namespace}.example.com", hook.case),
                    "clientConfig": reviewer.client_config(hook.path),
                    "rules": rules("*", &json!(["*"])),
                    "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": namespace } },
                    "objectSelector": { "matchLabels": { LABEL: hook.case } },
                    "sideEffects": "None",
                    "timeoutSeconds": if hook.path == "hang" { 1 } else { 10 },
                    "admissionReviewVersions": ["v1"],
                });
                if let (Some(webhook), Value::Object(members)) = (webhook.as_object_mut(), (hook.members)()) {
                    webhook.extend(members);
                }
                webhook
            })
            .collect();
        let configuration = json!({
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": { "name": namespace },
            "webhooks": webhooks,
        });
        stage.kubectl().apply(&configuration.to_string()).await?;
    }
    Ok(())
}

async fn uninstall(stage: &Stage, namespace: &str) -> Result<()> {
    for kind in ["validatingwebhookconfiguration", "mutatingwebhookconfiguration"] {
        stage.kubectl().ok(&["delete", kind, namespace]).await?;
    }
    Ok(())
}

/// The path of the collection on either side.
fn collection(namespace: &str) -> String {
    format!("/apis/{{group}}/v1alpha3/namespaces/{namespace}/evictionrequests")
}

fn name(number: usize) -> String {
    format!("0ad31500-0000-4000-8000-{number:012x}")
}

fn object(namespace: &str, case: Option<&str>, number: usize) -> Value {
    let mut object = Subject::Request.base(&name(number));
    object["metadata"]["namespace"] = namespace.into();
    object["metadata"]["labels"] = json!({ "kept": "yes" });
    if let Some(case) = case {
        object["metadata"]["labels"][LABEL] = case.into();
    }
    object
}

fn call(method: Method, path: String, media_type: &str, body: &Value) -> Call {
    Call {
        method,
        path,
        media_type: media_type.to_owned(),
        accept: String::new(),
        body: if body.is_null() {
            String::new()
        } else {
            body.to_string()
        },
    }
}

/// A status that the kind accepts.
fn status() -> Value {
    json!({ "status": { "conditions": [{ "type": "example.com/Tested", "status": "True",
        "reason": "Tested", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }] } })
}

/// The requests of a case, with numbers of objects from `first` on.
fn calls(namespace: &str, case: &str, first: usize) -> Vec<(&'static str, Call)> {
    let all = collection(namespace);
    let item = |number: usize| format!("{all}/{}", name(number));
    let json = "application/json";
    let labelled = |number| object(namespace, Some(case), number);
    let marked = json!({ "metadata": { "labels": { LABEL: case } } });
    let create = ("create", call(Method::POST, all.clone(), json, &labelled(first)));
    if SLOW.contains(&case) {
        return vec![create];
    }
    vec![
        create,
        (
            "create in a dry run",
            call(
                Method::POST,
                format!("{all}?dryRun=All"),
                json,
                &labelled(first + 1),
            ),
        ),
        (
            "create by apply",
            call(
                Method::PATCH,
                format!("{}?fieldManager=applier", item(first + 2)),
                "application/apply-patch+yaml",
                &labelled(first + 2),
            ),
        ),
        (
            "create without the label",
            call(
                Method::POST,
                all.clone(),
                json,
                &object(namespace, None, first + 3),
            ),
        ),
        (
            "patch",
            call(Method::PATCH, item(first + 3), MERGE_PATCH, &marked),
        ),
        (
            "patch of the status",
            call(
                Method::PATCH,
                format!("{}/status", item(first)),
                MERGE_PATCH,
                &status(),
            ),
        ),
        (
            "patch that removes the label",
            call(
                Method::PATCH,
                item(first),
                MERGE_PATCH,
                &json!({ "metadata": { "labels": { "kept": "no", LABEL: null } } }),
            ),
        ),
        (
            "delete in a dry run",
            call(
                Method::DELETE,
                format!("{}?dryRun=All", item(first)),
                "",
                &Value::Null,
            ),
        ),
        (
            "delete of the collection",
            call(
                Method::DELETE,
                format!("{all}?labelSelector={LABEL}%3D{case}"),
                "",
                &Value::Null,
            ),
        ),
    ]
}

/// What is compared of a response.
fn compared(case: &str, step: &str, mut outcome: Outcome) -> Outcome {
    let body = &mut outcome.body;
    if step == "delete of the collection" && outcome.status == 200 {
        // It lists objects, which earlier steps compare.
        *body = Value::Null;
    }
    if case == "unknown-field"
        && let Some(generation) = body.pointer_mut("/metadata/generation")
    {
        // The generation of a custom resource grows by a field that is pruned afterwards.
        *generation = Value::Null;
    }
    if let Some(causes) = body.pointer_mut("/details/causes").and_then(Value::as_array_mut) {
        // The metadata of a custom resource are validated twice.
        causes.dedup();
    }
    // The uid of a call.
    if let Some((before, rest)) = body.to_string().split_once("response.uid=")
        && let Some((_, after)) = rest.split_once(", got")
    {
        *body = json!(format!(
            "{before}{}",
            after.split("response.uid=").next().unwrap_or_default()
        ));
    }
    outcome
}

/// Sends the requests of a case to both servers, and returns the steps whose responses differ.
async fn compare(stage: &Stage, namespace: &str, case: &str, first: usize) -> Result<Vec<String>> {
    let mut pair = Pair::new(stage, Subject::Request).await?;
    let mut failures = Vec::new();
    for (step, call) in calls(namespace, case, first) {
        let (ours, oracle) = tokio::try_join!(pair.ours.send(&call), pair.oracle.send(&call))?;
        let (ours, oracle) = (compared(case, step, ours), compared(case, step, oracle));
        if ours != oracle {
            failures.push(format!("{case}, {step}:\n{}", ours.differences(&oracle)));
        }
    }
    Ok(failures)
}

/// Waits until both servers use the configurations.
async fn in_force(stage: &Stage, namespace: &str) -> Result<()> {
    let mut pair = Pair::new(stage, Subject::Request).await?;
    let path = format!("{}?dryRun=All", collection(namespace));
    for case in ["deny", "denies-early"] {
        let probe = call(
            Method::POST,
            path.clone(),
            "application/json",
            &object(namespace, Some(case), 0),
        );
        for side in [&mut pair.ours, &mut pair.oracle] {
            let side = tokio::sync::Mutex::new(side);
            eventually(&format!("{case} is in force"), PATIENCE, async || {
                let outcome = side.lock().await.send(&probe).await?;
                Ok((outcome.status == 418).then_some(()))
            })
            .await?;
        }
    }
    Ok(())
}

/// Checklist 52 to 59 and 66: see the names of the cases.
#[tokio::test]
async fn webhooks_have_the_same_effect_as_on_a_custom_resource() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("admission-webhooks").await?;
    let reviewer = Reviewer::start().await?;
    install(&stage, &reviewer, &namespace).await?;
    in_force(&stage, &namespace).await?;
    let mut cases: Vec<&str> = HOOKS.iter().map(|hook| hook.case).collect();
    cases.dedup();
    let mut failures = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        failures.extend(Box::pin(compare(&stage, &namespace, case, 100 * (index + 1))).await?);
    }
    uninstall(&stage, &namespace).await?;
    ensure!(
        failures.is_empty(),
        "{} differences:\n{}",
        failures.len(),
        failures.join("\n")
    );
    Ok(())
}

/// A review without what differs between two servers and two calls.
fn comparable(review: &Value, group: &str) -> Result<Value> {
    let mut review = review.clone();
    let request = review["request"].as_object_mut().context("a request")?;
    request.remove("uid");
    if let Some(user) = request.get_mut("userInfo").and_then(Value::as_object_mut) {
        // The host knows which credential was used.
        user.remove("extra");
    }
    for object in ["object", "oldObject"] {
        let Some(metadata) = request
            .get_mut(object)
            .and_then(|object| object["metadata"].as_object_mut())
        else {
            continue;
        };
        for member in ["uid", "creationTimestamp", "resourceVersion"] {
            if let Some(value) = metadata.get_mut(member) {
                *value = member.into();
            }
        }
        if let Some(entries) = metadata.get_mut("managedFields").and_then(Value::as_array_mut) {
            for entry in entries.iter_mut() {
                entry["time"] = Value::Null;
            }
            // They are in the order of their times, to the second, which may differ between the two servers.
            entries.sort_by_key(Value::to_string);
        }
    }
    Ok(serde_json::from_str(&review.to_string().replace(group, "GROUP"))?)
}

/// Checklist 54: every verb asks a webhook the same question as for a custom resource, and as often, also where the webhook ends
/// the connection without an answer.
#[tokio::test]
async fn reviews_are_those_of_a_custom_resource() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("admission-reviews").await?;
    let reviewer = Reviewer::start().await?;
    install(&stage, &reviewer, &namespace).await?;
    in_force(&stage, &namespace).await?;
    let mut pair = Pair::new(&stage, Subject::Request).await?;
    let mut failures = Vec::new();
    let cases = [("allow", "allow"), ("label", "label"), ("drops", "drop")];
    for (first, (case, path)) in (100..).step_by(100).zip(cases) {
        for (step, call) in calls(&namespace, case, first) {
            reviewer.taken(path);
            pair.ours.send(&call).await?;
            let ours = reviewer.taken(path);
            pair.oracle.send(&call).await?;
            let oracle = reviewer.taken(path);
            // The objects of a collection are deleted at the same time.
            let sorted = |reviews: &[Value], group| -> Result<Vec<String>> {
                let compared = reviews.iter().map(|review| comparable(review, group));
                let mut texts: Vec<String> = compared
                    .map(|review| Ok(review?.to_string()))
                    .collect::<Result<_>>()?;
                texts.sort();
                Ok(texts)
            };
            let (ours, oracle) = (sorted(&ours, OURS)?, sorted(&oracle, GROUP)?);
            if ours != oracle {
                failures.push(format!(
                    "{case}, {step}:\nours   {}\noracle {}",
                    json!(ours),
                    json!(oracle)
                ));
            }
        }
    }
    uninstall(&stage, &namespace).await?;
    ensure!(failures.is_empty(), "{}", failures.join("\n"));
    Ok(())
}

/// Checklist 53 and 43: a rule for one version sees requests in the other, and the requests of Evacuations.
#[tokio::test]
async fn a_rule_for_one_version_sees_requests_in_all() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("admission-versions").await?;
    let reviewer = Reviewer::start().await?;
    let webhook = |name: &str, policy: &str, version: &str| {
        json!({
            "name": format!("{name}.{namespace}.example.com"),
            "clientConfig": reviewer.client_config(name),
            "rules": [{ "apiGroups": [OURS], "apiVersions": [version], "resources": ["evictionrequests"],
                "operations": ["CREATE"] }],
            "matchPolicy": policy,
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": namespace } },
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        })
    };
    let configuration = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": { "name": namespace },
        "webhooks": [
            webhook("equivalent", "Equivalent", "v1alpha1"),
            webhook("exact", "Exact", "v1alpha1"),
            webhook("sentinel", "Exact", "v1alpha3"),
        ],
    });
    stage.kubectl().apply(&configuration.to_string()).await?;
    let host = stage.host()?;
    let uid = stage.pod(&namespace, "web").await?;
    let path = format!("/apis/{OURS}/v1alpha3/namespaces/{namespace}/evictionrequests");
    let mut body = object(&namespace, None, 1);
    body["apiVersion"] = format!("{OURS}/v1alpha3").into();
    body["metadata"]["name"] = uid.clone().into();
    body["spec"]["target"]["pod"] = json!({ "name": "web", "uid": uid });
    let dry_run = format!("{path}?dryRun=All");
    eventually("the webhooks are called", PATIENCE, async || {
        host.post(&dry_run, &body).await?.expect(201)?;
        Ok((!reviewer.taken("sentinel").is_empty()).then_some(()))
    })
    .await?;
    reviewer.taken("equivalent");
    host.post(&dry_run, &body).await?.expect(201)?;
    let seen = reviewer.taken("equivalent");
    ensure!(seen.len() == 1 && reviewer.taken("exact").is_empty(), "{seen:?}");
    let request = &seen[0]["request"];
    ensure!(request["resource"]["version"] == "v1alpha1", "{request}");
    ensure!(request["requestResource"]["version"] == "v1alpha3", "{request}");
    ensure!(
        text(&request["object"]["apiVersion"])? == format!("{OURS}/v1alpha1"),
        "{request}"
    );
    ensure!(
        request["object"]["spec"]["target"]["podRef"]["name"] == "web",
        "{request}"
    );
    stage
        .kubectl()
        .ok(&["delete", "validatingwebhookconfiguration", &namespace])
        .await?;
    Ok(())
}

/// Many writes at once wait for a webhook beside each other.
#[tokio::test]
async fn parallel_writes_call_a_webhook_in_parallel() -> Result<()> {
    const WRITES: usize = 64;
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("admission-parallel").await?;
    let reviewer = Reviewer::start().await?;
    install(&stage, &reviewer, &namespace).await?;
    in_force(&stage, &namespace).await?;
    reviewer.taken("label");
    let path = collection(&namespace).replace("{group}", OURS);
    let host = stage.host()?;
    let writes = (0..WRITES).map(async |number| -> Result<Value> {
        let mut body = object(&namespace, Some("label"), 1000 + number);
        body["apiVersion"] = format!("{OURS}/v1alpha3").into();
        let (host, path) = (&host, format!("{path}?dryRun=All"));
        tokio::time::timeout(Duration::from_mins(1), host.post(&path, &body))
            .await??
            .expect(201)
    });
    for created in try_join_all(writes).await? {
        ensure!(created["metadata"]["labels"]["by"] == "webhook", "{created}");
    }
    ensure!(
        reviewer.taken("label").len() == WRITES,
        "each write is reviewed once"
    );
    uninstall(&stage, &namespace).await
}
