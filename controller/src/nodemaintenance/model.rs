//! Input and output of the planner: the state of all maintenances, nodes, pods and requests, and the plan for them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use drydock_proto::kinds::nodemaintenance::{NodeMaintenanceStatus, Stage};
use jiff::Timestamp;

use super::drain_plan::{Entry, TargetedFrom};
use super::node_state::{NodeAction, NodeRecord};
use super::shared::Shared;
use super::successor::Life;

/// Whether static pods count against the `Drained` condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum StaticPods {
    /// They are reported; a node counts as drained while they run.
    #[default]
    Reported,
    /// They must be gone.
    Required,
}

/// A maintenance.
#[derive(Debug, Clone)]
pub struct Maintenance {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// When it was created. Older maintenances come first.
    pub created: Timestamp,
    /// Its generation.
    pub generation: Option<i64>,
    /// `spec.stage`.
    pub stage: Stage,
    /// Whether it is being deleted.
    pub is_deleting: bool,
    /// Whether it has the completion finalizer.
    pub has_finalizer: bool,
    /// The entries of its drain plan, in order.
    pub entries: Arc<Vec<Entry>>,
    /// The nodes it selects: ascending indexes into [`ClusterState::nodes`].
    pub nodes: Vec<usize>,
    /// The stored status.
    pub status: NodeMaintenanceStatus,
}

impl Maintenance {
    /// Whether it keeps its nodes unschedulable. Without the finalizer it could be deleted without releasing them, so
    /// nodes are not touched before it is set. A maintenance that has lost its finalizer stays active.
    pub(super) fn is_active(&self) -> bool {
        matches!(self.stage, Stage::Cordon | Stage::Drain)
            && !self.is_deleting
            && (self.has_finalizer || self.has_started())
    }

    /// Whether a stage has started. It had its finalizer then.
    pub(super) fn has_started(&self) -> bool {
        !self.status.stage_statuses.is_empty()
    }

    /// Whether it is to become active as soon as it has its finalizer.
    pub(super) fn is_new(&self) -> bool {
        matches!(self.stage, Stage::Cordon | Stage::Drain) && !self.is_deleting && !self.is_active()
    }

    /// Whether it returns its nodes to service, or is about to.
    pub(super) fn is_ending(&self) -> bool {
        self.stage == Stage::Complete || (self.is_deleting && self.has_finalizer)
    }

    /// Whether the node, an index into [`ClusterState::nodes`], is selected. `nodes` is in ascending order.
    pub(super) fn selects(&self, node: usize) -> bool {
        self.nodes.binary_search(&node).is_ok()
    }

    /// Whether the stage in the spec has started.
    pub(super) fn has_started_stage(&self) -> bool {
        let stages = &self.status.stage_statuses;
        stages.iter().any(|stage| stage.name == self.stage)
    }

    /// The nodes that were unschedulable before they were touched.
    pub(super) fn cordoned_before(&self) -> HashSet<&str> {
        self.status.cordoned_before.iter().map(String::as_str).collect()
    }

    /// Whether it drains its nodes.
    pub(super) fn is_draining(&self) -> bool {
        self.is_active() && self.stage == Stage::Drain
    }
}

/// A node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeFacts {
    /// Its name.
    pub name: String,
    /// `spec.unschedulable`.
    pub is_unschedulable: bool,
    /// Whether it has the drain taint.
    pub is_tainted: bool,
    /// The record in its annotation, or recovered from the status of its maintenances.
    pub record: Option<NodeRecord>,
    /// Where `record` comes from.
    pub record_source: RecordSource,
}

/// Where the record of a node comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RecordSource {
    /// Its annotation; without a record, it has none.
    #[default]
    Annotation,
    /// There is no record, because the annotation cannot be read.
    Damaged,
    /// The status of its maintenances, because the annotation was lost.
    Recovered,
}

/// A pod on a node.
#[derive(Debug, Clone, Default)]
pub struct PodFacts {
    /// Its node: an index into [`ClusterState::nodes`].
    pub node: usize,
    /// Since when its namespace is being deleted. Its pods are deleted with it and are not requested to leave.
    pub namespace_deleted: Option<Timestamp>,
    /// What does not depend on other objects.
    pub pod: Shared<PodProperties>,
}

impl Deref for PodFacts {
    type Target = PodProperties;

    fn deref(&self) -> &PodProperties {
        &self.pod
    }
}

impl DerefMut for PodFacts {
    fn deref_mut(&mut self) -> &mut PodProperties {
        &mut self.pod
    }
}

/// What the planner reads of a pod itself.
#[derive(Debug, Clone, Default)]
pub struct PodProperties {
    /// Its UID.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The rank of its type.
    pub pod_type: usize,
    /// Its priority.
    pub priority: i32,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Whether its phase is Succeeded or Failed.
    pub is_terminal: bool,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// The controller that owns it.
    pub controller: Option<Controller>,
    /// Whether its DaemonSet creates it again in spite of the drain taint. It is never a drain target.
    pub is_tolerant_daemon_set_pod: bool,
    /// Whether its controller can create it again on its node, although that is unschedulable.
    pub may_come_back: bool,
}

/// The controller that owns a pod, in the namespace of the pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Controller {
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

impl PodProperties {
    /// Whether the entry matches the pod.
    #[must_use]
    pub fn is_matched_by(&self, entry: &Entry) -> bool {
        entry.matches(self.pod_type, self.priority, &self.labels)
    }

    /// Whether the plan leaves the pod alone. Other plans may ask it to leave.
    #[must_use]
    pub fn is_spared_by(&self, plan: &[Entry]) -> bool {
        plan.iter()
            .any(|entry| entry.spares(self.pod_type, self.priority, &self.labels))
    }

    /// From when the pod is a drain target of its node, with the targets that are recorded there and the plans that drain it;
    /// `None` if it is none. The record lacks the entries that are not reached and states those that are with raised
    /// priorities, so which pods are left alone is up to the plans.
    #[must_use]
    pub fn targeted_from<'a>(
        &self,
        recorded: &[Entry],
        plans: impl Iterator<Item = &'a [Entry]> + Clone,
    ) -> Option<TargetedFrom> {
        if self.is_tolerant_daemon_set_pod {
            return None;
        }
        let is_recorded = recorded.iter().any(|entry| self.is_matched_by(entry));
        if is_recorded && !plans.clone().any(|plan| self.is_spared_by(plan)) {
            return Some(TargetedFrom::Always);
        }
        plans
            .filter_map(|plan| plan.iter().find(|entry| self.is_matched_by(entry)))
            .map(|entry| TargetedFrom::Level(entry.position.clone()))
            .min()
    }
}

/// The eviction request of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RequestFacts {
    /// Its UID.
    pub uid: String,
    /// When it was created.
    pub created: Timestamp,
    /// Whether node maintenances are among the requesters.
    pub has_maintenance_requester: bool,
    /// Whether its cancellation is forbidden, so that the requester cannot be removed.
    pub is_cancellation_forbidden: bool,
    /// Whether it is finished, and how.
    pub state: RequestState,
    /// What keeps it from ending its pod.
    pub obstacle: Option<Obstacle>,
    /// When it finished.
    pub ended: Option<Timestamp>,
    /// How many requests it replaced.
    pub replaced: u32,
    /// Its deletion, while finalizers hold it.
    pub deletion: Option<Deletion>,
    /// The name of another pod that it wrongly targets.
    pub other_pod: Option<String>,
}

/// A deletion that finalizers hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deletion {
    /// Since when.
    pub since: Timestamp,
    /// The finalizers.
    pub finalizers: Vec<String>,
}

/// What keeps a request from ending its pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// Since when.
    pub since: Timestamp,
    /// The reason, in one word.
    pub reason: String,
    /// The message, for people.
    pub message: String,
}

impl RequestFacts {
    /// Whether it is unfinished and node maintenances are among the requesters.
    #[must_use]
    pub fn is_active_for_maintenance(&self) -> bool {
        self.has_maintenance_requester && self.state == RequestState::Active
    }
}

/// Whether a request is finished, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RequestState {
    /// It is not finished.
    #[default]
    Active,
    /// It was canceled. Its pod stays.
    Canceled,
    /// It found that its pod is gone.
    Evicted,
}

/// The input of the planner.
#[derive(Debug, Clone, Default)]
pub struct ClusterState {
    /// Maintenances, in any order, with all that they depend on.
    pub maintenances: Vec<Maintenance>,
    /// Nodes.
    pub nodes: Vec<NodeFacts>,
    /// The pods of these nodes.
    pub pods: Vec<PodFacts>,
    /// Requests by the UID of their pod; there may be some of other pods.
    pub requests: Shared<HashMap<String, Shared<RequestFacts>>>,
    /// The lives of successors that ended on nodes under maintenance.
    pub lives: Vec<Life>,
    /// Why requests could not be written, by the UID of their pod.
    pub refused: HashMap<String, Obstacle>,
    /// Whether static pods count against `Drained`.
    pub static_pods: StaticPods,
}

impl ClusterState {
    /// The maintenances that match, the oldest first: indexes into `maintenances`.
    pub(super) fn by_age(&self, matches: impl Fn(&Maintenance) -> bool) -> Vec<usize> {
        let mut order: Vec<(usize, &Maintenance)> = self
            .maintenances
            .iter()
            .enumerate()
            .filter(|(_, one)| matches(one))
            .collect();
        order.sort_by(|(_, a), (_, b)| (a.created, &a.name).cmp(&(b.created, &b.name)));
        order.into_iter().map(|(index, _)| index).collect()
    }
}

/// What to do with the request of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestAction {
    /// Create it.
    Create {
        /// Set when a successor may follow the pod: whether it was there before the drain of its node began.
        origin: Option<bool>,
    },
    /// Add the maintenance requester to the request of others.
    Join {
        /// As of [`RequestAction::Create`].
        origin: Option<bool>,
    },
    /// Delete the request, which ended without its pod, so that a new one can be created.
    Replace {
        /// How many requests the new one will have replaced.
        count: u32,
    },
    /// Remove the maintenance requester.
    Withdraw,
}

/// What to do with a maintenance.
#[derive(Debug, Clone, PartialEq)]
pub enum MaintenanceAction {
    /// Add the completion finalizer, before anything else.
    AddFinalizer {
        /// Whether it was there before.
        is_restored: bool,
    },
    /// Set the stage to Complete, because it is being deleted.
    SetStageComplete,
    /// Remove the completion finalizer.
    RemoveFinalizer,
    /// Write this status.
    WriteStatus(Box<NodeMaintenanceStatus>),
}

/// An Event to publish about maintenances.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MaintenanceEvent {
    /// A maintenance began to drain a node that has reached later drain targets.
    FastForwarded {
        /// The maintenance.
        maintenance: String,
        /// The node.
        node: String,
    },
    /// A node was made schedulable while it is under maintenance.
    CordonConflict {
        /// The node.
        node: String,
        /// The maintenances that select it.
        maintenances: Vec<String>,
    },
    /// Static pods are left on drained nodes.
    StaticPods {
        /// The maintenance.
        maintenance: String,
        /// How many.
        count: usize,
    },
    /// DaemonSet pods that tolerate the drain taint are left on drained nodes.
    TolerantDaemonSetPods {
        /// The maintenance.
        maintenance: String,
        /// Which pods, for people.
        description: String,
    },
    /// Controllers create pods again on nodes that are drained.
    ComesBack {
        /// The maintenance.
        maintenance: String,
        /// Which controllers, for people.
        description: String,
    },
    /// A stage has started.
    StageStarted {
        /// The maintenance.
        maintenance: String,
        /// The stage.
        stage: Stage,
    },
    /// Something new holds the drain.
    Blocked {
        /// The maintenance.
        maintenance: String,
        /// Reason, names and cause, for people.
        description: String,
    },
    /// Nodes that were selected exist no more, or are no longer selected.
    NodesVanished {
        /// The maintenance.
        maintenance: String,
        /// Their names, for people.
        names: String,
    },
    /// All nodes of a maintenance are drained.
    Drained {
        /// The maintenance.
        maintenance: String,
    },
    /// A maintenance was completed: its nodes are released and its requests withdrawn.
    Completed {
        /// The maintenance.
        maintenance: String,
    },
}

/// The output of the planner, in the order of execution. Numbers are indexes into the lists of [`ClusterState`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Changes of nodes.
    pub nodes: Vec<(usize, NodeAction)>,
    /// Changes of the requests of pods.
    pub requests: Vec<(usize, RequestAction)>,
    /// Changes of maintenances.
    pub maintenances: Vec<(usize, MaintenanceAction)>,
    /// Events to publish.
    pub events: Vec<MaintenanceEvent>,
    /// When to plan again without a change.
    pub next: Option<Timestamp>,
}
