use super::*;
use crate::api::Clients;
use crate::api::tests::{Seen, double, failure};
use crate::events::Events;
use crate::evictioninterceptor::rules::Rules;
use crate::informer::tests::store;
use crate::metrics::Metrics;
use drydock_machinery::clock::ManualClock;
use drydock_machinery::names::AllowedNames;
use jiff::Timestamp;
use serde_json::{Value, json};

const KEY: (&str, &str) = ("shop", "uid-1");

/// One request, its pod, and an API that keeps the request as the server would.
struct World {
    controller: Controller,
    seen: Arc<Mutex<Vec<Seen>>>,
    stored: Arc<Mutex<Value>>,
    clock: Arc<ManualClock>,
}

fn merge(into: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        into.clone_from(patch);
        return;
    };
    if !into.is_object() {
        *into = json!({});
    }
    let into = into.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            into.remove(key);
        } else {
            merge(into.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}

fn request(status: &Value) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1alpha3",
        "kind": "EvictionRequest",
        "metadata": {"name": "uid-1", "namespace": "shop", "uid": "er-1", "resourceVersion": "1", "generation": 1},
        "spec": {"target": {"pod": {"name": "web", "uid": "uid-1"}}, "requesters": [{"name": "a.example.com"}]},
        "status": status,
    })
}

fn pod() -> Value {
    json!({
        "metadata": {"name": "web", "namespace": "shop", "uid": "uid-1", "labels": {"app": "web"}},
        "spec": {"nodeName": "one"},
        "status": {"phase": "Running"},
    })
}

fn budget(name: &str, allowed: i32) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1},
    })
}

fn typed<K: serde::de::DeserializeOwned>(values: Vec<Value>) -> Vec<K> {
    values
        .into_iter()
        .map(|value| serde_json::from_value(value).unwrap())
        .collect()
}

impl World {
    fn new(status: &Value, pods: Vec<Value>, budgets: Vec<Value>, eviction: (u16, Value)) -> Self {
        let stored = Arc::new(Mutex::new(request(status)));
        let answer = {
            let stored = Arc::clone(&stored);
            move |seen: &Seen| {
                let mut stored = stored.lock().unwrap();
                match (seen.method.as_str(), seen.path.rsplit('/').next().unwrap()) {
                    ("POST", "eviction") => eviction.clone(),
                    ("PATCH", _) => {
                        let expected = &seen.body["metadata"]["resourceVersion"];
                        if !expected.is_null() && *expected != stored["metadata"]["resourceVersion"] {
                            return failure(409, "Conflict", "modified", json!({}));
                        }
                        merge(&mut stored, &seen.body);
                        let version: u64 = stored["metadata"]["resourceVersion"]
                            .as_str()
                            .unwrap()
                            .parse()
                            .unwrap();
                        stored["metadata"]["resourceVersion"] = json!((version + 1).to_string());
                        (200, stored.clone())
                    }
                    ("GET" | "DELETE", "uid-1") => (200, stored.clone()),
                    _ => failure(404, "NotFound", "not found", json!({})),
                }
            }
        };
        let (client, seen) = double(answer);
        let clients = Clients {
            host: client.clone(),
            ours: client,
        };
        let objects = Stores {
            requests: store(typed(vec![request(status)])),
            maintenances: store(Vec::new()),
            rules: store(Vec::new()),
            pods: store(typed(pods)),
            nodes: store(Vec::new()),
            namespaces: store(Vec::new()),
            budgets: store(typed(budgets)),
        };
        let clock = Arc::new(ManualClock::new(Timestamp::from_second(1_000_000).unwrap()));
        let shared: Arc<dyn Clock> = Arc::clone(&clock) as Arc<dyn Clock>;
        let (events, _) = Events::new(Arc::clone(&shared), "test");
        let actor = Actor::new(clients.clone(), events, Metrics::default(), Arc::clone(&shared));
        let observer = Observer::new(
            objects.clone(),
            clients,
            Arc::new(Rules::default()),
            AllowedNames::default(),
        );
        let settings = Settings {
            default_ttl: Duration::from_mins(1),
        };
        Self {
            controller: Controller::new(objects, observer, actor, shared, settings),
            seen,
            stored,
            clock,
        }
    }

    async fn reconcile(&self) -> Outcome {
        self.controller
            .reconcile((KEY.0.to_owned(), KEY.1.to_owned()))
            .await
    }

    /// Method and last part of the path of every call so far.
    fn calls(&self) -> Vec<String> {
        let last = |seen: &Seen| format!("{} {}", seen.method, seen.path.rsplit('/').next().unwrap());
        self.seen.lock().unwrap().iter().map(last).collect()
    }

    fn stored(&self) -> Value {
        self.stored.lock().unwrap().clone()
    }
}

fn accepted() -> (u16, Value) {
    (
        201,
        json!({"apiVersion": "v1", "kind": "Status", "status": "Success"}),
    )
}

fn refused() -> (u16, Value) {
    let causes =
        json!({"causes": [{"reason": "DisruptionBudget", "message": "The disruption budget db needs 1"}]});
    failure(
        429,
        "TooManyRequests",
        "Cannot evict pod as it would violate the pod's disruption budget.",
        causes,
    )
}

#[tokio::test]
async fn a_pod_without_interceptors_is_evicted_step_by_step() {
    let world = World::new(&json!({}), vec![pod()], Vec::new(), accepted());
    let outcome = world.reconcile().await;
    assert!(matches!(outcome, Outcome::Wait(_)), "{outcome:?}");
    assert_eq!(
        world.calls(),
        [
            "PATCH uid-1",
            "PATCH status",
            "PATCH status",
            "POST eviction",
            "PATCH status"
        ]
    );
    let seen = world.seen.lock().unwrap().clone();
    assert_eq!(seen[0].body, json!({"metadata": {"labels": {"app": "web"}}}));
    assert_eq!(seen[3].path, "/api/v1/namespaces/shop/pods/web/eviction");
    assert_eq!(seen[3].body["deleteOptions"]["preconditions"]["uid"], "uid-1");
    assert_eq!(seen[3].body["kind"], "Eviction");
    let stored = world.stored();
    assert_eq!(
        stored["status"]["activeInterceptors"],
        json!([IMPERATIVE_EVICTION])
    );
    assert_eq!(stored["status"]["observedGeneration"], 1);
    assert_eq!(stored["status"].get("podEvictionStatus"), None);
}

#[tokio::test]
async fn a_stale_store_is_not_acted_on_twice() {
    let world = World::new(&json!({}), vec![pod()], Vec::new(), accepted());
    world.reconcile().await;
    let calls = world.calls().len();
    world.reconcile().await;
    assert_eq!(world.calls().len(), calls);
}

#[tokio::test]
async fn a_refusal_is_counted_and_names_the_budget() {
    let world = World::new(
        &json!({}),
        vec![pod()],
        vec![budget("db", 0), budget("other", 1)],
        refused(),
    );
    let Outcome::Wait(Some(until)) = world.reconcile().await else {
        panic!("no next attempt")
    };
    let wait = until.duration_since(world.clock.now());
    assert!(wait.as_secs() <= 1, "{wait}");
    let status = &world.stored()["status"];
    assert_eq!(status["podEvictionStatus"]["failedAPIEvictionCounter"], 1);
    let message = status["interceptors"][0]["message"].as_str().unwrap();
    assert_eq!(
        message,
        "Could not evict the pod: blocked by PodDisruptionBudget db, other, number of retries: 1."
    );
    world.clock.advance(Duration::from_secs(1));
    world.reconcile().await;
    assert_eq!(
        world.stored()["status"]["podEvictionStatus"]["failedAPIEvictionCounter"],
        2
    );
}

#[tokio::test]
async fn a_refusal_for_other_reasons_is_told_as_it_was() {
    let denial = failure(
        403,
        "Forbidden",
        "admission webhook \"w\" denied the request: not today.",
        json!({}),
    );
    let world = World::new(&json!({}), vec![pod()], Vec::new(), denial);
    world.reconcile().await;
    let message = &world.stored()["status"]["interceptors"][0]["message"];
    let expected = "Could not evict the pod: admission webhook \"w\" denied the request: not today, number of retries: 1.";
    assert_eq!(message, expected);
}

#[tokio::test]
async fn a_pod_that_neither_store_nor_host_knows_fails_validation() {
    let world = World::new(&json!({}), Vec::new(), Vec::new(), accepted());
    world.reconcile().await;
    assert_eq!(world.calls(), ["GET web", "PATCH status"]);
    let condition = &world.stored()["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["reason"]),
        (&json!("Canceled"), &json!("ValidationFailed"))
    );
    assert_eq!(condition["message"], "Target Pod web was not found.");
}

#[tokio::test]
async fn a_conflict_is_looked_at_again_soon() {
    let world = World::new(&json!({}), Vec::new(), Vec::new(), accepted());
    world.stored.lock().unwrap()["metadata"]["resourceVersion"] = json!("9");
    let outcome = world.reconcile().await;
    let soon = world.clock.now().checked_add(AFTER_CONFLICT).unwrap();
    assert_eq!(outcome, Outcome::Wait(Some(soon)));
}

#[tokio::test]
async fn finished_requests_are_deleted_as_they_were_seen() {
    let finished = json!({"conditions": [{
        "type": "Evicted", "status": "True", "reason": "PodDeleted", "message": "",
        "lastTransitionTime": "1970-01-12T13:46:40Z",
    }]});
    let world = World::new(&finished, Vec::new(), Vec::new(), accepted());
    let Outcome::Wait(Some(until)) = world.reconcile().await else {
        panic!("it has a time to live")
    };
    assert_eq!(until.duration_since(world.clock.now()).as_secs(), 60);
    world.clock.advance(Duration::from_mins(1));
    assert_eq!(world.reconcile().await, Outcome::Wait(None));
    let seen = world.seen.lock().unwrap().clone();
    let preconditions = &seen[0].body["preconditions"];
    assert_eq!(*preconditions, json!({"uid": "er-1", "resourceVersion": "1"}));
}

#[tokio::test]
async fn a_budget_that_goes_brings_blocked_requests_back() {
    let status = json!({
        "targetInterceptors": [{"name": IMPERATIVE_EVICTION}],
        "interceptors": [{"name": IMPERATIVE_EVICTION}],
        "activeInterceptors": [IMPERATIVE_EVICTION],
        "podEvictionStatus": {"failedAPIEvictionCounter": 9},
    });
    let world = World::new(&status, vec![pod()], Vec::new(), accepted());
    let queue = WorkQueue::new(
        Arc::clone(&world.clock) as Arc<dyn Clock>,
        crate::metrics::QueueMetrics::unregistered("q"),
    );
    let change = |old: Option<Value>, new: Option<Value>| Change::<PodDisruptionBudget> {
        old: old.map(|value| Arc::new(serde_json::from_value(value).unwrap())),
        new: new.map(|value| Arc::new(serde_json::from_value(value).unwrap())),
    };
    for (old, new, expected) in [
        (Some(budget("db", 0)), None, true),
        (Some(budget("db", 0)), Some(budget("db", 1)), true),
        (Some(budget("db", 1)), Some(budget("db", 0)), false),
        (None, Some(budget("db", 1)), false),
    ] {
        let change = change(old, new);
        assert_eq!(may_unblock(&change), expected);
        if expected {
            add_blocked(&queue, &world.controller.stores, &change);
            assert_eq!(queue.next().await, (KEY.0.to_owned(), KEY.1.to_owned()));
            queue.done(&(KEY.0.to_owned(), KEY.1.to_owned()), Outcome::Wait(None));
        }
    }
}
