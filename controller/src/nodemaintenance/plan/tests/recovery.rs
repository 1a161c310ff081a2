//! Lost finalizers, maintenances and annotations: nodes and requests stay as they are.

use super::*;
use crate::nodemaintenance::node_state::HoldingMaintenance;

/// A node in mid-drain: two pods have requests, a third one waits for its entry of the plan.
fn in_mid_drain() -> (Cluster, usize, usize) {
    let mut cluster = Cluster::default();
    let node = cluster.node("one");
    let maintenance = cluster.maintenance("m", &[node], &full_plan());
    cluster.pods(node, 2, 0);
    cluster.pods(node, 1, 5000);
    cluster.settle();
    assert_eq!(cluster.state.requests.len(), 2);
    (cluster, node, maintenance)
}

fn requested(cluster: &Cluster) -> usize {
    let requests = &cluster.state.requests;
    let is_requested = |pod: &&PodFacts| {
        let request = requests.get(&pod.uid);
        request.is_some_and(|request| request.has_maintenance_requester)
    };
    cluster.state.pods.iter().filter(is_requested).count()
}

#[test]
fn lost_finalizer_is_restored_and_nothing_else_changes() {
    let (mut cluster, _, maintenance) = in_mid_drain();
    cluster.state.maintenances[maintenance].has_finalizer = false;
    let plan = cluster.execute();
    let action = MaintenanceAction::AddFinalizer { is_restored: true };
    assert_eq!(plan.maintenances, [(maintenance, action)]);
    assert_eq!((plan.nodes, plan.requests), (vec![], vec![]));
    assert_eq!(cluster.execute(), Plan::default());
}

#[test]
fn nodes_of_a_vanished_maintenance_stay_until_their_annotation_is_removed() {
    let (mut cluster, node, _) = in_mid_drain();
    cluster.state.nodes[node].is_tainted = true;
    cluster.state.maintenances.clear();
    let plan = cluster.execute();
    assert_eq!(plan.requests.len(), 2, "nobody wants the pods to leave: {plan:?}");
    cluster.settle();
    let held = &cluster.state.nodes[node];
    assert!(held.is_unschedulable && held.is_tainted);
    let record = held.record.as_ref().unwrap();
    assert_eq!(record.vanished, ["m"]);
    assert!(
        record.message.contains("m vanished") && record.message.contains("annotation"),
        "{}",
        record.message
    );
    assert_eq!(requested(&cluster), 0);
    // A person makes the node schedulable: nobody fights for it.
    cluster.state.nodes[node].is_unschedulable = false;
    assert_eq!(cluster.execute(), Plan::default());
    cluster.state.nodes[node].is_unschedulable = true;

    cluster.state.nodes[node].record = None;
    cluster.settle();
    let released = &cluster.state.nodes[node];
    assert!(released.record.is_none() && !released.is_tainted);
    assert!(
        released.is_unschedulable,
        "it is uncordoned by whoever released it"
    );
    assert_eq!(requested(&cluster), 0);
}

#[test]
fn deletion_without_the_finalizer_is_no_completion() {
    let (mut cluster, node, maintenance) = in_mid_drain();
    cluster.state.maintenances[maintenance].has_finalizer = false;
    cluster.state.maintenances[maintenance].is_deleting = true;
    cluster.settle();
    assert!(cluster.state.nodes[node].is_unschedulable);
    assert_eq!(cluster.state.nodes[node].record.as_ref().unwrap().vanished, ["m"]);
    assert_eq!(requested(&cluster), 0);
}

#[test]
fn maintenance_created_again_takes_over_and_completes_exactly() {
    for was_unschedulable in [false, true] {
        let mut cluster = Cluster::default();
        let node = cluster.node("one");
        cluster.state.nodes[node].is_unschedulable = was_unschedulable;
        cluster.maintenance("m", &[node], &full_plan());
        cluster.pods(node, 1, 0);
        cluster.settle();
        let mut again = cluster.state.maintenances.remove(0);
        cluster.settle();
        again.uid = "again-uid".to_owned();
        again.status = NodeMaintenanceStatus::default();
        again.stage = Stage::Idle;
        again.has_finalizer = false;
        cluster.state.maintenances.push(again);
        cluster.settle();
        assert_eq!(cluster.state.nodes[node].record.as_ref().unwrap().vanished, ["m"]);
        cluster.state.maintenances[0].stage = Stage::Drain;
        cluster.settle();
        let record = cluster.state.nodes[node].record.as_ref().unwrap();
        assert!(record.vanished.is_empty());
        assert_eq!(record.maintenances[0].uid, "again-uid");
        let before = if was_unschedulable { vec!["one"] } else { vec![] };
        assert_eq!(cluster.status(0).cordoned_before, before);
        cluster.state.maintenances[0].stage = Stage::Complete;
        cluster.settle();
        assert_eq!(cluster.state.nodes[node].is_unschedulable, was_unschedulable);
        assert!(!cluster.state.maintenances[0].has_finalizer);
        assert_eq!(requested(&cluster), 0);
    }
}

#[test]
fn maintenance_of_the_same_name_that_selects_other_nodes_releases_nothing() {
    let (mut cluster, node, _) = in_mid_drain();
    let other = cluster.node("other");
    let again = &mut cluster.state.maintenances[0];
    again.uid = "again-uid".to_owned();
    again.nodes = vec![other];
    cluster.settle();
    assert_eq!(cluster.state.nodes[node].record.as_ref().unwrap().vanished, ["m"]);
    cluster.state.maintenances[0].stage = Stage::Complete;
    cluster.settle();
    assert!(cluster.state.nodes[node].is_unschedulable && !cluster.state.nodes[other].is_unschedulable);
    assert!(!cluster.state.maintenances[0].has_finalizer);
}

#[test]
fn node_with_a_vanished_maintenance_stays_when_another_one_completes() {
    let (mut cluster, node, _) = in_mid_drain();
    let other = cluster.maintenance("other", &[node], &full_plan());
    cluster.settle();
    cluster.state.maintenances.remove(0);
    let other = other - 1;
    cluster.settle();
    let record = cluster.state.nodes[node].record.as_ref().unwrap();
    assert_eq!(record.vanished, ["m"]);
    cluster.state.maintenances[other].stage = Stage::Complete;
    cluster.settle();
    assert!(!cluster.state.maintenances[other].has_finalizer);
    let held = &cluster.state.nodes[node];
    assert!(held.is_unschedulable);
    let names = |record: &NodeRecord| -> Vec<String> {
        let name = |one: &HoldingMaintenance| one.name.clone();
        record.maintenances.iter().map(name).collect()
    };
    assert_eq!(names(held.record.as_ref().unwrap()), ["m"]);
    assert_eq!(requested(&cluster), 0);
}

#[test]
fn lost_annotation_is_restored_with_level_and_original_state() {
    for was_unschedulable in [false, true] {
        let mut cluster = Cluster::default();
        let node = cluster.node("one");
        cluster.state.nodes[node].is_unschedulable = was_unschedulable;
        let maintenance = cluster.maintenance("m", &[node], &full_plan());
        cluster.pods(node, 1, 0);
        cluster.pods(node, 1, 5000);
        cluster.settle();
        cluster.leave(node, 1);
        cluster.settle();
        // It arrives late, so that the first entry of the plan has a pod again.
        cluster.pods(node, 1, 0);
        cluster.settle();
        let before = cluster.state.nodes[node].clone();
        cluster.state.nodes[node].record = None;
        let plan = cluster.execute();
        assert!(plan.requests.is_empty(), "{plan:?}");
        let [
            (
                _,
                NodeAction::Hold {
                    is_restored: true, ..
                },
            ),
        ] = plan.nodes.as_slice()
        else {
            panic!("{plan:?}");
        };
        assert_eq!(cluster.state.nodes[node], before);
        // The annotation is lost, and nobody sees it before the maintenance is completed.
        cluster.state.nodes[node].record = None;
        cluster.state.maintenances[maintenance].stage = Stage::Complete;
        cluster.settle();
        assert_eq!(cluster.state.nodes[node].is_unschedulable, was_unschedulable);
        assert!(!cluster.state.maintenances[maintenance].has_finalizer);
        assert_eq!(requested(&cluster), 0);
    }
}

#[test]
fn node_is_touched_only_after_the_status_says_that_it_was_cordoned() {
    let mut cluster = Cluster::default();
    let node = cluster.node("one");
    cluster.state.nodes[node].is_unschedulable = true;
    cluster.maintenance("m", &[node], &full_plan());
    assert!(cluster.execute().nodes.is_empty());
    assert_eq!(cluster.status(0).cordoned_before, ["one"]);
    cluster.settle();
    // Only the status counts: the annotation is a copy.
    cluster.state.nodes[node]
        .record
        .as_mut()
        .unwrap()
        .was_unschedulable = false;
    cluster.settle();
    assert!(
        cluster.state.nodes[node]
            .record
            .as_ref()
            .unwrap()
            .was_unschedulable
    );
    assert!(
        !cluster
            .events
            .iter()
            .any(|event| matches!(event, MaintenanceEvent::CordonConflict { .. })),
        "{:?}",
        cluster.events
    );
}

/// The node that was cordoned before is gone, and a schedulable one has its name. The status says so before the node is
/// touched: otherwise whoever reads the old status and the new record takes the cordon for an older one.
#[test]
fn new_node_of_the_name_of_one_that_was_cordoned_before_becomes_schedulable_again() {
    let mut cluster = Cluster::default();
    let node = cluster.node("one");
    cluster.state.nodes[node].is_unschedulable = true;
    cluster.maintenance("m", &[node], &full_plan());
    cluster.settle();
    assert_eq!(cluster.status(0).cordoned_before, ["one"]);
    cluster.state.nodes[node] = NodeFacts {
        name: "one".to_owned(),
        ..NodeFacts::default()
    };
    let before = cluster.state.maintenances[0].status.clone();
    cluster.execute();
    if cluster.state.nodes[node].record.is_some() {
        // The watch of maintenances is behind that of nodes, or the process ended after its first write.
        cluster.state.maintenances[0].status = before;
    }
    cluster.settle();
    let held = &cluster.state.nodes[node];
    assert!(held.is_unschedulable && held.record.is_some());
    assert!(
        cluster.status(0).cordoned_before.is_empty(),
        "{:?}",
        cluster.status(0)
    );
    cluster.state.maintenances[0].stage = Stage::Complete;
    cluster.settle();
    assert!(!cluster.state.nodes[node].is_unschedulable);
}

#[test]
fn damaged_annotation_of_no_maintenance_is_left_alone() {
    let mut cluster = Cluster::default();
    let node = cluster.node("one");
    cluster.state.nodes[node].is_unschedulable = true;
    cluster.state.nodes[node].is_tainted = true;
    cluster.state.nodes[node].record_source = RecordSource::Damaged;
    assert_eq!(cluster.execute(), Plan::default());
}

#[test]
fn idle_maintenance_with_a_finalizer_goes_when_it_is_deleted() {
    let mut cluster = Cluster::default();
    let node = cluster.node("one");
    let maintenance = cluster.maintenance("m", &[node], &full_plan());
    cluster.state.maintenances[maintenance].stage = Stage::Idle;
    assert_eq!(cluster.execute(), Plan::default());
    cluster.state.maintenances[maintenance].is_deleting = true;
    let plan = cluster.execute();
    assert_eq!(
        plan.maintenances,
        [(maintenance, MaintenanceAction::RemoveFinalizer)]
    );
    assert!(plan.nodes.is_empty());
}
