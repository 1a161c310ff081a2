//! Entries in other versions of the kind.

use serde_json::json;

use super::*;

const V2_PLAIN: Options = Options { is_v2: true, ..PLAIN };

fn parties(items: &[Value]) -> Value {
    spec(&json!({ "parties": items }))
}

#[test]
fn managers_in_different_versions_share_a_list() {
    let both = json!({"priority": 1, "requesters": [requester("n", "E")]});
    Object::new()
        .apply("a", &spec(&both))
        .apply_with("b", &parties(&[requester("m", "E")]), V2_PLAIN)
        .has(
            "/spec/requesters",
            &json!([requester("n", "E"), requester("m", "E")]),
        )
        .owners(&[
            "a Apply 01 .spec.priority .spec.requesters[name=\"n\"]",
            "b Apply@v2 02 .spec.parties[name=\"m\"]",
        ])
        .conflicts(
            "b",
            &parties(&[requester("n", "W")]),
            V2_PLAIN,
            "1 conflict: conflict with \"a\": .spec.requesters[name=\"n\"]",
        )
        // The entry moves to the other version, and the fields that are not listed there are removed.
        .apply_with("a", &parties(&[requester("n", "E")]), V2_PLAIN)
        .has("/spec/priority", &Value::Null)
        .owners(&[
            "b Apply@v2 02 .spec.parties[name=\"m\"]",
            "a Apply@v2 04 .spec.parties[name=\"n\"]",
        ])
        .apply_with("b", &parties(&[]), V2_PLAIN)
        .has("/spec/requesters", &json!([requester("n", "E")]))
        .apply("a", &json!({}))
        .has("/spec", &Value::Null);
}

#[test]
fn a_manager_that_changes_the_version_does_not_remove_fields_of_others() {
    let mut object = Object::new();
    object
        .apply("a", &requesters(&[requester("x", "E"), requester("y", "E")]))
        .apply("b", &requesters(&[requester("y", "E")]))
        .apply_with("a", &parties(&[requester("z", "E")]), V2_PLAIN);
    let mut names: Vec<_> = object.at("/spec/requesters").unwrap().as_array().unwrap().clone();
    names.sort_by_key(ToString::to_string);
    assert_eq!(names, [requester("y", "E"), requester("z", "E")]);
}

#[test]
fn entries_in_versions_that_are_not_served_are_dropped() {
    // Their fields neither conflict nor are removed.
    let unserved = |object: &mut Object| {
        let list = &mut object.live.as_mut().unwrap()["metadata"]["managedFields"];
        for entry in list.as_array_mut().unwrap() {
            entry["apiVersion"] = "example.com/v0".into();
        }
    };
    let mut object = Object::new();
    object
        .apply("a", &priority(1))
        .apply("old", &spec(&json!({"enabled": true})));
    unserved(&mut object);
    object
        .apply("b", &priority(2))
        .owners(&["b Apply 03 .spec.priority"])
        .has("/spec/enabled", &json!(true));
    unserved(&mut object);
    object
        .apply("b", &spec(&json!({"enabled": true})))
        .has("/spec", &json!({"priority": 2, "enabled": true}))
        .owners(&["b Apply 03 .spec.enabled"]);
}

#[test]
fn values_that_do_not_convert_fail_the_apply() {
    let mut object = Object::new();
    object
        .apply("a", &priority(1))
        .apply_with("b", &parties(&[requester("m", "E")]), V2_PLAIN);
    assert_eq!(
        object
            .try_apply("a", &priority(13), PLAIN)
            .unwrap_err()
            .to_string(),
        "failed to convert object to example.com/v2"
    );
}

#[test]
fn an_owner_below_a_value_that_became_atomic_owns_the_whole_value() {
    let mut object = Object::new();
    object.apply("a", &requesters(&[requester("r", "E")]));
    object.live.as_mut().unwrap()["metadata"]["managedFields"] = json!([entry(
        "a",
        "Apply",
        1,
        json!({"f:spec": {"f:requesters": {"k:{\"name\":\"r\"}": {".": {}, "f:name": {}, "f:intent": {}}}}})
    )]);
    object
        .apply("b", &requesters(&[requester("r", "E")]))
        .owners(&[
            "b Apply - .spec.requesters[name=\"r\"]",
            "a Apply 01 .spec.requesters[name=\"r\"]",
        ])
        .conflicts(
            "b",
            &requesters(&[requester("r", "W")]),
            PLAIN,
            "1 conflict: conflict with \"a\": .spec.requesters[name=\"r\"]",
        );
}
