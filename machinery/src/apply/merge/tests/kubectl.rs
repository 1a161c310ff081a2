//! The switch of `kubectl` from client-side to server-side apply.

use serde_json::json;

use super::*;

const ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// An object that client-side apply created with `spec.priority` 1.
fn client_side() -> Object {
    Object::created("kubectl-client-side-apply", &with_annotation(&last_applied(1), 1))
}

fn last_applied(priority: i32) -> String {
    json!({"apiVersion": V1, "kind": "Thing", "metadata": {"name": "n"}, "spec": {"priority": priority}})
        .to_string()
}

fn with_annotation(annotation: &str, priority: i32) -> Value {
    json!({"metadata": {"annotations": {ANNOTATION: annotation}}, "spec": {"priority": priority}})
}

fn annotation(object: &Object) -> Option<&str> {
    object.at("/metadata/annotations")?.get(ANNOTATION)?.as_str()
}

#[test]
fn kubectl_takes_over_what_it_applied_on_the_client_side() {
    let mut object = client_side();
    object
        .apply("kubectl", &priority(2))
        .has("/spec/priority", &json!(2));
    assert_eq!(
        annotation(&object),
        Some(
            "{\"apiVersion\":\"example.com/v1\",\"kind\":\"Thing\",\"metadata\":{\"name\":\"n\",\"namespace\":\"d\"},\
             \"spec\":{\"priority\":2}}\n"
        )
    );
    object
        .owners(&[
            "kubectl Apply 02 .spec.priority",
            "kubectl-client-side-apply Update 01 .metadata.annotations \
             .metadata.annotations.kubectl.kubernetes.io/last-applied-configuration .spec",
        ])
        .is_noop("kubectl", &priority(2), PLAIN);
}

#[test]
fn other_managers_conflict_with_client_side_apply() {
    let message =
        "1 conflict: conflict with \"kubectl-client-side-apply\" using example.com/v1: .spec.priority";
    client_side().conflicts("other", &priority(2), PLAIN, message);
    // An annotation that is invalid or in another version is ignored.
    let other_version = last_applied(1).replace("/v1", "/v2");
    let invalid = last_applied(1).replace(":1}", ":\"x\"}");
    for text in ["{", "{}", "", &other_version, &invalid] {
        let mut object = Object::created("kubectl-client-side-apply", &with_annotation(text, 1));
        object.conflicts("kubectl", &priority(2), PLAIN, message);
    }
}

#[test]
fn only_conflicts_outside_the_annotation_are_reported() {
    let mut new = with_annotation(&last_applied(1), 1);
    new["spec"]["enabled"] = true.into();
    client_side().put("edit", &new).conflicts(
        "kubectl",
        &spec(&json!({"priority": 2, "enabled": false})),
        PLAIN,
        "1 conflict: conflict with \"edit\" using example.com/v1: .spec.enabled",
    );
    // A value that has changed since is not allowed either.
    client_side()
        .put("edit", &with_annotation(&last_applied(1), 9))
        .conflicts(
            "kubectl",
            &priority(2),
            PLAIN,
            "1 conflict: conflict with \"edit\" using example.com/v1: .spec.priority",
        );
}

#[test]
fn the_annotation_contains_the_configuration_without_itself() {
    let mut object = client_side();
    object.apply("kubectl", &with_annotation(&last_applied(1), 1));
    assert_eq!(
        annotation(&object),
        Some(
            "{\"apiVersion\":\"example.com/v1\",\"kind\":\"Thing\",\"metadata\":{\"annotations\":{},\"name\":\"n\",\
             \"namespace\":\"d\"},\"spec\":{\"priority\":1}}\n"
        )
    );
}

#[test]
fn the_annotation_is_removed_if_it_is_too_large_and_never_added() {
    let mut object = client_side();
    object.apply(
        "kubectl",
        &json!({"metadata": {"annotations": {"a": "x".repeat(200_000)}}}),
    );
    assert_eq!(annotation(&object), None);
    let mut object = Object::new();
    object.apply("kubectl", &priority(1));
    assert_eq!(annotation(&object), None);
    let mut object = client_side();
    object.apply("other", &priority(1));
    assert_eq!(annotation(&object), Some(&*last_applied(1)));
}
