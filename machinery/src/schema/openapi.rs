//! How is a schema published? As OpenAPI v3 and as Swagger 2.0, with Kubernetes' extensions.
//!
//! Types that every API has (metadata, options, status) are published under their upstream names: [`definitions`]. Kinds
//! refer to them; the caller adds `x-kubernetes-group-version-kind` to what it publishes for a kind.

use serde_json::{Map, Value, json};

use super::structural::{ObjectShape, Shape, Structural};

/// What the upstream names of the shared types begin with.
pub const META_V1: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
/// The name of `DeleteOptions`.
pub const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
/// The name of `ListMeta`.
pub const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";
/// The name of `ObjectMeta`.
pub const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
/// The name of `Patch`.
pub const PATCH: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Patch";
/// The name of `Status`.
pub const STATUS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Status";
/// The name of `WatchEvent`.
pub const WATCH_EVENT: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.WatchEvent";

/// Which document a schema is written for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// OpenAPI v3: `components.schemas`.
    V3,
    /// Swagger 2.0: `definitions`, without `nullable` and alternatives.
    V2,
}

impl Dialect {
    /// A reference to a published schema.
    #[must_use]
    pub fn reference(self, definition: &str) -> Value {
        match self {
            Self::V3 => json!({ "$ref": format!("#/components/schemas/{definition}") }),
            Self::V2 => json!({ "$ref": format!("#/definitions/{definition}") }),
        }
    }
}

/// A schema as a document has it. Parts with a name of their own become references, the schema itself does not.
#[must_use]
pub fn schema(schema: &Structural, dialect: Dialect) -> Value {
    let mut written = schema.annotations.clone();
    if let Some(default) = &schema.default {
        written.insert("default".to_owned(), default.clone());
    }
    if schema.nullable && dialect == Dialect::V3 {
        written.insert("nullable".to_owned(), true.into());
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
    // An object of which nothing is known is just an object.
    if let Some(values) = object
        .additional
        .as_ref()
        .filter(|values| **values != Structural::any())
    {
        written.insert("additionalProperties".to_owned(), part(values, dialect));
    }
}

/// A schema inside another one.
fn part(structural: &Structural, dialect: Dialect) -> Value {
    let Some(definition) = &structural.definition else {
        return schema(structural, dialect);
    };
    let reference = dialect.reference(definition);
    let mut written = match dialect {
        // Siblings of a reference are ignored in v3, so it is wrapped to keep the description of the place.
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

/// The schema of the list of a kind whose items are published as `item`.
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
            "kind": { "type": "string", "description": "What the list is, in CamelCase." },
            "metadata": metadata,
            "items": { "type": "array", "items": items, "description": format!("The {kind} objects.") },
        },
    })
}

/// The types that every API has, by upstream name: `ObjectMeta`, `ManagedFieldsEntry`, `OwnerReference`, `FieldsV1`,
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
    for kind in ["DeleteOptions", "Status", "WatchEvent"] {
        if let Some(Value::Object(definition)) = written.get_mut(&format!("{META_V1}.{kind}")) {
            definition.insert(
                "x-kubernetes-group-version-kind".to_owned(),
                json!([{ "group": "", "kind": kind, "version": "v1" }]),
            );
        }
    }
    written
}

/// Writes every named schema at and below `structural`.
fn collect(structural: &Structural, dialect: Dialect, written: &mut Map<String, Value>) {
    if let Some(definition) = structural
        .definition
        .as_ref()
        .filter(|name| !written.contains_key(*name))
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
        written.insert(definition.clone(), text);
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

/// The description of types whose places have descriptions of their own.
fn general_description(definition: &str) -> Option<&'static str> {
    match definition.strip_prefix(META_V1) {
        Some(".Time") => Some("A time, written as RFC 3339 has it, in whole seconds of UTC."),
        Some(".FieldsV1") => Some(
            "A set of fields as a tree. Each key is f:<name> for a field, k:<keys> for an item of a list map, v:<value> \
             for an item of a set, or i:<index>; the key \".\" stands for the node itself.",
        ),
        Some(".ListMeta") => Some("What every list has."),
        Some(".Preconditions") => Some("What must hold for an operation to be carried out."),
        Some(".StatusDetails") => Some("More about a failure, for programs."),
        _ => None,
    }
}

#[expect(
    clippy::expect_used,
    reason = "the schemas below are constant, and tests build them"
)]
fn structural(schema: &Value) -> Structural {
    Structural::from_json_schema(schema).expect("shared types are structural")
}

fn list_meta() -> Structural {
    structural(&json!({
        "type": "object",
        "x-drydock-definition": LIST_META,
        "description": "About the list.",
        "properties": {
            "continue": { "type": "string", "description": "With it the next part of the list can be asked for." },
            "remainingItemCount": {
                "type": "integer", "format": "int64",
                "description": "About how many items follow. Absent when it is not known.",
            },
            "resourceVersion": {
                "type": "string",
                "description": "The version the list shows; a watch can begin here.",
            },
            "selfLink": { "type": "string", "description": "No longer filled in." },
        },
    }))
}

fn delete_options() -> Structural {
    structural(&json!({
        "type": "object",
        "x-drydock-definition": DELETE_OPTIONS,
        "description": "How an object is to be deleted.",
        "properties": {
            "apiVersion": { "type": "string", "description": "The group and version of the options." },
            "dryRun": {
                "type": "array", "items": { "type": "string" },
                "x-kubernetes-list-type": "atomic",
                "description": "With All nothing is stored.",
            },
            "gracePeriodSeconds": {
                "type": "integer", "format": "int64",
                "description": "Seconds the object may take to end; zero means at once.",
            },
            "ignoreStoreReadErrorWithClusterBreakingPotential": {
                "type": "boolean",
                "description": "Deletes an object that cannot be read from storage, past finalizers.",
            },
            "kind": { "type": "string", "description": "What the options are." },
            "orphanDependents": {
                "type": "boolean",
                "description": "Superseded by propagationPolicy.",
            },
            "preconditions": {
                "type": "object",
                "x-drydock-definition": format!("{META_V1}.Preconditions"),
                "description": "What must hold for the deletion; else it is refused with 409.",
                "properties": {
                    "resourceVersion": { "type": "string", "description": "The version the object must have." },
                    "uid": { "type": "string", "description": "The UID the object must have." },
                },
            },
            "propagationPolicy": {
                "type": "string",
                "description": "What becomes of dependents: Orphan, Background or Foreground.",
            },
        },
    }))
}

fn status() -> Structural {
    structural(&json!({
        "type": "object",
        "x-drydock-definition": STATUS,
        "description": "The outcome of a request that returns no object.",
        "properties": {
            "apiVersion": { "type": "string", "description": "The group and version of the status." },
            "code": { "type": "integer", "format": "int32", "description": "The HTTP code." },
            "details": {
                "type": "object",
                "x-drydock-definition": format!("{META_V1}.StatusDetails"),
                "description": "What the failure is about.",
                "properties": {
                    "causes": {
                        "type": "array",
                        "x-kubernetes-list-type": "atomic",
                        "description": "The faults, when there are several.",
                        "items": {
                            "type": "object",
                            "x-drydock-definition": format!("{META_V1}.StatusCause"),
                            "description": "One fault.",
                            "properties": {
                                "field": { "type": "string", "description": "The field, as in items[0].name." },
                                "message": { "type": "string", "description": "What is wrong, for people." },
                                "reason": { "type": "string", "description": "What is wrong, for programs." },
                            },
                        },
                    },
                    "group": { "type": "string", "description": "The group of the resource." },
                    "kind": { "type": "string", "description": "The kind, or the resource." },
                    "name": { "type": "string", "description": "The name of the object." },
                    "retryAfterSeconds": {
                        "type": "integer", "format": "int32",
                        "description": "After how many seconds to try again.",
                    },
                    "uid": { "type": "string", "description": "The UID of the object." },
                },
            },
            "kind": { "type": "string", "description": "Status." },
            "message": { "type": "string", "description": "What happened, for people." },
            "metadata": {
                "type": "object",
                "x-drydock-definition": LIST_META,
                "description": "About the answer.",
            },
            "reason": { "type": "string", "description": "What happened, for programs." },
            "status": { "type": "string", "description": "Success or Failure." },
        },
    }))
}

fn watch_event() -> Structural {
    structural(&json!({
        "type": "object",
        "x-drydock-definition": WATCH_EVENT,
        "description": "A change seen by a watch.",
        "required": ["type", "object"],
        "properties": {
            "object": {
                "x-drydock-definition": "io.k8s.apimachinery.pkg.runtime.RawExtension",
                "description": "The object after the change, before it when deleted; a Status for errors.",
            },
            "type": { "type": "string", "description": "ADDED, MODIFIED, DELETED, BOOKMARK or ERROR." },
        },
    }))
}

fn patch() -> Structural {
    structural(&json!({
        "type": "object",
        "x-drydock-definition": PATCH,
        "description": "A change to an object, in the form its media type names.",
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
    fn kinds_are_published_for_both_documents() {
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
                json!({ "type": "string", "description": "n", "minLength": 1, "nullable": true }),
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
            "#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
        );
        assert!(v2["properties"]["apiVersion"]["description"].is_string());
    }

    #[test]
    fn shared_types_have_their_upstream_names_and_no_loose_references() {
        for dialect in [Dialect::V2, Dialect::V3] {
            let definitions = definitions(dialect);
            let names: Vec<_> = definitions
                .keys()
                .filter_map(|name| name.strip_prefix(META_V1))
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
            assert!(definitions.contains_key("io.k8s.apimachinery.pkg.runtime.RawExtension"));
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
        let meta = &v2[&format!("{META_V1}.ObjectMeta")];
        assert_eq!(meta["properties"]["finalizers"]["x-kubernetes-list-type"], "set");
        assert_eq!(
            meta["properties"]["ownerReferences"]["x-kubernetes-list-map-keys"],
            json!(["uid"])
        );
        assert_eq!(
            v2[&format!("{META_V1}.OwnerReference")]["x-kubernetes-map-type"],
            "atomic"
        );
        assert_eq!(v2[&format!("{META_V1}.Time")]["format"], "date-time");
        assert_eq!(v2[&format!("{META_V1}.FieldsV1")]["type"], "object");
        assert!(v2[&format!("{META_V1}.ListMeta")]["properties"]["continue"].is_object());
    }
}
