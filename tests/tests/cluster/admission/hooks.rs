//! The webhooks of the comparison.

use serde_json::{Value, json};

use crate::oracle::{GROUP, OURS};

/// A webhook of the configurations, for objects with its name as label.
pub(super) struct Hook {
    pub(super) case: &'static str,
    pub(super) is_mutating: bool,
    /// The path at the reviewer, which decides about the answer.
    pub(super) path: &'static str,
    /// Members of the configuration that differ from the usual.
    pub(super) members: fn() -> Value,
}

const fn validating(case: &'static str, path: &'static str, members: fn() -> Value) -> Hook {
    Hook {
        case,
        is_mutating: false,
        path,
        members,
    }
}

const fn mutating(case: &'static str, path: &'static str, members: fn() -> Value) -> Hook {
    Hook {
        case,
        is_mutating: true,
        path,
        members,
    }
}

fn usual() -> Value {
    json!({})
}

fn ignored() -> Value {
    json!({ "failurePolicy": "Ignore" })
}

fn exact() -> Value {
    let rules = rules("v1alpha1", &json!(["*"]));
    json!({ "matchPolicy": "Exact", "rules": rules })
}

fn beta() -> Value {
    json!({ "admissionReviewVersions": ["v1beta1"] })
}

fn if_needed() -> Value {
    json!({ "reinvocationPolicy": "IfNeeded" })
}

fn creates_only() -> Value {
    json!({ "rules": rules("*", &json!(["CREATE"])) })
}

/// Members for conditions with these expressions.
fn on(conditions: &[&str]) -> Value {
    let conditions: Vec<Value> = conditions
        .iter()
        .enumerate()
        .map(|(index, expression)| json!({ "name": format!("condition-{index}"), "expression": expression }))
        .collect();
    json!({ "matchConditions": conditions })
}

/// Conditions that are true for most of the requests. A delete has no object.
fn on_true() -> Value {
    on(&[
        "request.resource.resource == 'evictionrequests' && request.userInfo.username != ''",
        "object == null ? oldObject.metadata.labels.kept != '' : has(object.spec.target)",
        "authorizer.group('').resource('pods').namespace(request.namespace).check('delete').allowed()",
    ])
}

fn on_false() -> Value {
    on(&["object.spec.absent == 1", "request.operation == 'CONNECT'"])
}

fn on_creates_that_are_real() -> Value {
    on(&["request.operation == 'CREATE' && !request.dryRun"])
}

fn on_error() -> Value {
    on(&["true", "object.spec.absent == 1", "object.spec.other.deeper == 2"])
}

fn on_error_ignored() -> Value {
    let mut members = on_error();
    members["failurePolicy"] = "Ignore".into();
    members
}

pub(super) const HOOKS: &[Hook] = &[
    validating("allow", "allow", usual),
    validating("deny", "deny", usual),
    validating("deny-in-silence", "deny-in-silence", usual),
    validating("deny-by-reason", "deny-by-reason", usual),
    validating("deny-creates", "deny", creates_only),
    validating("exact", "deny", exact),
    validating("beta", "no-types", beta),
    validating("fails", "500", usual),
    validating("fails-open", "500", ignored),
    validating("drops", "drop", usual),
    validating("drops-open", "drop", ignored),
    validating("missing", "404", usual),
    validating("says-status", "status", usual),
    validating("empty", "empty", usual),
    validating("text", "text", usual),
    validating("no-json", "no-json", usual),
    validating("wrong-uid", "wrong-uid", usual),
    validating("no-response", "no-response", usual),
    validating("no-types", "no-types", usual),
    validating("patches", "patch-always", usual),
    validating("late", "hang", usual),
    validating("late-open", "hang", ignored),
    validating("warns", "warn", usual),
    validating("condition-true", "deny", on_true),
    validating("condition-false", "deny", on_false),
    validating("condition-creates", "deny", on_creates_that_are_real),
    validating("condition-fails", "deny", on_error),
    validating("condition-fails-open", "deny", on_error_ignored),
    mutating("label", "label", usual),
    mutating("denies-early", "deny", usual),
    mutating("fails-early", "500", usual),
    mutating("fails-early-open", "500", ignored),
    mutating("no-patch-type", "no-patch-type", usual),
    mutating("no-patch", "no-patch", usual),
    mutating("other-patch-type", "other-patch-type", usual),
    mutating("patch-always", "patch-always", usual),
    mutating("unknown-field", "unknown-field", usual),
    mutating("broken-owners", "broken-owners", usual),
    mutating("rename", "rename", usual),
    mutating("move", "move", usual),
    mutating("condition-true-early", "label", on_true),
    mutating("condition-false-early", "label", on_false),
    mutating("condition-fails-early", "label", on_error),
    mutating("condition-fails-early-open", "label", on_error_ignored),
    mutating("notes", "note-a", if_needed),
    mutating("notes", "note-b", usual),
];

/// Rules for our kind and the custom resource.
pub(super) fn rules(version: &str, operations: &Value) -> Value {
    json!([{
        "apiGroups": [OURS, GROUP],
        "apiVersions": [version],
        "resources": ["evictionrequests", "evictionrequests/status"],
        "operations": operations,
    }])
}
