//! The drain status that a maintenance reports.

use std::collections::{BTreeMap, HashSet};

use drydock_proto::kinds::nodemaintenance::{
    Blocker, DRAINED, DrainStatus, NodeMaintenanceStatus, NodeReference, NodeStatus,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::blockers::{self, BlockersByNode};
use super::progress::{DrainProgress, NodeProgress};
use super::returning::drain_start;
use crate::conditions::{set_condition, whole_seconds};
use crate::nodemaintenance::drain_plan::{DRAIN_LABEL, SKIP};
use crate::nodemaintenance::model::{ClusterState, Maintenance, MaintenanceEvent};

/// How many bytes of a status may be node statuses. It keeps objects well below the size limit of the server.
const MAX_NODE_STATUS_BYTES: usize = 600 * 1024;
/// How many DaemonSets the message of a condition names.
const MAX_DAEMON_SETS_NAMED: usize = 5;
/// How many controllers that come back the message of a condition names.
const MAX_CONTROLLERS_NAMED: usize = 5;
/// How many nodes an Event or a message names.
const MAX_NODES_NAMED: usize = 10;
/// How many new blockers are told in Events at a time. All are in the status.
const MAX_BLOCKERS_TOLD: usize = 3;
/// The reason of a maintenance that selects no node.
const NO_NODE_SELECTED: &str = "NoNodeSelected";

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
    status.node_statuses = node_statuses(progress, &maintenance.nodes);

    let vanished = vanished_nodes(progress.state, maintenance);
    status.blockers = if nodes.is_empty() {
        vec![no_node_selected(maintenance, vanished.as_ref(), progress.now)]
    } else {
        blockers::oldest(blockers, nodes.iter().map(|(index, _)| *index))
    };
    events.extend(vanished);
    events.extend(new_blockers(maintenance, &status.blockers));

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
    let spared: usize = nodes.iter().map(|(_, node)| node.spared).sum();
    let spared =
        (spared > 0).then(|| format!("{spared} pods that the plan leaves out by {DRAIN_LABEL}={SKIP}"));
    let left_alone: Vec<String> = left_alone.into_iter().chain(spared).collect();
    if !left_alone.is_empty() {
        message = format!("{message} Left alone: {}.", left_alone.join("; "));
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

/// The Event about nodes that the status lists and that are gone or no longer selected.
fn vanished_nodes(state: &ClusterState, maintenance: &Maintenance) -> Option<MaintenanceEvent> {
    let selected: HashSet<&str> = maintenance
        .nodes
        .iter()
        .filter_map(|index| Some(state.nodes.get(*index)?.name.as_str()))
        .collect();
    let listed = maintenance.status.node_statuses.iter();
    let vanished: Vec<&str> = listed
        .map(|status| status.node_ref.name.as_str())
        .filter(|name| !selected.contains(name))
        .collect();
    (!vanished.is_empty()).then(|| MaintenanceEvent::NodesVanished {
        maintenance: maintenance.name.clone(),
        names: first_names(&vanished),
    })
}

/// The first names, and how many more there are.
fn first_names(names: &[&str]) -> String {
    let mut texts: Vec<String> = names
        .iter()
        .take(MAX_NODES_NAMED)
        .map(ToString::to_string)
        .collect();
    if names.len() > texts.len() {
        texts.push(format!("{} more", names.len() - texts.len()));
    }
    texts.join(", ")
}

/// The blocker of a maintenance that selects no node. It names those that were selected before.
fn no_node_selected(
    maintenance: &Maintenance,
    vanished: Option<&MaintenanceEvent>,
    now: Timestamp,
) -> Blocker {
    let known = maintenance.status.blockers.first();
    if let Some(known) = known.filter(|known| known.reason == NO_NODE_SELECTED) {
        return known.clone();
    }
    let (since, message) = if let Some(MaintenanceEvent::NodesVanished { names, .. }) = vanished {
        let message = format!("No node is selected any more. Selected before: {names}.");
        (now, message)
    } else {
        let since = drain_start([maintenance].into_iter());
        (since.unwrap_or(now), "No node is selected.".to_owned())
    };
    Blocker {
        reason: NO_NODE_SELECTED.to_owned(),
        message,
        since: Some(whole_seconds(since)),
        ..Blocker::default()
    }
}

/// Events about blockers that the stored status does not have.
fn new_blockers(maintenance: &Maintenance, blockers: &[Blocker]) -> Vec<MaintenanceEvent> {
    let is_same = |one: &Blocker, other: &Blocker| {
        (&one.node, &one.namespace, &one.pod, &one.reason)
            == (&other.node, &other.namespace, &other.pod, &other.reason)
    };
    let known = &maintenance.status.blockers;
    blockers
        .iter()
        .filter(|blocker| !known.iter().any(|known| is_same(known, blocker)))
        .take(MAX_BLOCKERS_TOLD)
        .map(|blocker| {
            let Blocker {
                node,
                namespace,
                pod,
                reason,
                message,
                ..
            } = blocker;
            let what = if pod.is_empty() {
                String::new()
            } else {
                format!(" pod {namespace}/{pod} on node {node}:")
            };
            MaintenanceEvent::Blocked {
                maintenance: maintenance.name.clone(),
                description: format!("{reason}:{what} {message}"),
            }
        })
        .collect()
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

/// The statuses of as many nodes as fit: first nodes with targeted pods, then nodes that wait, then drained nodes. Only
/// nodes that have a record: a listed node without one has lost it.
pub(super) fn node_statuses(progress: &DrainProgress<'_>, nodes: &[usize]) -> Vec<NodeStatus> {
    let has_record = |index: &usize| {
        let node = progress.state.nodes.get(*index);
        node.is_some_and(|node| node.record.is_some())
    };
    let mut nodes: Vec<usize> = nodes.iter().copied().filter(has_record).collect();
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
