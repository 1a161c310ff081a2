use std::sync::LazyLock;

use proptest::prelude::*;
use serde_json::json;

use super::*;

const V1: &str = "example.com/v1";
const V2: &str = "example.com/v2";

fn kind(list: &str) -> Structural {
    let requesters = json!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["name"],
        "items": {
            "type": "object",
            "x-kubernetes-map-type": "atomic",
            "properties": {"name": {"type": "string"}, "intent": {"type": "string"}}
        }
    });
    let conditions = json!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {"type": "object", "properties": {"type": {"type": "string"}, "status": {"type": "string"}}}
    });
    let mut spec = json!({"type": "object", "properties": {
        "priority": {"type": "integer"},
        "enabled": {"type": "boolean"},
        "granular": conditions
    }});
    spec["properties"][list] = requesters;
    let status = json!({"type": "object", "properties": {
        "conditions": conditions,
        "active": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}}
    }});
    Structural::for_kind("Thing", "v1", "", &[("spec", &spec), ("status", &status)]).unwrap()
}

static SCHEMA: LazyLock<Structural> = LazyLock::new(|| kind("requesters"));
static OTHER_SCHEMA: LazyLock<Structural> = LazyLock::new(|| kind("parties"));

/// Two versions; the second calls `spec.requesters` `spec.parties`. Objects with `spec.priority` 13 do not convert.
struct Renamed;

impl Versions for Renamed {
    fn schema(&self, api_version: &str) -> Option<&Structural> {
        (api_version == V2).then_some(&*OTHER_SCHEMA)
    }

    fn convert(&self, object: &Value, _: &str) -> Option<Value> {
        let mut object = object.clone();
        if object.pointer("/spec/priority") == Some(&json!(13)) {
            return None;
        }
        if let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
            && let Some(list) = spec.remove("requesters")
        {
            spec.insert("parties".to_owned(), list);
        }
        Some(object)
    }
}

/// An object as it is stored, with writers one after the other.
struct Story {
    live: Option<Value>,
    clock: u32,
}

impl Story {
    fn new() -> Self {
        Self { live: None, clock: 0 }
    }

    /// A story that begins with a stored object.
    fn with(entries: &Value, members: &Value) -> Self {
        let mut live = object(members);
        live["metadata"]["uid"] = "u".into();
        live["metadata"]["managedFields"] = entries.clone();
        Self {
            live: Some(live),
            clock: 10,
        }
    }

    /// Writes `members`, the stored list kept, as a client does that read before.
    fn put(&mut self, manager: &str, members: &Value) -> &mut Self {
        let mut new = object(members);
        if let Some(list) = self.list() {
            new["metadata"]["managedFields"] = list;
        }
        self.write(manager, None, new)
    }

    /// Writes `members` with a list of the client's.
    fn put_with(&mut self, manager: &str, members: &Value, list: Value) -> &mut Self {
        let mut new = object(members);
        new["metadata"]["managedFields"] = list;
        self.write(manager, None, new)
    }

    fn write(&mut self, manager: &str, subresource: Option<&str>, mut new: Value) -> &mut Self {
        self.clock += 1;
        let time = format!("2026-01-01T00:00:{:02}Z", self.clock);
        let writer = Writer {
            manager,
            api_version: V1,
            subresource,
            time: &time,
        };
        let reset_fields = if subresource.is_some() {
            reset_by_status()
        } else {
            reset_by_object()
        };
        let endpoint = Endpoint {
            schema: &SCHEMA,
            reset_fields,
            versions: &Renamed,
        };
        record_update(&endpoint, self.live.as_ref(), &mut new, &writer);
        new["metadata"]["uid"] = "u".into();
        self.live = Some(new);
        self
    }

    fn list(&self) -> Option<Value> {
        self.live.as_ref()?.pointer("/metadata/managedFields").cloned()
    }

    /// The entries, shortened: `manager/subresource Operation@version seconds {paths}`.
    fn entries(&self) -> Vec<String> {
        let list = self.list().unwrap_or(Value::Null);
        decode_entries(&list)
            .unwrap()
            .iter()
            .map(|entry| {
                let subresource = match entry.subresource.as_str() {
                    "" => String::new(),
                    name => format!("/{name}"),
                };
                let version = if entry.api_version == V1 { "" } else { "@v2" };
                let time = entry.time.as_deref().map_or("-", |time| &time[17..19]);
                let paths: Vec<_> = entry.fields.paths().iter().map(ToString::to_string).collect();
                let operation = entry.operation.as_str();
                format!(
                    "{}{subresource} {operation}{version} {time} {}",
                    entry.manager,
                    paths.join(" ")
                )
            })
            .collect()
    }

    #[track_caller]
    fn check(&self, expected: &[&str]) {
        assert_eq!(self.entries(), expected);
    }
}

fn object(members: &Value) -> Value {
    let mut object = json!({"apiVersion": V1, "kind": "Thing", "metadata": {"name": "n", "namespace": "d"}});
    for (key, value) in members.as_object().unwrap() {
        if key == "metadata" {
            object["metadata"]
                .as_object_mut()
                .unwrap()
                .extend(value.as_object().unwrap().clone());
        } else {
            object[key] = value.clone();
        }
    }
    object
}

#[expect(clippy::needless_pass_by_value, reason = "tables of literals read better")]
fn entry(manager: &str, operation: &str, second: u32, fields: Value) -> Value {
    json!({"manager": manager, "operation": operation, "apiVersion": V1, "fieldsType": "FieldsV1",
        "time": format!("2026-01-01T00:00:{second:02}Z"), "fieldsV1": fields})
}

#[test]
fn a_creator_owns_everything_but_what_the_server_fills_in() {
    let mut story = Story::new();
    story.put(
        "a",
        &json!({"metadata": {"generateName": "g", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"app": "w"}},
            "spec": {"priority": 5, "requesters": [{"name": "r"}]}, "status": {"active": ["x"]}}),
    );
    story.check(&[
        "a Update 01 .metadata.generateName .metadata.labels .metadata.labels.app .spec .spec.priority \
         .spec.requesters .spec.requesters[name=\"r\"]",
    ]);
    assert_eq!(
        story.list().unwrap(),
        json!([{"apiVersion": V1, "fieldsType": "FieldsV1", "manager": "a", "operation": "Update", "time": "2026-01-01T00:00:01Z",
        "fieldsV1": {
            "f:metadata": {"f:generateName": {}, "f:labels": {".": {}, "f:app": {}}},
            "f:spec": {".": {}, "f:priority": {}, "f:requesters": {".": {}, "k:{\"name\":\"r\"}": {}}}
        }}])
    );
}

#[test]
fn a_create_that_sets_nothing_records_nothing() {
    let mut story = Story::new();
    story.put("a", &json!({}));
    assert_eq!(story.list(), None);
    story.put("a", &json!({"spec": {"priority": 1}}));
    assert_eq!(story.list(), None, "untracked until somebody applies");
}

#[test]
fn a_nameless_writer_is_unknown() {
    let mut story = Story::new();
    story.put("", &json!({"spec": {}}));
    story.check(&["unknown Update 01 .spec"]);
}

#[test]
fn an_update_owns_what_it_changes_and_others_lose_it() {
    let mut story = Story::new();
    story
        .put("a", &json!({"spec": {"priority": 5, "enabled": true}}))
        .put("b", &json!({"spec": {"priority": 7, "enabled": true}}));
    story.check(&["a Update 01 .spec .spec.enabled", "b Update 02 .spec.priority"]);
    // Its own field again: the entry is renewed.
    story.put("b", &json!({"spec": {"priority": 8, "enabled": true}}));
    story.check(&["a Update 01 .spec .spec.enabled", "b Update 03 .spec.priority"]);
}

#[test]
fn equal_writes_change_neither_sets_nor_times() {
    let mut story = Story::new();
    let members = json!({"spec": {"priority": 5, "requesters": [{"name": "r"}]}});
    story.put("a", &members);
    let before = story.list();
    story.put("a", &members).put("b", &members);
    assert_eq!(story.list(), before);
}

#[test]
fn removed_fields_are_owned_by_nobody() {
    let mut story = Story::new();
    story
        .put("a", &json!({"spec": {"priority": 5, "enabled": true}}))
        .put("b", &json!({"spec": {"enabled": true}}));
    story.check(&["a Update 01 .spec .spec.enabled"]);
    story.put("b", &json!({}));
    assert_eq!(story.list(), None);
}

#[test]
fn a_further_item_is_owned_without_its_list() {
    let mut story = Story::new();
    story
        .put("a", &json!({"spec": {"requesters": [{"name": "a"}]}}))
        .put(
            "b",
            &json!({"spec": {"requesters": [{"name": "b"}, {"name": "a"}]}}),
        );
    story.check(&[
        "a Update 01 .spec .spec.requesters .spec.requesters[name=\"a\"]",
        "b Update 02 .spec.requesters[name=\"b\"]",
    ]);
}

#[test]
fn an_update_takes_fields_from_appliers() {
    // Worked examples 6, 7 and 25: an applier's priority, a removed field, an atomic item.
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
    let mut story = Story::with(&json!([applied]), &spec(Some(5), "E"));
    story.put("u", &spec(Some(7), "E"));
    story.check(&[
        "a Apply 01 .spec.enabled .spec.requesters[name=\"r1\"] .spec.requesters[name=\"r2\"]",
        "u Update 11 .spec.priority",
    ]);
    story.put("u", &spec(None, "W"));
    story.check(&[
        "a Apply 01 .spec.enabled .spec.requesters[name=\"r2\"]",
        "u Update 12 .spec.requesters[name=\"r1\"]",
    ]);
    // An applier and an updater of one name are two writers.
    story.put("a", &spec(Some(1), "W"));
    story.check(&[
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
        json!({"f:spec": {"f:granular": {"k:{\"type\":\"i\"}": {".": {}, "f:type": {}}}}}),
    );
    let mut story = Story::with(&json!([applied]), &json!({"spec": {"granular": [{"type": "i"}]}}));
    story.put(
        "u",
        &json!({"spec": {"granular": [{"type": "i", "status": "s"}]}}),
    );
    story.check(&[
        "a Apply 01 .spec.granular[type=\"i\"] .spec.granular[type=\"i\"].type",
        "u Update 11 .spec.granular[type=\"i\"].status",
    ]);
}

#[test]
fn finalizers_are_owned_one_by_one() {
    // Worked example 12, the updater's part.
    let applied = entry(
        "a",
        "Apply",
        1,
        json!({"f:metadata": {"f:finalizers": {"v:\"f1\"": {}}}}),
    );
    let mut story = Story::with(&json!([applied]), &json!({"metadata": {"finalizers": ["f1"]}}));
    story.put("u", &json!({"metadata": {"finalizers": ["f1", "f2"]}}));
    story.check(&[
        "a Apply 01 .metadata.finalizers[=\"f1\"]",
        "u Update 11 .metadata.finalizers[=\"f2\"]",
    ]);
    story.put("u", &json!({}));
    assert_eq!(story.list(), None);
}

#[test]
fn endpoints_record_only_what_they_do_not_reset() {
    let mut story = Story::new();
    story.put(
        "a",
        &json!({"spec": {"priority": 1}, "status": {"active": ["x"]}}),
    );
    story.check(&["a Update 01 .spec .spec.priority"]);
    let mut new = object(
        &json!({"metadata": {"labels": {"l": "1"}}, "spec": {"priority": 2}, "status": {"active": ["y"]}}),
    );
    new["metadata"]["uid"] = "u".into();
    story.write("a", Some("status"), new);
    story.check(&[
        "a Update 01 .spec .spec.priority",
        "a/status Update 02 .status.active[=\"y\"]",
    ]);
}

#[test]
fn what_an_endpoint_resets_is_not_lost_by_being_left_out() {
    let mut story = Story::new();
    story.put("a", &json!({"spec": {"priority": 1}}));
    let mut new = story.live.clone().unwrap();
    new["status"] = json!({"active": ["y"]});
    story.write("ctl", Some("status"), new);
    // As a client writes that knows the spec only; the server puts the status back later.
    story.put("a", &json!({"spec": {"priority": 2}}));
    story.check(&[
        "ctl/status Update 02 .status .status.active .status.active[=\"y\"]",
        "a Update 03 .spec .spec.priority",
    ]);
}

#[test]
fn lists_that_clients_send_are_honoured_on_the_main_resource() {
    let members = json!({"spec": {"priority": 5, "enabled": true}});
    let mut story = Story::new();
    story.put("a", &members);
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
    story.put_with("b", &members, edited.clone());
    story.check(&["y Apply 04 .spec.priority", "z Update 03 .spec.enabled"]);
    // Left out or null: the stored one counts.
    for list in [Value::Null, json!("text")] {
        story.put_with("b", &members, list);
        story.check(&["y Apply 04 .spec.priority", "z Update 03 .spec.enabled"]);
    }
    story.write("b", None, object(&members));
    story.check(&["y Apply 04 .spec.priority", "z Update 03 .spec.enabled"]);
    // Through a subresource it is ignored.
    let mut new = object(&members);
    new["metadata"]["managedFields"] = json!([entry("evil", "Apply", 1, json!({"f:spec": {}}))]);
    story.write("b", Some("status"), new);
    story.check(&["y Apply 04 .spec.priority", "z Update 03 .spec.enabled"]);
    // With a create it counts, but everything present goes to the creator.
    let mut story = Story::new();
    story.put_with("c", &members, edited);
    story.check(&["c Update 01 .spec .spec.enabled .spec.priority"]);
}

#[test]
fn undecodable_lists_are_ignored() {
    let members = json!({"spec": {"priority": 5}});
    let good = entry("a", "Update", 1, json!({"f:spec": {".": {}, "f:priority": {}}}));
    let fault = |key: &str, value: Value| {
        let mut entry = good.clone();
        entry[key] = value;
        json!([entry])
    };
    for list in [
        fault("operation", json!("Merge")),
        fault("operation", json!("")),
        fault("apiVersion", json!("")),
        fault("fieldsType", json!("")),
        fault("fieldsType", json!("FieldsV2")),
        fault("fieldsV1", json!({"spec": {}})),
        fault("fieldsV1", json!({"f:spec": 1})),
        json!([good, {}]),
    ] {
        let mut story = Story::with(&json!([good]), &members);
        story.put_with("b", &json!({"spec": {"priority": 6}}), list.clone());
        story.check(&["a Update 01 .spec", "b Update 11 .spec.priority"]);
        // Nor is a stored list that cannot be read a reason to fail.
        let mut story = Story::with(&list, &members);
        story.put_with("b", &json!({"spec": {"priority": 6}}), list);
        assert_eq!(story.list(), None);
    }
}

#[test]
fn resets_stop_the_tracking_of_stored_objects() {
    let members = json!({"spec": {"priority": 5}});
    for list in [json!([]), json!([{}])] {
        let mut story = Story::new();
        story.put("a", &members).put_with("b", &members, list.clone());
        assert_eq!(story.list(), None);
        story.put("b", &json!({"spec": {"priority": 6}}));
        assert_eq!(story.list(), None, "nothing is recorded until somebody applies");
        // With a change the writer is not recorded either; on create a reset means nothing.
        let mut story = Story::new();
        story.put_with("a", &members, list.clone());
        story.check(&["a Update 01 .spec .spec.priority"]);
        story.put_with("b", &json!({"spec": {"priority": 6}}), list);
        assert_eq!(story.list(), None);
    }
    // Entries without fields clear the list, and the change is recorded.
    let mut story = Story::new();
    story.put("a", &members).put_with(
        "b",
        &json!({"spec": {"priority": 6}}),
        json!([entry("x", "Apply", 1, json!({}))]),
    );
    story.check(&["b Update 02 .spec.priority"]);
}

#[test]
fn of_two_entries_of_one_writer_the_later_counts() {
    let members = json!({"spec": {"priority": 5, "enabled": true}});
    let list = json!([
        entry("a", "Apply", 1, json!({"f:spec": {"f:priority": {}}})),
        entry("a", "Apply", 2, json!({"f:spec": {"f:enabled": {}}})),
    ]);
    let mut story = Story::with(&list, &members);
    story.put("b", &members);
    story.check(&["a Apply 02 .spec.enabled"]);
}

#[test]
fn entries_are_ordered_by_operation_time_and_name() {
    let set = FieldSet::from_value(&json!({"f:a": {}})).unwrap();
    let entry = |operation, second: Option<u32>, manager: &str, subresource: &str| Entry {
        manager: manager.to_owned(),
        operation,
        api_version: V1.to_owned(),
        subresource: subresource.to_owned(),
        time: second.map(|second| format!("2026-01-01T00:00:{second:02}Z")),
        fields: set.clone(),
    };
    let sorted = vec![
        entry(Operation::Apply, None, "z", ""),
        entry(Operation::Apply, Some(2), "a", ""),
        entry(Operation::Apply, Some(2), "a", "status"),
        entry(Operation::Apply, Some(2), "b", ""),
        entry(Operation::Update, None, "a", ""),
        entry(Operation::Update, Some(1), "c", ""),
    ];
    let list = encode_entries(sorted.iter().rev().cloned().collect()).unwrap();
    assert_eq!(decode_entries(&list).unwrap(), sorted);
    assert_eq!(encode_entries(Vec::new()), None);
}

#[test]
fn the_oldest_of_many_updaters_are_merged() {
    // Worked example 39.
    let mut story = Story::new();
    story.put(
        "u00",
        &json!({"spec": {"priority": 0}, "metadata": {"labels": {"u00": ""}}}),
    );
    story.write("s", Some("status"), {
        let mut new = story.live.clone().unwrap();
        new["status"] = json!({"active": ["x"]});
        new
    });
    let mut labels = json!({"u00": ""});
    let write = |story: &mut Story, name: &str, labels: &mut Value| {
        labels[name] = "".into();
        story.put(
            name,
            &json!({"spec": {"priority": 0}, "metadata": {"labels": labels}, "status": {"active": ["x"]}}),
        );
    };
    for index in 1..9 {
        write(&mut story, &format!("u{index:02}"), &mut labels);
    }
    assert_eq!(story.entries().len(), 10);
    write(&mut story, "u09", &mut labels);
    let entries = story.entries();
    assert_eq!(entries.len(), 10);
    assert_eq!(
        entries[0],
        "ancient-changes Update 02 .metadata.labels .metadata.labels.u00 .spec .spec.priority .status .status.active .status.active[=\"x\"]"
    );
    assert_eq!(entries[1], "u01 Update 03 .metadata.labels.u01");
    write(&mut story, "u10", &mut labels);
    let entries = story.entries();
    assert_eq!(entries.len(), 10);
    assert!(
        entries[0].starts_with("ancient-changes Update 03 ") && entries[0].contains(".labels.u01"),
        "{}",
        entries[0]
    );
    assert!(entries[1].starts_with("u02 "));
}

/// Caps updaters named by second, subresource and version, and tells what is left.
fn capped(updaters: &[(u32, &str, &str, &str)]) -> Vec<String> {
    let mut entries: Vec<_> = updaters
        .iter()
        .map(|(second, manager, subresource, version)| Entry {
            manager: (*manager).to_owned(),
            operation: Operation::Update,
            api_version: (*version).to_owned(),
            subresource: (*subresource).to_owned(),
            time: Some(format!("2026-01-01T00:00:{second:02}Z")),
            fields: [Path::fields(&[&format!("f{second}")])].into_iter().collect(),
        })
        .collect();
    cap_updaters(&mut entries);
    entries
        .iter()
        .map(|entry| {
            let paths: Vec<_> = entry.fields.paths().iter().map(ToString::to_string).collect();
            format!(
                "{}/{} {} {}",
                entry.manager,
                entry.subresource,
                &entry.api_version[12..],
                paths.concat()
            )
        })
        .collect()
}

#[test]
fn the_bucket_of_a_version_has_no_subresource() {
    let mut updaters = vec![(1, "s", "status", V1), (2, "o", "", V2)];
    updaters.extend((3..12).map(|second| (second, "u", "status", V1)));
    let left = capped(&updaters);
    assert_eq!(left.len(), 10);
    assert_eq!(
        left[..3],
        ["ancient-changes/ v1 .f1.f3", "o/ v2 .f2", "u/status v1 .f4"]
    );
}

#[test]
fn ten_updaters_and_updaters_of_ten_versions_stay() {
    let ten: Vec<_> = (1..11).map(|second| (second, "u", "", V1)).collect();
    assert!(capped(&ten).iter().all(|entry| entry.starts_with("u/ v1")));
    let names: Vec<_> = (1..15).map(|version| format!("example.com/v{version}")).collect();
    let versions: Vec<_> = names
        .iter()
        .zip(1..)
        .map(|(version, second)| (second, "u", "", version.as_str()))
        .collect();
    assert_eq!(capped(&versions).len(), 14);
}

#[test]
fn a_bucket_that_exists_is_used_wherever_it_stands() {
    let mut updaters = vec![
        (1, "first", "", V1),
        (2, "second", "", V1),
        (3, "ancient-changes", "", V1),
    ];
    updaters.extend((4..14).map(|second| (second, "u", "", V1)));
    let left = capped(&updaters);
    assert_eq!(left.len(), 10);
    assert_eq!(
        left[..3],
        ["first/ v1 .f1", "ancient-changes/ v1 .f2.f3.f4.f5", "u/ v1 .f6"]
    );
}

#[test]
fn entries_of_other_versions_are_compared_in_their_version() {
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
    let mut story = Story::with(&list, &spec("E", 1));
    story.put("a", &spec("W", 1));
    story.check(&[
        "b Update@v2 01 .spec.parties[name=\"n\"]",
        "a Update 11 .spec.requesters[name=\"m\"]",
    ]);
    // What does not convert leaves the owners as they were.
    let before = story.list();
    story.put("a", &spec("W", 13));
    assert_eq!(story.list(), before);
}

#[test]
fn owners_of_what_is_atomic_now_own_the_whole() {
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
    let mut story = Story::with(&list, &members);
    story.put("c", &members);
    story.check(&[
        "a Update 01 .spec.requesters[name=\"r\"]",
        "b Update 02 .spec.requesters[name=\"r\"]",
    ]);
}

#[test]
fn lists_without_keys_leave_the_owners_as_they_were() {
    let mut story = Story::new();
    story.put("a", &json!({"spec": {"priority": 1}}));
    let before = story.list();
    story.put(
        "b",
        &json!({"spec": {"priority": 2, "requesters": [{"intent": "E"}]}}),
    );
    assert_eq!(story.list(), before);
}

#[test]
fn a_write_that_changes_only_times_gets_the_old_times_back() {
    let list = |second| json!([entry("a", "Update", second, json!({"f:spec": {}}))]);
    let stored = |second, spec: Value| {
        let mut object = object(&json!({ "spec": spec }));
        object["metadata"]["managedFields"] = list(second);
        object
    };
    let live = stored(1, json!({"priority": 1}));
    let mut same = stored(2, json!({"priority": 1}));
    same["metadata"]["resourceVersion"] = "5".into();
    keep_times_of_unchanged(&live, &mut same);
    assert_eq!(same["metadata"]["managedFields"], list(1));
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
            spec["granular"] = items.iter().map(|(kind, status)| json!({"type": kind, "status": status})).collect();
        }
        json!({"spec": spec, "metadata": {"labels": labels.unwrap_or_default(), "finalizers": finalizers.unwrap_or_default()}})
    })
}

proptest! {
    /// As long as there are only updates and none is merged, every field has exactly one owner.
    #[test]
    fn updates_leave_no_field_without_an_owner_and_none_with_two(
        writes in prop::collection::vec(("[abc]", any_members()), 1..8)
    ) {
        let mut story = Story::new();
        for (manager, members) in &writes {
            story.put(manager, members);
            let mut content = everything(&SCHEMA, story.live.as_ref().unwrap()).unwrap();
            content.subtract(&SYSTEM_FIELDS);
            let entries = decode_entries(&story.list().unwrap()).unwrap();
            let owned: usize = entries.iter().map(|entry| entry.fields.len()).sum();
            let union = entries.into_iter().fold(FieldSet::new(), |all, entry| all.union(entry.fields));
            prop_assert_eq!(union.len(), owned, "a field has two owners");
            // A list or map that was emptied and filled again belongs to whoever filled it first.
            prop_assert_eq!(union, content);
        }
    }
}
