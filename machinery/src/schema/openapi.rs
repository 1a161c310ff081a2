//! Published schemas: OpenAPI v3 and Swagger 2.0, with Kubernetes' extensions.
//!
//! Types shared by all APIs (metadata, options, status) are published too ([`definitions`]), and kinds refer to them. In
//! v3, where each group-version has a document of its own, they have their upstream names. In v2 kube-apiserver merges the
//! documents of all servers and renames definitions that differ, so there they have a prefix of ours. The caller adds `x-kubernetes-group-version-kind` to the schemas of kinds.

use std::borrow::Cow;

use serde_json::{Map, Value, json};

use super::structural::{ObjectShape, Shape, Structural};

/// The prefix of the upstream names of the shared types.
pub const META_V1: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// The start of the upstream names, and what is in its place in v2.
const UPSTREAM: &str = "io.k8s.";
const OWN: &str = "io.drydock.";

/// The document format of a published schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAPI v3: `components.schemas`.
    V3,
    /// Swagger 2.0: `definitions`, without alternatives.
    V2,
}

impl Dialect {
    /// A reference to a published schema.
    #[must_use]
    pub fn reference(self, definition: &str) -> Value {
        let name = self.published(definition);
        match self {
            Self::V3 => json!({ "$ref": format!("#/components/schemas/{name}") }),
            Self::V2 => json!({ "$ref": format!("#/definitions/{name}") }),
        }
    }

    /// The name under which a definition is published.
    fn published(self, definition: &str) -> Cow<'_, str> {
        match definition.strip_prefix(UPSTREAM) {
            Some(rest) if self == Self::V2 => Cow::Owned(format!("{OWN}{rest}")),
            _ => Cow::Borrowed(definition),
        }
    }
}

/// The published form of a schema. Parts that have a definition of their own become references; the schema itself does
/// not.
#[must_use]
pub fn schema(schema: &Structural, dialect: Dialect) -> Value {
    let mut written = schema.annotations.clone();
    if let Some(default) = &schema.default {
        written.insert("default".to_owned(), default.clone());
    }
    let kind = match &schema.shape {
        Shape::Any => None,
        Shape::Boolean => Some("boolean"),
        Shape::Integer(_) => Some("integer"),
        Shape::Number => Some("number"),
        Shape::String | Shape::Time => Some("string"),
        Shape::IntOrString => {
            written.insert("format".to_owned(), "int-or-string".into());
            if dialect == Dialect::V3 {
                written.insert(
                    "oneOf".to_owned(),
                    json!([{ "type": "integer" }, { "type": "string" }]),
                );
                None
            } else {
                Some("string")
            }
        }
        Shape::List(list) => {
            written.insert("items".to_owned(), part(&list.items, dialect));
            Some("array")
        }
        Shape::Object(object) => {
            write_object(object, &mut written, dialect);
            Some("object")
        }
    };
    if let Some(kind) = kind {
        written.insert("type".to_owned(), kind.into());
    }
    Value::Object(written)
}

fn write_object(object: &ObjectShape, written: &mut Map<String, Value>, dialect: Dialect) {
    if !object.fields.is_empty() {
        let properties = object
            .fields
            .iter()
            .map(|field| (field.name.clone(), part(&field.schema, dialect)));
        written.insert("properties".to_owned(), Value::Object(properties.collect()));
        let required: Vec<Value> = object
            .fields
            .iter()
            .filter(|field| field.is_required)
            .map(|field| field.name.clone().into())
            .collect();
        if !required.is_empty() {
            written.insert("required".to_owned(), Value::Array(required));
        }
    }
    // For an object without declared content, `type: object` is enough.
    if let Some(values) = object
        .additional
        .as_ref()
        .filter(|values| **values != Structural::any())
    {
        written.insert("additionalProperties".to_owned(), part(values, dialect));
    }
}

/// The published form of a schema inside another one.
fn part(structural: &Structural, dialect: Dialect) -> Value {
    let Some(definition) = &structural.definition else {
        return schema(structural, dialect);
    };
    let reference = dialect.reference(definition);
    let mut written = match dialect {
        // In v3, siblings of `$ref` are ignored, so `allOf` keeps the description of the field.
        Dialect::V3 => Map::from_iter([("allOf".to_owned(), Value::Array(vec![reference]))]),
        Dialect::V2 => reference.as_object().cloned().unwrap_or_default(),
    };
    if let Some(description) = structural.annotations.get("description") {
        written.insert("description".to_owned(), description.clone());
    }
    if let Some(default) = &structural.default {
        written.insert("default".to_owned(), default.clone());
    }
    Value::Object(written)
}

/// The schema of the list of a kind; `item` is the definition of its items.
#[must_use]
pub fn list_schema(kind: &str, item: &str, dialect: Dialect) -> Value {
    let metadata = part(&list_meta(), dialect);
    let items = match dialect {
        Dialect::V3 => json!({ "allOf": [dialect.reference(item)], "default": {} }),
        Dialect::V2 => dialect.reference(item),
    };
    json!({
        "type": "object",
        "description": format!("{kind}List is a list of {kind} objects."),
        "required": ["items"],
        "properties": {
            "apiVersion": { "type": "string", "description": "The group and version of the list." },
            "kind": { "type": "string", "description": "The kind of the list, in CamelCase." },
            "metadata": metadata,
            "items": { "type": "array", "items": items, "description": format!("The {kind} objects.") },
        },
    })
}

/// The types shared by all APIs, by upstream name: `ObjectMeta`, `ManagedFieldsEntry`, `OwnerReference`, `FieldsV1`,
/// `Time`, `ListMeta`, `DeleteOptions`, `Preconditions`, `Status`, `StatusDetails`, `StatusCause`, `WatchEvent`, `Patch`
/// and `RawExtension`.
#[must_use]
pub fn definitions(dialect: Dialect) -> Map<String, Value> {
    let mut written = Map::new();
    for root in [
        super::object_meta(),
        list_meta(),
        delete_options(),
        status(),
        watch_event(),
        patch(),
    ] {
        collect(&root, dialect, &mut written);
    }
    // In the merged document of v2 the host's own definitions of these kinds are found by them.
    let kinds = ["DeleteOptions", "Status", "WatchEvent"];
    for kind in kinds.into_iter().filter(|_| dialect == Dialect::V3) {
        if let Some(Value::Object(definition)) = written.get_mut(&upstream_name(kind)) {
            definition.insert(
                "x-kubernetes-group-version-kind".to_owned(),
                json!([{ "group": "", "kind": kind, "version": "v1" }]),
            );
        }
    }
    written
}

/// Writes the definitions at and below `structural`.
fn collect(structural: &Structural, dialect: Dialect, written: &mut Map<String, Value>) {
    if let Some(definition) = structural
        .definition
        .as_ref()
        .filter(|name| !written.contains_key(&*dialect.published(name)))
    {
        let mut text = schema(structural, dialect);
        if let Value::Object(text) = &mut text {
            if let Some(general) = general_description(definition) {
                text.insert("description".to_owned(), general.into());
            }
            if structural.shape == Shape::Any {
                text.insert("type".to_owned(), "object".into());
            }
        }
        written.insert(dialect.published(definition).into_owned(), text);
    }
    match &structural.shape {
        Shape::List(list) => collect(&list.items, dialect, written),
        Shape::Object(object) => {
            for field in &object.fields {
                collect(&field.schema, dialect, written);
            }
            if let Some(values) = &object.additional {
                collect(values, dialect, written);
            }
        }
        _ => {}
    }
}

/// The description of types that are used by several fields with descriptions of their own.
fn general_description(definition: &str) -> Option<&'static str> {
    match definition.strip_prefix(META_V1) {
        Some(".Time") => Some("A time in RFC 3339 format, in whole seconds and UTC."),
        Some(".FieldsV1") => Some(
            "A set of fields as a tree. Each key is f:<name> for a field, k:<keys> for an item of a list map, v:<value> \
             for an item of a set, or i:<index>; the key \".\" denotes the node itself.",
        ),
        Some(".ListMeta") => Some("Metadata that all lists have."),
        Some(".Preconditions") => Some("Conditions that must be met before an operation is carried out."),
        Some(".StatusDetails") => Some("Machine readable details of a failure."),
        _ => None,
    }
}

/// The name under which a type of meta/v1 is published.
fn upstream_name(kind: &str) -> String {
    format!("{META_V1}.{kind}")
}

#[expect(
    clippy::expect_used,
    reason = "the schemas are constant, and tests build them"
)]
fn structural(schema: &Value) -> Structural {
    Structural::from_json_schema(schema).expect("shared types are structural")
}

fn list_meta() -> Structural {
    structural(&json!({
        "type": "object",
        "x-drydock-definition": upstream_name("ListMeta"),
        "description": "Metadata of the list.",
        "properties": {
            "continue": { "type": "string", "description": "A token to request the next part of the list." },
            "remainingItemCount": {
                "type": "integer", "format": "int64",
                "description": "The approximate number of items that follow. Absent if not known.",
            },
            "resourceVersion": {
                "type": "string",
                "description": "The version of the list, from which a watch can start.",
            },
            "selfLink": { "type": "string", "description": "No longer set." },
        },
    }))
}

fn delete_options() -> Structural {
    structural(&json!({
        "type": "object",
        "x-drydock-definition": upstream_name("DeleteOptions"),
        "description": "Options of a delete request.",
        "properties": {
            "apiVersion": { "type": "string", "description": "The group and version of the options." },
            "dryRun": {
                "type": "array", "items": { "type": "string" },
                "x-kubernetes-list-type": "atomic",
                "description": "All: the request is processed without being stored.",
            },
            "gracePeriodSeconds": {
                "type": "integer", "format": "int64",
                "description": "The grace period in seconds; zero deletes immediately.",
            },
            "ignoreStoreReadErrorWithClusterBreakingPotential": {
                "type": "boolean",
                "description": "Deletes an object that cannot be read from storage, ignoring its finalizers.",
            },
            "kind": { "type": "string", "description": "The kind of the options." },
            "orphanDependents": {
                "type": "boolean",
                "description": "Deprecated; use propagationPolicy.",
            },
            "preconditions": {
                "type": "object",
                "x-drydock-definition": upstream_name("Preconditions"),
                "description": "Conditions that must be met; otherwise the deletion fails with 409.",
                "properties": {
                    "resourceVersion": { "type": "string", "description": "The required resource version of the object." },
                    "uid": { "type": "string", "description": "The required UID of the object." },
                },
            },
            "propagationPolicy": {
                "type": "string",
                "description": "How dependents are handled: Orphan, Background or Foreground.",
            },
        },
    }))
}

fn status() -> Structural {
    structural(&json!({
        "type": "object",
        "x-drydock-definition": upstream_name("Status"),
        "description": "The result of a request that does not return an object.",
        "properties": {
            "apiVersion": { "type": "string", "description": "The group and version of the status." },
            "code": { "type": "integer", "format": "int32", "description": "The HTTP code." },
            "details": {
                "type": "object",
                "x-drydock-definition": upstream_name("StatusDetails"),
                "description": "Details of the failure.",
                "properties": {
                    "causes": {
                        "type": "array",
                        "x-kubernetes-list-type": "atomic",
                        "description": "The individual errors.",
                        "items": {
                            "type": "object",
                            "x-drydock-definition": upstream_name("StatusCause"),
                            "description": "One error.",
                            "properties": {
                                "field": { "type": "string", "description": "The path of the field, for example items[0].name." },
                                "message": { "type": "string", "description": "A human readable description." },
                                "reason": { "type": "string", "description": "A machine readable reason." },
                            },
                        },
                    },
                    "group": { "type": "string", "description": "The group of the resource." },
                    "kind": { "type": "string", "description": "The kind or the resource." },
                    "name": { "type": "string", "description": "The name of the object." },
                    "retryAfterSeconds": {
                        "type": "integer", "format": "int32",
                        "description": "The number of seconds after which to retry.",
                    },
                    "uid": { "type": "string", "description": "The UID of the object." },
                },
            },
            "kind": { "type": "string", "description": "The kind of the status." },
            "message": { "type": "string", "description": "A human readable description." },
            "metadata": {
                "type": "object",
                "x-drydock-definition": upstream_name("ListMeta"),
                "description": "Metadata of the response.",
            },
            "reason": { "type": "string", "description": "A machine readable reason." },
            "status": { "type": "string", "description": "Success or Failure." },
        },
    }))
}

fn watch_event() -> Structural {
    structural(&json!({
        "type": "object",
        "x-drydock-definition": upstream_name("WatchEvent"),
        "description": "A change reported by a watch.",
        "required": ["type", "object"],
        "properties": {
            "object": {
                "x-drydock-definition": "io.k8s.apimachinery.pkg.runtime.RawExtension",
                "description": "The object after the change, or before it if deleted; a Status for errors.",
            },
            "type": { "type": "string", "description": "ADDED, MODIFIED, DELETED, BOOKMARK or ERROR." },
        },
    }))
}

fn patch() -> Structural {
    structural(&json!({
        "type": "object",
        "x-drydock-definition": upstream_name("Patch"),
        "description": "A change to an object, in the format of the media type.",
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind() -> Structural {
        let spec = json!({
            "type": "object",
            "description": "What is wanted.",
            "required": ["name"],
            "properties": {
                "name": { "type": ["string", "null"], "description": "n", "minLength": 1 },
                "seconds": { "type": "integer", "format": "uint8", "minimum": 0, "default": 1200 },
                "items": {
                    "type": "array", "items": { "type": "object", "properties": { "name": { "type": "string" } } },
                    "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                },
                "port": { "x-kubernetes-int-or-string": true },
                "pairs": { "type": "object", "additionalProperties": { "type": "string" } },
                "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                "type": { "type": "string", "enum": ["Soft"], "default": "Soft" },
            },
        });
        Structural::for_kind("Thing", "v1", "A thing.", &[("spec", &spec)]).unwrap()
    }

    #[test]
    fn kinds_are_published_in_both_formats() {
        let spec = |name: Value, port: Value| {
            json!({
                "type": "object",
                "description": "What is wanted.",
                "required": ["name"],
                "properties": {
                    "name": name,
                    "seconds": { "type": "integer", "format": "int32", "minimum": 0, "default": 1200 },
                    "items": {
                        "type": "array", "items": { "type": "object", "properties": { "name": { "type": "string" } } },
                        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                    },
                    "port": port,
                    "pairs": { "type": "object", "additionalProperties": { "type": "string" } },
                    "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true },
                    "type": { "type": "string", "enum": ["Soft"], "default": "Soft" },
                },
            })
        };
        let v3 = schema(&kind(), Dialect::V3);
        assert_eq!(v3["description"], "A thing.");
        assert_eq!(v3["type"], "object");
        assert_eq!(
            v3["properties"]["spec"],
            spec(
                json!({ "type": "string", "description": "n", "minLength": 1 }),
                json!({ "x-kubernetes-int-or-string": true, "format": "int-or-string", "oneOf": [{ "type": "integer" }, { "type": "string" }] }),
            )
        );
        assert_eq!(
            v3["properties"]["metadata"]["allOf"],
            json!([{ "$ref": "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta" }])
        );
        let v2 = schema(&kind(), Dialect::V2);
        assert_eq!(
            v2["properties"]["spec"],
            spec(
                json!({ "type": "string", "description": "n", "minLength": 1 }),
                json!({ "x-kubernetes-int-or-string": true, "format": "int-or-string", "type": "string" }),
            )
        );
        assert_eq!(
            v2["properties"]["metadata"]["$ref"],
            "#/definitions/io.drydock.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        );
        assert!(v2["properties"]["apiVersion"]["description"].is_string());
    }

    #[test]
    fn shared_types_have_upstream_names_or_our_prefix_and_resolvable_references() {
        for dialect in [Dialect::V2, Dialect::V3] {
            let definitions = definitions(dialect);
            let prefix = dialect.published(META_V1);
            let names: Vec<_> = definitions
                .keys()
                .filter_map(|name| name.strip_prefix(&*prefix))
                .collect();
            assert_eq!(
                names,
                [
                    ".DeleteOptions",
                    ".FieldsV1",
                    ".ListMeta",
                    ".ManagedFieldsEntry",
                    ".ObjectMeta",
                    ".OwnerReference",
                    ".Patch",
                    ".Preconditions",
                    ".Status",
                    ".StatusCause",
                    ".StatusDetails",
                    ".Time",
                    ".WatchEvent",
                ]
            );
            let extension = dialect.published("io.k8s.apimachinery.pkg.runtime.RawExtension");
            assert!(definitions.contains_key(&*extension));
            let has_kinds = definitions
                .values()
                .any(|it| it.get("x-kubernetes-group-version-kind").is_some());
            assert_eq!(has_kinds, dialect == Dialect::V3);
            let text = Value::Object(definitions.clone()).to_string()
                + &list_schema("Thing", "x.Patch", dialect).to_string();
            for reference in text.split("\"$ref\":\"").skip(1) {
                let target = reference.split('"').next().unwrap().rsplit('/').next().unwrap();
                assert!(
                    definitions.contains_key(target) || target == "x.Patch",
                    "{target}"
                );
            }
            assert!(!text.contains("x-drydock"));
        }
        let v2 = definitions(Dialect::V2);
        assert!(
            v2.keys().all(|name| !name.starts_with(UPSTREAM)),
            "{:?}",
            v2.keys()
        );
        let own = Dialect::V2.published(META_V1);
        let meta = &v2[&format!("{own}.ObjectMeta")];
        assert_eq!(meta["properties"]["finalizers"]["x-kubernetes-list-type"], "set");
        assert_eq!(
            meta["properties"]["ownerReferences"]["x-kubernetes-list-map-keys"],
            json!(["uid"])
        );
        assert_eq!(
            v2[&format!("{own}.OwnerReference")]["x-kubernetes-map-type"],
            "atomic"
        );
        assert_eq!(v2[&format!("{own}.Time")]["format"], "date-time");
        assert_eq!(v2[&format!("{own}.FieldsV1")]["type"], "object");
        assert!(v2[&format!("{own}.ListMeta")]["properties"]["continue"].is_object());
    }
}
