//! Rules of size: whatever a client sends, responses are small, and what is costly is rejected.

use anyhow::{Result, ensure};
use http::Method;
use serde_json::{Value, json};

use super::{Endpoint, causes};
use crate::calls::{APPLY_PATCH, JSON_PATCH, MERGE_PATCH, Response};

/// The largest body of an error in bytes.
const LARGEST_ERROR: usize = 64 * 1024;
/// The largest number of causes of an error.
const MOST_CAUSES: usize = 100;

fn is_small(what: &str, response: &Response, code: u16) -> Result<()> {
    let text = response.text();
    let shown: String = text.chars().take(300).collect();
    ensure!(response.status == code, "{what}: {} {shown}", response.status);
    ensure!(
        response.body.len() <= LARGEST_ERROR,
        "{what}: {} bytes: {shown}",
        response.body.len()
    );
    let status: Value = serde_json::from_slice(&response.body)?;
    let found = causes(&status).len();
    ensure!(found <= MOST_CAUSES, "{what}: {found} causes");
    if code == 422 {
        ensure!(found > 0, "{what}: no cause");
    }
    Ok(())
}

/// The maintenance with one member of its metadata.
fn with_metadata(api: &Endpoint, member: &str, value: Value) -> Value {
    let mut object = api.maintenance("a");
    object["metadata"][member] = value;
    object
}

fn owner(index: usize, name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Pod", "name": name, "uid": format!("u{index}"), "controller": true })
}

/// Text that is invalid everywhere, of about this many bytes.
fn bad(bytes: usize) -> String {
    "\"<\\".repeat(bytes / 3)
}

fn selecting(api: &Endpoint, terms: Vec<Value>) -> Value {
    let mut object = api.maintenance("a");
    object["spec"]["nodeSelector"]["nodeSelectorTerms"] = Value::Array(terms);
    object
}

/// Objects with very many or very long faults, and the code of the error.
fn faulty(api: &Endpoint) -> Vec<(&'static str, u16, Value)> {
    let bad_term = json!({ "matchExpressions": [{ "key": "-", "operator": "?", "values": ["-"] }] });
    let many = |count: usize, item: fn(usize) -> String| -> Value {
        Value::Array((0..count).map(|index| item(index).into()).collect())
    };
    let labels = |count: usize, bytes: usize| -> Value {
        let keys = (0..count).map(|index| (format!("{}{index}", bad(bytes)), json!("-")));
        Value::Object(keys.collect())
    };
    let mut unknown = api.maintenance("a");
    for index in 0..20_000 {
        unknown[format!("unknown{index}{}", "x".repeat(100))] = json!(1);
    }
    let mut named = api.maintenance("a");
    named["metadata"]["name"] = json!(bad(1_000_000));
    let mut other_kind = api.maintenance("a");
    other_kind["kind"] = json!(bad(1_000_000));
    let mut staged = api.maintenance("a");
    staged["spec"]["stage"] = json!(bad(1_000_000));
    let mut planned = api.maintenance("a");
    planned["spec"]["drainPlan"] =
        Value::Array(vec![json!({ "podType": bad(40), "podPriority": 1 }); 20_000]);
    let mut reasoned = api.maintenance("a");
    reasoned["spec"]["stage"] = json!({ "a": bad(1_000_000) });
    vec![
        (
            "1,500 controllers",
            422,
            with_metadata(
                api,
                "ownerReferences",
                (0..1_500).map(|index| owner(index, "n")).collect(),
            ),
        ),
        (
            "64 controllers with long names",
            422,
            with_metadata(
                api,
                "ownerReferences",
                (0..64).map(|index| owner(index, &bad(20_000))).collect(),
            ),
        ),
        (
            "60,000 owners",
            422,
            with_metadata(
                api,
                "ownerReferences",
                (0..20_000).map(|index| owner(index, "n")).collect(),
            ),
        ),
        (
            "many bad label keys",
            422,
            with_metadata(api, "labels", labels(100_000, 9)),
        ),
        (
            "a long label key",
            422,
            with_metadata(api, "labels", labels(1, 1_000_000)),
        ),
        (
            "long annotation keys",
            422,
            with_metadata(api, "annotations", labels(40, 30_000)),
        ),
        (
            "many bad finalizers",
            422,
            with_metadata(api, "finalizers", many(100_000, |index| format!("bad {index}"))),
        ),
        ("bad terms", 422, selecting(api, vec![bad_term.clone(); 6_000])),
        ("30,000 bad terms", 422, selecting(api, vec![bad_term; 30_000])),
        ("a long name", 422, named),
        ("another kind", 400, other_kind),
        ("a long stage", 422, staged),
        ("a stage of another type", 400, reasoned),
        ("a long plan", 422, planned),
        ("unknown fields", 400, unknown),
    ]
}

/// An error has at most 100 causes and 64 KiB, however many and however long the faults are.
pub async fn errors_are_small_whatever_is_sent(api: &Endpoint) -> Result<()> {
    let path = format!("{}?fieldValidation=Strict&dryRun=All", api.maintenances());
    for (what, code, object) in faulty(api) {
        let response = api.caller.post(&path, &object).await?;
        is_small(what, &response, code)?;
    }
    let many = 300_000;
    let duplicates = format!(
        "{{\"{}\":{{{}\"a\":1}}}}",
        "k".repeat(100_000),
        "\"a\":1,".repeat(many)
    );
    let response = api
        .caller
        .call(Method::POST, &path, "application/json", duplicates)
        .await?;
    is_small("duplicate fields", &response, 400)?;
    let response = api
        .caller
        .call(Method::POST, &path, "application/json", bad(1_000_000))
        .await?;
    is_small("no JSON", &response, 400)
}

/// The same for changes of an existing object.
pub async fn errors_of_changes_are_small(api: &Endpoint) -> Result<()> {
    let created = api.create("a").await?;
    let mut renamed = created.clone();
    renamed["metadata"]["name"] = json!(bad(1_000_000));
    is_small(
        "another name",
        &api.caller.put(&api.path("a"), &renamed).await?,
        400,
    )?;
    let reason = json!({ "spec": { "reason": bad(500_000) }, "kind": "Other" });
    is_small("a patch of the kind", &api.merge("a", &reason).await?, 422)?;
    let uid = json!({ "metadata": { "uid": bad(1_000_000) } });
    is_small("a patch of the uid", &api.merge("a", &uid).await?, 422)?;

    // 400 annotations of another manager are 400 conflicts.
    let annotations: Value = (0..400)
        .map(|index| (format!("{}.example.com/{index}", "a".repeat(60)), json!("v")))
        .collect::<serde_json::Map<_, _>>()
        .into();
    let patch = json!({ "metadata": { "annotations": annotations } });
    api.merge("a", &patch).await?.expect(200)?;
    let mut config = api.maintenance("a");
    config["apiVersion"] = created["apiVersion"].clone();
    config["kind"] = created["kind"].clone();
    config["metadata"]["annotations"] = annotations;
    if let Some(values) = config["metadata"]["annotations"].as_object_mut() {
        values.values_mut().for_each(|value| *value = json!("other"));
    }
    let path = format!("{}?fieldManager=somebody", api.path("a"));
    let response = api.caller.patch(&path, APPLY_PATCH, &config).await?;
    is_small("many conflicts", &response, 409)?;

    let mut request = api.request();
    request["apiVersion"] = created["apiVersion"].clone();
    request["kind"] = json!("EvictionRequest");
    let name = request["metadata"]["name"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    let requester = json!({ "name": "k".repeat(100_000) });
    request["spec"]["requesters"] = json!(vec![requester; 9]);
    let path = format!("{}/{name}?fieldManager=somebody", api.requests());
    let response = api.caller.patch(&path, APPLY_PATCH, &request).await?;
    is_small("long keys of a list", &response, 500)
}

/// Patches that would move, copy or shift very much are rejected, however small they are.
pub async fn costly_patches_are_rejected(api: &Endpoint) -> Result<()> {
    let mut object = api.maintenance("a");
    object["metadata"]["annotations"] = json!({ "a": "x".repeat(200_000) });
    api.create_from(&object).await?;
    let hop = |from: &str, to: &str| json!({ "op": "move", "from": from, "path": to });
    let (a, b) = ("/metadata/annotations/a", "/metadata/annotations/b");
    let moves: Vec<Value> = (0..10_000)
        .map(|index| if index % 2 == 0 { hop(a, b) } else { hop(b, a) })
        .collect();
    let copies: Vec<Value> = (0..10_000)
        .map(|index| json!({ "op": "copy", "from": a, "path": format!("{a}{index}") }))
        .collect();
    let shifts =
        vec![json!({ "op": "add", "path": "/metadata/finalizers/0", "value": "example.com/x" }); 9_999];
    let mut shifts_all = vec![json!({ "op": "add", "path": "/metadata/finalizers", "value": [] })];
    shifts_all.extend(shifts);
    for (what, patch) in [("moves", moves), ("copies", copies), ("shifts", shifts_all)] {
        let response = api
            .caller
            .patch(&api.path("a"), JSON_PATCH, &Value::Array(patch))
            .await?;
        let text = response.text();
        let shown: String = text.chars().take(300).collect();
        ensure!(response.status == 422, "{what}: {} {shown}", response.status);
        ensure!(response.body.len() < 1024, "{what}: {shown}");
    }
    Ok(())
}

/// An object has at most 64 owners; repeated ones count once.
pub async fn an_object_has_at_most_64_owners(api: &Endpoint) -> Result<()> {
    let plain =
        |index: usize| json!({ "apiVersion": "v1", "kind": "Pod", "name": "n", "uid": format!("u{index}") });
    let owners = |count: usize| -> Value { (0..count).map(plain).collect() };
    let response = api
        .caller
        .post(
            &api.maintenances(),
            &with_metadata(api, "ownerReferences", owners(65)),
        )
        .await?;
    let status = response.expect(422)?;
    assert_eq!(causes(&status), ["metadata.ownerReferences: FieldValueTooMany"]);
    assert_eq!(
        status["details"]["causes"][0]["message"],
        "Too many: 65: must have at most 64 items"
    );
    let mut repeated = owners(64);
    if let Some(owners) = repeated.as_array_mut() {
        owners.extend(vec![plain(3); 10_000]);
    }
    let response = api
        .caller
        .post(
            &api.maintenances(),
            &with_metadata(api, "ownerReferences", repeated),
        )
        .await?;
    let created = response.expect(201)?;
    assert_eq!(
        created["metadata"]["ownerReferences"].as_array().map(Vec::len),
        Some(64)
    );
    let warning = response.header("warning");
    ensure!(warning.len() < 8 * 1024, "{} bytes of warning", warning.len());
    let more = json!({ "metadata": { "ownerReferences": owners(65) } });
    let response = api.caller.patch(&api.path("a"), MERGE_PATCH, &more).await?;
    assert_eq!(
        causes(&response.expect(422)?),
        ["metadata.ownerReferences: FieldValueTooMany"]
    );
    Ok(())
}
