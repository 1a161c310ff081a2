//! The drain status that a maintenance reports.

use std::collections::BTreeMap;

use drydock_proto::kinds::nodemaintenance::{
    DRAINED, DrainStatus, NodeMaintenanceStatus, NodeReference, NodeStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::blockers::{self, BlockersByNode};
use super::progress::{DrainProgress, NodeProgress};
use super::returning::drain_start;
use crate::conditions::{set_condition, whole_seconds};
use crate::nodemaintenance::model::{Maintenance, MaintenanceEvent};

/// How many bytes of a status may be node statuses. It keeps objects well below the size limit of the server.
const MAX_NODE_STATUS_BYTES: usize = 600 * 1024;
/// How many DaemonSets the message of a condition names.
const MAX_DAEMON_SETS_NAMED: usize = 5;
/// How many controllers that come back the message of a condition names.
const MAX_CONTROLLERS_NAMED: usize = 5;

/// Fills in the drain status of a draining maintenance. `index` is that of the maintenance in the cluster state.
pub(super) fn report_drain(
    progress: &DrainProgress<'_>,
    blockers: &BlockersByNode<'_>,
    index: usize,
    maintenance: &Maintenance,
    status: &mut NodeMaintenanceStatus,
) -> Vec<MaintenanceEvent> {
    let mut events = Vec::new();
    let Some(drainer) = progress.drainers.iter().position(|one| *one == index) else {
        return events;
    };
    let nodes: Vec<(usize, &NodeProgress<'_>)> = progress.nodes_of(drainer).collect();
    let drained_count = nodes.iter().filter(|(_, node)| node.is_drained()).count();
    let lowest = nodes.iter().min_by(|a, b| a.1.level.cmp(&b.1.level));
    status.drained_nodes = Some(wire_count(drained_count));
    status.drain_status = Some(DrainStatus {
        reached_drain_targets: lowest
            .map(|(index, _)| progress.targets(*index))
            .unwrap_or_default(),
        drain_message: progress.maintenance_message(drainer),
        pods_pending_eviction_request: nodes.iter().map(|(_, node)| node.pending).sum(),
        active_eviction_requests: nodes.iter().map(|(_, node)| node.requested).sum(),
    });
    status.node_statuses = node_statuses(progress, nodes.iter().map(|(index, _)| *index).collect());

    status.blockers = if nodes.is_empty() {
        vec![blockers::no_node_selected(
            drain_start([maintenance].into_iter()),
            progress.now,
        )]
    } else {
        blockers::oldest(blockers, nodes.iter().map(|(index, _)| *index))
    };

    let is_drained = !nodes.is_empty() && drained_count == nodes.len();
    let static_pods: usize = nodes.iter().map(|(_, node)| node.static_pods).sum();
    if is_drained && static_pods > 0 {
        events.push(MaintenanceEvent::StaticPods {
            maintenance: maintenance.name.clone(),
            count: static_pods,
        });
    }
    let left_alone = describe_tolerant(&nodes);
    if let Some(description) = left_alone.clone().filter(|_| is_drained) {
        events.push(MaintenanceEvent::TolerantDaemonSetPods {
            maintenance: maintenance.name.clone(),
            description,
        });
    }
    let comes_back = describe_returning(progress, &nodes);
    if let Some(description) = comes_back.clone() {
        events.push(MaintenanceEvent::ComesBack {
            maintenance: maintenance.name.clone(),
            description,
        });
    }
    let (state, reason, mut message) = drained_condition(!nodes.is_empty(), is_drained, static_pods);
    if let Some(description) = comes_back {
        message = format!("{message} {description}.");
    }
    if let Some(description) = left_alone {
        message = format!("{message} Left alone: {description}.");
    }
    let condition = Condition {
        type_: DRAINED.to_owned(),
        status: state.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: maintenance.generation,
        last_transition_time: whole_seconds(progress.now),
    };
    if set_condition(&mut status.conditions, condition) && is_drained {
        events.push(MaintenanceEvent::Drained {
            maintenance: maintenance.name.clone(),
        });
    }
    events
}

/// Status, reason and message of the `Drained` condition.
fn drained_condition(
    has_nodes: bool,
    is_drained: bool,
    static_pods: usize,
) -> (&'static str, &'static str, String) {
    if !has_nodes {
        return ("False", "NoNodes", "No node is selected.".to_owned());
    }
    if !is_drained {
        let message = "Targeted pods are left on selected nodes.".to_owned();
        return ("False", "Draining", message);
    }
    let message = if static_pods > 0 {
        format!("All pods are gone except {static_pods}, blocked: static pod.")
    } else {
        "All targeted pods are gone from all selected nodes.".to_owned()
    };
    ("True", "Drained", message)
}

/// The pods of DaemonSets that tolerate the drain taint, with their DaemonSets; `None` when there are none.
fn describe_tolerant(nodes: &[(usize, &NodeProgress<'_>)]) -> Option<String> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for (daemon_set, count) in nodes.iter().flat_map(|(_, node)| &node.tolerant_daemon_sets) {
        *counts.entry(*daemon_set).or_insert(0) += count;
    }
    let total: usize = counts.values().sum();
    let mut names: Vec<String> = counts
        .iter()
        .take(MAX_DAEMON_SETS_NAMED)
        .map(|((namespace, name), count)| format!("{namespace}/{name} ({count})"))
        .collect();
    if counts.len() > names.len() {
        names.push(format!("{} more", counts.len() - names.len()));
    }
    let names = names.join(", ");
    (total > 0)
        .then(|| format!("{total} pods of DaemonSets that tolerate the drain taint (DaemonSetPod): {names}"))
}

/// The controllers that hold the drain because their pods come back; `None` when there are none.
fn describe_returning(progress: &DrainProgress<'_>, nodes: &[(usize, &NodeProgress<'_>)]) -> Option<String> {
    let blocking: Vec<_> = nodes
        .iter()
        .flat_map(|(_, node)| node.returning.values())
        .filter(|controller| controller.is_blocking())
        .collect();
    let mut texts: Vec<String> = blocking
        .iter()
        .take(MAX_CONTROLLERS_NAMED)
        .map(|controller| controller.describe(progress.now))
        .collect();
    if blocking.len() > texts.len() {
        texts.push(format!("{} more", blocking.len() - texts.len()));
    }
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// The statuses of as many nodes as fit: first nodes with targeted pods, then nodes that wait, then drained nodes.
fn node_statuses(progress: &DrainProgress<'_>, mut nodes: Vec<usize>) -> Vec<NodeStatus> {
    let name = |index: usize| {
        progress
            .state
            .nodes
            .get(index)
            .map_or("", |node| node.name.as_str())
    };
    let order = |index: usize| {
        let node = progress.nodes.get(index);
        let is_drained = node.is_some_and(NodeProgress::is_drained);
        let is_waiting = !node.is_some_and(NodeProgress::has_targeted_pods);
        (is_drained, is_waiting, name(index))
    };
    nodes.sort_by(|a, b| order(*a).cmp(&order(*b)));
    let mut bytes = 0;
    nodes
        .into_iter()
        .map(|index| {
            let node = progress.nodes.get(index);
            NodeStatus {
                node_ref: NodeReference {
                    name: name(index).to_owned(),
                },
                drain_targets: progress.targets(index),
                drain_message: progress.node_message(index),
                pods_pending_eviction_request: node.map_or(0, |node| node.pending),
                active_eviction_requests: node.map_or(0, |node| node.requested),
            }
        })
        .take_while(|status| {
            bytes += serde_json::to_vec(status).map_or(0, |json| json.len() + 1);
            bytes <= MAX_NODE_STATUS_BYTES
        })
        .collect()
}

/// A count as the API's int32.
pub(super) fn wire_count(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
