//! Items of sets and list maps: how they are identified, and why some lists cannot be split into items.

use serde_json::Value;

use super::path::PathElement;
use crate::schema::{List, ListKind, Shape};

/// Why a list cannot be split into items.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: element {index}: {error}")]
pub struct TypedError {
    /// The path of the list: `.spec.requesters`.
    pub path: String,
    /// The position of the item.
    pub index: usize,
    /// Why the item has no identity.
    pub error: ItemError,
}

/// Why an item of a set or a list map has no identity. `Display` prints the text of the reference server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ItemError {
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
    /// The same error, seen from the parent.
    pub(super) fn below(mut self, element: &PathElement) -> Self {
        self.path.insert_str(0, &element.to_string());
        self
    }
}

/// The path element that identifies an item of a set or a list map.
///
/// The default of an absent key field counts; a key field without a value and without a default is left out.
pub(super) fn item_element(list: &List, item: &Value) -> Result<PathElement, ItemError> {
    let ListKind::Map(keys) = &list.kind else {
        return match item {
            Value::Null => Err(ItemError::NullInSet),
            Value::Array(_) => Err(ItemError::ListInSet),
            Value::Object(_) => Err(ItemError::MapInSet),
            scalar => Ok(PathElement::Value(scalar.clone())),
        };
    };
    let members = match item {
        Value::Null => return Err(ItemError::Null),
        Value::Object(members) => members,
        _ => return Err(ItemError::NotAMap),
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
        return Err(ItemError::NoKeys(keys.clone()));
    }
    fields.sort_by(|(left, _), (right, _)| left.cmp(right));
    Ok(PathElement::Key(fields))
}

/// The path elements of all items, in the order of the list.
pub(super) fn elements(list: &List, items: &[Value]) -> Result<Vec<PathElement>, TypedError> {
    let element = |(index, item)| {
        item_element(list, item).map_err(|error| TypedError {
            path: String::new(),
            index,
            error,
        })
    };
    items.iter().enumerate().map(element).collect()
}

/// The items with their path elements, sorted by element; items with equal elements keep their order.
pub(super) fn keyed<'v>(
    list: &List,
    items: &'v [Value],
) -> Result<Vec<(PathElement, &'v Value)>, TypedError> {
    let mut keyed: Vec<_> = elements(list, items)?.into_iter().zip(items).collect();
    keyed.sort_by(|(left, _), (right, _)| left.cmp(right));
    Ok(keyed)
}

/// Items with one path element. More than one only in lists that were stored with duplicates.
pub(super) struct Group<'k, 'v> {
    pub(super) element: &'k PathElement,
    pub(super) items: &'k [(PathElement, &'v Value)],
}

/// The groups of items with equal path elements.
pub(super) fn groups<'k, 'v>(keyed: &'k [(PathElement, &'v Value)]) -> impl Iterator<Item = Group<'k, 'v>> {
    keyed
        .chunk_by(|(left, _), (right, _)| left == right)
        .filter_map(|items| {
            let (element, _) = items.first()?;
            Some(Group { element, items })
        })
}
