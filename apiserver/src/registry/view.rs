//! Typed access to an object: `spec` or `status` as the Rust type of its kind, borrowed from the JSON.

use drydock_machinery::field_error::{ErrorList, FieldError, FieldPath};
use serde::Deserialize;
use serde_json::Value;

/// A member of an object, such as `spec`, as a Rust type; the default if it is absent or null.
///
/// # Errors
/// One error if the value does not fit the type. The schema has been checked before, so this is a value that a schema
/// does not constrain, such as a malformed timestamp.
pub(super) fn part<'a, T: Deserialize<'a> + Default>(object: &'a Value, name: &str) -> Result<T, ErrorList> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(T::default()),
        Some(value) => T::deserialize(value).map_err(|error| {
            FieldError::type_invalid(&FieldPath::new(name), "object", &error.to_string()).into()
        }),
    }
}

/// The string at a JSON pointer; empty if it is absent.
pub(super) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}
