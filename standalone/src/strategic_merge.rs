//! Strategic merge patch for built-in kinds.
//!
//! kubectl computes such patches from its Go types and sends them for pods and nodes whatever the server supports.
//! Supported are all lists that the served built-in kinds merge ([`LISTS`]), and the directives `$patch`,
//! `$setElementOrder`, `$deleteFromPrimitiveList` and `$retainKeys`. A list that is not in the table is replaced as a
//! whole; a directive for such a list is an error. Directives are never stored in an object.

use std::collections::BTreeMap;

use drydock_machinery::codec::{self, DecodeError};
use drydock_machinery::patch::{PatchError, Patched};
use serde_json::{Map, Value};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ELEMENT_ORDER: &str = "$setElementOrder/";
const DELETE_FROM_PRIMITIVE_LIST: &str = "$deleteFromPrimitiveList/";

/// How a list is patched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListType {
    /// It is replaced as a whole.
    Atomic,
    /// It is a set of scalars.
    Set,
    /// Its items are identified by this field, the merge key.
    Map(&'static str),
}

/// The lists that are merged: the field (or list) that contains them, their name, and their type.
const LISTS: &[(&str, &str, ListType)] = &[
    ("metadata", "finalizers", ListType::Set),
    ("metadata", "ownerReferences", ListType::Map("uid")),
    // nodes
    ("spec", "podCIDRs", ListType::Set),
    ("status", "addresses", ListType::Map("type")),
    // pods and their templates
    ("spec", "containers", ListType::Map("name")),
    ("spec", "ephemeralContainers", ListType::Map("name")),
    ("spec", "evictionInterceptors", ListType::Map("name")),
    ("spec", "evictionResponders", ListType::Map("name")),
    ("spec", "hostAliases", ListType::Map("ip")),
    ("spec", "imagePullSecrets", ListType::Map("name")),
    ("spec", "initContainers", ListType::Map("name")),
    ("spec", "resourceClaims", ListType::Map("name")),
    ("spec", "schedulingGates", ListType::Map("name")),
    ("spec", "topologySpreadConstraints", ListType::Map("topologyKey")),
    ("spec", "volumes", ListType::Map("name")),
    ("status", "hostIPs", ListType::Map("ip")),
    ("status", "podIPs", ListType::Map("ip")),
    ("status", "resourceClaimStatuses", ListType::Map("name")),
    // many kinds
    ("status", "conditions", ListType::Map("type")),
];

/// The lists in a container of any list of containers.
const LISTS_OF_CONTAINERS: &[(&str, ListType)] = &[
    ("env", ListType::Map("name")),
    ("ports", ListType::Map("containerPort")),
    ("volumeDevices", ListType::Map("devicePath")),
    ("volumeMounts", ListType::Map("mountPath")),
];

fn list_type(parent: &str, field: &str) -> ListType {
    if matches!(parent, "containers" | "initContainers" | "ephemeralContainers") {
        let found = LISTS_OF_CONTAINERS.iter().find(|(name, _)| *name == field);
        return found.map_or(ListType::Atomic, |(_, list_type)| *list_type);
    }
    let found = LISTS
        .iter()
        .find(|(place, name, _)| *place == parent && *name == field);
    found.map_or(ListType::Atomic, |(_, _, list_type)| *list_type)
}

/// Applies a patch to an object.
///
/// # Errors
/// The patch is not a JSON object, or a directive is malformed or for a list that is not merged.
pub(crate) fn apply(document: &Value, patch: &[u8]) -> Result<Patched, PatchError> {
    let decoded = codec::json::decode(patch).map_err(PatchError::Decode)?;
    let Value::Object(mut patch) = decoded.value else {
        return Err(PatchError::NotAnObject);
    };
    let original = document.as_object().cloned().unwrap_or_default();
    if document.get("kind").and_then(Value::as_str) == Some("PodDisruptionBudget")
        && let Some(Value::Object(selector)) = patch.get_mut("spec").and_then(|spec| spec.get_mut("selector"))
    {
        // The Go type of this kind declares the selector to be replaced; clients omit the directive.
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

/// Merges into an object that is in the field `parent`, or in an item of the list of that name.
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
            let items = merge_list(&items, Vec::new(), Some(order), list_type(parent, &field), &field)?;
            original.insert(field, Value::Array(items));
        }
    }
    for (field, values) in deletions {
        if list_type(parent, &field) != ListType::Set {
            return Err(malformed(format!(
                "{DELETE_FROM_PRIMITIVE_LIST}{field}: not a list of scalars"
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
                list_type(parent, field),
                field,
            )?))
        }
        (new, _) => Some(new),
    })
}

/// Applies `$retainKeys`: removes the fields of a union that belong to its old member.
fn retain_keys(original: &mut Map<String, Value>, patch: &mut Map<String, Value>) -> Result<(), PatchError> {
    let Some(keys) = patch.remove(RETAIN_KEYS) else {
        return Ok(());
    };
    let Value::Array(keys) = keys else {
        return Err(malformed(format!("{RETAIN_KEYS} is not a list")));
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

/// Removes the directives with a prefix from a patch: field → list.
fn take_lists(
    patch: &mut Map<String, Value>,
    prefix: &str,
) -> Result<BTreeMap<String, Vec<Value>>, PatchError> {
    let names: Vec<String> = patch
        .keys()
        .filter(|key| key.starts_with(prefix))
        .cloned()
        .collect();
    let mut lists = BTreeMap::new();
    for name in names {
        let Some(Value::Array(items)) = patch.remove(&name) else {
            return Err(malformed(format!("{name} is not a list")));
        };
        lists.insert(name.trim_start_matches(prefix).to_owned(), items);
    }
    Ok(lists)
}

/// Merges the items of a patch into a list.
fn merge_list(
    old: &[Value],
    new: Vec<Value>,
    order: Option<Vec<Value>>,
    list_type: ListType,
    field: &str,
) -> Result<Vec<Value>, PatchError> {
    let merge_key = match list_type {
        ListType::Atomic if order.is_some() => {
            return Err(malformed(format!(
                "{SET_ELEMENT_ORDER}{field}: the list is replaced as a whole here"
            )));
        }
        ListType::Atomic => return Ok(new),
        ListType::Set => None,
        ListType::Map(key) => Some(key),
    };
    let list = MergedList { field, merge_key };
    let mut merged = old.to_vec();
    let Directives { items, replace } = list.take_directives(new, &mut merged)?;
    if replace {
        return Ok(items);
    }
    let patched = list.identities(&items)?;
    list.merge_items(&mut merged, items, &patched)?;
    let order = match order {
        None => patched,
        Some(order) => list.checked_order(&order, &patched)?,
    };
    let before: Vec<Value> = old.iter().filter_map(|item| list.identity(item).ok()).collect();
    Ok(ordered(merged, &order, &before, |item| {
        list.identity(item).unwrap_or_default()
    }))
}

/// A list that is merged item by item.
struct MergedList<'a> {
    field: &'a str,
    /// None for a set of scalars.
    merge_key: Option<&'static str>,
}

/// The items of a patch without its directives.
struct Directives {
    items: Vec<Value>,
    /// Whether the items replace the list.
    replace: bool,
}

impl MergedList<'_> {
    /// What identifies an item: the value of its merge key, or the scalar itself.
    fn identity(&self, item: &Value) -> Result<Value, PatchError> {
        let Some(key) = self.merge_key else {
            return Ok(item.clone());
        };
        let found = item.get(key).filter(|value| !value.is_null()).cloned();
        found.ok_or_else(|| {
            malformed(format!(
                "an item of {:?} does not contain declared merge key: {key}",
                self.field
            ))
        })
    }

    fn identities(&self, items: &[Value]) -> Result<Vec<Value>, PatchError> {
        items.iter().map(|item| self.identity(item)).collect()
    }

    /// The item with an identity.
    fn find<'i>(&self, items: &'i mut [Value], id: &Value) -> Option<&'i mut Value> {
        items
            .iter_mut()
            .find(|item| self.identity(item).ok().as_ref() == Some(id))
    }

    /// Applies the deletions of a patch to `merged`. Returns the other items.
    fn take_directives(&self, new: Vec<Value>, merged: &mut Vec<Value>) -> Result<Directives, PatchError> {
        let mut items = Vec::with_capacity(new.len());
        let mut replace = false;
        for mut item in new {
            let directive = item.as_object_mut().and_then(|members| members.remove(PATCH));
            match directive.as_ref().map(Value::as_str) {
                None => items.push(item),
                Some(Some("delete")) => {
                    let deleted = self.identity(&item)?;
                    merged.retain(|item| self.identity(item).ok().as_ref() != Some(&deleted));
                }
                Some(Some("replace")) => replace = true,
                Some(other) => {
                    return Err(malformed(format!(
                        "unknown patch type: {} in {:?}",
                        other.unwrap_or("?"),
                        self.field
                    )));
                }
            }
        }
        Ok(Directives { items, replace })
    }

    /// Merges items into those with the same identity, and appends the others.
    fn merge_items(
        &self,
        merged: &mut Vec<Value>,
        items: Vec<Value>,
        identities: &[Value],
    ) -> Result<(), PatchError> {
        for (item, id) in items.into_iter().zip(identities) {
            match (item, self.find(merged, id)) {
                (Value::Object(item), Some(old)) => {
                    let members = old.as_object_mut().map(std::mem::take).unwrap_or_default();
                    *old = Value::Object(merge_map(members, item, self.field)?);
                }
                (Value::Object(item), None) => {
                    merged.push(Value::Object(merge_map(Map::new(), item, self.field)?));
                }
                (_, Some(_)) => {}
                (item, None) => merged.push(item),
            }
        }
        Ok(())
    }

    /// The identities in a `$setElementOrder` list, which must contain the patched items in their order.
    fn checked_order(&self, order: &[Value], patched: &[Value]) -> Result<Vec<Value>, PatchError> {
        let order = self.identities(order)?;
        let mut rest = order.iter();
        match patched.iter().find(|id| !rest.any(|ordered| ordered == *id)) {
            None => Ok(order),
            Some(id) => Err(malformed(format!(
                "{SET_ELEMENT_ORDER}{} does not agree with the patch on {id}",
                self.field
            ))),
        }
    }
}

/// Sorts the items of `wanted` in its order. The other items keep their position relative to items that were in the
/// list before.
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
        // An ordered item goes first, unless both were in the list before and the other one preceded it.
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
    fn check_rejected(patch: &Value, expected: &str) {
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
    fn items_are_identified_by_their_merge_key() {
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
        check_rejected(
            &json!({"spec": {"$setElementOrder/taints": [], "taints": []}}),
            "replaced as a whole",
        );
    }

    #[test]
    fn lists_of_scalars_are_sets() {
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
        check_rejected(
            &json!({"spec": {"$deleteFromPrimitiveList/containers": ["a"]}}),
            "not a list of scalars",
        );
    }

    #[test]
    fn the_order_is_that_of_the_directive() {
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
        check_rejected(
            &json!({"spec": {"$setElementOrder/volumes": named(&["a"]), "volumes": named(&["b"])}}),
            "does not agree with the patch",
        );
    }

    #[test]
    fn a_union_keeps_only_retained_keys() {
        check(
            &json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}),
            &json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}),
            &json!({"spec": {"strategy": {"type": "Recreate"}}}),
        );
        check_rejected(&json!({"spec": {"$retainKeys": ["a"], "b": 1}}), "does not list");
    }

    #[test]
    fn malformed_patches_are_rejected() {
        check_rejected(&json!([]), "Invalid JSON Patch");
        check_rejected(&json!({"spec": {"$patch": "foo"}}), "unknown patch type: foo");
        check_rejected(
            &json!({"spec": {"containers": [{"image": "a"}]}}),
            "does not contain declared merge key: name",
        );
        check_rejected(
            &json!({"spec": {"$setElementOrder/volumes": "a"}}),
            "is not a list",
        );
        assert!(apply(&json!({}), b"{").is_err());
    }
}
