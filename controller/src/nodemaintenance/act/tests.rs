mod faults;

use super::*;
use crate::fixtures::{
    Received, ReceivedRequest, api_double, clock_at, context, empty_stores, failure, pod, typed,
};
use crate::informer::Store;
use crate::nodemaintenance::model::{ClusterState, Maintenance, NodeFacts, PodProperties, RequestFacts};
use crate::nodemaintenance::node_state::HoldingMaintenance;
use crate::nodemaintenance::replacement::REPLACED_ANNOTATION;
use crate::nodemaintenance::shared::Shared;
use crate::nodemaintenance::successor::SUCCESSOR_ANNOTATION;
use crate::stores::Stores;
use drydock_machinery::clock::{Clock as _, ManualClock};
use drydock_proto::kinds::evictionrequest::NODE_MAINTENANCE_REQUESTER;

const CREATE: RequestAction = RequestAction::Create { origin: None };

/// The stored maintenance `m` in this stage.
fn maintenance_in(stage: &str) -> NodeMaintenance {
    typed(json!({
        "metadata": {
            "name": "m", "uid": "m-uid", "resourceVersion": "5", "finalizers": ["other.example.com/keep"],
        },
        "spec": {
            "stage": stage,
            "nodeSelector": {"nodeSelectorTerms": [{
                "matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}],
            }]},
        },
    }))
}

fn pod_facts(number: usize, node: usize) -> PodFacts {
    PodFacts {
        node,
        namespace_deleted: None,
        pod: Shared::from(PodProperties {
            uid: format!("uid-{number}"),
            namespace: "shop".to_owned(),
            name: format!("web-{number}"),
            ..PodProperties::default()
        }),
    }
}

/// One node, one pod on it, and a maintenance that drains it; the stores contain more pods.
fn drain_of_one_node() -> (ObservedCluster, Stores) {
    let mut stores = empty_stores();
    let pods = (1..=100).map(|number| {
        let (name, uid) = (format!("web-{number}"), format!("uid-{number}"));
        pod(&json!({"metadata": {"name": name, "uid": uid}}))
    });
    stores.pods = Store::synced_with(pods.collect());
    stores.maintenances = Store::synced_with(vec![maintenance_in("Drain")]);
    let observed = ObservedCluster {
        state: ClusterState {
            maintenances: vec![Maintenance {
                name: "m".to_owned(),
                uid: "m-uid".to_owned(),
                created: Timestamp::UNIX_EPOCH,
                generation: None,
                stage: Stage::Drain,
                is_deleting: false,
                has_finalizer: true,
                entries: Arc::default(),
                nodes: vec![0, 1, 2],
                status: NodeMaintenanceStatus::default(),
            }],
            nodes: vec![NodeFacts {
                name: "one".to_owned(),
                ..NodeFacts::default()
            }],
            pods: vec![pod_facts(1, 0)],
            ..ClusterState::default()
        },
        maintenances: vec![Arc::new(maintenance_in("Drain"))],
        nodes: vec![Arc::new(typed(
            json!({"metadata": {"name": "one", "resourceVersion": "3"}}),
        ))],
    };
    (observed, stores)
}

/// An executor on an API double, with one observed node, pod and maintenance.
fn executor(
    respond: impl Fn(&ReceivedRequest) -> (u16, Value) + Send + Sync + 'static,
) -> (PlanExecutor, ObservedCluster, Received) {
    let (observed, stores) = drain_of_one_node();
    let (executor, received) = executor_on(stores, &clock_at(0), respond);
    (executor, observed, received)
}

fn executor_on(
    stores: Stores,
    clock: &Arc<ManualClock>,
    respond: impl Fn(&ReceivedRequest) -> (u16, Value) + Send + Sync + 'static,
) -> (PlanExecutor, Received) {
    let (clients, received) = api_double(respond);
    let executor = PlanExecutor::new(context(stores, clients, clock), Arc::default());
    (executor, received)
}

fn record() -> NodeRecord {
    NodeRecord {
        maintenances: vec![HoldingMaintenance {
            name: "m".to_owned(),
            uid: "m-uid".to_owned(),
            stage: Stage::Drain,
        }],
        ..NodeRecord::default()
    }
}

fn hold() -> NodeAction {
    NodeAction::Hold {
        record: record(),
        is_tainted: false,
        is_restored: false,
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
        requests: vec![(0, CREATE)],
        maintenances: vec![(0, MaintenanceAction::AddFinalizer { is_restored: false })],
        ..Plan::default()
    };
    assert_eq!(executor.execute(&observed, &plan).await, None);
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
            (
                "PATCH",
                &*format!("{group}/namespaces/shop/evictionrequests/uid-1")
            ),
            ("PATCH", &*format!("{group}/nodemaintenances/m")),
        ]
    );
    assert_eq!(received[0].body["metadata"]["resourceVersion"], "3");
    assert_eq!(received[1].body["metadata"]["name"], "uid-1");
    assert_eq!(
        received[1].body["spec"]["target"]["pod"],
        json!({"name": "web-1", "uid": "uid-1"})
    );
    assert_eq!(
        received[1].body["spec"]["requesters"],
        json!([{"name": NODE_MAINTENANCE_REQUESTER}])
    );
    assert_eq!(received[1].query, "&fieldManager=drydock-controller");
    let finalizers = json!(["other.example.com/keep", COMPLETION_FINALIZER]);
    assert_eq!(
        received[2].body["metadata"],
        json!({"resourceVersion": "5", "finalizers": finalizers})
    );
}

/// The plan that does this with the request of the only pod.
fn plan_of(action: RequestAction) -> Plan {
    Plan {
        requests: vec![(0, action)],
        ..Plan::default()
    }
}

#[tokio::test]
async fn request_of_a_successor_records_its_origin_and_is_kept() {
    for is_taken in [false, true] {
        let (executor, mut observed, received) = executor(move |request| {
            let is_complete = request.body["spec"].get("ttlSecondsAfterFinished").is_some();
            if is_taken && is_complete {
                return failure(409, "Conflict", "Apply failed with 1 conflict", json!({}));
            }
            object(request)
        });
        observed.state.pods[0].controller = Some(crate::nodemaintenance::model::Controller {
            kind: "ReplicaSet".to_owned(),
            name: "web".to_owned(),
            uid: "rs-1".to_owned(),
        });
        let plan = plan_of(RequestAction::Create { origin: Some(false) });
        assert_eq!(executor.execute(&observed, &plan).await, None);
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
async fn request_has_the_labels_of_its_pod_and_is_ignored_by_deployment_tools() {
    let (executor, mut observed, received) = executor(object);
    let labels = [
        ("app", "web"),
        ("argocd.argoproj.io/instance", "shop"),
        ("kapp.k14s.io/app", "1"),
    ];
    observed.state.pods[0].labels = labels
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    executor.execute(&observed, &plan_of(CREATE)).await;
    let metadata = received.lock().unwrap()[0].body["metadata"].clone();
    assert_eq!(metadata["labels"], json!({"app": "web"}));
    assert_eq!(
        metadata["annotations"],
        json!({
            "argocd.argoproj.io/sync-options": "Prune=false",
            "argocd.argoproj.io/compare-options": "IgnoreExtraneous",
        })
    );
}

#[tokio::test]
async fn pods_are_not_requested_to_leave_when_cordoning_their_node_failed() {
    let (executor, observed, received) = executor(|_| failure(500, "InternalError", "no", json!({})));
    let plan = Plan {
        nodes: vec![(0, hold())],
        ..plan_of(CREATE)
    };
    let again = executor.execute(&observed, &plan).await;
    assert!(again.is_some_and(|again| again > Timestamp::UNIX_EPOCH));
    assert_eq!(received.lock().unwrap().len(), 1);
    // It waits alone.
    executor.execute(&observed, &plan).await;
    assert_eq!(received.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn failing_node_or_pod_holds_up_no_other() {
    let (executor, mut observed, received) = executor(|request| {
        if request.path.contains("nodes/one") || request.path.contains("uid-2") {
            return failure(500, "InternalError", "no", json!({}));
        }
        object(request)
    });
    for name in ["two", "three"] {
        observed.state.nodes.push(NodeFacts {
            name: name.to_owned(),
            ..NodeFacts::default()
        });
        observed.nodes.push(Arc::new(typed(
            json!({"metadata": {"name": name, "resourceVersion": "3"}}),
        )));
    }
    for (number, node) in [(2, 1), (3, 2)] {
        observed.state.pods.push(pod_facts(number, node));
    }
    let plan = Plan {
        nodes: (0..3).map(|index| (index, hold())).collect(),
        requests: (0..3).map(|index| (index, CREATE)).collect(),
        ..Plan::default()
    };
    let again = executor.execute(&observed, &plan).await.unwrap();
    assert!(again <= Timestamp::from_millisecond(500).unwrap());
    let mut written: Vec<String> = received
        .lock()
        .unwrap()
        .iter()
        .map(|one| one.path.clone())
        .collect();
    written.retain(|path| path.contains("evictionrequests"));
    written.sort();
    let names: Vec<&str> = written
        .iter()
        .filter_map(|path| path.rsplit('/').next())
        .collect();
    assert_eq!(
        names,
        ["uid-2", "uid-3"],
        "the pod of the failed node is not requested"
    );
    // The pod is named with the cause.
    let refused = executor.refusals();
    assert_eq!(refused["uid-2"].reason, "RequestRefused");
    assert!(refused["uid-2"].message.ends_with("no (500)"), "{refused:?}");
    assert_eq!(refused.len(), 1);
}

#[tokio::test]
async fn existing_request_is_joined_without_the_entries_of_others() {
    let (executor, mut observed, received) = executor(object);
    let request = RequestFacts {
        uid: "er-1".to_owned(),
        ..RequestFacts::default()
    };
    observed.state.requests.insert("uid-1".to_owned(), request.into());
    let plan = plan_of(RequestAction::Join { origin: None });
    assert_eq!(executor.execute(&observed, &plan).await, None);
    let received = received.lock().unwrap().clone();
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].query, "&fieldManager=drydock-controller");
    // With the UID an apply never creates the request.
    assert_eq!(
        received[0].body["metadata"],
        json!({"name": "uid-1", "namespace": "shop", "uid": "er-1"})
    );
    assert_eq!(
        received[0].body["spec"]["requesters"],
        json!([{"name": NODE_MAINTENANCE_REQUESTER}])
    );
}

#[tokio::test]
async fn withdrawal_leaves_out_the_entry_and_removes_it_where_others_own_it_too() {
    for is_owned_by_others in [false, true] {
        let (executor, mut observed, received) = executor(move |request| {
            let mut requesters = vec![json!({"name": "a.example.com"})];
            if is_owned_by_others && request.query.contains("fieldManager") {
                requesters.push(json!({"name": NODE_MAINTENANCE_REQUESTER}));
            }
            let object = json!({
                "metadata": {"name": "uid-1", "namespace": "shop", "resourceVersion": "8"},
                "spec": {"requesters": requesters},
            });
            (200, object)
        });
        let request = RequestFacts {
            uid: "er-1".to_owned(),
            has_maintenance_requester: true,
            ..RequestFacts::default()
        };
        observed.state.requests.insert("uid-1".to_owned(), request.into());
        let plan = plan_of(RequestAction::Withdraw);
        assert_eq!(executor.execute(&observed, &plan).await, None);
        let received = received.lock().unwrap().clone();
        assert_eq!(received[0].body["metadata"]["uid"], "er-1");
        assert!(received[0].body["spec"].get("requesters").is_none());
        assert_eq!(received.len(), 1 + usize::from(is_owned_by_others));
        if is_owned_by_others {
            assert_eq!(
                received[1].body,
                json!({
                    "metadata": {"resourceVersion": "8"},
                    "spec": {"requesters": [{"name": "a.example.com"}]},
                })
            );
        }
    }
}

#[tokio::test]
async fn replacement_deletes_under_preconditions_and_the_new_request_counts_it() {
    let (executor, observed, received) = executor(|request| match request.method.as_str() {
        "GET" => (
            200,
            json!({
                "metadata": {"name": "uid-1", "namespace": "shop", "uid": "er-1", "resourceVersion": "8"},
                "spec": {},
                "status": {"conditions": [{
                    "type": "Canceled", "status": "True", "reason": "ValidationFailed", "message": "",
                    "lastTransitionTime": "1970-01-01T00:00:00Z",
                }]},
            }),
        ),
        _ => object(request),
    });
    let again = executor
        .execute(&observed, &plan_of(RequestAction::Replace { count: 3 }))
        .await;
    assert!(again.is_some(), "the new one needs another plan");
    executor.execute(&observed, &plan_of(CREATE)).await;
    let received = received.lock().unwrap().clone();
    let methods: Vec<_> = received.iter().map(|request| request.method.as_str()).collect();
    assert_eq!(methods, ["GET", "DELETE", "PATCH"]);
    assert_eq!(
        received[1].body["preconditions"],
        json!({"uid": "er-1", "resourceVersion": "8"})
    );
    assert_eq!(
        received[2].body["metadata"]["annotations"][REPLACED_ANNOTATION],
        "3"
    );
}

#[tokio::test]
async fn unfinished_request_is_not_deleted() {
    let (executor, observed, received) =
        executor(|_| (200, json!({"metadata": {"name": "uid-1"}, "spec": {}})));
    executor
        .execute(&observed, &plan_of(RequestAction::Replace { count: 1 }))
        .await;
    let received = received.lock().unwrap();
    assert!(received.iter().all(|request| request.method == "GET"));
}

/// A status write with this many pods left, and this condition.
fn status_with(pods_left: i32, drained: &str) -> MaintenanceAction {
    let status = json!({
        "drainStatus": {"podsPendingEvictionRequest": pods_left},
        "conditions": [{
            "type": "Drained", "status": drained, "reason": "r", "message": "",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        }],
    });
    MaintenanceAction::WriteStatus(Box::new(typed(status)))
}

#[tokio::test]
async fn counts_are_written_once_a_second_and_conditions_at_once() {
    let (executor, mut observed, received) = executor(object);
    let mut stored = (*observed.maintenances[0]).clone();
    let MaintenanceAction::WriteStatus(status) = status_with(9, "False") else {
        unreachable!()
    };
    stored.status = Some(*status);
    observed.maintenances[0] = Arc::new(stored);
    let mut next = Vec::new();
    for action in [
        status_with(8, "False"),
        status_with(7, "False"),
        status_with(7, "True"),
    ] {
        let plan = Plan {
            maintenances: vec![(0, action)],
            ..Plan::default()
        };
        next.push(executor.execute(&observed, &plan).await);
    }
    assert_eq!(next[..2], [None, Some(Timestamp::from_second(1).unwrap())]);
    let written: Vec<Value> = received
        .lock()
        .unwrap()
        .iter()
        .map(|request| request.body["status"]["drainStatus"]["podsPendingEvictionRequest"].clone())
        .collect();
    assert_eq!(written, [8, 7]);
}

#[tokio::test]
async fn maintenance_that_lost_its_finalizer_is_told() {
    let (executor, observed, _) = executor(object);
    let plan = Plan {
        maintenances: vec![(0, MaintenanceAction::AddFinalizer { is_restored: true })],
        ..Plan::default()
    };
    executor.execute(&observed, &plan).await;
    let text = executor.context.metrics.render();
    assert!(
        text.contains("nodemaintenance_controller_repairs_total{what=\"finalizer\"} 1"),
        "{text}"
    );
}
