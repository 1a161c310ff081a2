//! Reading and writing members of objects that are plain JSON.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

/// A string in an object; empty when absent.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// An integer in an object.
pub(crate) fn integer(object: &Value, pointer: &str) -> Option<i64> {
    object.pointer(pointer).and_then(Value::as_i64)
}

/// A time in an object.
pub(crate) fn time(object: &Value, pointer: &str) -> Option<Timestamp> {
    text(object, pointer).parse().ok()
}

/// A list in an object; empty when absent.
pub(crate) fn items<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object
        .pointer(pointer)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// The labels of an object.
pub(crate) fn labels(object: &Value) -> BTreeMap<String, String> {
    let members = object
        .pointer("/metadata/labels")
        .and_then(Value::as_object)
        .into_iter()
        .flatten();
    members
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())))
        .collect()
}

/// A condition of an object.
pub(crate) fn condition<'a>(object: &'a Value, type_: &str) -> Option<&'a Value> {
    items(object, "/status/conditions")
        .iter()
        .find(|condition| text(condition, "/type") == type_)
}

/// Whether the condition `Ready` of a pod or node is true.
pub(crate) fn is_ready(object: &Value) -> bool {
    condition(object, "Ready").is_some_and(|ready| text(ready, "/status") == "True")
}

/// A condition to set.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Condition<'a> {
    pub(crate) type_: &'a str,
    pub(crate) status: &'a str,
    pub(crate) reason: &'a str,
    pub(crate) message: &'a str,
}

impl<'a> Condition<'a> {
    /// A true condition without reason and message.
    pub(crate) const fn new_true(type_: &'a str) -> Self {
        Self {
            type_,
            status: "True",
            reason: "",
            message: "",
        }
    }
}

/// Sets a condition. Its transition time changes only with its status.
pub(crate) fn set_condition(object: &mut Value, wanted: Condition<'_>, now: Timestamp) {
    let before = condition(object, wanted.type_);
    let since = before
        .filter(|before| text(before, "/status") == wanted.status)
        .and_then(|before| before.get("lastTransitionTime").cloned())
        .unwrap_or_else(|| json!(drydock_apiserver::registry::metadata::time_text(now)));
    let mut condition = json!({ "type": wanted.type_, "status": wanted.status, "lastTransitionTime": since });
    for (member, value) in [("reason", wanted.reason), ("message", wanted.message)] {
        if !value.is_empty() {
            set(&mut condition, member, json!(value));
        }
    }
    let mut conditions = items(object, "/status/conditions").to_vec();
    match conditions
        .iter_mut()
        .find(|other| text(other, "/type") == wanted.type_)
    {
        Some(place) => *place = condition,
        None => conditions.push(condition),
    }
    set(
        member_mut(object, "status"),
        "conditions",
        Value::Array(conditions),
    );
}

/// A member of an object that is an object itself; created when absent.
pub(crate) fn member_mut<'a>(object: &'a mut Value, member: &str) -> &'a mut Value {
    if !object.get(member).is_some_and(Value::is_object) {
        set(object, member, json!({}));
    }
    // The member was created above if `object` is an object.
    match object {
        Value::Object(members) => members.entry(member).or_insert(Value::Null),
        other => other,
    }
}

/// Whether an object is being deleted.
pub(crate) fn is_terminating(object: &Value) -> bool {
    !text(object, "/metadata/deletionTimestamp").is_empty()
}

/// Sets a member of an object.
pub(crate) fn set(object: &mut Value, member: &str, value: Value) {
    if let Value::Object(members) = object {
        members.insert(member.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transition_time_changes_only_with_the_status() {
        let mut object = json!({"metadata": {}});
        let at = |second| Timestamp::from_second(second).unwrap();
        set_condition(&mut object, Condition::new_true("Ready"), at(0));
        set_condition(&mut object, Condition::new_true("Ready"), at(10));
        assert_eq!(
            condition(&object, "Ready").unwrap()["lastTransitionTime"],
            "1970-01-01T00:00:00Z"
        );
        let lost = Condition {
            type_: "Ready",
            status: "False",
            reason: "Gone",
            message: "",
        };
        set_condition(&mut object, lost, at(20));
        assert_eq!(
            object["status"]["conditions"],
            json!([{"type": "Ready", "status": "False", "reason": "Gone", "lastTransitionTime": "1970-01-01T00:00:20Z"}])
        );
        assert!(!is_ready(&object));
    }
}
