use super::*;
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
