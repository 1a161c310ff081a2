//! The variables of expressions.

use std::sync::Arc;

use drydock_machinery::policy_expression::{Check, Input, ResourceSubject, Value as Cel};
use serde_json::{Map, Value, json};

use crate::admission::attributes::Attributes;
use crate::admission::matching::operation;
use crate::error::ApiError;
use crate::registry::endpoint::Endpoint;
use crate::request::UserInfo;

/// The variables for a write that matched in a version, without `params` and `namespaceObject`.
pub(super) fn of(attributes: &Attributes<'_>, endpoint: &Endpoint) -> Result<Input, ApiError> {
    let mut input = Input::default();
    let object = |object: Option<&Value>| object.map_or(Cel::Null, Cel::from_json);
    input.set("object", object(attributes.object(endpoint)?));
    input.set("oldObject", object(attributes.old_object(endpoint)?));
    input.set("request", Cel::from_json(&request(attributes, endpoint)));
    input.set("params", Cel::Null);
    input.set("namespaceObject", Cel::Null);
    input.set("authorizer", Cel::Check(Arc::new(Check::default())));
    let write = attributes.write();
    let own = Check::of_resource(ResourceSubject {
        group: write.endpoint.resource().group.to_owned(),
        resource: write.endpoint.face().names.plural.to_owned(),
        subresource: attributes.subresource().to_owned(),
        namespace: write.namespace.to_owned(),
        name: attributes.name().into_owned(),
        ..ResourceSubject::default()
    });
    input.set("authorizer.requestResource", Cel::Check(Arc::new(own)));
    Ok(input)
}

/// The variable `request`: the `AdmissionRequest` without its objects. Empty texts are absent.
fn request(attributes: &Attributes<'_>, endpoint: &Endpoint) -> Value {
    let write = attributes.write();
    let kind = |endpoint: &Endpoint| {
        json!({
            "group": endpoint.resource().group,
            "version": endpoint.face().version,
            "kind": endpoint.kind(),
        })
    };
    let resource = |endpoint: &Endpoint| {
        json!({
            "group": endpoint.resource().group,
            "version": endpoint.face().version,
            "resource": endpoint.face().names.plural,
        })
    };
    let name = attributes.name();
    let optional = [
        ("subResource", attributes.subresource()),
        ("requestSubResource", attributes.subresource()),
        ("name", name.as_ref()),
        ("namespace", write.namespace),
    ];
    let present = optional.into_iter().filter(|(_, text)| !text.is_empty());
    let mut request: Map<String, Value> = present
        .map(|(member, text)| (member.to_owned(), json!(text)))
        .collect();
    for (member, value) in [
        ("kind", kind(endpoint)),
        ("resource", resource(endpoint)),
        ("requestKind", kind(write.endpoint)),
        ("requestResource", resource(write.endpoint)),
        ("operation", json!(operation(attributes.operation()))),
        ("userInfo", user(write.caller.user)),
        ("dryRun", json!(write.dry_run)),
        ("options", json!(attributes.options())),
    ] {
        request.insert(member.to_owned(), value);
    }
    Value::Object(request)
}

fn user(user: &UserInfo) -> Value {
    let mut shown = Map::new();
    if !user.name.is_empty() {
        shown.insert("username".to_owned(), json!(user.name));
    }
    if !user.uid.is_empty() {
        shown.insert("uid".to_owned(), json!(user.uid));
    }
    if !user.groups.is_empty() {
        shown.insert("groups".to_owned(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        shown.insert("extra".to_owned(), json!(user.extra));
    }
    Value::Object(shown)
}

/// The variable `namespaceObject`: the fields of a namespace that policies may see.
pub(super) fn namespace(object: &Value) -> Cel {
    const METADATA: [&str; 12] = [
        "annotations",
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "labels",
        "name",
        "namespace",
        "resourceVersion",
        "uid",
    ];
    let mut shown = Map::new();
    let metadata = object.get("metadata").and_then(Value::as_object);
    let kept = metadata
        .into_iter()
        .flatten()
        .filter(|(name, _)| METADATA.contains(&name.as_str()));
    let kept: Map<String, Value> = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
    shown.insert("metadata".to_owned(), Value::Object(kept));
    for member in ["spec", "status"] {
        let value = object.get(member).cloned().unwrap_or_else(|| json!({}));
        shown.insert(member.to_owned(), value);
    }
    Cel::from_json(&Value::Object(shown))
}
