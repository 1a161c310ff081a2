//! Comparison of two values by their schema.
//!
//! The schema decides what can be owned individually: fields of structs, keys of maps, items of sets and list maps, and
//! atomic values as a whole. In values without a schema, maps are granular and lists are atomic.

use serde_json::{Map, Value};

use super::field_set::FieldSet;
use super::items::{TypedError, groups, keyed};
use super::join::{Joined, join};
use super::path::{PathElement, compare_values};
use super::value_paths::everything;
use crate::schema::{List, ListKind, ObjectShape, Shape, Structural};

/// The difference between two values. A path is in one of the sets only, except that of an item that is duplicated on
/// one side, which can be both added and removed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Comparison {
    /// Paths that only the right value has, containers included.
    pub(super) added: FieldSet,
    /// Leaves that both values have, with different content.
    pub(super) modified: FieldSet,
    /// Paths that only the left value has, containers included.
    pub(super) removed: FieldSet,
}

/// Compares two values of one schema.
///
/// Numbers are compared numerically. A container that is empty or null on both sides is a leaf, so that `null` and `{}`
/// differ.
///
/// # Errors
///
/// [`TypedError`] if an item of a list map has no key, or an item of a set is not a scalar.
pub(super) fn compare(schema: &Structural, left: &Value, right: &Value) -> Result<Comparison, TypedError> {
    Ok(compare_node(schema, left, right)?.below)
}

/// The difference at and below one position, which both values have.
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

/// Equality in which 1 equals 1.0.
pub(super) fn equal(left: &Value, right: &Value) -> bool {
    compare_values(left, right).is_eq()
}

/// Whether a container is empty or null. Scalars are never containers with content.
pub(super) fn is_empty(value: &Value) -> bool {
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

/// Compares values without a schema: maps by their keys, other values as a whole.
fn compare_deduced(left: &Value, right: &Value) -> Result<Difference, TypedError> {
    let has_members = |value: &Value| value.is_object() && !is_empty(value);
    if !has_members(left) && !has_members(right) {
        return Ok(Difference::leaf(left, right));
    }
    let mut difference = compare_members(None, left.as_object(), right.as_object())?;
    // A map that replaces a scalar or a list, or is replaced by one, also modifies the position itself.
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
    let mut below = Comparison::default();
    let (left, right) = (left.into_iter().flatten(), right.into_iter().flatten());
    for step in join(left, right, |(left, _), (right, _)| left.cmp(right)) {
        let (Joined::Left((key, _)) | Joined::Right((key, _)) | Joined::Both((key, _), _)) = step;
        let schema = object.and_then(|object| object.child(key)).unwrap_or(&any);
        let inside = |error: TypedError| error.below(&PathElement::field(key));
        match step {
            Joined::Left((_, old)) => {
                let content = everything(schema, old).map_err(inside)?;
                below.removed.push(PathElement::field(key), true, content);
            }
            Joined::Right((_, new)) => {
                let content = everything(schema, new).map_err(inside)?;
                below.added.push(PathElement::field(key), true, content);
            }
            Joined::Both((_, old), (_, new)) => {
                let difference = compare_node(schema, old, new).map_err(inside)?;
                if difference.is_modified || difference.below != Comparison::default() {
                    below.push(&PathElement::field(key), difference);
                }
            }
        }
    }
    Ok(Difference {
        is_modified: false,
        below,
    })
}

fn compare_items(list: &List, left: &[Value], right: &[Value]) -> Result<Difference, TypedError> {
    let mut below = Comparison::default();
    if left == right {
        // Still split into items, so that every comparison reports a list that cannot be split.
        keyed(list, left)?;
    } else {
        let (left, right) = (keyed(list, left)?, keyed(list, right)?);
        for step in join(groups(&left), groups(&right), |left, right| {
            left.element.cmp(right.element)
        }) {
            match step {
                Joined::Left(old) => compare_group(list, old.element, old.items, &[], &mut below)?,
                Joined::Right(new) => compare_group(list, new.element, &[], new.items, &mut below)?,
                Joined::Both(old, new) => compare_group(list, old.element, old.items, new.items, &mut below)?,
            }
        }
    }
    Ok(Difference {
        is_modified: false,
        below,
    })
}

/// Compares the items with one path element, of which there is at least one.
fn compare_group(
    list: &List,
    element: &PathElement,
    old: &[(PathElement, &Value)],
    new: &[(PathElement, &Value)],
    below: &mut Comparison,
) -> Result<(), TypedError> {
    let inside = |error: TypedError| error.below(element);
    let content = |items: &[(PathElement, &Value)]| match items {
        [(_, item)] => everything(&list.items, item).map_err(inside),
        _ => Ok(FieldSet::new()),
    };
    match (old, new) {
        ([(_, old)], [(_, new)]) => {
            let difference = compare_node(&list.items, old, new).map_err(inside)?;
            below.push(element, difference);
        }
        // Duplicates on both sides are compared as one leaf.
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
        // Duplicates on one side: all of the old items are removed, all of the new ones are added.
        _ => {
            if !old.is_empty() {
                below.removed.push(element.clone(), true, content(old)?);
            }
            if !new.is_empty() {
                below.added.push(element.clone(), true, content(new)?);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::fixtures::SPEC;
    use super::*;

    fn texts(set: &FieldSet) -> Vec<String> {
        let mut texts: Vec<_> = set.paths().iter().map(ToString::to_string).collect();
        texts.sort();
        texts
    }

    fn check(left: &Value, right: &Value, added: &[&str], modified: &[&str], removed: &[&str]) {
        let comparison = compare(&SPEC, left, right).unwrap();
        assert_eq!(texts(&comparison.added), added, "added: {left} to {right}");
        assert_eq!(
            texts(&comparison.modified),
            modified,
            "modified: {left} to {right}"
        );
        assert_eq!(texts(&comparison.removed), removed, "removed: {left} to {right}");
        // In the other direction, added and removed are swapped.
        let back = compare(&SPEC, right, left).unwrap();
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
    fn sets_are_compared_by_item() {
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
    fn defaults_of_key_fields_identify_items() {
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
    fn values_without_a_schema_are_granular_maps_of_leaves() {
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
    fn duplicate_items_are_tolerated() {
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
    fn lists_without_item_identity_are_rejected() {
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
                assert_eq!(compare(&SPEC, left, right).unwrap_err().to_string(), expected);
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
            prop_assert_eq!(compare(&SPEC, &value, &value).unwrap(), Comparison::default());
        }

        #[test]
        fn comparison_is_symmetric_and_covers_every_difference(left in any_object(), right in any_object()) {
            let there = compare(&SPEC, &left, &right).unwrap();
            let back = compare(&SPEC, &right, &left).unwrap();
            prop_assert_eq!(&there.added, &back.removed);
            prop_assert_eq!(&there.removed, &back.added);
            prop_assert_eq!(&there.modified, &back.modified);
            prop_assert!(there.modified.intersection(&there.added).is_empty());
            prop_assert!(there.modified.intersection(&there.removed).is_empty());
            let (all_left, all_right) = (everything(&SPEC, &left).unwrap(), everything(&SPEC, &right).unwrap());
            prop_assert!(there.removed.clone().difference(&all_left).is_empty());
            prop_assert!(there.added.clone().difference(&all_right).is_empty());
            prop_assert_eq!(all_right.clone().difference(&all_left).difference(&there.added), FieldSet::new());
        }
    }
}
