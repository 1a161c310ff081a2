//! Members of the hub that a face does not show: left out of what is shown, and kept from the stored object.

use serde_json::{Map, Value};

/// The members of an object; none if it is not one.
pub(super) fn members(value: Option<&Value>) -> Option<&Map<String, Value>> {
    value.and_then(Value::as_object)
}

/// A member of an object, made an object if it is not one.
pub(super) fn members_mut<'a>(object: &'a mut Value, name: &str) -> &'a mut Map<String, Value> {
    object_mut(object_mut(object).entry(name).or_insert(Value::Null))
}

/// The members of a value, which is made an object if it is not one.
pub(super) fn object_mut(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    #[expect(clippy::expect_used, reason = "made an object just above")]
    value.as_object_mut().expect("an object")
}

/// Removes all members but those that the face shows.
pub(super) fn hide(part: Option<&mut Value>, shown: &[&str]) {
    if let Some(members) = part.and_then(Value::as_object_mut) {
        members.retain(|name, _| shown.contains(&name.as_str()));
    }
}

/// Adds the members of the stored part that the face does not show.
pub(super) fn keep_hidden(part: &mut Map<String, Value>, stored: Option<&Value>, shown: &[&str]) {
    for (name, value) in members(stored).into_iter().flatten() {
        if !shown.contains(&name.as_str()) {
            part.insert(name.clone(), value.clone());
        }
    }
}

/// Sets a member; `None` removes it.
pub(super) fn set(part: &mut Map<String, Value>, name: &str, value: Option<Value>) {
    match value {
        Some(value) => part.insert(name.to_owned(), value),
        None => part.remove(name),
    };
}

/// A string member; empty if it is absent.
pub(super) fn text<'a>(part: &'a Map<String, Value>, name: &str) -> &'a str {
    part.get(name).and_then(Value::as_str).unwrap_or_default()
}
