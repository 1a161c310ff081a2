//! The kind of the tests of this module, in two versions, and `managedFields` in short form.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::entry::{Entry, decode_entries};
use super::managed_fields::Versions;
use crate::schema::Structural;

/// The version with `spec.requesters`.
pub(super) const V1: &str = "example.com/v1";
/// The version that names the same list `spec.parties`.
pub(super) const V2: &str = "example.com/v2";

pub(super) static V1_SCHEMA: LazyLock<Structural> = LazyLock::new(|| kind("v1", "requesters"));
pub(super) static V2_SCHEMA: LazyLock<Structural> = LazyLock::new(|| kind("v2", "parties"));

/// The schema of `spec` in version [`V1`].
pub(super) static SPEC: LazyLock<Structural> = LazyLock::new(|| V1_SCHEMA.at(&["spec"]).unwrap().clone());

fn list_map(keys: &[&str], item: &Value) -> Value {
    json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys, "items": item})
}

fn object(properties: &Value) -> Value {
    json!({"type": "object", "properties": properties})
}

fn atomic(properties: &Value) -> Value {
    json!({"type": "object", "properties": properties, "x-kubernetes-map-type": "atomic"})
}

fn kind(version: &str, requesters: &str) -> Structural {
    let text = json!({"type": "string"});
    let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": text});
    let spec = object(&json!({
        "priority": {"type": "integer"},
        "enabled": {"type": "boolean"},
        requesters: list_map(&["name"], &atomic(&json!({"name": text, "intent": text}))),
        "granular": list_map(&["name"], &object(&json!({
            "name": text, "intent": text, "reason": text, "nested": object(&json!({"a": text})),
        }))),
        "ports": list_map(&["port", "protocol"], &object(&json!({
            "port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}, "note": text,
        }))),
        "active": set,
        "atomicList": {"type": "array", "items": text},
        "target": object(&json!({
            "pod": atomic(&json!({"name": text, "uid": text})), "node": atomic(&json!({"name": text})),
        })),
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
    }));
    let status = object(&json!({
        "conditions": list_map(&["type"], &object(&json!({
            "type": text, "status": text, "reason": text, "message": text,
            "lastTransitionTime": {"type": "string", "format": "date-time"}, "observedGeneration": {"type": "integer"},
        }))),
        "active": set,
    }));
    Structural::for_kind("Thing", version, "", &[("spec", &spec), ("status", &status)]).unwrap()
}

/// The other version, seen from requests in version [`V1`]. Objects with `spec.priority` 13 do not convert.
pub(super) struct FromV1;

/// The other version, seen from requests in version [`V2`].
pub(super) struct FromV2;

impl Versions for FromV1 {
    fn schema(&self, api_version: &str) -> Option<&Structural> {
        (api_version == V2).then_some(&*V2_SCHEMA)
    }

    fn convert(&self, object: &Value, _: &str) -> Option<Value> {
        to_v2(object)
    }

    fn revert(&self, object: &Value, _: &str) -> Option<Value> {
        to_v1(object)
    }
}

impl Versions for FromV2 {
    fn schema(&self, api_version: &str) -> Option<&Structural> {
        (api_version == V1).then_some(&*V1_SCHEMA)
    }

    fn convert(&self, object: &Value, _: &str) -> Option<Value> {
        to_v1(object)
    }

    fn revert(&self, object: &Value, _: &str) -> Option<Value> {
        to_v2(object)
    }
}

fn to_v1(object: &Value) -> Option<Value> {
    converted(object, V1, "parties", "requesters")
}

pub(super) fn to_v2(object: &Value) -> Option<Value> {
    converted(object, V2, "requesters", "parties")
}

fn converted(object: &Value, version: &str, from: &str, to: &str) -> Option<Value> {
    let mut object = object.clone();
    if object.pointer("/spec/priority") == Some(&json!(13)) {
        return None;
    }
    object["apiVersion"] = version.into();
    if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
        && let Some(list) = spec.remove(from)
    {
        spec.insert(to.to_owned(), list);
    }
    Some(object)
}

/// An object of version [`V1`] with the given members, merged into its metadata where they are metadata.
pub(super) fn thing(members: &Value) -> Value {
    let mut object = json!({"apiVersion": V1, "kind": "Thing", "metadata": {"name": "n", "namespace": "d"}});
    for (key, value) in members.as_object().unwrap() {
        if key == "metadata" {
            object["metadata"]
                .as_object_mut()
                .unwrap()
                .extend(value.as_object().unwrap().clone());
        } else {
            object[key] = value.clone();
        }
    }
    object
}

/// An entry of `managedFields` in version [`V1`].
#[expect(
    clippy::needless_pass_by_value,
    reason = "tables of literals are more readable"
)]
pub(super) fn entry(manager: &str, operation: &str, second: u32, fields: Value) -> Value {
    json!({"manager": manager, "operation": operation, "apiVersion": V1, "fieldsType": "FieldsV1",
        "time": time(second), "fieldsV1": fields})
}

/// A time of the tests, which take less than a minute.
pub(super) fn time(second: u32) -> String {
    format!("2026-01-01T00:00:{second:02}Z")
}

/// The entries of an object in short form: `manager/subresource Operation@version second paths`, with `-` for no time and
/// without the version [`V1`].
pub(super) fn entries(object: &Value) -> Vec<String> {
    let list = object
        .pointer("/metadata/managedFields")
        .cloned()
        .unwrap_or_default();
    decode_entries(&list).unwrap().iter().map(short).collect()
}

pub(super) fn short(entry: &Entry) -> String {
    let subresource = match entry.subresource.as_str() {
        "" => String::new(),
        name => format!("/{name}"),
    };
    let version = entry.api_version.strip_prefix("example.com/").unwrap();
    let version = if version == "v1" {
        String::new()
    } else {
        format!("@{version}")
    };
    let time = entry.time.as_deref().map_or("-", |time| &time[17..19]);
    let mut paths: Vec<_> = entry.fields.paths().iter().map(ToString::to_string).collect();
    paths.sort();
    format!(
        "{}{subresource} {}{version} {time} {}",
        entry.manager,
        entry.operation.as_str(),
        paths.join(" ")
    )
}
