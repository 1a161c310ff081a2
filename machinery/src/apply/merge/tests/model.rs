//! Random programs against a model in which an object is a map of leaves.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::apply::field_set::FieldSet;

/// Values of leaves by path, as conflicts print it.
type Leaves = BTreeMap<String, u8>;

#[derive(Debug, Default, PartialEq)]
struct Model {
    values: Leaves,
    owners: BTreeMap<(String, Operation), BTreeSet<String>>,
}

impl Model {
    fn changed(&self, values: &Leaves) -> BTreeSet<String> {
        let is_changed = |(leaf, value): &(&String, &u8)| self.values.get(*leaf) != Some(*value);
        values
            .iter()
            .filter(is_changed)
            .map(|(leaf, _)| leaf.clone())
            .collect()
    }

    /// Returns whether the apply succeeded.
    fn apply(&mut self, manager: &str, config: &Leaves, is_forced: bool) -> bool {
        let own = (manager.to_owned(), Operation::Apply);
        let changed = self.changed(config);
        let has_conflict = self
            .owners
            .iter()
            .any(|(owner, leaves)| *owner != own && !leaves.is_disjoint(&changed));
        if has_conflict && !is_forced {
            return false;
        }
        let last = self.owners.remove(&own).unwrap_or_default();
        for leaf in last.iter().filter(|leaf| !config.contains_key(*leaf)) {
            if !self.owners.values().any(|leaves| leaves.contains(leaf)) {
                self.values.remove(leaf);
            }
        }
        for leaves in self.owners.values_mut() {
            leaves.retain(|leaf| !changed.contains(leaf));
        }
        self.values.extend(config.clone());
        self.owners.insert(own, config.keys().cloned().collect());
        self.forget_empty_owners();
        true
    }

    fn put(&mut self, manager: &str, values: &Leaves) {
        let changed = self.changed(values);
        for leaves in self.owners.values_mut() {
            leaves.retain(|leaf| values.contains_key(leaf) && !changed.contains(leaf));
        }
        let own = (manager.to_owned(), Operation::Update);
        self.owners.entry(own).or_default().extend(changed);
        self.values.clone_from(values);
        self.forget_empty_owners();
    }

    fn forget_empty_owners(&mut self) {
        self.owners.retain(|_, leaves| !leaves.is_empty());
    }
}

const LEAVES: [&str; 8] = [
    ".metadata.labels.k",
    ".metadata.labels.l",
    ".spec.atomicList",
    ".spec.priority",
    ".spec.requesters[name=\"a\"]",
    ".spec.requesters[name=\"b\"]",
    ".spec.requesters[name=\"c\"]",
    ".spec.target.pod",
];

fn any_leaves() -> impl Strategy<Value = Leaves> {
    let leaf = prop::sample::select(LEAVES.to_vec());
    prop::collection::btree_map(leaf.prop_map(str::to_owned), 0_u8..3, 0..6)
}

/// The name of the item that a path leads to.
fn item_name(leaf: &str) -> Option<&str> {
    leaf.split('"').nth(1)
}

/// Members outside the model, which one manager applies: no container becomes empty, and the object stays tracked.
fn constant_members() -> Value {
    json!({"metadata": {"labels": {"z": "z"}},
        "spec": {"enabled": true, "requesters": [requester("z", "z")], "target": {"node": {"name": "z"}}}})
}

/// Adds leaves to the members of an object.
fn with_leaves(mut members: Value, leaves: &Leaves) -> Value {
    for (leaf, value) in leaves {
        let text = value.to_string();
        match leaf.as_str() {
            ".spec.priority" => members["spec"]["priority"] = (*value).into(),
            ".spec.atomicList" => members["spec"]["atomicList"] = json!([text]),
            ".spec.target.pod" => members["spec"]["target"]["pod"]["name"] = text.into(),
            ".metadata.labels.k" => members["metadata"]["labels"]["k"] = text.into(),
            ".metadata.labels.l" => members["metadata"]["labels"]["l"] = text.into(),
            item => {
                let item = requester(item_name(item).unwrap(), &text);
                match &mut members["spec"]["requesters"] {
                    Value::Array(items) => items.push(item),
                    none => *none = json!([item]),
                }
            }
        }
    }
    members
}

/// The value of a leaf, as [`with_leaves`] writes it.
fn value(object: &Value, leaf: &str) -> Option<u8> {
    let value = match (leaf, item_name(leaf)) {
        (_, Some(name)) => {
            let mut items = object.pointer("/spec/requesters")?.as_array()?.iter();
            items.find(|item| item["name"] == name)?.get("intent")
        }
        (".spec.atomicList", _) => object.pointer("/spec/atomicList/0"),
        (".spec.target.pod", _) => object.pointer("/spec/target/pod/name"),
        _ => object.pointer(&leaf.replace('.', "/")),
    };
    value?.to_string().trim_matches('"').parse().ok()
}

/// The leaves and owners of an object.
fn observed(object: &Value) -> Model {
    let leaf_names = |fields: &FieldSet| -> BTreeSet<String> {
        let texts = fields.paths().into_iter().map(|path| path.to_string());
        texts.filter(|path| LEAVES.contains(&path.as_str())).collect()
    };
    let mut object = object.clone();
    let list = take_list(&mut object).unwrap_or_default();
    let values = LEAVES
        .iter()
        .filter_map(|leaf| Some(((*leaf).to_owned(), value(&object, leaf)?)));
    let entries = decode_entries(&list).unwrap().into_iter();
    let owners = entries.map(|entry| ((entry.manager, entry.operation), leaf_names(&entry.fields)));
    let mut model = Model {
        values: values.collect(),
        owners: owners.collect(),
    };
    model.forget_empty_owners();
    model
}

proptest! {
    #[test]
    fn applies_and_updates_agree_with_the_model(
        program in prop::collection::vec(("[abc]", any_leaves(), 0_u8..3), 1..12)
    ) {
        let mut object = Object::new();
        let mut model = Model::default();
        object.apply("z", &constant_members());
        for (manager, leaves, kind) in program {
            if kind == 0 {
                object.put(&manager, &with_leaves(constant_members(), &leaves));
                model.put(&manager, &leaves);
            } else {
                let members = with_leaves(json!({}), &leaves);
                let options = Options { is_forced: kind == 2, ..PLAIN };
                let is_applied = object.try_apply(&manager, &members, options).is_ok();
                prop_assert_eq!(is_applied, model.apply(&manager, &leaves, kind == 2));
            }
            prop_assert_eq!(&observed(object.live.as_ref().unwrap()), &model);
        }
    }
}
