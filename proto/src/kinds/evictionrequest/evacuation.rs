//! Evacuation in version v1alpha1: the ancestor of EvictionRequest, served as a resource of its own.
//!
//! | shown | stored |
//! | --- | --- |
//! | name: `UID-PODNAMEPREFIX` | name: the uid of the pod |
//! | uid | another uid, derived in both directions |
//! | instigator finalizers | `spec.requesters` |
//! | `spec.evacuators`, with priorities that reproduce their order | `status.targetInterceptors` |

use std::ops::RangeInclusive;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::single::{self, Fields};
use super::{CancellationPolicy, PodReference};
use crate::kinds::hidden::{hide, keep_hidden, members, members_mut, object_mut, set, text};
use crate::kinds::{Alias, CollectionFinalizers, Context, Conversion, ConversionError, Face, Names};

/// The default of `spec.progressDeadlineSeconds`.
pub const DEFAULT_PROGRESS_DEADLINE_SECONDS: i32 = 1800;
/// The allowed range of `spec.progressDeadlineSeconds`.
pub const PROGRESS_DEADLINE_SECONDS: RangeInclusive<i32> = 600..=21_600;
/// The finalizers with this prefix are the requesters: `evacuation.coordination.k8s.io/instigator_nodemaintenance.k8s.io`.
pub const INSTIGATOR_PREFIX: &str = "evacuation.coordination.k8s.io/instigator_";
/// The finalizer of an Evacuation that was deleted while it had instigators. It does not hold a request any more that has
/// no requesters or is final.
pub const HOLD_FINALIZER: &str = "evacuation.coordination.k8s.io/instigators";
/// The maximum length of the prefix of the pod's name in the name of an Evacuation, in bytes.
pub const MAX_POD_NAME_PREFIX: usize = 150;

/// The length of a pod's uid.
const UID_LENGTH: usize = 36;
/// The priority of the controller of a pod, by which other evacuators can be ordered.
const CONTROLLER_PRIORITY: i32 = 10_000;
/// The difference between the priorities of neighbors.
const PRIORITY_STEP: i32 = 500;

/// The resource.
pub static ALIAS: Alias = Alias {
    names: Names {
        kind: "Evacuation",
        plural: "evacuations",
        singular: "evacuation",
        short_names: &["evac"],
        description: "Evacuation asks that one pod leaves its node gracefully. It is the ancestor of EvictionRequest: each \
                      Evacuation is the EvictionRequest of the same pod in another shape.",
    },
    name_of,
    stored_name,
    other_uid,
    collection_finalizers: OWN_COLLECTION,
    hold: HOLD_FINALIZER,
    is_held,
};

/// The resource in its version.
pub const FACE: Face = Face {
    version: "v1alpha1",
    alias: Some(&ALIAS),
    spec: spec_schema,
    status: status_schema,
    conversion: Conversion::Functions { to_hub, from_hub },
    paths: &[
        ("spec.target.pod", "spec.podRef"),
        ("spec.target", "spec.podRef"),
        ("spec.requesters", "metadata.finalizers"),
        ("spec.heartbeatDeadlineSeconds", "spec.progressDeadlineSeconds"),
        ("status.targetInterceptors", "spec.evacuators"),
        ("status.activeInterceptors", "status.activeEvacuatorClass"),
        ("status.processedInterceptors", "status.activeEvacuatorClass"),
        (
            "status.interceptors.activationTime",
            "status.activeEvacuatorClass",
        ),
        (
            "status.interceptors.startTime",
            "status.evacuationProgressTimestamp",
        ),
        (
            "status.interceptors.heartbeatTime",
            "status.evacuationProgressTimestamp",
        ),
        (
            "status.interceptors.expectedFinishTime",
            "status.expectedEvacuationFinishTime",
        ),
        (
            "status.interceptors.completionTime",
            "status.activeEvacuatorCompleted",
        ),
        ("status.interceptors.message", "status.message"),
        ("status.interceptors", "status"),
        (
            "status.evictionRequestCancellationPolicy",
            "status.evacuationCancellationPolicy",
        ),
        (
            "status.podEvictionStatus.failedAPIEvictionCounter",
            "status.failedEvictionCounter",
        ),
    ],
};

const FIELDS: Fields = Fields {
    active: "activeEvacuatorClass",
    completed: "activeEvacuatorCompleted",
    heartbeat: "evacuationProgressTimestamp",
    expected_finish: "expectedEvacuationFinishTime",
    policy: "evacuationCancellationPolicy",
};

/// The members of the hub's `spec` that an Evacuation shows, in another way.
const SPEC: &[&str] = &["target", "requesters", "heartbeatDeadlineSeconds"];
/// The finalizers of the garbage collector for Evacuations, as they are stored.
const OWN_COLLECTION: CollectionFinalizers = CollectionFinalizers {
    orphan: "evacuation.coordination.k8s.io/orphan",
    foreground: "evacuation.coordination.k8s.io/foregroundDeletion",
};
/// The finalizers of the garbage collector for the stored object, as an Evacuation shows them.
const STORED_COLLECTION: CollectionFinalizers = CollectionFinalizers {
    orphan: "evictionrequest.coordination.k8s.io/orphan",
    foreground: "evictionrequest.coordination.k8s.io/foregroundDeletion",
};

/// The desired evacuation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvacuationSpec {
    /// The pod to evacuate, in the namespace of the Evacuation. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_ref: Option<PodReference>,
    /// The evacuators of the pod. Higher priorities act first. Determined from the pod, immutable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["evacuatorClass"],
        "x-kubernetes-patch-strategy" = "merge", "x-kubernetes-patch-merge-key" = "evacuatorClass"))]
    pub evacuators: Vec<Evacuator>,
    /// How long the active evacuator may go without progress before the next one becomes active, in seconds from 600 to
    /// 21600. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 1800))]
    pub progress_deadline_seconds: Option<i32>,
}

/// An evacuator of the pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Evacuator {
    /// The name of the evacuator. Unique in the list.
    #[serde(default)]
    #[schemars(extend("required" = true))]
    pub evacuator_class: String,
    /// Its place in the order, from 0 to 100000. The controller of the pod has 10000.
    #[serde(default)]
    #[schemars(extend("required" = true))]
    pub priority: i32,
    /// The role of the evacuator. The controller of the pod has the role controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
}

/// The observed progress of the evacuation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvacuationStatus {
    /// The evacuator that currently acts. Set by the controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_evacuator_class: Option<String>,
    /// Set to true by the active evacuator when it has finished, whether or not the pod is gone. The next evacuator then
    /// becomes active.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_evacuator_completed: Option<bool>,
    /// When the active evacuator last reported progress, or became active. May only be advanced, by at least 60 seconds at
    /// a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub evacuation_progress_timestamp: Option<Time>,
    /// When the active evacuator expects to finish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub expected_evacuation_finish_time: Option<Time>,
    /// Whether the evacuation can still be canceled: Allow or Forbid. Set by the active evacuator.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Allow"))]
    pub evacuation_cancellation_policy: Option<CancellationPolicy>,
    /// The number of rejected calls of the pod's eviction API. Never decreases.
    #[serde(default)]
    pub failed_eviction_counter: i32,
    /// A human readable message of the active evacuator, or else of the outcome. At most 32768 bytes.
    #[serde(default)]
    #[schemars(extend("required" = true, "default" = ""))]
    pub message: String,
    /// The controller sets Evicted and Canceled, which never change once True. Evacuators may set other types.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// The JSON schema of `spec`.
#[must_use]
pub fn spec_schema() -> Value {
    crate::schema::inlined::<EvacuationSpec>()
}

/// The JSON schema of `status`.
#[must_use]
pub fn status_schema() -> Value {
    crate::schema::inlined::<EvacuationStatus>()
}

/// The name of the Evacuation of a pod: its uid and up to 150 bytes of its name.
#[must_use]
pub fn name_of_pod(uid: &str, pod: &str) -> String {
    let mut end = pod.len().min(MAX_POD_NAME_PREFIX);
    while !pod.is_char_boundary(end) {
        end -= 1;
    }
    format!("{uid}-{}", pod.get(..end).unwrap_or_default())
}

fn name_of(hub: &Value) -> String {
    let string = |pointer: &str| hub.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    name_of_pod(string("/metadata/name"), string("/spec/target/pod/name"))
}

fn stored_name(name: &str) -> Option<&str> {
    let uid = name.get(..UID_LENGTH)?;
    let pod = name.get(UID_LENGTH..)?.strip_prefix('-')?;
    (!pod.is_empty()).then_some(uid)
}

/// The bits in which the two uids differ, so that each yields the other; the version and the variant stay.
const UID_MASK: [u8; 16] = [
    0x65, 0x76, 0x61, 0x63, 0x75, 0x61, 0x04, 0x74, 0x09, 0x6f, 0x6e, 0x2e, 0x75, 0x69, 0x64, 0x73,
];
/// Tells the two uids apart that are not 32 hexadecimal digits.
const UID_SUFFIX: &str = "-evacuation";

fn other_uid(uid: &str) -> String {
    let digits: Option<Vec<u32>> = uid
        .chars()
        .filter(|character| *character != '-')
        .map(|character| character.to_digit(16))
        .collect();
    let Some(digits) = digits.filter(|digits| digits.len() == 2 * UID_MASK.len()) else {
        let stored = uid.strip_suffix(UID_SUFFIX).map(str::to_owned);
        return stored.unwrap_or_else(|| format!("{uid}{UID_SUFFIX}"));
    };
    let mask = UID_MASK
        .iter()
        .flat_map(|byte| [u32::from(byte >> 4), u32::from(byte & 0xf)]);
    let mut other = digits
        .into_iter()
        .zip(mask)
        .filter_map(|(digit, mask)| char::from_digit(digit ^ mask, 16));
    // The dashes stay where they are.
    uid.chars()
        .filter_map(|character| if character == '-' { Some('-') } else { other.next() })
        .collect()
}

fn is_held(hub: &Value) -> bool {
    let status = members(hub.get("status"));
    let is_final = status.is_some_and(|status| single::outcome(status).is_some());
    let requesters = hub.pointer("/spec/requesters").and_then(Value::as_array);
    !is_final && requesters.is_some_and(|requesters| !requesters.is_empty())
}

/// The finalizer of a requester. A `/` in its name becomes `_`; a name that this does not make a finalizer has none.
fn finalizer_of(requester: &str) -> Option<String> {
    let is_plain = |part: &str| {
        part.bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'))
    };
    let (domain, path) = requester.split_once('/').unwrap_or((requester, "a"));
    (!requester.is_empty() && is_plain(domain) && is_plain(path))
        .then(|| format!("{INSTIGATOR_PREFIX}{}", requester.replacen('/', "_", 1)))
}

/// The requester of an instigator finalizer; `None` for other finalizers.
#[must_use]
pub fn requester_of(finalizer: &str) -> Option<String> {
    let name = finalizer.strip_prefix(INSTIGATOR_PREFIX)?;
    Some(name.replacen('_', "/", 1))
}

fn swapped(finalizer: &str, from: [CollectionFinalizers; 2], to: [CollectionFinalizers; 2]) -> String {
    for (from, to) in from.into_iter().zip(to) {
        if finalizer == from.orphan {
            return to.orphan.to_owned();
        }
        if finalizer == from.foreground {
            return to.foreground.to_owned();
        }
    }
    finalizer.to_owned()
}

/// The two collectors' finalizers in the hub, and as an Evacuation shows them.
const IN_HUB: [CollectionFinalizers; 2] = [CollectionFinalizers::STORED, OWN_COLLECTION];
const IN_FACE: [CollectionFinalizers; 2] = [STORED_COLLECTION, CollectionFinalizers::STORED];
fn strings(list: Option<&Value>) -> impl Iterator<Item = &str> {
    let items = list.and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str)
}

fn requester_names(hub: Option<&Value>) -> Vec<&str> {
    let requesters = hub.and_then(|hub| hub.pointer("/spec/requesters"));
    let requesters = requesters.and_then(Value::as_array).into_iter().flatten();
    requesters
        .filter_map(|requester| requester.get("name").and_then(Value::as_str))
        .collect()
}

#[expect(clippy::unnecessary_wraps, reason = "a conversion has this type")]
fn from_hub(object: &mut Value) -> Result<(), ConversionError> {
    let name = name_of(object);
    let finalizers = show_finalizers(object);
    let evacuators = show_evacuators(&single::targets(object));
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        if metadata.contains_key("name") {
            metadata.insert("name".to_owned(), name.into());
        }
        convert_uid(metadata);
        set_list(metadata, "finalizers", finalizers);
    } else if !finalizers.is_empty() {
        members_mut(object, "metadata").insert("finalizers".to_owned(), Value::Array(finalizers));
    }
    let has_spec = object.get("spec").is_some_and(Value::is_object);
    if has_spec || !evacuators.is_empty() {
        let spec = members_mut(object, "spec");
        let mut target = spec.remove("target").unwrap_or_default();
        let pod = target.as_object_mut().and_then(|target| target.remove("pod"));
        let deadline = spec.remove("heartbeatDeadlineSeconds");
        hide(object.get_mut("spec"), &[]);
        let spec = members_mut(object, "spec");
        set(spec, "podRef", pod);
        set(spec, "progressDeadlineSeconds", deadline);
        set_list(spec, "evacuators", evacuators);
    }
    if let Some(status) = object.get_mut("status")
        && let Some(hub) = status.as_object()
    {
        let mut shown = single::show(hub, &FIELDS);
        let failures = single::failures(hub).cloned().unwrap_or_else(|| 0.into());
        shown.insert("failedEvictionCounter".to_owned(), failures);
        set(&mut shown, "conditions", hub.get("conditions").cloned());
        *status = Value::Object(shown);
    }
    Ok(())
}

fn set_list(part: &mut Map<String, Value>, name: &str, items: Vec<Value>) {
    set(part, name, (!items.is_empty()).then_some(Value::Array(items)));
}

fn convert_uid(metadata: &mut Map<String, Value>) {
    let uid = text(metadata, "uid");
    if !uid.is_empty() {
        let other = other_uid(uid);
        metadata.insert("uid".to_owned(), other.into());
    }
}

fn show_finalizers(hub: &Value) -> Vec<Value> {
    let own =
        strings(hub.pointer("/metadata/finalizers")).map(|finalizer| swapped(finalizer, IN_HUB, IN_FACE));
    let instigators = requester_names(Some(hub)).into_iter().filter_map(finalizer_of);
    own.chain(instigators).map(Value::from).collect()
}

/// Evacuators in this order. The hub has no priorities: the controller of a pod gets its own, others follow from the order.
fn show_evacuators(names: &[&str]) -> Vec<Value> {
    let controller = names
        .iter()
        .position(|name| is_controller(name))
        .unwrap_or(names.len());
    let priority = |index: usize| {
        let distance = i32::try_from(index.abs_diff(controller)).unwrap_or(i32::MAX);
        let difference = distance.saturating_mul(PRIORITY_STEP);
        if index < controller {
            CONTROLLER_PRIORITY.saturating_add(difference)
        } else {
            CONTROLLER_PRIORITY.saturating_sub(difference)
        }
    };
    let evacuator = |(index, name): (usize, &&str)| {
        let mut evacuator = json!({ "evacuatorClass": name, "priority": priority(index) });
        if index == controller {
            object_mut(&mut evacuator).insert("role".to_owned(), "controller".into());
        }
        evacuator
    };
    names.iter().enumerate().map(evacuator).collect()
}

/// Whether an interceptor is the controller of its pod.
fn is_controller(name: &str) -> bool {
    let kind = name.strip_suffix(".apps.k8s.io");
    kind.is_some_and(|kind| ["deployment", "replicaset", "statefulset", "daemonset"].contains(&kind))
}

#[expect(clippy::unnecessary_wraps, reason = "a conversion has this type")]
fn to_hub(object: &mut Value, context: &Context<'_>) -> Result<(), ConversionError> {
    let stored = context.stored;
    let mut instigators = Vec::new();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        if let Some(name) = stored_name(text(metadata, "name")) {
            let name = name.to_owned();
            metadata.insert("name".to_owned(), name.into());
        }
        convert_uid(metadata);
        let finalizers: Vec<String> = strings(metadata.get("finalizers")).map(str::to_owned).collect();
        let (requesters, own): (Vec<String>, Vec<String>) = finalizers
            .into_iter()
            .partition(|finalizer| requester_of(finalizer).is_some());
        instigators = requesters;
        let own = own
            .iter()
            .map(|finalizer| swapped(finalizer, IN_FACE, IN_HUB).into());
        set_list(metadata, "finalizers", own.collect());
    }
    let face_status = object.get_mut("status").map(Value::take);
    let mut evacuators = Value::Null;
    let has_spec = object.get("spec").is_some_and(Value::is_object);
    if has_spec || stored.is_some() || !instigators.is_empty() {
        let spec = members_mut(object, "spec");
        evacuators = spec.remove("evacuators").unwrap_or_default();
        write_spec(spec, &instigators, stored);
    }
    if let Some(members) = object.as_object_mut() {
        set(
            members,
            "status",
            stored.and_then(|stored| stored.get("status")).cloned(),
        );
    }
    if stored.is_none() {
        declare(object, &evacuators);
    }
    if let Some(face) = face_status.as_ref().and_then(Value::as_object) {
        let hub = members_mut(object, "status");
        single::write(face, hub, &FIELDS, context.now);
        let failures = face.get("failedEvictionCounter");
        // A status without a counter is shown with 0.
        let is_unset = single::failures(hub).is_none() && failures == Some(&json!(0));
        single::write_failures(hub, failures.filter(|_| !is_unset));
        set(hub, "conditions", face.get("conditions").cloned());
    }
    Ok(())
}

fn write_spec(spec: &mut Map<String, Value>, instigators: &[String], stored: Option<&Value>) {
    let pod = spec.remove("podRef");
    let deadline = spec.remove("progressDeadlineSeconds");
    set(spec, "heartbeatDeadlineSeconds", deadline);
    let stored_target = stored.and_then(|stored| stored.pointer("/spec/target"));
    if pod.is_some() || stored_target.is_some() {
        let mut target = Map::new();
        set(&mut target, "pod", pod);
        keep_hidden(&mut target, stored_target, &["pod"]);
        spec.insert("target".to_owned(), Value::Object(target));
    }
    set_list(spec, "requesters", requesters(instigators, stored));
    keep_hidden(spec, stored.and_then(|stored| stored.get("spec")), SPEC);
}

/// The requesters: the stored ones whose finalizers are still there or that have none, and then the new ones.
fn requesters(instigators: &[String], stored: Option<&Value>) -> Vec<Value> {
    let known = stored.and_then(|stored| stored.pointer("/spec/requesters"));
    let known = known.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let finalizer = |requester: &Value| {
        requester
            .get("name")
            .and_then(Value::as_str)
            .and_then(finalizer_of)
    };
    let mut kept: Vec<Value> = known
        .iter()
        .filter(|requester| finalizer(requester).is_none_or(|finalizer| instigators.contains(&finalizer)))
        .cloned()
        .collect();
    let before: Vec<String> = known.iter().filter_map(finalizer).collect();
    let added = instigators.iter().filter(|finalizer| !before.contains(finalizer));
    kept.extend(
        added
            .filter_map(|finalizer| requester_of(finalizer))
            .map(|name| json!({ "name": name })),
    );
    kept
}

/// Declares the interceptors of a new object in the order of the evacuators' priorities.
fn declare(object: &mut Value, evacuators: &Value) {
    let mut evacuators: Vec<(i64, &str)> = evacuators
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|evacuator| {
            let priority = evacuator
                .get("priority")
                .and_then(Value::as_i64)
                .unwrap_or_default();
            Some((priority, evacuator.get("evacuatorClass")?.as_str()?))
        })
        .collect();
    if evacuators.is_empty() {
        return;
    }
    evacuators.sort_by_key(|(priority, _)| std::cmp::Reverse(*priority));
    let names: Vec<&str> = evacuators.into_iter().map(|(_, name)| name).collect();
    single::declare(object, &names);
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "2f0e3f1c-6a0b-4f7e-9d5b-0d6c1f0a7b01";

    #[test]
    fn the_name_has_the_uid_and_the_start_of_the_name_of_the_pod() {
        let long = "a".repeat(200);
        for (pod, suffix) in [("web-0", "web-0"), (long.as_str(), &long[..150])] {
            let name = name_of_pod(UID, pod);
            assert_eq!(name, format!("{UID}-{suffix}"));
            assert_eq!(stored_name(&name), Some(UID));
        }
        for name in ["", UID, &format!("{UID}-"), &format!("{UID}web"), "web-0"] {
            assert_eq!(stored_name(name), None, "{name}");
        }
    }

    #[test]
    fn uids_are_converted_in_both_directions_and_never_equal() {
        for uid in [
            UID,
            "00000000-0000-4000-8000-000000000000",
            "uid-1",
            "u-evacuation",
        ] {
            let other = other_uid(uid);
            assert_ne!(other, uid);
            assert_eq!(other_uid(&other), uid);
        }
        let other = other_uid(UID);
        assert_eq!((&other[14..15], other.len()), ("4", 36), "{other}");
        assert!("89ab".contains(&other[19..20]), "{other}");
    }

    #[test]
    fn requesters_are_instigator_finalizers_where_their_names_allow_it() {
        for name in ["nodemaintenance.k8s.io", "acme.io/foo"] {
            let finalizer = finalizer_of(name).unwrap();
            assert!(!finalizer[INSTIGATOR_PREFIX.len()..].contains('/'));
            assert_eq!(requester_of(&finalizer).as_deref(), Some(name));
        }
        for name in ["acme.io/a/b", "acme.io/a_b", "acme.io/a~b"] {
            assert_eq!(finalizer_of(name), None);
        }
    }

    #[test]
    fn the_order_of_evacuators_follows_from_their_priorities() {
        let names = [
            "first.example.com",
            "deployment.apps.k8s.io",
            "imperative-eviction.k8s.io",
        ];
        let shown = show_evacuators(&names);
        assert_eq!(
            shown,
            [
                json!({"evacuatorClass": "first.example.com", "priority": 10500}),
                json!({"evacuatorClass": "deployment.apps.k8s.io", "priority": 10000, "role": "controller"}),
                json!({"evacuatorClass": "imperative-eviction.k8s.io", "priority": 9500}),
            ]
        );
        let mut object = json!({});
        declare(&mut object, &Value::Array(shown.into_iter().rev().collect()));
        assert_eq!(single::targets(&object), names);
        let sixteen: Vec<String> = (0..16).map(|n| format!("{n}.example.com")).collect();
        let sixteen: Vec<&str> = sixteen.iter().map(String::as_str).collect();
        for evacuator in show_evacuators(&sixteen) {
            let priority = evacuator["priority"].as_i64().unwrap();
            assert!((10_001..=100_000).contains(&priority), "{evacuator}");
        }
    }
}
