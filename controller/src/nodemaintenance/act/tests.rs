use super::*;
use crate::api::tests::{Seen, double, failure};
use crate::nodemaintenance::plan::{Node as PlanNode, World};
use crate::nodemaintenance::taints::NodeRecord;
use drydock_machinery::clock::{Clock, ManualClock};
use jiff::Timestamp;
use std::sync::Mutex;

type Calls = Arc<Mutex<Vec<Seen>>>;

/// An actor on an API that answers so, and what it is asked to do to one node, one pod and one maintenance.
fn actor(answer: impl Fn(&Seen) -> (u16, Value) + Send + Sync + 'static) -> (Actor, Observed, Calls) {
    let (client, seen) = double(answer);
    let clients = Clients {
        host: client.clone(),
        ours: client,
    };
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new(Timestamp::UNIX_EPOCH));
    let (events, _) = Events::new(clock, "test");
    let observed = Observed {
        world: World {
            nodes: vec![PlanNode {
                name: "one".to_owned(),
                ..PlanNode::default()
            }],
            pods: vec![Pod {
                uid: "uid-1".to_owned(),
                namespace: "shop".to_owned(),
                name: "web".to_owned(),
                ..Pod::default()
            }],
            ..World::default()
        },
        maintenances: vec![Arc::new(
            serde_json::from_value(json!({
                "metadata": {"name": "m", "resourceVersion": "5", "finalizers": ["other.example.com/keep"]},
            }))
            .unwrap(),
        )],
        nodes: vec![Arc::new(
            serde_json::from_value(json!({"metadata": {"name": "one", "resourceVersion": "3"}})).unwrap(),
        )],
    };
    (Actor::new(clients, events, Metrics::default()), observed, seen)
}

fn held() -> NodeTarget {
    NodeTarget::Held {
        record: NodeRecord::default(),
        is_tainted: false,
    }
}

fn object(seen: &Seen) -> (u16, Value) {
    let name = seen.path.rsplit('/').next().unwrap();
    (200, json!({"metadata": {"name": name}, "spec": {}}))
}

#[tokio::test]
async fn nodes_come_first_then_requests_then_maintenances() {
    let (actor, observed, seen) = actor(object);
    let plan = Plan {
        nodes: vec![(0, held())],
        asks: vec![(0, Ask::Create)],
        upkeep: vec![(0, Upkeep::AddFinalizer)],
        notices: Vec::new(),
    };
    assert_eq!(actor.carry_out(&observed, &plan).await, Carried::Out);
    let seen = seen.lock().unwrap().clone();
    let calls: Vec<_> = seen
        .iter()
        .map(|seen| (seen.method.as_str(), seen.path.as_str()))
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
    assert_eq!(seen[0].body["metadata"]["resourceVersion"], "3");
    assert_eq!(seen[1].body["metadata"]["name"], "uid-1");
    assert_eq!(
        seen[1].body["spec"]["target"]["pod"],
        json!({"name": "web", "uid": "uid-1"})
    );
    assert_eq!(
        seen[1].body["spec"]["requesters"],
        json!([{"name": NODE_MAINTENANCE_REQUESTER}])
    );
    let finalizers = json!(["other.example.com/keep", COMPLETION_FINALIZER]);
    assert_eq!(
        seen[2].body["metadata"],
        json!({"resourceVersion": "5", "finalizers": finalizers})
    );
}

#[tokio::test]
async fn pods_of_a_node_that_could_not_be_held_are_not_asked_to_leave() {
    let (actor, observed, seen) = actor(|_| failure(500, "InternalError", "no", json!({})));
    let plan = Plan {
        nodes: vec![(0, held())],
        asks: vec![(0, Ask::Create)],
        ..Plan::default()
    };
    assert_eq!(actor.carry_out(&observed, &plan).await, Carried::Failed);
    assert_eq!(seen.lock().unwrap().len(), 1);
}

/// A request of others, as stored.
fn others(status: &Value) -> (u16, Value) {
    let request = json!({
        "metadata": {"name": "uid-1", "namespace": "shop", "resourceVersion": "8"},
        "spec": {"requesters": [{"name": "a.example.com"}]},
        "status": status,
    });
    (200, request)
}

#[tokio::test]
async fn a_request_of_others_is_joined_and_conflicts_are_tried_again() {
    let patches = Mutex::new(0);
    let (actor, observed, seen) = actor(move |seen| match seen.method.as_str() {
        "POST" => failure(409, "AlreadyExists", "exists", json!({})),
        "GET" => others(&json!({})),
        _ => {
            *patches.lock().unwrap() += 1;
            if *patches.lock().unwrap() == 1 {
                failure(409, "Conflict", "modified", json!({}))
            } else {
                object(seen)
            }
        }
    });
    let plan = Plan {
        asks: vec![(0, Ask::Create)],
        ..Plan::default()
    };
    assert_eq!(actor.carry_out(&observed, &plan).await, Carried::Out);
    let seen = seen.lock().unwrap().clone();
    let methods: Vec<_> = seen.iter().map(|seen| seen.method.as_str()).collect();
    assert_eq!(methods, ["POST", "GET", "PATCH", "GET", "PATCH"]);
    let requesters = json!([{"name": "a.example.com"}, {"name": NODE_MAINTENANCE_REQUESTER}]);
    assert_eq!(
        seen[4].body,
        json!({"metadata": {"resourceVersion": "8"}, "spec": {"requesters": requesters}})
    );
}

#[tokio::test]
async fn a_forbidden_cancellation_is_not_tried_and_a_renewal_plans_again() {
    let forbidden = json!({"evictionRequestCancellationPolicy": "Forbid"});
    let (actor, observed, seen) = actor(move |_| others(&forbidden));
    let plan = Plan {
        asks: vec![(0, Ask::Release)],
        ..Plan::default()
    };
    assert_eq!(actor.carry_out(&observed, &plan).await, Carried::Out);
    assert_eq!(seen.lock().unwrap().len(), 1, "it is only looked at");
    let plan = Plan {
        asks: vec![(0, Ask::Renew)],
        ..Plan::default()
    };
    assert_eq!(actor.carry_out(&observed, &plan).await, Carried::InPart);
    assert!(
        seen.lock().unwrap().iter().all(|seen| seen.method == "GET"),
        "it is not finished"
    );
}
