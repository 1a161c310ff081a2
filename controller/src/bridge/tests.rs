use std::collections::BTreeMap;
use std::sync::Arc;

use drydock_machinery::clock::ManualClock;
use serde_json::{Value, json};

use super::*;
use crate::fixtures::{
    Received, ReceivedRequest, api_double, clock_at, context, empty_stores, failure, merge, not_found, pod,
    typed,
};
use crate::informer::Store;
use crate::stores::Stores;

const OWN: &str = "system:serviceaccount:drydock-system:drydock-controller";
const LIFETIME: Duration = Duration::from_mins(15);

fn options() -> Options {
    Options {
        allowed: AllowedNames::default(),
        clients: None,
        lifetime: LIFETIME,
        descheduler_lifetime: Duration::from_hours(2),
    }
}

/// What an API double answers: the own name, no pod, and writes with what was written.
fn answers(request: &ReceivedRequest) -> (u16, Value) {
    match (request.method.as_str(), request.path.as_str()) {
        ("POST", path) if path.ends_with("selfsubjectreviews") => {
            (201, json!({"status": {"userInfo": {"username": OWN}}}))
        }
        ("GET", _) => not_found(),
        ("DELETE", _) => (200, json!({"kind": "Status", "status": "Success"})),
        _ => (200, request.body.clone()),
    }
}

/// A bridge over these stores, what the API received, and its clock, at the epoch.
fn bridge(
    stores: Stores,
    respond: fn(&ReceivedRequest) -> (u16, Value),
) -> (Bridge, Received, Arc<ManualClock>) {
    let clock = clock_at(0);
    let (clients, received) = api_double(respond);
    let context = context(stores, clients.clone(), &clock);
    (
        Bridge::new(context, clients, Arc::default(), options()),
        received,
        clock,
    )
}

/// Stores with the pod `web`, changed by a merge patch, and its request, if there is one.
fn stores(patch: &Value, request: Option<Value>) -> Stores {
    let mut stores = empty_stores();
    stores.pods = Store::synced_with(vec![pod(patch)]);
    stores.requests = Store::synced_with(request.map(typed).into_iter().collect());
    stores
}

fn intercepted() -> Value {
    json!({"metadata": {"annotations": {"evictionrequest.coordination.k8s.io/interceptors": "a.example.com"}}})
}

/// A request of the pod, changed by a merge patch.
fn request(patch: &Value) -> Value {
    let mut request = json!({
        "metadata": {
            "name": "uid-1", "namespace": "shop", "uid": "request-1", "resourceVersion": "7",
            "creationTimestamp": "1970-01-01T00:00:00Z",
        },
        "spec": {"target": {"pod": {"name": "web", "uid": "uid-1"}}, "requesters": [{"name": "other.example.com"}]},
        "status": {
            "targetInterceptors": [{"name": "a.example.com"}, {"name": "imperative-eviction.k8s.io"}],
            "activeInterceptors": ["a.example.com"],
        },
    });
    merge(&mut request, patch);
    request
}

fn asked_until(second: i64) -> Value {
    let until = Timestamp::from_second(second).unwrap().to_string();
    let annotation = json!({"by": "admin", "until": until}).to_string();
    json!({
        "metadata": {"annotations": {PARTY.annotation: annotation}},
        "spec": {"requesters": [{"name": PARTY.requester}]},
    })
}

fn finished(type_: &str) -> Value {
    json!({"status": {"conditions": [{
        "type": type_, "status": "True", "reason": "X", "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z",
    }]}})
}

impl Bridge {
    async fn answer(&self, review: &Review) -> Result<(&'static str, Answer), Failure> {
        self.answer_until(Instant::now() + DEADLINE, review).await
    }
}

fn review(patch: &Value) -> Review {
    review::decode(&review::tests::body(patch)).unwrap()
}

/// What the API received after the own name, as `METHOD NAME`.
fn calls(received: &Received) -> Vec<String> {
    let received = received.lock().unwrap();
    received
        .iter()
        .filter(|request| request.last_segment() != "selfsubjectreviews")
        .map(|request| format!("{} {}", request.method, request.last_segment()))
        .collect()
}

fn seconds(answer: &Answer) -> u32 {
    match answer {
        Answer::Later {
            retry_after_seconds, ..
        } => *retry_after_seconds,
        Answer::Allow { .. } => 0,
    }
}

#[tokio::test]
async fn evictions_of_pods_without_interceptors_pass_without_a_call() {
    let (bridge, received, _) = bridge(stores(&json!({}), None), answers);
    let (outcome, answer) = bridge.answer(&review(&json!({}))).await.unwrap();
    assert_eq!(
        (outcome, answer),
        ("no_interceptors", Answer::Allow { warning: None })
    );
    assert_eq!(calls(&received), [""; 0]);
}

#[tokio::test]
async fn evictions_of_intercepted_pods_become_requests() {
    let (bridge, received, _) = bridge(stores(&intercepted(), None), answers);
    let (outcome, answer) = bridge.answer(&review(&json!({}))).await.unwrap();
    assert_eq!(outcome, "waiting");
    let Answer::Later { message, .. } = &answer else {
        panic!("{answer:?}")
    };
    assert!(
        message.starts_with("Eviction triggered evacuation: pod shop/web "),
        "{message}"
    );
    assert_eq!(seconds(&answer), 1);
    assert_eq!(calls(&received), ["PATCH uid-1"]);
    let written = received.lock().unwrap().last().cloned().unwrap();
    assert!(
        written.query.contains("fieldManager=drydock-eviction-bridge"),
        "{}",
        written.query
    );
    assert_eq!(
        written.body["spec"],
        json!({
            "target": {"pod": {"name": "web", "uid": "uid-1"}}, "requesters": [{"name": "eviction-bridge.drydock"}],
        })
    );
    let annotation = written.body["metadata"]["annotations"][PARTY.annotation]
        .as_str()
        .unwrap();
    let annotation: Value = serde_json::from_str(annotation).unwrap();
    assert_eq!(
        annotation,
        json!({"by": "admin", "until": "1970-01-01T00:15:00Z"})
    );
}

#[tokio::test]
async fn own_evictions_and_dry_runs_write_nothing() {
    let (bridge, received, _) = bridge(stores(&intercepted(), None), answers);
    let own = review(&json!({"request": {"userInfo": {"username": OWN}}}));
    assert_eq!(bridge.answer(&own).await.unwrap().0, "own");
    let (outcome, answer) = bridge
        .answer(&review(&json!({"request": {"dryRun": true}})))
        .await
        .unwrap();
    assert_eq!(outcome, "dry_run");
    assert!(matches!(answer, Answer::Allow { warning: Some(warning) } if warning.contains("a.example.com")));
    assert_eq!(calls(&received), [""; 0]);
}

#[tokio::test]
async fn asking_again_writes_only_when_a_third_of_the_lifetime_is_over() {
    let (bridge, received, clock) = bridge(stores(&intercepted(), Some(request(&asked_until(900)))), answers);
    for (advance, expected) in [(0, 0), (300, 0), (1, 1)] {
        clock.advance(Duration::from_secs(advance));
        let (outcome, _) = bridge.answer(&review(&json!({}))).await.unwrap();
        assert_eq!((outcome, calls(&received).len()), ("waiting", expected));
    }
    let (_, answer) = bridge.answer(&review(&json!({}))).await.unwrap();
    assert_eq!(seconds(&answer), 10, "it takes long");
}

#[tokio::test]
async fn the_descheduler_has_more_time_and_is_not_told_to_repeat_the_call() {
    let (bridge, received, _) = bridge(stores(&intercepted(), Some(request(&asked_until(900)))), answers);
    let patch = json!({"request": {"object": {"metadata": {"annotations": {"requested-by": "sigs.k8s.io/descheduler"}}}}});
    let (_, answer) = bridge.answer(&review(&patch)).await.unwrap();
    assert!(
        matches!(&answer, Answer::Later { message, retry_after_seconds: 0 } if message.contains("triggered evacuation"))
    );
    let written = received.lock().unwrap().last().cloned().unwrap();
    let annotation = written.body["metadata"]["annotations"][PARTY.annotation].to_string();
    assert!(annotation.contains("1970-01-01T02:00:00Z"), "{annotation}");
}

#[tokio::test]
async fn requests_of_others_are_joined_unless_they_cannot_be_canceled() {
    let forbidden = json!({"status": {"evictionRequestCancellationPolicy": "Forbid"}});
    for (patch, expected) in [(json!({}), vec!["PATCH uid-1"]), (forbidden, vec![])] {
        let (bridge, received, _) = bridge(stores(&intercepted(), Some(request(&patch))), answers);
        let (outcome, _) = bridge.answer(&review(&json!({}))).await.unwrap();
        assert_eq!(outcome, "waiting");
        assert_eq!(calls(&received), expected, "{patch}");
    }
}

#[tokio::test]
async fn requests_that_ended_without_the_pod_are_replaced() {
    let (bridge, received, _) = bridge(
        stores(&intercepted(), Some(request(&finished("Canceled")))),
        answers,
    );
    let (outcome, _) = bridge.answer(&review(&json!({}))).await.unwrap();
    assert_eq!(outcome, "waiting");
    assert_eq!(calls(&received), ["DELETE uid-1", "PATCH uid-1"]);
    let deleted = received.lock().unwrap()[1].body.clone();
    assert_eq!(
        deleted["preconditions"],
        json!({"uid": "request-1", "resourceVersion": "7"})
    );
}

#[tokio::test]
async fn evictions_pass_when_the_interceptors_are_done() {
    let done = json!({"status": {"processedInterceptors": ["a.example.com"], "activeInterceptors": ["imperative-eviction.k8s.io"]}});
    let (bridge, received, _) = bridge(stores(&intercepted(), Some(request(&done))), answers);
    assert_eq!(bridge.answer(&review(&json!({}))).await.unwrap().0, "done");
    assert_eq!(calls(&received), [""; 0]);
}

#[tokio::test]
async fn the_host_is_asked_for_pods_that_the_watch_may_not_have_delivered() {
    let terminating = json!({"metadata": {"deletionTimestamp": "1970-01-01T00:00:00Z"}});
    let absent = json!({"metadata": {"name": "other"}});
    for patch in [terminating, absent] {
        let (bridge, received, _) = bridge(stores(&patch, None), answers);
        assert_eq!(bridge.answer(&review(&json!({}))).await.unwrap().0, "absent");
        assert_eq!(calls(&received), ["GET web"]);
    }
    // A stateful set has created the pod anew.
    let (bridge, received, _) = bridge(stores(&intercepted(), None), |request| {
        match request.method.as_str() {
            "GET" => {
                let mut pod = json!({
                    "metadata": {"name": "web", "namespace": "shop", "uid": "uid-2"}, "status": {"phase": "Running"},
                });
                merge(&mut pod, &intercepted());
                (200, pod)
            }
            _ => answers(request),
        }
    });
    let patch = json!({"request": {"object": {"deleteOptions": {"preconditions": {"uid": "uid-2"}}}}});
    assert_eq!(bridge.answer(&review(&patch)).await.unwrap().0, "waiting");
    assert_eq!(calls(&received), ["GET web", "PATCH uid-2"]);
}

#[tokio::test]
async fn too_many_interceptors_are_told_and_never_requested() {
    let list: Vec<_> = (0..16).map(|index| format!("i{index}.example.com")).collect();
    let patch = json!({"metadata": {"annotations": {"evictionrequest.coordination.k8s.io/interceptors": list.join(",")}}});
    let (bridge, received, _) = bridge(stores(&patch, None), answers);
    let (outcome, answer) = bridge.answer(&review(&json!({}))).await.unwrap();
    assert_eq!(outcome, "refused");
    assert!(
        matches!(&answer, Answer::Later { message, .. } if message.contains("16 interceptors") && !message.contains("triggered"))
    );
    assert_eq!(calls(&received), [""; 0]);
}

#[tokio::test]
async fn evictions_are_refused_for_a_minute_without_the_server_and_then_the_webhook_fails() {
    let (bridge, _, clock) = bridge(stores(&intercepted(), None), |request| {
        match request.method.as_str() {
            "PATCH" => failure(503, "ServiceUnavailable", "away", json!({})),
            _ => answers(request),
        }
    });
    for _ in 0..2 {
        let (outcome, answer) = bridge.answer(&review(&json!({}))).await.unwrap();
        assert_eq!(outcome, "refused");
        assert!(
            matches!(&answer, Answer::Later { message, .. } if message.contains("away") && !message.contains("triggered"))
        );
        clock.advance(Duration::from_secs(59));
    }
    let failed = bridge.answer(&review(&json!({}))).await.unwrap_err();
    assert_eq!(failed.status(), StatusCode::INTERNAL_SERVER_ERROR);
    // Another outage, much later.
    clock.advance(Duration::from_hours(1));
    assert_eq!(bridge.answer(&review(&json!({}))).await.unwrap().0, "refused");
}

#[tokio::test]
async fn each_pod_is_waited_for_by_itself() {
    let other = json!({"metadata": {"name": "other", "uid": "uid-2"}});
    let mut of_other = intercepted();
    merge(&mut of_other, &other);
    let mut stores = stores(&intercepted(), None);
    stores.pods = Store::synced_with(vec![pod(&intercepted()), pod(&of_other)]);
    let (bridge, _, clock) = bridge(stores, |request| match request.method.as_str() {
        // A rule of the cluster denies one of the requests, and always will.
        "PATCH" if request.last_segment() == "uid-2" => failure(422, "Invalid", "denied", json!({})),
        "PATCH" => failure(503, "ServiceUnavailable", "away", json!({})),
        _ => answers(request),
    });
    let of_other = review(&json!({"request": {"name": "other"}}));
    assert_eq!(bridge.answer(&of_other).await.unwrap().0, "refused");
    clock.advance(Duration::from_secs(59));
    assert_eq!(bridge.answer(&of_other).await.unwrap().0, "refused");
    clock.advance(Duration::from_secs(1));
    assert!(bridge.answer(&of_other).await.is_err());
    assert_eq!(bridge.answer(&review(&json!({}))).await.unwrap().0, "refused");
}

#[tokio::test]
async fn a_request_that_is_held_after_its_end_holds_its_pod_for_a_minute() {
    let deleted = json!({"metadata": {
        "deletionTimestamp": "1970-01-01T00:00:00Z", "finalizers": ["other.example.com/keep"],
    }});
    for state in [finished("Canceled"), json!({})] {
        let mut patch = deleted.clone();
        merge(&mut patch, &state);
        let (bridge, received, clock) = bridge(stores(&intercepted(), Some(request(&patch))), answers);
        clock.advance(Duration::from_secs(59));
        assert_eq!(bridge.answer(&review(&json!({}))).await.unwrap().0, "refused");
        clock.advance(Duration::from_secs(1));
        let failed = bridge.answer(&review(&json!({}))).await.unwrap_err();
        assert!(matches!(failed, Failure::Held), "{failed}");
        assert_eq!(calls(&received), [""; 0]);
    }
}

/// A body that never comes to its end.
struct Endless;

impl Body for Endless {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        std::task::Poll::Pending
    }
}

#[tokio::test(start_paused = true)]
async fn slow_posts_of_one_address_take_no_place_of_others() {
    let (bridge, _, _) = bridge(stores(&json!({}), None), answers);
    let bridge = Arc::new(bridge);
    let peer = |last| Peer {
        address: IpAddr::from([10, 0, 0, last]),
        certificate_name: None,
    };
    for _ in 0..1000 {
        let (bridge, peer) = (Arc::clone(&bridge), peer(1));
        tokio::spawn(async move {
            bridge
                .respond(Request::post(PATH).body(Endless).unwrap(), &peer)
                .await
        });
    }
    tokio::task::yield_now().await;
    let began = tokio::time::Instant::now();
    let body = Full::<Bytes>::from(review::tests::body(&json!({})));
    let answered = bridge
        .respond(Request::post(PATH).body(body).unwrap(), &peer(2))
        .await;
    assert_eq!(
        (answered.status(), began.elapsed()),
        (StatusCode::OK, Duration::ZERO)
    );
    // Those that send too slowly are told so, and many answers at a time are bounded as well.
    let slow = bridge
        .respond(Request::post(PATH).body(Endless).unwrap(), &peer(3))
        .await;
    assert_eq!(slow.status(), StatusCode::GATEWAY_TIMEOUT);
}

/// A bridge over the pod `web`, which has interceptors, where calls with this method never end, and its clock.
fn hanging(method: Method) -> (Bridge, Arc<ManualClock>) {
    let clock = clock_at(0);
    let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
        let hangs = request.method() == method;
        async move {
            if hangs {
                std::future::pending::<()>().await;
            }
            let body = json!({"status": {"userInfo": {"username": OWN}}}).to_string();
            http::Response::builder()
                .status(201)
                .body(kube::client::Body::from(body.into_bytes()))
                .map_err(kube::Error::HttpError)
        }
    });
    let client = kube::Client::new(service, "default");
    let clients = Clients {
        host: client.clone(),
        drydock: client,
    };
    let context = context(stores(&intercepted(), None), clients.clone(), &clock);
    (Bridge::new(context, clients, Arc::default(), options()), clock)
}

/// Posts the same review so many times at once from one address. The answers, by status and code, and how many of each there
/// are, all within the deadline.
async fn post(bridge: &Arc<Bridge>, count: usize) -> BTreeMap<(u16, u64), usize> {
    let mut posts = tokio::task::JoinSet::new();
    for _ in 0..count {
        let bridge = Arc::clone(bridge);
        posts.spawn(async move {
            let peer = Peer {
                address: IpAddr::from([10, 0, 0, 1]),
                certificate_name: None,
            };
            let body = Full::<Bytes>::from(review::tests::body(&json!({})));
            let request = Request::post(PATH).body(body).unwrap();
            let response = bridge.respond(request, &peer).await;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let code = &body["response"]["status"]["code"];
            (status, code.as_u64().unwrap_or_default())
        });
    }
    let began = Instant::now();
    let mut answers = BTreeMap::new();
    for answer in posts.join_all().await {
        *answers.entry(answer).or_default() += 1;
    }
    assert!(began.elapsed() <= DEADLINE, "{:?}", began.elapsed());
    answers
}

#[tokio::test(start_paused = true)]
async fn evictions_are_refused_while_writes_hang() {
    let (bridge, clock) = hanging(Method::PATCH);
    let bridge = Arc::new(bridge);
    // More than have places at once.
    assert_eq!(post(&bridge, 1000).await, [((200, 429), 1000)].into());
    // Meanwhile nothing is written, so that nobody waits.
    let began = Instant::now();
    assert_eq!(post(&bridge, 1000).await, [((200, 429), 1000)].into());
    assert_eq!(began.elapsed(), Duration::ZERO);
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(post(&bridge, 1000).await, [((200, 429), 1000)].into());
    assert_eq!(began.elapsed(), Duration::from_secs(3), "it is tried again");
    clock.advance(Duration::from_mins(1));
    assert_eq!(post(&bridge, 1000).await, [((500, 0), 1000)].into());
}

#[tokio::test(start_paused = true)]
async fn evictions_are_refused_for_a_minute_while_the_host_hangs() {
    let (bridge, clock) = hanging(Method::POST);
    let bridge = Arc::new(bridge);
    assert_eq!(post(&bridge, 1000).await, [((200, 429), 1000)].into());
    clock.advance(Duration::from_mins(1));
    assert_eq!(post(&bridge, 1000).await, [((504, 0), 1000)].into());
}

#[tokio::test(start_paused = true)]
async fn a_write_has_the_time_that_is_left() {
    let (bridge, _) = hanging(Method::PATCH);
    let began = Instant::now();
    let review = review(&json!({}));
    let answered = bridge.answer_until(began + Duration::from_millis(300), &review);
    assert_eq!(answered.await.unwrap().0, "refused");
    assert_eq!(began.elapsed(), Duration::from_millis(200));
    assert!(!bridge.stall.is_on(), "others have more time");
}

#[tokio::test]
async fn nothing_is_answered_before_the_initial_lists() {
    let (_, unsynced) = crate::stores::Informers::new();
    let (bridge, _, _) = bridge(unsynced, answers);
    let failed = bridge.answer(&review(&json!({}))).await.unwrap_err();
    assert_eq!(failed.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn clients_are_authenticated_where_an_authority_is_configured() {
    let (mut bridge, _, _) = bridge(empty_stores(), answers);
    let peer = |name: Option<&str>| Peer {
        address: IpAddr::from([10, 0, 0, 1]),
        certificate_name: name.map(str::to_owned),
    };
    assert!(bridge.admits(&peer(None)).is_ok());
    bridge.options.clients = Some(Vec::new());
    let refused = bridge.admits(&peer(None)).unwrap_err();
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);
    assert!(bridge.admits(&peer(Some("any"))).is_ok());
    bridge.options.clients = Some(vec!["kube-apiserver".to_owned()]);
    assert!(bridge.admits(&peer(Some("kube-apiserver"))).is_ok());
    let refused = bridge.admits(&peer(Some("any"))).unwrap_err();
    assert_eq!(refused.status(), StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn writes_are_limited() {
    let (bridge, received, _) = bridge(stores(&intercepted(), None), answers);
    while bridge.writes.take(Timestamp::UNIX_EPOCH) {}
    assert_eq!(bridge.answer(&review(&json!({}))).await.unwrap().0, "throttled");
    assert_eq!(calls(&received), [""; 0]);
}
