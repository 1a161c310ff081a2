//! Removal of paths from a value, for pruning fields that an applier no longer applies.

use serde_json::{Map, Value};

use super::field_set::FieldSet;
use super::items::{TypedError, elements};
use super::path::PathElement;
use crate::schema::{List, ListKind, ObjectShape, Shape, Structural};

/// Removes the members of `paths` from a value, each with everything below it. Containers that become empty become null.
///
/// # Errors
///
/// [`TypedError`] if an item of a list map has no key, or an item of a set is not a scalar.
pub(super) fn remove(schema: &Structural, value: &mut Value, paths: &FieldSet) -> Result<(), TypedError> {
    let is_empty = match (&schema.shape, &mut *value) {
        (Shape::Object(object), Value::Object(members)) if !object.is_atomic => {
            remove_members(Some(object), members, paths)?;
            members.is_empty()
        }
        (Shape::Any, Value::Object(members)) => {
            remove_members(None, members, paths)?;
            members.is_empty()
        }
        (Shape::List(list), Value::Array(items)) if list.kind != ListKind::Atomic => {
            remove_items(list, items, paths)?;
            items.is_empty()
        }
        _ => false,
    };
    if is_empty {
        *value = Value::Null;
    }
    Ok(())
}

fn remove_members(
    object: Option<&ObjectShape>,
    members: &mut Map<String, Value>,
    paths: &FieldSet,
) -> Result<(), TypedError> {
    let any = Structural::any();
    let mut failure = None;
    members.retain(|key, member| {
        let Some(node) = paths.field_node(key) else {
            return true;
        };
        if !node.is_member {
            let schema = object.and_then(|object| object.child(key)).unwrap_or(&any);
            if let Err(error) = remove(schema, member, &node.below) {
                failure = Some(error.below(&PathElement::field(key)));
            }
        }
        !node.is_member
    });
    failure.map_or(Ok(()), Err)
}

fn remove_items(list: &List, items: &mut Vec<Value>, paths: &FieldSet) -> Result<(), TypedError> {
    let mut kept = Vec::with_capacity(items.len());
    for (element, mut item) in elements(list, items)?.into_iter().zip(items.drain(..)) {
        match paths.node(&element) {
            Some(node) if node.is_member => continue,
            Some(node) => {
                remove(&list.items, &mut item, &node.below).map_err(|error| error.below(&element))?;
            }
            None => {}
        }
        kept.push(item);
    }
    *items = kept;
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixtures::SPEC;
    use super::super::value_paths::applied_paths;
    use super::*;

    /// Removes the paths of `pattern` from `value`.
    fn check(mut value: Value, pattern: &Value, expected: &Value) {
        let paths = applied_paths(&SPEC, pattern).unwrap();
        remove(&SPEC, &mut value, &paths).unwrap();
        assert_eq!(&value, expected, "without {pattern}");
    }

    #[test]
    fn fields_and_items_are_removed_with_their_content() {
        check(
            json!({"priority": 5, "enabled": true, "target": {"pod": {"name": "p"}, "node": {"name": "n"}}}),
            &json!({"priority": 1, "target": {"pod": {}}}),
            &json!({"enabled": true, "target": {"node": {"name": "n"}}}),
        );
        check(
            json!({"granular": [{"name": "a", "reason": "r"}, {"name": "b"}], "active": ["x", "y"]}),
            &json!({"granular": [{"name": "a"}], "active": ["y"]}),
            &json!({"granular": [{"name": "b"}], "active": ["x"]}),
        );
    }

    #[test]
    fn emptied_containers_become_null() {
        check(
            json!({"granular": [{"name": "a"}], "target": {"pod": {"name": "p"}}, "free": {"x": 1}}),
            &json!({"granular": [{"name": "a"}], "target": {"pod": {}}, "free": {"x": 1}}),
            &json!({"granular": null, "target": null, "free": null}),
        );
        check(json!({"priority": 1}), &json!({"priority": 1}), &Value::Null);
    }
}
