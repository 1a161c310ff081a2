use super::*;
use crate::nodemaintenance::model::{Deletion, Obstacle};
use crate::nodemaintenance::plan::blockers::oldest;
use drydock_proto::kinds::nodemaintenance::MAX_BLOCKERS;
use proptest::prelude::*;
use serde_json::json;

/// A cluster of up to four nodes and three maintenances with random plans and pods.
fn clusters() -> impl Strategy<Value = Cluster> {
    let pod_type = (0_usize..3).prop_map(|rank| PodType::from(PodType::KNOWN[rank]));
    let plan_entry = (pod_type.clone(), 0_i32..5, proptest::option::of(0_usize..2)).prop_map(
        |(pod_type, priority, app)| DrainPlanEntry {
            pod_selector: app
                .map(|app| serde_json::from_value(json!({"matchLabels": {"app": app.to_string()}})).unwrap()),
            ..entry(pod_type, priority)
        },
    );
    let maintenance = (
        proptest::collection::btree_set(0_usize..4, 0..4),
        proptest::collection::vec(plan_entry, 1..6),
    );
    let pod = (0_usize..4, pod_type, 0_i32..6, 0_usize..3, any::<bool>());
    (
        proptest::collection::vec(maintenance, 1..4),
        proptest::collection::vec(pod, 0..25),
        any::<bool>(),
    )
        .prop_map(|(maintenances, pods, required)| {
            let mut cluster = Cluster::default();
            if required {
                cluster.state.static_pods = StaticPods::Required;
            }
            for index in 0..4 {
                cluster.node(&format!("node-{index}"));
            }
            for (index, (nodes, plan)) in maintenances.into_iter().enumerate() {
                let nodes: Vec<usize> = nodes.into_iter().collect();
                cluster.maintenance(&format!("m-{index}"), &nodes, &plan);
            }
            for (node, pod_type, priority, app, is_tolerant) in pods {
                cluster.typed_pods(node, 1, &pod_type, priority);
                let pod = cluster.state.pods.last_mut().unwrap();
                pod.labels.insert("app".to_owned(), app.to_string());
                pod.is_tolerant_daemon_set_pod = is_tolerant && pod_type == PodType::DaemonSet;
            }
            cluster
        })
}

#[derive(Debug, Clone)]
enum Operation {
    /// Removes the pod with this index, if it has a request.
    RemovePod(usize),
    /// Adds a pod: node, priority.
    AddPod(usize, i32),
    /// Completes the maintenance with this index.
    Complete(usize),
    /// Starts the maintenance with this index, if it is idle.
    Start(usize),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        6 => (0_usize..30).prop_map(Operation::RemovePod),
        1 => (0_usize..4, 0_i32..6).prop_map(|(node, priority)| Operation::AddPod(node, priority)),
        1 => (0_usize..3).prop_map(Operation::Complete),
        1 => (0_usize..3).prop_map(Operation::Start),
    ];
    proptest::collection::vec(operation, 0..40)
}

/// What stands in the way of a pod, and whether it began only now.
#[derive(Debug, Clone, Copy)]
enum Hindrance {
    NamespaceDeleted,
    DeletedRequest { is_recent: bool },
    RequestOfAnotherPod,
    CanceledRequest { replaced: u32, is_forbidden: bool },
    EvictedRequest { is_recent: bool },
    BlockedRequest,
}

fn hindrances() -> impl Strategy<Value = Vec<(usize, Hindrance)>> {
    let hindrance = prop_oneof![
        Just(Hindrance::NamespaceDeleted),
        any::<bool>().prop_map(|is_recent| Hindrance::DeletedRequest { is_recent }),
        Just(Hindrance::RequestOfAnotherPod),
        (0_u32..7, any::<bool>()).prop_map(|(replaced, is_forbidden)| Hindrance::CanceledRequest {
            replaced,
            is_forbidden
        }),
        any::<bool>().prop_map(|is_recent| Hindrance::EvictedRequest { is_recent }),
        Just(Hindrance::BlockedRequest),
    ];
    proptest::collection::vec((0_usize..25, hindrance), 0..25)
}

impl Cluster {
    fn hinder(&mut self, pod: usize, hindrance: Hindrance) {
        let (now, long_ago) = (self.now(), Timestamp::UNIX_EPOCH);
        let Some(pod) = self.state.pods.get_mut(pod) else {
            return;
        };
        if matches!(hindrance, Hindrance::NamespaceDeleted) {
            pod.namespace_deleted = Some(now);
            self.state.requests.remove(&pod.uid);
            return;
        }
        let Some(request) = self.state.requests.get_mut(&pod.uid) else {
            return;
        };
        let since = |is_recent: bool| if is_recent { now } else { long_ago };
        let obstacle = |reason: &str| {
            Some(Obstacle {
                since: long_ago,
                reason: reason.to_owned(),
                message: "m".to_owned(),
            })
        };
        match hindrance {
            Hindrance::NamespaceDeleted => {}
            Hindrance::DeletedRequest { is_recent } => {
                request.deletion = Some(Deletion {
                    since: since(is_recent),
                    finalizers: vec!["f.example.com".to_owned()],
                });
            }
            Hindrance::RequestOfAnotherPod => request.other_pod = Some("other".to_owned()),
            Hindrance::CanceledRequest {
                replaced,
                is_forbidden,
            } => {
                request.state = RequestState::Canceled;
                request.ended = Some(now);
                request.replaced = replaced;
                request.is_cancellation_forbidden = is_forbidden;
                request.obstacle = obstacle("RequestObstructed");
            }
            Hindrance::EvictedRequest { is_recent } => {
                request.state = RequestState::Evicted;
                request.ended = Some(since(is_recent));
                request.replaced = 5;
            }
            Hindrance::BlockedRequest => request.obstacle = obstacle("Budget"),
        }
    }
}

/// Whether the drain has still to wait before it tells what holds the pod.
fn is_judged_later(request: &RequestFacts, now: Timestamp) -> bool {
    let is_deleted_now = request
        .deletion
        .as_ref()
        .is_some_and(|deletion| deletion.since == now);
    is_deleted_now || (request.state == RequestState::Evicted && request.ended == Some(now))
}

/// Whether every pod that the earlier targets match is matched by the later ones.
fn covers(later: &[DrainPlanEntry], earlier: &[DrainPlanEntry]) -> bool {
    earlier.iter().all(|target| {
        later.iter().any(|other| {
            other.pod_type == target.pod_type
                && other.pod_priority >= target.pod_priority
                && (other.pod_selector.is_none() || other.pod_selector == target.pod_selector)
        })
    })
}

proptest! {
    /// Plans are stable (nothing is left to do after execution) and monotone (targets of a node only grow).
    #[test]
    fn plans_are_stable_and_monotone(mut cluster in clusters(), operations in operations(), idle in 0_usize..3) {
        if let Some(late) = cluster.state.maintenances.get_mut(idle) {
            late.stage = Stage::Idle;
        }
        cluster.settle();
        for operation in operations {
            let before = cluster.state.nodes.clone();
            match operation {
                Operation::RemovePod(index) => {
                    let is_requested = cluster.state.pods.get(index).is_some_and(|pod| cluster.state.requests.contains_key(&pod.uid));
                    if is_requested {
                        cluster.state.pods.remove(index);
                    }
                }
                Operation::AddPod(node, priority) => cluster.pods(node, 1, priority),
                Operation::Complete(index) => {
                    if let Some(one) = cluster.state.maintenances.get_mut(index).filter(|one| one.stage != Stage::Idle) {
                        one.stage = Stage::Complete;
                    }
                }
                Operation::Start(index) => {
                    if let Some(one) = cluster.state.maintenances.get_mut(index).filter(|one| one.stage == Stage::Idle) {
                        one.stage = Stage::Drain;
                    }
                }
            }
            cluster.settle();
            for (earlier, later) in before.iter().zip(&cluster.state.nodes) {
                if let (Some(earlier), Some(later)) = (&earlier.record, &later.record) {
                    prop_assert!(covers(&later.targets, &earlier.targets), "{earlier:?} then {later:?}");
                    prop_assert!(later.reached >= earlier.reached);
                }
            }
        }
    }

    /// A pod that is to leave is requested to and nothing is known to hold it, or it is among the blockers with a reason, or
    /// what holds it has begun only now.
    #[test]
    fn every_pod_that_is_held_is_named_with_a_reason(mut cluster in clusters(), hindrances in hindrances()) {
        cluster.settle();
        for (pod, hindrance) in hindrances {
            cluster.hinder(pod, hindrance);
        }
        cluster.settle();
        let (state, now) = (&cluster.state, cluster.now());
        let progress = DrainProgress::new(state, now);
        let found = find_blockers(&progress);
        for (index, pod) in state.pods.iter().enumerate() {
            let is_static = Some(pod.pod_type) == PodType::Static.rank();
            let counts = !is_static || state.static_pods == StaticPods::Required;
            if !progress.is_targeted(index, pod) || !counts {
                continue;
            }
            let request = state.requests.get(&pod.uid);
            let is_free = request.is_some_and(|request| {
                request.is_active_for_maintenance()
                    && request.obstacle.is_none()
                    && request.deletion.is_none()
                    && request.other_pod.is_none()
            });
            let blockers = oldest(&found, std::iter::once(pod.node));
            let named = blockers.iter().find(|blocker| blocker.pod == pod.name);
            let is_cut = blockers.len() == MAX_BLOCKERS;
            let is_later = request.is_some_and(|request| is_judged_later(request, now));
            prop_assert!(named.is_some() || is_free || is_later || is_cut, "{pod:?} {request:?}");
            prop_assert!(named.is_none_or(|blocker| !blocker.reason.is_empty() && !blocker.message.is_empty()));
        }
    }

    /// Nodes are drained for all plans when requested pods leave. Tolerant DaemonSet pods are never requested.
    #[test]
    fn drains_terminate(mut cluster in clusters()) {
        for _ in 0..200 {
            cluster.settle();
            let requests = cluster.state.requests.clone();
            for pod in cluster.state.pods.iter().filter(|pod| pod.is_tolerant_daemon_set_pod) {
                prop_assert!(!requests.contains_key(&pod.uid), "{pod:?} is requested");
            }
            let before = cluster.state.pods.len();
            cluster.state.pods.retain(|pod| !requests.contains_key(&pod.uid));
            if cluster.state.pods.len() == before {
                break;
            }
        }
        for maintenance in &cluster.state.maintenances {
            for pod in cluster.state.pods.iter().filter(|pod| maintenance.nodes.contains(&pod.node)) {
                let is_target = maintenance.entries.iter().any(|entry| pod.is_matched_by(entry));
                prop_assert!(!is_target || pod.is_tolerant_daemon_set_pod, "{pod:?} is left");
            }
        }
    }
}
