//! The planner against a simulated cluster. Tests are grouped by topic in submodules.

mod blockers;
mod lifecycle;
mod obstacles;
mod properties;
mod recovery;
mod returning;
mod status;
mod worked_example;

use super::*;
use crate::nodemaintenance::drain_plan::entries;
use crate::nodemaintenance::model::{
    Controller, PodFacts, RecordSource, RequestAction, RequestState, StaticPods,
};
use crate::nodemaintenance::recovery::recover_records;
use drydock_proto::kinds::nodemaintenance::{DrainPlanEntry, NodeMaintenanceStatus};

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

fn entry(pod_type: PodType, pod_priority: i32) -> DrainPlanEntry {
    DrainPlanEntry {
        pod_type,
        pod_priority,
        pod_selector: None,
    }
}

fn default(pod_priority: i32) -> DrainPlanEntry {
    entry(PodType::Default, pod_priority)
}

/// A simulated cluster in which plans are executed.
#[derive(Debug, Clone, Default)]
struct Cluster {
    state: ClusterState,
    /// All planned Events.
    events: Vec<MaintenanceEvent>,
    /// The number of the last pod.
    serial: usize,
    /// How many seconds have passed.
    elapsed: i64,
}

impl Cluster {
    fn now(&self) -> Timestamp {
        Timestamp::from_second(now().as_second() + self.elapsed).unwrap()
    }

    fn node(&mut self, name: &str) -> usize {
        self.state.nodes.push(NodeFacts {
            name: name.to_owned(),
            ..NodeFacts::default()
        });
        self.state.nodes.len() - 1
    }

    /// Adds a draining maintenance. Two consecutive ones are created at the same time.
    fn maintenance(&mut self, name: &str, nodes: &[usize], plan: &[DrainPlanEntry]) -> usize {
        let age = i64::try_from(self.state.maintenances.len()).unwrap();
        self.state.maintenances.push(Maintenance {
            name: name.to_owned(),
            uid: format!("{name}-uid"),
            created: Timestamp::from_second(age / 2).unwrap(),
            generation: Some(1),
            stage: Stage::Drain,
            is_deleting: false,
            has_finalizer: true,
            entries: entries(plan),
            nodes: nodes.to_vec(),
            status: NodeMaintenanceStatus::default(),
        });
        self.state.maintenances.len() - 1
    }

    fn pods(&mut self, node: usize, count: usize, priority: i32) {
        self.typed_pods(node, count, &PodType::Default, priority);
    }

    fn typed_pods(&mut self, node: usize, count: usize, pod_type: &PodType, priority: i32) {
        for _ in 0..count {
            self.serial += 1;
            self.state.pods.push(PodFacts {
                uid: format!("uid-{}", self.serial),
                namespace: "shop".to_owned(),
                name: format!("pod-{}", self.serial),
                node,
                pod_type: pod_type.rank().unwrap(),
                priority,
                ..PodFacts::default()
            });
        }
    }

    /// Adds pods of a DaemonSet that tolerates the drain taint.
    fn tolerant_daemon_set_pods(&mut self, node: usize, count: usize, daemon_set: &str) {
        let first = self.state.pods.len();
        self.typed_pods(node, count, &PodType::DaemonSet, 5);
        for pod in &mut self.state.pods[first..] {
            pod.is_tolerant_daemon_set_pod = true;
            pod.controller = Some(Controller {
                kind: "DaemonSet".to_owned(),
                name: daemon_set.to_owned(),
                uid: format!("{daemon_set}-uid"),
            });
        }
    }

    /// Plans and executes once.
    fn execute(&mut self) -> Plan {
        recover_records(&mut self.state);
        let plan = plan(&self.state, self.now());
        for (index, action) in &plan.nodes {
            let node = &mut self.state.nodes[*index];
            match action.clone() {
                NodeAction::Hold {
                    record, is_tainted, ..
                } => {
                    node.record = Some(record);
                    node.record_source = RecordSource::Annotation;
                    node.is_tainted = is_tainted;
                    node.is_unschedulable = true;
                }
                NodeAction::Note { record } => node.record = Some(record),
                NodeAction::Release { was_unschedulable } => {
                    node.record = None;
                    node.record_source = RecordSource::Annotation;
                    node.is_tainted = false;
                    node.is_unschedulable = was_unschedulable;
                }
            }
        }
        for (index, action) in &plan.requests {
            let uid = self.state.pods[*index].uid.clone();
            let request = self.state.requests.entry(uid.clone()).or_default();
            match action {
                RequestAction::Create { .. } | RequestAction::Join { .. } => {
                    request.has_maintenance_requester = true;
                }
                RequestAction::Replace { .. } => drop(self.state.requests.remove(&uid)),
                RequestAction::Withdraw => *request = withdrawn(),
            }
        }
        for (index, action) in &plan.maintenances {
            let maintenance = &mut self.state.maintenances[*index];
            match action.clone() {
                MaintenanceAction::AddFinalizer { .. } => maintenance.has_finalizer = true,
                MaintenanceAction::RemoveFinalizer => maintenance.has_finalizer = false,
                MaintenanceAction::SetStageComplete => maintenance.stage = Stage::Complete,
                MaintenanceAction::WriteStatus(status) => maintenance.status = *status,
            }
        }
        self.events.extend(plan.events.iter().cloned());
        plan
    }

    /// Plans and executes until there is nothing to do.
    fn settle(&mut self) {
        for _ in 0..100 {
            let plan = self.execute();
            if plan.nodes.is_empty() && plan.requests.is_empty() && plan.maintenances.is_empty() {
                return;
            }
        }
        panic!("100 plans in a row were not empty");
    }

    /// Removes `count` pods of the node that have a request.
    fn leave(&mut self, node: usize, count: usize) {
        for _ in 0..count {
            let is_requested =
                |pod: &PodFacts| pod.node == node && self.state.requests.contains_key(&pod.uid);
            let index = self
                .state
                .pods
                .iter()
                .position(is_requested)
                .expect("a pod with a request");
            self.state.pods.remove(index);
        }
    }

    fn status(&self, maintenance: usize) -> &NodeMaintenanceStatus {
        &self.state.maintenances[maintenance].status
    }

    /// Checks pending pods, active requests, message and the only target of the maintenance.
    #[track_caller]
    fn check(&self, maintenance: usize, pending: i32, active: i32, message: &str, target: i32) {
        let status = self.status(maintenance).drain_status.as_ref().unwrap();
        assert_eq!(status.drain_message, message);
        assert_eq!(status.pods_pending_eviction_request, pending);
        assert_eq!(status.active_eviction_requests, active);
        assert_eq!(status.reached_drain_targets, [default(target)]);
    }

    /// Checks the same of a node, in the status of a maintenance and in the node's record.
    #[track_caller]
    fn check_node(
        &self,
        maintenance: usize,
        name: &str,
        pending: i32,
        active: i32,
        message: &str,
        target: i32,
    ) {
        let statuses = &self.status(maintenance).node_statuses;
        let status = statuses
            .iter()
            .find(|status| status.node_ref.name == name)
            .unwrap();
        assert_eq!(status.drain_message, message);
        assert_eq!(status.pods_pending_eviction_request, pending);
        assert_eq!(status.active_eviction_requests, active);
        assert_eq!(status.drain_targets, [default(target)]);
        let node = self.state.nodes.iter().find(|node| node.name == name).unwrap();
        let record = node.record.as_ref().unwrap();
        assert_eq!(
            (&record.message, &record.targets),
            (&status.drain_message, &status.drain_targets)
        );
    }
}

fn withdrawn() -> RequestFacts {
    RequestFacts {
        has_maintenance_requester: false,
        is_cancellation_forbidden: false,
        state: RequestState::Canceled,
        ..RequestFacts::default()
    }
}

/// Two entries for every pod type.
fn full_plan() -> Vec<DrainPlanEntry> {
    [PodType::Default, PodType::DaemonSet, PodType::Static]
        .iter()
        .flat_map(|pod_type| [1000, i32::MAX].map(|priority| entry(pod_type.clone(), priority)))
        .collect()
}
