use super::*;
use crate::nodemaintenance::model::Obstacle;
use drydock_proto::kinds::nodemaintenance::{Blocker, MAX_BLOCKER_MESSAGE_BYTES, MAX_BLOCKERS};
use proptest::prelude::*;

fn obstacle(since: i64, reason: &str, message: &str) -> Obstacle {
    Obstacle {
        since: Timestamp::from_second(since).unwrap(),
        reason: reason.to_owned(),
        message: message.to_owned(),
    }
}

impl Cluster {
    /// Sets the obstacle of the request of the pod with this number.
    fn obstruct(&mut self, pod: usize, obstacle: Obstacle) {
        let request = self.state.requests.get_mut(&format!("uid-{pod}")).unwrap();
        request.obstacle = Some(obstacle);
    }

    fn blockers(&self, maintenance: usize) -> &[Blocker] {
        &self.status(maintenance).blockers
    }
}

#[test]
fn blockers_name_pod_request_and_cause_until_it_is_gone() {
    let mut cluster = Cluster::default();
    let node = cluster.node("one");
    let maintenance = cluster.maintenance("m", &[node], &full_plan());
    cluster.pods(node, 2, 0);
    cluster.settle();
    assert_eq!(cluster.blockers(maintenance), []);
    cluster.obstruct(2, obstacle(500, "Budget", "blocked by PodDisruptionBudget db"));
    cluster.settle();
    let expected = Blocker {
        node: "one".to_owned(),
        namespace: "shop".to_owned(),
        pod: "pod-2".to_owned(),
        request: "uid-2".to_owned(),
        reason: "Budget".to_owned(),
        message: "blocked by PodDisruptionBudget db".to_owned(),
        since: Some(whole_seconds(Timestamp::from_second(500).unwrap())),
    };
    assert_eq!(cluster.blockers(maintenance), [expected]);
    cluster.leave(node, 2);
    cluster.settle();
    assert_eq!(cluster.blockers(maintenance), []);
}

#[test]
fn blockers_are_those_of_the_selected_nodes_and_end_with_the_maintenance() {
    let mut cluster = Cluster::default();
    let [one, two] = ["one", "two"].map(|name| cluster.node(name));
    let first = cluster.maintenance("first", &[one], &full_plan());
    let second = cluster.maintenance("second", &[two], &full_plan());
    cluster.pods(one, 1, 0);
    cluster.pods(two, 1, 0);
    cluster.settle();
    cluster.obstruct(1, obstacle(5, "Webhook", "w"));
    cluster.settle();
    assert_eq!(cluster.blockers(first)[0].reason, "Webhook");
    assert_eq!(cluster.blockers(second), []);
    cluster.state.maintenances[first].stage = Stage::Complete;
    cluster.settle();
    assert_eq!(cluster.blockers(first), []);
}

#[test]
fn maintenance_without_nodes_is_blocked_since_its_start() {
    let mut cluster = Cluster::default();
    let maintenance = cluster.maintenance("m", &[], &full_plan());
    cluster.settle();
    let [blocker] = cluster.blockers(maintenance) else {
        panic!("one blocker")
    };
    assert_eq!(blocker.reason, "NoNodeSelected");
    assert_eq!(blocker.since, Some(whole_seconds(now())));
}

#[test]
fn static_pods_are_blockers_when_they_must_be_gone() {
    for (static_pods, count) in [(StaticPods::Required, 1), (StaticPods::Reported, 0)] {
        let mut cluster = Cluster::default();
        cluster.state.static_pods = static_pods;
        let node = cluster.node("one");
        let maintenance = cluster.maintenance("m", &[node], &full_plan());
        cluster.typed_pods(node, 1, &PodType::Static, 0);
        cluster.settle();
        let blockers = cluster.blockers(maintenance);
        assert_eq!(blockers.len(), count);
        assert!(blockers.iter().all(|blocker| blocker.reason == "StaticPod"));
    }
}

#[test]
fn tolerant_daemon_set_pods_are_no_blockers() {
    let mut cluster = Cluster::default();
    let node = cluster.node("one");
    let maintenance = cluster.maintenance("m", &[node], &full_plan());
    cluster.tolerant_daemon_set_pods(node, 1, "kube-proxy");
    cluster.settle();
    assert_eq!(cluster.blockers(maintenance), []);
}

proptest! {
    /// The list has the oldest blockers in order, is bounded, and contains each obstructed pod while there is room.
    #[test]
    fn blockers_are_the_oldest_and_bounded(ages in proptest::collection::vec(0_i64..50, 1..40), length in 0_usize..3000) {
        let mut cluster = Cluster::default();
        let node = cluster.node("one");
        let maintenance = cluster.maintenance("m", &[node], &full_plan());
        cluster.pods(node, ages.len(), 0);
        cluster.settle();
        for (index, age) in ages.iter().enumerate() {
            cluster.obstruct(index + 1, obstacle(100 - age, "Budget", &"ö".repeat(length)));
        }
        cluster.settle();
        let found: Vec<i64> = cluster
            .blockers(maintenance)
            .iter()
            .map(|blocker| 100 - blocker.since.as_ref().unwrap().0.as_second())
            .collect();
        let mut expected = ages;
        expected.sort_by(|a, b| b.cmp(a));
        expected.truncate(MAX_BLOCKERS);
        prop_assert_eq!(found, expected);
        prop_assert!(cluster.blockers(maintenance).iter().all(|one| one.message.len() <= MAX_BLOCKER_MESSAGE_BYTES));
    }
}
