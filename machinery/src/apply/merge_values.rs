//! Merging of an applied configuration into the live object, by their schema.
//!
//! Equivalent to `TypedValue.Merge` of `sigs.k8s.io/structured-merge-diff`: nothing is removed, values of the
//! configuration replace live ones, and granular maps, structs, sets and list maps are merged recursively.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::items::{TypedError, elements};
use super::path::PathElement;
use super::typed::is_empty;
use crate::schema::{List, ListKind, ObjectShape, Shape, Structural};

/// Merges `config` into `live`.
///
/// A null or empty value in `config` does not change a granular container that is not empty. Null replaces any other
/// value, and so do scalars and atomic values.
///
/// # Errors
///
/// [`TypedError`] if an item of a list map has no key, or an item of a set is not a scalar.
pub(super) fn merge(schema: &Structural, live: &mut Value, config: &Value) -> Result<(), TypedError> {
    let has_content = !is_empty(live) || !is_empty(config);
    match &schema.shape {
        Shape::Object(object) if !object.is_atomic && has_content => {
            merge_members(Some(object), live, config)
        }
        Shape::List(list) if list.kind != ListKind::Atomic && has_content => merge_items(list, live, config),
        Shape::Any if is_map(config) && (has_members(live) || has_members(config)) => {
            merge_members(None, live, config)
        }
        _ => {
            live.clone_from(config);
            Ok(())
        }
    }
}

/// Whether a value without a schema is a map, or null, which can be a map.
const fn is_map(value: &Value) -> bool {
    matches!(value, Value::Object(_) | Value::Null)
}

fn has_members(value: &Value) -> bool {
    value.as_object().is_some_and(|members| !members.is_empty())
}

fn merge_members(object: Option<&ObjectShape>, live: &mut Value, config: &Value) -> Result<(), TypedError> {
    let Some(config) = config.as_object() else {
        return Ok(());
    };
    if !live.is_object() {
        *live = Value::Object(Map::new());
    }
    let Value::Object(members) = live else {
        return Ok(());
    };
    let any = Structural::any();
    for (key, value) in config {
        match members.get_mut(key) {
            Some(member) => {
                let schema = object.and_then(|object| object.child(key)).unwrap_or(&any);
                merge(schema, member, value).map_err(|error| error.below(&PathElement::field(key)))?;
            }
            None => {
                members.insert(key.clone(), value.clone());
            }
        }
    }
    Ok(())
}

/// Merges the items of a set or a list map.
fn merge_items(list: &List, live: &mut Value, config: &Value) -> Result<(), TypedError> {
    let config = config.as_array().map_or(&[][..], Vec::as_slice);
    if config.is_empty() {
        return Ok(());
    }
    let live_items = live.as_array_mut().map(std::mem::take).unwrap_or_default();
    let config_elements = elements(list, config)?;
    let positions: BTreeMap<&PathElement, usize> = config_elements.iter().zip(0..).collect();
    let shared: Vec<Option<usize>> = elements(list, &live_items)?
        .iter()
        .map(|element| positions.get(element).copied())
        .collect();
    let order = merged_order(&shared, config.len());
    let mut live_only = Vec::new();
    let mut live_of: BTreeMap<usize, Value> = BTreeMap::new();
    for (item, position) in live_items.into_iter().zip(shared) {
        match position {
            None => live_only.push(item),
            // Duplicates collapse into the item of the configuration, which is merged with none of them.
            Some(position) => {
                live_of
                    .entry(position)
                    .and_modify(|item| *item = Value::Null)
                    .or_insert(item);
            }
        }
    }
    let mut live_only = live_only.into_iter();
    let mut merged = Vec::with_capacity(order.len());
    for step in order {
        match step {
            Step::LiveOnly => merged.extend(live_only.next()),
            Step::Config(position) => {
                let (Some(item), Some(element)) = (config.get(position), config_elements.get(position))
                else {
                    continue;
                };
                merged.push(match live_of.remove(&position) {
                    None => item.clone(),
                    Some(mut value) => {
                        merge(&list.items, &mut value, item).map_err(|error| error.below(element))?;
                        value
                    }
                });
            }
        }
    }
    *live = Value::Array(merged);
    Ok(())
}

/// The source of the next item of a merged list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    /// The next item that only the live list has.
    LiveOnly,
    /// The item of the configuration at this position.
    Config(usize),
}

/// The order of a merged list. `live` contains, for each live item, its position in the configuration, if it is there.
///
/// Items of the configuration keep their order, and so do items that only the live list has. The latter stay before the
/// shared item that they precede in the live list. The algorithm is that of `visitListItems` in the reference.
fn merged_order(live: &[Option<usize>], config_len: usize) -> Vec<Step> {
    let shared: BTreeSet<usize> = live.iter().flatten().copied().collect();
    let mut steps = Vec::with_capacity(live.len().max(config_len));
    let mut live = live.iter().copied().peekable();
    // The position of the next item of the configuration; the items before it are in the merged list.
    let mut next = 0;
    while live.peek().is_some() || next < config_len {
        if let Some(&Some(position)) = live.peek()
            && next < config_len
        {
            if position == next {
                steps.push(Step::Config(next));
                next += 1;
                live.next();
                continue;
            }
            let next_shared = shared.range(next..).next();
            if next_shared.is_some_and(|next_shared| *next_shared != position) {
                live.next();
                continue;
            }
        }
        match live.peek() {
            Some(None) => {
                steps.push(Step::LiveOnly);
                live.next();
                continue;
            }
            Some(&Some(position)) if position < next => drop(live.next()),
            _ => {}
        }
        if next < config_len {
            steps.push(Step::Config(next));
            next += 1;
        }
    }
    steps
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::fixtures::SPEC;
    use super::*;

    fn check(live: Value, config: &Value, expected: &Value) {
        let mut merged = live;
        merge(&SPEC, &mut merged, config).unwrap();
        assert_eq!(&merged, expected, "with {config}");
    }

    #[test]
    fn values_of_the_configuration_replace_leaves() {
        check(
            json!({"priority": 1, "enabled": true, "atomicList": ["p"], "target": {"pod": {"name": "p", "uid": "u"}}}),
            &json!({"priority": 2, "atomicList": [], "target": {"pod": {"name": "p"}}}),
            &json!({"priority": 2, "enabled": true, "atomicList": [], "target": {"pod": {"name": "p"}}}),
        );
        check(
            json!({"priority": 1}),
            &json!({"priority": null}),
            &json!({"priority": null}),
        );
        check(
            json!({}),
            &json!({"target": {"pod": {"name": "p"}}}),
            &json!({"target": {"pod": {"name": "p"}}}),
        );
    }

    #[test]
    fn null_and_empty_values_do_not_change_granular_containers() {
        let live = json!({"target": {"pod": {"name": "p"}}, "granular": [{"name": "a"}], "active": ["x"], "free": {"m": {"a": 1}}});
        check(
            live.clone(),
            &json!({"target": null, "granular": null, "active": null, "free": null}),
            &live,
        );
        check(
            live.clone(),
            &json!({"target": {}, "granular": [], "active": [], "free": {"m": {}}}),
            &live,
        );
        check(
            json!({"target": {}, "active": null}),
            &json!({"target": null, "active": []}),
            &json!({"target": null, "active": []}),
        );
    }

    #[test]
    fn items_are_merged_by_key() {
        check(
            json!({"granular": [{"name": "a", "intent": "E"}, {"name": "b"}], "ports": [{"port": 80, "note": "n"}]}),
            &json!({"granular": [{"name": "a", "reason": "r"}], "ports": [{"port": 80, "protocol": "TCP"}, {"port": 80, "protocol": "UDP"}]}),
            &json!({"granular": [{"name": "a", "intent": "E", "reason": "r"}, {"name": "b"}],
                "ports": [{"port": 80, "protocol": "TCP", "note": "n"}, {"port": 80, "protocol": "UDP"}]}),
        );
        check(
            json!({"requesters": [{"name": "a", "intent": "E"}]}),
            &json!({"requesters": [{"name": "a"}]}),
            &json!({"requesters": [{"name": "a"}]}),
        );
    }

    #[test]
    fn values_without_a_schema_are_merged_as_granular_maps() {
        for (live, config, expected) in [
            (
                json!({"x": {"a": 1}}),
                json!({"x": {"b": 2}}),
                json!({"x": {"a": 1, "b": 2}}),
            ),
            (json!({"x": [1, 2]}), json!({"x": [3]}), json!({"x": [3]})),
            (json!({"x": 1}), json!({"x": {"a": 1}}), json!({"x": {"a": 1}})),
            (json!({"x": {"a": 1}}), json!({"x": 1}), json!({"x": 1})),
            (json!({"x": 1}), json!({"x": null}), json!({"x": null})),
            (json!({"x": [1]}), json!({"x": {}}), json!({"x": {}})),
        ] {
            check(
                json!({ "free": live }),
                &json!({ "free": config }),
                &json!({ "free": expected }),
            );
        }
    }

    fn merged_set(live: &[&str], config: &[&str]) -> Vec<String> {
        let mut merged = json!({ "active": live });
        merge(&SPEC, &mut merged, &json!({ "active": config })).unwrap();
        serde_json::from_value(merged["active"].take()).unwrap()
    }

    #[test]
    fn merged_lists_have_the_order_of_the_reference() {
        for (live, config, expected) in [
            (
                &["a", "b", "c"][..],
                &["d", "c", "b"][..],
                &["a", "d", "c", "b"][..],
            ),
            (&["a", "b", "c"], &["e", "b", "d"], &["a", "e", "b", "c", "d"]),
            (&["c", "a"], &["b", "a"], &["c", "b", "a"]),
            (&["a", "b"], &["b", "a"], &["b", "a"]),
            (&["b", "a", "x"], &["a", "b", "c"], &["a", "x", "b", "c"]),
            (&[], &["b", "a"], &["b", "a"]),
            // Duplicates collapse if they are in the configuration.
            (&["a", "a", "b"], &["a", "c"], &["a", "c", "b"]),
            (&["a", "a", "b"], &["c"], &["a", "a", "b", "c"]),
        ] {
            assert_eq!(merged_set(live, config), expected, "{live:?} with {config:?}");
        }
    }

    #[test]
    fn duplicates_in_the_live_list_are_not_merged_with_the_configuration() {
        check(
            json!({"granular": [{"name": "a", "intent": "E"}, {"name": "a", "intent": "W"}, {"name": "b"}]}),
            &json!({"granular": [{"name": "a", "reason": "r"}]}),
            &json!({"granular": [{"name": "a", "reason": "r"}, {"name": "b"}]}),
        );
    }

    proptest! {
        #[test]
        fn both_orders_are_preserved(
            live in Just(["a", "b", "c", "d", "e", "f"]).prop_shuffle(),
            config in Just(["c", "d", "e", "f", "g", "h"]).prop_shuffle(),
            live_len in 0_usize..6,
            config_len in 1_usize..6,
        ) {
            let (live, config) = (&live[..live_len], &config[..config_len]);
            let merged = merged_set(live, config);
            let from_config: Vec<_> = merged.iter().filter(|item| config.contains(&item.as_str())).collect();
            prop_assert_eq!(from_config, config.iter().collect::<Vec<_>>());
            let is_live_only = |item: &str| live.contains(&item) && !config.contains(&item);
            let live_only: Vec<_> = merged.iter().filter(|item| is_live_only(item)).collect();
            prop_assert_eq!(&live_only, &live.iter().filter(|item| is_live_only(item)).collect::<Vec<_>>());
            prop_assert_eq!(merged.len(), live_only.len() + config.len());
        }
    }
}
