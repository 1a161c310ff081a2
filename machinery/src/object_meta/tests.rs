use serde_json::json;

use super::*;
use crate::field_error::tests::{Cause, assert_causes};

/// Merges `metadata` over that of a valid object in a namespace.
fn object(metadata: &Value) -> Value {
    let mut object = json!({"metadata": {"name": "n", "namespace": "ns", "uid": "u", "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z"}});
    for (key, value) in metadata.as_object().unwrap() {
        object["metadata"][key] = value.clone();
    }
    object
}

fn create(metadata: &Value, expected: &[Cause<'_>]) {
    assert_causes(&validate_create(&object(metadata), true), expected, metadata);
}

fn update(metadata: &Value, old: &Value, expected: &[Cause<'_>]) {
    assert_causes(
        &validate_update(&object(metadata), &object(old)),
        expected,
        metadata,
    );
}

const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
const KEY: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";

#[test]
fn ordinary_metadata_is_valid() {
    create(
        &json!({
            "labels": {"a": "", "example.com/b": "C.d"},
            "annotations": {"Example.COM/Any": "text \u{0} of any kind", "A": ""},
            "finalizers": ["example.com/a", "orphan", "example.com/a"],
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": "u", "controller": true},
                {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "v", "controller": false},
            ],
            "managedFields": [{"operation": "Apply", "fieldsType": "FieldsV1", "manager": "ü", "subresource": ""}],
            "generateName": "web-",
        }),
        &[],
    );
    assert!(validate_create(&json!({"metadata": {"name": "n"}}), false).is_empty());
}

#[test]
fn names_are_required_and_subdomains() {
    create(
        &json!({"name": ""}),
        &[(
            "metadata.name",
            "Required",
            "Required value: name or generateName is required",
        )],
    );
    create(
        &json!({"name": "A", "generateName": "Bc-"}),
        &[
            (
                "metadata.generateName",
                "Invalid",
                &format!("Invalid value: \"Bc-\": {SUBDOMAIN}"),
            ),
            (
                "metadata.name",
                "Invalid",
                &format!("Invalid value: \"A\": {SUBDOMAIN}"),
            ),
        ],
    );
    for name in ["a/b", "a%b", ".", ".."] {
        create(
            &json!({"name": name}),
            &[(
                "metadata.name",
                "Invalid",
                &format!("Invalid value: \"{name}\": {SUBDOMAIN}"),
            )],
        );
    }
    assert_eq!(validate_create(&Value::Null, true).len(), 2);
}

#[test]
fn namespaced_kinds_require_a_namespace_and_others_forbid_it() {
    create(
        &json!({"namespace": null}),
        &[("metadata.namespace", "Required", "Required value")],
    );
    create(
        &json!({"namespace": "a.b"}),
        &[(
            "metadata.namespace",
            "Invalid",
            "Invalid value: \"a.b\": must not contain dots",
        )],
    );
    let object = object(&json!({}));
    assert_causes(
        &validate_create(&object, false),
        &[(
            "metadata.namespace",
            "Forbidden",
            "Forbidden: not allowed on this type",
        )],
        &object,
    );
}

#[test]
fn labels_and_annotations_are_validated_and_limited() {
    create(
        &json!({"labels": {"-": "b c"}}),
        &[
            (
                "metadata.labels",
                "Invalid",
                &format!("Invalid value: \"-\": {KEY}"),
            ),
            (
                "metadata.labels",
                "Invalid",
                "Invalid value: \"b c\": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            ),
        ],
    );
    create(
        &json!({"annotations": {"a b": "x"}}),
        &[(
            "metadata.annotations",
            "Invalid",
            &format!("Invalid value: \"a b\": {KEY}"),
        )],
    );
    create(&json!({"annotations": {"a": "x".repeat(262_143)}}), &[]);
    create(
        &json!({"annotations": {"a": "x".repeat(262_144)}}),
        &[(
            "metadata.annotations",
            "TooLong",
            "Too long: may not be more than 262144 bytes",
        )],
    );
}

#[test]
fn owner_references_are_complete_and_have_one_controller() {
    create(
        &json!({"ownerReferences": [{"apiVersion": "a/b/c"}, {"apiVersion": "", "kind": "K", "name": "n", "uid": "u"}]}),
        &[
            (
                "metadata.ownerReferences[0].apiVersion",
                "Invalid",
                "Invalid value: \"a/b/c\": must be <group>/<version> or <version>",
            ),
            (
                "metadata.ownerReferences[0].kind",
                "Required",
                "Required value: must not be empty",
            ),
            (
                "metadata.ownerReferences[0].name",
                "Required",
                "Required value: must not be empty",
            ),
            (
                "metadata.ownerReferences[0].uid",
                "Required",
                "Required value: must not be empty",
            ),
            (
                "metadata.ownerReferences[1].apiVersion",
                "Required",
                "Required value: must not be empty",
            ),
        ],
    );
    create(
        &json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Event", "name": "n", "uid": "u"}]}),
        &[(
            "metadata.ownerReferences[0]",
            "Invalid",
            r#"Invalid value: {"apiVersion":"v1","kind":"Event","name":"n","uid":"u"}: /v1, Kind=Event is disallowed from being an owner"#,
        )],
    );
    let owner =
        |name: &str| json!({"apiVersion": "v1", "kind": "K", "name": name, "uid": name, "controller": true});
    let errors = validate_create(
        &object(&json!({"ownerReferences": [owner("a"), owner("b")]})),
        true,
    );
    assert_eq!(errors.len(), 1);
    assert!(errors.to_string().ends_with(
        ": Only one reference can have Controller set to true. Found \"true\" in references for K/a and K/b"
    ));
}

#[test]
fn finalizers_are_qualified_names_or_standard_finalizers() {
    create(
        &json!({"finalizers": ["a", "-/b", "orphan", "foregroundDeletion"]}),
        &[
            (
                "metadata.finalizers[0]",
                "Invalid",
                "Invalid value: \"a\": name is neither a standard finalizer name nor is it fully qualified",
            ),
            (
                "metadata.finalizers",
                "Invalid",
                &format!("Invalid value: \"-/b\": prefix part {SUBDOMAIN}"),
            ),
            (
                "metadata.finalizers",
                "Invalid",
                r#"Invalid value: ["orphan","foregroundDeletion"]: finalizer orphan and foregroundDeletion cannot be both set"#,
            ),
        ],
    );
}

#[test]
fn managed_fields_are_well_formed() {
    create(
        &json!({"managedFields": [
            {"manager": "a\u{7}b"},
            {"operation": "X", "fieldsType": "F", "manager": "m".repeat(129), "subresource": "s".repeat(257)},
        ]}),
        &[
            (
                "metadata.managedFields[0].operation",
                "Required",
                "Required value: must not be empty",
            ),
            (
                "metadata.managedFields[0].manager",
                "Invalid",
                r#"Invalid value: "a\ab": invalid character U+0007 (at position 1)"#,
            ),
            (
                "metadata.managedFields[1].operation",
                "NotSupported",
                r#"Unsupported value: "X": supported values: "Apply", "Update""#,
            ),
            (
                "metadata.managedFields[1].fieldsType",
                "Invalid",
                "Invalid value: \"F\": must be `FieldsV1`",
            ),
            (
                "metadata.managedFields[1].manager",
                "TooLong",
                "Too long: may not be more than 128 bytes",
            ),
            (
                "metadata.managedFields[1].subresource",
                "TooLong",
                "Too long: may not be more than 256 bytes",
            ),
        ],
    );
}

#[test]
fn identity_and_times_are_immutable() {
    update(
        &json!({"name": "m", "namespace": "", "uid": "v", "creationTimestamp": null,
            "deletionTimestamp": "2026-01-02T00:00:00Z", "deletionGracePeriodSeconds": 5}),
        &json!({}),
        &[
            (
                "metadata.name",
                "Invalid",
                "Invalid value: \"m\": field is immutable",
            ),
            (
                "metadata.namespace",
                "Invalid",
                "Invalid value: \"\": field is immutable",
            ),
            (
                "metadata.uid",
                "Invalid",
                "Invalid value: \"v\": field is immutable",
            ),
            (
                "metadata.creationTimestamp",
                "Invalid",
                "Invalid value: null: field is immutable",
            ),
            (
                "metadata.deletionTimestamp",
                "Invalid",
                "Invalid value: \"2026-01-02T00:00:00Z\": field is immutable",
            ),
            (
                "metadata.deletionGracePeriodSeconds",
                "Invalid",
                "Invalid value: 5: field is immutable",
            ),
        ],
    );
    update(
        &json!({"creationTimestamp": "2026-01-01T01:00:00+01:00"}),
        &json!({}),
        &[],
    );
    update(
        &json!({"labels": {"a": "b"}, "generateName": "X"}),
        &json!({"labels": {"c": "d"}}),
        &[],
    );
}

#[test]
fn generation_never_decreases() {
    update(&json!({"generation": 5}), &json!({"generation": 5}), &[]);
    update(
        &json!({"generation": 4}),
        &json!({"generation": 5}),
        &[(
            "metadata.generation",
            "Invalid",
            "Invalid value: 4: must not be decremented",
        )],
    );
    create(
        &json!({"generation": -1}),
        &[(
            "metadata.generation",
            "Invalid",
            "Invalid value: -1: must be greater than or equal to 0",
        )],
    );
}

#[test]
fn finalizers_cannot_be_added_to_a_terminating_object() {
    let terminating =
        |finalizers: &[&str]| json!({"deletionTimestamp": "2026-01-02T00:00:00Z", "finalizers": finalizers});
    update(
        &terminating(&["a.io/a"]),
        &terminating(&["a.io/b", "a.io/a"]),
        &[],
    );
    update(
        &terminating(&["a.io/b", "a.io/a", "a.io/c"]),
        &terminating(&["a.io/b"]),
        &[(
            "metadata.finalizers",
            "Forbidden",
            r#"Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers []string{"a.io/a", "a.io/c"}"#,
        )],
    );
    update(&json!({"finalizers": ["a.io/a"]}), &json!({}), &[]);
}

#[test]
fn generated_names_are_truncated_and_suffixed() {
    let mut rng = fastrand::Rng::with_seed(7);
    for (base, kept) in [
        ("web-", "web-"),
        ("", ""),
        (&*"a".repeat(80), &*"a".repeat(58)),
        (&*"é".repeat(40), &*"é".repeat(29)),
    ] {
        let name = generate_name(base, &mut rng);
        let suffix = name.strip_prefix(kept).unwrap();
        assert_eq!(suffix.len(), 5, "{name}");
        assert!(
            suffix.bytes().all(|byte| SUFFIX_ALPHABET.contains(&byte)),
            "{name}"
        );
    }
    assert_ne!(generate_name("a", &mut rng), generate_name("a", &mut rng));
}

#[test]
fn identical_owner_references_are_dropped_with_a_warning() {
    let owner = |uid: &str, name: &str| json!({"apiVersion": "v1", "kind": "K", "name": name, "uid": uid});
    let mut twice = object(
        &json!({"ownerReferences": [owner("u", "a"), owner("u", "b"), owner("u", "a"), owner("v", "a"), owner("v", "a")]}),
    );
    assert_eq!(
        drop_duplicate_owners(&mut twice).unwrap(),
        ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: u, v"
    );
    assert_eq!(
        twice["metadata"]["ownerReferences"],
        json!([owner("u", "a"), owner("u", "b"), owner("v", "a")])
    );
    assert_eq!(drop_duplicate_owners(&mut twice), None);
    assert_eq!(drop_duplicate_owners(&mut json!({})), None);
}
