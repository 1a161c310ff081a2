//! The progress of a drain: what is left on which node, what holds it, how fast it goes.
//!
//! ```text
//! objects ──▶ Snapshot ──▶ History (peaks, rate) ──▶ screen (a terminal) or lines (everything else)
//! ```
//!
//! Everything here is pure; `commands::follow` reads the objects and the clock.

pub mod history;
pub mod lines;
pub mod screen;

use drydock_proto::kinds::nodemaintenance::{Blocker, DRAINED, NodeMaintenance, Stage};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use serde::Serialize;

use crate::pods;
use crate::times::timestamp;

/// How a drain stands at one moment.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// The name of the maintenance.
    pub maintenance: String,
    /// Its stage.
    #[serde(serialize_with = "stage_text")]
    pub stage: Stage,
    /// Its reason.
    pub reason: String,
    /// What the controller says about the drain.
    pub message: String,
    /// Whether it is drained.
    pub is_drained: bool,
    /// What the controller says about what is left.
    pub outcome: String,
    /// Whether it is being deleted.
    pub is_ending: bool,
    /// When it was created.
    pub since: Option<Timestamp>,
    /// The nodes, those with pods first.
    pub nodes: Vec<NodeProgress>,
    /// The number of selected nodes; more than `nodes` when those were not read.
    pub selected_nodes: usize,
    /// The number of drained nodes.
    pub drained_nodes: usize,
    /// What holds it, the oldest first.
    pub blockers: Vec<Held>,
}

fn stage_text<S: serde::Serializer>(stage: &Stage, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(stage.as_str())
}

/// How a node stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeProgress {
    /// Its name.
    pub name: String,
    /// The pods that have to leave and are still there.
    pub left: usize,
    /// The pods that drains leave alone.
    pub left_alone: usize,
    /// Whether new pods are kept away.
    pub is_cordoned: bool,
    /// What the controller says about it.
    pub message: String,
}

/// Something that holds a drain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Held {
    /// The node.
    pub node: String,
    /// `NAMESPACE/POD`; empty when it is no pod.
    pub pod: String,
    /// One word, such as `Budget`.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// Since when.
    pub since: Option<Timestamp>,
}

impl From<&Blocker> for Held {
    fn from(blocker: &Blocker) -> Self {
        let pod = if blocker.pod.is_empty() {
            String::new()
        } else {
            format!("{}/{}", blocker.namespace, blocker.pod)
        };
        Self {
            node: blocker.node.clone(),
            pod,
            reason: blocker.reason.clone(),
            message: blocker.message.clone(),
            since: timestamp(blocker.since.as_ref()),
        }
    }
}

impl Snapshot {
    /// Reads a maintenance, its nodes, and the pods on them.
    #[must_use]
    pub fn new(maintenance: &NodeMaintenance, nodes: &[Node], pods: &[Pod]) -> Self {
        let status = maintenance.status.clone().unwrap_or_default();
        let drained = status
            .conditions
            .iter()
            .find(|condition| condition.type_ == DRAINED);
        let drain = status.drain_status.as_ref();
        let mut progress: Vec<NodeProgress> = nodes
            .iter()
            .map(|node| {
                let name = node.metadata.name.clone().unwrap_or_default();
                let reported = status
                    .node_statuses
                    .iter()
                    .find(|status| status.node_ref.name == name);
                let on_node = || {
                    pods.iter()
                        .filter(|pod| pods::node(pod) == name && !pods::is_terminal(pod))
                };
                NodeProgress {
                    left: on_node().filter(|pod| pods::has_to_leave(pod)).count(),
                    left_alone: on_node().filter(|pod| !pods::has_to_leave(pod)).count(),
                    is_cordoned: node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true),
                    message: reported
                        .map(|status| status.drain_message.clone())
                        .unwrap_or_default(),
                    name,
                }
            })
            .collect();
        progress.sort_by(|a, b| (a.left == 0, &a.name).cmp(&(b.left == 0, &b.name)));
        let count = |number: Option<i32>| usize::try_from(number.unwrap_or_default()).unwrap_or_default();
        Self {
            maintenance: maintenance.metadata.name.clone().unwrap_or_default(),
            stage: maintenance.spec.stage.clone(),
            reason: maintenance.spec.reason.clone(),
            message: drain.map(|drain| drain.drain_message.clone()).unwrap_or_default(),
            is_drained: drained.is_some_and(|condition| condition.status == "True"),
            outcome: drained
                .map(|condition| condition.message.clone())
                .unwrap_or_default(),
            is_ending: maintenance.metadata.deletion_timestamp.is_some(),
            since: timestamp(maintenance.metadata.creation_timestamp.as_ref()),
            selected_nodes: count(status.selected_nodes).max(progress.len()),
            drained_nodes: count(status.drained_nodes),
            nodes: progress,
            blockers: status.blockers.iter().map(Held::from).collect(),
        }
    }

    /// The pods that have to leave and are still there.
    #[must_use]
    pub fn left(&self) -> usize {
        self.nodes.iter().map(|node| node.left).sum()
    }
}

#[cfg(test)]
mod tests;
