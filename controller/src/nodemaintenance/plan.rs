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
mod holds;
mod progress;
mod report;
mod requests;
mod returning;

use std::collections::{BTreeSet, HashSet};

use drydock_proto::kinds::nodemaintenance::{
    MAX_CORDONED_BEFORE, NodeMaintenanceStatus, PodType, Stage, StageStatus,
};
use jiff::Timestamp;

use super::model::{
    ClusterState, Maintenance, MaintenanceAction, MaintenanceEvent, NodeFacts, Plan, RecordSource,
    RequestFacts,
};
use super::node_state::{NodeAction, NodeRecord, vanished_message};
use crate::conditions::whole_seconds;

use blockers::{BlockersByNode, find_blockers};
use holds::{Hold, find_holds};
use progress::DrainProgress;

/// Plans what to do. After the plan is executed, the next plan contains nothing to do.
#[must_use]
pub fn plan(state: &ClusterState, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let progress = DrainProgress::new(state, now);
    let holds = find_holds(state);
    plan_nodes(state, &progress, &holds, &mut plan);
    plan.next = progress.next;
    requests::plan_requests(&progress, &holds, &mut plan);
    let blockers = find_blockers(&progress);
    for index in 0..state.maintenances.len() {
        plan_maintenance(&progress, &holds, &blockers, index, &mut plan);
    }
    plan
}

fn plan_nodes(state: &ClusterState, progress: &DrainProgress<'_>, holds: &[Hold], plan: &mut Plan) {
    for (index, (node, hold)) in state.nodes.iter().zip(holds).enumerate() {
        if hold.active.is_empty() {
            let action = plan_unheld(node, hold);
            plan.nodes.extend(action.map(|action| (index, action)));
            continue;
        }
        if hold.is_unrecorded {
            continue;
        }
        add_fast_forwards(progress, index, node, plan);
        if node.record.is_some() && !node.is_unschedulable {
            plan.events.push(MaintenanceEvent::CordonConflict {
                node: node.name.clone(),
                maintenances: hold.active.iter().map(|one| one.name.clone()).collect(),
            });
        }
        let reached = progress.nodes.get(index).and_then(|node| node.level.clone());
        let is_tainted = reached
            .as_ref()
            .is_some_and(|level| Some(level.pod_type) >= PodType::DaemonSet.rank());
        let record = NodeRecord {
            maintenances: hold.active.iter().chain(&hold.kept).cloned().collect(),
            targets: progress.targets(index),
            message: progress.node_message(index),
            was_unschedulable: hold.was_unschedulable,
            vanished: hold.vanished.clone(),
            reached,
        };
        let is_restored = node.record_source == RecordSource::Recovered;
        if node.record.as_ref() != Some(&record)
            || is_restored
            || !node.is_unschedulable
            || node.is_tainted != is_tainted
        {
            let action = NodeAction::Hold {
                record,
                is_tainted,
                is_restored,
            };
            plan.nodes.push((index, action));
        }
    }
}

/// What to do with a node that no active maintenance selects.
fn plan_unheld(node: &NodeFacts, hold: &Hold) -> Option<NodeAction> {
    if hold.kept.is_empty() {
        let was_unschedulable = hold.was_unschedulable;
        let has_traces =
            node.record.is_some() || (node.is_tainted && node.record_source != RecordSource::Damaged);
        return has_traces.then_some(NodeAction::Release { was_unschedulable });
    }
    let record = node.record.as_ref().filter(|_| !hold.vanished.is_empty())?;
    let noted = NodeRecord {
        maintenances: hold.kept.clone(),
        message: vanished_message(&hold.vanished),
        was_unschedulable: hold.was_unschedulable,
        vanished: hold.vanished.clone(),
        ..record.clone()
    };
    (noted != *record).then_some(NodeAction::Note { record: noted })
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

fn plan_maintenance(
    progress: &DrainProgress<'_>,
    holds: &[Hold],
    blockers: &BlockersByNode<'_>,
    index: usize,
    plan: &mut Plan,
) {
    let state = progress.state;
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
            let is_restored = maintenance.has_started();
            let action = MaintenanceAction::AddFinalizer { is_restored };
            plan.maintenances.push((index, action));
            return;
        }
        Stage::Cordon => {
            status.cordoned_before = cordoned_before(state, holds, maintenance);
            status.node_statuses = report::node_statuses(progress, &maintenance.nodes);
        }
        Stage::Drain => {
            status.cordoned_before = cordoned_before(state, holds, maintenance);
            let events = report::report_drain(progress, blockers, index, maintenance, &mut status);
            plan.events.extend(events);
        }
        Stage::Complete => {
            status.drain_status = None;
            status.blockers = Vec::new();
            keep_lost_nodes(state, maintenance, &mut status);
        }
        // It has touched nothing.
        Stage::Idle if maintenance.is_deleting && maintenance.has_finalizer => {
            plan.maintenances
                .push((index, MaintenanceAction::RemoveFinalizer));
            return;
        }
        Stage::Idle | Stage::Other(_) => return,
    }
    if !maintenance.has_started_stage() {
        status.stage_statuses.push(StageStatus {
            name: maintenance.stage.clone(),
            start_timestamp: Some(whole_seconds(progress.now)),
        });
        plan.events.push(MaintenanceEvent::StageStarted {
            maintenance: maintenance.name.clone(),
            stage: maintenance.stage.clone(),
        });
    }
    if status != maintenance.status {
        let action = MaintenanceAction::WriteStatus(Box::new(status));
        plan.maintenances.push((index, action));
    } else if maintenance.stage == Stage::Complete
        && maintenance.has_finalizer
        && is_completed(progress, holds, maintenance)
    {
        plan.events.push(MaintenanceEvent::Completed {
            maintenance: maintenance.name.clone(),
        });
        plan.maintenances
            .push((index, MaintenanceAction::RemoveFinalizer));
    }
}

/// The selected nodes that were unschedulable before their first maintenance.
fn cordoned_before(state: &ClusterState, holds: &[Hold], maintenance: &Maintenance) -> Vec<String> {
    let names: BTreeSet<&str> = maintenance
        .nodes
        .iter()
        .filter(|index| holds.get(**index).is_some_and(|hold| hold.was_unschedulable))
        .filter_map(|index| Some(state.nodes.get(*index)?.name.as_str()))
        .collect();
    names
        .into_iter()
        .take(MAX_CORDONED_BEFORE)
        .map(str::to_owned)
        .collect()
}

/// Leaves those nodes in the status of a completing maintenance whose record was lost and that are to be released.
fn keep_lost_nodes(state: &ClusterState, maintenance: &Maintenance, status: &mut NodeMaintenanceStatus) {
    if status.node_statuses.is_empty() {
        return;
    }
    let before = maintenance.cordoned_before();
    let lost: HashSet<&str> = state
        .nodes
        .iter()
        .filter(|node| node.record.is_none() || node.record_source == RecordSource::Recovered)
        .filter(|node| node.is_tainted || (node.is_unschedulable && !before.contains(node.name.as_str())))
        .map(|node| node.name.as_str())
        .collect();
    status
        .node_statuses
        .retain(|node| lost.contains(node.node_ref.name.as_str()));
}

/// Whether the maintenance holds no node any more, and no request made for it is left on its nodes.
fn is_completed(progress: &DrainProgress<'_>, holds: &[Hold], maintenance: &Maintenance) -> bool {
    let state = progress.state;
    let holds_nodes = state
        .nodes
        .iter()
        .filter_map(|node| node.record.as_ref())
        .any(|record| {
            let mut names = record.maintenances.iter();
            names.any(|one| one.is(&maintenance.name, &maintenance.uid))
        });
    let is_free = |node: usize| {
        progress.drainers_of(node).is_empty() && holds.get(node).is_some_and(|hold| hold.kept.is_empty())
    };
    let has_requests = state.pods.iter().any(|pod| {
        let request = state.requests.get(&pod.uid);
        maintenance.selects(pod.node)
            && is_free(pod.node)
            && request.is_some_and(RequestFacts::is_active_for_maintenance)
    });
    !holds_nodes && !has_requests
}

#[cfg(test)]
mod tests;
