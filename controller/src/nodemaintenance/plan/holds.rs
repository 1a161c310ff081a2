//! Which maintenances hold each node, and whether the node was schedulable before them.
//!
//! A maintenance that a record names ends its hold by completing, or by no longer selecting the node. One that is not
//! found any more has vanished: its finalizer was taken away, or the store was lost. Nobody knows whether the node may
//! take pods, so it stays as it is.

use std::collections::{HashMap, HashSet};

use drydock_proto::kinds::nodemaintenance::MAX_CORDONED_BEFORE;

use crate::nodemaintenance::model::{ClusterState, Maintenance, NodeFacts, RecordSource};
use crate::nodemaintenance::node_state::HoldingMaintenance;

/// What holds one node.
#[derive(Debug, Clone, Default)]
pub(super) struct Hold {
    /// The active maintenances that select the node, the oldest first.
    pub(super) active: Vec<HoldingMaintenance>,
    /// Other maintenances that the record names and that have not ended.
    pub(super) kept: Vec<HoldingMaintenance>,
    /// The names of those kept ones that vanished.
    pub(super) vanished: Vec<String>,
    /// Whether the node was unschedulable before its first maintenance.
    pub(super) was_unschedulable: bool,
    /// Whether an active maintenance has still to record whether the node was unschedulable, before the node is touched.
    pub(super) is_unrecorded: bool,
}

/// How a maintenance that a record names holds the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HoldState {
    /// It is among the active ones.
    Active,
    /// Its hold has ended.
    Ended,
    /// It is about to become active.
    Starting,
    /// It vanished.
    Vanished,
}

/// What holds each node, by node.
pub(super) fn find_holds(state: &ClusterState) -> Vec<Hold> {
    let mut holds: Vec<Hold> = vec![Hold::default(); state.nodes.len()];
    let cordoned_before: Vec<HashSet<&str>> = state
        .maintenances
        .iter()
        .map(Maintenance::cordoned_before)
        .collect();
    let by_name: HashMap<&str, usize> = state
        .maintenances
        .iter()
        .enumerate()
        .map(|(index, one)| (one.name.as_str(), index))
        .collect();
    let knows = |maintenance: usize, node: &NodeFacts| {
        cordoned_before
            .get(maintenance)
            .is_some_and(|nodes| nodes.contains(node.name.as_str()))
    };
    for (index, (node, hold)) in state.nodes.iter().zip(&mut holds).enumerate() {
        let Some(record) = &node.record else {
            hold.was_unschedulable = node.is_unschedulable;
            continue;
        };
        hold.was_unschedulable = record.was_unschedulable;
        for named in &record.maintenances {
            let found = by_name.get(named.name.as_str()).copied();
            let maintenance = found.and_then(|found| state.maintenances.get(found));
            // A recovered record has taken `cordonedBefore` into account, and whether the node is the same one.
            if node.record_source != RecordSource::Recovered {
                hold.was_unschedulable |= found.is_some_and(|found| knows(found, node));
            }
            match hold_state(maintenance, named, index) {
                HoldState::Active | HoldState::Ended => {}
                HoldState::Starting => hold.kept.push(named.clone()),
                HoldState::Vanished => {
                    hold.kept.push(named.clone());
                    hold.vanished.push(named.name.clone());
                }
            }
        }
    }
    for index in state.by_age(Maintenance::is_active) {
        let Some(maintenance) = state.maintenances.get(index) else {
            continue;
        };
        for node_index in &maintenance.nodes {
            let (Some(node), Some(hold)) = (state.nodes.get(*node_index), holds.get_mut(*node_index)) else {
                continue;
            };
            let has_room = maintenance.status.cordoned_before.len() < MAX_CORDONED_BEFORE;
            let is_new_and_cordoned = node.record.is_none() && node.is_unschedulable;
            hold.is_unrecorded |= is_new_and_cordoned && !knows(index, node) && has_room;
            // Another node has the name now. What the status says about its predecessor would count against it later.
            let is_recovered = node.record_source == RecordSource::Recovered;
            hold.is_unrecorded |= is_recovered && !hold.was_unschedulable && knows(index, node);
            hold.active.push(HoldingMaintenance {
                name: maintenance.name.clone(),
                uid: maintenance.uid.clone(),
                stage: maintenance.stage.clone(),
            });
        }
    }
    holds
}

fn hold_state(maintenance: Option<&Maintenance>, named: &HoldingMaintenance, node: usize) -> HoldState {
    let Some(maintenance) = maintenance else {
        return HoldState::Vanished;
    };
    let is_same = named.is(&maintenance.name, &maintenance.uid);
    let is_ours = is_same || maintenance.selects(node);
    if maintenance.is_active() {
        match (maintenance.selects(node), is_same) {
            (true, _) => HoldState::Active,
            (false, true) => HoldState::Ended,
            (false, false) => HoldState::Vanished,
        }
    } else if maintenance.is_ending() && is_ours {
        HoldState::Ended
    } else if maintenance.is_new() && is_ours {
        HoldState::Starting
    } else {
        HoldState::Vanished
    }
}
