use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use http::{Method, Request, Response};
use serde_json::{Value, json};

use super::PATH;
use crate::{
    audit::{Auditor, Mode, memory, memory::Memory},
    filters::{AnonymousAccess, InFlightLimits},
    fixtures::{Authority, Identity, ReadResponse, Server, Subject, connection, front_proxy, get},
    host::{AccessVerdict, Attributes, AuthenticationConfig},
    http::{
        body::{RequestBody, ResponseBody},
        connection::Service,
    },
};

/// A server whose audit log is in memory.
struct Audited {
    server: Server,
    auditor: Arc<Auditor>,
    memory: Arc<Memory>,
    proxy: Identity,
}

const WATCH: &str = "/apis/g/v/namespaces/ns/watches?watch=1";

impl Audited {
    fn with(rules: &str, mode: Mode, max_event_bytes: Option<usize>) -> Self {
        let proxies = Authority::new("proxies");
        let config = AuthenticationConfig {
            client_ca: None,
            request_header: Some(front_proxy(&proxies, &["front"])),
        };
        let mut log = None;
        let limits = InFlightLimits::default();
        let server = Server::audited(config, limits, AnonymousAccess::Reviewed, |clock, metrics| {
            let (auditor, memory) = memory::auditor(rules, mode, max_event_bytes, clock, metrics.audit());
            log = Some((Arc::clone(&auditor), memory));
            Some(auditor)
        });
        let (auditor, memory) = log.unwrap();
        Self {
            server,
            auditor,
            memory,
            proxy: proxies.issue(&Subject::client("front")),
        }
    }

    fn new(rules: &str) -> Self {
        Self::with(rules, Mode::Blocking, None)
    }

    fn at(level: &str) -> Self {
        Self::new(&format!("rules: [{{level: {level}}}]"))
    }

    /// The response to jane's request.
    async fn respond(&self, method: &Method, target: &str, lines: &[(&str, &str)]) -> Response<ResponseBody> {
        let mut request = get(target, lines).map(RequestBody::from_bytes);
        *request.method_mut() = method.clone();
        let user = "x-remote-user".parse::<http::HeaderName>().unwrap();
        request.headers_mut().insert(user, "jane".parse().unwrap());
        let connection = connection(Some(&self.proxy));
        self.server.chain.serve(&connection, request).await
    }

    async fn code(&self, target: &str, lines: &[(&str, &str)]) -> u16 {
        self.respond(&Method::GET, target, lines).await.status().as_u16()
    }

    /// Stage, code and message of the events.
    fn outcomes(&self) -> Vec<(String, Value, String)> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let outcome = |event: Value| {
            let status = &event["responseStatus"];
            (
                text(&event["stage"]),
                status["code"].clone(),
                text(&status["message"]),
            )
        };
        self.memory.take().into_iter().map(outcome).collect()
    }

    async fn metrics(&self) -> String {
        let response = self.respond(&Method::GET, "/metrics", &[]).await;
        let bytes: Vec<u8> = response.body().buffers().flatten().copied().collect();
        String::from_utf8(bytes).unwrap()
    }
}

fn outcome(stage: &str, code: Option<u16>, message: &str) -> (String, Value, String) {
    (
        stage.to_owned(),
        code.map_or(Value::Null, Into::into),
        message.to_owned(),
    )
}

#[tokio::test]
async fn an_event_says_who_did_what_and_how_it_ended() {
    let audited = Audited::at("Metadata");
    audited
        .server
        .host
        .decide_by(|_| Ok(AccessVerdict::Allowed("RBAC: allowed".to_owned())));
    let lines = [
        ("audit-id", "mine"),
        ("user-agent", "test"),
        ("x-forwarded-for", "10.1.1.1"),
        ("x-remote-group", "friends"),
    ];
    assert_eq!(audited.code(&format!("{PATH}?pretty=true"), &lines).await, 200);
    let received = json!({
        "level": "Metadata", "auditID": "mine", "stage": "RequestReceived",
        "requestURI": format!("{PATH}?pretty=true"), "verb": "get",
        "user": { "username": "jane", "groups": ["friends", "system:authenticated"] },
        "sourceIPs": ["10.1.1.1", "127.0.0.1"], "userAgent": "test",
        "objectRef": { "resource": "rs", "namespace": "ns", "name": "x", "apiGroup": "g", "apiVersion": "v" },
        "requestReceivedTimestamp": "2026-06-01T12:00:00.000000Z", "stageTimestamp": "2026-06-01T12:00:00.000000Z",
    });
    let mut events = audited.memory.take();
    for event in &mut events {
        // The clock of the test stands still, that of the runtime does not.
        let time: jiff::Timestamp = event["requestReceivedTimestamp"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        let ago = crate::fixtures::noon().duration_since(time);
        assert!(
            !ago.is_negative() && ago < jiff::SignedDuration::from_mins(1),
            "{ago}"
        );
        event["requestReceivedTimestamp"] = received["requestReceivedTimestamp"].clone();
        event["stageTimestamp"] = received["stageTimestamp"].clone();
    }
    let mut complete = received.clone();
    complete["stage"] = "ResponseComplete".into();
    complete["responseStatus"] = json!({ "metadata": {}, "code": 200 });
    complete["annotations"] = json!({
        "authorization.k8s.io/decision": "allow", "authorization.k8s.io/reason": "RBAC: allowed",
    });
    assert_eq!(events, [received, complete]);
}

#[tokio::test]
async fn levels_and_stages_are_those_of_the_policy() {
    for (level, has_response) in [("Metadata", false), ("Request", false), ("RequestResponse", true)] {
        let audited = Audited::at(level);
        audited.code(PATH, &[]).await;
        let events = audited.memory.take();
        assert_eq!(events.len(), 2);
        assert_eq!(events[0].get("responseObject"), None);
        let seen = events[1]["responseObject"]["user"].as_str();
        assert_eq!(seen, has_response.then_some("jane"), "{level}");
    }
    let audited = Audited::new("omitStages: [RequestReceived]\nrules: [{level: Metadata, verbs: [get]}]");
    audited.code(PATH, &[]).await;
    audited.code("/apis/g/v/rs", &[]).await;
    assert_eq!(audited.outcomes(), [outcome("ResponseComplete", Some(200), "")]);
    let metrics = audited.metrics().await;
    for line in [
        "apiserver_audit_level_total{level=\"Metadata\"} 2",
        "apiserver_audit_level_total{level=\"None\"} 1",
        "apiserver_audit_event_total 1",
        "apiserver_audit_requests_rejected_total 0",
    ] {
        assert!(
            metrics.lines().any(|own| own == line),
            "{line} is not in\n{metrics}"
        );
    }
}

#[tokio::test]
async fn a_watch_has_an_event_when_it_starts_and_one_when_it_ends() {
    for (lines, code) in [
        (&[][..], 200),
        (&[("connection", "upgrade"), ("upgrade", "websocket")], 101),
    ] {
        let audited = Audited::at("RequestResponse");
        let response = audited.respond(&Method::GET, WATCH, lines).await;
        assert_eq!(
            audited.outcomes(),
            [
                outcome("RequestReceived", None, ""),
                outcome("ResponseStarted", Some(code), "")
            ]
        );
        drop(response);
        audited.auditor.close().await;
        let events = audited.memory.take();
        assert_eq!(events.len(), 1);
        assert_eq!(events[0]["stage"], "ResponseComplete");
        assert_eq!(
            events[0].get("responseObject"),
            None,
            "events of watches are not recorded"
        );
    }
}

#[tokio::test]
async fn a_request_that_fails_to_authenticate_has_one_event_without_a_user() {
    let audited = Audited::new("rules: [{level: None, users: [a]}, {level: RequestResponse}]");
    let request = get(PATH, &[("authorization", "Bearer wrong-token")]).map(RequestBody::from_bytes);
    let response = audited.server.chain.serve(&connection(None), request).await;
    assert_eq!(response.status(), 401);
    let events = audited.memory.take();
    assert_eq!(events.len(), 1);
    assert_eq!(
        (&events[0]["stage"], &events[0]["user"]),
        (&json!("ResponseStarted"), &json!({}))
    );
    assert_eq!(
        events[0]["responseStatus"],
        json!({ "metadata": {}, "status": "Failure", "message": "Unauthorized", "reason": "Unauthorized", "code": 401 })
    );
}

#[tokio::test(start_paused = true)]
async fn every_end_of_a_request_is_an_outcome() {
    let audited = Audited::at("Metadata");
    for (target, expected) in [
        (
            "/apis/g/v/panics",
            outcome("Panic", Some(500), "APIServer panic'd: requested by the test"),
        ),
        (
            "/apis/g/v/hangs?timeout=5s",
            outcome(
                "ResponseComplete",
                Some(504),
                "Timeout: request did not complete within the allotted timeout",
            ),
        ),
        ("/apis/g/v/warns", outcome("ResponseComplete", Some(400), "no")),
        ("/readyz", outcome("ResponseComplete", Some(200), "")),
    ] {
        audited.code(target, &[]).await;
        let events = audited.outcomes();
        assert_eq!(
            events,
            [outcome("RequestReceived", None, ""), expected],
            "{target}"
        );
    }
    let waited = futures_util::FutureExt::now_or_never(audited.code("/apis/g/v/hangs", &[]));
    assert_eq!(waited, None);
    // In the blocking modes a request waits for its first event before the handler starts.
    let request = audited.code("/apis/g/v/hangs", &[]);
    assert!(
        tokio::time::timeout(Duration::from_secs(1), request)
            .await
            .is_err()
    );
    audited.auditor.close().await;
    let last = audited.outcomes().pop().unwrap();
    assert_eq!(
        last,
        outcome("ResponseComplete", Some(499), "Connection closed early")
    );
}

#[tokio::test]
async fn refusals_are_recorded_with_their_reason() {
    let audited = Audited::at("Metadata");
    for (path, verdict, annotations, code) in [
        (
            "/apis/g/v/namespaces/ns/rs",
            Ok(AccessVerdict::NoOpinion("RBAC: no role".to_owned())),
            json!({ "authorization.k8s.io/decision": "forbid", "authorization.k8s.io/reason": "RBAC: no role" }),
            403,
        ),
        (
            "/apis/g/v/namespaces/other/rs",
            Err(()),
            json!({ "authorization.k8s.io/reason": "internal error" }),
            500,
        ),
    ] {
        audited
            .server
            .host
            .decide_by(move |_| verdict.clone().map_err(|()| crate::host::HostError::Timeout));
        assert_eq!(audited.code(path, &[]).await, code);
        let events = audited.memory.take();
        assert_eq!(events[1]["annotations"], annotations);
        assert_eq!(events[1]["responseStatus"]["code"], code);
    }
}

#[tokio::test]
async fn both_users_of_an_impersonation_are_recorded() {
    let audited = Audited::new("rules: [{level: Metadata, users: [jane]}]");
    audited
        .code(PATH, &[("impersonate-user", "carol"), ("impersonate-uid", "7")])
        .await;
    let events = audited.memory.take();
    assert_eq!(events[0].get("impersonatedUser"), None);
    assert_eq!(
        events[1]["impersonatedUser"],
        json!({ "username": "carol", "uid": "7", "groups": ["system:authenticated"] })
    );
    assert_eq!(events[1]["user"]["username"], "jane");
}

#[tokio::test]
async fn no_event_has_a_credential_and_none_at_metadata_a_body() {
    let audited = Audited::at("Metadata");
    let lines = [
        ("authorization", "Bearer a-secret-token"),
        ("cookie", "a-secret-cookie"),
        (
            "sec-websocket-protocol",
            "base64url.bearer.authorization.k8s.io.YS1zZWNyZXQ",
        ),
    ];
    audited.server.host.tokens.lock().unwrap().insert(
        "a-secret-token".to_owned(),
        crate::request::UserInfo {
            name: "kate".to_owned(),
            ..Default::default()
        },
    );
    let mut request = Request::post("/apis/g/v/namespaces/ns/rs");
    for (name, value) in lines {
        request = request.header(name, value);
    }
    let request = request
        .body(RequestBody::from_bytes("{\"spec\":\"a-secret-body\"}"))
        .unwrap();
    let response = audited.server.chain.serve(&connection(None), request).await;
    assert_eq!(response.status(), 200);
    let events = Value::from(audited.memory.take()).to_string();
    assert!(
        events.contains("kate") && !events.contains("secret") && !events.contains("YS1"),
        "{events}"
    );
}

#[tokio::test]
async fn the_strict_mode_rejects_what_it_cannot_record_before_anything_happens() {
    for (mode, code, rejected) in [(Mode::Blocking, 200, 0), (Mode::BlockingStrict, 500, 1)] {
        let audited = Audited::with("rules: [{level: Metadata, namespaces: [ns]}]", mode, None);
        audited.memory.fails.store(true, Ordering::Relaxed);
        let reviews = audited.server.host.access_reviews.load(Ordering::Relaxed);
        let response = audited.respond(&Method::GET, PATH, &[("audit-id", "mine")]).await;
        assert_eq!(response.status(), code);
        assert_eq!(response.headers()["audit-id"], "mine");
        if mode == Mode::BlockingStrict {
            let text: Vec<u8> = response.body().buffers().flatten().copied().collect();
            let expected = format!("Internal Server Error: \"{PATH}\": failed to store audit event\n");
            assert_eq!(String::from_utf8(text).unwrap(), expected);
            assert_eq!(
                audited.server.host.access_reviews.load(Ordering::Relaxed),
                reviews
            );
        }
        let metrics = audited.metrics().await;
        for line in [
            "apiserver_audit_error_total{plugin=\"log\"} 2".to_owned(),
            format!("apiserver_audit_requests_rejected_total {rejected}"),
        ] {
            assert!(metrics.contains(&line), "{line} is not in\n{metrics}");
        }
    }
}

#[tokio::test]
async fn events_that_are_too_large_lose_their_bodies() {
    let audited = Audited::with(
        "rules: [{level: RequestResponse, namespaces: [ns]}]",
        Mode::Blocking,
        Some(1200),
    );
    audited.code(PATH, &[]).await;
    audited.code(PATH, &[("x-remote-group", &"g".repeat(300))]).await;
    let events = audited.memory.take();
    assert_eq!(
        events[1]["annotations"]["audit.k8s.io/truncated"],
        Value::Null,
        "{}",
        events[1]
    );
    assert_eq!(events[3]["annotations"]["audit.k8s.io/truncated"], "true");
    assert_eq!(events[3].get("responseObject"), None);
    audited.code(PATH, &[("x-remote-group", &"g".repeat(3000))]).await;
    assert_eq!(audited.memory.take(), [] as [Value; 0]);
    assert!(
        audited
            .metrics()
            .await
            .contains("apiserver_audit_error_total{plugin=\"truncate\"} 2")
    );
}

#[tokio::test]
async fn what_is_not_a_resource_has_no_object() {
    let audited = Audited::at("RequestResponse");
    audited.server.host.decide_by(|review| match &review.attributes {
        Attributes::Resource(_) => Ok(AccessVerdict::NoOpinion(String::new())),
        Attributes::Path { .. } => Ok(AccessVerdict::Allowed(String::new())),
    });
    assert_eq!(audited.code("/version", &[]).await, 200);
    let events = audited.memory.take();
    assert_eq!(events[1].get("objectRef"), None);
    assert_eq!(events[1].get("responseObject"), None);
    assert_eq!(events[1]["verb"], "get");
}

/// A response that was read, so that its guards are dropped.
#[tokio::test]
async fn a_response_is_the_same_with_and_without_an_audit_log() {
    let audited = Audited::at("RequestResponse");
    let plain = Server::new(AuthenticationConfig::default());
    let request = || get("/apis/g/v/missing", &[("audit-id", "a")]);
    let audited: ReadResponse = audited.server.send(&connection(None), request()).await;
    let plain = plain.send(&connection(None), request()).await;
    assert_eq!(
        (audited.code, audited.text, audited.headers),
        (plain.code, plain.text, plain.headers)
    );
}

/// Log lines of a test.
#[derive(Clone, Default)]
struct Lines(Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn writes_without_the_front_proxy_are_logged_with_user_and_id() {
    let (clients, proxies) = (Authority::new("clients"), Authority::new("proxies"));
    let server = Server::new(AuthenticationConfig {
        client_ca: Some(clients.bundle()),
        request_header: Some(front_proxy(&proxies, &["front"])),
    });
    let (user, proxy) = (
        clients.issue(&Subject::client("carol")),
        proxies.issue(&Subject::client("front")),
    );
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing::Level::INFO)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    // While there is one subscriber, tracing caches for every thread what the first thread to log a line wants: that of
    // another test, which has none. Of two it asks both.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let send = async |identity: Option<&Identity>, method: Method, id: &str| {
        let mut request = get(PATH, &[("audit-id", id), ("x-remote-user", "jane")]);
        *request.method_mut() = method;
        server.send(&connection(identity), request).await
    };
    send(Some(&user), Method::DELETE, "direct-write").await;
    send(Some(&user), Method::GET, "direct-read").await;
    send(Some(&proxy), Method::DELETE, "proxied-write").await;
    send(None, Method::DELETE, "strange-write").await;
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let found: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("direct write"))
        .collect();
    assert_eq!(found.len(), 1, "{text}");
    for part in [
        "INFO",
        "audit_id=\"direct-write\"",
        "user=\"carol\"",
        "method=DELETE",
        PATH,
        "code=200",
    ] {
        assert!(found[0].contains(part), "{part} is not in {}", found[0]);
    }
}
