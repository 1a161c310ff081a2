//! Rules of patches.

use anyhow::{Result, ensure};
use http::Method;
use serde_json::{Value, json};

use super::{Endpoint, MODIFIED, PLURAL};
use crate::calls::{JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH};

const REJECTED: &str = "the server rejected our request due to an error in our request";

/// Patches that fail on an object: media type, body, code, reason, and a part of the message.
const FAILURES: &[(&str, &str, u16, &str, &str)] = &[
    (JSON_PATCH, "", 400, "BadRequest", "invalid JSON patch"),
    (JSON_PATCH, "[", 400, "BadRequest", ""),
    (JSON_PATCH, "{}", 400, "BadRequest", "error decoding patch"),
    (
        JSON_PATCH,
        r#"[{"op":"test","path":"/metadata/name","value":"x"}]"#,
        422,
        "Invalid",
        REJECTED,
    ),
    (
        JSON_PATCH,
        r#"[{"op":"remove","path":"/metadata/annotations/x"}]"#,
        422,
        "Invalid",
        REJECTED,
    ),
    (
        JSON_PATCH,
        r#"[{"op":"remove","path":"/metadata/finalizers/0"}]"#,
        422,
        "Invalid",
        REJECTED,
    ),
    (
        JSON_PATCH,
        r#"[{"op":"add","path":"/spec/a/b/c","value":1}]"#,
        422,
        "Invalid",
        REJECTED,
    ),
    (
        JSON_PATCH,
        r#"[{"op":"shout","path":"/kind"}]"#,
        422,
        "Invalid",
        REJECTED,
    ),
    (MERGE_PATCH, "", 400, "BadRequest", "invalid JSON patch"),
    (MERGE_PATCH, "{", 400, "BadRequest", ""),
    (MERGE_PATCH, "a: b", 400, "BadRequest", "invalid JSON patch"),
    (MERGE_PATCH, "[1]", 400, "BadRequest", "error decoding patch"),
    (MERGE_PATCH, r#"{"metadata":null}"#, 400, "BadRequest", ""),
    (
        MERGE_PATCH,
        r#"{"metadata":{"name":"x"}}"#,
        400,
        "BadRequest",
        "the name of the object (x) does not match the name on the URL",
    ),
    (
        MERGE_PATCH,
        r#"{"metadata":{"name":null}}"#,
        400,
        "BadRequest",
        "was undeterminable: name must be provided",
    ),
    (
        MERGE_PATCH,
        r#"{"kind":"Pod"}"#,
        422,
        "Invalid",
        "patch: Invalid value",
    ),
    (
        MERGE_PATCH,
        r#"{"apiVersion":"v1"}"#,
        422,
        "Invalid",
        "patch: Invalid value",
    ),
    (
        MERGE_PATCH,
        r#"{"metadata":{"labels":{"a":1}}}"#,
        422,
        "Invalid",
        "patch: Invalid value",
    ),
    (
        MERGE_PATCH,
        r#"{"spec":{"stage":7}}"#,
        422,
        "Invalid",
        "patch: Invalid value",
    ),
    (
        MERGE_PATCH,
        r#"{"metadata":{"labels":{"not ok":"x"}}}"#,
        422,
        "Invalid",
        "metadata.labels: Invalid value",
    ),
    (
        MERGE_PATCH,
        r#"{"metadata":{"uid":"other"}}"#,
        422,
        "Invalid",
        "metadata.uid: Invalid value: \"other\": field is immutable",
    ),
    (
        MERGE_PATCH,
        r#"{"metadata":{"deletionTimestamp":"2026-06-01T12:00:00Z"}}"#,
        422,
        "Invalid",
        "metadata.deletionTimestamp: Invalid value: \"2026-06-01T12:00:00Z\": field is immutable",
    ),
    (
        MERGE_PATCH,
        r#"{"metadata":{"finalizers":["orphan","foregroundDeletion"]}}"#,
        422,
        "Invalid",
        "finalizer orphan and foregroundDeletion cannot be both set",
    ),
    (
        MERGE_PATCH,
        r#"{"metadata":{"resourceVersion":"1"}}"#,
        409,
        "Conflict",
        MODIFIED,
    ),
    (
        MERGE_PATCH,
        r#"{"metadata":{"resourceVersion":"abc"}}"#,
        500,
        "",
        "strconv.ParseUint: parsing \"abc\": invalid syntax",
    ),
];

/// Patches that leave an object as it is.
const NO_CHANGES: &[(&str, &str)] = &[
    (JSON_PATCH, "[]"),
    (
        JSON_PATCH,
        r#"[{"op":"test","path":"/metadata/finalizers","value":null}]"#,
    ),
    (MERGE_PATCH, "{}"),
    (
        MERGE_PATCH,
        r#"{"kind":null,"apiVersion":null,"metadata":{"creationTimestamp":null,"generation":9,"uid":null}}"#,
    ),
];

/// RFC 7386.
pub async fn merge_patch(api: &Endpoint) -> Result<()> {
    let created = api.create("a").await?;
    let patch = json!({
        "metadata": { "annotations": { "one": "1", "two": "2" }, "finalizers": ["example.com/a", "example.com/b"] },
        "spec": { "reason": "why" },
    });
    api.merge("a", &patch).await?.expect(200)?;
    let patch = json!({
        "metadata": { "annotations": { "one": null }, "finalizers": ["example.com/c"] },
        "spec": { "reason": null },
    });
    let patched = api.merge("a", &patch).await?.expect(200)?;
    assert_eq!(patched["metadata"]["annotations"], json!({ "two": "2" }));
    assert_eq!(
        patched["metadata"]["finalizers"],
        json!(["example.com/c"]),
        "lists are replaced"
    );
    assert_eq!(patched["spec"]["reason"], Value::Null);
    let none = json!({ "metadata": { "finalizers": null, "annotations": null } });
    let bare = api.merge("a", &none).await?.expect(200)?;
    assert_eq!(bare["metadata"]["finalizers"], Value::Null);

    let stale = json!({ "metadata": { "resourceVersion": created["metadata"]["resourceVersion"] } });
    let message = format!(
        "Operation cannot be fulfilled on {PLURAL} \"{}\": {MODIFIED}",
        api.name("a")
    );
    api.merge("a", &stale)
        .await?
        .expect_error(409, "Conflict", &message)?;
    let message = format!("{PLURAL} \"{}\" not found", api.name("nobody"));
    api.merge("nobody", &json!({}))
        .await?
        .expect_error(404, "NotFound", &message)?;
    Ok(())
}

/// RFC 6902.
pub async fn json_patch(api: &Endpoint) -> Result<()> {
    api.create("a").await?;
    let patch = async |operations: Value| api.caller.patch(&api.path("a"), JSON_PATCH, &operations).await;
    let patched = patch(json!([
        { "op": "test", "path": "/metadata/name", "value": api.name("a") },
        { "op": "add", "path": "/metadata/annotations", "value": { "one": "1" } },
        { "op": "add", "path": "/metadata/annotations/a~1b", "value": "2" },
        { "op": "copy", "from": "/metadata/annotations/one", "path": "/metadata/annotations/copied" },
        { "op": "move", "from": "/metadata/annotations/one", "path": "/metadata/annotations/moved" },
        { "op": "add", "path": "/metadata/finalizers", "value": ["example.com/a"] },
        { "op": "add", "path": "/metadata/finalizers/-", "value": "example.com/b" },
        { "op": "replace", "path": "/metadata/finalizers/0", "value": "example.com/c" },
    ]))
    .await?
    .expect(200)?;
    assert_eq!(
        patched["metadata"]["annotations"],
        json!({ "a/b": "2", "copied": "1", "moved": "1" })
    );
    assert_eq!(
        patched["metadata"]["finalizers"],
        json!(["example.com/c", "example.com/b"])
    );
    patch(json!([{ "op": "remove", "path": "/metadata/finalizers" }]))
        .await?
        .expect(200)?;

    let operation = json!({ "op": "test", "path": "/kind", "value": "NodeMaintenance" });
    patch(Value::Array(vec![operation; 10_001])).await?.expect_error(
        413,
        "RequestEntityTooLarge",
        "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001",
    )?;
    Ok(())
}

/// A strategic merge patch merges lists by the keys of the schema, and its directives are never stored.
pub async fn strategic_merge_patch(api: &Endpoint) -> Result<()> {
    // The garbage collector removes objects whose owners do not exist.
    let owner = api.create("owner").await?;
    let first = json!({ "apiVersion": super::GROUP_VERSION, "kind": "NodeMaintenance", "name": api.name("owner"),
        "uid": owner["metadata"]["uid"] });
    let second = json!({ "uid": api.uid() });
    let mut object = api.maintenance("a");
    object["metadata"]["finalizers"] = json!(["example.com/a", "example.com/b"]);
    object["metadata"]["annotations"] = json!({ "keep": "1", "drop": "1" });
    let created = api.create_from(&object).await?;
    let send = async |patch: Value| api.caller.patch(&api.path("a"), STRATEGIC_PATCH, &patch).await;
    let merged = send(json!({
        "metadata": {
            "annotations": { "drop": null, "new": "2" },
            "$deleteFromPrimitiveList/finalizers": ["example.com/a"],
            "finalizers": ["example.com/c"],
            "ownerReferences": [first, { "$patch": "delete", "uid": second["uid"] }],
        },
        "spec": { "reason": "kernel", "$setElementOrder/unknown": [] },
    }))
    .await?
    .expect(200)?;
    let metadata = &merged["metadata"];
    assert_eq!(metadata["annotations"], json!({ "keep": "1", "new": "2" }));
    assert_eq!(metadata["finalizers"], json!(["example.com/c", "example.com/b"]));
    assert_eq!(metadata["ownerReferences"], json!([first]));
    assert_eq!(merged["spec"]["reason"], "kernel");
    assert_eq!(merged["spec"]["nodeSelector"], created["spec"]["nodeSelector"]);
    ensure!(!merged.to_string().contains('$'), "{merged}");
    // As the garbage collector removes an owner.
    let patch = json!({ "metadata": {
        "uid": created["metadata"]["uid"], "ownerReferences": [{ "$patch": "delete", "uid": first["uid"] }],
    } });
    let merged = send(patch.clone()).await?.expect(200)?;
    assert_eq!(merged["metadata"].get("ownerReferences"), None);
    assert_eq!(send(patch).await?.expect(200)?, merged, "nothing changes twice");
    for (patch, code) in [
        (json!({ "metadata": { "uid": "other" } }), 422),
        (json!({ "metadata": { "resourceVersion": "1" } }), 409),
        (
            json!({ "metadata": { "ownerReferences": [{ "name": "x" }] } }),
            400,
        ),
        (json!({ "metadata": { "labels": { "$patch": "turn" } } }), 400),
        (json!([]), 400),
    ] {
        send(patch).await?.expect(code)?;
    }
    api.merge("a", &json!({ "metadata": { "finalizers": null } }))
        .await?
        .expect(200)?;
    Ok(())
}

/// 415, after which kubectl and the garbage collector fall back to a merge patch.
pub async fn other_patch_types_are_rejected(api: &Endpoint) -> Result<()> {
    api.create("a").await?;
    for media_type in ["application/json", "text/plain"] {
        let response = api.caller.patch(&api.path("a"), media_type, &json!({})).await?;
        let status = response.expect_error(415, "UnsupportedMediaType", "415: Unsupported Media Type")?;
        assert_eq!(status["details"], json!({}));
    }
    Ok(())
}

/// All of many concurrent patches succeed.
pub async fn patches_without_a_resource_version_never_conflict(api: &Endpoint) -> Result<()> {
    api.create("a").await?;
    let patches = (0..20).map(|number| {
        let patch = json!({ "metadata": { "annotations": { format!("n{number}"): "x" } } });
        async move { api.merge("a", &patch).await?.expect(200).map(drop) }
    });
    futures_util::future::try_join_all(patches).await?;
    let annotations = api.read("a").await?["metadata"]["annotations"].clone();
    assert_eq!(annotations.as_object().map(serde_json::Map::len), Some(20));
    Ok(())
}

/// Failed patches have the code, the reason and the message that clients match.
pub async fn failed_patches(api: &Endpoint) -> Result<()> {
    let created = api.create("a").await?;
    for (media_type, body, code, reason, text) in FAILURES {
        let response = api
            .caller
            .call(Method::PATCH, &api.path("a"), media_type, *body)
            .await?;
        let status = response.expect(*code)?;
        assert_eq!(status["kind"], "Status", "{body}");
        assert_eq!(status["reason"].as_str().unwrap_or_default(), *reason, "{body}");
        let message = status["message"].as_str().unwrap_or_default();
        ensure!(message.contains(text), "{body}: {message}");
        if *text == REJECTED {
            assert_eq!((message, &status["details"]), (REJECTED, &json!({})), "{body}");
        }
    }
    for (media_type, body) in NO_CHANGES {
        let response = api
            .caller
            .call(Method::PATCH, &api.path("a"), media_type, *body)
            .await?;
        assert_eq!(response.expect(200)?, created, "{body}");
    }
    Ok(())
}
