//! The paths of a value: all of them, or those that an applier of the value owns.

use serde_json::Value;

use super::field_set::FieldSet;
use super::items::{TypedError, groups, keyed};
use super::path::PathElement;
use crate::schema::{List, ListKind, Shape, Structural};

/// All paths of a value, containers included: the paths that are added when the value is created.
///
/// # Errors
///
/// As [`compare`].
pub(super) fn everything(schema: &Structural, value: &Value) -> Result<FieldSet, TypedError> {
    match (&schema.shape, value) {
        (Shape::Object(object), Value::Object(members)) if !object.is_atomic => {
            let mut set = FieldSet::with_capacity(members.len());
            for (key, member) in members {
                let element = PathElement::field(key);
                let below = match object.child(key) {
                    Some(schema) => everything(schema, member).map_err(|error| error.below(&element))?,
                    None => everything_deduced(member),
                };
                set.push(element, true, below);
            }
            Ok(set)
        }
        (Shape::Any, _) => Ok(everything_deduced(value)),
        (Shape::List(list), Value::Array(items)) if list.kind != ListKind::Atomic => {
            let mut set = FieldSet::with_capacity(items.len());
            for group in groups(&keyed(list, items)?) {
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

fn everything_deduced(value: &Value) -> FieldSet {
    let Value::Object(members) = value else {
        return FieldSet::new();
    };
    let mut set = FieldSet::with_capacity(members.len());
    for (key, member) in members {
        set.push(PathElement::field(key), true, everything_deduced(member));
    }
    set
}

/// The paths that a manager owns after applying the value: leaves, keys of maps, and items of sets and list maps.
///
/// Structs and lists are not owned by those who apply something inside them. A container is a leaf if it is atomic, null
/// or an empty map; an empty list that is not atomic has no path.
///
/// # Errors
///
/// [`TypedError`] if an item of a list map has no key, or an item of a set is not a scalar.
pub(super) fn applied_paths(schema: &Structural, value: &Value) -> Result<FieldSet, TypedError> {
    Ok(applied_below(schema, value)?.below)
}

/// The paths at and below one position.
struct Applied {
    is_leaf: bool,
    below: FieldSet,
}

impl Applied {
    const LEAF: Self = Self {
        is_leaf: true,
        below: FieldSet::new(),
    };

    const fn container(below: FieldSet) -> Self {
        Self {
            is_leaf: false,
            below,
        }
    }
}

fn applied_below(schema: &Structural, value: &Value) -> Result<Applied, TypedError> {
    match (&schema.shape, value) {
        (Shape::Object(object), Value::Object(members)) if !object.is_atomic && !members.is_empty() => {
            let mut set = FieldSet::with_capacity(members.len());
            for (key, member) in members {
                let element = PathElement::field(key);
                let applied = match object.child(key) {
                    Some(schema) => applied_below(schema, member).map_err(|error| error.below(&element))?,
                    None => applied_deduced(member),
                };
                let is_free_key = object.field(key).is_none();
                set.push(element, applied.is_leaf || is_free_key, applied.below);
            }
            Ok(Applied::container(set))
        }
        (Shape::List(list), Value::Array(items)) if list.kind != ListKind::Atomic => {
            Ok(Applied::container(applied_items(list, items)?))
        }
        (Shape::Any, _) => Ok(applied_deduced(value)),
        _ => Ok(Applied::LEAF),
    }
}

fn applied_items(list: &List, items: &[Value]) -> Result<FieldSet, TypedError> {
    let mut set = FieldSet::with_capacity(items.len());
    for group in groups(&keyed(list, items)?) {
        let below = match group.items {
            [(_, item)] => applied_paths(&list.items, item).map_err(|error| error.below(group.element))?,
            _ => FieldSet::new(),
        };
        set.push(group.element.clone(), true, below);
    }
    Ok(set)
}

/// In values without a schema, all keys of maps are free.
fn applied_deduced(value: &Value) -> Applied {
    let Value::Object(members) = value else {
        return Applied::LEAF;
    };
    if members.is_empty() {
        return Applied::LEAF;
    }
    let mut set = FieldSet::with_capacity(members.len());
    for (key, member) in members {
        set.push(PathElement::field(key), true, applied_deduced(member).below);
    }
    Applied::container(set)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixtures::SPEC;
    use super::*;

    fn check(value: &Value, expected: &[&str]) {
        let set = applied_paths(&SPEC, value).unwrap();
        let mut texts: Vec<_> = set.paths().iter().map(ToString::to_string).collect();
        texts.sort();
        assert_eq!(texts, expected, "{value}");
    }

    #[test]
    fn leaves_and_items_are_owned_without_their_containers() {
        check(&json!({}), &[]);
        check(
            &json!({"priority": 5, "active": ["b", "a"], "requesters": [{"name": "r", "intent": "E"}]}),
            &[
                ".active[=\"a\"]",
                ".active[=\"b\"]",
                ".priority",
                ".requesters[name=\"r\"]",
            ],
        );
        check(
            &json!({"granular": [{"name": "i", "nested": {"a": "x"}}]}),
            &[
                ".granular[name=\"i\"]",
                ".granular[name=\"i\"].name",
                ".granular[name=\"i\"].nested.a",
            ],
        );
        check(
            &json!({"ports": [{"port": 80}]}),
            &[
                ".ports[port=80,protocol=\"TCP\"]",
                ".ports[port=80,protocol=\"TCP\"].port",
            ],
        );
    }

    #[test]
    fn atomic_null_and_empty_containers_are_leaves() {
        check(
            &json!({"target": {"pod": {"name": "p", "uid": "u"}}, "atomicList": ["p", "q"]}),
            &[".atomicList", ".target.pod"],
        );
        check(
            &json!({"target": {}, "granular": null, "priority": null, "atomicList": []}),
            &[".atomicList", ".granular", ".priority", ".target"],
        );
        check(&json!({"active": [], "granular": [], "requesters": []}), &[]);
    }

    #[test]
    fn free_keys_are_owned_with_and_without_content() {
        check(
            &json!({"free": {"m": {"a": 1, "b": {}}, "l": [1]}}),
            &[".free.l", ".free.m", ".free.m.a", ".free.m.b"],
        );
        check(&json!({"free": {}}), &[".free"]);
    }

    #[test]
    fn duplicate_items_are_owned_without_content() {
        check(
            &json!({"granular": [{"name": "a"}, {"name": "a", "intent": "E"}]}),
            &[".granular[name=\"a\"]"],
        );
    }
}
