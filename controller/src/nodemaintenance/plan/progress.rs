//! The progress of all drains: the levels of nodes, the entries that maintenances have passed, and which maintenances
//! hold back which. The terms are defined in [`super`].

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use drydock_proto::kinds::nodemaintenance::{DrainPlanEntry, PodType};
use jiff::Timestamp;

use super::returning::{Returning, ReturningByController, count_lives, drain_start};
use crate::nodemaintenance::drain_plan::{Entry, PlanPosition, TargetedFrom, entries};
use crate::nodemaintenance::model::{ClusterState, Maintenance, PodFacts, StaticPods};
use crate::nodemaintenance::node_state::DRAINED_MESSAGE;

/// Whether this much time has passed.
pub(super) fn has_passed(since: Timestamp, span: Duration, now: Timestamp) -> bool {
    since.checked_add(span).is_ok_and(|until| until <= now)
}

/// The progress of all drains.
pub(super) struct DrainProgress<'a> {
    pub(super) state: &'a ClusterState,
    /// The draining maintenances, the oldest first: indexes into `state.maintenances`. A *drainer* is an index into
    /// this list.
    pub(super) drainers: Vec<usize>,
    /// How many entries are passed, by drainer.
    passed: Vec<usize>,
    /// The drainers of each node.
    node_drainers: Vec<Vec<usize>>,
    pub(super) nodes: Vec<NodeProgress<'a>>,
    /// The governors of the nodes that a drainer waits for, by drainer.
    awaited: Vec<BTreeSet<usize>>,
    /// The recorded targets of each node.
    recorded: Vec<Vec<Entry>>,
    /// The drain targets of each node, computed when they are first asked for.
    targets: Vec<OnceCell<Vec<DrainPlanEntry>>>,
    /// From when each pod is a drain target; `None` for pods that are not drained.
    pub(super) targeted_from: Vec<Option<TargetedFrom>>,
    /// When the drain of each node began.
    pub(super) starts: Vec<Option<Timestamp>>,
    pub(super) now: Timestamp,
    /// When to plan again without a change.
    pub(super) next: Option<Timestamp>,
}

/// The progress of one node.
#[derive(Debug, Clone, Default)]
pub(super) struct NodeProgress<'a> {
    pub(super) level: Option<PlanPosition>,
    /// The earliest among the pods that are left and count.
    next_target: Option<TargetedFrom>,
    /// Pods without an active request of ours.
    pub(super) pending: i32,
    /// Pods with an active request of ours.
    pub(super) requested: i32,
    /// Static pods that do not count.
    pub(super) static_pods: usize,
    /// Pods that a plan leaves alone. They do not count.
    pub(super) spared: usize,
    /// DaemonSet pods that tolerate the drain taint, by namespace and name of the DaemonSet. They do not count.
    pub(super) tolerant_daemon_sets: BTreeMap<(&'a str, &'a str), usize>,
    /// The controllers whose pods have come back since the drain began.
    pub(super) returning: ReturningByController<'a>,
}

impl<'a> NodeProgress<'a> {
    /// Whether a targeted pod is left.
    pub(super) fn has_targeted_pods(&self) -> bool {
        self.next_target
            .as_ref()
            .is_some_and(|next| next.is_reached(self.level.as_ref()))
    }

    pub(super) fn is_drained(&self) -> bool {
        self.next_target.is_none() && !self.returning.values().any(|one| one.is_settling)
    }

    fn has_passed(&self, position: &PlanPosition) -> bool {
        self.level
            .as_ref()
            .is_some_and(|level| level > position || (level == position && !self.has_targeted_pods()))
    }

    fn count_pod(&mut self, state: &ClusterState, pod: &'a PodFacts, from: Option<&TargetedFrom>) {
        if pod.is_tolerant_daemon_set_pod {
            let name = pod.controller.as_ref().map_or("", |one| one.name.as_str());
            *self
                .tolerant_daemon_sets
                .entry((&pod.namespace, name))
                .or_insert(0) += 1;
            return;
        }
        if Some(pod.pod_type) == PodType::Static.rank() && state.static_pods == StaticPods::Reported {
            self.static_pods += 1;
            return;
        }
        let is_requested = state
            .requests
            .get(&pod.uid)
            .is_some_and(|request| request.is_active_for_maintenance());
        let counter = if is_requested {
            &mut self.requested
        } else {
            &mut self.pending
        };
        *counter = counter.saturating_add(1);
        if let Some(from) = from
            && self.next_target.as_ref().is_none_or(|next| from < next)
        {
            self.next_target = Some(from.clone());
        }
    }
}

impl<'a> DrainProgress<'a> {
    pub(super) fn new(state: &'a ClusterState, now: Timestamp) -> Self {
        let drainers = state.by_age(Maintenance::is_draining);
        let mut progress = Self {
            state,
            passed: vec![0; drainers.len()],
            node_drainers: vec![Vec::new(); state.nodes.len()],
            nodes: Vec::new(),
            awaited: Vec::new(),
            recorded: state
                .nodes
                .iter()
                .map(|node| {
                    let record = node.record.as_ref();
                    record.map(|record| entries(&record.targets)).unwrap_or_default()
                })
                .collect(),
            targets: vec![OnceCell::new(); state.nodes.len()],
            targeted_from: Vec::new(),
            starts: Vec::new(),
            now,
            next: None,
            drainers,
        };
        progress.nodes.extend(state.nodes.iter().map(|node| NodeProgress {
            level: node.record.as_ref().and_then(|record| record.reached.clone()),
            ..NodeProgress::default()
        }));
        for drainer in 0..progress.drainers.len() {
            let nodes = progress.maintenance(drainer).map(|one| one.nodes.as_slice());
            for node in nodes.unwrap_or_default() {
                if let Some(drainers) = progress.node_drainers.get_mut(*node) {
                    drainers.push(drainer);
                }
            }
        }
        progress.starts = (0..state.nodes.len())
            .map(|node| {
                let drainers = progress.drainers_of(node).iter();
                drain_start(drainers.filter_map(|drainer| progress.maintenance(*drainer)))
            })
            .collect();
        let returning = count_lives(state, &progress.starts, now);
        for (node, returning) in progress.nodes.iter_mut().zip(returning) {
            node.returning = returning;
        }
        progress.count_pods();
        progress.next = progress.find_next();
        progress.advance();
        progress.awaited = (0..progress.drainers.len())
            .map(|drainer| progress.find_awaited(drainer))
            .collect();
        progress
    }

    fn maintenance(&self, drainer: usize) -> Option<&'a Maintenance> {
        self.state.maintenances.get(*self.drainers.get(drainer)?)
    }

    /// The name of a drainer.
    pub(super) fn name(&self, drainer: usize) -> &'a str {
        self.maintenance(drainer).map_or("", |one| one.name.as_str())
    }

    pub(super) fn drainers_of(&self, node: usize) -> &[usize] {
        self.node_drainers
            .get(node)
            .map(Vec::as_slice)
            .unwrap_or_default()
    }

    pub(super) fn nodes_of(&self, drainer: usize) -> impl Iterator<Item = (usize, &NodeProgress<'a>)> {
        let nodes = self.maintenance(drainer).map(|one| one.nodes.as_slice());
        nodes
            .unwrap_or_default()
            .iter()
            .filter_map(|index| Some((*index, self.nodes.get(*index)?)))
    }

    /// Whether a drainer has passed an entry.
    fn has_begun(&self, drainer: usize) -> bool {
        self.passed.get(drainer).is_some_and(|passed| *passed > 0)
    }

    /// The current entry of a drainer; `None` when it has passed all.
    pub(super) fn current(&self, drainer: usize) -> Option<&'a PlanPosition> {
        let entries = &self.maintenance(drainer)?.entries;
        entries
            .get(*self.passed.get(drainer)?)
            .map(|entry| &entry.position)
    }

    /// Whether the pod, with this index in the cluster state, is to leave at the level that its node has reached.
    pub(super) fn is_targeted(&self, index: usize, pod: &PodFacts) -> bool {
        let level = self.nodes.get(pod.node).and_then(|node| node.level.as_ref());
        let from = self.targeted_from.get(index).and_then(Option::as_ref);
        from.is_some_and(|from| from.is_reached(level))
    }

    /// Whether the pod was created after the drain of its node began.
    pub(super) fn is_successor(&self, pod: &PodFacts) -> bool {
        match (pod.created, self.starts.get(pod.node).copied().flatten()) {
            (Some(created), Some(start)) => created > start,
            _ => false,
        }
    }

    /// Whether the pod is a successor that is not requested to leave before a pause has passed.
    pub(super) fn is_paused(&self, pod: &PodFacts) -> bool {
        self.is_successor(pod)
            && self
                .returning(pod)
                .and_then(Returning::paused_until)
                .is_some_and(|until| until > self.now)
    }

    fn returning(&self, pod: &PodFacts) -> Option<&Returning<'a>> {
        let controller = pod.controller.as_ref()?;
        self.nodes.get(pod.node)?.returning.get(controller.uid.as_str())
    }

    /// The next time at which a pause or a settling ends.
    fn find_next(&self) -> Option<Timestamp> {
        let settled = self
            .nodes
            .iter()
            .flat_map(|node| node.returning.values())
            .filter_map(Returning::settled_at);
        let resumed = self
            .state
            .pods
            .iter()
            .filter(|pod| self.is_successor(pod))
            .filter_map(|pod| self.returning(pod)?.paused_until());
        settled.chain(resumed).filter(|at| *at > self.now).min()
    }

    fn count_pods(&mut self) {
        let state = self.state;
        for pod in &state.pods {
            let is_successor = self.is_successor(pod);
            let from = self.find_targeted_from(pod);
            let is_spared = from.is_none() && self.is_spared(pod);
            if let Some(node) = self.nodes.get_mut(pod.node)
                && !pod.is_terminal
            {
                if is_spared {
                    node.spared += 1;
                    self.targeted_from.push(from);
                    continue;
                }
                node.count_pod(state, pod, from.as_ref());
                let controller = pod.controller.as_ref().filter(|_| is_successor && from.is_some());
                if let Some(returning) = controller.and_then(|one| node.returning.get_mut(one.uid.as_str())) {
                    returning.present.get_or_insert(pod);
                }
            }
            self.targeted_from.push(from);
        }
    }

    /// Whether a plan leaves the pod alone. It is then no pod that is left to drain.
    fn is_spared(&self, pod: &PodFacts) -> bool {
        self.plans_of(pod.node).any(|plan| pod.is_spared_by(plan))
    }

    /// The plans that drain a node.
    fn plans_of(&self, node: usize) -> impl Iterator<Item = &'a [Entry]> + Clone {
        let drainers = self.drainers_of(node).iter();
        drainers.filter_map(|drainer| Some(self.maintenance(*drainer)?.entries.as_slice()))
    }

    fn find_targeted_from(&self, pod: &PodFacts) -> Option<TargetedFrom> {
        if self.drainers_of(pod.node).is_empty() || pod.is_terminal {
            return None;
        }
        pod.targeted_from(self.recorded_targets(pod.node), self.plans_of(pod.node))
    }

    /// Raises the levels of nodes until none changes.
    fn advance(&mut self) {
        loop {
            self.passed = (0..self.drainers.len())
                .map(|drainer| self.count_passed(drainer))
                .collect();
            let mut has_changed = false;
            for node in 0..self.nodes.len() {
                has_changed |= self.raise(node);
            }
            if !has_changed {
                return;
            }
        }
    }

    fn count_passed(&self, drainer: usize) -> usize {
        let Some(maintenance) = self.maintenance(drainer).filter(|one| !one.nodes.is_empty()) else {
            return 0;
        };
        maintenance
            .entries
            .iter()
            .take_while(|entry| {
                self.nodes_of(drainer)
                    .all(|(_, node)| node.has_passed(&entry.position))
            })
            .count()
    }

    /// Raises the level of a node to the lowest current entry among its drainers. Returns whether it changed.
    fn raise(&mut self, node: usize) -> bool {
        let drainers = self.drainers_of(node);
        let lowest = drainers.iter().filter_map(|drainer| self.current(*drainer)).min();
        // Drainers that have passed all entries are ignored. When all have, the level is the last of their entries.
        let last = || {
            let entries = drainers
                .iter()
                .filter_map(|drainer| self.maintenance(*drainer)?.entries.last());
            entries.map(|entry| &entry.position).max()
        };
        let Some(lowest) = lowest.or_else(last).cloned() else {
            return false;
        };
        let Some(node) = self.nodes.get_mut(node) else {
            return false;
        };
        let is_higher = node.level.as_ref().is_none_or(|level| *level < lowest);
        if is_higher {
            node.level = Some(lowest);
        }
        is_higher
    }

    /// The drainers whose current entry the node has reached.
    fn governors(&self, node: usize) -> BTreeSet<usize> {
        let level = self.nodes.get(node).and_then(|node| node.level.as_ref());
        let governs = |drainer: &usize| match (self.current(*drainer), level) {
            (Some(current), Some(level)) => current <= level,
            _ => false,
        };
        self.drainers_of(node).iter().copied().filter(governs).collect()
    }

    fn find_awaited(&self, drainer: usize) -> BTreeSet<usize> {
        let Some(current) = self.current(drainer) else {
            return BTreeSet::new();
        };
        self.nodes_of(drainer)
            .filter(|(_, node)| !node.has_passed(current))
            .flat_map(|(index, _)| self.governors(index))
            .collect()
    }

    fn names(&self, drainers: &BTreeSet<usize>) -> String {
        let names: Vec<_> = drainers.iter().map(|drainer| self.name(*drainer)).collect();
        names.join(", ")
    }

    fn draining_message(&self, limiters: &BTreeSet<usize>) -> String {
        if limiters.is_empty() {
            return "Draining".to_owned();
        }
        format!("Draining (limited by {})", self.names(limiters))
    }

    fn waiting_message(&self, awaited: &BTreeSet<usize>) -> String {
        if awaited.is_empty() {
            return "Draining".to_owned();
        }
        format!("Waiting for {}.", self.names(awaited))
    }

    pub(super) fn node_message(&self, index: usize) -> String {
        let drainers = self.drainers_of(index);
        let Some(node) = self.nodes.get(index).filter(|_| !drainers.is_empty()) else {
            return String::new();
        };
        if node.is_drained() {
            return DRAINED_MESSAGE.to_owned();
        }
        let governors = self.governors(index);
        if !node.has_targeted_pods() {
            let awaited = governors
                .iter()
                .filter_map(|drainer| self.awaited.get(*drainer))
                .flatten()
                .copied()
                .collect();
            return self.waiting_message(&awaited);
        }
        let is_limited = drainers.iter().any(|drainer| {
            let is_older = governors.last().is_some_and(|last| drainer < last);
            !governors.contains(drainer) && (self.has_begun(*drainer) || is_older)
        });
        let limiters = if is_limited { governors } else { BTreeSet::new() };
        self.draining_message(&limiters)
    }

    pub(super) fn maintenance_message(&self, drainer: usize) -> String {
        if self.nodes_of(drainer).next().is_none() {
            return String::new();
        }
        if self.nodes_of(drainer).all(|(_, node)| node.is_drained()) {
            return DRAINED_MESSAGE.to_owned();
        }
        if !self.nodes_of(drainer).any(|(_, node)| node.has_targeted_pods()) {
            let mut awaited = self.awaited.get(drainer).cloned().unwrap_or_default();
            awaited.remove(&drainer);
            return self.waiting_message(&awaited);
        }
        let has_begun = self.has_begun(drainer);
        let current = self.current(drainer);
        let limiters = self
            .nodes_of(drainer)
            .filter(|(_, node)| {
                current.is_none_or(|current| node.level.as_ref().is_none_or(|level| level < current))
            })
            .flat_map(|(index, _)| self.governors(index))
            .filter(|limiter| *limiter != drainer && (!has_begun || *limiter < drainer))
            .collect();
        self.draining_message(&limiters)
    }

    /// The drain targets of a node: per pod type the entry without a selector, then one entry per selector.
    pub(super) fn targets(&self, index: usize) -> Vec<DrainPlanEntry> {
        let cached = self.targets.get(index);
        cached
            .map(|targets| targets.get_or_init(|| self.find_targets(index)).clone())
            .unwrap_or_default()
    }

    fn recorded_targets(&self, node: usize) -> &[Entry] {
        self.recorded.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    fn find_targets(&self, index: usize) -> Vec<DrainPlanEntry> {
        let level = self.nodes.get(index).and_then(|node| node.level.as_ref());
        let recorded = self.recorded_targets(index);
        let planned = self
            .drainers_of(index)
            .iter()
            .filter_map(|drainer| self.maintenance(*drainer))
            .flat_map(|maintenance| maintenance.entries.iter())
            .map(|entry| (entry, level.is_some_and(|level| entry.position <= *level)));
        // By pod type and selector: the highest priority reached, and the entry.
        let mut priorities: BTreeMap<(usize, &str), i32> = BTreeMap::new();
        let mut wires: BTreeMap<(usize, &str), &DrainPlanEntry> = BTreeMap::new();
        for (entry, is_reached) in planned.chain(recorded.iter().map(|entry| (entry, true))) {
            let selection = (entry.position.pod_type, entry.position.selector.as_str());
            wires.entry(selection).or_insert(&entry.wire);
            if is_reached {
                let priority = priorities.entry(selection).or_insert(entry.position.priority);
                *priority = (*priority).max(entry.position.priority);
            }
        }
        wires
            .into_iter()
            .filter_map(|(selection, wire)| {
                let unselective = priorities.get(&(selection.0, ""));
                let pod_priority = *priorities.get(&selection).max(unselective)?;
                Some(DrainPlanEntry {
                    pod_priority,
                    ..wire.clone()
                })
            })
            .collect()
    }
}
