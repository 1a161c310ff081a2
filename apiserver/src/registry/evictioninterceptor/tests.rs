use serde_json::{Value, json};

use super::EvictionInterceptorStrategy;
use super::columns;
use crate::registry::strategy::Strategy;
use crate::registry::tests::{Cause, assert_causes, context};

fn interceptor(name: &str, spec: &Value) -> Value {
    let mut object = json!({"metadata": {"name": name}, "spec": {"interceptorName": "a.example.com"}});
    object["spec"]
        .as_object_mut()
        .unwrap()
        .extend(spec.as_object().unwrap().clone());
    object
}

fn create_named(name: &str, spec: &Value, expected: &[Cause<'_>]) {
    let strategy = EvictionInterceptorStrategy::default();
    assert_causes(
        &strategy.validate(&interceptor(name, spec), &context()),
        expected,
        spec,
    );
}

fn create(spec: &Value, expected: &[Cause<'_>]) {
    create_named("a.example.com", spec, expected);
}

fn update(old: &Value, new: &Value, expected: &[Cause<'_>]) {
    let strategy = EvictionInterceptorStrategy::default();
    let (old, new) = (
        interceptor("a.example.com", old),
        interceptor("a.example.com", new),
    );
    assert_causes(
        &strategy.validate_update(&new, &old, &context()),
        expected,
        &new["spec"],
    );
    assert_causes(
        &strategy.validate_update(&old, &old, &context()),
        &[],
        &old["spec"],
    );
}

#[test]
fn well_formed_interceptors_are_valid() {
    create(&json!({}), &[]);
    create(
        &json!({
            "namespaceSelector": {"matchLabels": {"team": "a"}},
            "podSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
            "matchConditions": [
                {"name": "big", "expression": "pod.spec.priority > 5"},
                {"name": "example.com/here", "expression": "namespace.metadata.name != 'kube-system'"},
            ],
            "priority": 100_000,
            "heartbeatDeadlineSeconds": 600,
        }),
        &[],
    );
    create(&json!({"role": "controller"}), &[]);
    create(&json!({"role": "controller", "priority": 10_000}), &[]);
    create(&json!({"priority": 0}), &[]);
    create_named(
        "acme.io.foo.bar",
        &json!({"interceptorName": "acme.io/foo/bar"}),
        &[],
    );
}

#[test]
fn the_object_is_named_after_the_interceptor() {
    create_named(
        "other",
        &json!({"interceptorName": "acme.io/foo"}),
        &[(
            "metadata.name",
            "FieldValueInvalid",
            "Invalid value: \"other\": must be spec.interceptorName with \"/\" written as \".\": \"acme.io.foo\"",
        )],
    );
    create(
        &json!({"interceptorName": ""}),
        &[("spec.interceptorName", "FieldValueRequired", "Required value")],
    );
    create(
        &json!({"interceptorName": "a"}),
        &[(
            "spec.interceptorName",
            "FieldValueInvalid",
            "Invalid value: \"a\": should be a domain with at least two segments separated by dots",
        )],
    );
    let errors = EvictionInterceptorStrategy::default().validate(
        &interceptor("x.k8s.io", &json!({"interceptorName": "x.k8s.io"})),
        &context(),
    );
    assert_eq!(
        errors.iter().map(|e| (e.field(), e.reason())).collect::<Vec<_>>(),
        [("spec.interceptorName", "FieldValueForbidden")]
    );
    update(
        &json!({}),
        &json!({"interceptorName": "b.example.com"}),
        &[(
            "spec.interceptorName",
            "FieldValueInvalid",
            "Invalid value: \"b.example.com\": field is immutable",
        )],
    );
}

#[test]
fn priority_10000_is_reserved_for_the_role_controller() {
    let priority = "spec.priority";
    for (spec, body) in [
        (
            json!({"priority": 10_000}),
            "Invalid value: 10000: 10000 is reserved for the role controller",
        ),
        (
            json!({"priority": 10_001, "role": "controller"}),
            "Invalid value: 10001: must be 10000, the priority of the role controller",
        ),
        (
            json!({"priority": -1}),
            "Invalid value: -1: must be greater than or equal to 0",
        ),
        (
            json!({"priority": 100_001}),
            "Invalid value: 100001: must be less than or equal to 100000",
        ),
    ] {
        create(&spec, &[(priority, "FieldValueInvalid", body)]);
        update(&json!({}), &spec, &[(priority, "FieldValueInvalid", body)]);
    }
    create(
        &json!({"role": "boss", "heartbeatDeadlineSeconds": 1}),
        &[
            (
                "spec.role",
                "FieldValueNotSupported",
                "Unsupported value: \"boss\": supported values: \"controller\"",
            ),
            (
                "spec.heartbeatDeadlineSeconds",
                "FieldValueInvalid",
                "Invalid value: 1: must be greater than or equal to 600",
            ),
        ],
    );
}

#[test]
fn selectors_and_match_conditions_are_validated() {
    create(
        &json!({
            "namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]},
            "podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]},
            "matchConditions": [
                {"name": "", "expression": ""},
                {"name": "a b", "expression": "node.name == 'a'"},
                {"name": "c", "expression": "1 + 1"},
                {"name": "c", "expression": "true"},
            ],
        }),
        &[
            (
                "spec.namespaceSelector.matchExpressions[0].operator",
                "FieldValueInvalid",
                "Invalid value: \"Gt\": not a valid selector operator",
            ),
            (
                "spec.podSelector.matchExpressions[0].values",
                "FieldValueRequired",
                "Required value: must be specified when `operator` is 'In' or 'NotIn'",
            ),
            (
                "spec.matchConditions[0].name",
                "FieldValueRequired",
                "Required value",
            ),
            (
                "spec.matchConditions[0].expression",
                "FieldValueRequired",
                "Required value",
            ),
            (
                "spec.matchConditions[1].name",
                "FieldValueInvalid",
                "Invalid value: \"a b\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
            ),
            (
                "spec.matchConditions[1].expression",
                "FieldValueInvalid",
                "Invalid value: \"node.name == 'a'\": undeclared reference to 'node'",
            ),
            (
                "spec.matchConditions[2].expression",
                "FieldValueInvalid",
                "Invalid value: \"1 + 1\": must evaluate to bool",
            ),
            (
                "spec.matchConditions[3].name",
                "FieldValueDuplicate",
                "Duplicate value: \"c\"",
            ),
        ],
    );
    let many: Vec<Value> = (0..65)
        .map(|n| json!({"name": format!("c{n}"), "expression": "true"}))
        .collect();
    create(
        &json!({"matchConditions": many}),
        &[(
            "spec.matchConditions",
            "FieldValueTooMany",
            "Too many: 65: must have at most 64 items",
        )],
    );
}

#[test]
fn stored_expressions_are_not_compiled_again() {
    let strategy = EvictionInterceptorStrategy::default();
    let spec = json!({"matchConditions": [{"name": "a", "expression": "from.another.release()"}]});
    let old = interceptor("a.example.com", &spec);
    assert!(strategy.validate_update(&old, &old, &context()).is_empty());
    assert!(!strategy.validate(&old, &context()).is_empty());
}

#[test]
fn status_conditions_and_pod_count_are_validated() {
    let strategy = EvictionInterceptorStrategy::default();
    let mut object = interceptor("a.example.com", &json!({}));
    object["status"] = json!({"matchedPods": -1, "conditions": [{"type": "Accepted", "status": "Maybe", "reason": "R",
        "lastTransitionTime": "2026-01-01T00:00:00Z", "message": ""}]});
    assert_causes(
        &strategy.validate_status_update(&object, &object, &context()),
        &[
            (
                "status.conditions[0].status",
                "FieldValueNotSupported",
                "Unsupported value: \"Maybe\": supported values: \"False\", \"True\", \"Unknown\"",
            ),
            (
                "status.matchedPods",
                "FieldValueInvalid",
                "Invalid value: -1: must be greater than or equal to 0",
            ),
        ],
        &object["status"],
    );
}

#[test]
fn columns_show_the_effective_priority_and_the_status() {
    let cells = |spec: Value, status: Value| {
        let mut object = interceptor("a.example.com", &spec);
        object["status"] = status;
        json!(columns::cells(&object, context().now))
    };
    assert_eq!(
        cells(json!({}), Value::Null),
        json!([
            "a.example.com",
            "a.example.com",
            20_000,
            null,
            "<unknown>",
            "<unknown>",
            ""
        ])
    );
    assert_eq!(
        cells(
            json!({"role": "controller"}),
            json!({"matchedPods": 3, "conditions": [{"type": "Accepted", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]})
        ),
        json!([
            "a.example.com",
            "a.example.com",
            10_000,
            3,
            "True",
            "<unknown>",
            "controller"
        ])
    );
    assert_eq!(columns::COLUMNS.len(), 7);
}
