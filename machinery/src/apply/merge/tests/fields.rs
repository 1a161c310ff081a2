//! Applies of scalars, structs, atomic values and maps.

use serde_json::json;

use super::*;

#[test]
fn an_apply_creates_the_object_and_a_repeated_one_changes_nothing() {
    let config = json!({"metadata": {"labels": {"app": "w"}}, "spec": {"requesters": [requester("r", "E")], "priority": 5}});
    Object::new()
        .apply("a", &config)
        .owners(&["a Apply 01 .metadata.labels.app .spec.priority .spec.requesters[name=\"r\"]"])
        .is_noop("a", &config, PLAIN);
}

#[test]
fn an_apply_without_fields_leaves_no_entry() {
    // A name is not owned, an empty struct is.
    Object::new().apply("a", &json!({})).owners(&[]);
    Object::new()
        .apply("a", &spec(&json!({})))
        .owners(&["a Apply 01 .spec"]);
}

#[test]
fn co_owners_share_a_value_until_the_last_one_leaves() {
    Object::new()
        .apply("a", &priority(5))
        .apply("b", &priority(5))
        .owners(&["b Apply - .spec.priority", "a Apply 01 .spec.priority"])
        .apply("a", &json!({}))
        .has("/spec/priority", &json!(5))
        .owners(&["b Apply - .spec.priority"])
        .apply("b", &json!({}))
        .has("/spec", &Value::Null)
        .owners(&[]);
}

#[test]
fn co_owners_cannot_change_a_shared_value_without_force() {
    Object::new()
        .apply("a", &priority(5))
        .apply("b", &priority(5))
        .conflicts(
            "a",
            &priority(6),
            PLAIN,
            "1 conflict: conflict with \"b\": .spec.priority",
        )
        .apply_with("a", &priority(6), FORCED)
        .owners(&["a Apply 04 .spec.priority"]);
}

#[test]
fn a_field_that_an_update_took_conflicts_with_the_updater() {
    Object::new()
        .apply("a", &priority(5))
        .put("kubectl-edit", &priority(7))
        .owners(&["kubectl-edit Update 02 .spec.priority"])
        .conflicts(
            "a",
            &priority(5),
            PLAIN,
            "1 conflict: conflict with \"kubectl-edit\" using example.com/v1: .spec.priority",
        )
        .apply_with("a", &priority(5), FORCED)
        .owners(&["a Apply 04 .spec.priority"]);
}

#[test]
fn a_field_that_an_update_removed_can_be_applied_again() {
    let both = spec(&json!({"priority": 5, "enabled": true}));
    Object::new()
        .apply("a", &both)
        .put("u", &spec(&json!({"enabled": true})))
        .owners(&["a Apply 01 .spec.enabled"])
        .apply("a", &both)
        .has("/spec/priority", &json!(5));
}

#[test]
fn map_keys_have_separate_owners() {
    Object::new()
        .apply("a", &labels(&json!({"k1": "1", "k2": "2"})))
        .apply("b", &labels(&json!({"k3": "3"})))
        .apply("a", &labels(&json!({"k1": "1"})))
        .has("/metadata/labels", &json!({"k1": "1", "k3": "3"}))
        .apply("a", &json!({}))
        .has("/metadata/labels", &json!({"k3": "3"}))
        .apply("b", &json!({}))
        .has("/metadata/labels", &Value::Null);
}

#[test]
fn fields_that_a_manager_lost_are_not_removed_by_it() {
    Object::new()
        .apply("a", &labels(&json!({"k": "1"})))
        .put("u", &labels(&json!({"k": "2"})))
        .owners(&["u Update 02 .metadata.labels.k"])
        .apply("a", &json!({}))
        .has("/metadata/labels", &json!({"k": "2"}))
        .apply("a", &labels(&json!({"k": "2"})))
        .owners(&["a Apply - .metadata.labels.k", "u Update 02 .metadata.labels.k"])
        .conflicts(
            "a",
            &labels(&json!({"k": "3"})),
            PLAIN,
            "1 conflict: conflict with \"u\" using example.com/v1: .metadata.labels.k",
        );
}

#[test]
fn atomic_lists_are_owned_as_a_whole() {
    let list = |items: &[&str]| spec(&json!({ "atomicList": items }));
    let conflict = |manager: &str| format!("1 conflict: conflict with \"{manager}\": .spec.atomicList");
    Object::new()
        .apply("a", &list(&["p", "q"]))
        .conflicts("b", &list(&["p"]), PLAIN, &conflict("a"))
        .apply("b", &list(&["p", "q"]))
        .conflicts("a", &list(&[]), PLAIN, &conflict("b"))
        .apply_with("a", &list(&[]), FORCED)
        .owners(&["a Apply 05 .spec.atomicList"]);
}

#[test]
fn atomic_structs_are_replaced_as_a_whole() {
    let pod = |pod: &Value| spec(&json!({"target": {"pod": pod}}));
    Object::new()
        .apply("a", &pod(&json!({"name": "p", "uid": "u"})))
        .conflicts(
            "b",
            &pod(&json!({"name": "p"})),
            PLAIN,
            "1 conflict: conflict with \"a\": .spec.target.pod",
        )
        .apply_with("b", &pod(&json!({"name": "p"})), FORCED)
        .has("/spec/target", &json!({"pod": {"name": "p"}}));
}

#[test]
fn members_of_a_union_are_ordinary_fields() {
    // Validation must reject an object with both members.
    let (pod, node) = (json!({"pod": {"name": "p"}}), json!({"node": {"name": "n"}}));
    let target = |target: &Value| spec(&json!({ "target": target }));
    Object::new()
        .apply("a", &target(&pod))
        .apply("a", &target(&node))
        .has("/spec/target", &node)
        .apply("b", &target(&pod))
        .has(
            "/spec/target",
            &json!({"pod": {"name": "p"}, "node": {"name": "n"}}),
        )
        .apply("a", &spec(&json!({})))
        .has("/spec/target", &pod);
}

#[test]
fn null_claims_a_field_and_removes_its_value() {
    let null = spec(&json!({"priority": null}));
    Object::new()
        .apply("a", &priority(5))
        .conflicts(
            "b",
            &null,
            PLAIN,
            "1 conflict: conflict with \"a\": .spec.priority",
        )
        .apply_with("b", &null, FORCED)
        .has("/spec/priority", &Value::Null)
        .owners(&["b Apply 03 .spec.priority"])
        .is_noop("b", &null, PLAIN);
}

#[test]
fn null_in_a_string_map_is_the_empty_string() {
    let null = labels(&json!({"k": null}));
    Object::new()
        .apply("a", &null)
        .has("/metadata/labels", &json!({"k": ""}))
        .owners(&["a Apply 01 .metadata.labels.k"])
        .is_noop("a", &null, PLAIN);
}

#[test]
fn null_containers_are_claimed_without_a_change() {
    let mut object = Object::new();
    let config = json!({"metadata": {"labels": {"k": "v"}},
        "spec": {"requesters": [requester("r", "E")], "atomicList": ["p"], "target": {"pod": {"name": "p"}}}});
    object
        .apply("a", &config)
        .apply(
            "b",
            &json!({"metadata": {"labels": null}, "spec": {"requesters": null}}),
        )
        .has("/metadata/labels", &json!({"k": "v"}))
        .has("/spec/requesters", &json!([requester("r", "E")]));
    assert_eq!(
        entries(object.live.as_ref().unwrap())[0],
        "b Apply - .metadata.labels .spec.requesters"
    );
    object
        .conflicts(
            "c",
            &spec(&json!({"atomicList": null})),
            PLAIN,
            "1 conflict: conflict with \"a\": .spec.atomicList",
        )
        .apply("c", &spec(&json!({"target": null})))
        .has("/spec/target", &json!({"pod": {"name": "p"}}));
}

#[test]
fn untracked_fields_belong_to_before_first_apply() {
    let members = json!({"metadata": {"labels": {"k": "v"}}, "spec": {"priority": 2, "enabled": true}});
    Object::created("x", &members)
        .untracked()
        .apply("a", &priority(2))
        .owners(&[
            "a Apply - .spec.priority",
            "before-first-apply Update 02 .metadata.labels .metadata.labels.k .spec .spec.enabled .spec.priority",
        ])
        .conflicts(
            "a",
            &priority(3),
            PLAIN,
            "1 conflict: conflict with \"before-first-apply\" using example.com/v1: .spec.priority",
        )
        .apply_with("a", &priority(3), FORCED)
        .apply("a", &spec(&json!({})))
        .has("/spec", &json!({"enabled": true}));
}

#[test]
fn before_first_apply_owns_no_reset_fields() {
    let mut object = Object::created("x", &priority(1));
    object
        .put_status("x", &json!({"active": ["y"]}))
        .untracked()
        .apply("a", &priority(1));
    assert_eq!(
        entries(object.live.as_ref().unwrap())[1],
        "before-first-apply Update 03 .spec .spec.priority"
    );
    object
        .untracked()
        .apply_with("a", &active(&["y"]), STATUS)
        .owners(&[
            "a/status Apply - .status.active[=\"y\"]",
            "before-first-apply/status Update 04 .status .status.active .status.active[=\"y\"]",
        ]);
}

#[test]
fn a_reset_stops_the_tracking() {
    for new_priority in [1, 2] {
        let mut object = Object::new();
        object.apply("a", &priority(1));
        let mut members = priority(new_priority);
        members["metadata"]["managedFields"] = json!([{}]);
        object.put("b", &members).owners(&[]);
    }
}

#[test]
fn the_message_lists_all_conflicts_by_manager() {
    let config = |k: &str, priority: i32, enabled: bool| json!({"metadata": {"labels": {"k": k}}, "spec": {"priority": priority, "enabled": enabled}});
    let mut object = Object::new();
    object.apply("a", &config("1", 1, true));
    let mut updated = config("1", 1, true);
    updated["metadata"]["labels"]["l"] = "1".into();
    object.put("u", &updated);
    let mut changed = config("2", 2, false);
    changed["metadata"]["labels"]["l"] = "2".into();
    object.conflicts(
        "b",
        &changed,
        PLAIN,
        "4 conflicts: conflicts with \"a\":\n- .metadata.labels.k\n- .spec.enabled\n- .spec.priority\n\
         conflicts with \"u\" using example.com/v1:\n- .metadata.labels.l",
    );
    let Err(ApplyError::Conflicts(conflicts)) = object.try_apply("b", &changed, PLAIN) else {
        panic!("no conflict")
    };
    let causes: Vec<_> = conflicts.causes().collect();
    let cause = |message: &str, field: &str| (message.to_owned(), field.to_owned());
    assert_eq!(
        causes,
        [
            cause("conflict with \"a\"", ".metadata.labels.k"),
            cause("conflict with \"a\"", ".spec.enabled"),
            cause("conflict with \"a\"", ".spec.priority"),
            cause("conflict with \"u\" using example.com/v1", ".metadata.labels.l"),
        ]
    );
    let second = conflicts.iter().nth(1).unwrap();
    assert_eq!(second.operation, Operation::Update);
    assert_eq!(second.time.as_deref(), Some(&*time(2)));
}

#[test]
fn conflicts_are_sorted_by_manager() {
    Object::created("a", &priority(1))
        .apply("b", &spec(&json!({"enabled": true})))
        .conflicts(
            "c",
            &spec(&json!({"enabled": false, "priority": 2})),
            PLAIN,
            "2 conflicts: conflicts with \"a\" using example.com/v1:\n- .spec.priority\nconflicts with \"b\":\n- .spec.enabled",
        );
}

#[test]
fn a_manager_conflicts_with_its_own_updates() {
    Object::created("w", &priority(1)).conflicts(
        "w",
        &priority(2),
        PLAIN,
        "1 conflict: conflict with \"w\" using example.com/v1: .spec.priority",
    );
}

#[test]
fn fields_without_an_owner_are_overwritten_and_never_removed() {
    // The server set the priority after ownership was computed.
    let mut object = Object::new();
    object.apply("a", &spec(&json!({"enabled": true})));
    object.live.as_mut().unwrap()["spec"]["priority"] = 1.into();
    object
        .apply("a", &spec(&json!({})))
        .has("/spec", &json!({"priority": 1}))
        .apply("b", &priority(2))
        .has("/spec", &json!({"priority": 2}));
}

#[test]
fn configurations_are_validated() {
    let mut object = Object::new();
    let mut error = |config: &Value| object.try_apply("a", config, PLAIN).unwrap_err().to_string();
    assert_eq!(
        error(&json!({"metadata": {"managedFields": []}})),
        "metadata.managedFields must be nil"
    );
    assert_eq!(
        error(&spec(&json!({"bogus": 1}))),
        "failed to create typed patch object (d/n; example.com/v1, Kind=Thing): .spec.bogus: field not declared in schema"
    );
    assert_eq!(
        error(&spec(&json!({"priority": "1", "enabled": 1}))),
        "failed to create typed patch object (d/n; example.com/v1, Kind=Thing): errors:\n  \
         .spec.enabled: expected boolean, got number\n  .spec.priority: expected numeric (int or float), got string"
    );
    let core = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "n"}});
    assert_eq!(described(&core), "/n; /v1, Kind=ConfigMap");
    // What ownership does not check is checked by decoding.
    assert!(matches!(
        object.try_apply("a", &spec(&json!({"priority": 1.5})), PLAIN),
        Err(ApplyError::Decode(_))
    ));
    assert_eq!(object.live, None);
    object.apply(
        "a",
        &json!({"metadata": {"managedFields": null}, "spec": {"priority": 1}}),
    );
}

#[test]
fn an_apply_does_not_merge_the_entries_of_old_updaters() {
    let mut object = Object::new();
    object.apply("a", &priority(1));
    let set = |index: u32| {
        entry(
            &format!("u{index}"),
            "Update",
            index,
            json!({"f:spec": {"f:enabled": {}}}),
        )
    };
    let mut list: Vec<_> = (1..12).map(set).collect();
    list.push(entry("a", "Apply", 1, json!({"f:spec": {"f:priority": {}}})));
    object.live.as_mut().unwrap()["metadata"]["managedFields"] = list.into();
    object.apply("a", &priority(2));
    assert_eq!(entries(object.live.as_ref().unwrap()).len(), 12);
}

#[test]
fn undecodable_entries_fail_the_apply() {
    let mut object = Object::new();
    object.apply("a", &priority(1));
    object.live.as_mut().unwrap()["metadata"]["managedFields"][0]["operation"] = "Merge".into();
    assert_eq!(
        object
            .try_apply("a", &priority(1), PLAIN)
            .unwrap_err()
            .to_string(),
        "failed to decode managed fields: operation must be `Apply` or `Update`"
    );
}

#[test]
fn status_and_object_have_separate_entries() {
    let status =
        json!({"metadata": {"labels": {"k": "v"}}, "spec": {"priority": 3}, "status": {"active": ["x"]}});
    Object::new()
        .apply(
            "a",
            &json!({"spec": {"priority": 1}, "status": {"active": ["x"]}}),
        )
        .owners(&["a Apply 01 .spec.priority"])
        .has("/status", &Value::Null)
        .apply_with("a", &status, STATUS)
        .owners(&[
            "a Apply 01 .spec.priority",
            "a/status Apply 02 .status.active[=\"x\"]",
        ])
        .has("/spec/priority", &json!(1))
        .has("/metadata/labels", &Value::Null)
        .apply("a", &json!({}))
        .owners(&["a/status Apply 02 .status.active[=\"x\"]"])
        .has("/status/active", &json!(["x"]));
}

#[test]
fn defaults_are_filled_in_and_not_owned() {
    let spec = json!({"type": "object", "properties": {"mode": {"type": "string", "default": "Soft"}, "size": {"type": "integer"}}});
    let schema = crate::schema::Structural::for_kind("Thing", "v1", "", &[("spec", &spec)]).unwrap();
    let endpoint = Endpoint {
        schema: &schema,
        reset_fields: reset_by_object(),
        versions: &FromV1,
    };
    let writer = Writer {
        manager: "a",
        api_version: V1,
        subresource: None,
        time: &time(1),
    };
    let config = thing(&json!({"spec": {"size": 1}}));
    let applied = apply(&endpoint, None, &config, &writer, false).unwrap();
    assert_eq!(applied.object["spec"], json!({"size": 1, "mode": "Soft"}));
    assert_eq!(entries(&applied.object), ["a Apply 01 .spec.size"]);
}
