//! The stored form of an EvictionInterceptor.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, ObjectMeta};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kinds::kubernetes_resource;
use crate::string_enum::string_enum;

use super::KIND;

/// The condition that says the rule was understood and is in force.
pub const ACCEPTED: &str = "Accepted";
/// The priority of an interceptor that names none.
pub const DEFAULT_PRIORITY: i32 = 20_000;
/// The priority that only the role `controller` may have.
pub const CONTROLLER_PRIORITY: i32 = 10_000;
/// The smallest and largest priority.
pub const PRIORITIES: std::ops::RangeInclusive<i32> = 0..=100_000;
/// The most match conditions.
pub const MAX_MATCH_CONDITIONS: usize = 64;

/// An interceptor for all pods that match a rule. Its name is the interceptor's with `/` written as `.`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EvictionInterceptor {
    /// Standard object metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// The rule.
    #[serde(default)]
    pub spec: EvictionInterceptorSpec,
    /// What became of it.
    #[serde(default)]
    pub status: Option<EvictionInterceptorStatus>,
}

kubernetes_resource!(EvictionInterceptor, ClusterResourceScope, KIND);

string_enum! {
    /// What an interceptor is to its pods.
    InterceptorRole {
        /// The controller that owns the pods; has priority 10000, and a pod has at most one.
        Controller = "controller",
    }
}

/// Which pods an interceptor speaks for, and when its turn comes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvictionInterceptorSpec {
    /// The interceptor: a fully qualified domain name, or a path prefixed by one.
    #[serde(default)]
    #[schemars(required)]
    pub interceptor_name: String,
    /// The namespaces of the pods; none means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub namespace_selector: Option<LabelSelector>,
    /// The pods; none means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub pod_selector: Option<LabelSelector>,
    /// CEL expressions over `pod` and `namespace` that must all be true.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"],
        "x-kubernetes-patch-strategy" = "merge", "x-kubernetes-patch-merge-key" = "name"))]
    pub match_conditions: Vec<MatchCondition>,
    /// From 0 to 100000; the highest is asked first. Exactly 10000 only with the role controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
    /// What the interceptor is to its pods: controller, or nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<InterceptorRole>,
    /// An upper bound for the heartbeat deadline of requests that name this interceptor, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_deadline_seconds: Option<i32>,
}

impl EvictionInterceptorSpec {
    /// The priority in force.
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
    #[schemars(required)]
    pub name: String,
    /// The expression, over `pod` and `namespace`. Must yield a boolean.
    #[serde(default)]
    #[schemars(required)]
    pub expression: String,
}

/// What became of the rule.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvictionInterceptorStatus {
    /// How many pods match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matched_pods: Option<i32>,
    /// Accepted, and others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
