//! The schema of `metadata`, which every object has.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::structural::{Omit, Shape, Structural};

/// The schema of `metadata`: ownership, limits and texts as every kind has them.
///
/// `finalizers` is a set, `ownerReferences` a list map by `uid` of atomic structs, `managedFields` atomic, labels and
/// annotations granular maps.
#[must_use]
pub fn object_meta() -> Structural {
    OBJECT_META.clone()
}

static OBJECT_META: LazyLock<Structural> = LazyLock::new(build);

#[expect(
    clippy::expect_used,
    reason = "the schema below is constant, and tests build it"
)]
fn build() -> Structural {
    let mut schema =
        Structural::from_json_schema(&json_schema()).expect("the schema of metadata is structural");
    if let Shape::Object(object) = &mut schema.shape {
        for field in &mut object.fields {
            field.omit = match field.name.as_str() {
                // A pointer, and a list whose emptiness says something.
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

#[expect(clippy::too_many_lines, reason = "one table of fields")]
fn json_schema() -> Value {
    let time = |description: &str| {
        json!({
            "type": "string", "format": "date-time", "description": description,
            "x-drydock-definition": "io.k8s.apimachinery.pkg.apis.meta.v1.Time",
        })
    };
    json!({
        "title": "ObjectMeta",
        "type": "object",
        "x-drydock-definition": "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta",
        "description": "What every stored object has, whatever its kind.",
        "properties": {
            "annotations": {
                "type": "object",
                "additionalProperties": { "type": "string" },
                "description": "Unstructured pairs for tools and libraries; they cannot be selected by. At most 256 KiB altogether.",
            },
            "creationTimestamp": time("When the object was created, by the server's clock. Read-only."),
            "deletionGracePeriodSeconds": {
                "type": "integer", "format": "int64",
                "description": "Seconds the object may take to end gracefully; set together with deletionTimestamp. Read-only.",
            },
            "deletionTimestamp": time(
                "When the object is to be gone. Set by the server once deletion was asked for; the object goes when its \
                 finalizers are gone. Read-only.",
            ),
            "finalizers": {
                "type": "array",
                "items": { "type": "string" },
                "description": "Who must act before the object goes. Each removes its own entry; while one is left, the object stays.",
                "x-kubernetes-list-type": "set",
                "x-kubernetes-patch-strategy": "merge",
            },
            "generateName": {
                "type": "string",
                "description": "A prefix from which the server makes a unique name when name is empty.",
            },
            "generation": {
                "type": "integer", "format": "int64",
                "description": "Counts changes of the desired state. Read-only.",
            },
            "labels": {
                "type": "object",
                "additionalProperties": { "type": "string" },
                "description": "Pairs to organize objects and to select them by.",
            },
            "managedFields": {
                "type": "array",
                "description": "Which writer owns which fields. Maintained by the server; writers rarely need to look at it.",
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "title": "ManagedFieldsEntry",
                    "type": "object",
                    "x-drydock-definition": "io.k8s.apimachinery.pkg.apis.meta.v1.ManagedFieldsEntry",
                    "description": "The fields one writer owns.",
                    "properties": {
                        "apiVersion": {
                            "type": "string",
                            "description": "The group and version in which the fields are named.",
                        },
                        "fieldsType": {
                            "type": "string",
                            "description": "The format of the fields; only FieldsV1 exists.",
                        },
                        "fieldsV1": {
                            "x-drydock-definition": "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1",
                            "description": "The fields, in the format FieldsV1.",
                        },
                        "manager": { "type": "string", "description": "The name of the writer." },
                        "operation": {
                            "type": "string",
                            "description": "How the fields were written: Apply or Update.",
                        },
                        "subresource": {
                            "type": "string",
                            "description": "The subresource through which the fields were written; empty for the object itself.",
                        },
                        "time": time("When the set of fields last changed, or one of them was written."),
                    },
                },
            },
            "name": {
                "type": "string",
                "description": "The name, unique among objects of the kind in a namespace. Cannot be changed.",
            },
            "namespace": {
                "type": "string",
                "description": "The namespace; empty for objects of the cluster. Cannot be changed.",
            },
            "ownerReferences": {
                "type": "array",
                "description": "The objects this one depends on; when all of them are gone, this one is collected. At most one is the controller.",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["uid"],
                "x-kubernetes-patch-strategy": "merge",
                "x-kubernetes-patch-merge-key": "uid",
                "items": {
                    "title": "OwnerReference",
                    "type": "object",
                    "x-drydock-definition": "io.k8s.apimachinery.pkg.apis.meta.v1.OwnerReference",
                    "x-kubernetes-map-type": "atomic",
                    "description": "An owner: an object in the same namespace, or of the cluster.",
                    "required": ["apiVersion", "kind", "name", "uid"],
                    "properties": {
                        "apiVersion": { "type": "string", "description": "Group and version of the owner." },
                        "blockOwnerDeletion": {
                            "type": "boolean",
                            "description": "Whether a foreground deletion of the owner waits for this object.",
                        },
                        "controller": {
                            "type": "boolean",
                            "description": "Whether the owner is the managing controller.",
                        },
                        "kind": { "type": "string", "description": "Kind of the owner." },
                        "name": { "type": "string", "description": "Name of the owner." },
                        "uid": { "type": "string", "description": "UID of the owner." },
                    },
                },
            },
            "resourceVersion": {
                "type": "string",
                "description": "The version of the stored object, opaque to clients; for watches and optimistic locks. Read-only.",
            },
            "selfLink": { "type": "string", "description": "No longer filled in." },
            "uid": {
                "type": "string",
                "description": "Tells apart objects that had the same name one after the other. Read-only.",
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
                panic!("{field} is no list")
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
