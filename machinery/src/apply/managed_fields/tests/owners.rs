use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::apply::fixtures::V2;
use crate::apply::value_paths::everything;

#[test]
fn the_creator_owns_all_fields_except_system_fields() {
    let mut object = Object::new();
    object.put(
        "a",
        &json!({"metadata": {"generateName": "g", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": "w"}},
            "spec": {"priority": 5, "requesters": [{"name": "r"}]}, "status": {"active": ["x"]}}),
    );
    object.check(&[
        "a Update 01 .metadata.generateName .metadata.labels .metadata.labels.app .spec .spec.priority \
         .spec.requesters .spec.requesters[name=\"r\"]",
    ]);
    assert_eq!(
        object.list().unwrap(),
        json!([{"apiVersion": V1, "fieldsType": "FieldsV1", "manager": "a", "operation": "Update", "time": "2026-01-01T00:00:01Z",
        "fieldsV1": {
            "f:metadata": {"f:generateName": {}, "f:labels": {".": {}, "f:app": {}}},
            "f:spec": {".": {}, "f:priority": {}, "f:requesters": {".": {}, "k:{\"name\":\"r\"}": {}}}
        }}])
    );
}

#[test]
fn a_create_without_fields_records_nothing() {
    let mut object = Object::new();
    object.put("a", &json!({}));
    assert_eq!(object.list(), None);
    object.put("a", &json!({"spec": {"priority": 1}}));
    assert_eq!(object.list(), None, "untracked until the first apply");
}

#[test]
fn an_empty_manager_is_recorded_as_unknown() {
    let mut object = Object::new();
    object.put("", &json!({"spec": {}}));
    object.check(&["unknown Update 01 .spec"]);
}

#[test]
fn changed_fields_move_to_the_writer() {
    let mut object = Object::new();
    object
        .put("a", &json!({"spec": {"priority": 5, "enabled": true}}))
        .put("b", &json!({"spec": {"priority": 7, "enabled": true}}));
    object.check(&["a Update 01 .spec .spec.enabled", "b Update 02 .spec.priority"]);
    // Its own field again: the entry is renewed.
    object.put("b", &json!({"spec": {"priority": 8, "enabled": true}}));
    object.check(&["a Update 01 .spec .spec.enabled", "b Update 03 .spec.priority"]);
}

#[test]
fn equal_values_change_neither_sets_nor_times() {
    let mut object = Object::new();
    let members = json!({"spec": {"priority": 5, "requesters": [{"name": "r"}]}});
    object.put("a", &members);
    let before = object.list();
    object.put("a", &members).put("b", &members);
    assert_eq!(object.list(), before);
}

#[test]
fn removed_fields_are_owned_by_nobody() {
    let mut object = Object::new();
    object
        .put("a", &json!({"spec": {"priority": 5, "enabled": true}}))
        .put("b", &json!({"spec": {"enabled": true}}));
    object.check(&["a Update 01 .spec .spec.enabled"]);
    object.put("b", &json!({}));
    assert_eq!(object.list(), None);
}

#[test]
fn an_added_item_is_owned_without_its_list() {
    let mut object = Object::new();
    object
        .put("a", &json!({"spec": {"requesters": [{"name": "a"}]}}))
        .put(
            "b",
            &json!({"spec": {"requesters": [{"name": "b"}, {"name": "a"}]}}),
        );
    object.check(&[
        "a Update 01 .spec .spec.requesters .spec.requesters[name=\"a\"]",
        "b Update 02 .spec.requesters[name=\"b\"]",
    ]);
}

#[test]
fn an_update_takes_fields_from_appliers() {
    // An applier's priority, a removed field, an atomic item.
    let applied = entry(
        "a",
        "Apply",
        1,
        json!({"f:spec": {"f:priority": {}, "f:enabled": {},
        "f:requesters": {"k:{\"name\":\"r1\"}": {}, "k:{\"name\":\"r2\"}": {}}}}),
    );
    let spec = |priority: Option<i32>, intent: &str| {
        let mut spec = json!({"enabled": true, "requesters": [{"name": "r1", "intent": intent}, {"name": "r2", "intent": "E"}]});
        if let Some(priority) = priority {
            spec["priority"] = priority.into();
        }
        json!({ "spec": spec })
    };
    let mut object = Object::stored(&json!([applied]), &spec(Some(5), "E"));
    object.put("u", &spec(Some(7), "E"));
    object.check(&[
        "a Apply 01 .spec.enabled .spec.requesters[name=\"r1\"] .spec.requesters[name=\"r2\"]",
        "u Update 11 .spec.priority",
    ]);
    object.put("u", &spec(None, "W"));
    object.check(&[
        "a Apply 01 .spec.enabled .spec.requesters[name=\"r2\"]",
        "u Update 12 .spec.requesters[name=\"r1\"]",
    ]);
    // An applier and an updater of one name are two writers.
    object.put("a", &spec(Some(1), "W"));
    object.check(&[
        "a Apply 01 .spec.enabled .spec.requesters[name=\"r2\"]",
        "u Update 12 .spec.requesters[name=\"r1\"]",
        "a Update 13 .spec.priority",
    ]);
}

#[test]
fn a_field_inside_an_item_is_owned_without_the_item() {
    // The first half of worked example 28.
    let applied = entry(
        "a",
        "Apply",
        1,
        json!({"f:spec": {"f:granular": {"k:{\"name\":\"i\"}": {".": {}, "f:name": {}}}}}),
    );
    let mut object = Object::stored(&json!([applied]), &json!({"spec": {"granular": [{"name": "i"}]}}));
    object.put(
        "u",
        &json!({"spec": {"granular": [{"name": "i", "reason": "s"}]}}),
    );
    object.check(&[
        "a Apply 01 .spec.granular[name=\"i\"] .spec.granular[name=\"i\"].name",
        "u Update 11 .spec.granular[name=\"i\"].reason",
    ]);
}

#[test]
fn finalizers_are_owned_individually() {
    let applied = entry(
        "a",
        "Apply",
        1,
        json!({"f:metadata": {"f:finalizers": {"v:\"f1\"": {}}}}),
    );
    let mut object = Object::stored(&json!([applied]), &json!({"metadata": {"finalizers": ["f1"]}}));
    object.put("u", &json!({"metadata": {"finalizers": ["f1", "f2"]}}));
    object.check(&[
        "a Apply 01 .metadata.finalizers[=\"f1\"]",
        "u Update 11 .metadata.finalizers[=\"f2\"]",
    ]);
    object.put("u", &json!({}));
    assert_eq!(object.list(), None);
}

#[test]
fn reset_fields_are_not_owned() {
    let mut object = Object::new();
    object.put(
        "a",
        &json!({"spec": {"priority": 1}, "status": {"active": ["x"]}}),
    );
    object.check(&["a Update 01 .spec .spec.priority"]);
    let mut new = thing(
        &json!({"metadata": {"labels": {"l": "1"}}, "spec": {"priority": 2}, "status": {"active": ["y"]}}),
    );
    new["metadata"]["uid"] = "u".into();
    object.write("a", Some("status"), new);
    object.check(&[
        "a Update 01 .spec .spec.priority",
        "a/status Update 02 .status.active[=\"y\"]",
    ]);
}

#[test]
fn reset_fields_keep_their_owners_when_omitted() {
    let mut object = Object::new();
    object.put("a", &json!({"spec": {"priority": 1}}));
    let mut new = object.live.clone().unwrap();
    new["status"] = json!({"active": ["y"]});
    object.write("ctl", Some("status"), new);
    // As a client writes that knows the spec only; the server puts the status back later.
    object.put("a", &json!({"spec": {"priority": 2}}));
    object.check(&[
        "ctl/status Update 02 .status .status.active .status.active[=\"y\"]",
        "a Update 03 .spec .spec.priority",
    ]);
}

#[test]
fn entries_in_other_versions_are_compared_in_their_version() {
    let mut other = entry(
        "b",
        "Update",
        1,
        json!({"f:spec": {"f:parties": {"k:{\"name\":\"m\"}": {}, "k:{\"name\":\"n\"}": {}}}}),
    );
    other["apiVersion"] = V2.into();
    let mut gone = entry("c", "Update", 1, json!({"f:spec": {"f:priority": {}}}));
    gone["apiVersion"] = "example.com/v0".into();
    let list = json!([other, gone]);
    let spec = |intent: &str, priority: i32| json!({"spec": {"priority": priority, "requesters": [{"name": "m", "intent": intent}, {"name": "n"}]}});
    let mut object = Object::stored(&list, &spec("E", 1));
    object.put("a", &spec("W", 1));
    object.check(&[
        "b Update@v2 01 .spec.parties[name=\"n\"]",
        "a Update 11 .spec.requesters[name=\"m\"]",
    ]);
    // What does not convert leaves the owners as they were.
    let before = object.list();
    object.put("a", &spec("W", 13));
    assert_eq!(object.list(), before);
}

#[test]
fn owners_below_a_value_that_became_atomic_own_the_whole_value() {
    let list = json!([
        entry(
            "a",
            "Update",
            1,
            json!({"f:spec": {"f:requesters": {"k:{\"name\":\"r\"}": {"f:name": {}, "f:intent": {}}}}})
        ),
        entry(
            "b",
            "Update",
            2,
            json!({"f:spec": {"f:requesters": {"k:{\"name\":\"r\"}": {"f:intent": {}}}}})
        ),
    ]);
    let members = json!({"spec": {"requesters": [{"name": "r", "intent": "E"}]}});
    let mut object = Object::stored(&list, &members);
    object.put("c", &members);
    object.check(&[
        "a Update 01 .spec.requesters[name=\"r\"]",
        "b Update 02 .spec.requesters[name=\"r\"]",
    ]);
}

#[test]
fn lists_without_keys_do_not_change_ownership() {
    let mut object = Object::new();
    object.put("a", &json!({"spec": {"priority": 1}}));
    let before = object.list();
    object.put(
        "b",
        &json!({"spec": {"priority": 2, "requesters": [{"intent": "E"}]}}),
    );
    assert_eq!(object.list(), before);
}

#[test]
fn the_oldest_of_many_updaters_are_merged() {
    let mut object = Object::new();
    object.put(
        "u00",
        &json!({"spec": {"priority": 0}, "metadata": {"labels": {"u00": ""}}}),
    );
    object.write("s", Some("status"), {
        let mut new = object.live.clone().unwrap();
        new["status"] = json!({"active": ["x"]});
        new
    });
    let mut labels = json!({"u00": ""});
    let write = |object: &mut Object, name: &str, labels: &mut Value| {
        labels[name] = "".into();
        object.put(
            name,
            &json!({"spec": {"priority": 0}, "metadata": {"labels": labels}, "status": {"active": ["x"]}}),
        );
    };
    for index in 1..9 {
        write(&mut object, &format!("u{index:02}"), &mut labels);
    }
    assert_eq!(entries(object.live.as_ref().unwrap()).len(), 10);
    write(&mut object, "u09", &mut labels);
    let left = entries(object.live.as_ref().unwrap());
    assert_eq!(left.len(), 10);
    assert_eq!(
        left[0],
        "ancient-changes Update 02 .metadata.labels .metadata.labels.u00 .spec .spec.priority .status .status.active .status.active[=\"x\"]"
    );
    assert_eq!(left[1], "u01 Update 03 .metadata.labels.u01");
    write(&mut object, "u10", &mut labels);
    let left = entries(object.live.as_ref().unwrap());
    assert_eq!(left.len(), 10);
    assert!(
        left[0].starts_with("ancient-changes Update 03 ") && left[0].contains(".labels.u01"),
        "{}",
        left[0]
    );
    assert!(left[1].starts_with("u02 "));
}

fn any_members() -> impl Strategy<Value = Value> {
    let items = prop::collection::btree_map("[ab]", "[EW]", 0..3);
    let members = (
        prop::option::of(0_i64..3),
        prop::option::of(items.clone()),
        prop::option::of(items),
        prop::option::of(prop::collection::btree_map("[kl]", "[01]", 0..3)),
        prop::option::of(prop::collection::btree_set("[fg]", 0..3)),
    );
    members.prop_map(|(priority, requesters, granular, labels, finalizers)| {
        let mut spec = json!({});
        if let Some(priority) = priority {
            spec["priority"] = priority.into();
        }
        if let Some(items) = requesters {
            spec["requesters"] = items.iter().map(|(name, intent)| json!({"name": name, "intent": intent})).collect();
        }
        if let Some(items) = granular {
            spec["granular"] = items.iter().map(|(name, reason)| json!({"name": name, "reason": reason})).collect();
        }
        json!({"spec": spec, "metadata": {"labels": labels.unwrap_or_default(), "finalizers": finalizers.unwrap_or_default()}})
    })
}

proptest! {
    /// With updates only, and none merged, every field has exactly one owner.
    #[test]
    fn updates_give_every_field_exactly_one_owner(
        writes in prop::collection::vec(("[abc]", any_members()), 1..8)
    ) {
        let mut object = Object::new();
        for (manager, members) in &writes {
            object.put(manager, members);
            let mut content = everything(&V1_SCHEMA, object.live.as_ref().unwrap()).unwrap();
            content.subtract(&SYSTEM_FIELDS);
            let entries = decode_entries(&object.list().unwrap()).unwrap();
            let owned: usize = entries.iter().map(|entry| entry.fields.len()).sum();
            let union = entries.into_iter().fold(FieldSet::new(), |all, entry| all.union(entry.fields));
            prop_assert_eq!(union.len(), owned, "a field has two owners");
            // An emptied container keeps its owner.
            prop_assert_eq!(union, content);
        }
    }
}
