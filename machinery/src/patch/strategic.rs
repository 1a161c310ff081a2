//! Strategic merge patch: objects are merged, `null` deletes, and lists are merged as the schema of their place says.
//!
//! A list with the patch strategy `merge` is a set of scalars, or its items are identified by its merge key; any other list
//! is replaced as a whole, and a directive for it is an error. The directives `$patch`, `$setElementOrder`,
//! `$deleteFromPrimitiveList` and `$retainKeys` are supported; they are never stored in an object.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::{Map, Value};

use super::{PatchError, Patched};
use crate::codec::{self, DecodeError};
use crate::schema::{Shape, Structural};

const PATCH: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ELEMENT_ORDER: &str = "$setElementOrder/";
const DELETE_FROM_PRIMITIVE_LIST: &str = "$deleteFromPrimitiveList/";
const PATCH_STRATEGY: &str = "x-kubernetes-patch-strategy";
const PATCH_MERGE_KEY: &str = "x-kubernetes-patch-merge-key";

/// How a list is patched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListType {
    /// It is replaced as a whole.
    Atomic,
    /// It is a set of scalars.
    Set,
    /// Its items are identified by this field, the merge key.
    Map(String),
}

/// A position in an object, which knows how the value there is patched.
pub trait Place: Clone {
    /// The value in a field of the object here.
    #[must_use]
    fn field(&self, name: &str) -> Self;

    /// An item of the list here.
    #[must_use]
    fn item(&self) -> Self;

    /// How the list here is patched.
    fn list_type(&self) -> ListType;

    /// Whether the object here is replaced as a whole.
    fn is_replaced(&self) -> bool;
}

/// A position in a schema; `None` where the schema does not say anything.
#[derive(Debug, Clone, Copy)]
struct BySchema<'a>(Option<&'a Structural>);

impl<'a> BySchema<'a> {
    fn keyword(self, keyword: &str) -> Option<&'a str> {
        self.0?.annotations.get(keyword)?.as_str()
    }

    fn has_strategy(self, wanted: &str) -> bool {
        let strategies = self.keyword(PATCH_STRATEGY).unwrap_or_default();
        strategies.split(',').any(|strategy| strategy == wanted)
    }
}

impl Place for BySchema<'_> {
    fn field(&self, name: &str) -> Self {
        Self(match self.0.map(|schema| &schema.shape) {
            Some(Shape::Object(object)) => object.child(name),
            _ => None,
        })
    }

    fn item(&self) -> Self {
        Self(match self.0.map(|schema| &schema.shape) {
            Some(Shape::List(list)) => Some(&list.items),
            _ => None,
        })
    }

    fn list_type(&self) -> ListType {
        match self.keyword(PATCH_MERGE_KEY) {
            _ if !self.has_strategy("merge") => ListType::Atomic,
            Some(key) => ListType::Map(key.to_owned()),
            None => ListType::Set,
        }
    }

    fn is_replaced(&self) -> bool {
        self.has_strategy("replace")
    }
}

/// Applies a patch to an object with this schema.
///
/// # Errors
/// The patch is not a JSON object, or a directive is malformed or for a list that is not merged.
pub fn apply(document: &Value, patch: &[u8], schema: &Structural) -> Result<Patched, PatchError> {
    apply_at(document, patch, &BySchema(Some(schema)))
}

/// Applies a patch to an object at a place.
///
/// # Errors
/// As for [`apply`].
pub fn apply_at(document: &Value, patch: &[u8], place: &impl Place) -> Result<Patched, PatchError> {
    let decoded = codec::json::decode(patch).map_err(PatchError::Decode)?;
    let Value::Object(patch) = decoded.value else {
        return Err(PatchError::NotAnObject);
    };
    let original = document.as_object().cloned().unwrap_or_default();
    let value = merge_map(original, patch, place)?;
    Ok(Patched {
        value: Value::Object(value),
        strict: decoded.duplicates,
    })
}

fn malformed(why: String) -> PatchError {
    PatchError::Decode(DecodeError::Syntax(why))
}

/// Merges into the object at a place.
fn merge_map(
    mut original: Map<String, Value>,
    mut patch: Map<String, Value>,
    place: &impl Place,
) -> Result<Map<String, Value>, PatchError> {
    match patch.remove(PATCH).as_ref().map(Value::as_str) {
        None if place.is_replaced() => original.clear(),
        None | Some(Some("merge")) => {}
        Some(Some("replace")) => original.clear(),
        Some(Some("delete")) => return Ok(Map::new()),
        Some(other) => return Err(malformed(format!("unknown patch type: {}", other.unwrap_or("?")))),
    }
    retain_keys(&mut original, &mut patch)?;
    let mut orders = take_lists(&mut patch, SET_ELEMENT_ORDER)?;
    let deletions = take_lists(&mut patch, DELETE_FROM_PRIMITIVE_LIST)?;

    for (field, value) in patch {
        let order = orders.remove(&field);
        let old = original.remove(&field);
        let place = place.field(&field);
        if let Some(new) = merge_field(old, value, order, &place, &field)? {
            original.insert(field, new);
        }
    }
    for (field, order) in orders {
        // A value that is no list, as in an object of another version, stays as it is.
        if let Some(Value::Array(items)) = original.get_mut(&field) {
            let place = place.field(&field);
            let ordered = merge_list(std::mem::take(items), Vec::new(), Some(order), &place, &field)?;
            *items = ordered;
        }
    }
    for (field, values) in deletions {
        if place.field(&field).list_type() != ListType::Set {
            return Err(malformed(format!(
                "{DELETE_FROM_PRIMITIVE_LIST}{field}: not a list of scalars"
            )));
        }
        if let Some(Value::Array(items)) = original.get_mut(&field) {
            let values: HashSet<String> = values.iter().map(Value::to_string).collect();
            items.retain(|item| !values.contains(&item.to_string()));
        }
    }
    Ok(original)
}

fn merge_field(
    old: Option<Value>,
    new: Value,
    order: Option<Vec<Value>>,
    place: &impl Place,
    field: &str,
) -> Result<Option<Value>, PatchError> {
    Ok(match (new, old) {
        (Value::Null, _) => None,
        (Value::Object(new), Some(Value::Object(old))) => Some(Value::Object(merge_map(old, new, place)?)),
        (Value::Object(new), _) => Some(Value::Object(merge_map(Map::new(), new, place)?)),
        (Value::Array(new), old) => {
            let old = match old {
                Some(Value::Array(items)) => items,
                _ => Vec::new(),
            };
            Some(Value::Array(merge_list(old, new, order, place, field)?))
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
    let kept: HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    let mut set = patch.keys().filter(|key| !key.starts_with('$'));
    if let Some(key) = set.find(|key| !kept.contains(key.as_str())) {
        return Err(malformed(format!(
            "{RETAIN_KEYS} does not list {key:?}, which the patch sets"
        )));
    }
    original.retain(|key, _| kept.contains(key.as_str()));
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

/// Merges the items of a patch into the list at a place.
fn merge_list(
    old: Vec<Value>,
    new: Vec<Value>,
    order: Option<Vec<Value>>,
    place: &impl Place,
    field: &str,
) -> Result<Vec<Value>, PatchError> {
    let merge_key = match place.list_type() {
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
    let before = positions(old.iter().filter_map(|item| list.identity(item).ok()));
    let mut merged = old;
    let Directives { items, replace } = list.take_directives(new, &mut merged)?;
    if replace {
        return Ok(items);
    }
    let patched = list.identities(&items)?;
    list.merge_items(&mut merged, items, &patched, &place.item())?;
    let order = match order {
        None => patched,
        Some(order) => list.checked_order(&order, &patched)?,
    };
    Ok(ordered(merged, &positions(order), &before, |item| {
        list.identity(item).unwrap_or_default()
    }))
}

/// Identity → first position.
fn positions(identities: impl IntoIterator<Item = String>) -> HashMap<String, usize> {
    let mut positions = HashMap::new();
    for (at, identity) in identities.into_iter().enumerate() {
        positions.entry(identity).or_insert(at);
    }
    positions
}

/// A list that is merged item by item.
struct MergedList<'a> {
    field: &'a str,
    /// None for a set of scalars.
    merge_key: Option<String>,
}

/// The items of a patch without its directives.
struct Directives {
    items: Vec<Value>,
    /// Whether the items replace the list.
    replace: bool,
}

impl MergedList<'_> {
    /// What identifies an item, as JSON: the value of its merge key, or the scalar itself.
    fn identity(&self, item: &Value) -> Result<String, PatchError> {
        let Some(key) = &self.merge_key else {
            return Ok(item.to_string());
        };
        let found = item.get(key).filter(|value| !value.is_null());
        found.map(Value::to_string).ok_or_else(|| {
            malformed(format!(
                "an item of {:?} does not contain declared merge key: {key}",
                self.field
            ))
        })
    }

    fn identities(&self, items: &[Value]) -> Result<Vec<String>, PatchError> {
        items.iter().map(|item| self.identity(item)).collect()
    }

    /// Applies the deletions of a patch to `merged`. Returns the other items.
    fn take_directives(&self, new: Vec<Value>, merged: &mut Vec<Value>) -> Result<Directives, PatchError> {
        let mut items = Vec::with_capacity(new.len());
        let mut deleted = HashSet::new();
        let mut replace = false;
        for mut item in new {
            let directive = item.as_object_mut().and_then(|members| members.remove(PATCH));
            match directive.as_ref().map(Value::as_str) {
                None | Some(Some("merge")) => items.push(item),
                Some(Some("delete")) => {
                    deleted.insert(self.identity(&item)?);
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
        if !deleted.is_empty() {
            merged.retain(|item| self.identity(item).map_or(true, |id| !deleted.contains(&id)));
        }
        Ok(Directives { items, replace })
    }

    /// Merges items into those with the same identity, and appends the others.
    fn merge_items(
        &self,
        merged: &mut Vec<Value>,
        items: Vec<Value>,
        identities: &[String],
        place: &impl Place,
    ) -> Result<(), PatchError> {
        let mut at: HashMap<String, usize> = HashMap::new();
        for (position, item) in merged.iter().enumerate() {
            if let Ok(id) = self.identity(item) {
                at.entry(id).or_insert(position);
            }
        }
        for (item, id) in items.into_iter().zip(identities) {
            let old = at.get(id).and_then(|position| merged.get_mut(*position));
            match (item, old) {
                (Value::Object(item), Some(old)) => {
                    let members = old.as_object_mut().map(std::mem::take).unwrap_or_default();
                    *old = Value::Object(merge_map(members, item, place)?);
                }
                (_, Some(_)) => {}
                (item, None) => {
                    at.insert(id.clone(), merged.len());
                    merged.push(match item {
                        Value::Object(item) => Value::Object(merge_map(Map::new(), item, place)?),
                        scalar => scalar,
                    });
                }
            }
        }
        Ok(())
    }

    /// The identities in a `$setElementOrder` list, which must contain the patched items in their order.
    fn checked_order(&self, order: &[Value], patched: &[String]) -> Result<Vec<String>, PatchError> {
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
    wanted: &HashMap<String, usize>,
    before: &HashMap<String, usize>,
    identity: impl Fn(&Value) -> String,
) -> Vec<Value> {
    let (mut named, mut others) = (Vec::new(), Vec::new());
    for item in items {
        let id = identity(&item);
        let place = before.get(&id).copied();
        match wanted.get(&id) {
            Some(rank) => named.push((*rank, place, item)),
            None => others.push((place, item)),
        }
    }
    named.sort_by_key(|(rank, ..)| *rank);
    let mut result = Vec::with_capacity(named.len() + others.len());
    let mut named = named.into_iter().peekable();
    for (place, other) in others {
        // An ordered item goes first, unless both were in the list before and the other one preceded it.
        while let Some((_, next, _)) = named.peek() {
            match (place, *next) {
                (Some(place), Some(next)) if place < next => break,
                _ => result.extend(named.next().map(|(_, _, item)| item)),
            }
        }
        result.push(other);
    }
    result.extend(named.map(|(_, _, item)| item));
    result
}

/// Fuzz target: patching an object must not panic and must yield an object without directives.
///
/// # Panics
/// If the result is not such an object, which is a bug.
pub fn fuzz_apply(patch: &[u8]) {
    if let Ok(patched) = apply(&super::fuzz_document(), patch, &crate::schema::object_meta()) {
        assert!(patched.value.is_object());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A schema with the lists that these tests use.
    fn schema() -> Structural {
        let list = |key: &str, items: Value| {
            json!({"type": "array", "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": key,
                "items": items})
        };
        let named = json!({"type": "object", "properties": {"name": {"type": "string"}}});
        let container = json!({"type": "object", "properties": {
            "name": {"type": "string"}, "image": {"type": "string"}, "env": list("name", named.clone())}});
        let spec = json!({"type": "object", "properties": {
            "containers": list("name", container), "volumes": list("name", named),
            "taints": {"type": "array", "items": {"type": "object"}},
            "selector": {"type": "object", "x-kubernetes-patch-strategy": "replace", "properties": {
                "matchLabels": {"type": "object", "additionalProperties": {"type": "string"}}}},
        }});
        let status =
            json!({"type": "object", "properties": {"conditions": list("type", json!({"type": "object"}))}});
        Structural::for_kind("Pod", "v1", "", &[("spec", &spec), ("status", &status)]).unwrap()
    }

    fn patched(document: &Value, patch: &Value) -> Result<Value, String> {
        apply(document, patch.to_string().as_bytes(), &schema())
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
    fn an_object_may_be_replaced_by_its_schema() {
        check(
            &json!({"spec": {"selector": {"matchLabels": {"a": "1"}}}}),
            &json!({"spec": {"selector": {"matchLabels": {"b": "1"}}}}),
            &json!({"spec": {"selector": {"matchLabels": {"b": "1"}}}}),
        );
        check(
            &json!({"spec": {"selector": {"matchLabels": {"a": "1"}}}}),
            &json!({"spec": {"selector": {"$patch": "merge", "matchLabels": {"b": "1"}}}}),
            &json!({"spec": {"selector": {"matchLabels": {"a": "1", "b": "1"}}}}),
        );
    }

    #[test]
    fn an_order_alone_keeps_a_value_that_is_no_list() {
        for stored in [json!("text"), json!({"a": 1}), json!(1)] {
            let object = json!({"spec": {"volumes": stored}});
            check(
                &object,
                &json!({"spec": {"$setElementOrder/volumes": [{"name": "a"}]}}),
                &object,
            );
        }
    }

    #[test]
    fn metadata_is_merged_by_the_rules_of_kubernetes() {
        check(
            &json!({"metadata": {"ownerReferences": [{"uid": "a", "name": "x"}, {"uid": "b", "name": "y"}]}}),
            &json!({"metadata": {"ownerReferences": [{"$patch": "delete", "uid": "a"}]}}),
            &json!({"metadata": {"ownerReferences": [{"uid": "b", "name": "y"}]}}),
        );
    }

    #[test]
    fn large_lists_take_linear_time() {
        let volumes = |prefix: &str| -> Value {
            (0..50_000)
                .map(|at| json!({"name": format!("{prefix}{at}")}))
                .collect()
        };
        let order: Value = (0..100_000)
            .map(|at| json!({"name": format!("{}{}", if at % 2 == 0 { "a" } else { "b" }, at / 2)}))
            .collect();
        let document = json!({"spec": {"volumes": volumes("a")}});
        let patch = json!({"spec": {"$setElementOrder/volumes": order, "volumes": volumes("b")}});
        let patched = patched(&document, &patch).unwrap();
        assert_eq!(patched.pointer("/spec/volumes"), Some(&order));
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
        assert!(apply(&json!({}), b"{", &schema()).is_err());
    }
}
