//! System metadata: the members of `metadata` that the server sets, and what an update may not change.

use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::resource::Resource;
use crate::error::ApiError;

/// The members of an object. A value that is not an object becomes an empty one.
fn members(object: &mut Value) -> &mut Map<String, Value> {
    if !object.is_object() {
        *object = Value::Object(Map::new());
    }
    #[expect(clippy::expect_used, reason = "made an object just above")]
    object.as_object_mut().expect("an object")
}

/// The object's metadata. It is created if it is missing.
pub fn metadata_mut(object: &mut Value) -> &mut Map<String, Value> {
    let metadata = members(object)
        .entry("metadata")
        .or_insert_with(|| Value::Object(Map::new()));
    members(metadata)
}

/// A member of the metadata as a list of strings; empty when absent.
pub fn strings(object: &Value, member: &str) -> Vec<String> {
    object
        .get("metadata")
        .and_then(|metadata| metadata.get(member))
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|text| text.as_str().map(str::to_owned))
        .collect()
}

/// The format of timestamps in metadata: RFC 3339 with whole seconds.
#[must_use]
pub fn time_text(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Whether the object is being deleted.
#[must_use]
pub fn is_terminating(object: &Value) -> bool {
    object
        .get("metadata")
        .is_some_and(|metadata| metadata.get("deletionTimestamp").is_some())
}

/// The generation; 0 when absent.
#[must_use]
pub fn generation(object: &Value) -> i64 {
    object
        .pointer("/metadata/generation")
        .and_then(Value::as_i64)
        .unwrap_or(0)
}

/// Sets the namespace of the URL.
///
/// # Errors
/// 400 if the body names another namespace.
pub fn set_namespace(resource: &Resource, object: &mut Value, namespace: &str) -> Result<(), ApiError> {
    let metadata = metadata_mut(object);
    let sent = metadata
        .get("namespace")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if !resource.is_namespaced() {
        metadata.remove("namespace");
        return Ok(());
    }
    if !sent.is_empty() && sent != namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    metadata.insert("namespace".to_owned(), json!(namespace));
    Ok(())
}

/// Drops the system metadata that a client sent for a new object, before the policy of the cluster sees it.
pub fn forget_on_create(object: &mut Value) {
    let metadata = metadata_mut(object);
    for member in [
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "uid",
    ] {
        metadata.remove(member);
    }
}

/// Sets the system metadata of a new object, and drops what the client sent for it.
pub fn set_on_create(object: &mut Value, uid: &str, now: Timestamp) {
    let metadata = metadata_mut(object);
    for member in [
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "selfLink",
        "resourceVersion",
    ] {
        metadata.remove(member);
    }
    metadata.insert("uid".to_owned(), json!(uid));
    metadata.insert("creationTimestamp".to_owned(), json!(time_text(now)));
    metadata.insert("generation".to_owned(), json!(1));
}

/// Restores the system metadata that an update cannot change, and removes what is not stored.
pub fn restore_immutable(new: &mut Value, old: &Value) {
    let empty = Map::new();
    let stored = old.get("metadata").and_then(Value::as_object).unwrap_or(&empty);
    let metadata = metadata_mut(new);
    for member in ["selfLink", "resourceVersion"] {
        metadata.remove(member);
    }
    for member in ["creationTimestamp", "generation"] {
        copy_member(metadata, stored, member);
    }
    if metadata
        .get("uid")
        .and_then(Value::as_str)
        .unwrap_or_default()
        .is_empty()
    {
        copy_member(metadata, stored, "uid");
    }
    if stored.contains_key("deletionTimestamp") {
        copy_member(metadata, stored, "deletionTimestamp");
    }
    if !metadata.contains_key("deletionGracePeriodSeconds") {
        copy_member(metadata, stored, "deletionGracePeriodSeconds");
    }
    for member in ["name", "namespace"] {
        if metadata
            .get(member)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .is_empty()
        {
            copy_member(metadata, stored, member);
        }
    }
}

fn copy_member(to: &mut Map<String, Value>, from: &Map<String, Value>, member: &str) {
    match from.get(member) {
        Some(value) => to.insert(member.to_owned(), value.clone()),
        None => to.remove(member),
    };
}

/// For a write through `status`: restores everything except status from the stored object, managed fields included: they
/// cannot be edited through a subresource.
pub fn keep_all_but_status(new: &mut Value, old: &Value) {
    let status = new.get_mut("status").map(Value::take);
    *new = old.clone();
    let members = members(new);
    match status {
        Some(status) => members.insert("status".to_owned(), status),
        None => members.remove("status"),
    };
}

/// For a write through the main resource of a kind with a status subresource: restores status from the stored object.
pub fn keep_status(new: &mut Value, old: Option<&Value>) {
    let members = members(new);
    match old.and_then(|old| old.get("status")) {
        Some(status) => members.insert("status".to_owned(), status.clone()),
        None => members.remove("status"),
    };
}

/// The members except metadata and status, in order. A change of one of them is a new generation.
fn desired_state(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
    let members = object.as_object().into_iter().flatten();
    members.filter(|(member, _)| !matches!(member.as_str(), "metadata" | "status"))
}

/// Increments the generation if anything except metadata and status has changed.
pub fn advance_generation(new: &mut Value, old: &Value) {
    if !desired_state(new).eq(desired_state(old)) {
        let next = generation(old).saturating_add(1);
        metadata_mut(new).insert("generation".to_owned(), json!(next));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_cannot_set_system_metadata() {
        let mut object = json!({"metadata": {"name": "a", "uid": "mine", "generation": 9, "selfLink": "/x",
            "creationTimestamp": "2001-01-01T00:00:00Z", "deletionTimestamp": "2001-01-01T00:00:00Z"}});
        set_on_create(&mut object, "u", "2026-01-02T03:04:05.9Z".parse().unwrap());
        assert_eq!(
            object,
            json!({"metadata": {"name": "a", "uid": "u", "generation": 1, "creationTimestamp": "2026-01-02T03:04:05Z"}})
        );
    }

    #[test]
    fn an_update_cannot_change_system_metadata() {
        let old = json!({"metadata": {"name": "a", "uid": "u", "generation": 3, "creationTimestamp": "t"}, "spec": {"x": 1}});
        let mut new = json!({"metadata": {"name": "a", "generation": 7, "creationTimestamp": "other"}, "spec": {"x": 1}});
        restore_immutable(&mut new, &old);
        advance_generation(&mut new, &old);
        assert_eq!(new, old);
        new["spec"]["x"] = json!(2);
        advance_generation(&mut new, &old);
        assert_eq!(generation(&new), 4);
    }

    #[test]
    fn a_write_changes_either_status_or_the_rest() {
        let old =
            json!({"metadata": {"name": "a", "labels": {"l": "1"}}, "spec": {"x": 1}, "status": {"s": 1}});
        let body =
            json!({"metadata": {"name": "a", "labels": {"l": "2"}}, "spec": {"x": 2}, "status": {"s": 2}});
        let mut through_status = body.clone();
        keep_all_but_status(&mut through_status, &old);
        assert_eq!(
            through_status,
            json!({"metadata": old["metadata"], "spec": {"x": 1}, "status": {"s": 2}})
        );
        let mut through_main = body;
        keep_status(&mut through_main, Some(&old));
        assert_eq!(through_main["status"], json!({"s": 1}));
    }
}
