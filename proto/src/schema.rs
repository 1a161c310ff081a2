//! JSON schemas: of our types, with every definition inlined, and of the types reused from `k8s-openapi`, with
//! Kubernetes' extensions.

use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform as _};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::Value;

/// The schema of `T` with every definition inlined, the form that `drydock-machinery` reads.
///
/// A field with `#[schemars(extend("required" = true))]` is required by the published schema. schemars takes every field
/// with a serde default as optional; ours have one, so that validation names all missing fields of an object at once.
pub(crate) fn inlined<T: JsonSchema>() -> Value {
    let generator = SchemaSettings::draft07()
        .with(|settings| {
            settings.inline_subschemas = true;
            settings.meta_schema = None;
        })
        .into_generator();
    let mut schema = generator.into_root_schema_for::<T>();
    RecursiveTransform(list_required_properties).transform(&mut schema);
    schema.to_value()
}

/// Moves `required: true` of each property to the list of the object.
fn list_required_properties(schema: &mut Schema) {
    let properties = schema.get_mut("properties").and_then(Value::as_object_mut);
    let required: Vec<Value> = properties
        .into_iter()
        .flatten()
        .filter_map(|(name, property)| {
            let property = property.as_object_mut()?;
            let is_marked = property.get("required") == Some(&Value::Bool(true));
            is_marked.then(|| property.remove("required"))?;
            Some(name.as_str().into())
        })
        .collect();
    if !required.is_empty() {
        schema.insert("required".to_owned(), required.into());
    }
}

/// `metav1.Time`: RFC 3339 with whole seconds.
pub(crate) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

/// A list of `metav1.Condition`: a list map keyed by `type`.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "x-kubernetes-patch-strategy": "merge",
        "x-kubernetes-patch-merge-key": "type",
        "items": {
            "type": "object",
            "description": "Condition contains details for one aspect of the current state of this API Resource.",
            "required": ["type", "status", "lastTransitionTime", "reason", "message"],
            "properties": {
                "type": { "type": "string", "description": "Type of condition in CamelCase or in foo.example.com/CamelCase." },
                "status": { "type": "string", "description": "Status of the condition, one of True, False, Unknown." },
                "observedGeneration": { "type": "integer", "format": "int64", "description": "The .metadata.generation that the condition was set based upon." },
                "lastTransitionTime": { "type": "string", "format": "date-time", "description": "The last time the condition transitioned from one status to another." },
                "reason": { "type": "string", "description": "A programmatic identifier for the reason of the last transition." },
                "message": { "type": "string", "default": "", "description": "A human readable message with details about the transition." }
            }
        }
    })
}

/// `metav1.LabelSelector`.
pub(crate) fn label_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "properties": {
            "matchLabels": {
                "type": "object",
                "description": "Labels that must all be present with these values.",
                "additionalProperties": { "type": "string" }
            },
            "matchExpressions": {
                "type": "array",
                "description": "Requirements that must all be satisfied.",
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": { "type": "string", "description": "The label key the requirement applies to." },
                        "operator": { "type": "string", "description": "In, NotIn, Exists or DoesNotExist." },
                        "values": {
                            "type": "array",
                            "description": "The values of In and NotIn.",
                            "x-kubernetes-list-type": "atomic",
                            "items": { "type": "string" }
                        }
                    }
                }
            }
        }
    })
}
