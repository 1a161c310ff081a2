//! Plans what to do with nodes under maintenance: a pure function of all maintenances, nodes, pods and requests. It
//! plans for all maintenances together, because those that share nodes wait for each other. Start at [`plan`].
//!
//! # Levels
//!
//! The entries of all drain plans have a common order ([`PlanPosition`](super::drain_plan::PlanPosition)). The *level* of a node is the last entry it has
//! reached: pods that match it or an earlier entry are requested to leave. Levels are recorded on the node and never
//! move back. A node has *passed* an entry when its level is beyond it, or is that entry and no targeted pod is left.
//! The *current* entry of a maintenance is the first one that not all of its nodes have passed. The level of a node
//! rises to the lowest current entry among the maintenances that drain it, so the slowest plan determines the level of
//! a shared node.
//!
//! # Messages
//!
//! The *governors* of a node are the maintenances whose current entry it has reached. The other maintenances that drain
//! the node are *limited by* them. The message of a maintenance says so while it has not passed its first entry, or
//! when an older maintenance limits it; the message of the node says so when the limited maintenance is older or has
//! passed an entry. A node without targeted pods *waits for* the governors of the nodes that its own governors wait
//! for.
//!
//! # Pods that come back
//!
//! Successors ([`successor`](super::successor)) of a controller that has come back several times are requested to leave
//! with a growing pause after the end of the last one. They count as left. A node is not drained for a short time after
//! the end of a successor, as the next one may follow.

mod blockers;
mod progress;
mod report;
mod returning;

use std::collections::BTreeSet;

use drydock_proto::kinds::nodemaintenance::{PodType, Stage, StageStatus};
use jiff::Timestamp;

use super::model::{
    ClusterState, Maintenance, MaintenanceAction, MaintenanceEvent, NodeFacts, Plan, RequestAction,
    RequestFacts, RequestState,
};
use super::node_state::{HoldingMaintenance, NodeAction, NodeRecord};
use crate::conditions::whole_seconds;

use blockers::{BlockersByNode, find_blockers};
use progress::DrainProgress;

/// Plans what to do. After the plan is executed, the next plan contains nothing to do.
#[must_use]
pub fn plan(state: &ClusterState, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let progress = DrainProgress::new(state, now);
    plan_nodes(state, &progress, &mut plan);
    plan_requests(state, &progress, &mut plan);
    plan.next = progress.next;
    let blockers = find_blockers(&progress);
    for index in 0..state.maintenances.len() {
        plan_maintenance(state, &progress, &blockers, index, &mut plan);
    }
    plan
}

fn plan_nodes(state: &ClusterState, progress: &DrainProgress<'_>, plan: &mut Plan) {
    let holders = holders_by_node(state);
    for (index, (node, maintenances)) in state.nodes.iter().zip(holders).enumerate() {
        if maintenances.is_empty() {
            let before = node.record.as_ref().map(|record| record.was_unschedulable);
            if before.is_some() || node.is_tainted {
                let was_unschedulable = before.unwrap_or(node.is_unschedulable);
                plan.nodes
                    .push((index, NodeAction::Release { was_unschedulable }));
            }
            continue;
        }
        add_fast_forwards(progress, index, node, plan);
        if node.record.is_some() && !node.is_unschedulable {
            plan.events.push(MaintenanceEvent::CordonConflict {
                node: node.name.clone(),
                maintenances: maintenances.iter().map(|one| one.name.clone()).collect(),
            });
        }
        let reached = progress.nodes.get(index).and_then(|node| node.level.clone());
        let is_tainted = reached
            .as_ref()
            .is_some_and(|level| Some(level.pod_type) >= PodType::DaemonSet.rank());
        let record = NodeRecord {
            maintenances,
            targets: progress.targets(index),
            message: progress.node_message(index),
            was_unschedulable: node
                .record
                .as_ref()
                .map_or(node.is_unschedulable, |record| record.was_unschedulable),
            reached,
        };
        if node.record.as_ref() != Some(&record) || !node.is_unschedulable || node.is_tainted != is_tainted {
            plan.nodes.push((index, NodeAction::Hold { record, is_tainted }));
        }
    }
}

/// The active maintenances of every node, the oldest first.
fn holders_by_node(state: &ClusterState) -> Vec<Vec<HoldingMaintenance>> {
    let mut holders: Vec<Vec<HoldingMaintenance>> = vec![Vec::new(); state.nodes.len()];
    for index in state.by_age(Maintenance::is_active) {
        let Some(maintenance) = state.maintenances.get(index) else {
            continue;
        };
        for node in &maintenance.nodes {
            if let Some(holders) = holders.get_mut(*node) {
                holders.push(HoldingMaintenance {
                    name: maintenance.name.clone(),
                    stage: maintenance.stage.clone(),
                });
            }
        }
    }
    holders
}

/// Adds an Event for every maintenance that begins to drain the node when its level is already beyond the
/// maintenance's current entry.
fn add_fast_forwards(progress: &DrainProgress<'_>, index: usize, node: &NodeFacts, plan: &mut Plan) {
    let Some(record) = &node.record else { return };
    for drainer in progress.drainers_of(index) {
        let name = progress.name(*drainer);
        let is_new = !record
            .maintenances
            .iter()
            .any(|one| one.name == name && one.stage == Stage::Drain);
        let is_behind = match (progress.current(*drainer), &record.reached) {
            (Some(current), Some(reached)) => current < reached,
            _ => false,
        };
        if is_new && is_behind {
            plan.events.push(MaintenanceEvent::FastForwarded {
                maintenance: name.to_owned(),
                node: node.name.clone(),
            });
        }
    }
}

fn plan_requests(state: &ClusterState, progress: &DrainProgress<'_>, plan: &mut Plan) {
    for (index, pod) in state.pods.iter().enumerate() {
        if progress.is_paused(pod) {
            continue;
        }
        let is_successor = progress.is_successor(pod);
        let action = match (progress.is_targeted(index, pod), state.requests.get(&pod.uid)) {
            (true, None) => Some(RequestAction::Create { is_successor }),
            (true, Some(request)) => match request.state {
                RequestState::Active
                    if !request.has_maintenance_requester && !request.is_cancellation_forbidden =>
                {
                    Some(RequestAction::Join { is_successor })
                }
                RequestState::Withdrawn => Some(RequestAction::DeleteWithdrawn),
                _ => None,
            },
            (false, Some(request)) => {
                let is_obsolete = request.is_active_for_maintenance() && !pod.is_terminal;
                (is_obsolete && !request.is_cancellation_forbidden).then_some(RequestAction::Withdraw)
            }
            (false, None) => None,
        };
        plan.requests.extend(action.map(|action| (index, action)));
    }
}

fn plan_maintenance(
    state: &ClusterState,
    progress: &DrainProgress<'_>,
    blockers: &BlockersByNode<'_>,
    index: usize,
    plan: &mut Plan,
) {
    let Some(maintenance) = state.maintenances.get(index) else {
        return;
    };
    let mut status = maintenance.status.clone();
    status.selected_nodes = Some(report::wire_count(maintenance.nodes.len()));
    match maintenance.stage {
        Stage::Cordon | Stage::Drain if maintenance.is_deleting => {
            if maintenance.has_finalizer {
                plan.maintenances
                    .push((index, MaintenanceAction::SetStageComplete));
            }
            return;
        }
        Stage::Cordon | Stage::Drain if !maintenance.has_finalizer => {
            plan.maintenances.push((index, MaintenanceAction::AddFinalizer));
            return;
        }
        Stage::Cordon => {}
        Stage::Drain => {
            let events = report::report_drain(progress, blockers, index, maintenance, &mut status);
            plan.events.extend(events);
        }
        Stage::Complete => {
            status.drain_status = None;
            status.blockers = Vec::new();
            status.node_statuses = Vec::new();
        }
        Stage::Idle | Stage::Other(_) => return,
    }
    if !status
        .stage_statuses
        .iter()
        .any(|stage| stage.name == maintenance.stage)
    {
        status.stage_statuses.push(StageStatus {
            name: maintenance.stage.clone(),
            start_timestamp: Some(whole_seconds(progress.now)),
        });
    }
    if status != maintenance.status {
        let action = MaintenanceAction::WriteStatus(Box::new(status));
        plan.maintenances.push((index, action));
    } else if maintenance.stage == Stage::Complete
        && maintenance.has_finalizer
        && is_completed(state, progress, maintenance)
    {
        plan.events.push(MaintenanceEvent::Completed {
            maintenance: maintenance.name.clone(),
        });
        plan.maintenances
            .push((index, MaintenanceAction::RemoveFinalizer));
    }
}

/// Whether the maintenance holds no node any more, and no request made for it is left on its nodes.
fn is_completed(state: &ClusterState, progress: &DrainProgress<'_>, maintenance: &Maintenance) -> bool {
    let names = |record: &NodeRecord| record.maintenances.iter().any(|one| one.name == maintenance.name);
    let holds_nodes = state
        .nodes
        .iter()
        .filter_map(|node| node.record.as_ref())
        .any(names);
    let own_nodes: BTreeSet<usize> = maintenance.nodes.iter().copied().collect();
    let has_requests = state.pods.iter().any(|pod| {
        let request = state.requests.get(&pod.uid);
        own_nodes.contains(&pod.node)
            && progress.drainers_of(pod.node).is_empty()
            && request.is_some_and(RequestFacts::is_active_for_maintenance)
    });
    !holds_nodes && !has_requests
}

#[cfg(test)]
mod tests;
