//! What of a pod does the embedded host look at?

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::{Value, json};

/// The default of `spec.terminationGracePeriodSeconds`.
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// A text in an object; empty when absent.
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// A whole number in an object.
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

/// The node a pod is bound to; empty when it is not.
pub(crate) fn node_name(pod: &Value) -> &str {
    text(pod, "/spec/nodeName")
}

/// The phase of a pod; a pod without one is pending.
pub(crate) fn phase(pod: &Value) -> &str {
    match text(pod, "/status/phase") {
        "" => "Pending",
        phase => phase,
    }
}

/// Whether a pod has ended by itself.
pub(crate) fn is_terminal(pod: &Value) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// A condition of an object.
pub(crate) fn condition<'a>(object: &'a Value, type_: &str) -> Option<&'a Value> {
    items(object, "/status/conditions")
        .iter()
        .find(|condition| text(condition, "/type") == type_)
}

/// Whether a pod (or node) is ready.
pub(crate) fn is_ready(object: &Value) -> bool {
    condition(object, "Ready").is_some_and(|ready| text(ready, "/status") == "True")
}

/// How long a pod may take to end, in seconds, when a client asks for `requested`.
///
/// A pod that runs nowhere, or no longer, needs no time.
pub(crate) fn grace_period(pod: &Value, requested: Option<i64>) -> i64 {
    if node_name(pod).is_empty() || is_terminal(pod) {
        return 0;
    }
    let period = requested
        .or_else(|| integer(pod, "/spec/terminationGracePeriodSeconds"))
        .unwrap_or(DEFAULT_GRACE_SECONDS);
    if period < 0 { 1 } else { period }
}

/// What a condition says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Condition<'a> {
    pub(crate) type_: &'a str,
    pub(crate) status: &'a str,
    pub(crate) reason: &'a str,
    pub(crate) message: &'a str,
}

impl<'a> Condition<'a> {
    /// A condition that holds and needs no words.
    pub(crate) const fn holds(type_: &'a str) -> Self {
        Self {
            type_,
            status: "True",
            reason: "",
            message: "",
        }
    }
}

/// Sets a condition; its time of transition only moves when its status does.
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

/// A member of an object that is an object itself, made where it is missing.
pub(crate) fn member_mut<'a>(object: &'a mut Value, member: &str) -> &'a mut Value {
    if !object.get(member).is_some_and(Value::is_object) {
        set(object, member, json!({}));
    }
    // The member was made just above wherever there is an object to hold it.
    match object {
        Value::Object(members) => members.entry(member).or_insert(Value::Null),
        other => other,
    }
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

    #[track_caller]
    fn check_grace(pod: &Value, requested: Option<i64>, expected: i64) {
        assert_eq!(grace_period(pod, requested), expected, "{pod} {requested:?}");
    }

    #[test]
    fn grace_is_what_is_asked_for_or_what_the_pod_says() {
        let running = json!({"spec": {"nodeName": "a", "terminationGracePeriodSeconds": 7}});
        check_grace(&running, None, 7);
        check_grace(&running, Some(2), 2);
        check_grace(&running, Some(0), 0);
        check_grace(&running, Some(-5), 1);
        check_grace(&json!({"spec": {"nodeName": "a"}}), None, 30);
    }

    #[test]
    fn a_pod_that_does_not_run_needs_no_grace() {
        check_grace(&json!({"spec": {}}), Some(9), 0);
        check_grace(
            &json!({"spec": {"nodeName": "a"}, "status": {"phase": "Succeeded"}}),
            None,
            0,
        );
    }

    #[test]
    fn a_condition_keeps_its_time_while_its_status_stays() {
        let mut object = json!({"metadata": {}});
        let at = |second| Timestamp::from_second(second).unwrap();
        set_condition(&mut object, Condition::holds("Ready"), at(0));
        set_condition(&mut object, Condition::holds("Ready"), at(10));
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
