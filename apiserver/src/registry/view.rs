//! How do rules read an object? As the types of its kind, one part at a time, borrowed from the JSON that is stored.

use drydock_machinery::field_error::{ErrorList, FieldError, FieldPath};
use serde::Deserialize;
use serde_json::Value;

/// A part of an object, such as `spec`; an absent one is empty.
///
/// # Errors
/// One fault when the part does not fit its type. The schema was checked before, so only what a schema cannot say is
/// left, such as a time that is none.
pub(super) fn part<'a, T: Deserialize<'a> + Default>(object: &'a Value, name: &str) -> Result<T, ErrorList> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(T::default()),
        Some(value) => T::deserialize(value).map_err(|error| {
            FieldError::type_invalid(&FieldPath::new(name), "object", &error.to_string()).into()
        }),
    }
}

/// A text below the object, empty when it is absent.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}
