//! Rules of updates, and of the fields that no update may change.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use super::{Endpoint, GROUP_VERSION, MODIFIED, PLURAL, causes, version};
use crate::calls::MERGE_PATCH;

/// 409 unless the resourceVersion is the current one, 422 without one.
pub async fn update_needs_the_current_resource_version(api: &Endpoint) -> Result<()> {
    let created = api.create("a").await?;
    let (name, path) = (api.name("a"), api.path("a"));
    let mut changed = created.clone();
    changed["spec"]["reason"] = json!("first");
    let updated = api.caller.put(&path, &changed).await?.expect(200)?;
    ensure!(version(&updated)? > version(&created)?);

    changed["spec"]["reason"] = json!("second");
    let message = format!("Operation cannot be fulfilled on {PLURAL} \"{name}\": {MODIFIED}");
    let status = api
        .caller
        .put(&path, &changed)
        .await?
        .expect_error(409, "Conflict", &message)?;
    assert_eq!(
        status["details"],
        json!({ "name": name, "group": "coordination.k8s.io", "kind": "nodemaintenances" })
    );

    // An update without changes keeps the resourceVersion.
    assert_eq!(api.caller.put(&path, &updated).await?.expect(200)?, updated);

    let missing = api.maintenance("b");
    let message = format!("{PLURAL} \"{}\" not found", api.name("b"));
    api.caller
        .put(&api.path("b"), &missing)
        .await?
        .expect_error(404, "NotFound", &message)?;
    let message = format!(
        "the name of the object ({}) does not match the name on the URL ({name})",
        api.name("b")
    );
    api.caller
        .put(&path, &missing)
        .await?
        .expect_error(400, "BadRequest", &message)?;
    let mut unnamed = api.maintenance("b");
    unnamed["metadata"]
        .as_object_mut()
        .context("metadata")?
        .remove("name");
    let message =
        format!("the name of the object ({name} based on URL) was undeterminable: name must be provided");
    api.caller
        .put(&path, &unnamed)
        .await?
        .expect_error(400, "BadRequest", &message)?;

    let mut other = updated.clone();
    other["metadata"]["uid"] = json!("11111111-1111-4111-8111-111111111111");
    let status = api.caller.put(&path, &other).await?.expect(409)?;
    let message = status["message"].as_str().unwrap_or_default();
    ensure!(
        message.starts_with(&format!(
            "Operation cannot be fulfilled on {PLURAL} \"{name}\": StorageError: invalid object, Code: 4, Key: "
        )) && message.contains("Precondition failed: UID in precondition: 11111111-"),
        "{message}"
    );
    for revision in [Value::Null, json!(""), json!("0")] {
        let mut unconditional = updated.clone();
        unconditional["metadata"]["resourceVersion"] = revision.clone();
        let message = format!(
            "{PLURAL} \"{name}\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update"
        );
        for path in [path.clone(), format!("{path}/status")] {
            let status = api.caller.put(&path, &unconditional).await?;
            let status = status.expect_error(422, "Invalid", &message)?;
            assert_eq!(status["details"]["kind"], "nodemaintenances");
            assert_eq!(causes(&status), ["metadata.resourceVersion: FieldValueInvalid"]);
        }
        let patch = json!({ "metadata": { "resourceVersion": revision } });
        api.merge("a", &patch)
            .await?
            .expect_error(422, "Invalid", &message)?;
    }
    let mut unreadable = updated;
    unreadable["metadata"]["resourceVersion"] = json!("abc");
    let status = api.caller.put(&path, &unreadable).await?.expect(500)?;
    assert_eq!(
        status["message"],
        "strconv.ParseUint: parsing \"abc\": invalid syntax"
    );
    Ok(())
}

/// System metadata in the body of an update is ignored.
pub async fn update_keeps_system_metadata(api: &Endpoint) -> Result<()> {
    let created = api.create("a").await?;
    let mut changed = created.clone();
    changed["metadata"]["creationTimestamp"] = json!("2001-01-01T00:00:00Z");
    changed["metadata"]["generation"] = json!(17);
    changed["metadata"]["selfLink"] = json!("/somewhere");
    changed["metadata"]["labels"]["more"] = json!("label");
    let updated = api.caller.put(&api.path("a"), &changed).await?.expect(200)?;
    for member in ["creationTimestamp", "generation", "selfLink", "uid"] {
        assert_eq!(
            updated["metadata"][member], created["metadata"][member],
            "{member}"
        );
    }
    assert_eq!(updated["metadata"]["labels"]["more"], "label");

    let mut deleted = updated;
    deleted["metadata"]["deletionTimestamp"] = json!("2001-01-01T00:00:00Z");
    let status = api.caller.put(&api.path("a"), &deleted).await?.expect(422)?;
    assert_eq!(causes(&status), ["metadata.deletionTimestamp: FieldValueInvalid"]);
    Ok(())
}

/// Changes of labels and status keep the generation.
pub async fn only_spec_changes_advance_the_generation(api: &Endpoint) -> Result<()> {
    api.create("a").await?;
    let generation = async |patch: Value| {
        let object = api.merge("a", &patch).await?.expect(200)?;
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
    assert_eq!(api.read("a").await?["status"]["drainStatus"], Value::Null);
    Ok(())
}

/// Writes to `status` change nothing else.
pub async fn status_is_a_separate_subresource(api: &Endpoint) -> Result<()> {
    let created = api.create("a").await?;
    let path = format!("{}/status", api.path("a"));
    assert_eq!(api.caller.get(&path).await?.expect(200)?, created);
    let mut changed = created.clone();
    changed["status"] = json!({ "drainStatus": { "drainMessage": "Draining" } });
    changed["spec"]["reason"] = json!("not through status");
    changed["metadata"]["labels"] = json!({ "other": "label" });
    changed["metadata"]["annotations"] = json!({ "an": "annotation" });
    changed["metadata"]["finalizers"] = json!(["example.com/hold"]);
    changed["metadata"]["ownerReferences"] =
        json!([{ "apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u" }]);
    let updated = api.caller.put(&path, &changed).await?.expect(200)?;
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
        api.name("a")
    );
    api.caller
        .put(&path, &changed)
        .await?
        .expect_error(409, "Conflict", &message)?;
    let patch = json!({ "status": { "drainStatus": { "drainMessage": "Drained" } } });
    let patched = api.caller.patch(&path, MERGE_PATCH, &patch).await?.expect(200)?;
    assert_eq!(patched["status"]["drainStatus"]["drainMessage"], "Drained");

    let missing = format!("{}/status", api.path("nobody"));
    let message = format!("{PLURAL} \"{}\" not found", api.name("nobody"));
    api.caller
        .get(&missing)
        .await?
        .expect_error(404, "NotFound", &message)?;
    api.caller
        .patch(&missing, MERGE_PATCH, &patch)
        .await?
        .expect_error(404, "NotFound", &message)?;
    api.caller
        .put(&missing, &api.maintenance("nobody"))
        .await?
        .expect_error(404, "NotFound", &message)?;
    Ok(())
}

/// One of two concurrent updates of the same resourceVersion succeeds.
pub async fn of_two_concurrent_updates_one_conflicts(api: &Endpoint) -> Result<()> {
    let created = api.create("a").await?;
    let with = |reason: &str| {
        let mut object = created.clone();
        object["spec"]["reason"] = json!(reason);
        object
    };
    let (first, second, path) = (with("first"), with("second"), api.path("a"));
    let (first, second) = tokio::try_join!(api.caller.put(&path, &first), api.caller.put(&path, &second))?;
    let mut codes = [first.status, second.status];
    codes.sort_unstable();
    assert_eq!(codes, [200, 409]);
    Ok(())
}

/// Managed fields record who set each field.
pub async fn field_managers_are_recorded(api: &Endpoint) -> Result<()> {
    let caller = api
        .caller
        .clone()
        .with_header("user-agent", "some-tool/1.2 (linux)")?;
    let created = caller
        .post(&api.maintenances(), &api.maintenance("a"))
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

    let path = format!("{}?fieldManager=somebody", api.path("a"));
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
        let path = format!("{}?fieldManager={manager}", api.path("a"));
        let status = caller.patch(&path, MERGE_PATCH, &patch).await?.expect(422)?;
        assert_eq!(causes(&status), [format!("fieldManager: {reason}")]);
    }
    let path = format!("{}?force=true", api.path("a"));
    let status = caller.patch(&path, MERGE_PATCH, &patch).await?.expect(422)?;
    assert_eq!(causes(&status), ["force: FieldValueForbidden"]);
    Ok(())
}
