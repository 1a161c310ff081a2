//! The stored form of an EvictionRequest.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kinds::kubernetes_resource;
use crate::string_enum::string_enum;

use super::KIND;

/// Condition type: the target pod is gone.
pub const EVICTED: &str = "Evicted";
/// Condition type: the request is no longer processed.
pub const CANCELED: &str = "Canceled";
/// Condition type: the pod cannot leave. Its reason is what holds it.
pub const BLOCKED: &str = "Blocked";
/// Reason of [`BLOCKED`]: the active interceptor has sent no heartbeat since its activation.
pub const INTERCEPTOR_SILENT: &str = "InterceptorSilent";
/// The interceptor that calls the pod's eviction API; always the last one.
pub const IMPERATIVE_EVICTION: &str = "imperative-eviction.k8s.io";
/// The requester name that node maintenances use.
pub const NODE_MAINTENANCE_REQUESTER: &str = "nodemaintenance.k8s.io";
/// The requester name of evictions by programs that know nothing of EvictionRequests, such as `kubectl drain`.
pub const EVICTION_BRIDGE_REQUESTER: &str = "eviction-bridge.drydock";
/// The annotation of a request that says who asked the eviction bridge last, and until when the request lives: JSON with the
/// members `by` and `until`.
pub const EVICTION_BRIDGE_ANNOTATION: &str = "evictionrequest.coordination.k8s.io/eviction-bridge";
/// The interceptor that deletes DaemonSet pods of a node under maintenance.
pub const DAEMON_SET_INTERCEPTOR: &str = "daemonset.apps.k8s.io";
/// The default of `spec.heartbeatDeadlineSeconds`.
pub const DEFAULT_HEARTBEAT_DEADLINE_SECONDS: i32 = 1200;
/// The allowed range of `spec.heartbeatDeadlineSeconds`.
pub const HEARTBEAT_DEADLINE_SECONDS: std::ops::RangeInclusive<i32> = 600..=86_400;
/// The maximum number of requesters of a request.
pub const MAX_REQUESTERS: usize = 100;
/// The maximum number of interceptors of a request: 15 declared ones and [`IMPERATIVE_EVICTION`].
pub const MAX_INTERCEPTORS: usize = 16;
/// The maximum length of an interceptor's message, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 32_768;

/// A request that one pod leaves its node. Its name is the pod's UID.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionRequest {
    /// Standard object metadata, without managed fields.
    #[serde(default, deserialize_with = "crate::metadata::without_managed_fields")]
    pub metadata: ObjectMeta,
    /// The desired eviction.
    #[serde(default)]
    pub spec: EvictionRequestSpec,
    /// The observed progress.
    #[serde(default)]
    pub status: Option<EvictionRequestStatus>,
}

kubernetes_resource!(EvictionRequest, NamespaceResourceScope, KIND, "v1alpha3");

string_enum! {
    /// How a pod is evicted.
    #[derive(Default)]
    EvictionType {
        /// Interceptors act first, each within its deadlines.
        #[default]
        Soft = "Soft",
    }
}

string_enum! {
    /// Whether the request can still be canceled.
    #[derive(Default)]
    CancellationPolicy {
        /// Removing the last requester cancels the request.
        #[default]
        Allow = "Allow",
        /// The request can no longer be canceled.
        Forbid = "Forbid",
    }
}

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
    /// How long the active interceptor may go without a heartbeat before the next one becomes active, in seconds from
    /// 600 to 86400. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = 1200))]
    pub heartbeat_deadline_seconds: Option<i32>,
    /// How long the finished request is kept, in seconds. If unset, the controller's default applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// The object to evict. A union: exactly one member must be set.
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
    #[schemars(extend("required" = true))]
    pub name: String,
    /// The UID of the pod.
    #[serde(default)]
    #[schemars(extend("required" = true))]
    pub uid: String,
}

/// A party that wants the eviction.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct Requester {
    /// A fully qualified domain name, or a path prefixed by one. Unique in the list.
    #[serde(default)]
    #[schemars(extend("required" = true))]
    pub name: String,
}

/// The observed progress of the eviction.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvictionRequestStatus {
    /// The generation most recently processed by the controller. Never decreases.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The controller sets Evicted and Canceled, which never change once True, and Blocked, which is True while the pod
    /// cannot leave. Interceptors may set other types.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
    /// The interceptors in the order in which they become active; imperative-eviction.k8s.io is the last. Set once by
    /// the controller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"],
        "x-kubernetes-patch-strategy" = "merge", "x-kubernetes-patch-merge-key" = "name"))]
    pub target_interceptors: Vec<TargetInterceptor>,
    /// The interceptor that currently acts. At most one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub active_interceptors: Vec<String>,
    /// The interceptors that are no longer active. Entries are never removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub processed_interceptors: Vec<String>,
    /// The reports of the interceptors. Only the entry of the active interceptor may change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"],
        "x-kubernetes-patch-strategy" = "merge", "x-kubernetes-patch-merge-key" = "name"))]
    pub interceptors: Vec<InterceptorStatus>,
    /// Whether the request can still be canceled: Allow or Forbid. Set by the active interceptor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction_request_cancellation_policy: Option<CancellationPolicy>,
    /// The calls to the pod's eviction API.
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
    #[schemars(extend("required" = true))]
    pub name: String,
}

/// The report of one interceptor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct InterceptorStatus {
    /// The name of the interceptor.
    #[serde(default)]
    #[schemars(extend("required" = true))]
    pub name: String,
    /// When the controller made the interceptor active. The first deadline counts from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub activation_time: Option<Time>,
    /// When the interceptor started. Set together with the first heartbeat. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub start_time: Option<Time>,
    /// The last heartbeat of the interceptor. May only be advanced, by at least 60 seconds at a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub heartbeat_time: Option<Time>,
    /// When the interceptor expects to finish.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub expected_finish_time: Option<Time>,
    /// When the interceptor finished, whether or not the pod is gone. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub completion_time: Option<Time>,
    /// A human readable message. At most 32768 bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// The calls to the pod's eviction API.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodEvictionStatus {
    /// The number of rejected calls. Never decreases.
    #[serde(default, rename = "failedAPIEvictionCounter")]
    #[schemars(extend("required" = true))]
    pub failed_api_eviction_counter: i32,
    /// When the eviction API was last called. The controller writes it before the call, so that a request that changed
    /// meanwhile is not carried out. May only be advanced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub last_attempt_time: Option<Time>,
    /// When the eviction API may be called again. Set only after a call that did not delete the pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub next_attempt_time: Option<Time>,
}

impl EvictionRequest {
    fn is_condition_true(&self, type_: &str) -> bool {
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

    /// Whether the request can no longer be canceled.
    #[must_use]
    pub fn is_cancellation_forbidden(&self) -> bool {
        self.status
            .as_ref()
            .and_then(|status| status.eviction_request_cancellation_policy.as_ref())
            == Some(&CancellationPolicy::Forbid)
    }
}
