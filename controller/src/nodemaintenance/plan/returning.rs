//! Controllers whose pods come back to a node that is drained. The terms are defined in
//! [`successor`](crate::nodemaintenance::successor).

use std::collections::{BTreeMap, HashMap};

use drydock_proto::kinds::nodemaintenance::Stage;
use jiff::Timestamp;

use crate::nodemaintenance::model::{ClusterState, Maintenance, PodFacts};
use crate::nodemaintenance::successor::{LIVES_UNTIL_PAUSE, Life, Origin, SETTLING, pause};

/// The successors of one controller on one node.
#[derive(Debug, Clone)]
pub(super) struct Returning<'a> {
    /// One of the lives, for the names in it.
    pub(super) life: &'a Life,
    /// When a life ended last.
    ended_at: Option<Timestamp>,
    /// When a life ended last, or the end of one was requested that has not ended.
    last_at: Timestamp,
    /// How many successors were requested to leave. Those that have not ended count: a controller creates the next pod
    /// as soon as one is being deleted, and that may take long.
    pub(super) lives: u32,
    /// When the eviction of the first successor was requested.
    pub(super) first_requested_at: Timestamp,
    /// One that is on the node and is to leave.
    pub(super) present: Option<&'a PodFacts>,
    /// Whether a life ended only now or is about to end, so that another may follow.
    pub(super) is_settling: bool,
}

impl Returning<'_> {
    /// Whether it holds the drain and is to be reported.
    pub(super) fn is_blocking(&self) -> bool {
        self.lives >= LIVES_UNTIL_PAUSE && (self.present.is_some() || self.is_settling)
    }

    /// What has come back, where and how often, and when it is requested to leave again.
    pub(super) fn describe(&self, now: Timestamp) -> String {
        let Origin { node, kind, name, .. } = &self.life.origin;
        let (namespace, lives) = (&self.life.namespace, self.lives);
        let again = self.paused_until().filter(|until| *until > now);
        let again = again.map(|until| format!("; it is requested to leave again at {until}"));
        format!(
            "{kind} {namespace}/{name} has come back to node {node} {lives} times (ComesBack){}",
            again.unwrap_or_default()
        )
    }

    /// From when the node counts as drained if no successor is left.
    pub(super) fn settled_at(&self) -> Option<Timestamp> {
        self.ended_at?.checked_add(SETTLING).ok()
    }

    /// Until when no successor is requested to leave.
    pub(super) fn paused_until(&self) -> Option<Timestamp> {
        self.last_at.checked_add(pause(self.lives)).ok()
    }
}

/// The controllers that come back, by UID.
pub(super) type ReturningByController<'a> = BTreeMap<&'a str, Returning<'a>>;

/// When the drain of a node began: the earliest start among the maintenances that drain it.
pub(super) fn drain_start<'a>(drainers: impl Iterator<Item = &'a Maintenance>) -> Option<Timestamp> {
    drainers
        .flat_map(|maintenance| &maintenance.status.stage_statuses)
        .filter(|stage| stage.name == Stage::Drain)
        .filter_map(|stage| Some(stage.start_timestamp.as_ref()?.0))
        .min()
}

/// The controllers that have come back since the drain of each node began. `starts` and the result are by node.
pub(super) fn count_lives<'a>(
    state: &'a ClusterState,
    starts: &[Option<Timestamp>],
    now: Timestamp,
) -> Vec<ReturningByController<'a>> {
    let mut returning: Vec<ReturningByController<'a>> = vec![BTreeMap::new(); state.nodes.len()];
    if state.lives.is_empty() {
        return returning;
    }
    let indexes: HashMap<&str, usize> = state
        .nodes
        .iter()
        .enumerate()
        .map(|(index, node)| (node.name.as_str(), index))
        .collect();
    for life in &state.lives {
        let Some(index) = indexes.get(life.origin.node.as_str()) else {
            continue;
        };
        let start = starts.get(*index).copied().flatten();
        let Some(controllers) = returning
            .get_mut(*index)
            .filter(|_| start.is_some_and(|start| life.requested_at >= start))
        else {
            continue;
        };
        let entry = controllers.entry(&life.origin.uid).or_insert(Returning {
            life,
            ended_at: None,
            last_at: life.requested_at,
            lives: 0,
            first_requested_at: life.requested_at,
            present: None,
            is_settling: false,
        });
        entry.last_at = entry.last_at.max(life.ended_at.unwrap_or(life.requested_at));
        if let Some(ended_at) = life.ended_at {
            entry.ended_at = entry.ended_at.max(Some(ended_at));
        } else {
            entry.is_settling = true;
        }
        if !life.origin.is_first {
            entry.first_requested_at = match entry.lives {
                0 => life.requested_at,
                _ => entry.first_requested_at.min(life.requested_at),
            };
            entry.lives = entry.lives.saturating_add(1);
        }
    }
    for controller in returning.iter_mut().flat_map(BTreeMap::values_mut) {
        controller.is_settling |= controller.settled_at().is_some_and(|until| until > now);
    }
    returning
}
