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
