//! The stored form of an EvictionInterceptor.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kinds::kubernetes_resource;
use crate::string_enum::string_enum;

use super::KIND;

/// Condition type: the rule is valid and in effect.
pub const ACCEPTED: &str = "Accepted";
/// The priority of an interceptor without one.
pub const DEFAULT_PRIORITY: i32 = 20_000;
/// The priority reserved for the role `controller`.
pub const CONTROLLER_PRIORITY: i32 = 10_000;
/// The allowed range of priorities.
pub const PRIORITIES: std::ops::RangeInclusive<i32> = 0..=100_000;
/// The maximum number of match conditions.
pub const MAX_MATCH_CONDITIONS: usize = 64;

/// Registers an interceptor for all pods that match a rule. Its name is the interceptor's name with `/` replaced by `.`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionInterceptor {
    /// Standard object metadata, without managed fields.
    #[serde(default, deserialize_with = "crate::metadata::without_managed_fields")]
    pub metadata: ObjectMeta,
    /// The rule.
    #[serde(default)]
    pub spec: EvictionInterceptorSpec,
    /// The observed state of the rule.
    #[serde(default)]
    pub status: Option<EvictionInterceptorStatus>,
}

kubernetes_resource!(EvictionInterceptor, ClusterResourceScope, KIND, "v1alpha3");

string_enum! {
    /// The role of an interceptor for its pods.
    InterceptorRole {
        /// The controller that owns the pods. Has priority 10000; a pod has at most one.
        Controller = "controller",
    }
}

/// The pods of an interceptor, and its place in their order of interceptors.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvictionInterceptorSpec {
    /// The interceptor: a fully qualified domain name, or a path prefixed by one.
    #[serde(default)]
    #[schemars(extend("required" = true))]
    pub interceptor_name: String,
    /// Selects the namespaces of the pods. If unset, all namespaces are selected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub namespace_selector: Option<LabelSelector>,
    /// Selects the pods. If unset, all pods are selected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub pod_selector: Option<LabelSelector>,
    /// CEL expressions over `pod` and `namespace` that must all be true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"],
        "x-kubernetes-patch-strategy" = "merge", "x-kubernetes-patch-merge-key" = "name"))]
    pub match_conditions: Vec<MatchCondition>,
    /// From 0 to 100000; the interceptor with the highest priority becomes active first. 10000 is reserved for the role
    /// controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// The role of the interceptor for its pods: controller, or unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<InterceptorRole>,
    /// An upper bound for the heartbeat deadline while this interceptor is active, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_deadline_seconds: Option<i32>,
}

impl EvictionInterceptorSpec {
    /// The priority, with the default of the role applied.
    #[must_use]
    pub fn effective_priority(&self) -> i32 {
        match (self.priority, &self.role) {
            (Some(priority), _) => priority,
            (None, Some(InterceptorRole::Controller)) => CONTROLLER_PRIORITY,
            (None, _) => DEFAULT_PRIORITY,
        }
    }
}

/// A named CEL expression.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MatchCondition {
    /// The name of the condition. Unique in the list.
    #[serde(default)]
    #[schemars(extend("required" = true))]
    pub name: String,
    /// The expression, over `pod` and `namespace`. Must evaluate to a boolean.
    #[serde(default)]
    #[schemars(extend("required" = true))]
    pub expression: String,
}

/// The observed state of the rule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvictionInterceptorStatus {
    /// The number of pods that match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matched_pods: Option<i32>,
    /// Accepted, and other conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
