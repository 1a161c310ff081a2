//! Applies of sets and list maps.

use serde_json::json;

use super::*;

#[test]
fn items_have_separate_owners() {
    Object::new()
        .apply("a", &requesters(&[requester("a", "E")]))
        .apply("b", &requesters(&[requester("b", "E")]))
        .has(
            "/spec/requesters",
            &json!([requester("a", "E"), requester("b", "E")]),
        )
        .apply("a", &spec(&json!({})))
        .has("/spec/requesters", &json!([requester("b", "E")]))
        .owners(&["b Apply 02 .spec.requesters[name=\"b\"]", "a Apply 03 .spec"]);
}

#[test]
fn an_atomic_item_conflicts_as_a_whole() {
    Object::new()
        .apply("a", &requesters(&[requester("r", "E")]))
        .conflicts(
            "b",
            &requesters(&[requester("r", "W")]),
            PLAIN,
            "1 conflict: conflict with \"a\": .spec.requesters[name=\"r\"]",
        )
        .apply_with("b", &requesters(&[requester("r", "W")]), FORCED)
        .has("/spec/requesters", &json!([requester("r", "W")]))
        .owners(&["b Apply 03 .spec.requesters[name=\"r\"]"]);
}

#[test]
fn finalizers_are_a_set() {
    Object::new()
        .apply("a", &finalizers(&["a/f"]))
        .apply("b", &finalizers(&["b/f"]))
        .has("/metadata/finalizers", &json!(["a/f", "b/f"]))
        .apply("a", &json!({}))
        .has("/metadata/finalizers", &json!(["b/f"]))
        .apply("b", &finalizers(&[]))
        .has("/metadata/finalizers", &Value::Null);
}

#[test]
fn finalizers_of_an_updater_stay() {
    Object::created("ctl", &finalizers(&["ctl/f"]))
        .owners(&["ctl Update 01 .metadata.finalizers .metadata.finalizers[=\"ctl/f\"]"])
        .apply("a", &finalizers(&["a/f", "ctl/f"]))
        .has("/metadata/finalizers", &json!(["a/f", "ctl/f"]))
        .apply("a", &json!({}))
        .has("/metadata/finalizers", &json!(["ctl/f"]))
        .put("ctl", &json!({}))
        .has("/metadata/finalizers", &Value::Null);
}

#[test]
fn items_of_others_are_not_removed() {
    Object::new()
        .apply("a", &finalizers(&["f1"]))
        .put("u", &finalizers(&["f1", "f2"]))
        .owners(&[
            "a Apply 01 .metadata.finalizers[=\"f1\"]",
            "u Update 02 .metadata.finalizers[=\"f2\"]",
        ])
        .is_noop("a", &finalizers(&["f1"]), PLAIN)
        .apply("a", &json!({}))
        .has("/metadata/finalizers", &json!(["f2"]));
}

#[test]
fn owner_references_are_atomic_items() {
    let owner = |uid: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": uid});
    let with_controller = |uid: &str| {
        let mut owner = owner(uid);
        owner["controller"] = true.into();
        owner
    };
    let owners = |owners: &[Value]| json!({"metadata": {"ownerReferences": owners}});
    Object::new()
        .apply("a", &owners(&[owner("u1")]))
        .apply("b", &owners(&[owner("u2")]))
        .has("/metadata/ownerReferences", &json!([owner("u1"), owner("u2")]))
        .conflicts(
            "b",
            &owners(&[with_controller("u1")]),
            PLAIN,
            "1 conflict: conflict with \"a\": .metadata.ownerReferences[uid=\"u1\"]",
        )
        .apply("a", &owners(&[with_controller("u1")]))
        .apply("a", &owners(&[owner("u1")]))
        .has("/metadata/ownerReferences", &json!([owner("u1"), owner("u2")]));
}

fn failed(status: &str) -> Value {
    json!({"type": "Failed", "status": status, "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

#[test]
fn conditions_conflict_by_field() {
    let evicted = json!({"type": "TargetEvicted", "status": "True"});
    Object::created("x", &json!({}))
        .apply_with("c", &conditions(&[failed("False")]), STATUS)
        .owners(&[
            "c/status Apply 02 .status.conditions[type=\"Failed\"] .status.conditions[type=\"Failed\"].lastTransitionTime \
             .status.conditions[type=\"Failed\"].message .status.conditions[type=\"Failed\"].reason \
             .status.conditions[type=\"Failed\"].status .status.conditions[type=\"Failed\"].type",
        ])
        .apply_with("d", &conditions(std::slice::from_ref(&evicted)), STATUS)
        .has("/status/conditions", &json!([failed("False"), evicted]))
        .conflicts(
            "d",
            &conditions(&[failed("True")]),
            STATUS,
            "1 conflict: conflict with \"c\" with subresource \"status\": .status.conditions[type=\"Failed\"].status",
        );
}

#[test]
fn fields_that_are_not_listed_any_more_are_removed() {
    let short = json!({"type": "Failed", "status": "False", "reason": "R"});
    Object::created("x", &json!({}))
        .apply_with("c", &conditions(&[failed("False")]), STATUS)
        .apply_with("c", &conditions(std::slice::from_ref(&short)), STATUS)
        .has("/status/conditions", &json!([short]));
}

#[test]
fn an_item_of_two_appliers_keeps_the_fields_of_the_other() {
    let observed = json!({"type": "Failed", "observedGeneration": 3});
    Object::created("x", &json!({}))
        .apply_with("ctl", &conditions(&[failed("False")]), STATUS)
        .apply_with("obs", &conditions(std::slice::from_ref(&observed)), STATUS)
        .apply_with("ctl", &conditions(&[]), STATUS)
        .has("/status/conditions", &json!([observed]));
}

#[test]
fn an_item_of_an_updater_stays() {
    Object::created("x", &json!({}))
        .put_status(
            "c",
            &json!({"conditions": [{"type": "Failed", "status": "True"}]}),
        )
        .apply_with(
            "d",
            &conditions(&[json!({"type": "Failed", "message": "hello"})]),
            STATUS,
        )
        .has(
            "/status/conditions",
            &json!([{"type": "Failed", "status": "True", "message": "hello"}]),
        )
        .apply_with("d", &conditions(&[]), STATUS)
        .has(
            "/status/conditions",
            &json!([{"type": "Failed", "status": "True"}]),
        );
}

#[test]
fn sets_are_merged_in_the_order_of_the_configuration() {
    Object::created("x", &json!({}))
        .apply_with("a", &active(&["c", "a"]), STATUS)
        .apply_with("b", &active(&["b", "a"]), STATUS)
        .has("/status/active", &json!(["c", "b", "a"]))
        .apply_with("a", &active(&["c"]), STATUS)
        .has("/status/active", &json!(["c", "b", "a"]))
        .apply_with("b", &active(&["b"]), STATUS)
        .has("/status/active", &json!(["c", "b"]));
}

#[test]
fn set_items_of_an_updater_stay() {
    Object::created("y", &json!({}))
        .put_status("ctl", &json!({"active": ["a", "b"]}))
        .apply_with("x", &active(&["b", "c"]), STATUS)
        .has("/status/active", &json!(["a", "b", "c"]))
        .apply_with("x", &active(&["c"]), STATUS)
        .has("/status/active", &json!(["a", "b", "c"]))
        .put_status("ctl", &json!({"active": ["a", "c"]}))
        .apply_with("x", &json!({"status": {}}), STATUS)
        .has("/status/active", &json!(["a"]));
}

#[test]
fn an_item_that_an_update_took_stays() {
    Object::new()
        .apply("a", &requesters(&[requester("r1", "E"), requester("r2", "E")]))
        .put("u", &requesters(&[requester("r1", "W"), requester("r2", "E")]))
        .owners(&[
            "a Apply 01 .spec.requesters[name=\"r2\"]",
            "u Update 02 .spec.requesters[name=\"r1\"]",
        ])
        .apply("a", &requesters(&[requester("r2", "E")]))
        .has(
            "/spec/requesters",
            &json!([requester("r1", "W"), requester("r2", "E")]),
        );
}

#[test]
fn a_shared_item_stays_until_the_last_owner_leaves() {
    Object::new()
        .apply("a", &requesters(&[requester("r1", "E")]))
        .apply("b", &requesters(&[requester("r1", "E"), requester("r2", "E")]))
        .apply("a", &requesters(&[]))
        .has(
            "/spec/requesters",
            &json!([requester("r1", "E"), requester("r2", "E")]),
        )
        .apply("b", &requesters(&[requester("r2", "E")]))
        .has("/spec/requesters", &json!([requester("r2", "E")]));
}

#[test]
fn a_granular_item_is_shared_by_field() {
    Object::new()
        .apply(
            "a",
            &granular(&[json!({"name": "i1", "intent": "E", "reason": "r"})]),
        )
        .apply("b", &granular(&[json!({"name": "i1", "nested": {"a": "x"}})]))
        .apply("a", &granular(&[json!({"name": "i1", "intent": "E"})]))
        .has(
            "/spec/granular",
            &json!([{"name": "i1", "intent": "E", "nested": {"a": "x"}}]),
        )
        .apply("a", &spec(&json!({})))
        .has("/spec/granular", &json!([{"name": "i1", "nested": {"a": "x"}}]))
        .apply("b", &granular(&[]))
        .has("/spec", &Value::Null)
        .owners(&["a Apply 04 .spec"]);
}

#[test]
fn an_item_is_removed_with_the_fields_of_an_updater_inside() {
    Object::new()
        .apply(
            "a",
            &granular(&[json!({"name": "i1", "intent": "E"}), json!({"name": "i2"})]),
        )
        .put(
            "u",
            &granular(&[
                json!({"name": "i1", "intent": "E", "reason": "r"}),
                json!({"name": "i2"}),
            ]),
        )
        .apply("a", &granular(&[json!({"name": "i2"})]))
        .has("/spec/granular", &json!([{"name": "i2"}]))
        .owners(&["a Apply 03 .spec.granular[name=\"i2\"] .spec.granular[name=\"i2\"].name"]);
}

#[test]
fn an_item_created_by_an_updater_stays_without_the_fields_of_the_applier() {
    Object::created(
        "u",
        &granular(&[json!({"name": "i1", "intent": "W", "reason": "r"})]),
    )
    .apply_with("a", &granular(&[json!({"name": "i1", "intent": "E"})]), FORCED)
    .apply("a", &granular(&[]))
    .has("/spec/granular", &json!([{"name": "i1", "reason": "r"}]));
}

#[test]
fn a_renamed_item_replaces_the_old_one() {
    Object::new()
        .apply("a", &requesters(&[requester("r1", "E"), requester("r2", "E")]))
        .apply("a", &requesters(&[requester("r9", "E"), requester("r2", "E")]))
        .has(
            "/spec/requesters",
            &json!([requester("r9", "E"), requester("r2", "E")]),
        );
}

#[test]
fn duplicates_in_the_live_list_are_kept_until_they_are_applied() {
    let stored = [requester("a", "E"), requester("a", "W"), requester("b", "E")];
    Object::created("c", &requesters(&stored))
        .apply("x", &requesters(&[requester("z", "E")]))
        .has(
            "/spec/requesters",
            &json!([
                requester("a", "E"),
                requester("a", "W"),
                requester("b", "E"),
                requester("z", "E")
            ]),
        )
        .conflicts(
            "y",
            &requesters(&[requester("a", "E")]),
            PLAIN,
            "1 conflict: conflict with \"c\" using example.com/v1: .spec.requesters[name=\"a\"]",
        )
        .apply_with("y", &requesters(&[requester("a", "E")]), FORCED)
        .has(
            "/spec/requesters",
            &json!([requester("a", "E"), requester("b", "E"), requester("z", "E")]),
        );
}

#[test]
fn defaults_of_key_fields_identify_items_and_are_not_written() {
    let ports = |ports: &Value| spec(&json!({ "ports": ports }));
    Object::new()
        .apply("a", &ports(&json!([{"port": 80, "note": "n1"}])))
        .owners(&[
            "a Apply 01 .spec.ports[port=80,protocol=\"TCP\"] .spec.ports[port=80,protocol=\"TCP\"].note \
             .spec.ports[port=80,protocol=\"TCP\"].port",
        ])
        .conflicts(
            "b",
            &ports(&json!([{"port": 80, "protocol": "TCP", "note": "n2"}])),
            PLAIN,
            "1 conflict: conflict with \"a\": .spec.ports[port=80,protocol=\"TCP\"].note",
        )
        .apply("b", &ports(&json!([{"port": 80, "protocol": "UDP"}])))
        .owners(&[
            "a Apply 01 .spec.ports[port=80,protocol=\"TCP\"] .spec.ports[port=80,protocol=\"TCP\"].note \
             .spec.ports[port=80,protocol=\"TCP\"].port",
            "b Apply 03 .spec.ports[port=80,protocol=\"UDP\"] .spec.ports[port=80,protocol=\"UDP\"].port \
             .spec.ports[port=80,protocol=\"UDP\"].protocol",
        ]);
}
