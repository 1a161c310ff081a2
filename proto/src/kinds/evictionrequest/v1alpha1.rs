//! Version v1alpha1: the first revision of the design. It names the pod `spec.target.podRef`, lists the interceptors in
//! `spec`, the last one first, and shows one interceptor in `status`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::single::{self, Fields};
use super::{CancellationPolicy, EvictionType, PodReference, Requester, TargetInterceptor};
use crate::kinds::hidden::{hide, keep_hidden, members, members_mut, object_mut, set, text};
use crate::kinds::{Context, Conversion, ConversionError, Face};

/// The default of `spec.heartbeatDeadlineSeconds` in this version.
pub const DEFAULT_HEARTBEAT_DEADLINE_SECONDS: i32 = 1800;
/// Condition type: the request is no longer processed. True when Evicted or Canceled is.
pub const COMPLETE: &str = "Complete";

/// The version.
pub const FACE: Face = Face {
    version: "v1alpha1",
    alias: None,
    spec: spec_schema,
    status: status_schema,
    conversion: Conversion::Functions { to_hub, from_hub },
    paths: &[
        ("spec.target.pod", "spec.target.podRef"),
        ("status.targetInterceptors", "spec.interceptors"),
        ("status.activeInterceptors", "status.activeInterceptorName"),
        ("status.processedInterceptors", "status.activeInterceptorName"),
        (
            "status.interceptors.activationTime",
            "status.activeInterceptorName",
        ),
        ("status.interceptors.startTime", "status.heartbeatTime"),
        ("status.interceptors.heartbeatTime", "status.heartbeatTime"),
        (
            "status.interceptors.expectedFinishTime",
            "status.expectedInterceptorFinishTime",
        ),
        (
            "status.interceptors.completionTime",
            "status.activeInterceptorCompleted",
        ),
        ("status.interceptors.message", "status.message"),
        ("status.interceptors", "status"),
    ],
};

const FIELDS: Fields = Fields {
    active: "activeInterceptorName",
    completed: "activeInterceptorCompleted",
    heartbeat: "heartbeatTime",
    expected_finish: "expectedInterceptorFinishTime",
    policy: "evictionRequestCancellationPolicy",
};

/// The members of `spec` that are stored as they are shown, and those that are stored in another way.
const SPEC: &[&str] = &[
    "type",
    "target",
    "requesters",
    "interceptors",
    "heartbeatDeadlineSeconds",
];

/// The desired eviction.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvictionRequestSpec {
    /// How the pod is evicted. Only Soft is supported. Immutable.
    #[serde(rename = "type", default)]
    #[schemars(extend("default" = "Soft"))]
    pub type_: EvictionType,
    /// The object to evict. Its UID is the name of this request. Immutable.
    #[serde(default)]
    pub target: EvictionTarget,
    /// The requesters that want the eviction. At least one when the request is created, at most 100; an empty list
    /// cancels the request. Each requester manages its own entry, preferably with server-side apply.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"],
        "x-kubernetes-patch-strategy" = "merge", "x-kubernetes-patch-merge-key" = "name"))]
    pub requesters: Vec<Requester>,
    /// The interceptors of the pod. The one with the highest index acts first. Determined from the pod, immutable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"],
        "x-kubernetes-patch-strategy" = "merge", "x-kubernetes-patch-merge-key" = "name"))]
    pub interceptors: Vec<TargetInterceptor>,
    /// How long the active interceptor may go without a heartbeat before the one with the next lower index becomes
    /// active, in seconds from 600 to 86400. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 1800))]
    pub heartbeat_deadline_seconds: Option<i32>,
}

/// The object to evict. A union: exactly one member must be set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvictionTarget {
    /// The pod to evict, in the namespace of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_ref: Option<PodReference>,
}

/// The observed progress of the eviction.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvictionRequestStatus {
    /// Complete is True once the request is no longer processed; it is derived from Evicted and Canceled, which the
    /// controller sets. Interceptors may set other types.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
    /// A human readable message of the active interceptor, or else of the outcome. At most 32768 bytes.
    #[serde(default)]
    #[schemars(extend("required" = true, "default" = ""))]
    pub message: String,
    /// The interceptor that currently acts. Set by the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_interceptor_name: Option<String>,
    /// Set to true by the active interceptor when it has finished, whether or not the pod is gone. The next interceptor
    /// then becomes active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_interceptor_completed: Option<bool>,
    /// When the active interceptor expects to finish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub expected_interceptor_finish_time: Option<Time>,
    /// The last heartbeat of the active interceptor, or its activation. May only be advanced, by at least 60 seconds at a
    /// time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub heartbeat_time: Option<Time>,
    /// Whether the request can still be canceled: Allow or Forbid. Set by the active interceptor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Allow"))]
    pub eviction_request_cancellation_policy: Option<CancellationPolicy>,
    /// The results of calls to the pod's eviction API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_eviction_status: Option<PodEvictionStatus>,
}

/// The results of calls to the pod's eviction API.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodEvictionStatus {
    /// The number of rejected calls. Never decreases.
    #[serde(default, rename = "failedAPIEvictionCounter")]
    #[schemars(extend("required" = true))]
    pub failed_api_eviction_counter: i32,
}

/// The JSON schema of `spec`.
#[must_use]
pub fn spec_schema() -> Value {
    crate::schema::inlined::<EvictionRequestSpec>()
}

/// The JSON schema of `status`.
#[must_use]
pub fn status_schema() -> Value {
    crate::schema::inlined::<EvictionRequestStatus>()
}

#[expect(clippy::unnecessary_wraps, reason = "a conversion has this type")]
fn from_hub(object: &mut Value) -> Result<(), ConversionError> {
    let interceptors: Vec<Value> = single::targets(object)
        .into_iter()
        .rev()
        .map(|name| json!({ "name": name }))
        .collect();
    hide(object.get_mut("spec"), SPEC);
    if let Some(target) = object.pointer_mut("/spec/target").and_then(Value::as_object_mut) {
        let pod = target.remove("pod");
        *target = Map::new();
        set(target, "podRef", pod);
    }
    if !interceptors.is_empty() {
        members_mut(object, "spec").insert("interceptors".to_owned(), Value::Array(interceptors));
    }
    if let Some(status) = object.get_mut("status")
        && let Some(hub) = status.as_object()
    {
        *status = Value::Object(show_status(hub));
    }
    Ok(())
}

fn show_status(hub: &Map<String, Value>) -> Map<String, Value> {
    let mut shown = single::show(hub, &FIELDS);
    let conditions = show_conditions(hub);
    if !conditions.is_empty() {
        shown.insert("conditions".to_owned(), Value::Array(conditions));
    }
    if let Some(failures) = single::failures(hub) {
        let status = json!({ "failedAPIEvictionCounter": failures });
        shown.insert("podEvictionStatus".to_owned(), status);
    }
    shown
}

/// The conditions of the hub, with Complete once the request is final.
fn show_conditions(hub: &Map<String, Value>) -> Vec<Value> {
    let stored = hub
        .get("conditions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let complete = single::outcome(hub).map(|outcome| {
        let mut complete = outcome.clone();
        complete.insert("type".to_owned(), COMPLETE.into());
        Value::Object(complete)
    });
    let is_shown = |condition: &&Value| complete.is_none() || !is_complete(condition);
    let mut shown: Vec<Value> = stored.filter(is_shown).cloned().collect();
    shown.extend(complete);
    shown
}

fn is_complete(condition: &Value) -> bool {
    members(Some(condition)).is_some_and(|condition| text(condition, "type") == COMPLETE)
}

#[expect(clippy::unnecessary_wraps, reason = "a conversion has this type")]
fn to_hub(object: &mut Value, context: &Context<'_>) -> Result<(), ConversionError> {
    let stored = context.stored;
    let stored_status = stored.and_then(|stored| stored.get("status"));
    let face_status = object.get_mut("status").map(Value::take);
    let mut interceptors = Value::Null;
    if object.get("spec").is_some() || stored.is_some() {
        let spec = members_mut(object, "spec");
        interceptors = spec.remove("interceptors").unwrap_or_default();
        rename_target(spec, stored);
        keep_hidden(spec, stored.and_then(|stored| stored.get("spec")), SPEC);
    }
    if let Some(members) = object.as_object_mut() {
        set(members, "status", stored_status.cloned());
    }
    let declared: Vec<&str> = interceptors
        .as_array()
        .into_iter()
        .flatten()
        .rev()
        .filter_map(|interceptor| interceptor.get("name").and_then(Value::as_str))
        .collect();
    if stored.is_none() && !declared.is_empty() {
        single::declare(object, &declared);
    }
    if let Some(face) = face_status.as_ref().and_then(Value::as_object) {
        write_status(face, members_mut(object, "status"), context.now);
    }
    Ok(())
}

fn rename_target(spec: &mut Map<String, Value>, stored: Option<&Value>) {
    let stored = stored.and_then(|stored| stored.pointer("/spec/target"));
    if spec.get("target").is_none_or(|target| !target.is_object()) {
        return;
    }
    let target = spec.entry("target").or_insert(Value::Null);
    let target = object_mut(target);
    let pod = target.remove("podRef");
    set(target, "pod", pod);
    keep_hidden(target, stored, &["pod"]);
}

fn write_status(face: &Map<String, Value>, hub: &mut Map<String, Value>, now: &str) {
    single::write(face, hub, &FIELDS, now);
    single::write_failures(
        hub,
        face.get("podEvictionStatus")
            .and_then(|status| status.get("failedAPIEvictionCounter")),
    );
    let sent = face.get("conditions").and_then(Value::as_array);
    let sent = sent.map_or(&[][..], Vec::as_slice);
    if sent == show_conditions(hub) {
        return;
    }
    // Complete is derived where the request is final; a stored condition of that type stays.
    let is_final = single::outcome(hub).is_some();
    let stored = hub
        .get("conditions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten();
    let hidden: Vec<Value> = stored
        .filter(|condition| is_final && is_complete(condition))
        .cloned()
        .collect();
    let mut conditions: Vec<Value> = sent
        .iter()
        .filter(|condition| !(is_final && is_complete(condition)))
        .cloned()
        .collect();
    conditions.extend(hidden);
    let conditions = (!conditions.is_empty()).then_some(Value::Array(conditions));
    set(hub, "conditions", conditions);
}
