use serde_json::json;

use super::*;

#[test]
fn lists_sent_by_clients_are_used_on_the_main_resource() {
    let members = json!({"spec": {"priority": 5, "enabled": true}});
    let mut object = Object::new();
    object.put("a", &members);
    // Edited, with entries in any order and spelling.
    let edited = json!([
        entry("z", "Update", 3, json!({"f:spec": {"f:enabled": {}}})),
        entry(
            "y",
            "Apply",
            4,
            json!({"f:spec": {"f:priority": {}}, "x:unknown": {}})
        ),
        entry("empty", "Apply", 4, json!({})),
    ]);
    object.put_with("b", &members, edited.clone());
    object.check(&["y Apply 04 .spec.priority", "z Update 03 .spec.enabled"]);
    // Left out or null: the stored one counts.
    for list in [Value::Null, json!("text")] {
        object.put_with("b", &members, list);
        object.check(&["y Apply 04 .spec.priority", "z Update 03 .spec.enabled"]);
    }
    object.write("b", None, thing(&members));
    object.check(&["y Apply 04 .spec.priority", "z Update 03 .spec.enabled"]);
    // Through a subresource it is ignored.
    let mut new = thing(&members);
    new["metadata"]["managedFields"] = json!([entry("evil", "Apply", 1, json!({"f:spec": {}}))]);
    object.write("b", Some("status"), new);
    object.check(&["y Apply 04 .spec.priority", "z Update 03 .spec.enabled"]);
    // With a create it counts, but everything present goes to the creator.
    let mut object = Object::new();
    object.put_with("c", &members, edited);
    object.check(&["c Update 01 .spec .spec.enabled .spec.priority"]);
}

#[test]
fn undecodable_lists_are_ignored() {
    let members = json!({"spec": {"priority": 5}});
    let good = entry("a", "Update", 1, json!({"f:spec": {".": {}, "f:priority": {}}}));
    let broken = |key: &str, value: Value| {
        let mut entry = good.clone();
        entry[key] = value;
        json!([entry])
    };
    for list in [
        broken("operation", json!("Merge")),
        broken("operation", json!("")),
        broken("apiVersion", json!("")),
        broken("fieldsType", json!("")),
        broken("fieldsType", json!("FieldsV2")),
        broken("fieldsV1", json!({"spec": {}})),
        broken("fieldsV1", json!({"f:spec": 1})),
        json!([good, {}]),
    ] {
        let mut object = Object::stored(&json!([good]), &members);
        object.put_with("b", &json!({"spec": {"priority": 6}}), list.clone());
        object.check(&["a Update 01 .spec", "b Update 11 .spec.priority"]);
        // Nor is a stored list that cannot be read a reason to fail.
        let mut object = Object::stored(&list, &members);
        object.put_with("b", &json!({"spec": {"priority": 6}}), list);
        assert_eq!(object.list(), None);
    }
}

#[test]
fn resets_stop_the_tracking_of_stored_objects() {
    let members = json!({"spec": {"priority": 5}});
    for list in [json!([]), json!([{}])] {
        let mut object = Object::new();
        object.put("a", &members).put_with("b", &members, list.clone());
        assert_eq!(object.list(), None);
        object.put("b", &json!({"spec": {"priority": 6}}));
        assert_eq!(object.list(), None, "nothing is recorded until the first apply");
        // With a change the writer is not recorded either; on create a reset means nothing.
        let mut object = Object::new();
        object.put_with("a", &members, list.clone());
        object.check(&["a Update 01 .spec .spec.priority"]);
        object.put_with("b", &json!({"spec": {"priority": 6}}), list);
        assert_eq!(object.list(), None);
    }
    // Entries without fields clear the list, and the change is recorded.
    let mut object = Object::new();
    object.put("a", &members).put_with(
        "b",
        &json!({"spec": {"priority": 6}}),
        json!([entry("x", "Apply", 1, json!({}))]),
    );
    object.check(&["b Update 02 .spec.priority"]);
}

#[test]
fn of_two_entries_with_one_identity_the_later_is_used() {
    let members = json!({"spec": {"priority": 5, "enabled": true}});
    let list = json!([
        entry("a", "Apply", 1, json!({"f:spec": {"f:priority": {}}})),
        entry("a", "Apply", 2, json!({"f:spec": {"f:enabled": {}}})),
    ]);
    let mut object = Object::stored(&list, &members);
    object.put("b", &members);
    object.check(&["a Apply 02 .spec.enabled"]);
}

#[test]
fn a_write_that_changes_only_times_keeps_the_old_times() {
    let list = |second| json!([entry("a", "Update", second, json!({"f:spec": {}}))]);
    let stored = |second, spec: Value| {
        let mut object = thing(&json!({ "spec": spec }));
        object["metadata"]["managedFields"] = list(second);
        object
    };
    let live = stored(1, json!({"priority": 1}));
    let mut same = stored(2, json!({"priority": 1}));
    same["metadata"]["resourceVersion"] = "5".into();
    keep_times_of_unchanged(&live, &mut same);
    assert_eq!(same["metadata"]["managedFields"], list(1));
    // A new time would move an entry behind another one.
    let two = |first, second| {
        let mut object = thing(&json!({ "spec": {"priority": 1} }));
        let entries =
            [("a", first), ("b", second)].map(|(name, at)| entry(name, "Apply", at, json!({"f:spec": {}})));
        object["metadata"]["managedFields"] = json!(entries);
        object
    };
    let mut applied = two(2, 1);
    applied["metadata"]["managedFields"]
        .as_array_mut()
        .unwrap()
        .reverse();
    keep_times_of_unchanged(&two(1, 1), &mut applied);
    assert_eq!(applied, two(1, 1));
    let mut changed = stored(2, json!({"priority": 2}));
    keep_times_of_unchanged(&live, &mut changed);
    assert_eq!(changed["metadata"]["managedFields"], list(2));
    let mut labelled = stored(2, json!({"priority": 1}));
    labelled["metadata"]["labels"] = json!({"a": "b"});
    keep_times_of_unchanged(&live, &mut labelled);
    assert_eq!(labelled["metadata"]["managedFields"], list(2));
    let mut owned = stored(2, json!({"priority": 1}));
    owned["metadata"]["managedFields"][0]["manager"] = "b".into();
    let before = owned.clone();
    keep_times_of_unchanged(&live, &mut owned);
    assert_eq!(owned, before);
}
