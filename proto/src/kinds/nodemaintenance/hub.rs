//! The stored form of a NodeMaintenance.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, ObjectMeta, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kinds::kubernetes_resource;
use crate::string_enum::string_enum;

use super::KIND;

/// Condition type: every targeted pod of every selected node is gone.
pub const DRAINED: &str = "Drained";
/// The finalizer that keeps a maintenance until its nodes have been returned to service.
pub const COMPLETION_FINALIZER: &str = "nodemaintenance.k8s.io/maintenance-completion";
/// The annotation on a Node that records what maintenances have changed on it, as JSON.
pub const STATUS_ANNOTATION: &str = "nodemaintenance.coordination.k8s.io/status";
/// The taint that keeps DaemonSet pods from being recreated on the node.
pub const DRAIN_TAINT: &str = "nodemaintenance.coordination.k8s.io/drain";
/// The effect of [`DRAIN_TAINT`].
pub const DRAIN_TAINT_EFFECT: &str = "NoSchedule";
/// The pod priorities for which every plan has an entry per pod type: the highest of user-defined classes,
/// `system-cluster-critical`, `system-node-critical`, and the largest 32-bit integer.
pub const DEFAULT_PLAN_PRIORITIES: [i32; 4] = [1_000_000_000, 2_000_000_000, 2_000_001_000, i32::MAX];
/// The largest number of entries of a drain plan, the default ones included.
pub const MAX_PLAN_ENTRIES: usize = 64;
/// The largest size of a node selector: its terms, requirements and values together. Every node is compared with them.
pub const MAX_SELECTOR_SIZE: usize = 20_000;

/// The maximum number of blockers in a status.
pub const MAX_BLOCKERS: usize = 20;
/// The maximum length of a blocker's message, in bytes.
pub const MAX_BLOCKER_MESSAGE_BYTES: usize = 1024;

/// The maximum number of nodes in `status.cordonedBefore`.
pub const MAX_CORDONED_BEFORE: usize = 5000;

/// Declares that nodes go out of service.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeMaintenance {
    /// Standard object metadata, without managed fields.
    #[serde(default, deserialize_with = "crate::metadata::without_managed_fields")]
    pub metadata: ObjectMeta,
    /// The desired maintenance.
    #[serde(default)]
    pub spec: NodeMaintenanceSpec,
    /// The observed progress.
    #[serde(default)]
    pub status: Option<NodeMaintenanceStatus>,
}

kubernetes_resource!(NodeMaintenance, ClusterResourceScope, KIND, "v1alpha3");

string_enum! {
    /// The stage that a maintenance should reach. May only move forward.
    #[derive(Default)]
    Stage {
        /// Nothing is changed.
        #[default]
        Idle = "Idle",
        /// The nodes are cordoned.
        Cordon = "Cordon",
        /// The pods of the nodes are evicted.
        Drain = "Drain",
        /// The nodes return to service.
        Complete = "Complete",
    }
}

impl Stage {
    /// The position in the order of stages; `None` for a value this release does not know.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        Self::KNOWN.iter().position(|known| *known == self.as_str())
    }
}

string_enum! {
    /// Which pods an entry of a drain plan selects.
    #[derive(Default)]
    PodType {
        /// All pods except static pods and those of DaemonSets.
        #[default]
        Default = "Default",
        /// Pods of DaemonSets.
        DaemonSet = "DaemonSet",
        /// Static pods.
        Static = "Static",
    }
}

impl PodType {
    /// The position in the order of a plan; `None` for a value this release does not know.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        Self::KNOWN.iter().position(|known| *known == self.as_str())
    }
}

/// The desired maintenance.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeMaintenanceSpec {
    /// The nodes to take out of service. May change only while the stage is Idle.
    #[serde(default)]
    pub node_selector: Option<NodeSelector>,
    /// Idle, Cordon, Drain or Complete. May only move forward; stages may be skipped.
    #[serde(default)]
    #[schemars(extend("default" = "Idle"))]
    pub stage: Stage,
    /// The order in which pods are drained. On creation the server adds default entries and sorts the plan. Immutable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub drain_plan: Vec<DrainPlanEntry>,
    /// A human readable reason. Shown in events and messages.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// A node selector: a node is selected when at least one term matches it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct NodeSelector {
    /// A node is selected when any term matches it.
    #[serde(default)]
    #[schemars(extend("required" = true, "x-kubernetes-list-type" = "atomic"))]
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

/// Requirements that must all be satisfied. An empty term matches no node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct NodeSelectorTerm {
    /// Requirements on labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<NodeSelectorRequirement>,
    /// Requirements on fields. Only metadata.name is supported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub match_fields: Vec<NodeSelectorRequirement>,
}

/// One requirement of a term.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSelectorRequirement {
    /// The label key or the field.
    #[serde(default)]
    #[schemars(extend("required" = true))]
    pub key: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`.
    #[serde(default)]
    #[schemars(extend("required" = true))]
    pub operator: String,
    /// The values that the operator compares with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub values: Vec<String>,
}

/// One entry of a drain plan: pods of a type up to a priority.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainPlanEntry {
    /// Default, DaemonSet or Static.
    #[serde(default)]
    #[schemars(extend("required" = true))]
    pub pod_type: PodType,
    /// Selects pods with this priority or a lower one.
    #[serde(default)]
    #[schemars(extend("required" = true))]
    pub pod_priority: i32,
    /// Restricts the entry to pods that match this label selector.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub pod_selector: Option<LabelSelector>,
}

/// The observed progress of the maintenance.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeMaintenanceStatus {
    /// The stages that have started, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub stage_statuses: Vec<StageStatus>,
    /// The drain of all selected nodes together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_status: Option<DrainStatus>,
    /// The drain of each node. Nodes that are not drained come first; with very many nodes, only those are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub node_statuses: Vec<NodeStatus>,
    /// The number of selected nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selected_nodes: Option<i32>,
    /// The number of selected nodes that are drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained_nodes: Option<i32>,
    /// What holds the drain now, the oldest first. At most 20.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub blockers: Vec<Blocker>,
    /// The selected nodes that were unschedulable before this maintenance, or any other one, touched them. They stay
    /// unschedulable when it completes. At most 5000.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub cordoned_before: Vec<String>,
    /// Drained, and other conditions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// A stage that has started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StageStatus {
    /// The stage.
    #[serde(default)]
    #[schemars(extend("required" = true))]
    pub name: Stage,
    /// When the stage started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub start_timestamp: Option<Time>,
}

/// The drain of all selected nodes together.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainStatus {
    /// The drain targets that all selected nodes have reached.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub reached_drain_targets: Vec<DrainPlanEntry>,
    /// A human readable message: what the drain does or waits for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub drain_message: String,
    /// The number of targeted pods without an EvictionRequest.
    #[serde(default)]
    pub pods_pending_eviction_request: i32,
    /// The number of active EvictionRequests of targeted pods.
    #[serde(default)]
    pub active_eviction_requests: i32,
}

/// The drain of one node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// The node.
    #[serde(default)]
    pub node_ref: NodeReference,
    /// The entries of the drain plan that currently apply to the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub drain_targets: Vec<DrainPlanEntry>,
    /// A human readable message: what the drain does or waits for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub drain_message: String,
    /// The number of targeted pods without an EvictionRequest.
    #[serde(default)]
    pub pods_pending_eviction_request: i32,
    /// The number of active EvictionRequests of targeted pods.
    #[serde(default)]
    pub active_eviction_requests: i32,
}

/// Something that holds the drain.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Blocker {
    /// The name of the node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// The namespace of the pod.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// The name of the pod.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod: String,
    /// The name of the EvictionRequest.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub request: String,
    /// Why the drain is held, in one word.
    #[serde(default)]
    #[schemars(extend("required" = true))]
    pub reason: String,
    /// A human readable message with names. At most 1024 bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Since when the drain is held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("required" = true), schema_with = "crate::schema::time")]
    pub since: Option<Time>,
}

/// A reference to a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeReference {
    /// The name of the node.
    #[serde(default)]
    #[schemars(extend("required" = true))]
    pub name: String,
}
