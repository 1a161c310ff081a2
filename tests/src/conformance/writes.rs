//! What becomes of creates, updates and patches?

use std::fmt::Write as _;

use anyhow::{Context as _, Result, ensure};
use http::Method;
use serde_json::{Value, json};

use super::{GROUP_VERSION, PLURAL, Road, causes, version};
use crate::calls::{APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH};

const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// What a client says of system metadata does not count.
///
/// # Errors
/// The rule does not hold.
pub async fn create_sets_system_metadata(road: &Road) -> Result<()> {
    let mut wanted = road.maintenance("a");
    let metadata = wanted["metadata"].as_object_mut().context("metadata")?;
    for (member, value) in [
        ("uid", json!("11111111-1111-4111-8111-111111111111")),
        ("creationTimestamp", json!("2001-01-01T00:00:00Z")),
        ("deletionTimestamp", json!("2001-01-01T00:00:00Z")),
        ("deletionGracePeriodSeconds", json!(5)),
        ("selfLink", json!("/somewhere")),
        ("generation", json!(42)),
        ("resourceVersion", json!("0")),
    ] {
        metadata.insert(member.to_owned(), value);
    }
    wanted["status"] =
        json!({ "stageStatuses": [{ "name": "Drain", "startTimestamp": "2001-01-01T00:00:00Z" }] });
    let created = road.create_from(&wanted).await?;
    let metadata = &created["metadata"];
    assert_eq!(created["apiVersion"], GROUP_VERSION);
    assert_eq!(created["kind"], "NodeMaintenance");
    assert_eq!(metadata["generation"], 1);
    let uid = metadata["uid"].as_str().context("uid")?;
    ensure!(
        uid.len() == 36 && uid != "11111111-1111-4111-8111-111111111111",
        "{uid}"
    );
    let time = metadata["creationTimestamp"]
        .as_str()
        .context("creationTimestamp")?;
    ensure!(
        time.len() == 20 && time.ends_with('Z') && !time.starts_with("2001"),
        "{time}"
    );
    for absent in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"] {
        assert_eq!(metadata[absent], Value::Null, "{absent}");
    }
    assert_eq!(created["status"]["stageStatuses"], Value::Null);
    assert_eq!(created["spec"]["stage"], "Idle", "defaults are applied");
    ensure!(version(&created)? > 0);
    assert_eq!(road.read("a").await?, created);
    Ok(())
}

/// 409 for a name that is taken, 400 and 500 for bodies that contradict the request.
///
/// # Errors
/// The rule does not hold.
pub async fn create_refuses_what_exists_or_cannot_be(road: &Road) -> Result<()> {
    let created = road.create("a").await?;
    let (name, path) = (road.name("a"), road.maintenances());
    let message = format!("{PLURAL} \"{name}\" already exists");
    let status =
        road.caller
            .post(&path, &road.maintenance("a"))
            .await?
            .refused(409, "AlreadyExists", &message)?;
    assert_eq!(
        status["details"],
        json!({ "name": name, "group": "coordination.k8s.io", "kind": "nodemaintenances" })
    );

    let mut versioned = road.maintenance("b");
    versioned["metadata"]["resourceVersion"] = created["metadata"]["resourceVersion"].clone();
    let answer = road.caller.post(&path, &versioned).await?.expect(500)?;
    assert_eq!(
        answer["message"],
        "resourceVersion should not be set on objects to be created"
    );

    let mut foreign = road.maintenance("b");
    foreign["apiVersion"] = json!("coordination.k8s.io/v9");
    let answer = road.caller.post(&path, &foreign).await?.expect(400)?;
    assert_eq!(answer["reason"], "BadRequest");
    let mut other = road.maintenance("b");
    other["kind"] = json!("EvictionRequest");
    road.caller.post(&path, &other).await?.expect(400)?;

    let mut unnamed = road.maintenance("b");
    unnamed["metadata"]
        .as_object_mut()
        .context("metadata")?
        .remove("name");
    let answer = road.caller.post(&path, &unnamed).await?.expect(422)?;
    assert_eq!(causes(&answer), ["metadata.name: FieldValueRequired"]);
    assert_eq!(
        answer["message"],
        "NodeMaintenance.coordination.k8s.io \"\" is invalid: metadata.name: Required value: name or \
         generateName is required"
    );
    assert_eq!(road.caller.get(&road.path("b")).await?.status, 404);

    // Kind and version may be left to the URL.
    let mut bare = road.maintenance("c");
    let members = bare.as_object_mut().context("an object")?;
    members.remove("kind");
    members.remove("apiVersion");
    assert_eq!(road.create_from(&bare).await?["kind"], "NodeMaintenance");
    Ok(())
}

/// `generateName` counts where no name is given.
///
/// # Errors
/// The rule does not hold.
pub async fn create_generates_names(road: &Road) -> Result<()> {
    let mut wanted = road.maintenance("a");
    let long = format!("{}-{}", road.namespace, "x".repeat(60));
    wanted["metadata"]["generateName"] = json!(long);
    let named = road.create_from(&wanted).await?;
    assert_eq!(named["metadata"]["name"], road.name("a"), "a name wins");
    let message = format!(
        "{PLURAL} \"{}\" already exists, the server was not able to generate a unique name for the object",
        road.name("a")
    );
    let answer = road.caller.post(&road.maintenances(), &wanted).await?;
    let status = answer.refused(409, "AlreadyExists", &message)?;
    assert_eq!(status["details"]["retryAfterSeconds"], 1);
    assert_eq!(answer.header("retry-after"), "1");

    wanted["metadata"]
        .as_object_mut()
        .context("metadata")?
        .remove("name");
    for _ in 0..3 {
        let generated = road.create_from(&wanted).await?;
        let name = generated["metadata"]["name"].as_str().context("a name")?;
        let (base, random) = name.split_at(name.len() - 5);
        assert_eq!(base, &long[..58]);
        ensure!(
            random
                .chars()
                .all(|it| "bcdfghjklmnpqrstvwxz2456789".contains(it)),
            "{name}"
        );
        assert_eq!(generated["metadata"]["generateName"], long);
    }
    Ok(())
}

/// The namespace of the URL counts, must exist, and must be the body's.
///
/// # Errors
/// The rule does not hold.
pub async fn create_knows_namespaces(road: &Road) -> Result<()> {
    let mut request = road.request();
    request["metadata"]
        .as_object_mut()
        .context("metadata")?
        .remove("namespace");
    let created = road.caller.post(&road.requests(), &request).await?.expect(201)?;
    assert_eq!(created["metadata"]["namespace"], road.namespace);

    let mut elsewhere = road.request();
    elsewhere["metadata"]["namespace"] = json!("default");
    road.caller.post(&road.requests(), &elsewhere).await?.refused(
        400,
        "BadRequest",
        "the namespace of the provided object does not match the namespace sent on the request",
    )?;

    let missing = format!("{}/namespaces/no-such-namespace/evictionrequests", super::ROOT);
    let mut request = road.request();
    request["metadata"]["namespace"] = json!("no-such-namespace");
    let status = road.caller.post(&missing, &request).await?.refused(
        404,
        "NotFound",
        "namespaces \"no-such-namespace\" not found",
    )?;
    assert_eq!(
        status["details"],
        json!({ "name": "no-such-namespace", "kind": "namespaces" })
    );

    // A cluster-scoped object has none, whatever its body says.
    let mut wanted = road.maintenance("a");
    wanted["metadata"]["namespace"] = json!("default");
    assert_eq!(
        road.create_from(&wanted).await?["metadata"]["namespace"],
        Value::Null
    );
    Ok(())
}

/// 400, 413 and 415 for bodies that are no object.
///
/// # Errors
/// The rule does not hold.
pub async fn bodies_that_cannot_be_decoded(road: &Road) -> Result<()> {
    let (path, json) = (road.maintenances(), "application/json");
    let post = async |media_type: &str, body: &[u8]| {
        let body = bytes::Bytes::copy_from_slice(body);
        road.caller.call(Method::POST, &path, media_type, body).await
    };
    for body in ["", "{", "[]", "7", "{\"kind\":", "{} {}", "not json"] {
        let status = post(json, body.as_bytes()).await?.expect(400)?;
        assert_eq!(status["reason"], "BadRequest", "{body:?}: {status}");
    }
    let deep = format!("{}{}", "[".repeat(10_001), "]".repeat(10_001));
    let status = post(json, format!("{{\"spec\":{deep}}}").as_bytes())
        .await?
        .expect(400)?;
    ensure!(
        status["message"]
            .as_str()
            .is_some_and(|it| it.contains("exceeded max depth")),
        "{status}"
    );

    for (member, value) in [
        ("spec", json!("text")),
        ("spec", json!({ "stage": 7 })),
        ("spec", json!({ "reason": { "a": 1 } })),
        ("metadata", json!({ "name": 7 })),
        (
            "metadata",
            json!({ "name": "a", "creationTimestamp": "yesterday" }),
        ),
        ("metadata", json!({ "name": "a", "labels": { "a": 1 } })),
    ] {
        let mut object = road.maintenance("a");
        object[member] = value;
        let status = post(json, object.to_string().as_bytes()).await?.expect(400)?;
        let message = status["message"].as_str().unwrap_or_default();
        ensure!(
            message.starts_with(
                "NodeMaintenance in version \"v1alpha3\" cannot be handled as a NodeMaintenance: "
            ),
            "{object}: {message}"
        );
    }

    let large = vec![b' '; 3 * 1024 * 1024 + 1];
    post(json, &large).await?.refused(
        413,
        "RequestEntityTooLarge",
        "Request entity too large: limit is 3145728",
    )?;
    let status = post("text/plain", b"{}").await?.expect(415)?;
    assert_eq!(status["reason"], "UnsupportedMediaType");
    ensure!(
        status["message"].as_str().is_some_and(|it| {
            it.starts_with(
                "the body of the request was in an unknown format - accepted media types include: ",
            )
        }),
        "{status}"
    );
    // YAML with aliases that would fill the memory.
    let mut bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n".to_owned();
    for (name, before) in ["b", "c", "d", "e", "f", "g", "h"]
        .iter()
        .zip(["a", "b", "c", "d", "e", "f", "g"])
    {
        let nine = vec![format!("*{before}"); 9].join(",");
        writeln!(bomb, "{name}: &{name} [{nine}]").context("text grows")?;
    }
    let status = post("application/yaml", bomb.as_bytes()).await?.expect(400)?;
    assert_eq!(status["reason"], "BadRequest");
    Ok(())
}

/// 409 for a version that is not the current one, 200 for the current one.
///
/// # Errors
/// The rule does not hold.
pub async fn update_needs_the_current_resource_version(road: &Road) -> Result<()> {
    let created = road.create("a").await?;
    let (name, path) = (road.name("a"), road.path("a"));
    let mut changed = created.clone();
    changed["spec"]["reason"] = json!("first");
    let updated = road.caller.put(&path, &changed).await?.expect(200)?;
    ensure!(version(&updated)? > version(&created)?);

    changed["spec"]["reason"] = json!("second");
    let message = format!("Operation cannot be fulfilled on {PLURAL} \"{name}\": {MODIFIED}");
    let status = road
        .caller
        .put(&path, &changed)
        .await?
        .refused(409, "Conflict", &message)?;
    assert_eq!(
        status["details"],
        json!({ "name": name, "group": "coordination.k8s.io", "kind": "nodemaintenances" })
    );

    // The same again changes nothing, not even the version.
    assert_eq!(road.caller.put(&path, &updated).await?.expect(200)?, updated);

    let missing = road.maintenance("b");
    let message = format!("{PLURAL} \"{}\" not found", road.name("b"));
    road.caller
        .put(&road.path("b"), &missing)
        .await?
        .refused(404, "NotFound", &message)?;
    let message = format!(
        "the name of the object ({}) does not match the name on the URL ({name})",
        road.name("b")
    );
    road.caller
        .put(&path, &missing)
        .await?
        .refused(400, "BadRequest", &message)?;
    let mut unnamed = road.maintenance("b");
    unnamed["metadata"]
        .as_object_mut()
        .context("metadata")?
        .remove("name");
    let message =
        format!("the name of the object ({name} based on URL) was undeterminable: name must be provided");
    road.caller
        .put(&path, &unnamed)
        .await?
        .refused(400, "BadRequest", &message)?;

    let mut other = updated.clone();
    other["metadata"]["uid"] = json!("11111111-1111-4111-8111-111111111111");
    let status = road.caller.put(&path, &other).await?.expect(409)?;
    let message = status["message"].as_str().unwrap_or_default();
    ensure!(
        message.starts_with(&format!(
            "Operation cannot be fulfilled on {PLURAL} \"{name}\": StorageError: invalid object, Code: 4, Key: "
        )) && message.contains("Precondition failed: UID in precondition: 11111111-"),
        "{message}"
    );
    let mut unreadable = updated;
    unreadable["metadata"]["resourceVersion"] = json!("abc");
    let status = road.caller.put(&path, &unreadable).await?.expect(500)?;
    assert_eq!(
        status["message"],
        "strconv.ParseUint: parsing \"abc\": invalid syntax"
    );
    Ok(())
}

/// System metadata is the stored object's, whatever an update says.
///
/// # Errors
/// The rule does not hold.
pub async fn update_restores_what_it_may_not_change(road: &Road) -> Result<()> {
    let created = road.create("a").await?;
    let mut changed = created.clone();
    changed["metadata"]["creationTimestamp"] = json!("2001-01-01T00:00:00Z");
    changed["metadata"]["generation"] = json!(17);
    changed["metadata"]["selfLink"] = json!("/somewhere");
    changed["metadata"]["labels"]["more"] = json!("label");
    let updated = road.caller.put(&road.path("a"), &changed).await?.expect(200)?;
    for member in ["creationTimestamp", "generation", "selfLink", "uid"] {
        assert_eq!(
            updated["metadata"][member], created["metadata"][member],
            "{member}"
        );
    }
    assert_eq!(updated["metadata"]["labels"]["more"], "label");

    let mut deleted = updated;
    deleted["metadata"]["deletionTimestamp"] = json!("2001-01-01T00:00:00Z");
    let status = road.caller.put(&road.path("a"), &deleted).await?.expect(422)?;
    assert_eq!(causes(&status), ["metadata.deletionTimestamp: FieldValueInvalid"]);
    Ok(())
}

/// Labels and status leave the generation alone.
///
/// # Errors
/// The rule does not hold.
pub async fn only_spec_changes_advance_the_generation(road: &Road) -> Result<()> {
    road.create("a").await?;
    let generation = async |patch: Value| {
        let object = road.merge("a", &patch).await?.expect(200)?;
        Ok::<_, anyhow::Error>(object["metadata"]["generation"].clone())
    };
    assert_eq!(
        generation(json!({ "metadata": { "labels": { "x": "y" } } })).await?,
        1
    );
    assert_eq!(generation(json!({ "spec": { "reason": "why" } })).await?, 2);
    assert_eq!(generation(json!({ "spec": { "reason": "why" } })).await?, 2);
    assert_eq!(
        generation(json!({ "status": { "drainStatus": { "drainMessage": "x" } } })).await?,
        2
    );
    assert_eq!(road.read("a").await?["status"]["drainStatus"], Value::Null);
    Ok(())
}

/// Through `status` nothing else changes.
///
/// # Errors
/// The rule does not hold.
pub async fn status_is_written_apart(road: &Road) -> Result<()> {
    let created = road.create("a").await?;
    let path = format!("{}/status", road.path("a"));
    assert_eq!(road.caller.get(&path).await?.expect(200)?, created);
    let mut changed = created.clone();
    changed["status"] = json!({ "drainStatus": { "drainMessage": "Draining" } });
    changed["spec"]["reason"] = json!("not through status");
    changed["metadata"]["labels"] = json!({ "other": "label" });
    changed["metadata"]["annotations"] = json!({ "an": "annotation" });
    changed["metadata"]["finalizers"] = json!(["example.com/hold"]);
    changed["metadata"]["ownerReferences"] =
        json!([{ "apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u" }]);
    let updated = road.caller.put(&path, &changed).await?.expect(200)?;
    assert_eq!(updated["status"]["drainStatus"]["drainMessage"], "Draining");
    assert_eq!(updated["spec"], created["spec"]);
    for member in [
        "labels",
        "annotations",
        "finalizers",
        "ownerReferences",
        "generation",
    ] {
        assert_eq!(
            updated["metadata"][member], created["metadata"][member],
            "{member}"
        );
    }
    let manager = updated["metadata"]["managedFields"]
        .as_array()
        .and_then(|entries| entries.iter().find(|entry| entry["subresource"] == "status"));
    ensure!(manager.is_some(), "{updated}");

    let message = format!(
        "Operation cannot be fulfilled on {PLURAL} \"{}\": {MODIFIED}",
        road.name("a")
    );
    road.caller
        .put(&path, &changed)
        .await?
        .refused(409, "Conflict", &message)?;
    let patch = json!({ "status": { "drainStatus": { "drainMessage": "Drained" } } });
    let patched = road.caller.patch(&path, MERGE_PATCH, &patch).await?.expect(200)?;
    assert_eq!(patched["status"]["drainStatus"]["drainMessage"], "Drained");

    let missing = format!("{}/status", road.path("nobody"));
    let message = format!("{PLURAL} \"{}\" not found", road.name("nobody"));
    road.caller
        .get(&missing)
        .await?
        .refused(404, "NotFound", &message)?;
    road.caller
        .patch(&missing, MERGE_PATCH, &patch)
        .await?
        .refused(404, "NotFound", &message)?;
    Ok(())
}

/// Exactly one of two racing updates is taken.
///
/// # Errors
/// The rule does not hold.
pub async fn of_two_updates_of_one_version_one_wins(road: &Road) -> Result<()> {
    let created = road.create("a").await?;
    let with = |reason: &str| {
        let mut object = created.clone();
        object["spec"]["reason"] = json!(reason);
        object
    };
    let (first, second, path) = (with("first"), with("second"), road.path("a"));
    let (first, second) = tokio::try_join!(road.caller.put(&path, &first), road.caller.put(&path, &second))?;
    let mut codes = [first.status, second.status];
    codes.sort_unstable();
    assert_eq!(codes, [200, 409]);
    Ok(())
}

/// RFC 7386.
///
/// # Errors
/// The rule does not hold.
pub async fn merge_patch(road: &Road) -> Result<()> {
    let created = road.create("a").await?;
    let patch = json!({
        "metadata": { "annotations": { "one": "1", "two": "2" }, "finalizers": ["example.com/a", "example.com/b"] },
        "spec": { "reason": "why" },
    });
    road.merge("a", &patch).await?.expect(200)?;
    let patch = json!({
        "metadata": { "annotations": { "one": null }, "finalizers": ["example.com/c"] },
        "spec": { "reason": null },
    });
    let patched = road.merge("a", &patch).await?.expect(200)?;
    assert_eq!(patched["metadata"]["annotations"], json!({ "two": "2" }));
    assert_eq!(
        patched["metadata"]["finalizers"],
        json!(["example.com/c"]),
        "lists are replaced"
    );
    assert_eq!(patched["spec"]["reason"], Value::Null);
    let none = json!({ "metadata": { "finalizers": null, "annotations": null } });
    let bare = road.merge("a", &none).await?.expect(200)?;
    assert_eq!(bare["metadata"]["finalizers"], Value::Null);
    assert_eq!(
        road.merge("a", &json!({})).await?.expect(200)?,
        bare,
        "no change, no new version"
    );

    let stale = json!({ "metadata": { "resourceVersion": created["metadata"]["resourceVersion"] } });
    let message = format!(
        "Operation cannot be fulfilled on {PLURAL} \"{}\": {MODIFIED}",
        road.name("a")
    );
    road.merge("a", &stale)
        .await?
        .refused(409, "Conflict", &message)?;
    let renamed = json!({ "metadata": { "name": "other" } });
    let message = format!(
        "the name of the object (other) does not match the name on the URL ({})",
        road.name("a")
    );
    road.merge("a", &renamed)
        .await?
        .refused(400, "BadRequest", &message)?;
    road.merge("a", &json!({ "metadata": null })).await?.expect(400)?;
    let status = road.merge("a", &json!({ "kind": "Other" })).await?.expect(422)?;
    assert_eq!(causes(&status), ["patch: FieldValueInvalid"]);
    let other = json!({ "metadata": { "uid": "11111111-1111-4111-8111-111111111111" } });
    let status = road.merge("a", &other).await?.expect(422)?;
    assert_eq!(causes(&status), ["metadata.uid: FieldValueInvalid"]);
    let status = road
        .merge("a", &json!({ "spec": { "stage": 7 } }))
        .await?
        .expect(422)?;
    assert_eq!(causes(&status), ["patch: FieldValueInvalid"]);

    for body in ["", "{", "a: b", "[]"] {
        let answer = road
            .caller
            .call(Method::PATCH, &road.path("a"), MERGE_PATCH, body)
            .await?;
        assert_eq!(answer.expect(400)?["reason"], "BadRequest", "{body:?}");
    }
    let message = format!("{PLURAL} \"{}\" not found", road.name("nobody"));
    road.merge("nobody", &json!({}))
        .await?
        .refused(404, "NotFound", &message)?;
    Ok(())
}

/// RFC 6902, and what a failed operation is told.
///
/// # Errors
/// The rule does not hold.
pub async fn json_patch(road: &Road) -> Result<()> {
    road.create("a").await?;
    let patch = async |operations: Value| road.caller.patch(&road.path("a"), JSON_PATCH, &operations).await;
    let patched = patch(json!([
        { "op": "test", "path": "/metadata/name", "value": road.name("a") },
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

    for operation in [
        json!({ "op": "test", "path": "/metadata/name", "value": "other" }),
        json!({ "op": "remove", "path": "/metadata/annotations/nothing" }),
        json!({ "op": "add", "path": "/metadata/nothing/here", "value": 1 }),
    ] {
        let status = patch(json!([operation])).await?.refused(
            422,
            "Invalid",
            "the server rejected our request due to an error in our request",
        )?;
        assert_eq!(status["details"], json!({}));
    }
    for body in ["{}", "[", ""] {
        let answer = road
            .caller
            .call(Method::PATCH, &road.path("a"), JSON_PATCH, body)
            .await?;
        assert_eq!(answer.expect(400)?["reason"], "BadRequest", "{body:?}");
    }
    let operation = json!({ "op": "test", "path": "/kind", "value": "NodeMaintenance" });
    patch(Value::Array(vec![operation; 10_001])).await?.refused(
        413,
        "RequestEntityTooLarge",
        "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001",
    )?;
    Ok(())
}

/// 415, so that kubectl and the garbage collector fall back to a merge patch.
///
/// # Errors
/// The rule does not hold.
pub async fn patches_of_other_types_are_refused(road: &Road) -> Result<()> {
    road.create("a").await?;
    for media_type in [STRATEGIC_PATCH, APPLY_PATCH] {
        let path = format!("{}?fieldManager=suite", road.path("a"));
        road.caller
            .patch(&path, media_type, &road.maintenance("a"))
            .await?
            .refused(
                415,
                "UnsupportedMediaType",
                "the body of the request was in an unknown format - accepted media types include: \
                 application/json-patch+json, application/merge-patch+json",
            )?;
    }
    for media_type in ["application/json", "text/plain"] {
        let answer = road.caller.patch(&road.path("a"), media_type, &json!({})).await?;
        let status = answer.refused(415, "UnsupportedMediaType", "415: Unsupported Media Type")?;
        assert_eq!(status["details"], json!({}));
    }
    Ok(())
}

/// All of many racing patches are taken.
///
/// # Errors
/// The rule does not hold.
pub async fn patches_without_a_version_never_conflict(road: &Road) -> Result<()> {
    road.create("a").await?;
    let patches = (0..20).map(|number| {
        let patch = json!({ "metadata": { "annotations": { format!("n{number}"): "x" } } });
        async move { road.merge("a", &patch).await?.expect(200).map(drop) }
    });
    futures_util::future::try_join_all(patches).await?;
    let annotations = road.read("a").await?["metadata"]["annotations"].clone();
    assert_eq!(annotations.as_object().map(serde_json::Map::len), Some(20));
    Ok(())
}

/// A dry run goes all the way but stores nothing.
///
/// # Errors
/// The rule does not hold.
pub async fn dry_runs_change_nothing(road: &Road) -> Result<()> {
    let dry = |path: String| format!("{path}?dryRun=All");
    let answer = road
        .caller
        .post(&dry(road.maintenances()), &road.maintenance("a"))
        .await?;
    let pretended = answer.expect(201)?;
    assert_eq!(pretended["metadata"]["resourceVersion"], Value::Null);
    ensure!(pretended["metadata"]["uid"].is_string());
    assert_eq!(road.caller.get(&road.path("a")).await?.status, 404);

    let created = road.create("a").await?;
    let answer = road
        .caller
        .post(&dry(road.maintenances()), &road.maintenance("a"))
        .await?;
    answer.expect(409)?;
    let mut changed = created.clone();
    changed["spec"]["reason"] = json!("pretended");
    let answers = [
        road.caller
            .put(&dry(road.path("a")), &changed)
            .await?
            .expect(200)?,
        road.caller
            .patch(
                &dry(road.path("a")),
                MERGE_PATCH,
                &json!({ "spec": { "reason": "pretended" } }),
            )
            .await?
            .expect(200)?,
    ];
    for answer in answers {
        assert_eq!(answer["spec"]["reason"], "pretended");
        assert_eq!(version(&answer)?, version(&created)?);
    }
    road.caller.delete(&dry(road.path("a"))).await?.expect(200)?;
    road.caller
        .delete_with(&road.path("a"), &json!({ "dryRun": ["All"] }))
        .await?
        .expect(200)?;
    road.caller
        .delete(&format!("{}&dryRun=All", road.own()))
        .await?
        .expect(200)?;
    assert_eq!(road.read("a").await?, created);

    let kinds = [
        (
            "CreateOptions",
            road.caller
                .post(&format!("{}?dryRun=Some", road.maintenances()), &created)
                .await?,
        ),
        (
            "UpdateOptions",
            road.caller
                .put(&format!("{}?dryRun=Some", road.path("a")), &created)
                .await?,
        ),
        (
            "PatchOptions",
            road.caller
                .patch(
                    &format!("{}?dryRun=Some", road.path("a")),
                    MERGE_PATCH,
                    &json!({}),
                )
                .await?,
        ),
        (
            "DeleteOptions",
            road.caller
                .delete(&format!("{}?dryRun=Some", road.path("a")))
                .await?,
        ),
    ];
    for (kind, answer) in kinds {
        let status = answer.expect(422)?;
        assert_eq!(causes(&status), ["dryRun: FieldValueNotSupported"], "{kind}");
        assert_eq!(status["details"]["kind"], kind);
        assert_eq!(status["details"]["group"], "meta.k8s.io", "{kind}");
    }
    Ok(())
}

/// `fieldValidation` decides what becomes of fields nobody knows.
///
/// # Errors
/// The rule does not hold.
pub async fn unknown_and_duplicate_fields(road: &Road) -> Result<()> {
    let text = road.maintenance("a").to_string();
    let text = text.replace(
        "\"spec\":{",
        "\"spec\":{\"surprise\":1,\"reason\":\"one\",\"reason\":\"two\",",
    );
    let post = async |parameters: &str| {
        let path = format!("{}?dryRun=All{parameters}", road.maintenances());
        road.caller
            .call(Method::POST, &path, "application/json", text.clone())
            .await
    };
    let strict = post("&fieldValidation=Strict").await?.expect(400)?;
    let message = strict["message"].as_str().unwrap_or_default();
    ensure!(
        message.starts_with(
            "NodeMaintenance in version \"v1alpha3\" cannot be handled as a NodeMaintenance: strict decoding error: "
        ) && message.contains("unknown field \"spec.surprise\"")
            && message.contains("duplicate field \"spec.reason\""),
        "{message}"
    );
    for parameters in ["", "&fieldValidation=Warn"] {
        let answer = post(parameters).await?;
        let object = answer.expect(201)?;
        assert_eq!(object["spec"]["reason"], "two");
        assert_eq!(object["spec"]["surprise"], Value::Null);
        let mut warnings: Vec<_> = answer
            .headers
            .get_all("warning")
            .iter()
            .filter_map(|value| value.to_str().ok())
            .collect();
        warnings.sort_unstable();
        assert_eq!(
            warnings,
            [
                r#"299 - "duplicate field \"spec.reason\"""#,
                r#"299 - "unknown field \"spec.surprise\"""#,
            ]
        );
    }
    let answer = post("&fieldValidation=Ignore").await?;
    answer.expect(201)?;
    assert_eq!(answer.headers.get("warning"), None);
    let status = post("&fieldValidation=Whatever").await?.expect(422)?;
    assert_eq!(causes(&status), ["fieldValidation: FieldValueNotSupported"]);

    road.create("a").await?;
    let path = format!("{}?fieldValidation=Strict", road.path("a"));
    let patch = json!({ "spec": { "surprise": 1 } });
    let status = road.caller.patch(&path, MERGE_PATCH, &patch).await?.expect(422)?;
    assert_eq!(causes(&status), ["patch: FieldValueInvalid"]);
    Ok(())
}

/// Who set which field is written down.
///
/// # Errors
/// The rule does not hold.
pub async fn field_managers_are_recorded(road: &Road) -> Result<()> {
    let caller = road
        .caller
        .clone()
        .with_header("user-agent", "some-tool/1.2 (linux)")?;
    let created = caller
        .post(&road.maintenances(), &road.maintenance("a"))
        .await?
        .expect(201)?;
    let entry = &created["metadata"]["managedFields"][0];
    assert_eq!(entry["manager"], "some-tool");
    assert_eq!(entry["operation"], "Update");
    assert_eq!(entry["apiVersion"], GROUP_VERSION);
    assert_eq!(entry["fieldsType"], "FieldsV1");
    ensure!(
        entry["fieldsV1"]["f:spec"]["f:nodeSelector"].is_object(),
        "{entry}"
    );

    let path = format!("{}?fieldManager=somebody", road.path("a"));
    let patch = json!({ "spec": { "reason": "why" } });
    let patched = caller.patch(&path, MERGE_PATCH, &patch).await?.expect(200)?;
    let entries = patched["metadata"]["managedFields"]
        .as_array()
        .context("entries")?;
    let own = entries
        .iter()
        .find(|entry| entry["manager"] == "somebody")
        .context("an entry")?;
    assert_eq!(own["fieldsV1"], json!({ "f:spec": { "f:reason": {} } }));

    for (manager, reason) in [
        ("x".repeat(129), "FieldValueTooLong"),
        ("a%0Ab".to_owned(), "FieldValueInvalid"),
    ] {
        let path = format!("{}?fieldManager={manager}", road.path("a"));
        let status = caller.patch(&path, MERGE_PATCH, &patch).await?.expect(422)?;
        assert_eq!(causes(&status), [format!("fieldManager: {reason}")]);
    }
    let path = format!("{}?force=true", road.path("a"));
    let status = caller.patch(&path, MERGE_PATCH, &patch).await?.expect(422)?;
    assert_eq!(causes(&status), ["force: FieldValueForbidden"]);
    Ok(())
}

/// Names, labels, annotations, finalizers and owners.
///
/// # Errors
/// The rule does not hold.
pub async fn metadata_is_validated(road: &Road) -> Result<()> {
    let owner = |name: &str, uid: &str| json!({ "apiVersion": "v1", "kind": "Node", "name": name, "uid": uid, "controller": true });
    for (member, value, expected) in [
        ("name", json!("Upper"), "metadata.name: FieldValueInvalid"),
        ("name", json!("x".repeat(254)), "metadata.name: FieldValueInvalid"),
        (
            "labels",
            json!({ "-a": "b" }),
            "metadata.labels: FieldValueInvalid",
        ),
        (
            "labels",
            json!({ "a": "-b" }),
            "metadata.labels: FieldValueInvalid",
        ),
        (
            "labels",
            json!({ "a": "x".repeat(64) }),
            "metadata.labels: FieldValueInvalid",
        ),
        (
            "annotations",
            json!({ "a b": "" }),
            "metadata.annotations: FieldValueInvalid",
        ),
        (
            "annotations",
            json!({ "a": "x".repeat(262_144) }),
            "metadata.annotations: FieldValueTooLong",
        ),
        (
            "finalizers",
            json!(["a b"]),
            "metadata.finalizers: FieldValueInvalid",
        ),
        (
            "finalizers",
            json!(["orphan", "foregroundDeletion"]),
            "metadata.finalizers: FieldValueInvalid",
        ),
        (
            "ownerReferences",
            json!([owner("a", "1"), owner("b", "2")]),
            "metadata.ownerReferences: FieldValueInvalid",
        ),
        (
            "ownerReferences",
            json!([{ "apiVersion": "v1", "kind": "Node", "name": "", "uid": "1" }]),
            "metadata.ownerReferences[0].name: FieldValueRequired",
        ),
        (
            "ownerReferences",
            json!([{ "apiVersion": "v1", "kind": "Event", "name": "e", "uid": "1" }]),
            "metadata.ownerReferences[0]: FieldValueInvalid",
        ),
    ] {
        let mut object = road.maintenance("a");
        object["metadata"][member] = value;
        let answer = road.caller.post(&road.maintenances(), &object).await?;
        let status = answer.expect(422)?;
        let causes = causes(&status);
        // Some tests of names give two reasons in one go.
        ensure!(
            causes.first().is_some_and(|cause| cause == expected),
            "{member}: {status}"
        );
        assert_eq!(status["details"]["kind"], "NodeMaintenance");
    }
    Ok(())
}
