use super::*;
use crate::nodemaintenance::successor::{Life, Origin, SETTLING, pause};
use proptest::prelude::*;

/// A controller that creates a pod on node `one` as soon as the last one is gone.
struct Scenario {
    cluster: Cluster,
    maintenance: usize,
    evictions: u32,
}

impl Scenario {
    fn new() -> Self {
        let mut cluster = Cluster::default();
        let node = cluster.node("one");
        let maintenance = cluster.maintenance("m", &[node], &full_plan());
        let mut scenario = Self {
            cluster,
            maintenance,
            evictions: 0,
        };
        scenario.create_pod();
        scenario.cluster.settle();
        scenario
    }

    fn create_pod(&mut self) {
        let created = self.cluster.now();
        self.cluster.pods(0, 1, 0);
        let pod = self.cluster.state.pods.last_mut().unwrap();
        pod.created = Some(created);
        pod.controller = Some(Controller {
            kind: "ReplicaSet".to_owned(),
            name: "web".to_owned(),
            uid: "rs-1".to_owned(),
        });
    }

    /// Ends the pod if it is requested to leave. The life is recorded as the controller would find it in its store.
    fn evict(&mut self) -> bool {
        let Some(pod) = self.cluster.state.pods.first().cloned() else {
            return false;
        };
        if !self.cluster.state.requests.contains_key(&pod.uid) {
            return false;
        }
        self.cluster.state.pods.remove(0);
        self.cluster.state.requests.remove(&pod.uid);
        self.evictions += 1;
        // The first pod was created before the drain began.
        if self.evictions > 1 {
            self.cluster.state.lives.push(Life {
                origin: Origin {
                    node: "one".to_owned(),
                    kind: "ReplicaSet".to_owned(),
                    name: "web".to_owned(),
                    uid: "rs-1".to_owned(),
                    is_first: false,
                },
                namespace: pod.namespace.clone(),
                requested_at: self.cluster.now(),
                ended_at: Some(self.cluster.now()),
            });
        }
        true
    }

    fn is_drained(&self) -> bool {
        self.cluster.status(self.maintenance).conditions[0].status == "True"
    }

    fn message(&self) -> &str {
        &self.cluster.status(self.maintenance).conditions[0].message
    }

    /// Lets time pass: every second the pod leaves if it was requested to, and comes back.
    fn run(&mut self, seconds: i64) {
        for _ in 0..seconds {
            self.cluster.elapsed += 1;
            if self.evict() {
                self.cluster.settle();
                assert!(self.evictions == 1 || !self.is_drained(), "between two lives");
                self.create_pod();
            }
            self.cluster.settle();
            assert!(!self.is_drained());
        }
    }
}

#[test]
fn controller_that_comes_back_is_evicted_with_a_growing_pause_and_named() {
    let mut scenario = Scenario::new();
    scenario.run(4);
    assert_eq!(scenario.evictions, 4, "the first pod and three successors");
    let named = "ReplicaSet shop/web has come back to node one 3 times (ComesBack); \
                 it is requested to leave again at 1970-01-12T13:47:44Z";
    assert_eq!(
        scenario.message(),
        format!("Targeted pods are left on selected nodes. {named}.")
    );
    assert!(scenario.cluster.events.iter().any(
        |event| matches!(event, MaintenanceEvent::ComesBack { description, .. } if description == named)
    ));
    let [blocker] = scenario.cluster.status(scenario.maintenance).blockers.as_slice() else {
        panic!("one blocker")
    };
    assert_eq!(
        (blocker.reason.as_str(), blocker.message.as_str()),
        ("ComesBack", named)
    );
    assert_eq!((blocker.pod.as_str(), blocker.request.as_str()), ("pod-5", ""));
    assert_eq!(
        blocker.since.as_ref().unwrap().0.as_second(),
        now().as_second() + 2
    );
    for (seconds, evictions) in [(60, 4), (1, 5), (120, 5), (1, 6)] {
        scenario.run(seconds);
        assert_eq!(scenario.evictions, evictions);
    }
    scenario.run(3600);
    assert!(scenario.evictions <= 12, "{}", scenario.evictions);
}

/// Their grace period is long, and their controller creates the next pod as soon as one is being deleted.
#[test]
fn pods_that_have_not_ended_yet_count_as_lives() {
    let mut scenario = Scenario::new();
    for _ in 0..120 {
        scenario.cluster.elapsed += 1;
        let last = scenario.cluster.state.pods.last().unwrap().clone();
        if scenario.cluster.state.requests.contains_key(&last.uid) {
            if scenario.cluster.state.pods.len() > 1 {
                scenario.cluster.state.lives.push(Life {
                    origin: Origin {
                        node: "one".to_owned(),
                        kind: "ReplicaSet".to_owned(),
                        name: "web".to_owned(),
                        uid: "rs-1".to_owned(),
                        is_first: false,
                    },
                    namespace: last.namespace.clone(),
                    requested_at: scenario.cluster.now(),
                    ended_at: None,
                });
            }
            scenario.create_pod();
        }
        scenario.cluster.settle();
        assert!(!scenario.is_drained());
    }
    // The first pod, three successors, and one after each pause.
    assert_eq!(scenario.cluster.state.requests.len(), 5);
    assert!(
        scenario.message().contains("4 times (ComesBack)"),
        "{}",
        scenario.message()
    );
}

#[test]
fn next_plan_is_due_when_the_pause_ends() {
    let mut scenario = Scenario::new();
    scenario.run(4);
    let ended_at = scenario.cluster.state.lives.last().unwrap().ended_at.unwrap();
    scenario.cluster.elapsed += 30;
    let resumed = ended_at.checked_add(pause(3)).unwrap();
    assert_eq!(scenario.cluster.execute().next, Some(resumed));
}

#[test]
fn node_is_drained_when_no_successor_follows() {
    let mut scenario = Scenario::new();
    scenario.run(2);
    scenario.cluster.elapsed += 1;
    assert!(scenario.evict());
    scenario.cluster.settle();
    assert!(!scenario.is_drained());
    let plan = scenario.cluster.execute();
    let settled = scenario.cluster.now().checked_add(SETTLING).unwrap();
    assert_eq!(plan.next, Some(settled));
    scenario.cluster.elapsed += i64::try_from(SETTLING.as_secs()).unwrap();
    scenario.cluster.settle();
    assert!(scenario.is_drained());
    assert_eq!(scenario.cluster.execute().next, None);
}

/// A node whose only pod may come back: its controller names the node, for example.
fn first_pod() -> Cluster {
    let mut cluster = Cluster::default();
    let node = cluster.node("one");
    cluster.maintenance("m", &[node], &full_plan());
    cluster.pods(node, 1, 0);
    let pod = &mut cluster.state.pods[0];
    pod.may_come_back = true;
    pod.controller = Some(Controller {
        kind: "ReplicaSet".to_owned(),
        name: "web".to_owned(),
        uid: "rs-1".to_owned(),
    });
    cluster
}

fn first_life(ended_at: Option<Timestamp>) -> Life {
    Life {
        origin: Origin {
            node: "one".to_owned(),
            kind: "ReplicaSet".to_owned(),
            name: "web".to_owned(),
            uid: "rs-1".to_owned(),
            is_first: true,
        },
        namespace: "shop".to_owned(),
        requested_at: now(),
        ended_at,
    }
}

#[test]
fn node_is_not_drained_between_the_first_pod_and_its_successor() {
    let mut cluster = first_pod();
    let plan = cluster.execute();
    assert_eq!(plan.requests, [(0, RequestAction::Create { origin: Some(true) })]);
    let is_drained = |cluster: &mut Cluster| {
        cluster.settle();
        cluster.status(0).conditions[0].status == "True"
    };
    // The pod is gone, and the request has not noticed it.
    cluster.state.pods.clear();
    cluster.state.lives = vec![first_life(None)];
    assert!(!is_drained(&mut cluster));
    cluster.state.lives = vec![first_life(Some(now()))];
    assert!(!is_drained(&mut cluster));
    assert_eq!(cluster.status(0).blockers, [], "it is no life of a successor");
    let settled = now().checked_add(SETTLING).unwrap();
    assert_eq!(cluster.execute().next, Some(settled));
    cluster.elapsed += i64::try_from(SETTLING.as_secs()).unwrap();
    assert!(is_drained(&mut cluster), "it stays so");
}

#[test]
fn lives_of_an_earlier_maintenance_do_not_count() {
    let mut scenario = Scenario::new();
    scenario.run(4);
    let status = &mut scenario.cluster.state.maintenances[0].status;
    let later = scenario.cluster.elapsed + 1;
    scenario.cluster.elapsed = later;
    status.stage_statuses[0].start_timestamp = Some(whole_seconds(
        Timestamp::from_second(now().as_second() + later).unwrap(),
    ));
    let plan = scenario.cluster.execute();
    assert_eq!(plan.requests, [(0, RequestAction::Create { origin: None })]);
}

proptest! {
    /// However often a pod comes back and whenever its controller creates it, its evictions are bounded and each
    /// follows the pause.
    #[test]
    fn evictions_of_successors_are_bounded(delays in proptest::collection::vec(0_i64..40, 1..60)) {
        let mut scenario = Scenario::new();
        let mut lives = 0;
        let mut last = None;
        for delay in delays {
            scenario.cluster.elapsed += delay + 1;
            scenario.cluster.settle();
            let now = scenario.cluster.now();
            if scenario.evict() {
                if scenario.evictions > 1 {
                    if let Some(last) = last {
                        let due = Timestamp::checked_add(last, pause(lives)).unwrap();
                        prop_assert!(now >= due, "{now} {due}");
                    }
                    lives += 1;
                    last = Some(now);
                }
                scenario.create_pod();
            }
            scenario.cluster.settle();
            prop_assert!(!scenario.is_drained());
        }
    }
}
