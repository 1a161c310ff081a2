//! How does a strategic merge patch change a built-in object?
//!
//! kubectl computes such patches from Go types it was built with, and so sends them for pods and nodes whatever the
//! server says. Covered are all lists that the served built-in kinds merge ([`LISTS`]), and the directives `$patch`,
//! `$setElementOrder`, `$deleteFromPrimitiveList` and `$retainKeys`. A list that is not in the table is replaced as a
//! whole; a directive for such a list is refused rather than misread. Directives never reach an object.

use drydock_machinery::codec::{self, DecodeError};
use drydock_machinery::patch::{PatchError, Patched};
use serde_json::{Map, Value};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ELEMENT_ORDER: &str = "$setElementOrder/";
const DELETE_FROM_PRIMITIVE_LIST: &str = "$deleteFromPrimitiveList/";

/// How a list is patched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Merge {
    /// Replaced as a whole.
    Atomic,
    /// Its values are a set.
    Values,
    /// Its items are told apart by this field.
    By(&'static str),
}

/// The lists that are merged: the field (or list) they stand in, their name, and how.
const LISTS: &[(&str, &str, Merge)] = &[
    ("metadata", "finalizers", Merge::Values),
    ("metadata", "ownerReferences", Merge::By("uid")),
    // nodes
    ("spec", "podCIDRs", Merge::Values),
    ("status", "addresses", Merge::By("type")),
    // pods and their templates
    ("spec", "containers", Merge::By("name")),
    ("spec", "ephemeralContainers", Merge::By("name")),
    ("spec", "evictionInterceptors", Merge::By("name")),
    ("spec", "evictionResponders", Merge::By("name")),
    ("spec", "hostAliases", Merge::By("ip")),
    ("spec", "imagePullSecrets", Merge::By("name")),
    ("spec", "initContainers", Merge::By("name")),
    ("spec", "resourceClaims", Merge::By("name")),
    ("spec", "schedulingGates", Merge::By("name")),
    ("spec", "topologySpreadConstraints", Merge::By("topologyKey")),
    ("spec", "volumes", Merge::By("name")),
    ("status", "hostIPs", Merge::By("ip")),
    ("status", "podIPs", Merge::By("ip")),
    ("status", "resourceClaimStatuses", Merge::By("name")),
    // many kinds
    ("status", "conditions", Merge::By("type")),
];

/// The lists inside of a container, whatever list the container stands in.
const LISTS_OF_CONTAINERS: &[(&str, Merge)] = &[
    ("env", Merge::By("name")),
    ("ports", Merge::By("containerPort")),
    ("volumeDevices", Merge::By("devicePath")),
    ("volumeMounts", Merge::By("mountPath")),
];

fn merge_of(parent: &str, field: &str) -> Merge {
    if matches!(parent, "containers" | "initContainers" | "ephemeralContainers") {
        let found = LISTS_OF_CONTAINERS.iter().find(|(name, _)| *name == field);
        return found.map_or(Merge::Atomic, |(_, merge)| *merge);
    }
    let found = LISTS
        .iter()
        .find(|(place, name, _)| *place == parent && *name == field);
    found.map_or(Merge::Atomic, |(_, _, merge)| *merge)
}

/// Applies a patch to an object.
///
/// # Errors
/// Text that is no JSON object, and directives that are malformed or for a list that is not merged.
pub(crate) fn apply(document: &Value, patch: &[u8]) -> Result<Patched, PatchError> {
    let decoded = codec::json::decode(patch).map_err(PatchError::Decode)?;
    let Value::Object(mut patch) = decoded.value else {
        return Err(PatchError::NotAnObject);
    };
    let original = document.as_object().cloned().unwrap_or_default();
    if document.get("kind").and_then(Value::as_str) == Some("PodDisruptionBudget")
        && let Some(Value::Object(selector)) = patch.get_mut("spec").and_then(|spec| spec.get_mut("selector"))
    {
        // Declared to be replaced, in this kind only; clients leave the directive out.
        selector.insert(PATCH.to_owned(), "replace".into());
    }
    let value = merge_map(original, patch, "")?;
    Ok(Patched {
        value: Value::Object(value),
        strict: decoded.duplicates,
    })
}

fn malformed(why: String) -> PatchError {
    PatchError::Decode(DecodeError::Syntax(why))
}

/// Merges into an object that stands in the field `parent`, or in the list of that name.
fn merge_map(
    mut original: Map<String, Value>,
    mut patch: Map<String, Value>,
    parent: &str,
) -> Result<Map<String, Value>, PatchError> {
    match patch.remove(PATCH).as_ref().map(Value::as_str) {
        None => {}
        Some(Some("replace")) => return merge_map(Map::new(), patch, parent),
        Some(Some("delete")) => return Ok(Map::new()),
        Some(other) => {
            return Err(malformed(format!(
                "unknown patch type: {} in {parent:?}",
                other.unwrap_or("?")
            )));
        }
    }
    retain_keys(&mut original, &mut patch)?;
    let mut orders = take_lists(&mut patch, SET_ELEMENT_ORDER)?;
    let deletions = take_lists(&mut patch, DELETE_FROM_PRIMITIVE_LIST)?;

    for (field, value) in patch {
        let order = orders.remove(&field);
        let old = original.remove(&field);
        if let Some(new) = merge_field(old, value, order, parent, &field)? {
            original.insert(field, new);
        }
    }
    for (field, order) in orders {
        if let Some(Value::Array(items)) = original.remove(&field) {
            let items = merge_list(&items, Vec::new(), Some(order), merge_of(parent, &field), &field)?;
            original.insert(field, Value::Array(items));
        }
    }
    for (field, values) in deletions {
        if merge_of(parent, &field) != Merge::Values {
            return Err(malformed(format!(
                "{DELETE_FROM_PRIMITIVE_LIST}{field}: no such list of values"
            )));
        }
        if let Some(Value::Array(items)) = original.get_mut(&field) {
            items.retain(|item| !values.contains(item));
        }
    }
    Ok(original)
}

fn merge_field(
    old: Option<Value>,
    new: Value,
    order: Option<Vec<Value>>,
    parent: &str,
    field: &str,
) -> Result<Option<Value>, PatchError> {
    Ok(match (new, old) {
        (Value::Null, _) => None,
        (Value::Object(new), Some(Value::Object(old))) => Some(Value::Object(merge_map(old, new, field)?)),
        (Value::Object(new), _) => Some(Value::Object(merge_map(Map::new(), new, field)?)),
        (Value::Array(new), old) => {
            let old = match old {
                Some(Value::Array(items)) => items,
                _ => Vec::new(),
            };
            Some(Value::Array(merge_list(
                &old,
                new,
                order,
                merge_of(parent, field),
                field,
            )?))
        }
        (new, _) => Some(new),
    })
}

/// Removes what a union must not keep: fields beside those of the new member.
fn retain_keys(original: &mut Map<String, Value>, patch: &mut Map<String, Value>) -> Result<(), PatchError> {
    let Some(keys) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let Value::Array(keys) = keys else {
        return Err(malformed(format!("{RETAIN_KEYS} is no list")));
    };
    let is_kept = |key: &str| keys.iter().any(|kept| kept.as_str() == Some(key));
    if let Some(key) = patch.keys().find(|key| !key.starts_with('$') && !is_kept(key)) {
        return Err(malformed(format!(
            "{RETAIN_KEYS} does not list {key:?}, which the patch sets"
        )));
    }
    original.retain(|key, _| is_kept(key));
    Ok(())
}

/// Takes the directives of a prefix out of a patch: field → list.
fn take_lists(
    patch: &mut Map<String, Value>,
    prefix: &str,
) -> Result<std::collections::BTreeMap<String, Vec<Value>>, PatchError> {
    let names: Vec<String> = patch
        .keys()
        .filter(|key| key.starts_with(prefix))
        .cloned()
        .collect();
    let mut lists = std::collections::BTreeMap::new();
    for name in names {
        let Some(Value::Array(items)) = patch.remove(&name) else {
            return Err(malformed(format!("{name} is no list")));
        };
        lists.insert(name.trim_start_matches(prefix).to_owned(), items);
    }
    Ok(lists)
}

fn merge_list(
    old: &[Value],
    new: Vec<Value>,
    order: Option<Vec<Value>>,
    merge: Merge,
    field: &str,
) -> Result<Vec<Value>, PatchError> {
    let key = match merge {
        Merge::Atomic if order.is_some() => {
            return Err(malformed(format!(
                "{SET_ELEMENT_ORDER}{field}: the list is replaced as a whole here"
            )));
        }
        Merge::Atomic => return Ok(new),
        Merge::Values => None,
        Merge::By(key) => Some(key),
    };
    let identity = |item: &Value| -> Result<Value, PatchError> {
        let Some(key) = key else { return Ok(item.clone()) };
        let found = item.get(key).filter(|value| !value.is_null()).cloned();
        found.ok_or_else(|| {
            malformed(format!(
                "an item of {field:?} does not contain declared merge key: {key}"
            ))
        })
    };

    let mut merged = old.to_vec();
    let mut additions = Vec::with_capacity(new.len());
    let mut replaces = false;
    for mut item in new {
        match item
            .as_object_mut()
            .and_then(|members| members.remove(PATCH))
            .as_ref()
            .map(Value::as_str)
        {
            None => additions.push(item),
            Some(Some("delete")) => {
                let gone = identity(&item)?;
                merged.retain(|item| identity(item).ok().as_ref() != Some(&gone));
            }
            Some(Some("replace")) => replaces = true,
            Some(other) => {
                return Err(malformed(format!(
                    "unknown patch type: {} in {field:?}",
                    other.unwrap_or("?")
                )));
            }
        }
    }
    if replaces {
        return Ok(additions);
    }
    let added: Vec<Value> = additions.iter().map(&identity).collect::<Result<_, _>>()?;
    for (item, id) in additions.into_iter().zip(&added) {
        let place = merged
            .iter_mut()
            .find(|old| identity(old).ok().as_ref() == Some(id));
        match (item, place) {
            (Value::Object(item), Some(place)) => {
                let old = place.as_object_mut().map(std::mem::take).unwrap_or_default();
                *place = Value::Object(merge_map(old, item, field)?);
            }
            (Value::Object(item), None) => merged.push(Value::Object(merge_map(Map::new(), item, field)?)),
            (_, Some(_)) => {}
            (item, None) => merged.push(item),
        }
    }
    let order = match order {
        None => added,
        Some(order) => {
            let order: Vec<Value> = order.iter().map(&identity).collect::<Result<_, _>>()?;
            let mut rest = order.iter();
            if let Some(id) = added.iter().find(|id| !rest.any(|ordered| ordered == *id)) {
                return Err(malformed(format!(
                    "{SET_ELEMENT_ORDER}{field} does not agree with the patch on {id}"
                )));
            }
            order
        }
    };
    let old: Vec<Value> = old.iter().filter_map(|item| identity(item).ok()).collect();
    Ok(ordered(merged, &order, &old, |item| {
        identity(item).unwrap_or_default()
    }))
}

/// Items named in `wanted` come in its order; the others keep their place relative to those that were in the list
/// before, as far as that can be told.
fn ordered(
    items: Vec<Value>,
    wanted: &[Value],
    before: &[Value],
    identity: impl Fn(&Value) -> Value,
) -> Vec<Value> {
    let position = |list: &[Value], id: &Value| list.iter().position(|other| other == id);
    let (mut named, others): (Vec<Value>, Vec<Value>) = items
        .into_iter()
        .partition(|item| position(wanted, &identity(item)).is_some());
    named.sort_by_key(|item| position(wanted, &identity(item)));
    let mut result = Vec::with_capacity(named.len() + others.len());
    let mut named = named.into_iter().peekable();
    for other in others {
        let place = position(before, &identity(&other));
        // What the client named goes first, unless both were there and the other one stood in front.
        while let Some(next) = named.peek() {
            match (place, position(before, &identity(next))) {
                (Some(place), Some(next)) if place < next => break,
                _ => result.extend(named.next()),
            }
        }
        result.push(other);
    }
    result.extend(named);
    result
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(document: &Value, patch: &Value) -> Result<Value, String> {
        apply(document, patch.to_string().as_bytes())
            .map(|patched| patched.value)
            .map_err(|error| error.to_string())
    }

    #[track_caller]
    fn check(document: &Value, patch: &Value, expected: &Value) {
        assert_eq!(
            patched(document, patch).as_ref(),
            Ok(expected),
            "{document} patched with {patch}"
        );
    }

    #[track_caller]
    fn check_refused(patch: &Value, expected: &str) {
        let error = patched(&json!({}), patch).unwrap_err();
        assert!(error.contains(expected), "{patch}: {error}");
    }

    #[test]
    fn maps_merge_and_null_removes() {
        check(
            &json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"x": 1}}),
            &json!({"metadata": {"labels": {"a": null, "c": "3"}}, "spec": {"y": {"z": null, "k": 1}}}),
            &json!({"metadata": {"labels": {"b": "2", "c": "3"}}, "spec": {"x": 1, "y": {"k": 1}}}),
        );
        check(
            &json!({"spec": {"a": {"x": 1}}}),
            &json!({"spec": {"a": {"$patch": "replace", "y": 2}}}),
            &json!({"spec": {"a": {"y": 2}}}),
        );
        check(
            &json!({"spec": {"a": {"x": 1}}}),
            &json!({"spec": {"a": {"$patch": "delete"}}}),
            &json!({"spec": {"a": {}}}),
        );
    }

    #[test]
    fn the_selector_of_a_budget_is_replaced() {
        let of_kind =
            |kind: &str, labels: Value| json!({"kind": kind, "spec": {"selector": {"matchLabels": labels}}});
        let patch = json!({"spec": {"selector": {"matchLabels": {"b": "1"}}}});
        check(
            &of_kind("PodDisruptionBudget", json!({"a": "1"})),
            &patch,
            &of_kind("PodDisruptionBudget", json!({"b": "1"})),
        );
        check(
            &of_kind("Deployment", json!({"a": "1"})),
            &patch,
            &of_kind("Deployment", json!({"a": "1", "b": "1"})),
        );
    }

    #[test]
    fn items_are_told_apart_by_their_key() {
        let pod = json!({"spec": {"containers": [
            {"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "1"}]},
            {"name": "b", "image": "1"}
        ]}});
        check(
            &pod,
            &json!({"spec": {"$setElementOrder/containers": [{"name": "a"}, {"name": "b"}], "containers": [
                {"name": "a", "image": "2", "env": [{"name": "X", "value": "2"}, {"name": "Y", "$patch": "delete"}]}
            ]}}),
            &json!({"spec": {"containers": [
                {"name": "a", "image": "2", "env": [{"name": "X", "value": "2"}]}, {"name": "b", "image": "1"}
            ]}}),
        );
        check(
            &pod,
            &json!({"spec": {"containers": [{"$patch": "replace"}, {"name": "c"}]}}),
            &json!({"spec": {"containers": [{"name": "c"}]}}),
        );
        let conditions =
            json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other"}]}});
        check(
            &conditions,
            &json!({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
            &json!({"status": {"conditions": [{"type": "Ready", "status": "False"}, {"type": "Other"}]}}),
        );
    }

    #[test]
    fn lists_that_are_not_merged_are_replaced() {
        let node = json!({"spec": {"taints": [{"key": "a", "effect": "NoSchedule"}]}});
        let taints = json!({"spec": {"taints": [{"key": "b", "effect": "NoExecute"}]}});
        check(&node, &taints, &taints);
        check_refused(
            &json!({"spec": {"$setElementOrder/taints": [], "taints": []}}),
            "replaced as a whole",
        );
    }

    #[test]
    fn values_are_a_set() {
        let object = json!({"metadata": {"finalizers": ["a", "b"]}});
        check(
            &object,
            &json!({"metadata": {"finalizers": ["c", "b"]}}),
            &json!({"metadata": {"finalizers": ["c", "a", "b"]}}),
        );
        check(
            &object,
            &json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"], "$setElementOrder/finalizers": ["b"]}}),
            &json!({"metadata": {"finalizers": ["b"]}}),
        );
        check_refused(
            &json!({"spec": {"$deleteFromPrimitiveList/containers": ["a"]}}),
            "no such list of values",
        );
    }

    #[test]
    fn order_is_that_of_the_directive() {
        let named = |names: &[&str]| -> Value { names.iter().map(|name| json!({"name": name})).collect() };
        let pod = json!({"spec": {"volumes": named(&["a", "b", "server"])}});
        for (order, patch, expected) in [
            (named(&["b", "a"]), named(&[]), named(&["b", "a", "server"])),
            (
                named(&["a", "new", "b"]),
                named(&["new"]),
                named(&["a", "new", "b", "server"]),
            ),
            (named(&["unknown", "b"]), named(&[]), named(&["a", "b", "server"])),
        ] {
            check(
                &pod,
                &json!({"spec": {"$setElementOrder/volumes": order, "volumes": patch}}),
                &json!({"spec": {"volumes": expected}}),
            );
        }
        check(
            &pod,
            &json!({"spec": {"volumes": named(&["new"])}}),
            &json!({"spec": {"volumes": named(&["new", "a", "b", "server"])}}),
        );
        check_refused(
            &json!({"spec": {"$setElementOrder/volumes": named(&["a"]), "volumes": named(&["b"])}}),
            "does not agree with the patch",
        );
    }

    #[test]
    fn a_union_keeps_only_what_is_retained() {
        check(
            &json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}),
            &json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}),
            &json!({"spec": {"strategy": {"type": "Recreate"}}}),
        );
        check_refused(&json!({"spec": {"$retainKeys": ["a"], "b": 1}}), "does not list");
    }

    #[test]
    fn what_cannot_be_understood_is_refused() {
        check_refused(&json!([]), "Invalid JSON Patch");
        check_refused(&json!({"spec": {"$patch": "foo"}}), "unknown patch type: foo");
        check_refused(
            &json!({"spec": {"containers": [{"image": "a"}]}}),
            "does not contain declared merge key: name",
        );
        check_refused(&json!({"spec": {"$setElementOrder/volumes": "a"}}), "is no list");
        assert!(apply(&json!({}), b"{").is_err());
    }
}
