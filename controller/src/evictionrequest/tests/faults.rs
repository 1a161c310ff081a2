//! Writes that fail, requests that change meanwhile, and APIs that are away: nothing is evicted without an intent.

use super::*;
use crate::api::Clients;
use crate::lease_fence::LeaseFence;
use crate::metrics::Metrics;
use crate::server_time::ServerClock;
use crate::transport::TransportLayer;

/// A controller whose API for requests is another one than that for pods.
fn with_drydock(
    scenario: &Scenario,
    respond: impl Fn(&ReceivedRequest) -> (u16, Value) + Send + Sync + 'static,
) -> (Controller, Received) {
    let (other, received) = api_double(respond);
    let context = &scenario.controller.context;
    let clients = Clients {
        host: context.clients.host.clone(),
        drydock: other.drydock,
    };
    let context = fixtures::context(context.stores.clone(), clients, &scenario.clock);
    let queue = Arc::clone(&scenario.controller.queue);
    let controller = Controller::new(
        context,
        Arc::default(),
        Options::default(),
        queue,
        Arc::default(),
        Arc::default(),
        Arc::default(),
    );
    (controller, received)
}

#[tokio::test]
async fn nothing_is_evicted_while_the_intent_cannot_be_written() {
    for (code, reason) in [
        (409, "Conflict"),
        (503, "ServiceUnavailable"),
        (500, "InternalError"),
        (403, "Forbidden"),
        (422, "Invalid"),
    ] {
        for status in [json!({}), evicting()] {
            let scenario = Scenario::new(&status, vec![pod()], Vec::new(), accepted());
            let (controller, received) =
                with_drydock(&scenario, move |_| failure(code, reason, "no", json!({})));
            for _ in 0..3 {
                controller.reconcile(key()).await;
                scenario.clock.advance(Duration::from_mins(1));
            }
            assert_eq!(scenario.calls(), Vec::<String>::new(), "{code} {status}");
            assert_eq!(received.lock().unwrap().len(), 3, "{code} {status}");
        }
    }
}

#[tokio::test]
async fn request_that_was_canceled_meanwhile_is_not_carried_out() {
    let scenario = Scenario::new(&evicting(), vec![pod()], Vec::new(), accepted());
    {
        // The watch has not delivered the cancellation.
        let mut stored = scenario.stored.lock().unwrap();
        stored["spec"]["requesters"] = json!([]);
        stored["metadata"]["resourceVersion"] = json!("2");
    }
    let outcome = scenario.reconcile().await;
    let soon = scenario.clock.now().checked_add(CONFLICT_DELAY).unwrap();
    assert_eq!(outcome, Outcome::Wait(Some(soon)));
    assert_eq!(scenario.calls(), ["PATCH status"]);
}

#[tokio::test]
async fn crash_between_intent_and_result_repeats_the_attempt_after_half_a_minute() {
    let mut status = evicting();
    status["podEvictionStatus"] =
        json!({"failedAPIEvictionCounter": 0, "lastAttemptTime": "1970-01-12T13:46:30Z"});
    let scenario = Scenario::new(&status, vec![pod()], Vec::new(), accepted());
    let Outcome::Wait(Some(until)) = scenario.reconcile().await else {
        panic!("it has a deadline")
    };
    assert_eq!(until.duration_since(scenario.clock.now()).as_secs(), 20);
    assert_eq!(evictions(&scenario), 0);
    scenario.clock.advance(Duration::from_secs(20));
    scenario.reconcile().await;
    assert_eq!(evictions(&scenario), 1);
}

/// The server has accepted the intent and rejects the result.
#[tokio::test]
async fn refusal_that_cannot_be_written_is_written_later_without_another_attempt() {
    let scenario = Scenario::with(&evicting(), vec![pod()], Vec::new(), |_| blocked_by_budget());
    let is_broken = Arc::clone(&scenario.is_broken);
    let writes = std::sync::atomic::AtomicUsize::new(0);
    let host = scenario.controller.context.clients.host.clone();
    let stored = Arc::clone(&scenario.stored);
    let (controller, _) = with_drydock(&scenario, move |request| {
        let write = writes.fetch_add(1, Ordering::Relaxed);
        if write > 0 && is_broken.load(Ordering::Relaxed) {
            return failure(422, "Invalid", "no", json!({}));
        }
        let mut stored = stored.lock().unwrap();
        merge(&mut stored, &request.body);
        stored["metadata"]["resourceVersion"] = json!((write + 2).to_string());
        (200, stored.clone())
    });
    drop(host);
    scenario.is_broken.store(true, Ordering::Relaxed);
    for _ in 0..60 {
        assert_eq!(controller.reconcile(key()).await, Outcome::Retry);
        scenario.clock.advance(Duration::from_secs(1));
    }
    assert_eq!(evictions(&scenario), 1);
    let metrics = controller.context.metrics.render();
    let line = "drydock_controller_invalid_status_writes_total{resource=\"evictionrequests\"} 60";
    assert!(metrics.contains(line), "{metrics}");
    scenario.is_broken.store(false, Ordering::Relaxed);
    controller.reconcile(key()).await;
    let status = &scenario.stored()["status"];
    assert_eq!(status["podEvictionStatus"]["failedAPIEvictionCounter"], 1);
    assert_eq!(evictions(&scenario), 1);
}

#[tokio::test]
async fn missing_api_does_not_drop_the_request() {
    let scenario = Scenario::new(&json!({}), vec![pod()], Vec::new(), accepted());
    let (controller, _) = with_drydock(&scenario, |_| {
        failure(
            404,
            "NotFound",
            "the server could not find the requested resource",
            json!({}),
        )
    });
    assert_eq!(controller.reconcile(key()).await, Outcome::Retry);
    let (controller, _) = with_drydock(&scenario, |_| fixtures::not_found());
    assert_eq!(controller.reconcile(key()).await, Outcome::Wait(None));
}

#[tokio::test]
async fn rejected_times_are_told_as_clock_skew() {
    let scenario = Scenario::new(&evicting(), vec![pod()], Vec::new(), accepted());
    let (controller, received) = with_drydock(&scenario, |request| {
        let conditions = &request.body["status"]["conditions"];
        if conditions.is_null() {
            let message = "Invalid value: \"x\": must be within 10 seconds of the server's time";
            let field = "status.podEvictionStatus.lastAttemptTime";
            let causes =
                json!({"causes": [{"reason": "FieldValueInvalid", "message": message, "field": field}]});
            return failure(422, "Invalid", message, causes);
        }
        let mut written = super::request(&evicting());
        written["status"]["conditions"] = conditions.clone();
        (200, written)
    });
    assert_eq!(controller.reconcile(key()).await, Outcome::Retry);
    let received = received.lock().unwrap();
    assert_eq!(received[1].body["status"]["conditions"][0]["reason"], "ClockSkew");
    assert_eq!(evictions(&scenario), 0);
}

/// The clocks of the controller's machine and of the server differ, and every response tells the server's.
#[tokio::test]
async fn times_in_objects_are_those_of_the_server() {
    for skew in [-30, 30] {
        let scenario = Scenario::new(&json!({}), vec![pod()], Vec::new(), accepted());
        let context = &scenario.controller.context;
        let server = Arc::clone(&scenario.clock);
        let clock = Arc::new(ServerClock::new(clock_at(server.now().as_second() + skew)));
        let layer = TransportLayer {
            fence: Arc::new(LeaseFence::open()),
            clock: Arc::clone(&clock),
            metrics: Metrics::default(),
        };
        let inner = context.clients.drydock.clone();
        let service = tower::service_fn(move |request| {
            let (inner, server) = (inner.clone(), Arc::clone(&server));
            async move {
                let mut response = inner.send(request).await?;
                let date = jiff::fmt::rfc2822::DateTimePrinter::new()
                    .timestamp_to_rfc9110_string(&server.now())
                    .unwrap();
                response
                    .headers_mut()
                    .insert(http::header::DATE, date.parse().unwrap());
                Ok::<_, kube::Error>(response)
            }
        });
        let client = kube::client::ClientBuilder::new(service, "default")
            .with_layer(&layer)
            .build();
        let context = Arc::new(Context {
            stores: context.stores.clone(),
            clients: Clients {
                host: client.clone(),
                drydock: client.clone(),
            },
            events: context.events.clone(),
            metrics: Metrics::default(),
            labels: context.labels.clone(),
            clock,
        });
        let queue = Arc::clone(&scenario.controller.queue);
        let options = Options::default();
        let controller = Controller::new(
            context,
            Arc::default(),
            options,
            queue,
            Arc::default(),
            Arc::default(),
            Arc::default(),
        );
        // As the watches do, which begin before anything is written.
        let requests: kube::Api<EvictionRequest> = kube::Api::namespaced(client, "shop");
        requests.get("uid-1").await.unwrap();
        controller.reconcile(key()).await;
        let last = &scenario.stored()["status"]["podEvictionStatus"]["lastAttemptTime"];
        let last: jiff::Timestamp = last.as_str().unwrap().parse().unwrap();
        let difference = last.duration_since(scenario.clock.now()).as_secs().abs();
        assert!(difference <= 1, "{difference} s with a skew of {skew} s");
    }
}

#[tokio::test]
async fn request_that_is_not_final_is_judged_again_every_ten_minutes() {
    let mut status = evicting();
    status["conditions"] = json!([{
        "type": "Blocked", "status": "True", "reason": "StaticPod", "message": "blocked: static pod",
        "lastTransitionTime": "1970-01-12T13:46:40Z",
    }]);
    let mirror = fixtures::pod(&json!({"metadata": {
        "labels": {"app": "web"}, "annotations": {"kubernetes.io/config.mirror": "x"},
    }}));
    let scenario = Scenario::new(&status, vec![mirror], Vec::new(), accepted());
    let Outcome::Wait(Some(until)) = scenario.reconcile().await else {
        panic!("it is judged again")
    };
    let wait = until.duration_since(scenario.clock.now()).as_secs();
    assert!((600..=660).contains(&wait), "{wait}");
    assert_eq!(scenario.calls(), Vec::<String>::new());
}
