//! Recovers the records of nodes whose annotation was lost, from the status of their maintenances. A pure function.
//!
//! A maintenance lists a node in its status only after the node has the record. A node that is listed and has none has
//! lost it. Without recovery the drain would begin anew, and nobody would know whether the node was schedulable before.

use std::collections::{HashMap, HashSet};

use super::drain_plan::{Entry, PlanPosition, entries};
use super::model::{ClusterState, Maintenance, RecordSource};
use super::node_state::{HoldingMaintenance, NodeRecord};
use drydock_proto::kinds::nodemaintenance::{DrainPlanEntry, Stage};

/// Sets the lost records of all nodes.
pub fn recover_records(state: &mut ClusterState) {
    let lost: HashMap<&str, usize> = state
        .nodes
        .iter()
        .enumerate()
        .filter(|(_, node)| node.record.is_none())
        .map(|(index, node)| (node.name.as_str(), index))
        .collect();
    if lost.is_empty() {
        return;
    }
    let mut recovered: HashMap<usize, NodeRecord> = HashMap::new();
    for maintenance in &state.maintenances {
        let cordoned_before = maintenance.cordoned_before();
        for status in &maintenance.status.node_statuses {
            let name = status.node_ref.name.as_str();
            let Some(index) = lost.get(name).copied() else {
                continue;
            };
            if !has_touched(state, maintenance, &cordoned_before, index) {
                continue;
            }
            let record = recovered.entry(index).or_default();
            record.maintenances.push(HoldingMaintenance {
                name: maintenance.name.clone(),
                uid: maintenance.uid.clone(),
                stage: maintenance.stage.clone(),
            });
            record.targets.extend(status.drain_targets.iter().cloned());
            record.reached = record
                .reached
                .take()
                .max(last_reached(&maintenance.entries, &status.drain_targets));
            // A node that is schedulable now is a new one of this name, or somebody wants it to be.
            let is_unschedulable = state.nodes.get(index).is_some_and(|node| node.is_unschedulable);
            record.was_unschedulable |= is_unschedulable && cordoned_before.contains(name);
        }
    }
    for (index, record) in recovered {
        if let Some(node) = state.nodes.get_mut(index) {
            node.record = Some(record);
            node.record_source = RecordSource::Recovered;
        }
    }
}

/// Whether the node, which has no record, still shows the work of the maintenance that lists it.
fn has_touched(
    state: &ClusterState,
    maintenance: &Maintenance,
    cordoned_before: &HashSet<&str>,
    index: usize,
) -> bool {
    let Some(node) = state.nodes.get(index) else {
        return false;
    };
    if maintenance.is_active() {
        return maintenance.selects(index);
    }
    // The status of a completing maintenance lists only the nodes whose record was lost.
    let is_cordoned_by_it = node.is_unschedulable && !cordoned_before.contains(node.name.as_str());
    maintenance.stage == Stage::Complete
        && maintenance.has_started_stage()
        && (node.is_tainted || is_cordoned_by_it)
}

/// The last entry of a plan that the targets of a node contain.
fn last_reached(plan: &[Entry], targets: &[DrainPlanEntry]) -> Option<PlanPosition> {
    let targets = entries(targets);
    plan.iter()
        .rev()
        .map(|entry| &entry.position)
        .find(|position| {
            targets.iter().map(|target| &target.position).any(|target| {
                target.pod_type == position.pod_type
                    && target.selector == position.selector
                    && target.priority >= position.priority
            })
        })
        .cloned()
}
