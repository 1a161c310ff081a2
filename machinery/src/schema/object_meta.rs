//! The schema of `metadata`, which all kinds share.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::structural::{Omit, Shape, Structural};

/// The schema of `metadata`.
///
/// `finalizers` is a set, `ownerReferences` is a list map of atomic structs keyed by `uid`, `managedFields` is an atomic
/// list, and labels and annotations are granular maps.
pub(crate) fn object_meta() -> Structural {
    OBJECT_META.clone()
}

static OBJECT_META: LazyLock<Structural> = LazyLock::new(build);

#[expect(clippy::expect_used, reason = "the schema is constant, and tests build it")]
fn build() -> Structural {
    let mut schema =
        Structural::from_json_schema(&json_schema()).expect("the schema of metadata is structural");
    if let Shape::Object(object) = &mut schema.shape {
        for field in &mut object.fields {
            field.omit = match field.name.as_str() {
                // A pointer in Go, and a list that resets ownership when empty.
                "deletionGracePeriodSeconds" | "managedFields" => Omit::Null,
                _ => Omit::Zero,
            };
            if let ("managedFields", Shape::List(entries)) = (field.name.as_str(), &mut field.schema.shape)
                && let Shape::Object(entry) = &mut entries.items.shape
            {
                for member in entry.fields.iter_mut().filter(|member| member.name != "fieldsV1") {
                    member.omit = Omit::Zero;
                }
            }
        }
    }
    schema
}

fn json_schema() -> Value {
    json!({
        "title": "ObjectMeta",
        "type": "object",
        "x-drydock-definition": "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
        "description": "Metadata that all objects have.",
        "properties": {
            "annotations": pairs(
                "Unstructured key-value pairs for tools and libraries. Not usable in selectors. At most 256 KiB in total.",
            ),
            "creationTimestamp": time("When the object was created, by the clock of the server. Read-only."),
            "deletionGracePeriodSeconds": integer(
                "The grace period of the deletion in seconds. Set only together with deletionTimestamp. Read-only.",
            ),
            "deletionTimestamp": time(
                "When the object will be deleted. Set by the server when deletion is requested; the object is removed \
                 when it has no finalizers left. Read-only.",
            ),
            "finalizers": {
                "type": "array",
                "items": { "type": "string" },
                "description": "Components that must act before the object is removed. Each removes its own entry.",
                "x-kubernetes-list-type": "set",
                "x-kubernetes-patch-strategy": "merge",
            },
            "generateName": string(
                "A prefix from which the server generates a unique name if name is empty.",
            ),
            "generation": integer("A sequence number of the desired state. Read-only."),
            "labels": pairs("Key-value pairs to organize and select objects."),
            "managedFields": managed_fields(),
            "name": string("The name, unique among objects of the kind in a namespace. Cannot be changed."),
            "namespace": string("The namespace; empty for cluster-scoped objects. Cannot be changed."),
            "ownerReferences": owner_references(),
            "resourceVersion": string(
                "The version of the stored object, opaque to clients, for watches and optimistic concurrency. Read-only.",
            ),
            "selfLink": string("No longer set."),
            "uid": string("Unique in time and space: distinguishes successive objects of the same name. Read-only."),
        },
    })
}

fn string(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

fn integer(description: &str) -> Value {
    json!({ "type": "integer", "format": "int64", "description": description })
}

fn boolean(description: &str) -> Value {
    json!({ "type": "boolean", "description": description })
}

fn pairs(description: &str) -> Value {
    json!({ "type": "object", "additionalProperties": { "type": "string" }, "description": description })
}

fn time(description: &str) -> Value {
    json!({
        "type": "string", "format": "date-time", "description": description,
        "x-drydock-definition": "io.k8s.apimachinery.pkg.apis.meta.v1.Time",
    })
}

fn managed_fields() -> Value {
    json!({
        "type": "array",
        "description": "The fields that each field manager owns. Maintained by the server; clients rarely need to read it.",
        "x-kubernetes-list-type": "atomic",
        "items": {
            "title": "ManagedFieldsEntry",
            "type": "object",
            "x-drydock-definition": "io.k8s.apimachinery.pkg.apis.meta.v1.ManagedFieldsEntry",
            "description": "The fields that one field manager owns.",
            "properties": {
                "apiVersion": string("The group and version in which the fields are named."),
                "fieldsType": string("The format of the fields. Only FieldsV1 exists."),
                "fieldsV1": {
                    "x-drydock-definition": "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1",
                    "description": "The fields, in the format FieldsV1.",
                },
                "manager": string("The name of the field manager."),
                "operation": string("The operation that created the entry: Apply or Update."),
                "subresource": string("The subresource that was written; empty for the object itself."),
                "time": time("When the set of fields, or the value of one of them, was last changed by the manager."),
            },
        },
    })
}

fn owner_references() -> Value {
    json!({
        "type": "array",
        "description": "The owners of the object. When all of them are gone, the object is garbage collected. At most one \
                        of them is the controller.",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["uid"],
        "x-kubernetes-patch-strategy": "merge",
        "x-kubernetes-patch-merge-key": "uid",
        "items": {
            "title": "OwnerReference",
            "type": "object",
            "x-drydock-definition": "io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference",
            "x-kubernetes-map-type": "atomic",
            "description": "An owner: an object in the same namespace, or a cluster-scoped object.",
            "required": ["apiVersion", "kind", "name", "uid"],
            "properties": {
                "apiVersion": string("The group and version of the owner."),
                "blockOwnerDeletion": boolean("Whether a foreground deletion of the owner waits for this object."),
                "controller": boolean("Whether the owner is the managing controller."),
                "kind": string("The kind of the owner."),
                "name": string("The name of the owner."),
                "uid": string("The UID of the owner."),
            },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::ListKind;

    #[test]
    fn lists_of_metadata_have_the_kinds_that_ownership_expects() {
        for (field, expected) in [
            ("finalizers", ListKind::Set),
            ("ownerReferences", ListKind::Map(vec!["uid".to_owned()])),
            ("managedFields", ListKind::Atomic),
        ] {
            let meta = object_meta();
            let Some(Shape::List(list)) = meta.at(&[field]).map(|schema| &schema.shape) else {
                panic!("{field} is not a list")
            };
            assert_eq!(list.kind, expected, "{field}");
        }
        let meta = object_meta();
        let Some(Shape::List(owners)) = meta.at(&["ownerReferences"]).map(|schema| &schema.shape) else {
            panic!("no list")
        };
        assert!(matches!(&owners.items.shape, Shape::Object(owner) if owner.is_atomic));
    }
}
