//! The responses to invalid objects: which field, which reason, which message, word by word.
//!
//! The tables are in `invalid.yaml`.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::{Caller, MERGE_PATCH};
use drydock_tests::clients::Protocol;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::stage::{
    ROOT, Stage, eviction_request, idle_maintenance, interceptor, requests_of, together, uid,
};

/// The prefix of the UIDs of this file.
const UIDS: u16 = 0x1bad;
const NAMES: &str = "daemonset.apps.k8s.io, deployment.apps.k8s.io, descheduler.k8s.io, \
                     horizontalpodautoscaler.autoscaling.k8s.io, imperative-eviction.k8s.io, kubelet.k8s.io, \
                     nodemaintenance.k8s.io, replicaset.apps.k8s.io, statefulset.apps.k8s.io";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', \
                         and must start and end with an alphanumeric character (e.g. 'example.com', regex used for \
                         validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const REQUIREMENT: &str = "spec.nodeSelector.nodeSelectorTerms[0].matchExpressions[0]";

/// A change and the causes of its rejection.
#[derive(Clone, Deserialize)]
struct Row {
    change: Value,
    causes: Vec<String>,
}

/// The rows of a table, with `target` for `$TARGET`.
fn table(name: &str, target: &str) -> Result<Vec<Row>> {
    let mut tables: BTreeMap<String, Vec<Row>> =
        serde_saphyr::from_str(include_str!("invalid.yaml")).context("read invalid.yaml")?;
    let mut rows = tables.remove(name).with_context(|| format!("no table {name}"))?;
    for cause in rows.iter_mut().flat_map(|row| &mut row.causes) {
        *cause = cause
            .replace("$TARGET", target)
            .replace("$NAMES", NAMES)
            .replace("$SUBDOMAIN", SUBDOMAIN)
            .replace("$REQUIREMENT", REQUIREMENT);
    }
    Ok(rows)
}

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
    "a message without a known beginning"
}

/// Checks that a response is a 422 with exactly these causes, and with the message made of them.
fn check(
    kind: &str,
    name: &str,
    what: &str,
    response: &drydock_tests::calls::Response,
    causes: &[String],
) -> Result<()> {
    let status = response.expect(422).with_context(|| what.to_owned())?;
    let found: Vec<_> = status["details"]["causes"]
        .as_array()
        .context("causes")?
        .iter()
        .map(|cause| {
            let text = |member: &str| cause[member].as_str().unwrap_or_default().to_owned();
            ensure!(
                text("reason") == reason_of(&text("message")),
                "{what}: reason and message differ in {cause}"
            );
            Ok(format!("{}: {}", text("field"), text("message")))
        })
        .collect::<Result<_>>()?;
    ensure!(
        found == causes,
        "{what}:\n  found    {found:#?}\n  expected {causes:#?}"
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

/// Creates the valid object with each change.
async fn creates(caller: &Caller, path: &str, good: &Value, rows: &[Row]) -> Result<()> {
    let kind = good["kind"].as_str().context("a kind")?;
    for Row { change, causes } in rows {
        let mut bad = good.clone();
        merge(&mut bad, change);
        let name = bad["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let response = caller.post(path, &bad).await?;
        check(kind, &name, &change.to_string(), &response, causes)?;
    }
    // The object without a change is valid.
    caller
        .post(&format!("{path}?dryRun=All"), good)
        .await?
        .expect(201)?;
    Ok(())
}

/// Patches an existing object with each change.
async fn patches(caller: &Caller, path: &str, kind: &str, rows: &[Row]) -> Result<()> {
    let name = path
        .trim_end_matches("/status")
        .rsplit('/')
        .next()
        .context("a name")?;
    for Row { change, causes } in rows {
        let response = caller.patch(path, MERGE_PATCH, change).await?;
        check(kind, name, &change.to_string(), &response, causes)?;
    }
    Ok(())
}

/// The admin at the server without a controller, and a namespace.
async fn unmanaged(name: &str) -> Result<Option<(Stage, Caller, String)>> {
    let Some(stage) = together().await? else {
        return Ok(None);
    };
    let (caller, namespace) = (
        stage.unmanaged(Protocol::Http2).await?,
        stage.namespace(name).await?,
    );
    Ok(Some((stage, caller, namespace)))
}

/// The first status of a request with two interceptors.
fn two_interceptors() -> Value {
    json!({ "status": {
        "targetInterceptors": [{ "name": "a.example.com" }, { "name": "imperative-eviction.k8s.io" }],
        "interceptors": [{ "name": "a.example.com" }, { "name": "imperative-eviction.k8s.io" }],
    } })
}

#[tokio::test]
async fn invalid_requests_are_rejected() -> Result<()> {
    let Some((stage, caller, namespace)) = unmanaged("invalid-requests").await? else {
        return Ok(());
    };
    let target = uid(UIDS, 1);
    let rows = table("requests", &target)?;
    let good = eviction_request(&namespace, "a", &target);
    creates(&caller, &requests_of(&namespace), &good, &rows).await?;
    creates(&stage.host()?, &requests_of(&namespace), &good, &rows).await?;

    let names: Vec<_> = (0..101)
        .map(|number| json!({ "name": format!("r{number}.example.com") }))
        .collect();
    let mut crowded = good;
    crowded["spec"]["requesters"] = Value::Array(names);
    let response = caller.post(&requests_of(&namespace), &crowded).await?;
    let causes = ["spec.requesters: Too many: 101: must have at most 100 items".to_owned()];
    check("EvictionRequest", &target, "101 requesters", &response, &causes)
}

#[tokio::test]
async fn invalid_changes_of_requests_are_rejected() -> Result<()> {
    let Some((_stage, caller, namespace)) = unmanaged("invalid-changes").await? else {
        return Ok(());
    };
    let target = uid(UIDS, 2);
    let good = eviction_request(&namespace, "a", &target);
    caller.post(&requests_of(&namespace), &good).await?.expect(201)?;
    let path = format!("{}/{target}", requests_of(&namespace));
    let rows = table("request updates", &target)?;
    patches(&caller, &path, "EvictionRequest", &rows).await?;
    let status = format!("{path}/status");
    let rows = table("request status", &target)?;
    patches(&caller, &status, "EvictionRequest", &rows).await?;

    caller
        .patch(&status, MERGE_PATCH, &two_interceptors())
        .await?
        .expect(200)?;
    // Interceptors cannot change their order.
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
        let response = caller.patch(&status, MERGE_PATCH, &change).await?.expect(422)?;
        let causes = response["details"]["causes"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        ensure!(
            causes.iter().any(|cause| {
                cause["field"].as_str().is_some_and(|it| it.starts_with(field))
                    && cause["reason"].as_str().is_some_and(|it| it.starts_with(reason))
            }),
            "{change}: {response}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn invalid_maintenances_are_rejected() -> Result<()> {
    let Some((_stage, caller, _)) = unmanaged("invalid-maintenances").await? else {
        return Ok(());
    };
    let path = format!("{ROOT}/nodemaintenances");
    let good = idle_maintenance("invalid-maintenance", "nowhere");
    creates(&caller, &path, &good, &table("maintenances", "")?).await?;

    let mut draining = idle_maintenance("invalid-draining", "nowhere");
    draining["spec"]["stage"] = json!("Drain");
    caller.post(&path, &draining).await?.expect(201)?;
    let item = format!("{path}/invalid-draining");
    let rows = table("draining maintenance updates", "")?;
    patches(&caller, &item, "NodeMaintenance", &rows).await?;
    let plan = json!({ "spec": { "drainPlan": [{ "podType": "Default", "podPriority": 5 }] } });
    let status = caller.patch(&item, MERGE_PATCH, &plan).await?.expect(422)?;
    let cause = &status["details"]["causes"][0];
    ensure!(
        cause["field"] == "spec.drainPlan"
            && cause["message"]
                .as_str()
                .is_some_and(|it| it.ends_with("field is immutable")),
        "{status}"
    );
    let rows = table("maintenance status", "")?;
    patches(&caller, &format!("{item}/status"), "NodeMaintenance", &rows).await
}

#[tokio::test]
async fn invalid_interceptors_are_rejected() -> Result<()> {
    let Some((_stage, caller, _)) = unmanaged("invalid-interceptors").await? else {
        return Ok(());
    };
    let path = format!("{ROOT}/evictioninterceptors");
    let name = "invalid.example.com";
    creates(
        &caller,
        &path,
        &interceptor(name, "invalid"),
        &table("interceptors", "")?,
    )
    .await?;

    let mut broken = interceptor(name, "invalid");
    for expression in ["pod.metadata.", "unknown.thing", "1 +"] {
        broken["spec"]["matchConditions"] = json!([{ "name": "a", "expression": expression }]);
        let status = caller.post(&path, &broken).await?.expect(422)?;
        let cause = &status["details"]["causes"][0];
        ensure!(
            cause["field"] == "spec.matchConditions[0].expression" && cause["reason"] == "FieldValueInvalid",
            "{expression}: {status}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_request_that_forbids_cancellation_cannot_be_deleted() -> Result<()> {
    let Some((_stage, caller, namespace)) = unmanaged("invalid-deletes").await? else {
        return Ok(());
    };
    let target = uid(UIDS, 3);
    caller
        .post(
            &requests_of(&namespace),
            &eviction_request(&namespace, "a", &target),
        )
        .await?
        .expect(201)?;
    let path = format!("{}/{target}", requests_of(&namespace));
    let time = caller.get(&path).await?.time()?;
    let status = format!("{path}/status");
    caller
        .patch(&status, MERGE_PATCH, &two_interceptors())
        .await?
        .expect(200)?;
    let activate = json!({ "status": {
        "activeInterceptors": ["a.example.com"],
        "interceptors": [
            { "name": "a.example.com", "activationTime": time }, { "name": "imperative-eviction.k8s.io" },
        ],
        "evictionRequestCancellationPolicy": "Forbid",
    } });
    caller.patch(&status, MERGE_PATCH, &activate).await?.expect(200)?;
    let message = format!(
        "evictionrequests.coordination.k8s.io \"{target}\" is forbidden: status.evictionRequestCancellationPolicy is \
         Forbid and the eviction of pod \"a\" has not finished"
    );
    caller
        .delete(&path)
        .await?
        .expect_error(403, "Forbidden", &message)?;
    caller
        .delete(&requests_of(&namespace))
        .await?
        .expect_error(403, "Forbidden", &message)?;
    let rows = table("request without cancellation", &target)?;
    patches(&caller, &path, "EvictionRequest", &rows).await
}
