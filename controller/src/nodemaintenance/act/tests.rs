use super::*;
use crate::fixtures::{
    Received, ReceivedRequest, api_double, clock_at, context, empty_stores, failure, typed,
};
use crate::nodemaintenance::model::{ClusterState, NodeFacts};
use crate::nodemaintenance::node_state::NodeRecord;
use std::sync::Mutex;

/// An executor on an API double, with one observed node, pod and maintenance.
fn executor(
    respond: impl Fn(&ReceivedRequest) -> (u16, Value) + Send + Sync + 'static,
) -> (PlanExecutor, ObservedCluster, Received) {
    let (clients, received) = api_double(respond);
    let observed = ObservedCluster {
        state: ClusterState {
            nodes: vec![NodeFacts {
                name: "one".to_owned(),
                ..NodeFacts::default()
            }],
            pods: vec![PodFacts {
                uid: "uid-1".to_owned(),
                namespace: "shop".to_owned(),
                name: "web".to_owned(),
                ..PodFacts::default()
            }],
            ..ClusterState::default()
        },
        maintenances: vec![Arc::new(typed(json!({
            "metadata": {"name": "m", "resourceVersion": "5", "finalizers": ["other.example.com/keep"]},
        })))],
        nodes: vec![Arc::new(typed(
            json!({"metadata": {"name": "one", "resourceVersion": "3"}}),
        ))],
    };
    let executor = PlanExecutor::new(context(empty_stores(), clients, &clock_at(0)));
    (executor, observed, received)
}

fn hold() -> NodeAction {
    NodeAction::Hold {
        record: NodeRecord::default(),
        is_tainted: false,
    }
}

fn object(request: &ReceivedRequest) -> (u16, Value) {
    let name = request.last_segment();
    (200, json!({"metadata": {"name": name}, "spec": {}}))
}

#[tokio::test]
async fn nodes_are_changed_first_then_requests_then_maintenances() {
    let (executor, observed, received) = executor(object);
    let plan = Plan {
        nodes: vec![(0, hold())],
        requests: vec![(0, RequestAction::Create { is_successor: false })],
        maintenances: vec![(0, MaintenanceAction::AddFinalizer)],
        ..Plan::default()
    };
    assert_eq!(executor.execute(&observed, &plan).await, PlanOutcome::Complete);
    let received = received.lock().unwrap().clone();
    let calls: Vec<_> = received
        .iter()
        .map(|request| (request.method.as_str(), request.path.as_str()))
        .collect();
    let group = "/apis/coordination.k8s.io/v1alpha3";
    assert_eq!(
        calls,
        [
            ("PATCH", "/api/v1/nodes/one"),
            ("POST", &*format!("{group}/namespaces/shop/evictionrequests")),
            ("PATCH", &*format!("{group}/nodemaintenances/m")),
        ]
    );
    assert_eq!(received[0].body["metadata"]["resourceVersion"], "3");
    assert_eq!(received[1].body["metadata"]["name"], "uid-1");
    assert_eq!(
        received[1].body["spec"]["target"]["pod"],
        json!({"name": "web", "uid": "uid-1"})
    );
    assert_eq!(
        received[1].body["spec"]["requesters"],
        json!([{"name": NODE_MAINTENANCE_REQUESTER}])
    );
    let finalizers = json!(["other.example.com/keep", COMPLETION_FINALIZER]);
    assert_eq!(
        received[2].body["metadata"],
        json!({"resourceVersion": "5", "finalizers": finalizers})
    );
}

#[tokio::test]
async fn request_of_a_successor_records_its_origin_and_is_kept() {
    for is_taken in [false, true] {
        let (executor, mut observed, received) = executor(move |request| match request.method.as_str() {
            "POST" if is_taken => failure(409, "AlreadyExists", "exists", json!({})),
            "GET" => request_of_another(&json!({})),
            _ => object(request),
        });
        observed.state.pods[0].controller = Some(crate::nodemaintenance::model::Controller {
            kind: "ReplicaSet".to_owned(),
            name: "web".to_owned(),
            uid: "rs-1".to_owned(),
        });
        let plan = Plan {
            requests: vec![(0, RequestAction::Create { is_successor: true })],
            ..Plan::default()
        };
        assert_eq!(executor.execute(&observed, &plan).await, PlanOutcome::Complete);
        let received = received.lock().unwrap().clone();
        let written = &received.last().unwrap().body;
        let origin = written["metadata"]["annotations"][SUCCESSOR_ANNOTATION]
            .as_str()
            .unwrap();
        let expected = json!({"node": "one", "kind": "ReplicaSet", "name": "web", "uid": "rs-1"});
        assert_eq!(serde_json::from_str::<Value>(origin).unwrap(), expected);
        let ttl = &written["spec"]["ttlSecondsAfterFinished"];
        assert_eq!(ttl.is_null(), is_taken, "the TTL of another requester is kept");
    }
}

#[tokio::test]
async fn pods_are_not_requested_to_leave_when_cordoning_their_node_failed() {
    let (executor, observed, received) = executor(|_| failure(500, "InternalError", "no", json!({})));
    let plan = Plan {
        nodes: vec![(0, hold())],
        requests: vec![(0, RequestAction::Create { is_successor: false })],
        ..Plan::default()
    };
    assert_eq!(executor.execute(&observed, &plan).await, PlanOutcome::Failed);
    assert_eq!(received.lock().unwrap().len(), 1);
}

/// The stored request of another requester.
fn request_of_another(status: &Value) -> (u16, Value) {
    let request = json!({
        "metadata": {"name": "uid-1", "namespace": "shop", "resourceVersion": "8"},
        "spec": {"requesters": [{"name": "a.example.com"}]},
        "status": status,
    });
    (200, request)
}

#[tokio::test]
async fn existing_request_is_joined_and_write_conflicts_are_retried() {
    let patches = Mutex::new(0);
    let (executor, observed, received) = executor(move |request| match request.method.as_str() {
        "POST" => failure(409, "AlreadyExists", "exists", json!({})),
        "GET" => request_of_another(&json!({})),
        _ => {
            *patches.lock().unwrap() += 1;
            if *patches.lock().unwrap() == 1 {
                failure(409, "Conflict", "modified", json!({}))
            } else {
                object(request)
            }
        }
    });
    let plan = Plan {
        requests: vec![(0, RequestAction::Create { is_successor: false })],
        ..Plan::default()
    };
    assert_eq!(executor.execute(&observed, &plan).await, PlanOutcome::Complete);
    let received = received.lock().unwrap().clone();
    let methods: Vec<_> = received.iter().map(|request| request.method.as_str()).collect();
    assert_eq!(methods, ["POST", "GET", "PATCH", "GET", "PATCH"]);
    let requesters = json!([{"name": "a.example.com"}, {"name": NODE_MAINTENANCE_REQUESTER}]);
    assert_eq!(
        received[4].body,
        json!({"metadata": {"resourceVersion": "8"}, "spec": {"requesters": requesters}})
    );
}

#[tokio::test]
async fn forbidden_cancellation_is_not_attempted_and_deleting_withdrawn_requests_plans_again() {
    let forbidden = json!({"evictionRequestCancellationPolicy": "Forbid"});
    let (executor, observed, received) = executor(move |_| request_of_another(&forbidden));
    let plan = Plan {
        requests: vec![(0, RequestAction::Withdraw)],
        ..Plan::default()
    };
    assert_eq!(executor.execute(&observed, &plan).await, PlanOutcome::Complete);
    assert_eq!(received.lock().unwrap().len(), 1, "the request is only read");
    let plan = Plan {
        requests: vec![(0, RequestAction::DeleteWithdrawn)],
        ..Plan::default()
    };
    assert_eq!(executor.execute(&observed, &plan).await, PlanOutcome::Partial);
    assert!(
        received
            .lock()
            .unwrap()
            .iter()
            .all(|request| request.method == "GET"),
        "a request that is not finished is not deleted"
    );
}
