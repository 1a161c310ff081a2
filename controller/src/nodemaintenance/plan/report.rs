//! What does a maintenance report of its drain?

use drydock_proto::kinds::nodemaintenance::{
    DRAINED, DrainStatus, NodeMaintenanceStatus, NodeReference, NodeStatus,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::drain::{Drain, NodeDrain};
use super::{Maintenance, Notice, Plan};
use crate::evictionrequest::status::whole_seconds;

/// How many bytes of a status may be node statuses, so that objects stay well below what storage takes.
const NODE_STATUS_BYTES: usize = 600 * 1024;

/// Fills the status in, and notices what has come about.
pub(super) fn report_drain(
    drain: &Drain<'_>,
    index: usize,
    maintenance: &Maintenance,
    now: Timestamp,
    status: &mut NodeMaintenanceStatus,
    plan: &mut Plan,
) {
    let Some(place) = drain.order.iter().position(|one| *one == index) else {
        return;
    };
    let nodes: Vec<(usize, &NodeDrain)> = drain.nodes_of(place).collect();
    let drained = nodes.iter().filter(|(_, node)| node.is_drained()).count();
    let lowest = nodes.iter().min_by(|a, b| a.1.level.cmp(&b.1.level));
    status.drained_nodes = Some(count(drained));
    status.drain_status = Some(DrainStatus {
        reached_drain_targets: lowest.map(|(index, _)| drain.targets(*index)).unwrap_or_default(),
        drain_message: drain.maintenance_message(place),
        pods_pending_eviction_request: nodes.iter().map(|(_, node)| node.pending).sum(),
        active_eviction_requests: nodes.iter().map(|(_, node)| node.active).sum(),
    });
    status.node_statuses = node_statuses(drain, nodes.iter().map(|(index, _)| *index).collect());

    let is_drained = !nodes.is_empty() && drained == nodes.len();
    let static_left: usize = nodes.iter().map(|(_, node)| node.static_left).sum();
    if is_drained && static_left > 0 {
        plan.notices.push(Notice::StaticPods {
            maintenance: maintenance.name.clone(),
            count: static_left,
        });
    }
    let (state, reason, message) = if nodes.is_empty() {
        ("False", "NoNodes", "No node is selected.".to_owned())
    } else if !is_drained {
        (
            "False",
            "Draining",
            "Targeted pods are left on selected nodes.".to_owned(),
        )
    } else if static_left > 0 {
        let message = format!("All pods are gone but {static_left}, blocked: static pod.");
        ("True", "Drained", message)
    } else {
        (
            "True",
            "Drained",
            "All targeted pods are gone from all selected nodes.".to_owned(),
        )
    };
    let known = status
        .conditions
        .iter_mut()
        .find(|condition| condition.type_ == DRAINED);
    let since = known
        .as_ref()
        .filter(|known| known.status == state)
        .map(|known| known.last_transition_time.clone());
    if since.is_none() && is_drained {
        plan.notices.push(Notice::Drained {
            maintenance: maintenance.name.clone(),
        });
    }
    let condition = Condition {
        type_: DRAINED.to_owned(),
        status: state.to_owned(),
        reason: reason.to_owned(),
        message,
        observed_generation: maintenance.generation,
        last_transition_time: since.unwrap_or_else(|| whole_seconds(now)),
    };
    match known {
        Some(known) => *known = condition,
        None => status.conditions.push(condition),
    }
}

/// The statuses of nodes, as many as fit: those being drained, then those that wait, then those that are drained.
fn node_statuses(drain: &Drain<'_>, mut nodes: Vec<usize>) -> Vec<NodeStatus> {
    let name = |index: usize| drain.world.nodes.get(index).map_or("", |node| node.name.as_str());
    let is_drained = |index: usize| drain.nodes.get(index).is_some_and(NodeDrain::is_drained);
    let waits = |index: usize| !drain.nodes.get(index).is_some_and(NodeDrain::is_busy);
    let place = |index: usize| (is_drained(index), waits(index), name(index));
    nodes.sort_by(|a, b| place(*a).cmp(&place(*b)));
    let mut bytes = 0;
    nodes
        .into_iter()
        .map(|index| {
            let node = drain.nodes.get(index);
            NodeStatus {
                node_ref: NodeReference {
                    name: name(index).to_owned(),
                },
                drain_targets: drain.targets(index),
                drain_message: drain.node_message(index),
                pods_pending_eviction_request: node.map_or(0, |node| node.pending),
                active_eviction_requests: node.map_or(0, |node| node.active),
            }
        })
        .take_while(|status| {
            bytes += serde_json::to_vec(status).map_or(0, |json| json.len() + 1);
            bytes <= NODE_STATUS_BYTES
        })
        .collect()
}

/// A number as the wire has it.
pub(super) fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
