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

mod drain;
mod entry;
mod report;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use drydock_proto::kinds::nodemaintenance::{NodeMaintenanceStatus, PodType, Stage, StageStatus};
use jiff::Timestamp;

use super::taints::{NodeRecord, Participant};
use crate::evictionrequest::status::whole_seconds;
pub use entry::{Entry, Key, entries, is_targeted};

use drain::{Drain, PodKey};

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
    status.selected_nodes = Some(report::count(maintenance.nodes.len()));
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
        Stage::Drain => report::report_drain(drain, index, maintenance, now, &mut status, plan),
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
            start_timestamp: Some(whole_seconds(now)),
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

#[cfg(test)]
mod tests;
