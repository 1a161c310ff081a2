//! What changed between two values, seen through their schema?
//!
//! The schema decides what can be owned by itself: fields of structs and keys of maps, items of sets and list maps, and
//! whole values where it says atomic. Values without a schema are taken apart by their maps; their lists are atomic.

use serde_json::{Map, Value};

use super::field_set::FieldSet;
use super::path::{PathElement, compare_values};
use crate::schema::{List, ListKind, ObjectShape, Shape, Structural};

/// The difference between two values. Only the path of an item that stands more than once on one side can be both added
/// and removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Comparison {
    /// What only the right value has, containers included.
    pub added: FieldSet,
    /// Leaves that both have, with different values.
    pub modified: FieldSet,
    /// What only the left value has, containers included.
    pub removed: FieldSet,
}

/// Why a list cannot be taken apart into items.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: element {index}: {fault}")]
pub struct TypedError {
    /// The list: `.spec.requesters`.
    pub path: String,
    /// The position of the item.
    pub index: usize,
    /// What is wrong with it.
    pub fault: ItemFault,
}

/// What is wrong with an item of a set or a list map.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ItemFault {
    /// No key field is present or has a default.
    #[error(
        "associative list with keys has an element that omits all key fields {0:?} (and doesn't have default values for \
         any key fields)"
    )]
    NoKeys(Vec<String>),
    /// A null in a list map.
    #[error("associative list with keys may not have a null element")]
    Null,
    /// A scalar or a list in a list map.
    #[error("associative list with keys may not have non-map elements")]
    NotAMap,
    /// A map in a set.
    #[error("associative list without keys has an element that's a map type")]
    MapInSet,
    /// A null in a set.
    #[error("associative list without keys has an element that's an explicit null")]
    NullInSet,
    /// A list in a set.
    #[error("not supported: associative list with lists as elements")]
    ListInSet,
}

impl TypedError {
    fn below(mut self, element: &PathElement) -> Self {
        self.path.insert_str(0, &element.to_string());
        self
    }
}

/// Compares two values of one schema.
///
/// Numbers are compared as numbers. Objects that both values lack or that are both empty are leaves, so that `null` and
/// `{}` differ.
///
/// # Errors
///
/// [`TypedError`] when an item of a list map has no key or an item of a set is no scalar.
pub fn compare(schema: &Structural, left: &Value, right: &Value) -> Result<Comparison, TypedError> {
    Ok(compare_node(schema, left, right)?.below)
}

/// Everything a value has, containers included: what a writer adds who makes it out of nothing.
///
/// # Errors
///
/// As [`compare`].
pub fn everything(schema: &Structural, value: &Value) -> Result<FieldSet, TypedError> {
    match (&schema.shape, value) {
        (Shape::Object(object), Value::Object(members)) if !object.is_atomic => {
            let mut set = FieldSet::with_capacity(members.len());
            for (key, member) in members {
                let element = PathElement::field(key);
                let below = match object.child(key) {
                    Some(schema) => everything(schema, member),
                    None => everything_deduced(member),
                };
                match below {
                    Ok(below) => set.push(element, true, below),
                    Err(error) => return Err(error.below(&element)),
                }
            }
            Ok(set)
        }
        (Shape::Any, _) => everything_deduced(value),
        (Shape::List(list), Value::Array(items)) if list.kind != ListKind::Atomic => {
            let mut set = FieldSet::with_capacity(items.len());
            for group in Groups::of(&keyed(list, items)?) {
                let below = match group.items {
                    [(_, item)] => {
                        everything(&list.items, item).map_err(|error| error.below(group.element))?
                    }
                    _ => FieldSet::new(),
                };
                set.push(group.element.clone(), true, below);
            }
            Ok(set)
        }
        _ => Ok(FieldSet::new()),
    }
}

fn everything_deduced(value: &Value) -> Result<FieldSet, TypedError> {
    let Value::Object(members) = value else {
        return Ok(FieldSet::new());
    };
    let mut set = FieldSet::with_capacity(members.len());
    for (key, member) in members {
        set.push(PathElement::field(key), true, everything_deduced(member)?);
    }
    Ok(set)
}

/// The difference at and below one position that both values have.
#[derive(Default)]
struct Difference {
    is_modified: bool,
    below: Comparison,
}

impl Difference {
    fn leaf(left: &Value, right: &Value) -> Self {
        Self {
            is_modified: !equal(left, right),
            below: Comparison::default(),
        }
    }
}

impl Comparison {
    fn push(&mut self, element: &PathElement, difference: Difference) {
        let Difference { is_modified, below } = difference;
        if !below.added.is_empty() {
            self.added.push(element.clone(), false, below.added);
        }
        if is_modified || !below.modified.is_empty() {
            self.modified.push(element.clone(), is_modified, below.modified);
        }
        if !below.removed.is_empty() {
            self.removed.push(element.clone(), false, below.removed);
        }
    }
}

/// Equality in which 1 is 1.0.
fn equal(left: &Value, right: &Value) -> bool {
    compare_values(left, right).is_eq()
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.is_empty(),
        Value::Object(members) => members.is_empty(),
        _ => true,
    }
}

fn compare_node(schema: &Structural, left: &Value, right: &Value) -> Result<Difference, TypedError> {
    let is_content = !is_empty(left) || !is_empty(right);
    match &schema.shape {
        Shape::Object(object) if !object.is_atomic && is_content => {
            compare_members(Some(object), left.as_object(), right.as_object())
        }
        Shape::List(list) if list.kind != ListKind::Atomic && is_content => {
            compare_items(list, items(left), items(right))
        }
        Shape::Any => compare_deduced(left, right),
        _ => Ok(Difference::leaf(left, right)),
    }
}

fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Compares values without a schema: maps by their keys, everything else as a whole.
fn compare_deduced(left: &Value, right: &Value) -> Result<Difference, TypedError> {
    let has_members = |value: &Value| value.is_object() && !is_empty(value);
    if !has_members(left) && !has_members(right) {
        return Ok(Difference::leaf(left, right));
    }
    let mut difference = compare_members(None, left.as_object(), right.as_object())?;
    // A map that takes the place of a scalar or a list, or gives way to one, changes the position itself, too.
    let is_map = |value: &Value| value.is_object() || value.is_null();
    difference.is_modified = !is_map(left) || !is_map(right);
    Ok(difference)
}

fn compare_members(
    object: Option<&ObjectShape>,
    left: Option<&Map<String, Value>>,
    right: Option<&Map<String, Value>>,
) -> Result<Difference, TypedError> {
    let any = Structural::any();
    let schema = |key: &str| object.and_then(|object| object.child(key)).unwrap_or(&any);
    let mut below = Comparison::default();
    let mut left = left.into_iter().flatten().peekable();
    let mut right = right.into_iter().flatten().peekable();
    loop {
        let order = match (left.peek(), right.peek()) {
            (None, None) => {
                return Ok(Difference {
                    is_modified: false,
                    below,
                });
            }
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some((left, _)), Some((right, _))) => left.cmp(right),
        };
        let pair = match order {
            std::cmp::Ordering::Less => (left.next(), None),
            std::cmp::Ordering::Greater => (None, right.next()),
            std::cmp::Ordering::Equal => (left.next(), right.next()),
        };
        match pair {
            (Some((key, old)), Some((_, new))) => match compare_node(schema(key), old, new) {
                Ok(difference) => {
                    if difference.is_modified || difference.below != Comparison::default() {
                        below.push(&PathElement::field(key), difference);
                    }
                }
                Err(error) => return Err(error.below(&PathElement::field(key))),
            },
            (Some((key, old)), None) => {
                let element = PathElement::field(key);
                let gone = everything(schema(key), old).map_err(|error| error.below(&element))?;
                below.removed.push(element, true, gone);
            }
            (None, Some((key, new))) => {
                let element = PathElement::field(key);
                let come = everything(schema(key), new).map_err(|error| error.below(&element))?;
                below.added.push(element, true, come);
            }
            (None, None) => {}
        }
    }
}

fn compare_items(list: &List, left: &[Value], right: &[Value]) -> Result<Difference, TypedError> {
    let mut below = Comparison::default();
    if left == right {
        // Still taken apart, so that a list that cannot be is reported by every comparison.
        keyed(list, left)?;
        return Ok(Difference {
            is_modified: false,
            below,
        });
    }
    let (left, right) = (keyed(list, left)?, keyed(list, right)?);
    let (mut left, mut right) = (Groups::of(&left).peekable(), Groups::of(&right).peekable());
    loop {
        let order = match (left.peek(), right.peek()) {
            (None, None) => {
                return Ok(Difference {
                    is_modified: false,
                    below,
                });
            }
            (Some(_), None) => std::cmp::Ordering::Less,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(left), Some(right)) => left.element.cmp(right.element),
        };
        let pair = match order {
            std::cmp::Ordering::Less => (left.next(), None),
            std::cmp::Ordering::Greater => (None, right.next()),
            std::cmp::Ordering::Equal => (left.next(), right.next()),
        };
        let Some(element) = pair.0.as_ref().or(pair.1.as_ref()).map(|group| group.element) else {
            continue;
        };
        let old: &[_] = pair.0.as_ref().map_or(&[], |group| group.items);
        let new: &[_] = pair.1.as_ref().map_or(&[], |group| group.items);
        let content = |item: &Value| everything(&list.items, item).map_err(|error| error.below(element));
        match (old, new) {
            ([], []) => {}
            ([(_, old)], [(_, new)]) => {
                let difference = compare_node(&list.items, old, new).map_err(|error| error.below(element))?;
                below.push(element, difference);
            }
            ([(_, old)], []) => below.removed.push(element.clone(), true, content(old)?),
            ([], [(_, new)]) => below.added.push(element.clone(), true, content(new)?),
            // Several on both sides are compared as one leaf.
            ([_, _, ..], [_, _, ..]) => {
                let is_equal =
                    old.len() == new.len() && old.iter().zip(new).all(|((_, old), (_, new))| equal(old, new));
                below.push(
                    element,
                    Difference {
                        is_modified: !is_equal,
                        below: Comparison::default(),
                    },
                );
            }
            // No longer several: the item is gone, what the remaining one has is new.
            ([_, _, ..], [(_, new)]) => {
                below.removed.push(element.clone(), true, FieldSet::new());
                below.added.push(element.clone(), true, content(new)?);
            }
            ([_, _, ..], []) => below.removed.push(element.clone(), true, FieldSet::new()),
            // Several now: what the one item had is gone, the item is new.
            ([(_, old)], [_, _, ..]) => {
                below.removed.push(element.clone(), true, content(old)?);
                below.added.push(element.clone(), true, FieldSet::new());
            }
            ([], [_, _, ..]) => below.added.push(element.clone(), true, FieldSet::new()),
        }
    }
}

/// The items of a set or a list map with their path elements, sorted by element; items of one element keep their order.
fn keyed<'v>(list: &List, items: &'v [Value]) -> Result<Vec<(PathElement, &'v Value)>, TypedError> {
    let mut keyed = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        match item_element(list, item) {
            Ok(element) => keyed.push((element, item)),
            Err(fault) => {
                return Err(TypedError {
                    path: String::new(),
                    index,
                    fault,
                });
            }
        }
    }
    keyed.sort_by(|(left, _), (right, _)| left.cmp(right));
    Ok(keyed)
}

/// The path element that identifies an item of a set or a list map.
fn item_element(list: &List, item: &Value) -> Result<PathElement, ItemFault> {
    let ListKind::Map(keys) = &list.kind else {
        return match item {
            Value::Null => Err(ItemFault::NullInSet),
            Value::Array(_) => Err(ItemFault::ListInSet),
            Value::Object(_) => Err(ItemFault::MapInSet),
            scalar => Ok(PathElement::Value(scalar.clone())),
        };
    };
    let members = match item {
        Value::Null => return Err(ItemFault::Null),
        Value::Object(members) => members,
        _ => return Err(ItemFault::NotAMap),
    };
    let default = |key: &str| match &list.items.shape {
        Shape::Object(object) => object.field(key)?.schema.default.clone(),
        _ => None,
    };
    let mut fields: Vec<_> = keys
        .iter()
        .filter_map(|key| Some((key.clone(), members.get(key).cloned().or_else(|| default(key))?)))
        .collect();
    if fields.is_empty() {
        return Err(ItemFault::NoKeys(keys.clone()));
    }
    fields.sort_by(|(left, _), (right, _)| left.cmp(right));
    Ok(PathElement::Key(fields))
}

/// Runs of items with one path element.
struct Groups<'k, 'v> {
    rest: &'k [(PathElement, &'v Value)],
}

struct Group<'k, 'v> {
    element: &'k PathElement,
    items: &'k [(PathElement, &'v Value)],
}

impl<'k, 'v> Groups<'k, 'v> {
    const fn of(keyed: &'k [(PathElement, &'v Value)]) -> Self {
        Self { rest: keyed }
    }
}

impl<'k, 'v> Iterator for Groups<'k, 'v> {
    type Item = Group<'k, 'v>;

    fn next(&mut self) -> Option<Group<'k, 'v>> {
        let (element, _) = self.rest.first()?;
        let length = self.rest.iter().take_while(|(other, _)| other == element).count();
        let (items, rest) = self.rest.split_at(length);
        self.rest = rest;
        Some(Group { element, items })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn schema() -> Structural {
        let item = |properties: &Value, extra: &[(&str, Value)]| {
            let mut item = json!({"type": "object", "properties": properties});
            item.as_object_mut().unwrap().extend(
                extra
                    .iter()
                    .map(|(key, value)| ((*key).to_owned(), value.clone())),
            );
            item
        };
        let spec = json!({"type": "object", "properties": {
            "priority": {"type": "integer"},
            "enabled": {"type": "boolean"},
            "requesters": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": item(&json!({"name": {"type": "string"}, "intent": {"type": "string"}}), &[("x-kubernetes-map-type", json!("atomic"))])},
            "granular": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": item(&json!({"name": {"type": "string"}, "intent": {"type": "string"}, "reason": {"type": "string"}}), &[])},
            "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
                "items": item(&json!({"port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}, "note": {"type": "string"}}), &[])},
            "active": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "atomicList": {"type": "array", "items": {"type": "string"}},
            "target": {"type": "object", "properties": {"pod": item(&json!({"name": {"type": "string"}, "uid": {"type": "string"}}), &[("x-kubernetes-map-type", json!("atomic"))])}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}
        }});
        Structural::from_json_schema(&spec).unwrap()
    }

    fn texts(set: &FieldSet) -> Vec<String> {
        set.paths().iter().map(ToString::to_string).collect()
    }

    fn check(left: &Value, right: &Value, added: &[&str], modified: &[&str], removed: &[&str]) {
        let comparison = compare(&schema(), left, right).unwrap();
        assert_eq!(texts(&comparison.added), added, "added: {left} to {right}");
        assert_eq!(
            texts(&comparison.modified),
            modified,
            "modified: {left} to {right}"
        );
        assert_eq!(texts(&comparison.removed), removed, "removed: {left} to {right}");
        // The way back: what was added is removed.
        let back = compare(&schema(), right, left).unwrap();
        assert_eq!(
            (back.added, back.modified, back.removed),
            (comparison.removed, comparison.modified, comparison.added)
        );
    }

    #[test]
    fn leaves_are_added_modified_and_removed() {
        check(&json!({}), &json!({"priority": 1}), &[".priority"], &[], &[]);
        check(
            &json!({"priority": 1}),
            &json!({"priority": 2, "enabled": true}),
            &[".enabled"],
            &[".priority"],
            &[],
        );
        check(&json!({"priority": 1}), &json!({"priority": 1.0}), &[], &[], &[]);
    }

    #[test]
    fn containers_are_added_with_their_content() {
        check(
            &json!({}),
            &json!({"requesters": [{"name": "a", "intent": "E"}]}),
            &[".requesters", ".requesters[name=\"a\"]"],
            &[],
            &[],
        );
        check(
            &json!({}),
            &json!({"granular": [{"name": "a"}]}),
            &[".granular", ".granular[name=\"a\"]", ".granular[name=\"a\"].name"],
            &[],
            &[],
        );
        check(
            &json!({"granular": [{"name": "a"}]}),
            &json!({"granular": [{"name": "b", "reason": "r"}, {"name": "a", "intent": "E"}]}),
            &[
                ".granular[name=\"a\"].intent",
                ".granular[name=\"b\"]",
                ".granular[name=\"b\"].name",
                ".granular[name=\"b\"].reason",
            ],
            &[],
            &[],
        );
        check(
            &json!({}),
            &json!({"target": {"pod": {"name": "p"}}}),
            &[".target", ".target.pod"],
            &[],
            &[],
        );
    }

    #[test]
    fn atomic_values_are_single_leaves() {
        check(
            &json!({"target": {"pod": {"name": "p"}}}),
            &json!({"target": {"pod": {"name": "p", "uid": "u"}}}),
            &[],
            &[".target.pod"],
            &[],
        );
        check(
            &json!({"atomicList": ["p", "q"]}),
            &json!({"atomicList": ["q", "p"]}),
            &[],
            &[".atomicList"],
            &[],
        );
        check(
            &json!({"requesters": [{"name": "a", "intent": "E"}, {"name": "b"}]}),
            &json!({"requesters": [{"name": "b"}, {"name": "a", "intent": "W"}]}),
            &[],
            &[".requesters[name=\"a\"]"],
            &[],
        );
    }

    #[test]
    fn sets_change_by_their_items() {
        check(
            &json!({"active": ["a", "b"]}),
            &json!({"active": ["c", "a"]}),
            &[".active[=\"c\"]"],
            &[],
            &[".active[=\"b\"]"],
        );
        check(
            &json!({"active": ["a", "b"]}),
            &json!({"active": ["b", "a"]}),
            &[],
            &[],
            &[],
        );
    }

    #[test]
    fn defaults_identify_items() {
        check(
            &json!({"ports": [{"port": 80}]}),
            &json!({"ports": [{"port": 80, "protocol": "TCP"}, {"port": 80, "protocol": "UDP"}]}),
            &[
                ".ports[port=80,protocol=\"TCP\"].protocol",
                ".ports[port=80,protocol=\"UDP\"]",
                ".ports[port=80,protocol=\"UDP\"].port",
                ".ports[port=80,protocol=\"UDP\"].protocol",
            ],
            &[],
            &[],
        );
    }

    #[test]
    fn empty_containers_are_leaves() {
        check(
            &json!({"active": null}),
            &json!({"active": []}),
            &[],
            &[".active"],
            &[],
        );
        check(
            &json!({"active": []}),
            &json!({"active": ["a"]}),
            &[".active[=\"a\"]"],
            &[],
            &[],
        );
        check(
            &json!({"target": {}}),
            &json!({"target": null}),
            &[],
            &[".target"],
            &[],
        );
        check(&json!({}), &json!({"target": {}}), &[".target"], &[], &[]);
    }

    #[test]
    fn values_without_a_schema_are_maps_of_leaves() {
        check(
            &json!({"free": {"m": {"a": 1}, "l": [1]}}),
            &json!({"free": {"m": {"a": 2, "b": {"c": 1}}, "l": [1, 2]}}),
            &[".free.m.b", ".free.m.b.c"],
            &[".free.l", ".free.m.a"],
            &[],
        );
        check(
            &json!({"free": {"x": 1}}),
            &json!({"free": {"x": {"a": 1}}}),
            &[".free.x.a"],
            &[".free.x"],
            &[],
        );
        check(
            &json!({"free": {"x": null}}),
            &json!({"free": {"x": {"a": 1}}}),
            &[".free.x.a"],
            &[],
            &[],
        );
        check(
            &json!({"free": {"x": [1]}}),
            &json!({"free": {"x": "a"}}),
            &[],
            &[".free.x"],
            &[],
        );
    }

    #[test]
    fn items_that_stand_twice_are_tolerated() {
        let twice = |intent: &str| json!({"granular": [{"name": "a"}, {"name": "a", "intent": intent}, {"name": "b"}]});
        let once = json!({"granular": [{"name": "a"}, {"name": "b"}]});
        let item = ".granular[name=\"a\"]";
        let name = ".granular[name=\"a\"].name";
        check(&twice("E"), &twice("W"), &[], &[item], &[]);
        check(&twice("E"), &twice("E"), &[], &[], &[]);
        check(&twice("E"), &once, &[item, name], &[], &[item]);
        check(
            &json!({"granular": [{"name": "b"}]}),
            &twice("E"),
            &[item],
            &[],
            &[],
        );
        check(
            &json!({"active": []}),
            &json!({"active": ["a", "a"]}),
            &[".active[=\"a\"]"],
            &[],
            &[],
        );
    }

    #[test]
    fn lists_that_cannot_be_taken_apart_are_refused() {
        for (value, expected) in [
            (
                json!({"granular": [{"name": "a"}, {"intent": "E"}]}),
                ".granular: element 1: associative list with keys has an element that omits all key fields [\"name\"] (and doesn't have default values for any key fields)",
            ),
            (
                json!({"granular": [null]}),
                ".granular: element 0: associative list with keys may not have a null element",
            ),
            (
                json!({"granular": [1]}),
                ".granular: element 0: associative list with keys may not have non-map elements",
            ),
            (
                json!({"active": [{}]}),
                ".active: element 0: associative list without keys has an element that's a map type",
            ),
            (
                json!({"active": [null]}),
                ".active: element 0: associative list without keys has an element that's an explicit null",
            ),
            (
                json!({"active": [[]]}),
                ".active: element 0: not supported: associative list with lists as elements",
            ),
        ] {
            for (left, right) in [(&json!({}), &value), (&value, &json!({})), (&value, &value)] {
                assert_eq!(compare(&schema(), left, right).unwrap_err().to_string(), expected);
            }
        }
    }

    fn any_object() -> impl Strategy<Value = Value> {
        let item = ("[abc]", proptest::option::of("[EW]")).prop_map(|(name, intent)| match intent {
            Some(intent) => json!({"name": name, "intent": intent}),
            None => json!({"name": name}),
        });
        let members = (
            proptest::option::of(0..3),
            proptest::option::of(prop::collection::vec(item.clone(), 0..4)),
            proptest::option::of(prop::collection::vec(item, 0..4)),
            proptest::option::of(prop::collection::vec("[abc]", 0..4)),
            proptest::option::of(prop::collection::vec("[abc]", 0..3)),
            proptest::option::of(prop::collection::btree_map("[ab]", 0..2, 0..3)),
        );
        members.prop_map(|(priority, requesters, granular, active, atomic, free)| {
            let mut object = json!({"priority": priority, "requesters": requesters, "granular": granular, "active": active,
                "atomicList": atomic, "free": free});
            object.as_object_mut().unwrap().retain(|_, value| !value.is_null());
            object
        })
    }

    proptest! {
        #[test]
        fn equal_values_compare_equal(value in any_object()) {
            prop_assert_eq!(compare(&schema(), &value, &value).unwrap(), Comparison::default());
        }

        #[test]
        fn comparison_is_symmetric_and_covers_every_difference(left in any_object(), right in any_object()) {
            let there = compare(&schema(), &left, &right).unwrap();
            let back = compare(&schema(), &right, &left).unwrap();
            prop_assert_eq!(&there.added, &back.removed);
            prop_assert_eq!(&there.removed, &back.added);
            prop_assert_eq!(&there.modified, &back.modified);
            prop_assert!(there.modified.intersection(&there.added).is_empty());
            prop_assert!(there.modified.intersection(&there.removed).is_empty());
            let (all_left, all_right) = (everything(&schema(), &left).unwrap(), everything(&schema(), &right).unwrap());
            prop_assert!(there.removed.clone().difference(&all_left).is_empty());
            prop_assert!(there.added.clone().difference(&all_right).is_empty());
            prop_assert_eq!(all_right.clone().difference(&all_left).difference(&there.added), FieldSet::new());
        }
    }
}
