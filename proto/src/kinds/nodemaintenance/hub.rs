//! The stored form of a NodeMaintenance.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, ObjectMeta, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::kinds::kubernetes_resource;
use crate::string_enum::string_enum;

use super::KIND;

/// The condition that says every targeted pod of every selected node is gone.
pub const DRAINED: &str = "Drained";
/// The finalizer that holds a maintenance until its completion has been carried out.
pub const COMPLETION_FINALIZER: &str = "nodemaintenance.k8s.io/maintenance-completion";
/// The annotation on a Node that says what is done to it, as JSON.
pub const STATUS_ANNOTATION: &str = "nodemaintenance.coordination.k8s.io/status";
/// The taint that keeps DaemonSet pods from coming back, effect `NoSchedule`.
pub const DRAIN_TAINT: &str = "nodemaintenance.coordination.k8s.io/drain";
/// The pod priorities whose entries every plan holds, for each pod type: the highest of user-defined classes,
/// `system-cluster-critical`, `system-node-critical`, and the largest there is.
pub const DEFAULT_PLAN_PRIORITIES: [i32; 4] = [1_000_000_000, 2_000_000_000, 2_000_001_000, i32::MAX];

/// The intent to take nodes out of service.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeMaintenance {
    /// Standard object metadata.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What is intended.
    #[serde(default)]
    pub spec: NodeMaintenanceSpec,
    /// How far it has come.
    #[serde(default)]
    pub status: Option<NodeMaintenanceStatus>,
}

kubernetes_resource!(NodeMaintenance, ClusterResourceScope, KIND);

string_enum! {
    /// How far a maintenance is to go. Only forward.
    #[derive(Default)]
    Stage {
        /// Nothing is touched.
        #[default]
        Idle = "Idle",
        /// Nodes take no new pods.
        Cordon = "Cordon",
        /// Pods are asked to leave.
        Drain = "Drain",
        /// Nodes come back.
        Complete = "Complete",
    }
}

impl Stage {
    /// The place in the order of stages; `None` for a value this release does not know.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        Self::KNOWN.iter().position(|known| *known == self.as_str())
    }
}

string_enum! {
    /// Which pods an entry of a drain plan speaks of.
    #[derive(Default)]
    PodType {
        /// All pods but those of DaemonSets and static ones.
        #[default]
        Default = "Default",
        /// Pods of DaemonSets.
        DaemonSet = "DaemonSet",
        /// Static pods.
        Static = "Static",
    }
}

impl PodType {
    /// The place in the order of a plan; `None` for a value this release does not know.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        Self::KNOWN.iter().position(|known| *known == self.as_str())
    }
}

/// What is intended with which nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeMaintenanceSpec {
    /// The nodes to take out of service. May change only while the stage is Idle.
    #[serde(default)]
    pub node_selector: Option<NodeSelector>,
    /// Idle, Cordon, Drain, Complete. Moves forward only; a later stage may be reached directly.
    #[serde(default)]
    #[schemars(extend("default" = "Idle"))]
    pub stage: Stage,
    /// Who leaves first. Completed with default entries and ordered on admission; immutable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub drain_plan: Vec<DrainPlanEntry>,
    /// Why, for people. Shown in events and messages.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
}

/// The terms of a node selector, of which one must match.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct NodeSelector {
    /// A node matches when any term does.
    #[serde(default)]
    #[schemars(required, extend("x-kubernetes-list-type" = "atomic"))]
    pub node_selector_terms: Vec<NodeSelectorTerm>,
}

/// Requirements that must all hold. An empty term matches no node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct NodeSelectorTerm {
    /// Requirements on labels.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub match_expressions: Vec<NodeSelectorRequirement>,
    /// Requirements on fields; only metadata.name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub match_fields: Vec<NodeSelectorRequirement>,
}

/// One requirement.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeSelectorRequirement {
    /// The label or field.
    #[serde(default)]
    #[schemars(required)]
    pub key: String,
    /// `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`.
    #[serde(default)]
    #[schemars(required)]
    pub operator: String,
    /// The values the operator compares with.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub values: Vec<String>,
}

/// A step of a plan: pods of a type up to a priority.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainPlanEntry {
    /// Default, DaemonSet or Static.
    #[serde(default)]
    #[schemars(required)]
    pub pod_type: PodType,
    /// Pods with this priority or a lower one are selected.
    #[serde(default)]
    #[schemars(required)]
    pub pod_priority: i32,
    /// Narrows the entry to pods with these labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub pod_selector: Option<LabelSelector>,
}

/// How far the maintenance has come.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeMaintenanceStatus {
    /// The stages that have started, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub stage_statuses: Vec<StageStatus>,
    /// The drain over all selected nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain_status: Option<DrainStatus>,
    /// The drain of each node; nodes that are not drained come first, and of very many only those are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub node_statuses: Vec<NodeStatus>,
    /// How many nodes are selected.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selected_nodes: Option<i32>,
    /// How many of them are drained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drained_nodes: Option<i32>,
    /// Drained, and others.
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
    #[schemars(required)]
    pub name: Stage,
    /// When it started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub start_timestamp: Option<Time>,
}

/// The drain over all selected nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DrainStatus {
    /// The lowest drain targets among the nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub reached_drain_targets: Vec<DrainPlanEntry>,
    /// What the drain does or waits for, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub drain_message: String,
    /// Pods that have not been asked to leave yet.
    #[serde(default)]
    pub pods_pending_eviction_request: i32,
    /// Pods that have been asked to leave and are still there.
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
    /// Which pods of the node are asked to leave by now.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub drain_targets: Vec<DrainPlanEntry>,
    /// What the drain does or waits for, for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub drain_message: String,
    /// Pods that have not been asked to leave yet.
    #[serde(default)]
    pub pods_pending_eviction_request: i32,
    /// Pods that have been asked to leave and are still there.
    #[serde(default)]
    pub active_eviction_requests: i32,
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeReference {
    /// The name of the node.
    #[serde(default)]
    #[schemars(required)]
    pub name: String,
}

impl NodeMaintenance {
    /// Whether the condition of that type is True.
    #[must_use]
    pub fn is_condition_true(&self, type_: &str) -> bool {
        self.status
            .iter()
            .flat_map(|status| &status.conditions)
            .any(|condition| condition.type_ == type_ && condition.status == "True")
    }
}
