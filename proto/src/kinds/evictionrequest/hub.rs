//! The stored form of an EvictionRequest.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kinds::kubernetes_resource;
use crate::string_enum::string_enum;

use super::KIND;

/// The condition that says the target is gone.
pub const EVICTED: &str = "Evicted";
/// The condition that says the request is no longer processed.
pub const CANCELED: &str = "Canceled";
/// The interceptor that calls the pod's eviction API; always the last one.
pub const IMPERATIVE_EVICTION: &str = "imperative-eviction.k8s.io";
/// The requester name of node maintenances.
pub const NODE_MAINTENANCE_REQUESTER: &str = "nodemaintenance.k8s.io";
/// The interceptor that deletes DaemonSet pods of a node under maintenance.
pub const DAEMON_SET_INTERCEPTOR: &str = "daemonset.apps.k8s.io";
/// `spec.heartbeatDeadlineSeconds` where none is given.
pub const DEFAULT_HEARTBEAT_DEADLINE_SECONDS: i32 = 1200;
/// The smallest and largest `spec.heartbeatDeadlineSeconds`.
pub const HEARTBEAT_DEADLINE_SECONDS: std::ops::RangeInclusive<i32> = 600..=86_400;
/// The most requesters of a request.
pub const MAX_REQUESTERS: usize = 100;
/// The most interceptors of a request: 15 declared and the one that evicts.
pub const MAX_INTERCEPTORS: usize = 16;
/// The longest message of an interceptor, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 32_768;

/// A request that one pod leaves. Its name is the pod's UID.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionRequest {
    /// Standard object metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is asked.
    #[serde(default)]
    pub spec: EvictionRequestSpec,
    /// How far it has come.
    #[serde(default)]
    pub status: Option<EvictionRequestStatus>,
}

kubernetes_resource!(EvictionRequest, NamespaceResourceScope, KIND);

string_enum! {
    /// How urgent a request is.
    #[derive(Default)]
    EvictionType {
        /// Interceptors are asked and given their time.
        #[default]
        Soft = "Soft",
    }
}

string_enum! {
    /// Whether requesters may still withdraw.
    #[derive(Default)]
    CancellationPolicy {
        /// Withdrawing the last requester cancels the request.
        #[default]
        Allow = "Allow",
        /// The eviction has gone too far to be stopped.
        Forbid = "Forbid",
    }
}

/// What is asked of whom.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvictionRequestSpec {
    /// How the pod is asked to leave. Only Soft. Immutable.
    #[serde(rename = "type", default)]
    #[schemars(extend("default" = "Soft"))]
    pub type_: EvictionType,
    /// The object to evict. Its UID is the name of this request. Immutable.
    #[serde(default)]
    pub target: EvictionTarget,
    /// Who asks. At least one when the request is created, at most 100; an empty list cancels the request.
    /// Every requester manages its own entry, best with server-side apply.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"],
        "x-kubernetes-patch-strategy" = "merge", "x-kubernetes-patch-merge-key" = "name"))]
    pub requesters: Vec<Requester>,
    /// How long an interceptor may be silent before the next one is asked, in seconds from 600 to 86400. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 1200))]
    pub heartbeat_deadline_seconds: Option<i32>,
    /// How long the finished request is kept, in seconds. Without it the controller's default applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// A union of what may be evicted; exactly one member.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvictionTarget {
    /// The pod to evict, in the namespace of the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<PodReference>,
}

/// A pod in the namespace of the request.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodReference {
    /// The name of the pod.
    #[serde(default)]
    #[schemars(required)]
    pub name: String,
    /// The UID of the pod.
    #[serde(default)]
    #[schemars(required)]
    pub uid: String,
}

/// Somebody who asks for the eviction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct Requester {
    /// A fully qualified domain name, or a path prefixed by one. Unique in the list.
    #[serde(default)]
    #[schemars(required)]
    pub name: String,
}

/// How far the eviction has come.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvictionRequestStatus {
    /// The generation the controller has acted on. Never decreases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Evicted and Canceled are set by the controller and never go back; others are free for interceptors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
    /// The interceptors in the order in which they are asked; imperative-eviction.k8s.io is the last. Set once by
    /// the controller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"],
        "x-kubernetes-patch-strategy" = "merge", "x-kubernetes-patch-merge-key" = "name"))]
    pub target_interceptors: Vec<TargetInterceptor>,
    /// The interceptor whose turn it is. At most one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub active_interceptors: Vec<String>,
    /// The interceptors whose turn is over. Only grows.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub processed_interceptors: Vec<String>,
    /// What each interceptor reports. Only the entry of the active interceptor may change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"],
        "x-kubernetes-patch-strategy" = "merge", "x-kubernetes-patch-merge-key" = "name"))]
    pub interceptors: Vec<InterceptorStatus>,
    /// Whether requesters may still withdraw: Allow or Forbid. Written by the active interceptor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction_request_cancellation_policy: Option<CancellationPolicy>,
    /// What the pod's eviction API answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_eviction_status: Option<PodEvictionStatus>,
}

/// A declared interceptor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct TargetInterceptor {
    /// The name of the interceptor. Unique in the list.
    #[serde(default)]
    #[schemars(required)]
    pub name: String,
}

/// What one interceptor reports.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct InterceptorStatus {
    /// The name of the interceptor.
    #[serde(default)]
    #[schemars(required)]
    pub name: String,
    /// When the controller made the interceptor active: the start of its first deadline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub activation_time: Option<Time>,
    /// When the interceptor began. Set together with the first heartbeat, immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub start_time: Option<Time>,
    /// The interceptor's last sign of life. Moves forward only, at least 60 seconds at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub heartbeat_time: Option<Time>,
    /// When the interceptor expects to be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub expected_finish_time: Option<Time>,
    /// When the interceptor was done, with or without the pod gone. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub completion_time: Option<Time>,
    /// What people should know. At most 32768 bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// What the pod's eviction API answered.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodEvictionStatus {
    /// How many calls were refused. Only grows.
    #[serde(default, rename = "failedAPIEvictionCounter")]
    #[schemars(required)]
    pub failed_api_eviction_counter: i32,
}

impl EvictionRequest {
    /// Whether the condition of that type is True.
    #[must_use]
    pub fn is_condition_true(&self, type_: &str) -> bool {
        self.status
            .iter()
            .flat_map(|status| &status.conditions)
            .any(|condition| condition.type_ == type_ && condition.status == "True")
    }

    /// Whether the request is final: the pod is gone, or the request was canceled.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.is_condition_true(EVICTED) || self.is_condition_true(CANCELED)
    }

    /// Whether requesters may no longer withdraw.
    #[must_use]
    pub fn is_cancellation_forbidden(&self) -> bool {
        self.status
            .as_ref()
            .and_then(|status| status.eviction_request_cancellation_policy.as_ref())
            == Some(&CancellationPolicy::Forbid)
    }
}
