//! The status of the older revisions: it shows one interceptor, the active one. After the last one it goes on to show that.
//!
//! | shown | stored |
//! | --- | --- |
//! | the active interceptor, none once the request is final | `activeInterceptors[0]` |
//! | completed | `completionTime` of its entry is set |
//! | heartbeat | `heartbeatTime` of its entry, or `activationTime` before the first heartbeat |
//! | expected finish | `expectedFinishTime` of its entry |
//! | message | the message of its entry, or else that of the outcome |

use serde_json::{Map, Value, json};

use super::{CANCELED, EVICTED};
use crate::kinds::hidden::{members, members_mut, object_mut, set, text};

/// What the fields of a revision are called in `status`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields {
    pub(super) active: &'static str,
    pub(super) completed: &'static str,
    pub(super) heartbeat: &'static str,
    pub(super) expected_finish: &'static str,
    pub(super) policy: &'static str,
}

/// The message of the entry or the outcome; the same in all revisions.
const MESSAGE: &str = "message";
/// The cancellation policy in the hub.
const POLICY: &str = "evictionRequestCancellationPolicy";

/// The condition with which the request ended.
pub(super) fn outcome(status: &Map<String, Value>) -> Option<&Map<String, Value>> {
    let conditions = status.get("conditions").and_then(Value::as_array)?;
    conditions.iter().filter_map(Value::as_object).find(|condition| {
        [EVICTED, CANCELED].contains(&text(condition, "type")) && text(condition, "status") == "True"
    })
}

fn first<'a>(status: &'a Map<String, Value>, list: &str) -> Option<&'a str> {
    status.get(list)?.as_array()?.first()?.as_str()
}

/// The interceptor that is shown: the active one, else the last one that was active.
fn shown_name(status: &Map<String, Value>) -> Option<&str> {
    let last = || status.get("processedInterceptors")?.as_array()?.last()?.as_str();
    first(status, "activeInterceptors").or_else(last)
}

fn entry<'a>(status: &'a Map<String, Value>, name: &str) -> Option<&'a Map<String, Value>> {
    let entries = status.get("interceptors")?.as_array()?.iter();
    entries
        .filter_map(Value::as_object)
        .find(|entry| text(entry, "name") == name)
}

/// The entry of an interceptor, which is added if it is missing.
fn entry_mut<'a>(status: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let entries = list_mut(status, "interceptors");
    let index = entries
        .iter()
        .position(|entry| members(Some(entry)).is_some_and(|entry| text(entry, "name") == name))
        .unwrap_or_else(|| {
            entries.push(json!({ "name": name }));
            entries.len() - 1
        });
    #[expect(clippy::expect_used, reason = "found or added just above")]
    object_mut(entries.get_mut(index).expect("an entry"))
}

/// A list, which is added if it is missing.
pub(super) fn list_mut<'a>(part: &'a mut Map<String, Value>, name: &str) -> &'a mut Vec<Value> {
    let list = part.entry(name).or_insert(Value::Null);
    if !list.is_array() {
        *list = json!([]);
    }
    #[expect(clippy::expect_used, reason = "made a list just above")]
    list.as_array_mut().expect("a list")
}

/// What a revision shows of the status of a hub, besides its conditions and counters.
pub(super) fn show(hub: &Map<String, Value>, fields: &Fields) -> Map<String, Value> {
    let mut shown = Map::new();
    if let Some(active) = first(hub, "activeInterceptors").filter(|_| outcome(hub).is_none()) {
        shown.insert(fields.active.to_owned(), active.into());
    }
    let entry = shown_name(hub).and_then(|name| entry(hub, name));
    if let Some(entry) = entry {
        if entry.contains_key("completionTime") {
            shown.insert(fields.completed.to_owned(), true.into());
        }
        let heartbeat = entry.get("heartbeatTime").or_else(|| entry.get("activationTime"));
        set(&mut shown, fields.heartbeat, heartbeat.cloned());
        set(
            &mut shown,
            fields.expected_finish,
            entry.get("expectedFinishTime").cloned(),
        );
    }
    let reported = entry.filter(|entry| !text(entry, MESSAGE).is_empty());
    let message = reported.or(outcome(hub)).map_or("", |from| text(from, MESSAGE));
    shown.insert(MESSAGE.to_owned(), message.into());
    let policy = hub.get(POLICY).cloned().unwrap_or_else(|| "Allow".into());
    shown.insert(fields.policy.to_owned(), policy);
    shown
}

/// Changes the status of a hub where `face`, the status of a revision, differs from what is shown of it.
pub(super) fn write(face: &Map<String, Value>, hub: &mut Map<String, Value>, fields: &Fields, now: &str) {
    let before = show(hub, fields);
    let is_switched = text(face, fields.active) != text(&before, fields.active);
    if is_switched {
        // The revisions set the heartbeat when they make an interceptor active.
        let is_new = face.get(fields.heartbeat) != before.get(fields.heartbeat);
        let heartbeat = Some(text(face, fields.heartbeat)).filter(|time| is_new && !time.is_empty());
        switch(hub, text(face, fields.active), heartbeat.unwrap_or(now));
    }
    let shown = show(hub, fields);
    let changed = |field: &str| face.get(field) != shown.get(field);
    if changed(fields.policy) {
        set(hub, POLICY, face.get(fields.policy).cloned());
    }
    let Some(name) = shown_name(hub).map(str::to_owned) else {
        return;
    };
    if changed(fields.heartbeat) && !is_switched {
        let time = face.get(fields.heartbeat).cloned();
        let entry = entry_mut(hub, &name);
        if let Some(time) = &time {
            entry.entry("startTime").or_insert_with(|| time.clone());
        }
        set(entry, "heartbeatTime", time);
    }
    if changed(fields.expected_finish) {
        let time = face.get(fields.expected_finish).cloned();
        set(entry_mut(hub, &name), "expectedFinishTime", time);
    }
    let is_completed = |part: &Map<String, Value>| part.get(fields.completed) == Some(&Value::Bool(true));
    if is_completed(face) != is_completed(&shown) {
        let time = is_completed(face).then(|| now.into());
        set(entry_mut(hub, &name), "completionTime", time);
    }
    if text(face, MESSAGE) != text(&shown, MESSAGE) {
        let message = Some(text(face, MESSAGE)).filter(|message| !message.is_empty());
        set(entry_mut(hub, &name), MESSAGE, message.map(Into::into));
    }
}

/// Makes another interceptor active, or none if the name is empty.
fn switch(hub: &mut Map<String, Value>, name: &str, activation: &str) {
    if let Some(before) = first(hub, "activeInterceptors").map(str::to_owned) {
        list_mut(hub, "processedInterceptors").push(before.into());
    }
    if name.is_empty() {
        hub.remove("activeInterceptors");
        return;
    }
    hub.insert("activeInterceptors".to_owned(), json!([name]));
    entry_mut(hub, name)
        .entry("activationTime")
        .or_insert_with(|| activation.into());
}

/// The failed calls of the eviction API.
const COUNTER: &str = "failedAPIEvictionCounter";
const POD_STATUS: &str = "podEvictionStatus";

/// The number of failed calls of the eviction API, if it is recorded.
pub(super) fn failures(hub: &Map<String, Value>) -> Option<&Value> {
    hub.get(POD_STATUS)?.get(COUNTER)
}

/// Changes the number of failed calls where it differs from what is stored.
pub(super) fn write_failures(hub: &mut Map<String, Value>, failures: Option<&Value>) {
    if failures == self::failures(hub) {
        return;
    }
    let status = object_mut(hub.entry(POD_STATUS).or_insert(Value::Null));
    set(status, COUNTER, failures.cloned());
    if status.is_empty() {
        hub.remove(POD_STATUS);
    }
}

/// The interceptors in the order in which they become active.
pub(super) fn targets(hub: &Value) -> Vec<&str> {
    let targets = hub
        .pointer("/status/targetInterceptors")
        .and_then(Value::as_array);
    let names = targets.into_iter().flatten().map(|target| target.get("name"));
    names.filter_map(|name| name.and_then(Value::as_str)).collect()
}

/// Declares the interceptors of a hub, in the order in which they become active.
pub(super) fn declare(hub: &mut Value, names: &[impl AsRef<str>]) {
    let status = members_mut(hub, "status");
    let all: Vec<Value> = names
        .iter()
        .map(|name| json!({ "name": name.as_ref() }))
        .collect();
    status.insert("targetInterceptors".to_owned(), Value::Array(all));
    for name in names {
        entry_mut(status, name.as_ref());
    }
}
