//! Properties of random sequences of writes.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::apply::field_set::FieldSet;

fn is_present(value: &Value) -> bool {
    match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
        other => !other.is_null(),
    }
}

/// The object without members that are empty or null.
fn present(mut object: Value) -> Value {
    object
        .as_object_mut()
        .unwrap()
        .retain(|_, value| is_present(value));
    object
}

/// Random members without nulls, empty containers and duplicate items.
fn any_members() -> impl Strategy<Value = Value> {
    let items = prop::collection::btree_map("[abc]", "[EW]", 0..3);
    let members = (
        (prop::option::of(0_i64..3), prop::option::of(any::<bool>())),
        (items.clone(), items.clone()),
        prop::collection::btree_map("[ab]", "[01]", 0..3),
        prop::collection::btree_set("[fg]", 0..3),
        (prop::option::of("[pq]"), prop::collection::vec("[pq]", 0..2)),
        prop::collection::btree_map("[mn]", prop::collection::btree_map("[xy]", 0..2, 1..3), 0..2),
    );
    members.prop_map(
        |((priority, enabled), (requesters, granular), labels, finalizers, (pod, atomic), free)| {
            let requesters: Vec<_> = requesters
                .iter()
                .map(|(name, intent)| requester(name, intent))
                .collect();
            let granular: Vec<_> = granular
                .iter()
                .map(|(name, reason)| json!({"name": name, "reason": reason}))
                .collect();
            let spec = present(json!({
                "priority": priority, "enabled": enabled, "requesters": requesters, "granular": granular,
                "target": pod.map(|pod| json!({"pod": {"name": pod}})), "atomicList": atomic, "free": free,
            }));
            let metadata = present(json!({"labels": labels, "finalizers": finalizers}));
            present(json!({"metadata": metadata, "spec": spec}))
        },
    )
}

#[derive(Debug, Clone)]
enum Write {
    Apply {
        manager: String,
        members: Value,
        is_forced: bool,
    },
    Put {
        manager: String,
        members: Value,
    },
}

fn any_write() -> impl Strategy<Value = Write> {
    let apply =
        ("[abc]", any_members(), any::<bool>()).prop_map(|(manager, members, is_forced)| Write::Apply {
            manager,
            members,
            is_forced,
        });
    let put = ("[au]", any_members()).prop_map(|(manager, members)| Write::Put { manager, members });
    prop_oneof![3 => apply, 1 => put]
}

/// An object that was created by an apply, which keeps it tracked, and then written.
fn written(writes: &[Write]) -> Object {
    let mut object = Object::new();
    object.apply("z", &labels(&json!({"z": "z"})));
    for write in writes {
        object.carry_out(write);
    }
    object
}

impl Object {
    /// Carries out a write. Returns whether it succeeded.
    fn carry_out(&mut self, write: &Write) -> bool {
        match write {
            Write::Apply {
                manager,
                members,
                is_forced,
            } => {
                let options = Options {
                    is_forced: *is_forced,
                    ..PLAIN
                };
                match self.try_apply(manager, members, options) {
                    Ok(_) => true,
                    Err(ApplyError::Conflicts(_)) => false,
                    Err(error) => panic!("{error}"),
                }
            }
            Write::Put { manager, members } => {
                let mut members = members.clone();
                members["metadata"]["labels"]["z"] = "z".into();
                self.put(manager, &members);
                true
            }
        }
    }

    fn decoded(&self) -> Vec<Entry> {
        let list = self.at("/metadata/managedFields").cloned().unwrap_or_default();
        decode_entries(&list).unwrap()
    }

    /// All paths that any manager owns.
    fn owned(&self) -> FieldSet {
        FieldSet::union_of(self.decoded().into_iter().map(|entry| entry.fields).collect())
    }

    /// The leaves and items of the object, without system fields.
    fn leaves(&self) -> FieldSet {
        let mut object = self.live.clone().unwrap();
        take_list(&mut object);
        applied_paths(&V1_SCHEMA, &object)
            .unwrap()
            .difference(&SYSTEM_FIELDS)
    }

    /// The values, with sets and list maps sorted, and the owners without times.
    fn normalized(&self) -> (Value, Vec<(String, Operation, FieldSet)>) {
        let mut object = self.live.clone().unwrap();
        take_list(&mut object);
        for pointer in ["/spec/requesters", "/spec/granular", "/metadata/finalizers"] {
            if let Some(Value::Array(items)) = object.pointer_mut(pointer) {
                items.sort_by_key(ToString::to_string);
            }
        }
        let entries = self.decoded().into_iter();
        let mut owners: Vec<_> = entries
            .map(|entry| (entry.manager, entry.operation, entry.fields))
            .collect();
        owners.sort_by(|left, right| (&left.0, left.1).cmp(&(&right.0, right.1)));
        (object, owners)
    }
}

/// Removes from `members` every field, key and item that `other` also has.
fn remove_common(members: &mut Value, other: &Value) {
    let Some(members) = members.as_object_mut() else {
        return;
    };
    members.retain(|name, value| {
        let Some(other) = other.get(name) else {
            return true;
        };
        match (&mut *value, other) {
            (Value::Object(_), Value::Object(_)) if name != "pod" => remove_common(value, other),
            (Value::Array(items), Value::Array(others)) if name != "atomicList" => {
                let key = |item: &Value| item.get("name").unwrap_or(item).clone();
                let taken: Vec<_> = others.iter().map(key).collect();
                items.retain(|item| !taken.contains(&key(item)));
            }
            _ => return false,
        }
        is_present(value)
    });
}

proptest! {
    #[test]
    fn a_repeated_apply_changes_nothing(
        writes in prop::collection::vec(any_write(), 0..5),
        manager in "[abc]",
        config in any_members(),
    ) {
        let mut object = written(&writes);
        object.apply_with(&manager, &config, FORCED);
        let before = object.live.clone();
        for options in [PLAIN, FORCED] {
            let again = object.try_apply(&manager, &config, options).unwrap();
            prop_assert!(!again.is_changed);
            prop_assert_eq!(&object.live, &before);
        }
    }

    #[test]
    fn applies_of_disjoint_fields_commute(
        writes in prop::collection::vec(any_write(), 0..4),
        left in any_members(),
        mut right in any_members(),
    ) {
        remove_common(&mut right, &left);
        let mut first = written(&writes);
        let mut second = Object {
            live: first.live.clone(),
            clock: first.clock,
        };
        first.apply_with("d", &left, FORCED).apply_with("e", &right, FORCED);
        second.apply_with("e", &right, FORCED).apply_with("d", &left, FORCED);
        prop_assert_eq!(first.normalized(), second.normalized());
    }

    /// A field of the object that had an owner, or that was applied, has an owner afterwards.
    #[test]
    fn ownership_does_not_vanish(writes in prop::collection::vec(any_write(), 1..8)) {
        let mut object = written(&[]);
        for write in &writes {
            let mut owned = object.owned();
            if !object.carry_out(write) {
                continue;
            }
            if let Write::Apply { members, .. } = write {
                let applied = applied_paths(&V1_SCHEMA, &thing(members)).unwrap().difference(&SYSTEM_FIELDS);
                prop_assert!(applied.clone().difference(&object.leaves()).is_empty(), "an applied field is missing");
                owned = owned.union(applied);
            }
            let orphans = object.leaves().intersection(&owned).difference(&object.owned());
            prop_assert!(orphans.is_empty(), "{orphans:?} after {write:?}");
        }
    }

    #[test]
    fn force_takes_exactly_the_conflicting_fields(
        writes in prop::collection::vec(any_write(), 1..5),
        config in any_members(),
    ) {
        let mut object = written(&writes);
        let before = object.live.clone();
        let Err(ApplyError::Conflicts(conflicts)) = object.try_apply("d", &config, PLAIN) else {
            return Ok(());
        };
        prop_assert_eq!(&object.live, &before);
        let owners = object.decoded();
        object.apply_with("d", &config, FORCED);
        let left = object.decoded();
        for entry in &owners {
            let kept = left.iter().find(|other| other.has_identity_of(entry));
            let kept = kept.map(|entry| entry.fields.clone()).unwrap_or_default();
            let lost = entry.fields.clone().difference(&kept).paths();
            let reported = conflicts.iter().find(|conflict| {
                conflict.manager == entry.manager && conflict.operation == entry.operation
            });
            // The manager has not applied before, so nothing is removed.
            prop_assert_eq!(lost, reported.map(|conflict| conflict.fields.clone()).unwrap_or_default());
        }
    }
}
