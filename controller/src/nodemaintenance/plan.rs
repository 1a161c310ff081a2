//! What is to be done about nodes under maintenance? A pure function of all maintenances, nodes, pods and requests
//! at once, since maintenances that share nodes hold each other back. Start at [`plan`].
//!
//! # Levels
//!
//! Entries of all drain plans stand in one order ([`Key`]). A node's *level* is the last entry it has reached:
//! pods up to it are asked to leave. Levels are remembered on the node and never go back. A maintenance's *current*
//! entry is the first one that some node of it has not passed; a node has passed an entry when its level is beyond
//! it, or is that entry and no targeted pod is left. The level of a node rises to the lowest current entry among
//! the maintenances that drain it: the slowest plan rules a shared node.
//!
//! # Messages
//!
//! The maintenances whose current entry a node has reached *govern* it. Where others would go on, the node is
//! *limited by* its governors. A maintenance says so of itself while it has not begun its own plan, or when an
//! older one is in the way; the node says so when the one held back is older or has progressed. A node without
//! targeted pods *waits for* the governors of the nodes that its own governors still wait for.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use drydock_machinery::selector::Selector;
use drydock_proto::kinds::nodemaintenance::{
    DRAINED, DrainPlanEntry, DrainStatus, NodeMaintenanceStatus, NodeReference, NodeStatus, PodType, Stage,
    StageStatus,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use serde::{Deserialize, Serialize};

use super::taints::{NodeRecord, Participant};

/// How many bytes of a status may be node statuses, so that objects stay well below what storage takes.
const NODE_STATUS_BYTES: usize = 600 * 1024;

/// The place of an entry in the order of all plans: by type, then priority; entries with a selector before the one
/// without; those in the order of their plan.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Key {
    /// The rank of the pod type.
    #[serde(default)]
    pub pod_type: usize,
    /// The priority.
    #[serde(default)]
    pub priority: i32,
    /// Whether it has no selector.
    #[serde(default)]
    pub is_bare: bool,
    /// Its place among the selector entries of the same type and priority in its plan.
    #[serde(default)]
    pub ordinal: usize,
    /// The selector, as JSON.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub selector: String,
}

/// An entry of a drain plan.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its place.
    pub key: Key,
    /// As it is written.
    pub wire: DrainPlanEntry,
    /// `None` matches no pod: the selector cannot be understood.
    selector: Option<Selector>,
}

impl Entry {
    fn matches(&self, pod: &Pod) -> bool {
        let label = |key: &str| pod.labels.get(key).map(String::as_str);
        self.key.pod_type == pod.pod_type
            && pod.priority <= self.key.priority
            && self
                .selector
                .as_ref()
                .is_some_and(|selector| selector.matches(label))
    }
}

/// The entries of a plan in order. Entries of types this release does not know are left out.
#[must_use]
pub fn entries(plan: &[DrainPlanEntry]) -> Vec<Entry> {
    let mut ordinals: HashMap<(usize, i32), usize> = HashMap::new();
    let mut entries = Vec::with_capacity(plan.len());
    for wire in plan {
        let Some(pod_type) = wire.pod_type.rank() else {
            continue;
        };
        let text = wire
            .pod_selector
            .as_ref()
            .and_then(|selector| serde_json::to_string(selector).ok());
        let is_bare = wire.pod_selector.is_none();
        let next = ordinals.entry((pod_type, wire.pod_priority)).or_insert(0);
        let ordinal = if is_bare { 0 } else { *next };
        *next += usize::from(!is_bare);
        entries.push(Entry {
            key: Key {
                pod_type,
                priority: wire.pod_priority,
                is_bare,
                ordinal,
                selector: text.unwrap_or_default(),
            },
            wire: wire.clone(),
            selector: match &wire.pod_selector {
                None => Some(Selector::everything()),
                Some(selector) => Selector::try_from(selector).ok(),
            },
        });
    }
    entries.sort_by(|a, b| a.key.cmp(&b.key));
    entries
}

/// Whether the pod is among those the targets ask to leave.
#[must_use]
pub fn is_targeted(targets: &[DrainPlanEntry], pod: &Pod) -> bool {
    entries(targets).iter().any(|entry| entry.matches(pod))
}

/// Whether static pods hold a drain up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum StaticPods {
    /// They are reported, and a node counts as drained with them.
    #[default]
    Reported,
    /// They must be gone too.
    Required,
}

/// A maintenance.
#[derive(Debug, Clone)]
pub struct Maintenance {
    /// Its name.
    pub name: String,
    /// When it was created: the older one comes first.
    pub created: Timestamp,
    /// Its generation.
    pub generation: Option<i64>,
    /// The stage asked for.
    pub stage: Stage,
    /// Whether it is being deleted.
    pub is_deleting: bool,
    /// Whether our finalizer is on it.
    pub has_finalizer: bool,
    /// Its plan, in order.
    pub entries: Vec<Entry>,
    /// The nodes it selects: indexes into [`World::nodes`].
    pub nodes: Vec<usize>,
    /// What was reported.
    pub status: NodeMaintenanceStatus,
}

impl Maintenance {
    /// Whether it holds nodes out of service. Without the finalizer nobody would bring them back, so they are
    /// left alone until it is there.
    fn is_active(&self) -> bool {
        matches!(self.stage, Stage::Cordon | Stage::Drain) && !self.is_deleting && self.has_finalizer
    }

    fn is_draining(&self) -> bool {
        self.is_active() && self.stage == Stage::Drain
    }
}

/// A node.
#[derive(Debug, Clone, Default)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Whether it takes no new pods.
    pub is_unschedulable: bool,
    /// Whether our taint is on it.
    pub is_tainted: bool,
    /// What we wrote on it.
    pub record: Option<NodeRecord>,
}

/// A pod on a node.
#[derive(Debug, Clone, Default)]
pub struct Pod {
    /// Its UID.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Where it runs: an index into [`World::nodes`].
    pub node: usize,
    /// The rank of its type.
    pub pod_type: usize,
    /// Its priority.
    pub priority: i32,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Whether it ended by itself.
    pub is_terminal: bool,
}

/// The request for a pod, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Request {
    /// Whether node maintenances are among the requesters.
    pub is_ours: bool,
    /// Whether requesters may no longer change.
    pub is_forbidden: bool,
    /// How far it has come.
    pub state: RequestState,
}

/// How far a request has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RequestState {
    /// It is worked on.
    #[default]
    Active,
    /// It ended since nobody asked any more: it can be made anew.
    Withdrawn,
    /// It ended in another way.
    Final,
}

/// Everything there is.
#[derive(Debug, Clone, Default)]
pub struct World {
    /// Maintenances, in any order.
    pub maintenances: Vec<Maintenance>,
    /// Nodes.
    pub nodes: Vec<Node>,
    /// Pods of nodes under maintenance, and all pods that have a request of ours.
    pub pods: Vec<Pod>,
    /// Requests by the UID of their pod.
    pub requests: HashMap<String, Request>,
    /// Whether static pods hold drains up.
    pub static_pods: StaticPods,
}

/// What is to be done about a pod's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Make one.
    Create,
    /// Join one that others made.
    Join,
    /// Delete the withdrawn one, so that a new one can be made.
    Renew,
    /// Leave it.
    Release,
}

/// What a node is to be like.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeTarget {
    /// Out of service, with this record, and with the taint or without it.
    Held {
        /// The record.
        record: NodeRecord,
        /// Whether pods of DaemonSets must stay away.
        is_tainted: bool,
    },
    /// Back in service: without record and taint, schedulable as it was before.
    Released {
        /// Whether it took no pods before.
        was_unschedulable: bool,
    },
}

/// What is to be done about a maintenance.
#[derive(Debug, Clone, PartialEq)]
pub enum Upkeep {
    /// Put our finalizer on it, before anything else.
    AddFinalizer,
    /// Move its stage to Complete, as it is being deleted.
    Complete,
    /// Take our finalizer off it.
    RemoveFinalizer,
    /// Report this status.
    Report(Box<NodeMaintenanceStatus>),
}

/// Something people should be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A maintenance came late and joins a node where it is.
    FastForwarded {
        /// The maintenance.
        maintenance: String,
        /// The node.
        node: String,
    },
    /// Somebody made a node schedulable while it is under maintenance.
    Fight {
        /// The node.
        node: String,
        /// The maintenances that hold it.
        maintenances: Vec<String>,
    },
    /// Static pods stay on nodes that are drained otherwise.
    StaticPods {
        /// The maintenance.
        maintenance: String,
        /// How many.
        count: usize,
    },
    /// A maintenance has drained all its nodes.
    Drained {
        /// The maintenance.
        maintenance: String,
    },
    /// A maintenance is over.
    Completed {
        /// The maintenance.
        maintenance: String,
    },
}

/// What is to be done: nodes first, then requests, then maintenances. Numbers are indexes into the world's lists.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Nodes that are not as they should be.
    pub nodes: Vec<(usize, NodeTarget)>,
    /// Requests of pods.
    pub asks: Vec<(usize, Ask)>,
    /// Maintenances.
    pub upkeep: Vec<(usize, Upkeep)>,
    /// What to tell.
    pub notices: Vec<Notice>,
}

/// Plans. Planning again after the plan was carried out yields a plan without anything to do.
#[must_use]
pub fn plan(world: &World, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let drain = Drain::resolve(world);
    plan_nodes(world, &drain, &mut plan);
    plan_requests(world, &drain, &mut plan);
    for index in 0..world.maintenances.len() {
        plan_maintenance(world, &drain, index, now, &mut plan);
    }
    plan
}

/// Where every drain stands.
struct Drain<'a> {
    world: &'a World,
    /// Maintenances that drain, the oldest first: indexes into the world's. A *place* is an index into this.
    order: Vec<usize>,
    /// How many entries are passed, by place.
    passed: Vec<usize>,
    /// Places, by node.
    drainers: Vec<Vec<usize>>,
    nodes: Vec<NodeDrain>,
    /// From which level on a pod is asked to leave, by pod.
    pod_keys: Vec<Option<PodKey>>,
}

/// From which level on a pod is asked to leave.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum PodKey {
    /// It was a target before, and stays one.
    Always,
    From(Key),
}

#[derive(Debug, Clone, Default)]
struct NodeDrain {
    level: Option<Key>,
    /// The lowest among the pods that are left and count.
    lowest: Option<PodKey>,
    pending: i32,
    active: i32,
    static_left: usize,
}

impl NodeDrain {
    /// Whether a targeted pod is left.
    fn is_busy(&self) -> bool {
        match (&self.lowest, &self.level) {
            (Some(PodKey::Always), _) => true,
            (Some(PodKey::From(key)), Some(level)) => key <= level,
            _ => false,
        }
    }

    fn is_drained(&self) -> bool {
        self.lowest.is_none()
    }

    fn has_passed(&self, key: &Key) -> bool {
        self.level
            .as_ref()
            .is_some_and(|level| level > key || (level == key && !self.is_busy()))
    }
}

impl<'a> Drain<'a> {
    fn resolve(world: &'a World) -> Self {
        let order = by_age(world, Maintenance::is_draining);
        let mut drain = Self {
            world,
            passed: vec![0; order.len()],
            drainers: vec![Vec::new(); world.nodes.len()],
            nodes: Vec::new(),
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
        drain
    }

    fn maintenance(&self, place: usize) -> Option<&'a Maintenance> {
        self.world.maintenances.get(*self.order.get(place)?)
    }

    fn name(&self, place: usize) -> &'a str {
        self.maintenance(place).map_or("", |one| one.name.as_str())
    }

    fn drainers_of(&self, node: usize) -> &[usize] {
        self.drainers.get(node).map(Vec::as_slice).unwrap_or_default()
    }

    fn nodes_of(&self, place: usize) -> impl Iterator<Item = (usize, &NodeDrain)> {
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
    fn current(&self, place: usize) -> Option<&'a Key> {
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

    /// The governors of the nodes a maintenance still waits for.
    fn awaited(&self, place: usize) -> BTreeSet<usize> {
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

    fn node_message(&self, index: usize) -> String {
        let drainers = self.drainers_of(index);
        let Some(node) = self.nodes.get(index).filter(|_| !drainers.is_empty()) else {
            return String::new();
        };
        if node.is_drained() {
            return "Drained".to_owned();
        }
        let governors = self.governors(index);
        if !node.is_busy() {
            let awaited = governors.iter().flat_map(|place| self.awaited(*place)).collect();
            return self.waiting(&awaited);
        }
        let is_limited = drainers.iter().any(|place| {
            let is_older = governors.last().is_some_and(|last| place < last);
            !governors.contains(place) && (self.has_begun(*place) || is_older)
        });
        self.draining(if is_limited { &governors } else { &NOBODY })
    }

    fn maintenance_message(&self, place: usize) -> String {
        if self.nodes_of(place).next().is_none() {
            return String::new();
        }
        if self.nodes_of(place).all(|(_, node)| node.is_drained()) {
            return "Drained".to_owned();
        }
        if !self.nodes_of(place).any(|(_, node)| node.is_busy()) {
            let mut awaited = self.awaited(place);
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
    fn targets(&self, index: usize) -> Vec<DrainPlanEntry> {
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

fn by_age(world: &World, wanted: impl Fn(&Maintenance) -> bool) -> Vec<usize> {
    let mut order: Vec<(usize, &Maintenance)> = world
        .maintenances
        .iter()
        .enumerate()
        .filter(|(_, one)| wanted(one))
        .collect();
    order.sort_by(|(_, a), (_, b)| (a.created, &a.name).cmp(&(b.created, &b.name)));
    order.into_iter().map(|(index, _)| index).collect()
}

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

fn plan_nodes(world: &World, drain: &Drain<'_>, plan: &mut Plan) {
    let mut holders: Vec<Vec<Participant>> = vec![Vec::new(); world.nodes.len()];
    for index in by_age(world, Maintenance::is_active) {
        let Some(maintenance) = world.maintenances.get(index) else {
            continue;
        };
        for node in &maintenance.nodes {
            if let Some(holders) = holders.get_mut(*node) {
                holders.push(Participant {
                    name: maintenance.name.clone(),
                    stage: maintenance.stage.clone(),
                });
            }
        }
    }
    for (index, (node, maintenances)) in world.nodes.iter().zip(holders).enumerate() {
        if maintenances.is_empty() {
            let before = node.record.as_ref().map(|record| record.was_unschedulable);
            if before.is_some() || node.is_tainted {
                let was_unschedulable = before.unwrap_or(node.is_unschedulable);
                plan.nodes
                    .push((index, NodeTarget::Released { was_unschedulable }));
            }
            continue;
        }
        note_late_comers(drain, index, node, plan);
        if node.record.is_some() && !node.is_unschedulable {
            plan.notices.push(Notice::Fight {
                node: node.name.clone(),
                maintenances: maintenances.iter().map(|one| one.name.clone()).collect(),
            });
        }
        let reached = drain.nodes.get(index).and_then(|node| node.level.clone());
        let is_tainted = reached
            .as_ref()
            .is_some_and(|level| Some(level.pod_type) >= PodType::DaemonSet.rank());
        let record = NodeRecord {
            maintenances,
            targets: drain.targets(index),
            message: drain.node_message(index),
            was_unschedulable: node
                .record
                .as_ref()
                .map_or(node.is_unschedulable, |record| record.was_unschedulable),
            reached,
        };
        if node.record.as_ref() != Some(&record) || !node.is_unschedulable || node.is_tainted != is_tainted {
            plan.nodes.push((index, NodeTarget::Held { record, is_tainted }));
        }
    }
}

fn note_late_comers(drain: &Drain<'_>, index: usize, node: &Node, plan: &mut Plan) {
    let Some(record) = &node.record else { return };
    for place in drain.drainers_of(index) {
        let name = drain.name(*place);
        let is_new = !record
            .maintenances
            .iter()
            .any(|one| one.name == name && one.stage == Stage::Drain);
        let is_behind = match (drain.current(*place), &record.reached) {
            (Some(current), Some(reached)) => current < reached,
            _ => false,
        };
        if is_new && is_behind {
            plan.notices.push(Notice::FastForwarded {
                maintenance: name.to_owned(),
                node: node.name.clone(),
            });
        }
    }
}

fn plan_requests(world: &World, drain: &Drain<'_>, plan: &mut Plan) {
    for (index, pod) in world.pods.iter().enumerate() {
        let level = drain.nodes.get(pod.node).and_then(|node| node.level.as_ref());
        let is_wanted = match (drain.pod_keys.get(index).and_then(Option::as_ref), level) {
            (Some(PodKey::Always), _) => true,
            (Some(PodKey::From(key)), Some(level)) => key <= level,
            _ => false,
        };
        let ask = match (is_wanted, world.requests.get(&pod.uid)) {
            (true, None) => Some(Ask::Create),
            (true, Some(request)) => match request.state {
                RequestState::Active if !request.is_ours && !request.is_forbidden => Some(Ask::Join),
                RequestState::Withdrawn => Some(Ask::Renew),
                _ => None,
            },
            (false, Some(request)) => {
                let is_held = request.is_ours && request.state == RequestState::Active && !pod.is_terminal;
                (is_held && !request.is_forbidden).then_some(Ask::Release)
            }
            (false, None) => None,
        };
        plan.asks.extend(ask.map(|ask| (index, ask)));
    }
}

fn plan_maintenance(world: &World, drain: &Drain<'_>, index: usize, now: Timestamp, plan: &mut Plan) {
    let Some(maintenance) = world.maintenances.get(index) else {
        return;
    };
    let mut status = maintenance.status.clone();
    status.selected_nodes = Some(count(maintenance.nodes.len()));
    match maintenance.stage {
        Stage::Cordon | Stage::Drain if maintenance.is_deleting => {
            if maintenance.has_finalizer {
                plan.upkeep.push((index, Upkeep::Complete));
            }
            return;
        }
        Stage::Cordon | Stage::Drain if !maintenance.has_finalizer => {
            plan.upkeep.push((index, Upkeep::AddFinalizer));
            return;
        }
        Stage::Cordon => {}
        Stage::Drain => report_drain(drain, index, maintenance, now, &mut status, plan),
        Stage::Complete => {
            status.drain_status = None;
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
            start_timestamp: Some(whole(now)),
        });
    }
    if status != maintenance.status {
        plan.upkeep.push((index, Upkeep::Report(Box::new(status))));
    } else if maintenance.stage == Stage::Complete
        && maintenance.has_finalizer
        && is_carried_out(world, drain, maintenance)
    {
        plan.notices.push(Notice::Completed {
            maintenance: maintenance.name.clone(),
        });
        plan.upkeep.push((index, Upkeep::RemoveFinalizer));
    }
}

/// Whether nothing of the maintenance is left: no node that it holds, no request that it made.
fn is_carried_out(world: &World, drain: &Drain<'_>, maintenance: &Maintenance) -> bool {
    let names = |record: &NodeRecord| record.maintenances.iter().any(|one| one.name == maintenance.name);
    let holds = world
        .nodes
        .iter()
        .filter_map(|node| node.record.as_ref())
        .any(names);
    let mine: BTreeSet<usize> = maintenance.nodes.iter().copied().collect();
    let asks = world.pods.iter().any(|pod| {
        let request = world.requests.get(&pod.uid);
        mine.contains(&pod.node)
            && drain.drainers_of(pod.node).is_empty()
            && request.is_some_and(|request| request.is_ours && request.state == RequestState::Active)
    });
    !holds && !asks
}

fn report_drain(
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
        last_transition_time: since.unwrap_or_else(|| whole(now)),
    };
    match known {
        Some(known) => *known = condition,
        None => status.conditions.push(condition),
    }
}

/// The statuses of nodes, those not drained first, as many as fit.
fn node_statuses(drain: &Drain<'_>, mut nodes: Vec<usize>) -> Vec<NodeStatus> {
    let name = |index: usize| drain.world.nodes.get(index).map_or("", |node| node.name.as_str());
    let is_drained = |index: usize| drain.nodes.get(index).is_some_and(NodeDrain::is_drained);
    nodes.sort_by(|a, b| (is_drained(*a), name(*a)).cmp(&(is_drained(*b), name(*b))));
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

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn whole(at: Timestamp) -> Time {
    crate::evictionrequest::status::whole_seconds(at)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
