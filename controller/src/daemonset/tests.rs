use super::*;
use crate::api::tests::{Seen, double};
use crate::events::Events;
use crate::informer::tests::store;
use crate::metrics::Metrics;
use drydock_machinery::clock::ManualClock;
use drydock_proto::kinds::nodemaintenance::STATUS_ANNOTATION;
use jiff::Timestamp;
use serde_json::{Value, json};
use std::sync::Mutex;

/// Reconciles the request of a DaemonSet pod with priority 2000 on a node whose targets reach so far; yields the
/// calls that were made.
async fn calls(target: i32, entry: &Value) -> Vec<Seen> {
    let record = json!({
        "maintenances": [{"name": "m", "stage": "Drain"}],
        "targets": [{"podType": "DaemonSet", "podPriority": target}],
    });
    let node = json!({"metadata": {"name": "one", "annotations": {STATUS_ANNOTATION: record.to_string()}}});
    let pod = json!({
        "metadata": {
            "name": "agent", "namespace": "shop", "uid": "uid-1",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agents", "uid": "2", "controller": true}],
        },
        "spec": {"nodeName": "one", "priority": 2000, "terminationGracePeriodSeconds": 60},
    });
    let request = json!({
        "metadata": {"name": "uid-1", "namespace": "shop", "resourceVersion": "1"},
        "spec": {"target": {"pod": {"name": "agent", "uid": "uid-1"}}, "requesters": [{"name": "nodemaintenance.k8s.io"}]},
        "status": {
            "targetInterceptors": [{"name": DAEMON_SET_INTERCEPTOR}],
            "activeInterceptors": [DAEMON_SET_INTERCEPTOR],
            "interceptors": [entry],
        },
    });
    let maintenance = json!({"metadata": {"name": "m"}, "spec": {"stage": "Drain", "reason": "OS upgrade"}});
    let (client, seen) = double(|seen| (200, seen.body.clone()));
    let clients = Clients {
        host: client.clone(),
        ours: client,
    };
    let typed = |value: Value| serde_json::from_value(value).unwrap();
    let stores = Stores {
        requests: store(vec![typed(request)]),
        maintenances: store(vec![serde_json::from_value(maintenance).unwrap()]),
        rules: store(Vec::new()),
        pods: store(vec![serde_json::from_value(pod).unwrap()]),
        nodes: store(vec![serde_json::from_value(node).unwrap()]),
        namespaces: store(Vec::new()),
        budgets: store(Vec::new()),
    };
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(Timestamp::from_second(1000).unwrap()));
    let (events, _) = Events::new(Arc::clone(&clock), "test");
    let actor = act::Actor::new(clients.clone(), events, Metrics::default(), Arc::clone(&clock));
    let controller = Controller::new(stores, clients, actor, clock);
    let outcome = controller
        .reconcile(("shop".to_owned(), "uid-1".to_owned()))
        .await;
    assert!(matches!(outcome, Outcome::Wait(_)), "{outcome:?}");
    let seen: &Mutex<Vec<Seen>> = &seen;
    seen.lock().unwrap().clone()
}

#[tokio::test]
async fn a_targeted_pod_is_reported_on_and_deleted() {
    let seen = calls(2000, &json!({"name": DAEMON_SET_INTERCEPTOR})).await;
    let methods: Vec<_> = seen.iter().map(|seen| seen.method.as_str()).collect();
    assert_eq!(methods, ["PATCH", "DELETE"]);
    let entry = &seen[0].body["status"]["interceptors"][0];
    assert_eq!(
        entry["message"],
        "agents is terminating the pod due to node maintenance (OS upgrade)."
    );
    assert_eq!(entry["startTime"], entry["heartbeatTime"]);
    assert_eq!(entry["expectedFinishTime"], "1970-01-01T00:17:40Z");
    assert_eq!(seen[1].path, "/api/v1/namespaces/shop/pods/agent");
    assert_eq!(seen[1].body["preconditions"]["uid"], "uid-1");
}

#[tokio::test]
async fn a_pod_that_is_no_target_yet_is_left_alone() {
    assert!(
        calls(1999, &json!({"name": DAEMON_SET_INTERCEPTOR}))
            .await
            .is_empty()
    );
}

#[tokio::test]
async fn an_interceptor_that_is_done_does_nothing() {
    let done = json!({"name": DAEMON_SET_INTERCEPTOR, "completionTime": "1970-01-01T00:00:10Z"});
    assert!(calls(2000, &done).await.is_empty());
}
