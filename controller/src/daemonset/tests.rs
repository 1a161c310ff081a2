use super::*;
use crate::fixtures::{ReceivedRequest, api_double, clock_at, context, empty_stores, merge, typed};
use crate::informer::Store;
use drydock_proto::kinds::nodemaintenance::{PodType, STATUS_ANNOTATION};
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

/// The calls for a pod without tolerations.
async fn calls(target: i32, entry: &Value) -> Vec<ReceivedRequest> {
    calls_with(target, entry, &json!([])).await
}

/// The calls where the APIs respond with the body of each request.
async fn calls_with(target: i32, entry: &Value, tolerations: &Value) -> Vec<ReceivedRequest> {
    calls_to(target, entry, tolerations, |request| (200, request.body.clone())).await
}

/// Reconciles the request of a DaemonSet pod with priority 2000 on a node whose targets reach this priority. Returns
/// the calls that were made.
async fn calls_to(
    target: i32,
    entry: &Value,
    tolerations: &Value,
    respond: impl Fn(&ReceivedRequest) -> (u16, Value) + Send + Sync + 'static,
) -> Vec<ReceivedRequest> {
    let plan = json!([{"podType": "DaemonSet", "podPriority": target}]);
    let record = json!({"maintenances": [{"name": "m", "stage": "Drain"}], "targets": plan});
    calls_for(
        &record,
        &plan,
        entry,
        &json!({"spec": {"tolerations": tolerations}}),
        respond,
    )
    .await
}

/// The same with this record of the node, this drain plan of its maintenance, and the pod changed by a merge patch.
async fn calls_for(
    record: &Value,
    plan: &Value,
    entry: &Value,
    patch: &Value,
    respond: impl Fn(&ReceivedRequest) -> (u16, Value) + Send + Sync + 'static,
) -> Vec<ReceivedRequest> {
    let node = json!({"metadata": {"name": "one", "annotations": {STATUS_ANNOTATION: record.to_string()}}});
    let mut pod = json!({
        "metadata": {
            "name": "agent", "namespace": "shop", "uid": "uid-1",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agents", "uid": "2", "controller": true}],
        },
        "spec": {"nodeName": "one", "priority": 2000, "terminationGracePeriodSeconds": 60},
    });
    merge(&mut pod, patch);
    let request = json!({
        "metadata": {"name": "uid-1", "namespace": "shop", "resourceVersion": "1"},
        "spec": {"target": {"pod": {"name": "agent", "uid": "uid-1"}}, "requesters": [{"name": "nodemaintenance.k8s.io"}]},
        "status": {
            "targetInterceptors": [{"name": DAEMON_SET_INTERCEPTOR}],
            "activeInterceptors": [DAEMON_SET_INTERCEPTOR],
            "interceptors": [entry],
        },
    });
    let maintenance = json!({"metadata": {"name": "m"}, "spec": {"stage": "Drain", "reason": "OS upgrade", "drainPlan": plan}});
    let (clients, received) = api_double(respond);
    let stores = Stores {
        requests: Store::synced_with(vec![typed(request)]),
        maintenances: Store::synced_with(vec![typed(maintenance)]),
        pods: Store::synced_with(vec![typed(pod)]),
        nodes: Store::synced_with(vec![typed(node)]),
        ..empty_stores()
    };
    let controller = Controller::new(context(stores, clients, &clock_at(1000)));
    let outcome = controller
        .reconcile(("shop".to_owned(), "uid-1".to_owned()))
        .await;
    assert!(matches!(outcome, Outcome::Wait(_)), "{outcome:?}");
    let received = received.lock().unwrap();
    received.clone()
}

#[tokio::test]
async fn targeted_pod_is_deleted_after_a_heartbeat() {
    let received = calls(2000, &json!({"name": DAEMON_SET_INTERCEPTOR})).await;
    let methods: Vec<_> = received.iter().map(|received| received.method.as_str()).collect();
    assert_eq!(methods, ["PATCH", "DELETE"]);
    let entry = &received[0].body["status"]["interceptors"][0];
    assert_eq!(
        entry["message"],
        "agents is terminating the pod due to node maintenance (OS upgrade)."
    );
    assert_eq!(entry["startTime"], entry["heartbeatTime"]);
    assert_eq!(entry["expectedFinishTime"], "1970-01-01T00:17:40Z");
    assert_eq!(received[1].path, "/api/v1/namespaces/shop/pods/agent");
    assert_eq!(received[1].body["preconditions"]["uid"], "uid-1");
}

/// The store is behind: the request has been canceled, or nobody wants the pod to leave any more.
#[tokio::test]
async fn pod_of_a_canceled_request_is_not_deleted() {
    let entries = [
        json!({"name": DAEMON_SET_INTERCEPTOR}),
        json!({"name": DAEMON_SET_INTERCEPTOR, "startTime": "1970-01-01T00:16:30Z",
            "heartbeatTime": "1970-01-01T00:16:30Z"}),
    ];
    for entry in entries {
        for (requesters, conditions) in [
            (json!([]), json!([])),
            (
                json!([{"name": "nodemaintenance.k8s.io"}]),
                json!([{"type": "Canceled", "status": "True", "reason": "NoRequesters", "message": "",
                "lastTransitionTime": "1970-01-01T00:16:40Z"}]),
            ),
        ] {
            let canceled = json!({
                "metadata": {"name": "uid-1", "namespace": "shop", "resourceVersion": "2"},
                "spec": {"target": {"pod": {"name": "agent", "uid": "uid-1"}}, "requesters": requesters},
                "status": {
                    "targetInterceptors": [{"name": DAEMON_SET_INTERCEPTOR}],
                    "activeInterceptors": [DAEMON_SET_INTERCEPTOR],
                    "interceptors": [entry],
                    "conditions": conditions,
                },
            });
            let conflict = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 409,
                "reason": "Conflict", "message": "modified", "metadata": {}});
            let received = calls_to(2000, &entry, &json!([]), move |request| {
                match request.method.as_str() {
                    "GET" => (200, canceled.clone()),
                    _ => (409, conflict.clone()),
                }
            })
            .await;
            let methods: Vec<_> = received.iter().map(|received| received.method.as_str()).collect();
            assert!(!methods.contains(&"DELETE"), "{methods:?}");
        }
    }
}

#[tokio::test]
async fn pod_outside_the_targets_is_not_deleted() {
    assert!(
        calls(1999, &json!({"name": DAEMON_SET_INTERCEPTOR}))
            .await
            .is_empty()
    );
}

#[tokio::test]
async fn pod_that_tolerates_the_drain_taint_is_not_deleted() {
    let tolerations = json!([{"operator": "Exists"}]);
    let received = calls_with(2000, &json!({"name": DAEMON_SET_INTERCEPTOR}), &tolerations).await;
    assert_eq!(received, []);
}

/// The record states the entry that leaves pods out with the priority of the entry for all.
#[tokio::test]
async fn only_pods_that_a_plan_leaves_alone_are_not_deleted() {
    let leaves_out = |priority: i32| {
        json!({
            "podType": "DaemonSet", "podPriority": priority,
            "podSelector": {
                "matchLabels": {"app": "x"},
                "matchExpressions": [
                    {"key": "cluster.x-k8s.io/drain", "operator": "NotIn", "values": ["skip"]},
                ],
            },
        })
    };
    let all = json!({"podType": "DaemonSet", "podPriority": i32::MAX});
    let plan = json!([all, leaves_out(1000)]);
    let reached = json!({"podType": PodType::DaemonSet.rank(), "priority": i32::MAX, "isBare": true});
    let record = json!({
        "maintenances": [{"name": "m", "stage": "Drain"}],
        "targets": [all, leaves_out(i32::MAX)],
        "reached": reached,
    });
    let entry = json!({"name": DAEMON_SET_INTERCEPTOR});
    for (priority, is_deleted) in [(1000, false), (1001, true), (2_000_001_000, true)] {
        let labels = json!({"app": "x", "cluster.x-k8s.io/drain": "skip"});
        let patch = json!({"metadata": {"labels": labels}, "spec": {"priority": priority}});
        let received = calls_for(&record, &plan, &entry, &patch, |request| {
            (200, request.body.clone())
        })
        .await;
        let is_any = received.iter().any(|received| received.method == "DELETE");
        assert_eq!(is_any, is_deleted, "{priority}");
    }
}

#[tokio::test]
async fn completed_interceptor_does_nothing() {
    let done = json!({"name": DAEMON_SET_INTERCEPTOR, "completionTime": "1970-01-01T00:00:10Z"});
    assert!(calls(2000, &done).await.is_empty());
}

#[test]
fn drain_targets_of_a_node_concern_only_requests_in_which_this_interceptor_is_active() {
    let request = |name: &str, active: &Value| -> EvictionRequest {
        typed(json!({
            "metadata": {"name": name, "namespace": "shop"},
            "spec": {"target": {"pod": {"name": "agent", "uid": name}}, "requesters": [{"name": "nodemaintenance.k8s.io"}]},
            "status": {"activeInterceptors": active, "interceptors": [{"name": DAEMON_SET_INTERCEPTOR}]},
        }))
    };
    let ours = json!([DAEMON_SET_INTERCEPTOR]);
    let (mut informers, stores) = Informers::new();
    let metrics = crate::metrics::Metrics::default();
    let queue = Arc::new(WorkQueue::new(clock_at(0), metrics.queue("daemonsets")));
    add_handlers(&mut informers, &stores, &queue);
    let taken = || -> Vec<String> {
        let keys = std::iter::from_fn(|| queue.try_next());
        let mut names: Vec<_> = keys
            .inspect(|key| queue.done(key, Outcome::Wait(None)))
            .map(|key| key.1)
            .collect();
        names.sort();
        names
    };
    for (name, active) in [("a", &ours), ("b", &ours), ("c", &json!(["other.example.com"]))] {
        informers.requests.deliver(Event::Apply(request(name, active)));
    }
    assert_eq!(taken(), ["a", "b"]);
    let reach = |nodes: &mut crate::informer::Informer<Node>, priority: i32| {
        let targets = json!([{"podType": "DaemonSet", "podPriority": priority}]);
        let record = json!({"maintenances": [{"name": "m", "stage": "Drain"}], "targets": targets});
        let node =
            json!({"metadata": {"name": "one", "annotations": {STATUS_ANNOTATION: record.to_string()}}});
        nodes.deliver(Event::Apply(typed(node)));
    };
    reach(&mut informers.nodes, 1000);
    assert_eq!(taken(), ["a", "b"]);
    reach(&mut informers.nodes, 1000);
    assert!(taken().is_empty(), "the targets are those before");
    informers.requests.deliver(Event::Apply(request("a", &json!([]))));
    informers.requests.deliver(Event::Delete(request("b", &ours)));
    reach(&mut informers.nodes, 2000);
    assert!(taken().is_empty());
}
