//! What is told to whoever sends an object that makes no sense?
//!
//! Tables of what is wrong (a merge patch on a good object) and what is said about it, word by word: each
//! cause as `field: message`. The reason of a cause follows from how its message begins.

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::{Caller, MERGE_PATCH};
use drydock_tests::clients::Protocol;
use serde_json::{Value, json};

use crate::stage::{
    ROOT, Stage, eviction_request, idle_maintenance, interceptor, requests_of, together, uid,
};

const STORY: u16 = 0x1bad;
const KNOWN: &str = "daemonset.apps.k8s.io, deployment.apps.k8s.io, descheduler.k8s.io, \
                     horizontalpodautoscaler.autoscaling.k8s.io, imperative-eviction.k8s.io, kubelet.k8s.io, \
                     nodemaintenance.k8s.io, replicaset.apps.k8s.io, statefulset.apps.k8s.io";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
                         and must start and end with an alphanumeric character (e.g. 'example.com', regex used for \
                         validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// RFC 7386, on values.
fn merge(target: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().and_then(|members| members.remove(key));
        } else {
            merge(&mut target[key], value);
        }
    }
}

fn reason_of(message: &str) -> &'static str {
    for (beginning, reason) in [
        ("Required value", "FieldValueRequired"),
        ("Invalid value", "FieldValueInvalid"),
        ("Unsupported value", "FieldValueNotSupported"),
        ("Duplicate value", "FieldValueDuplicate"),
        ("Forbidden", "FieldValueForbidden"),
        ("Too many", "FieldValueTooMany"),
        ("Too long", "FieldValueTooLong"),
    ] {
        if message.starts_with(beginning) {
            return reason;
        }
    }
    "a message that begins as no reason's does"
}

/// Checks that an answer is a 422 with exactly these causes, and the message that belongs to them.
fn check(
    kind: &str,
    name: &str,
    what: &str,
    answer: &drydock_tests::calls::Answer,
    causes: &[String],
) -> Result<()> {
    let status = answer.expect(422).with_context(|| what.to_owned())?;
    let told: Vec<_> = status["details"]["causes"]
        .as_array()
        .context("causes")?
        .iter()
        .map(|cause| {
            let text = |member: &str| cause[member].as_str().unwrap_or_default().to_owned();
            ensure!(
                text("reason") == reason_of(&text("message")),
                "{what}: {cause} has another reason than its message"
            );
            Ok(format!("{}: {}", text("field"), text("message")))
        })
        .collect::<Result<_>>()?;
    ensure!(
        told == causes,
        "{what}:\n  told     {told:#?}\n  expected {causes:#?}"
    );
    let all = match causes {
        [only] => only.clone(),
        all => format!("[{}]", all.join(", ")),
    };
    let message = format!("{kind}.coordination.k8s.io {name:?} is invalid: {all}");
    ensure!(
        status["message"] == message,
        "{what}: {status}, expected {message:?}"
    );
    ensure!(
        status["reason"] == "Invalid" && status["details"]["kind"] == kind,
        "{what}: {status}"
    );
    ensure!(
        status["details"]["name"] == name && status["details"]["group"] == "coordination.k8s.io",
        "{what}: {status}"
    );
    Ok(())
}

/// Creates what each row makes of the good object.
async fn creates(caller: &Caller, path: &str, good: &Value, rows: Vec<(Value, Vec<String>)>) -> Result<()> {
    let kind = good["kind"].as_str().context("a kind")?;
    for (change, causes) in rows {
        let mut bad = good.clone();
        merge(&mut bad, &change);
        let name = bad["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let answer = caller.post(path, &bad).await?;
        check(kind, &name, &change.to_string(), &answer, &causes)?;
    }
    // The good one is good: what was refused was refused for its change.
    caller
        .post(&format!("{path}?dryRun=All"), good)
        .await?
        .expect(201)?;
    Ok(())
}

/// Merges each row into an existing object.
async fn patches(caller: &Caller, path: &str, kind: &str, rows: Vec<(Value, Vec<String>)>) -> Result<()> {
    let name = path
        .trim_end_matches("/status")
        .rsplit('/')
        .next()
        .context("a name")?;
    for (change, causes) in rows {
        let answer = caller.patch(path, MERGE_PATCH, &change).await?;
        check(kind, name, &change.to_string(), &answer, &causes)?;
    }
    Ok(())
}

fn one(text: impl Into<String>) -> Vec<String> {
    vec![text.into()]
}

fn many<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).to_vec()
}

/// The admin where the controller does not act, and a namespace.
async fn scene(name: &str) -> Result<Option<(Stage, Caller, String)>> {
    let Some(stage) = together().await? else {
        return Ok(None);
    };
    let (caller, namespace) = (stage.calm(Protocol::Http2).await?, stage.namespace(name).await?);
    Ok(Some((stage, caller, namespace)))
}

#[tokio::test]
async fn requests_that_may_not_be_created() -> Result<()> {
    let Some((stage, calm, namespace)) = scene("invalid-requests").await? else {
        return Ok(());
    };
    let target = uid(STORY, 1);
    let pod = |pod: Value| json!({ "spec": { "target": { "pod": pod } } });
    let requesters = |names: &[&str]| {
        let all: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
        json!({ "spec": { "requesters": all } })
    };
    let rows = || {
        vec![
            (
                json!({ "metadata": { "name": "other" } }),
                one(format!(
                    "metadata.name: Invalid value: \"other\": must be the UID of the target: \"{target}\""
                )),
            ),
            (
                json!({ "metadata": { "generateName": "a-" } }),
                one(
                    "metadata.generateName: Forbidden: may not be set: the name of a request is the UID of its target",
                ),
            ),
            (
                json!({ "spec": { "type": "Hard" } }),
                one("spec.type: Unsupported value: \"Hard\": supported values: \"Soft\""),
            ),
            (
                json!({ "spec": { "target": null } }),
                one("spec.target: Required value: must specify one of: `pod`"),
            ),
            (
                pod(json!(null)),
                one("spec.target: Required value: must specify one of: `pod`"),
            ),
            (
                pod(json!({ "name": null })),
                one("spec.target.pod.name: Required value"),
            ),
            (
                pod(json!({ "uid": null })),
                one("spec.target.pod.uid: Required value"),
            ),
            (
                pod(json!({ "name": null, "uid": "" })),
                many([
                    "spec.target.pod.name: Required value",
                    "spec.target.pod.uid: Required value",
                ]),
            ),
            (
                pod(json!({ "name": "A_b" })),
                one(format!(
                    "spec.target.pod.name: Invalid value: \"A_b\": {SUBDOMAIN}"
                )),
            ),
            (
                json!({ "spec": { "requesters": null } }),
                one("spec.requesters: Required value: must have at least one requester"),
            ),
            (
                json!({ "spec": { "requesters": [] } }),
                one("spec.requesters: Required value: must have at least one requester"),
            ),
            (requesters(&[""]), one("spec.requesters[0].name: Required value")),
            (
                requesters(&["a.example.com", "b.example.com", "a.example.com"]),
                one("spec.requesters[2].name: Duplicate value: \"a.example.com\""),
            ),
            (
                requesters(&["short"]),
                one(
                    "spec.requesters[0].name: Invalid value: \"short\": should be a domain with at least two segments \
                     separated by dots",
                ),
            ),
            (
                requesters(&["a.example.com", "Upper.example.com"]),
                one(format!(
                    "spec.requesters[1].name: Invalid value: \"Upper.example.com\": {SUBDOMAIN}"
                )),
            ),
            (
                requesters(&["example.com/"]),
                one(
                    "spec.requesters[0].name: Invalid value: \"example.com/\": must be a domain-prefixed path (such as \
                     \"acme.io/foo\")",
                ),
            ),
            (
                requesters(&["mine.k8s.io"]),
                one(format!(
                    "spec.requesters[0].name: Forbidden: names under k8s.io and kubernetes.io are reserved: \
                     \"mine.k8s.io\" is none of {KNOWN}"
                )),
            ),
            (
                requesters(&["kubernetes.io/mine"]),
                one(format!(
                    "spec.requesters[0].name: Forbidden: names under k8s.io and kubernetes.io are reserved: \
                     \"kubernetes.io/mine\" is none of {KNOWN}"
                )),
            ),
            (
                json!({ "spec": { "heartbeatDeadlineSeconds": 599 } }),
                one(
                    "spec.heartbeatDeadlineSeconds: Invalid value: 599: must be greater than or equal to 600",
                ),
            ),
            (
                json!({ "spec": { "heartbeatDeadlineSeconds": 86_401 } }),
                one(
                    "spec.heartbeatDeadlineSeconds: Invalid value: 86401: must be less than or equal to 86400",
                ),
            ),
            (
                json!({ "spec": { "ttlSecondsAfterFinished": -1 } }),
                one("spec.ttlSecondsAfterFinished: Invalid value: -1: must be greater than or equal to 0"),
            ),
            (
                json!({ "spec": { "type": "Hard", "requesters": null, "heartbeatDeadlineSeconds": 1 } }),
                many([
                    "spec.type: Unsupported value: \"Hard\": supported values: \"Soft\"",
                    "spec.requesters: Required value: must have at least one requester",
                    "spec.heartbeatDeadlineSeconds: Invalid value: 1: must be greater than or equal to 600",
                ]),
            ),
        ]
    };
    let good = eviction_request(&namespace, "a", &target);
    creates(&calm, &requests_of(&namespace), &good, rows()).await?;
    // The same words through kube-apiserver.
    creates(&stage.host()?, &requests_of(&namespace), &good, rows()).await?;

    let names: Vec<_> = (0..101)
        .map(|number| json!({ "name": format!("r{number}.example.com") }))
        .collect();
    let mut crowded = good;
    crowded["spec"]["requesters"] = Value::Array(names);
    let answer = calm.post(&requests_of(&namespace), &crowded).await?;
    let causes = one("spec.requesters: Too many: 101: must have at most 100 items");
    check("EvictionRequest", &target, "101 requesters", &answer, &causes)
}

#[tokio::test]
async fn changes_of_a_request_that_may_not_be() -> Result<()> {
    let Some((_stage, calm, namespace)) = scene("invalid-changes").await? else {
        return Ok(());
    };
    let target = uid(STORY, 2);
    let good = eviction_request(&namespace, "a", &target);
    calm.post(&requests_of(&namespace), &good).await?.expect(201)?;
    let path = format!("{}/{target}", requests_of(&namespace));
    let rows = vec![
        (
            json!({ "spec": { "type": "Hard" } }),
            one("spec.type: Invalid value: \"Hard\": field is immutable"),
        ),
        (
            json!({ "spec": { "heartbeatDeadlineSeconds": 700 } }),
            one("spec.heartbeatDeadlineSeconds: Invalid value: 700: field is immutable"),
        ),
        (
            json!({ "spec": { "target": { "pod": { "name": "b" } } } }),
            one(format!(
                "spec.target: Invalid value: {{\"pod\":{{\"name\":\"b\",\"uid\":\"{target}\"}}}}: field is immutable"
            )),
        ),
        (
            json!({ "spec": { "ttlSecondsAfterFinished": -5 } }),
            one("spec.ttlSecondsAfterFinished: Invalid value: -5: must be greater than or equal to 0"),
        ),
        (
            json!({ "spec": { "requesters": [{ "name": "suite.example.com" }, { "name": "short" }] } }),
            one(
                "spec.requesters[1].name: Invalid value: \"short\": should be a domain with at least two segments \
                 separated by dots",
            ),
        ),
    ];
    patches(&calm, &path, "EvictionRequest", rows).await?;

    let status = format!("{path}/status");
    let targets = json!([{ "name": "a.example.com" }, { "name": "imperative-eviction.k8s.io" }]);
    let begin = json!({ "status": {
        "targetInterceptors": targets,
        "interceptors": [{ "name": "a.example.com" }, { "name": "imperative-eviction.k8s.io" }],
    } });
    let condition = |type_: &str, status: &str| {
        json!({
            "type": type_, "status": status, "reason": "Because", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let rows = vec![
        (
            json!({ "status": { "observedGeneration": -1 } }),
            one("status.observedGeneration: Invalid value: -1: must be greater than or equal to 0"),
        ),
        (
            json!({ "status": { "conditions": [{
                "type": "Ready", "status": "Maybe", "reason": "Because", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }] } }),
            one(
                "status.conditions[0].status: Unsupported value: \"Maybe\": supported values: \"False\", \"True\", \
                 \"Unknown\"",
            ),
        ),
        (
            json!({ "status": { "conditions": [condition("Evicted", "True"), condition("Canceled", "True")] } }),
            one("status.conditions[1].status: Forbidden: Evicted and Canceled may not both be True"),
        ),
        (
            json!({ "status": { "evictionRequestCancellationPolicy": "Forbid" } }),
            one(
                "status.evictionRequestCancellationPolicy: Forbidden: may change only while an interceptor is active",
            ),
        ),
        (
            json!({ "status": { "podEvictionStatus": { "failedAPIEvictionCounter": -1 } } }),
            one(
                "status.podEvictionStatus.failedAPIEvictionCounter: Invalid value: -1: must be greater than or equal \
                 to 0",
            ),
        ),
    ];
    patches(&calm, &status, "EvictionRequest", rows).await?;
    calm.patch(&status, MERGE_PATCH, &begin).await?.expect(200)?;
    // Each of these says which field, and that it is about turns.
    for (change, field, reason) in [
        (
            json!({ "status": { "targetInterceptors": [{ "name": "b.example.com" }] } }),
            "status.targetInterceptors",
            "FieldValueInvalid",
        ),
        (
            json!({ "status": { "activeInterceptors": ["imperative-eviction.k8s.io"] } }),
            "status.activeInterceptors",
            "FieldValueInvalid",
        ),
        (
            json!({ "status": { "processedInterceptors": ["a.example.com"] } }),
            "status.processedInterceptors",
            "FieldValue",
        ),
        (
            json!({ "status": { "interceptors": [
                { "name": "a.example.com", "message": "too early" }, { "name": "imperative-eviction.k8s.io" },
            ] } }),
            "status.interceptors[0]",
            "FieldValueForbidden",
        ),
    ] {
        let answer = calm.patch(&status, MERGE_PATCH, &change).await?.expect(422)?;
        let causes = answer["details"]["causes"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        ensure!(
            causes.iter().any(|cause| {
                cause["field"].as_str().is_some_and(|it| it.starts_with(field))
                    && cause["reason"].as_str().is_some_and(|it| it.starts_with(reason))
            }),
            "{change}: {answer}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn maintenances_that_may_not_be() -> Result<()> {
    let Some((_stage, calm, _)) = scene("invalid-maintenances").await? else {
        return Ok(());
    };
    let path = format!("{ROOT}/nodemaintenances");
    let term = |term: Value| json!({ "spec": { "nodeSelector": { "nodeSelectorTerms": [term] } } });
    let expression = |key: &str, operator: &str, values: Value| {
        term(json!({ "matchExpressions": [{ "key": key, "operator": operator, "values": values }] }))
    };
    let first = "spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0]";
    let rows = vec![
        (
            json!({ "spec": { "nodeSelector": null } }),
            one("spec.nodeSelector: Required value"),
        ),
        (
            json!({ "spec": { "nodeSelector": { "nodeSelectorTerms": [] } } }),
            one(
                "spec.nodeSelector.nodeSelectorTerms: Required value: must have at least one node selector term",
            ),
        ),
        (
            json!({ "spec": { "stage": "Later" } }),
            one(
                "spec.stage: Unsupported value: \"Later\": supported values: \"Idle\", \"Cordon\", \"Drain\", \
                 \"Complete\"",
            ),
        ),
        (
            expression("a", "Near", json!(["b"])),
            one(format!(
                "{first}.operator: Invalid value: \"Near\": not a valid selector operator"
            )),
        ),
        (
            expression("a", "In", json!([])),
            one(format!(
                "{first}.values: Required value: must be specified when `operator` is 'In' or 'NotIn'"
            )),
        ),
        (
            expression("a", "Exists", json!(["b"])),
            one(format!(
                "{first}.values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
            )),
        ),
        (
            expression("a", "Gt", json!(["1", "2"])),
            one(format!(
                "{first}.values: Required value: must be specified single value when `operator` is 'Lt' or 'Gt'"
            )),
        ),
        (
            json!({ "spec": { "drainPlan": [{ "podType": "Every", "podPriority": 1 }] } }),
            one(
                "spec.drainPlan[0].podType: Unsupported value: \"Every\": supported values: \"Default\", \
                 \"DaemonSet\", \"Static\"",
            ),
        ),
        (
            json!({ "spec": { "drainPlan": [
                { "podType": "Default", "podPriority": 1 }, { "podType": "Default", "podPriority": 1 },
            ] } }),
            one("spec.drainPlan[1]: Duplicate value: {\"podPriority\":1,\"podType\":\"Default\"}"),
        ),
    ];
    creates(
        &calm,
        &path,
        &idle_maintenance("invalid-maintenance", "nowhere"),
        rows,
    )
    .await?;

    let mut draining = idle_maintenance("invalid-draining", "nowhere");
    draining["spec"]["stage"] = json!("Drain");
    calm.post(&path, &draining).await?.expect(201)?;
    let item = format!("{path}/invalid-draining");
    let rows = vec![
        (
            json!({ "spec": { "stage": "Cordon" } }),
            one("spec.stage: Invalid value: \"Cordon\": must not go back from Drain"),
        ),
        (
            json!({ "spec": { "stage": "Never" } }),
            one(
                "spec.stage: Unsupported value: \"Never\": supported values: \"Idle\", \"Cordon\", \"Drain\", \
                 \"Complete\"",
            ),
        ),
        (
            term(json!({ "matchExpressions": [{ "key": "a", "operator": "Exists" }] })),
            one("spec.nodeSelector: Forbidden: may change only while the stage is Idle, and it is Drain"),
        ),
    ];
    patches(&calm, &item, "NodeMaintenance", rows).await?;
    let plan = json!({ "spec": { "drainPlan": [{ "podType": "Default", "podPriority": 5 }] } });
    let status = calm.patch(&item, MERGE_PATCH, &plan).await?.expect(422)?;
    let cause = &status["details"]["causes"][0];
    ensure!(
        cause["field"] == "spec.drainPlan"
            && cause["message"]
                .as_str()
                .is_some_and(|it| it.ends_with("field is immutable")),
        "{status}"
    );
    let rows = vec![
        (
            json!({ "status": { "drainStatus": { "activeEvictionRequests": -1 } } }),
            one(
                "status.drainStatus.activeEvictionRequests: Invalid value: -1: must be greater than or equal to 0",
            ),
        ),
        (
            json!({ "status": { "stageStatuses": [{ "name": "Never" }] } }),
            one(
                "status.stageStatuses[0].name: Unsupported value: \"Never\": supported values: \"Idle\", \"Cordon\", \
                 \"Drain\", \"Complete\"",
            ),
        ),
    ];
    patches(&calm, &format!("{item}/status"), "NodeMaintenance", rows).await
}

#[tokio::test]
async fn interceptors_that_may_not_be() -> Result<()> {
    let Some((_stage, calm, _)) = scene("invalid-interceptors").await? else {
        return Ok(());
    };
    let path = format!("{ROOT}/evictioninterceptors");
    let name = "invalid.example.com";
    let rows = vec![
        (
            json!({ "metadata": { "name": "other.example.com" } }),
            one(format!(
                "metadata.name: Invalid value: \"other.example.com\": must be spec.interceptorName with \"/\" written \
                 as \".\": \"{name}\""
            )),
        ),
        (
            json!({ "spec": { "interceptorName": "" } }),
            one("spec.interceptorName: Required value"),
        ),
        (
            json!({ "spec": { "interceptorName": "mine.kubernetes.io" } }),
            one(format!(
                "spec.interceptorName: Forbidden: names under k8s.io and kubernetes.io are reserved: \
                 \"mine.kubernetes.io\" is none of {KNOWN}"
            )),
        ),
        (
            json!({ "spec": { "priority": -1 } }),
            one("spec.priority: Invalid value: -1: must be greater than or equal to 0"),
        ),
        (
            json!({ "spec": { "priority": 100_001 } }),
            one("spec.priority: Invalid value: 100001: must be less than or equal to 100000"),
        ),
        (
            json!({ "spec": { "priority": 10_000 } }),
            one("spec.priority: Invalid value: 10000: 10000 is reserved for the role controller"),
        ),
        (
            json!({ "spec": { "priority": 1, "role": "controller" } }),
            one("spec.priority: Invalid value: 1: must be 10000, the priority of the role controller"),
        ),
        (
            json!({ "spec": { "role": "king" } }),
            one("spec.role: Unsupported value: \"king\": supported values: \"controller\""),
        ),
        (
            json!({ "spec": { "heartbeatDeadlineSeconds": 5 } }),
            one("spec.heartbeatDeadlineSeconds: Invalid value: 5: must be greater than or equal to 600"),
        ),
        (
            json!({ "spec": { "podSelector": { "matchExpressions": [{ "key": "a", "operator": "Near" }] } } }),
            one(
                "spec.podSelector.matchExpressions[0].operator: Invalid value: \"Near\": not a valid selector operator",
            ),
        ),
        (
            json!({ "spec": { "matchConditions": [{ "name": "", "expression": "true" }] } }),
            one("spec.matchConditions[0].name: Required value"),
        ),
        (
            json!({ "spec": { "matchConditions": [{ "name": "a", "expression": " " }] } }),
            one("spec.matchConditions[0].expression: Required value"),
        ),
        (
            json!({ "spec": { "matchConditions": [
                { "name": "a", "expression": "true" }, { "name": "a", "expression": "true" },
            ] } }),
            one("spec.matchConditions[1].name: Duplicate value: \"a\""),
        ),
    ];
    creates(&calm, &path, &interceptor(name, "invalid"), rows).await?;

    let mut broken = interceptor(name, "invalid");
    for expression in ["pod.metadata.", "unknown.thing", "1 +"] {
        broken["spec"]["matchConditions"] = json!([{ "name": "a", "expression": expression }]);
        let status = calm.post(&path, &broken).await?.expect(422)?;
        let cause = &status["details"]["causes"][0];
        ensure!(
            cause["field"] == "spec.matchConditions[0].expression" && cause["reason"] == "FieldValueInvalid",
            "{expression}: {status}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn what_may_not_be_deleted() -> Result<()> {
    let Some((_stage, calm, namespace)) = scene("invalid-deletes").await? else {
        return Ok(());
    };
    let target = uid(STORY, 3);
    calm.post(
        &requests_of(&namespace),
        &eviction_request(&namespace, "a", &target),
    )
    .await?
    .expect(201)?;
    let path = format!("{}/{target}", requests_of(&namespace));
    let time = calm.get(&path).await?.time()?;
    let begin = json!({ "status": {
        "targetInterceptors": [{ "name": "a.example.com" }, { "name": "imperative-eviction.k8s.io" }],
        "interceptors": [{ "name": "a.example.com" }, { "name": "imperative-eviction.k8s.io" }],
    } });
    let status = format!("{path}/status");
    calm.patch(&status, MERGE_PATCH, &begin).await?.expect(200)?;
    let activate = json!({ "status": {
        "activeInterceptors": ["a.example.com"],
        "interceptors": [
            { "name": "a.example.com", "activationTime": time }, { "name": "imperative-eviction.k8s.io" },
        ],
        "evictionRequestCancellationPolicy": "Forbid",
    } });
    calm.patch(&status, MERGE_PATCH, &activate).await?.expect(200)?;
    let message = format!(
        "evictionrequests.coordination.k8s.io \"{target}\" is forbidden: status.evictionRequestCancellationPolicy is \
         Forbid and the eviction of pod \"a\" has not finished"
    );
    calm.delete(&path).await?.refused(403, "Forbidden", &message)?;
    calm.delete(&requests_of(&namespace))
        .await?
        .refused(403, "Forbidden", &message)?;
    let rows = vec![(
        json!({ "spec": { "requesters": [] } }),
        one(
            "spec.requesters: Forbidden: may not change while status.evictionRequestCancellationPolicy is Forbid and \
             the target is not evicted",
        ),
    )];
    patches(&calm, &path, "EvictionRequest", rows).await
}
