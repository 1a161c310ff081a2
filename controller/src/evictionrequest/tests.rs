use super::*;
use crate::fixtures::{
    self, Received, ReceivedRequest, api_double, clock_at, context, empty_stores, failure, merge, typed,
};
use crate::informer::Store;
use crate::request_labels;
use drydock_machinery::clock::{Clock, ManualClock};
use drydock_proto::kinds::evictionrequest::IMPERATIVE_EVICTION;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};

mod faults;
mod herd;
mod holds;

/// A controller with one request and its pod, and an API that stores the request as the server does.
struct Scenario {
    controller: Controller,
    gone_pods: Arc<GonePods>,
    received: Received,
    stored: Arc<Mutex<Value>>,
    clock: Arc<ManualClock>,
    /// Whether the API rejects all status writes as invalid.
    is_broken: Arc<AtomicBool>,
}

/// Whether a patch sets the start of an interceptor to more than 10 s ago, which the server rejects.
fn sets_stale_start(request: &ReceivedRequest, stored: &Value, clock: &ManualClock) -> bool {
    let interceptors = request.body["status"]["interceptors"].as_array();
    interceptors
        .into_iter()
        .flatten()
        .enumerate()
        .any(|(index, entry)| {
            let before = &stored["status"]["interceptors"][index]["startTime"];
            let start = entry["startTime"].as_str();
            start.is_some_and(|start| {
                let parsed: jiff::Timestamp = start.parse().unwrap();
                before != start && clock.now().duration_since(parsed).as_secs() > 10
            })
        })
}

fn request(status: &Value) -> Value {
    json!({
        "apiVersion": "coordination.k8s.io/v1alpha3",
        "kind": "EvictionRequest",
        "metadata": {
            "name": "uid-1", "namespace": "shop", "uid": "er-1", "resourceVersion": "1", "generation": 1,
            "labels": {"app": "web"}, "annotations": request_labels::annotations(),
        },
        "spec": {"target": {"pod": {"name": "web", "uid": "uid-1"}}, "requesters": [{"name": "a.example.com"}]},
        "status": status,
    })
}

#[tokio::test]
async fn own_writes_are_not_queued_again() {
    use futures_util::FutureExt;
    let (mut informers, stores) = Informers::new();
    let metrics = crate::metrics::Metrics::default();
    let queue = Arc::new(WorkQueue::new(clock_at(0), metrics.queue("test")));
    let writes = Arc::<UndeliveredWrites>::default();
    add_handlers(
        &mut informers,
        &stores,
        &queue,
        &Arc::default(),
        &Arc::default(),
        &writes,
    );
    let version = |version: &str| {
        let mut request: EvictionRequest = typed(request(&json!({})));
        request.metadata.resource_version = Some(version.to_owned());
        request
    };
    let mut deliver = |delivered: &str| {
        let event = kube::runtime::watcher::Event::Apply(version(delivered));
        informers.requests.deliver(event);
        let next = queue.next().now_or_never();
        next.inspect(|key| queue.done(key, Outcome::Wait(None))).is_some()
    };
    assert!(deliver("1"), "the write of somebody else");
    let first = version("1");
    writes.written(&key(), &first, &Arc::new(version("2")), Some(&first));
    assert!(!deliver("2"));
    assert!(deliver("3"));
}

/// The status of a request in which imperative eviction is active.
fn evicting() -> Value {
    json!({
        "observedGeneration": 1,
        "targetInterceptors": [{"name": IMPERATIVE_EVICTION}],
        "interceptors": [{"name": IMPERATIVE_EVICTION}],
        "activeInterceptors": [IMPERATIVE_EVICTION],
    })
}

fn pod() -> Pod {
    let ready = json!([{"type": "Ready", "status": "True"}]);
    fixtures::pod(&json!({"metadata": {"labels": {"app": "web"}}, "status": {"conditions": ready}}))
}

fn budget(name: &str, allowed: i32) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "shop", "resourceVersion": allowed.to_string()},
        "spec": {"selector": {"matchLabels": {"app": "web"}}},
        "status": {"disruptionsAllowed": allowed, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1},
    })
}

fn key() -> ObjectKey {
    ("shop".to_owned(), "uid-1".to_owned())
}

impl Scenario {
    fn new(status: &Value, pods: Vec<Pod>, budgets: Vec<Value>, eviction: (u16, Value)) -> Self {
        Self::with(status, pods, budgets, move |_| eviction.clone())
    }

    /// A scenario in which the eviction API responds by a function that may move the clock.
    fn with(
        status: &Value,
        pods: Vec<Pod>,
        budgets: Vec<Value>,
        eviction: impl Fn(&ManualClock) -> (u16, Value) + Send + Sync + 'static,
    ) -> Self {
        Self::with_pod_in_api(status, pods, budgets, Value::Null, eviction)
    }

    /// A scenario in which the API has this pod; null is none.
    fn with_pod_in_api(
        status: &Value,
        pods: Vec<Pod>,
        budgets: Vec<Value>,
        in_api: Value,
        eviction: impl Fn(&ManualClock) -> (u16, Value) + Send + Sync + 'static,
    ) -> Self {
        let clock = clock_at(1_000_000);
        let is_broken = Arc::new(AtomicBool::new(false));
        let stored = Arc::new(Mutex::new(request(status)));
        let respond = {
            let (stored, clock, is_broken) =
                (Arc::clone(&stored), Arc::clone(&clock), Arc::clone(&is_broken));
            move |request: &ReceivedRequest| {
                let mut stored = stored.lock().unwrap();
                match (request.method.as_str(), request.last_segment()) {
                    ("POST", "eviction") => eviction(&clock),
                    ("PATCH", "status")
                        if is_broken.load(Ordering::Relaxed)
                            || sets_stale_start(request, &stored, &clock) =>
                    {
                        failure(422, "Invalid", "startTime: must be within 10 s of now", json!({}))
                    }
                    ("PATCH", _) => {
                        let expected = &request.body["metadata"]["resourceVersion"];
                        if !expected.is_null() && *expected != stored["metadata"]["resourceVersion"] {
                            return failure(409, "Conflict", "modified", json!({}));
                        }
                        merge(&mut stored, &request.body);
                        let version: u64 = stored["metadata"]["resourceVersion"]
                            .as_str()
                            .unwrap()
                            .parse()
                            .unwrap();
                        stored["metadata"]["resourceVersion"] = json!((version + 1).to_string());
                        (200, stored.clone())
                    }
                    ("GET", "web") if !in_api.is_null() => (200, in_api.clone()),
                    ("GET" | "DELETE", "uid-1") => (200, stored.clone()),
                    _ => fixtures::not_found(),
                }
            }
        };
        let (clients, received) = api_double(respond);
        let objects = Stores {
            requests: Store::synced_with(vec![typed(request(status))]),
            pods: Store::synced_with(pods),
            budgets: Store::synced_with(budgets.into_iter().map(typed).collect()),
            ..empty_stores()
        };
        let context = context(objects, clients, &clock);
        let options = Options {
            default_ttl: Duration::from_mins(1),
            ..Options::default()
        };
        let queue = WorkQueue::new(Arc::clone(&context.clock), context.metrics.queue("test"));
        let gone_pods = Arc::<GonePods>::default();
        Self {
            controller: Controller::new(
                context,
                Arc::default(),
                options,
                Arc::new(queue),
                Arc::default(),
                Arc::clone(&gone_pods),
                Arc::default(),
            ),
            gone_pods,
            received,
            stored,
            clock,
            is_broken,
        }
    }

    /// The same with another request in the API and in the store.
    fn with_request(mut self, request: &Value) -> Self {
        self.stored.lock().unwrap().clone_from(request);
        let context = &self.controller.context;
        let stores = Stores {
            requests: Store::synced_with(vec![typed(request.clone())]),
            ..context.stores.clone()
        };
        let context = fixtures::context(stores, context.clients.clone(), &self.clock);
        let options = Options {
            default_ttl: Duration::from_mins(1),
            ..Options::default()
        };
        let queue = Arc::clone(&self.controller.queue);
        self.controller = Controller::new(
            context,
            Arc::default(),
            options,
            queue,
            Arc::default(),
            Arc::default(),
            Arc::default(),
        );
        self
    }

    async fn reconcile(&self) -> Outcome {
        self.controller.reconcile(key()).await
    }

    /// Method and last path segment of every call so far.
    fn calls(&self) -> Vec<String> {
        let call = |request: &ReceivedRequest| format!("{} {}", request.method, request.last_segment());
        self.received.lock().unwrap().iter().map(call).collect()
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

fn blocked_by_budget() -> (u16, Value) {
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
async fn pod_without_interceptors_is_evicted_after_one_write() {
    let scenario = Scenario::new(&json!({}), vec![pod()], Vec::new(), accepted());
    let outcome = scenario.reconcile().await;
    assert!(matches!(outcome, Outcome::Wait(Some(_))), "{outcome:?}");
    assert_eq!(scenario.calls(), ["PATCH status", "POST eviction"]);
    let received = scenario.received.lock().unwrap().clone();
    assert_eq!(received[0].body["metadata"], json!({"resourceVersion": "1"}));
    assert_eq!(received[1].path, "/api/v1/namespaces/shop/pods/web/eviction");
    assert_eq!(received[1].body["deleteOptions"]["preconditions"]["uid"], "uid-1");
    assert_eq!(received[1].body["kind"], "Eviction");
    let stored = scenario.stored();
    assert_eq!(
        stored["status"]["activeInterceptors"],
        json!([IMPERATIVE_EVICTION])
    );
    assert_eq!(stored["status"]["observedGeneration"], 1);
    assert_eq!(
        stored["status"]["podEvictionStatus"],
        json!({"failedAPIEvictionCounter": 0, "lastAttemptTime": "1970-01-12T13:46:40Z"})
    );
}

#[tokio::test]
async fn labels_and_annotations_are_written_once() {
    let mut pod = pod();
    pod.metadata
        .labels
        .as_mut()
        .unwrap()
        .insert("argocd.argoproj.io/instance".to_owned(), "shop".to_owned());
    let scenario = Scenario::new(&json!({}), vec![pod], Vec::new(), accepted());
    let mut bare = request(&json!({}));
    bare["metadata"].as_object_mut().unwrap().remove("labels");
    bare["metadata"].as_object_mut().unwrap().remove("annotations");
    let scenario = scenario.with_request(&bare);
    scenario.reconcile().await;
    assert_eq!(scenario.calls(), ["PATCH uid-1", "PATCH status", "POST eviction"]);
    let metadata = json!({"labels": {"app": "web"}, "annotations": request_labels::annotations()});
    assert_eq!(
        scenario.received.lock().unwrap()[0].body,
        json!({"metadata": metadata})
    );
}

#[tokio::test]
async fn stale_store_does_not_repeat_steps() {
    let scenario = Scenario::new(&json!({}), vec![pod()], Vec::new(), accepted());
    scenario.reconcile().await;
    let calls = scenario.calls().len();
    scenario.reconcile().await;
    assert_eq!(scenario.calls().len(), calls);
}

#[tokio::test]
async fn refusal_is_counted_and_names_the_budgets() {
    let refused = failure(
        500,
        "InternalError",
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
        json!({}),
    );
    let scenario = Scenario::new(
        &json!({}),
        vec![pod()],
        vec![budget("db", 0), budget("other", 1)],
        refused,
    );
    let Outcome::Wait(Some(until)) = scenario.reconcile().await else {
        panic!("no next attempt")
    };
    let wait = until.duration_since(scenario.clock.now());
    assert!((1..=2).contains(&wait.as_secs()), "{wait}");
    let status = &scenario.stored()["status"];
    assert_eq!(status["podEvictionStatus"]["failedAPIEvictionCounter"], 1);
    assert_eq!(
        status["interceptors"][0]["message"],
        "Could not evict the pod: blocked by PodDisruptionBudget db, other, number of retries: 1."
    );
    assert_eq!(
        status["conditions"][0]["message"],
        "2 PodDisruptionBudgets select the pod, and the eviction API supports one: db, other."
    );
    scenario.clock.advance(Duration::from_secs(2));
    scenario.reconcile().await;
    assert_eq!(
        scenario.stored()["status"]["podEvictionStatus"]["failedAPIEvictionCounter"],
        2
    );
}

#[tokio::test]
async fn rejection_without_a_budget_keeps_the_message_of_the_api() {
    let denial = failure(
        403,
        "Forbidden",
        "admission webhook \"w\" denied the request: not today.",
        json!({}),
    );
    let scenario = Scenario::new(&json!({}), vec![pod()], Vec::new(), denial);
    scenario.reconcile().await;
    let message = &scenario.stored()["status"]["interceptors"][0]["message"];
    let expected = "Could not evict the pod: admission webhook \"w\" denied the request: not today, number of retries: 1.";
    assert_eq!(message, expected);
}

#[tokio::test]
async fn refusal_of_a_slow_eviction_is_recorded_with_the_time_of_its_write() {
    let (code, response) = blocked_by_budget();
    let scenario = Scenario::with(&json!({}), vec![pod()], Vec::new(), move |clock| {
        clock.advance(Duration::from_secs(12));
        (code, response.clone())
    });
    let outcome = scenario.reconcile().await;
    assert!(matches!(outcome, Outcome::Wait(Some(_))), "{outcome:?}");
    let status = &scenario.stored()["status"];
    assert_eq!(status["podEvictionStatus"]["failedAPIEvictionCounter"], 1);
    assert_eq!(
        status["podEvictionStatus"]["lastAttemptTime"],
        "1970-01-12T13:46:40Z"
    );
    assert_eq!(
        status["podEvictionStatus"]["nextAttemptTime"],
        "1970-01-12T13:46:53Z"
    );
}

fn evictions(scenario: &Scenario) -> usize {
    let calls = scenario.calls();
    calls.iter().filter(|call| *call == "POST eviction").count()
}

/// A scenario in which the eviction fails and the API still has a pod with this UID.
fn failing(uid: &str, (code, response): (u16, Value)) -> Scenario {
    let in_api = json!({"metadata": {"name": "web", "namespace": "shop", "uid": uid}});
    Scenario::with_pod_in_api(&evicting(), vec![pod()], Vec::new(), in_api, move |_| {
        (code, response.clone())
    })
}

#[tokio::test]
async fn every_failed_eviction_of_a_present_pod_is_counted_shown_and_backed_off() {
    for (code, result) in [
        (401, "failed"),
        (403, "refused"),
        (404, "refused"),
        (409, "refused"),
        (429, "throttled"),
        (500, "refused"),
        (503, "failed"),
        (504, "failed"),
    ] {
        let scenario = failing("uid-1", failure(code, "Reason", "not today", json!({})));
        for _ in 0..60 {
            scenario.reconcile().await;
            scenario.clock.advance(Duration::from_secs(1));
        }
        let evictions = evictions(&scenario);
        assert!((3..=8).contains(&evictions), "{code}: {evictions}");
        let status = &scenario.stored()["status"];
        assert_eq!(status["podEvictionStatus"]["failedAPIEvictionCounter"], evictions);
        assert_eq!(
            status["interceptors"][0]["message"],
            format!("Could not evict the pod: not today, number of retries: {evictions}.")
        );
        let line = format!("imperative_evictions{{result=\"{result}\"}} {evictions}");
        let metrics = scenario.controller.context.metrics.render();
        assert!(metrics.contains(&line), "{code}: {metrics}");
    }
}

#[tokio::test]
async fn failed_eviction_without_a_text_is_shown_with_its_code() {
    let scenario = failing("uid-1", (503, json!({})));
    scenario.reconcile().await;
    let message = &scenario.stored()["status"]["interceptors"][0]["message"];
    let expected = "Could not evict the pod: the API responded with code 503, number of retries: 1.";
    assert_eq!(message, expected);
}

#[tokio::test]
async fn conflict_means_that_the_pod_is_gone_when_it_was_replaced() {
    let conflict = || {
        failure(
            409,
            "Conflict",
            "the UID in the precondition does not match",
            json!({}),
        )
    };
    for scenario in [
        failing("uid-2", conflict()),
        Scenario::new(&evicting(), vec![pod()], Vec::new(), conflict()),
    ] {
        scenario.reconcile().await;
        assert_eq!(scenario.calls(), ["PATCH status", "POST eviction", "GET web"]);
        let attempts = &scenario.stored()["status"]["podEvictionStatus"];
        assert_eq!(attempts["failedAPIEvictionCounter"], 0);
    }
}

#[tokio::test]
async fn pod_that_the_watch_reported_as_deleted_is_not_looked_up() {
    let scenario = Scenario::new(&evicting(), Vec::new(), Vec::new(), accepted());
    scenario.gone_pods.deleted(&pod());
    scenario.reconcile().await;
    assert_eq!(scenario.calls(), ["PATCH status"]);
    let condition = &scenario.stored()["status"]["conditions"][0];
    assert_eq!(condition["type"], "Evicted");
}

#[tokio::test]
async fn pod_missing_from_store_and_api_fails_validation() {
    let scenario = Scenario::new(&json!({}), Vec::new(), Vec::new(), accepted());
    scenario.reconcile().await;
    assert_eq!(scenario.calls(), ["GET web", "PATCH status"]);
    let condition = &scenario.stored()["status"]["conditions"][0];
    assert_eq!(
        (&condition["type"], &condition["reason"]),
        (&json!("Canceled"), &json!("ValidationFailed"))
    );
    assert_eq!(condition["message"], "Target Pod web was not found.");
}

#[tokio::test]
async fn write_conflict_is_retried_after_a_second() {
    let scenario = Scenario::new(&json!({}), Vec::new(), Vec::new(), accepted());
    scenario.stored.lock().unwrap()["metadata"]["resourceVersion"] = json!("9");
    let outcome = scenario.reconcile().await;
    let soon = scenario.clock.now().checked_add(CONFLICT_DELAY).unwrap();
    assert_eq!(outcome, Outcome::Wait(Some(soon)));
}

#[tokio::test]
async fn finished_request_is_deleted_under_preconditions() {
    let finished = json!({"conditions": [{
        "type": "Evicted", "status": "True", "reason": "PodDeleted", "message": "",
        "lastTransitionTime": "1970-01-12T13:46:40Z",
    }]});
    let scenario = Scenario::new(&finished, Vec::new(), Vec::new(), accepted());
    let Outcome::Wait(Some(until)) = scenario.reconcile().await else {
        panic!("it has a time to live")
    };
    assert_eq!(until.duration_since(scenario.clock.now()).as_secs(), 60);
    scenario.clock.advance(Duration::from_mins(1));
    assert_eq!(scenario.reconcile().await, Outcome::Wait(None));
    let received = scenario.received.lock().unwrap().clone();
    let preconditions = &received[0].body["preconditions"];
    assert_eq!(*preconditions, json!({"uid": "er-1", "resourceVersion": "1"}));
}
