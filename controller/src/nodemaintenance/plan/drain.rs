//! Where does every drain stand? Levels of nodes, progress of maintenances, and how they hold each other back.

use std::collections::{BTreeMap, BTreeSet};

use drydock_proto::kinds::nodemaintenance::{DrainPlanEntry, PodType};

use super::{Entry, Key, Maintenance, Pod, RequestState, StaticPods, World, by_age, entries};

/// Where every drain stands.
pub(super) struct Drain<'a> {
    pub(super) world: &'a World,
    /// Maintenances that drain, the oldest first: indexes into the world's. A *place* is an index into this.
    pub(super) order: Vec<usize>,
    /// How many entries are passed, by place.
    passed: Vec<usize>,
    /// Places, by node.
    drainers: Vec<Vec<usize>>,
    pub(super) nodes: Vec<NodeDrain>,
    /// The governors of the nodes a maintenance still waits for, by place.
    awaited: Vec<BTreeSet<usize>>,
    /// From which level on a pod is asked to leave, by pod.
    pub(super) pod_keys: Vec<Option<PodKey>>,
}

/// From which level on a pod is asked to leave.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PodKey {
    /// It was a target before, and stays one.
    Always,
    From(Key),
}

#[derive(Debug, Clone, Default)]
pub(super) struct NodeDrain {
    pub(super) level: Option<Key>,
    /// The lowest among the pods that are left and count.
    lowest: Option<PodKey>,
    pub(super) pending: i32,
    pub(super) active: i32,
    pub(super) static_left: usize,
}

impl NodeDrain {
    /// Whether a targeted pod is left.
    pub(super) fn is_busy(&self) -> bool {
        match (&self.lowest, &self.level) {
            (Some(PodKey::Always), _) => true,
            (Some(PodKey::From(key)), Some(level)) => key <= level,
            _ => false,
        }
    }

    pub(super) fn is_drained(&self) -> bool {
        self.lowest.is_none()
    }

    fn has_passed(&self, key: &Key) -> bool {
        self.level
            .as_ref()
            .is_some_and(|level| level > key || (level == key && !self.is_busy()))
    }
}

impl<'a> Drain<'a> {
    pub(super) fn resolve(world: &'a World) -> Self {
        let order = by_age(world, Maintenance::is_draining);
        let mut drain = Self {
            world,
            passed: vec![0; order.len()],
            drainers: vec![Vec::new(); world.nodes.len()],
            nodes: Vec::new(),
            awaited: Vec::new(),
            pod_keys: Vec::new(),
            order,
        };
        drain.nodes.extend(world.nodes.iter().map(|node| NodeDrain {
            level: node.record.as_ref().and_then(|record| record.reached.clone()),
            ..NodeDrain::default()
        }));
        for place in 0..drain.order.len() {
            let nodes = drain.maintenance(place).map(|one| one.nodes.as_slice());
            for node in nodes.unwrap_or_default() {
                if let Some(drainers) = drain.drainers.get_mut(*node) {
                    drainers.push(place);
                }
            }
        }
        drain.count_pods();
        drain.advance();
        drain.awaited = (0..drain.order.len())
            .map(|place| drain.find_awaited(place))
            .collect();
        drain
    }

    fn maintenance(&self, place: usize) -> Option<&'a Maintenance> {
        self.world.maintenances.get(*self.order.get(place)?)
    }

    pub(super) fn name(&self, place: usize) -> &'a str {
        self.maintenance(place).map_or("", |one| one.name.as_str())
    }

    pub(super) fn drainers_of(&self, node: usize) -> &[usize] {
        self.drainers.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    pub(super) fn nodes_of(&self, place: usize) -> impl Iterator<Item = (usize, &NodeDrain)> {
        let nodes = self.maintenance(place).map(|one| one.nodes.as_slice());
        nodes
            .unwrap_or_default()
            .iter()
            .filter_map(|index| Some((*index, self.nodes.get(*index)?)))
    }

    fn has_begun(&self, place: usize) -> bool {
        self.passed.get(place).is_some_and(|passed| *passed > 0)
    }

    /// The entry a maintenance is at; `None` when it has passed all.
    pub(super) fn current(&self, place: usize) -> Option<&'a Key> {
        let entries = &self.maintenance(place)?.entries;
        entries.get(*self.passed.get(place)?).map(|entry| &entry.key)
    }

    fn count_pods(&mut self) {
        let world = self.world;
        let earlier: Vec<Vec<Entry>> = world
            .nodes
            .iter()
            .map(|node| {
                node.record
                    .as_ref()
                    .map(|record| entries(&record.targets))
                    .unwrap_or_default()
            })
            .collect();
        for pod in &world.pods {
            let earlier = earlier.get(pod.node).map(Vec::as_slice).unwrap_or_default();
            let key = self.pod_key(pod, earlier);
            if let Some(node) = self.nodes.get_mut(pod.node)
                && !pod.is_terminal
            {
                count_pod(world, pod, key.as_ref(), node);
            }
            self.pod_keys.push(key);
        }
    }

    fn pod_key(&self, pod: &Pod, earlier: &[Entry]) -> Option<PodKey> {
        let drainers = self.drainers_of(pod.node);
        if drainers.is_empty() || pod.is_terminal {
            return None;
        }
        if earlier.iter().any(|entry| entry.matches(pod)) {
            return Some(PodKey::Always);
        }
        drainers
            .iter()
            .filter_map(|place| {
                self.maintenance(*place)?
                    .entries
                    .iter()
                    .find(|entry| entry.matches(pod))
            })
            .map(|entry| PodKey::From(entry.key.clone()))
            .min()
    }

    /// Raises levels until nothing moves.
    fn advance(&mut self) {
        loop {
            self.passed = (0..self.order.len())
                .map(|place| self.count_passed(place))
                .collect();
            let mut has_moved = false;
            for node in 0..self.nodes.len() {
                has_moved |= self.raise(node);
            }
            if !has_moved {
                return;
            }
        }
    }

    fn count_passed(&self, place: usize) -> usize {
        let Some(maintenance) = self.maintenance(place).filter(|one| !one.nodes.is_empty()) else {
            return 0;
        };
        maintenance
            .entries
            .iter()
            .take_while(|entry| self.nodes_of(place).all(|(_, node)| node.has_passed(&entry.key)))
            .count()
    }

    fn raise(&mut self, node: usize) -> bool {
        let drainers = self.drainers_of(node);
        let lowest = drainers.iter().filter_map(|place| self.current(*place)).min();
        // Who has passed everything does not hold a node back; when all have, their last entries are reached.
        let last = || {
            let entries = drainers
                .iter()
                .filter_map(|place| self.maintenance(*place)?.entries.last());
            entries.map(|entry| &entry.key).max()
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
        let governs = |place: &usize| match (self.current(*place), level) {
            (Some(current), Some(level)) => current <= level,
            _ => false,
        };
        self.drainers_of(node).iter().copied().filter(governs).collect()
    }

    fn find_awaited(&self, place: usize) -> BTreeSet<usize> {
        let Some(current) = self.current(place) else {
            return BTreeSet::new();
        };
        self.nodes_of(place)
            .filter(|(_, node)| !node.has_passed(current))
            .flat_map(|(index, _)| self.governors(index))
            .collect()
    }

    fn names(&self, places: &BTreeSet<usize>) -> String {
        let names: Vec<_> = places.iter().map(|place| self.name(*place)).collect();
        names.join(", ")
    }

    fn draining(&self, limiters: &BTreeSet<usize>) -> String {
        if limiters.is_empty() {
            return "Draining".to_owned();
        }
        format!("Draining (limited by {})", self.names(limiters))
    }

    fn waiting(&self, awaited: &BTreeSet<usize>) -> String {
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
            return "Drained".to_owned();
        }
        let governors = self.governors(index);
        if !node.is_busy() {
            let awaited = governors
                .iter()
                .filter_map(|place| self.awaited.get(*place))
                .flatten()
                .copied()
                .collect();
            return self.waiting(&awaited);
        }
        let is_limited = drainers.iter().any(|place| {
            let is_older = governors.last().is_some_and(|last| place < last);
            !governors.contains(place) && (self.has_begun(*place) || is_older)
        });
        self.draining(if is_limited { &governors } else { &NOBODY })
    }

    pub(super) fn maintenance_message(&self, place: usize) -> String {
        if self.nodes_of(place).next().is_none() {
            return String::new();
        }
        if self.nodes_of(place).all(|(_, node)| node.is_drained()) {
            return "Drained".to_owned();
        }
        if !self.nodes_of(place).any(|(_, node)| node.is_busy()) {
            let mut awaited = self.awaited.get(place).cloned().unwrap_or_default();
            awaited.remove(&place);
            return self.waiting(&awaited);
        }
        let has_begun = self.has_begun(place);
        let current = self.current(place);
        let limiters = self
            .nodes_of(place)
            .filter(|(_, node)| {
                current.is_none_or(|current| node.level.as_ref().is_none_or(|level| level < current))
            })
            .flat_map(|(index, _)| self.governors(index))
            .filter(|limiter| *limiter != place && (!has_begun || *limiter < place))
            .collect();
        self.draining(&limiters)
    }

    /// Which pods of the node are asked to leave: per type the entry without selector, then each selector.
    pub(super) fn targets(&self, index: usize) -> Vec<DrainPlanEntry> {
        let level = self.nodes.get(index).and_then(|node| node.level.as_ref());
        let record = self.world.nodes.get(index).and_then(|node| node.record.as_ref());
        let earlier = record.map(|record| entries(&record.targets)).unwrap_or_default();
        let planned = self
            .drainers_of(index)
            .iter()
            .filter_map(|place| self.maintenance(*place))
            .flat_map(|maintenance| &maintenance.entries)
            .map(|entry| (entry, level.is_some_and(|level| entry.key <= *level)));
        let mut reached: BTreeMap<(usize, &str), i32> = BTreeMap::new();
        let mut kinds: BTreeMap<(usize, &str), &DrainPlanEntry> = BTreeMap::new();
        for (entry, is_reached) in planned.chain(earlier.iter().map(|entry| (entry, true))) {
            let kind = (entry.key.pod_type, entry.key.selector.as_str());
            kinds.entry(kind).or_insert(&entry.wire);
            if is_reached {
                let priority = reached.entry(kind).or_insert(entry.key.priority);
                *priority = (*priority).max(entry.key.priority);
            }
        }
        kinds
            .into_iter()
            .filter_map(|(kind, wire)| {
                let everybody = reached.get(&(kind.0, ""));
                let pod_priority = *reached.get(&kind).max(everybody)?;
                Some(DrainPlanEntry {
                    pod_priority,
                    ..wire.clone()
                })
            })
            .collect()
    }
}

static NOBODY: BTreeSet<usize> = BTreeSet::new();

fn count_pod(world: &World, pod: &Pod, key: Option<&PodKey>, node: &mut NodeDrain) {
    if Some(pod.pod_type) == PodType::Static.rank() && world.static_pods == StaticPods::Reported {
        node.static_left += 1;
        return;
    }
    let is_asked = world
        .requests
        .get(&pod.uid)
        .is_some_and(|request| request.is_ours && request.state == RequestState::Active);
    let counter = if is_asked {
        &mut node.active
    } else {
        &mut node.pending
    };
    *counter = counter.saturating_add(1);
    if let Some(key) = key
        && node.lowest.as_ref().is_none_or(|lowest| key < lowest)
    {
        node.lowest = Some(key.clone());
    }
}
