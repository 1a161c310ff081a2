//! Rules of server-side apply.

use anyhow::{Result, ensure};
use futures_util::future::try_join_all;
use http::Method;
use serde_json::{Value, json};

use super::{Endpoint, MODIFIED, PLURAL};
use crate::calls::{APPLY_PATCH, MERGE_PATCH, Response};

/// A configuration of a maintenance, with `members` beside its name.
fn config(api: &Endpoint, name: &str, members: &Value) -> Value {
    let mut config = json!({
        "apiVersion": "coordination.k8s.io/v1alpha3",
        "kind": "NodeMaintenance",
        "metadata": { "name": api.name(name), "labels": { "endpoint": api.namespace } },
    });
    merge(&mut config, members);
    config
}

fn merge(into: &mut Value, members: &Value) {
    match (into.as_object_mut(), members.as_object()) {
        (Some(own), Some(members)) => {
            for (name, value) in members {
                merge(own.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        _ => *into = members.clone(),
    }
}

/// The spec that every maintenance needs.
fn spec() -> Value {
    let requirement = json!({ "key": "no", "operator": "In", "values": ["node"] });
    json!({ "spec": { "nodeSelector": { "nodeSelectorTerms": [{ "matchExpressions": [requirement] }] } } })
}

async fn apply(api: &Endpoint, path: &str, query: &str, config: &Value) -> Result<Response> {
    let path = format!("{path}?{query}");
    api.caller.patch(&path, APPLY_PATCH, config).await
}

/// Manager, operation and subresource of each managed fields entry.
fn owners(object: &Value) -> Vec<(String, String, String)> {
    let text = |entry: &Value, member: &str| entry[member].as_str().unwrap_or_default().to_owned();
    let entries = object["metadata"]["managedFields"].as_array();
    let mut owners: Vec<_> = entries
        .into_iter()
        .flatten()
        .map(|entry| {
            (
                text(entry, "manager"),
                text(entry, "operation"),
                text(entry, "subresource"),
            )
        })
        .collect();
    owners.sort();
    owners
}

fn owner(manager: &str, operation: &str, subresource: &str) -> (String, String, String) {
    (manager.to_owned(), operation.to_owned(), subresource.to_owned())
}

/// The first apply creates, the next one updates, and one without a change writes nothing, also where admission
/// completes the object.
pub async fn apply_creates_updates_and_writes_nothing(api: &Endpoint) -> Result<()> {
    let path = api.path("a");
    let first = config(api, "a", &spec());
    let created = apply(api, &path, "fieldManager=one", &first).await?.expect(201)?;
    assert_eq!(owners(&created), [owner("one", "Apply", "")]);
    let plan = created["spec"]["drainPlan"].as_array().map(Vec::len);
    assert_eq!(plan, Some(12), "the plan is completed");
    let again = apply(api, &path, "fieldManager=one", &first).await?.expect(200)?;
    assert_eq!(again, created);
    let mut second = first;
    second["spec"]["reason"] = json!("disk");
    let updated = apply(api, &path, "fieldManager=one", &second)
        .await?
        .expect(200)?;
    assert_eq!(updated["spec"]["reason"], "disk");
    ensure!(updated["metadata"]["resourceVersion"] != created["metadata"]["resourceVersion"]);
    assert_eq!(updated["metadata"]["generation"], 2);
    // YAML is the same as JSON.
    let yaml = format!(
        "apiVersion: coordination.k8s.io/v1alpha3\nkind: NodeMaintenance\nmetadata: {{name: {}, labels: {{endpoint: {}}}}}\n\
         spec: {{reason: disk, nodeSelector: {{nodeSelectorTerms: [{{matchExpressions: [{{key: \"no\", operator: In, \
         values: [node]}}]}}]}}}}\n",
        api.name("a"),
        api.namespace
    );
    let by_yaml = api
        .caller
        .call(
            Method::PATCH,
            &format!("{path}?fieldManager=one"),
            APPLY_PATCH,
            yaml,
        )
        .await?
        .expect(200)?;
    assert_eq!(by_yaml, updated);
    Ok(())
}

/// Another value for a field of another manager is a conflict; the same value is shared; force takes the field; fields
/// that the manager does not list any more are removed, unless another manager owns them.
pub async fn apply_conflicts_are_reported_and_forced(api: &Endpoint) -> Result<()> {
    let path = api.path("a");
    let of_one = |reason: &str| {
        let mut object = config(api, "a", &spec());
        object["spec"]["reason"] = json!(reason);
        object
    };
    apply(api, &path, "fieldManager=one", &of_one("disk"))
        .await?
        .expect(201)?;
    let of_two = |reason: &str| config(api, "a", &json!({ "spec": { "reason": reason } }));
    let status = apply(api, &path, "fieldManager=two", &of_two("fan"))
        .await?
        .expect_error(
            409,
            "Conflict",
            r#"Apply failed with 1 conflict: conflict with "one": .spec.reason"#,
        )?;
    assert_eq!(
        status["details"],
        json!({ "causes": [{
            "reason": "FieldManagerConflict",
            "message": r#"conflict with "one""#,
            "field": ".spec.reason",
        }] })
    );
    let shared = apply(api, &path, "fieldManager=two", &of_two("disk"))
        .await?
        .expect(200)?;
    assert_eq!(
        owners(&shared),
        [owner("one", "Apply", ""), owner("two", "Apply", "")]
    );
    let forced = apply(api, &path, "fieldManager=two&force=true", &of_two("fan"))
        .await?
        .expect(200)?;
    assert_eq!(forced["spec"]["reason"], "fan");
    apply(api, &path, "fieldManager=one", &of_one("disk"))
        .await?
        .expect(409)?;
    let given_up = apply(api, &path, "fieldManager=one", &config(api, "a", &spec()))
        .await?
        .expect(200)?;
    assert_eq!(given_up["spec"]["reason"], "fan", "another manager owns it");
    let removed = apply(api, &path, "fieldManager=two", &config(api, "a", &json!({})))
        .await?
        .expect(200)?;
    assert_eq!(removed["spec"].get("reason"), None);
    ensure!(removed["spec"]["nodeSelector"].is_object());
    Ok(())
}

/// Several managers own items of one list by their keys, through the status as well; a status is not created.
pub async fn apply_merges_lists_by_their_keys(api: &Endpoint) -> Result<()> {
    let path = format!("{}/status", api.path("a"));
    let condition = |type_: &str| {
        json!({ "type": format!("example.com/{type_}"), "status": "True", "reason": "R", "message": "",
            "lastTransitionTime": "2026-06-01T12:00:00Z" })
    };
    let of = |types: &[&str]| {
        let conditions: Vec<Value> = types.iter().map(|type_| condition(type_)).collect();
        config(api, "a", &json!({ "status": { "conditions": conditions } }))
    };
    apply(api, &path, "fieldManager=one", &of(&["A"]))
        .await?
        .expect(404)?;
    api.create("a").await?;
    apply(api, &path, "fieldManager=one", &of(&["A", "B"]))
        .await?
        .expect(200)?;
    let both = apply(api, &path, "fieldManager=two", &of(&["C"]))
        .await?
        .expect(200)?;
    let types = |object: &Value| -> Vec<String> {
        let conditions = object["status"]["conditions"].as_array();
        conditions
            .into_iter()
            .flatten()
            .map(|condition| {
                condition["type"]
                    .as_str()
                    .unwrap_or_default()
                    .replace("example.com/", "")
            })
            .collect()
    };
    assert_eq!(types(&both), ["A", "B", "C"]);
    let found = owners(&both);
    ensure!(
        found.contains(&owner("one", "Apply", "status")) && found.contains(&owner("two", "Apply", "status"))
    );
    let fewer = apply(api, &path, "fieldManager=one", &of(&["B"]))
        .await?
        .expect(200)?;
    assert_eq!(types(&fewer), ["B", "C"]);

    // What else a configuration has is neither written nor owned.
    let more = json!({ "metadata": { "labels": { "more": "1" } }, "spec": { "reason": "disk" } });
    let ignored = apply(api, &path, "fieldManager=one", &with(&of(&["B"]), &more))
        .await?
        .expect(200)?;
    assert_eq!(ignored, fewer);
    Ok(())
}

/// Managers that apply items of one list at once all succeed, each without the version that it has seen.
pub async fn applies_of_different_items_at_once_all_succeed(api: &Endpoint) -> Result<()> {
    const MANAGERS: usize = 12;
    const ROUNDS: usize = 5;
    api.create("a").await?;
    let path = format!("{}/status", api.path("a"));
    let write = async |manager: usize| {
        for round in 0..ROUNDS {
            let condition = json!({ "type": format!("example.com/{manager}"), "status": "True",
                "reason": format!("R{round}"), "message": "", "lastTransitionTime": "2026-06-01T12:00:00Z" });
            let config = config(api, "a", &json!({ "status": { "conditions": [condition] } }));
            let query = format!("fieldManager=manager-{manager}");
            apply(api, &path, &query, &config).await?.expect(200)?;
        }
        Ok::<_, anyhow::Error>(())
    };
    try_join_all((0..MANAGERS).map(write)).await?;
    let object = api.read("a").await?;
    let conditions = object["status"]["conditions"].as_array();
    let mut found: Vec<String> = conditions
        .into_iter()
        .flatten()
        .map(|condition| format!("{} {}", condition["type"], condition["reason"]))
        .collect();
    found.sort();
    let mut expected: Vec<String> = (0..MANAGERS)
        .map(|manager| format!("\"example.com/{manager}\" \"R{}\"", ROUNDS - 1))
        .collect();
    expected.sort();
    assert_eq!(found, expected);
    let appliers = owners(&object)
        .into_iter()
        .filter(|(_, operation, _)| operation == "Apply");
    assert_eq!(appliers.count(), MANAGERS);
    Ok(())
}

/// A client may write the list of managers through the object, and not through its status. A list that cannot be read is
/// ignored; one with an empty entry ends the tracking until the next apply.
pub async fn clients_may_write_the_list_of_managers(api: &Endpoint) -> Result<()> {
    let path = api.path("a");
    let created = apply(api, &path, "fieldManager=one", &config(api, "a", &spec()))
        .await?
        .expect(201)?;
    let of = |managers: &Value| json!({ "metadata": { "managedFields": managers } });
    let send = async |path: &str, managers: Value| {
        let path = format!("{path}?fieldManager=editor");
        api.caller
            .patch(&path, MERGE_PATCH, &of(&managers))
            .await?
            .expect(200)
    };
    let mut renamed = created["metadata"]["managedFields"].clone();
    renamed[0]["manager"] = json!("two");
    let through_status = send(&format!("{path}/status"), renamed.clone()).await?;
    assert_eq!(owners(&through_status), [owner("one", "Apply", "")]);
    let mut unreadable = renamed.clone();
    unreadable[0]["operation"] = json!("Other");
    assert_eq!(
        owners(&send(&path, unreadable).await?),
        [owner("one", "Apply", "")]
    );
    assert_eq!(owners(&send(&path, renamed).await?), [owner("two", "Apply", "")]);
    assert_eq!(owners(&send(&path, json!([{}])).await?), []);
    let untracked = json!({ "spec": { "reason": "disk" } });
    let patched = api
        .caller
        .patch(&path, MERGE_PATCH, &untracked)
        .await?
        .expect(200)?;
    assert_eq!(owners(&patched), []);
    let again = apply(api, &path, "fieldManager=one", &config(api, "a", &spec())).await?;
    let found = owners(&again.expect(200)?);
    assert_eq!(
        found,
        [
            owner("before-first-apply", "Update", ""),
            owner("one", "Apply", "")
        ]
    );
    Ok(())
}

/// The options and the type of an apply are checked.
pub async fn invalid_applies_are_rejected(api: &Endpoint) -> Result<()> {
    let path = api.path("a");
    let valid = config(api, "a", &spec());
    let status = apply(api, &path, "", &valid).await?.expect(422)?;
    assert_eq!(
        status["message"],
        "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch"
    );
    let forced = format!("{path}?force=true");
    let response = api.caller.patch(&forced, MERGE_PATCH, &json!({})).await?;
    assert_eq!(
        response.expect(422)?["message"],
        "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch"
    );
    for (members, message) in [
        (
            json!({ "metadata": { "managedFields": [] } }),
            "metadata.managedFields must be nil",
        ),
        (
            json!({ "kind": "Other" }),
            "invalid object type: coordination.k8s.io/v1alpha3, Kind=Other",
        ),
        (
            json!({ "apiVersion": "", "kind": "" }),
            "invalid object type: /, Kind=",
        ),
    ] {
        apply(api, &path, "fieldManager=one", &with(&valid, &members))
            .await?
            .expect_error(400, "BadRequest", message)?;
    }
    let strange = with(&valid, &json!({ "spec": { "strange": 1 } }));
    let status = apply(api, &path, "fieldManager=one", &strange)
        .await?
        .expect(500)?;
    let message = status["message"].as_str().unwrap_or_default();
    ensure!(
        message.starts_with("failed to create typed patch object"),
        "{message}"
    );
    ensure!(
        message.contains(".spec.strange: field not declared in schema"),
        "{message}"
    );
    Ok(())
}

fn with(valid: &Value, members: &Value) -> Value {
    let mut object = valid.clone();
    merge(&mut object, members);
    object
}

/// Name, uid and resourceVersion of a configuration must be those of the object.
pub async fn applies_name_their_object(api: &Endpoint) -> Result<()> {
    let valid = config(api, "a", &spec());
    let send = |metadata: Value| {
        let object = with(&valid, &json!({ "metadata": metadata }));
        async move { apply(api, &api.path("a"), "fieldManager=one", &object).await }
    };
    let status = send(json!({ "name": "other" })).await?.expect(400)?;
    assert_eq!(
        status["message"],
        format!(
            "the name of the object (other) does not match the name on the URL ({})",
            api.name("a")
        )
    );
    let status = send(json!({ "uid": "u" })).await?.expect(409)?;
    let message = status["message"].as_str().unwrap_or_default();
    ensure!(
        message
            .ends_with("uid mismatch: the provided object specified uid u, and no existing object was found"),
        "{message}"
    );
    let created = send(json!({})).await?.expect(201)?;
    let status = send(json!({ "resourceVersion": "1" })).await?.expect(409)?;
    assert_eq!(
        status["message"],
        format!(
            "Operation cannot be fulfilled on {PLURAL} \"{}\": {MODIFIED}",
            api.name("a")
        )
    );
    send(json!({ "uid": "u" })).await?.expect(422)?;
    let revision = created["metadata"]["resourceVersion"].clone();
    assert_eq!(
        send(json!({ "resourceVersion": revision })).await?.expect(200)?,
        created
    );
    Ok(())
}

/// Duplicate keys follow `fieldValidation`, and text that is not YAML is a 400.
pub async fn apply_bodies_are_decoded_strictly_on_request(api: &Endpoint) -> Result<()> {
    let text = format!(
        "{}\nkind: NodeMaintenance\n",
        lines_of(&config(api, "a", &spec()))
    );
    let send = |query: &'static str, body: String| async move {
        let path = format!("{}?fieldManager=one{query}", api.path("a"));
        api.caller.call(Method::PATCH, &path, APPLY_PATCH, body).await
    };
    let status = send("&fieldValidation=Strict", text.clone()).await?.expect(400)?;
    let message = status["message"].as_str().unwrap_or_default();
    ensure!(
        message.starts_with(
            "error strict decoding patch: error converting YAML to JSON: yaml: unmarshal errors:"
        ),
        "{message}"
    );
    send("", text).await?.expect(201)?;
    send("", "{".to_owned()).await?.expect(400)?;
    Ok(())
}

/// A YAML text of an object: each member on a line, its value as JSON.
fn lines_of(object: &Value) -> String {
    let members = object.as_object().into_iter().flatten();
    let lines: Vec<String> = members.map(|(name, value)| format!("{name}: {value}")).collect();
    lines.join("\n")
}

/// A dry run of an apply is answered as the apply, and stores nothing.
pub async fn apply_dry_runs_store_nothing(api: &Endpoint) -> Result<()> {
    let path = api.path("a");
    let valid = config(api, "a", &spec());
    let created = apply(api, &path, "fieldManager=one&dryRun=All", &valid)
        .await?
        .expect(201)?;
    assert_eq!(created["metadata"].get("resourceVersion"), None);
    assert_eq!(owners(&created), [owner("one", "Apply", "")]);
    api.caller.get(&path).await?.expect(404)?;
    let stored = apply(api, &path, "fieldManager=one", &valid).await?.expect(201)?;
    let mut other = valid;
    other["spec"]["reason"] = json!("disk");
    let shown = apply(api, &path, "fieldManager=one&dryRun=All", &other)
        .await?
        .expect(200)?;
    assert_eq!(shown["spec"]["reason"], "disk");
    assert_eq!(api.read("a").await?, stored);
    Ok(())
}

/// An update by another client takes fields from an applier, which then conflicts.
pub async fn updates_and_applies_share_ownership(api: &Endpoint) -> Result<()> {
    let path = api.path("a");
    let mut valid = config(api, "a", &spec());
    valid["spec"]["reason"] = json!("disk");
    apply(api, &path, "fieldManager=one", &valid).await?.expect(201)?;
    let taken = format!("{path}?fieldManager=editor");
    let patch = json!({ "spec": { "reason": "fan" } });
    let updated = api.caller.patch(&taken, MERGE_PATCH, &patch).await?.expect(200)?;
    assert_eq!(
        owners(&updated),
        [owner("editor", "Update", ""), owner("one", "Apply", "")]
    );
    apply(api, &path, "fieldManager=one", &valid).await?.expect_error(
        409,
        "Conflict",
        "Apply failed with 1 conflict: conflict with \"editor\" using coordination.k8s.io/v1alpha3: .spec.reason",
    )?;
    let forced = apply(api, &path, "fieldManager=one&force=true", &valid)
        .await?
        .expect(200)?;
    assert_eq!(owners(&forced), [owner("one", "Apply", "")]);
    Ok(())
}
