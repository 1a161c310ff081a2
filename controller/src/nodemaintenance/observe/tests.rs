use super::*;
use crate::fixtures::{empty_stores, pod, typed};
use crate::informer::Change;
use crate::nodemaintenance::plan::plan;
use drydock_proto::kinds::nodemaintenance::STATUS_ANNOTATION;
use proptest::prelude::*;
use serde_json::json;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// Stores and their index, which change together as informers change them.
struct Cluster {
    stores: Stores,
    index: Arc<ClusterIndex>,
    /// The last resource version.
    version: u64,
}

impl Cluster {
    /// Four nodes, one of which is in pool `b`, and a maintenance of each pool.
    fn new() -> Self {
        let mut cluster = Self {
            stores: empty_stores(),
            index: Arc::default(),
            version: 0,
        };
        for number in 0..4 {
            cluster.put_node(number, if number == 3 { "b" } else { "a" });
        }
        for pool in ["a", "b"] {
            cluster.put_maintenance(pool, "Drain");
        }
        cluster
    }

    fn observer(&self) -> Observer {
        Observer::new(self.stores.clone(), Arc::clone(&self.index), StaticPods::Reported)
    }

    fn next_version(&mut self) -> String {
        self.version += 1;
        self.version.to_string()
    }

    fn put_node(&mut self, number: usize, pool: &str) {
        // As an earlier plan has left it.
        let record = json!({
            "maintenances": [{"name": pool, "uid": format!("{pool}-uid"), "stage": "Drain"}],
            "targets": [{"podType": "Default", "podPriority": 10}], "message": "Drained",
            "reached": {"podType": 0, "priority": 10, "isBare": true},
        });
        let version = self.next_version();
        self.stores.nodes.put(typed(json!({
            "metadata": {
                "name": format!("node-{number}"), "uid": format!("node-uid-{number}"), "resourceVersion": version,
                "labels": {"pool": pool}, "annotations": {STATUS_ANNOTATION: record.to_string()},
            },
            "spec": {"unschedulable": true},
        })));
    }

    fn put_maintenance(&mut self, pool: &str, stage: &str) {
        let version = self.next_version();
        self.stores.maintenances.put(typed(json!({
            "metadata": {
                "name": pool, "uid": format!("{pool}-uid"), "resourceVersion": version, "generation": 1,
                "finalizers": [COMPLETION_FINALIZER],
            },
            "spec": {
                "stage": stage,
                "drainPlan": [{"podType": "Default", "podPriority": 10}],
                "nodeSelector": {"nodeSelectorTerms": [{
                    "matchExpressions": [{"key": "pool", "operator": "In", "values": [pool]}],
                }]},
            },
        })));
    }

    fn put_pod(&self, number: usize, node: Option<usize>, phase: &str) {
        let (name, uid) = (format!("web-{number}"), format!("uid-{number}"));
        let old = self.stores.pods.get("shop", &name);
        let new = node.map(|node| {
            pod(&json!({
                "metadata": {"name": name, "uid": uid}, "status": {"phase": phase},
                "spec": {"nodeName": format!("node-{node}")},
            }))
        });
        match &new {
            Some(new) => drop(self.stores.pods.put(new.clone())),
            None => self.stores.pods.delete("shop", &name),
        }
        let new = self.stores.pods.get("shop", &name);
        self.index.pod_changed(&Change { old, new });
    }

    fn put_request(&self, number: usize, requester: &str, condition: &str) {
        let uid = format!("uid-{number}");
        let old = self.stores.requests.put(typed(json!({
            "metadata": {"name": uid, "namespace": "shop", "uid": format!("er-{number}")},
            "spec": {
                "target": {"pod": {"name": format!("web-{number}"), "uid": uid}},
                "requesters": [{"name": requester}],
            },
            "status": {"conditions": [{
                "type": condition, "status": "True", "reason": "r", "message": "",
                "lastTransitionTime": "1970-01-01T00:00:09Z",
            }]},
        })));
        let new = self.stores.requests.get("shop", &uid);
        self.index.request_changed(&Change { old, new });
    }
}

/// The names of the maintenances that are observed.
fn names(observation: &Observation) -> Vec<&str> {
    let maintenances = observation.cluster.state.maintenances.iter();
    maintenances.map(|one| one.name.as_str()).collect()
}

/// Observes and takes note of a plan with nothing to do.
fn settle(observer: &Observer, next: Option<Timestamp>) {
    let observation = observer.observe(at(1));
    let plan = Plan {
        next,
        ..Plan::default()
    };
    observer.planned(&observation, &plan, at(1));
    assert!(names(&observer.observe(at(1))).is_empty());
}

#[test]
fn change_of_one_node_leads_to_a_plan_of_its_maintenances_alone() {
    let mut cluster = Cluster::new();
    let observer = cluster.observer();
    assert_eq!(names(&observer.observe(at(1))), ["a", "b"]);
    settle(&observer, None);
    cluster.put_pod(1, Some(3), "Running");
    let observation = observer.observe(at(1));
    assert_eq!(names(&observation), ["b"]);
    assert_eq!(observation.cluster.state.nodes.len(), 1);
    assert_eq!(observation.cluster.state.maintenances[0].nodes, [0]);
    assert_eq!(observation.cluster.state.pods[0].node, 0);
    settle(&observer, None);
    cluster.put_request(1, "nodemaintenance.k8s.io", "Blocked");
    assert_eq!(names(&observer.observe(at(1))), ["b"]);
    settle(&observer, None);
    cluster.put_node(0, "a");
    assert_eq!(names(&observer.observe(at(1))), ["a"]);
    settle(&observer, None);
    cluster.put_maintenance("b", "Complete");
    assert_eq!(names(&observer.observe(at(1))), ["b"]);
    settle(&observer, None);
    // The pod is on a node that no maintenance concerns.
    cluster.put_pod(2, Some(9), "Running");
    assert!(names(&observer.observe(at(1))).is_empty());
}

#[test]
fn nodes_of_a_vanished_maintenance_are_planned() {
    let cluster = Cluster::new();
    let observer = cluster.observer();
    settle(&observer, None);
    cluster.stores.maintenances.delete("", "b");
    let state = observer.observe(at(1)).cluster.state;
    assert!(state.maintenances.is_empty());
    assert_eq!(state.nodes.len(), 1);
    assert_eq!(state.nodes[0].name, "node-3");
}

#[test]
fn groups_are_planned_again_when_their_plan_is_due_or_had_something_to_do() {
    let cluster = Cluster::new();
    let observer = cluster.observer();
    settle(&observer, Some(at(5)));
    assert_eq!(observer.observe(at(4)).next, Some(at(5)));
    let observation = observer.observe(at(5));
    assert_eq!(names(&observation), ["a", "b"]);
    let planned = plan(&observation.cluster.state, at(5));
    assert!(!planned.maintenances.is_empty(), "{planned:?}");
    observer.planned(&observation, &planned, at(5));
    assert_eq!(names(&observer.observe(at(5))), ["a", "b"]);
    settle(&observer, None);
    let resync = observer.observe(at(1)).next.unwrap();
    assert_eq!(resync, at(601));
    assert_eq!(names(&observer.observe(resync)), ["a", "b"]);
}

#[test]
fn pod_that_is_requested_to_leave_another_node_is_observed() {
    let cluster = Cluster::new();
    cluster
        .stores
        .nodes
        .put(typed(json!({"metadata": {"name": "other"}})));
    let observer = cluster.observer();
    let pods = |observer: &Observer| observer.observe(at(1)).cluster.state.pods.len();
    let old = cluster.stores.pods.put(pod(&json!({
        "metadata": {"name": "web-7", "uid": "uid-7"}, "spec": {"nodeName": "other"},
    })));
    let new = cluster.stores.pods.get("shop", "web-7");
    cluster.index.pod_changed(&Change { old, new });
    assert_eq!(pods(&observer), 0);
    cluster.put_request(7, "nodemaintenance.k8s.io", "Blocked");
    assert_eq!(pods(&observer), 1);
    cluster.put_request(7, "nodemaintenance.k8s.io", "Evicted");
    assert_eq!(pods(&observer), 0);
}

/// A change of the cluster.
#[derive(Debug, Clone, Copy)]
enum Event {
    Pod(usize, Option<usize>, &'static str),
    Request(usize, &'static str, &'static str),
    Node(usize, &'static str),
    Maintenance(&'static str, &'static str),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let pool = || prop_oneof![Just("a"), Just("b")];
    let requester = prop_oneof![Just("nodemaintenance.k8s.io"), Just("a.example.com")];
    let condition = prop_oneof![Just("Blocked"), Just("Evicted"), Just("Canceled")];
    let phase = prop_oneof![Just("Running"), Just("Failed")];
    let stage = prop_oneof![Just("Cordon"), Just("Drain"), Just("Complete"), Just("Idle")];
    let event = prop_oneof![
        4 => (0_usize..5, proptest::option::of(0_usize..4), phase)
            .prop_map(|(pod, node, phase)| Event::Pod(pod, node, phase)),
        4 => (0_usize..5, requester, condition)
            .prop_map(|(pod, requester, condition)| Event::Request(pod, requester, condition)),
        1 => (0_usize..4, pool()).prop_map(|(node, pool)| Event::Node(node, pool)),
        1 => (pool(), stage).prop_map(|(pool, stage)| Event::Maintenance(pool, stage)),
    ];
    proptest::collection::vec(event, 0..40)
}

/// What a plan depends on, in order.
fn facts(observation: &Observation) -> Vec<String> {
    let state = &observation.cluster.state;
    let mut facts: Vec<String> = state.nodes.iter().map(|one| format!("{one:?}")).collect();
    facts.extend(state.maintenances.iter().map(|one| format!("{one:?}")));
    facts.extend(state.pods.iter().map(|pod| {
        let request = state.requests.get(&pod.uid);
        format!("{pod:?} {request:?}")
    }));
    facts.sort();
    facts
}

proptest! {
    /// After any changes, an observer that has observed before sees the same as a new one; and what it leaves out has a
    /// plan with nothing to do.
    #[test]
    fn what_is_observed_step_by_step_equals_what_is_observed_at_once(events in events()) {
        let mut cluster = Cluster::new();
        let (observer, skipping) = (cluster.observer(), cluster.observer());
        for event in events {
            match event {
                Event::Pod(pod, node, phase) => cluster.put_pod(pod, node, phase),
                Event::Request(pod, requester, condition) => cluster.put_request(pod, requester, condition),
                Event::Node(node, pool) => cluster.put_node(node, pool),
                Event::Maintenance(pool, stage) => cluster.put_maintenance(pool, stage),
            }
            let whole = cluster.observer().observe(at(1));
            prop_assert_eq!(facts(&observer.observe(at(1))), facts(&whole));
            let observation = skipping.observe(at(1));
            let planned = plan(&observation.cluster.state, at(1));
            skipping.planned(&observation, &planned, at(1));
            let all = plan(&whole.cluster.state, at(1));
            prop_assert_eq!(
                (planned.nodes.len(), planned.requests.len(), planned.maintenances.len()),
                (all.nodes.len(), all.requests.len(), all.maintenances.len())
            );
        }
    }
}
