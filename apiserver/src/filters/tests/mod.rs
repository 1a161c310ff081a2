mod audit;
mod identity;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use http::{Method, Request};
use serde_json::json;
use tokio::time::Instant;

use crate::{
    filters::{AnonymousAccess, InFlightLimits},
    fixtures::{Authority, Identity, Server, Subject, connection, front_proxy, get},
    health::Mark,
    host::{AccessVerdict, Attributes, AuthenticationConfig},
};

const PATH: &str = "/apis/g/v/namespaces/ns/rs/x";

struct Cluster {
    clients: Authority,
    proxies: Authority,
    server: Server,
}

impl Cluster {
    fn new() -> Self {
        let (clients, proxies) = (Authority::new("clients"), Authority::new("proxies"));
        let config = AuthenticationConfig {
            client_ca: Some(clients.bundle()),
            request_header: Some(front_proxy(&proxies, &["front"])),
        };
        Self {
            clients,
            proxies,
            server: Server::new(config),
        }
    }

    fn proxy(&self) -> Identity {
        self.proxies.issue(&Subject::client("front"))
    }

    /// The user that a request runs as, or the code it is rejected with.
    async fn who(&self, identity: Option<&Identity>, lines: &[(&str, &str)]) -> Result<String, u16> {
        let response = self.server.send(&connection(identity), get(PATH, lines)).await;
        if response.code != 200 {
            return Err(response.code.as_u16());
        }
        let seen = response.json();
        let headers = seen["headers"].to_string();
        assert!(
            !headers.contains("x-remote") && !headers.contains("authorization"),
            "{headers}"
        );
        Ok(seen["user"].as_str().unwrap().to_owned())
    }
}

#[tokio::test]
async fn every_response_has_an_audit_id_and_is_not_cached() {
    let cluster = Cluster::new();
    for (path, lines, code) in [
        (PATH, &[("audit-id", "mine")][..], 200),
        ("/apis/g/v/panics", &[("audit-id", "mine")], 500),
        (
            PATH,
            &[("audit-id", "mine"), ("authorization", "Bearer bad")],
            401,
        ),
        ("/%zz", &[("audit-id", "mine")], 400),
    ] {
        let request = Request::get(PATH);
        let mut request = lines
            .iter()
            .fold(request, |r, (n, v)| r.header(*n, *v))
            .body("")
            .unwrap();
        *request.uri_mut() = path.parse().unwrap();
        let response = cluster.server.send(&connection(None), request).await;
        assert_eq!(response.code, code, "{path}");
        assert_eq!(response.headers["audit-id"], "mine");
        assert_eq!(response.headers["cache-control"], "no-cache, private");
    }
    let response = cluster.server.send(&connection(None), get(PATH, &[])).await;
    assert_eq!(response.headers["audit-id"].len(), 36);
}

#[tokio::test]
async fn a_panic_fails_one_request_only() {
    let cluster = Cluster::new();
    let response = cluster
        .server
        .send(&connection(None), get("/apis/g/v/panics", &[]))
        .await;
    assert_eq!(response.code, 500);
    assert_eq!(
        response.text,
        "This request caused apiserver to panic. Look in the logs for details.\n"
    );
    assert_eq!(
        cluster.server.send(&connection(None), get(PATH, &[])).await.code,
        200
    );
}

#[tokio::test]
async fn not_found_is_503_until_routes_are_installed() {
    let cluster = Cluster::new();
    let missing = async |server: &Server| {
        server
            .send(&connection(None), get("/apis/g/v/missing", &[]))
            .await
    };
    assert_eq!(missing(&cluster.server).await.code, 404);

    let mut unready = Server::new(AuthenticationConfig::default());
    let chain = Arc::get_mut(&mut unready.chain).unwrap();
    chain.routes_installed = Mark::default();
    let response = missing(&unready).await;
    assert_eq!(response.code, 503);
    assert_eq!(response.headers["retry-after"], "5");
    chain_mark(&unready).set();
    assert_eq!(missing(&unready).await.code, 404);
}

fn chain_mark(server: &Server) -> &Mark {
    &server.chain.routes_installed
}

#[tokio::test(start_paused = true)]
async fn requests_time_out_after_sixty_seconds_or_the_clients_timeout() {
    let cluster = Cluster::new();
    let send = async |method: Method, target: &'static str| {
        let before = Instant::now();
        let request = Request::builder().method(method).uri(target).body("").unwrap();
        let response = cluster.server.send(&connection(None), request).await;
        (response.code.as_u16(), before.elapsed().as_secs(), response.text)
    };
    let (code, seconds, text) = send(Method::GET, "/apis/g/v/hangs").await;
    assert_eq!((code, seconds), (504, 60));
    assert!(
        text.contains("Timeout: request did not complete within the allotted timeout"),
        "{text}"
    );
    let (code, seconds, text) = send(Method::POST, "/apis/g/v/hangs").await;
    assert_eq!((code, seconds), (504, 34));
    assert!(
        text.contains("within requested timeout - context deadline exceeded"),
        "{text}"
    );
    let (code, seconds, _) = send(Method::GET, "/apis/g/v/hangs?timeout=5s").await;
    assert_eq!((code, seconds), (504, 5));
    let (code, _, text) = send(Method::GET, "/apis/g/v/rs?timeout=soon").await;
    assert_eq!(code, 400);
    assert!(
        text.contains("invalid timeout specified in the request URL"),
        "{text}"
    );
}

#[tokio::test]
async fn watches_have_no_deadline_and_writes_a_shorter_one() {
    let cluster = Cluster::new();
    for (method, target, seconds) in [
        (Method::GET, "/apis/g/v/rs/x", json!(60)),
        (Method::PUT, "/apis/g/v/rs/x", json!(34)),
        (Method::DELETE, "/apis/g/v/rs", json!(60)),
        (Method::GET, "/apis/g/v/rs?watch=1&timeout=5s", json!(null)),
    ] {
        let request = Request::builder().method(&method).uri(target).body("").unwrap();
        let response = cluster.server.send(&connection(None), request).await;
        assert_eq!(response.json()["seconds"], seconds, "{method} {target}");
    }
}

#[tokio::test]
async fn error_responses_carry_warnings() {
    let cluster = Cluster::new();
    let response = cluster
        .server
        .send(&connection(None), get("/apis/g/v/warns", &[]))
        .await;
    assert_eq!(response.code, 400);
    assert_eq!(response.headers["warning"], r#"299 - "careful""#);
}

#[tokio::test]
async fn only_watches_are_upgraded_and_only_to_websocket() {
    let cluster = Cluster::new();
    let watch = "/apis/g/v/rs?watch=1";
    for (target, protocol, code) in [
        (PATH, "websocket", 400),
        (watch, "h2c", 400),
        (watch, "WebSocket", 200),
    ] {
        let lines = [("connection", "upgrade"), ("upgrade", protocol)];
        let response = cluster.server.send(&connection(None), get(target, &lines)).await;
        assert_eq!(response.code, code, "{target} {protocol}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_shuts_down_rejects_requests_after_the_delay() {
    let cluster = Cluster::new();
    let stop = tokio::spawn({
        let stages = cluster.server.stages.clone();
        async move { stages.stop(Duration::from_secs(10)).await }
    });
    cluster.server.stages.unready().cancelled().await;
    let send = async |path: &str, lines: &[(&str, &str)]| {
        cluster.server.send(&connection(None), get(path, lines)).await
    };
    let readiness = send("/readyz", &[]).await;
    assert_eq!(readiness.code, 500);
    assert!(readiness.text.contains("[-]shutdown failed: reason withheld\n"));
    assert_eq!(send("/livez", &[]).await.code, 200);
    assert_eq!(
        send(PATH, &[]).await.code,
        200,
        "everything is served during the delay"
    );

    tokio::time::advance(Duration::from_secs(10)).await;
    cluster.server.stages.closed().cancelled().await;
    stop.await.unwrap();
    let rejected = send(PATH, &[]).await;
    assert_eq!(rejected.code, 429);
    assert_eq!(rejected.headers["retry-after"], "5");
    assert_eq!(
        rejected.text,
        "The apiserver is shutting down, please try again later.\n"
    );
}

#[tokio::test]
async fn request_counts_have_the_labels_of_dashboards() {
    let cluster = Cluster::new();
    cluster.server.send(&connection(None), get(PATH, &[])).await;
    cluster.server.send(&connection(None), get("/readyz", &[])).await;
    for index in 0..100 {
        let target = format!("/apis/g/v/rs{index}/x{index}");
        cluster.server.send(&connection(None), get(&target, &[])).await;
    }
    let text = cluster
        .server
        .send(&connection(None), get("/metrics", &[]))
        .await
        .text;
    let counts: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("apiserver_request_total{"))
        .collect();
    assert_eq!(counts.len(), 2, "{counts:?}");
    for line in [
        r#"apiserver_request_total{verb="GET",dry_run="",group="g",version="v",resource="rs",subresource="",scope="resource",component="apiserver",code="200"} 1"#,
        r#"apiserver_request_total{verb="GET",dry_run="",group="",version="",resource="",subresource="/readyz",scope="",component="",code="200"} 1"#,
    ] {
        assert!(counts.contains(&line), "{line} is not in {counts:?}");
    }
}

#[tokio::test]
async fn responses_to_head_have_no_body() {
    let cluster = Cluster::new();
    let request = Request::head("/readyz").body("").unwrap();
    let response = cluster.server.send(&connection(None), request).await;
    assert_eq!((response.code.as_u16(), response.text.as_str()), (200, ""));
    assert_eq!(response.headers["content-length"], "2");
}

#[tokio::test]
async fn requests_that_filters_reject_are_not_counted_as_api_requests() {
    let cluster = Cluster::new();
    cluster.server.host.decide_by(|review| match &review.attributes {
        Attributes::Resource(_) => Ok(AccessVerdict::NoOpinion(String::new())),
        Attributes::Path { .. } => Ok(AccessVerdict::Allowed(String::new())),
    });
    assert_eq!(
        cluster.server.send(&connection(None), get(PATH, &[])).await.code,
        403
    );
    let text = cluster
        .server
        .send(&connection(None), get("/metrics", &[]))
        .await
        .text;
    assert!(!text.contains("apiserver_request_total{"), "{text}");
    assert!(
        text.contains("authorization_attempts_total{result=\"no-opinion\"} 1"),
        "{text}"
    );
}

#[tokio::test]
async fn clients_without_a_credential_cost_no_review() {
    let proxies = Authority::new("proxies");
    let config = AuthenticationConfig {
        client_ca: None,
        request_header: Some(front_proxy(&proxies, &["front"])),
    };
    let server = Server::with(config, InFlightLimits::default(), AnonymousAccess::OpenPaths);
    let send = async |target: &str, lines: &[(&str, &str)]| {
        let response = server.send(&connection(None), get(target, lines)).await;
        (response.code.as_u16(), response.text)
    };
    for path in ["/livez", "/readyz", "/healthz", "/version"] {
        assert_eq!(send(path, &[]).await.0, 200, "{path}");
    }
    let before = server.host.access_reviews.load(Ordering::Relaxed);
    let (code, text) = send("/apis/g/v/rs?labelSelector=a,b,c", &[]).await;
    assert_eq!(code, 403);
    assert!(
        text.contains(r#"rs.g is forbidden: User \"system:anonymous\" cannot list resource \"rs\""#),
        "{text}"
    );
    assert_eq!(send("/metrics", &[]).await.0, 403);
    assert_eq!(send("/openapi/v2", &[]).await.0, 403);
    assert_eq!(send(PATH, &[("impersonate-user", "alice")]).await.0, 403);
    assert_eq!(server.host.access_reviews.load(Ordering::Relaxed), before);

    // Whom the front proxy calls anonymous was let in by the host.
    let proxy = proxies.issue(&Subject::client("front"));
    let lines = [("x-remote-user", "system:anonymous")];
    let response = server.send(&connection(Some(&proxy)), get(PATH, &lines)).await;
    assert_eq!(response.code, 200);
    assert_eq!(server.host.access_reviews.load(Ordering::Relaxed), before + 1);
}

#[tokio::test]
async fn large_selectors_are_not_sent_to_the_host() {
    let cluster = Cluster::new();
    let terms = |count: usize| (0..count).map(|n| format!("k{n}")).collect::<Vec<_>>().join(",");
    for (selector, expected) in [
        (terms(100), 100),
        (terms(101), 0),
        (format!("k={}", "v".repeat(63)), 1),
        (vec![format!("k={}", "v".repeat(63)); 70].join(","), 0),
    ] {
        cluster
            .server
            .host
            .decide_by(move |review| match &review.attributes {
                Attributes::Resource(it) if it.label_selector.len() == expected => {
                    Ok(AccessVerdict::Allowed(String::new()))
                }
                _ => Ok(AccessVerdict::NoOpinion(String::new())),
            });
        let target = format!("/apis/g/v/rs?labelSelector={selector}");
        let response = cluster.server.send(&connection(None), get(&target, &[])).await;
        assert_eq!(response.code, 200, "{expected}");
    }
}

#[tokio::test(start_paused = true)]
async fn users_who_wait_do_not_take_the_places_of_others() {
    let proxies = Authority::new("proxies");
    let config = AuthenticationConfig {
        client_ca: None,
        request_header: Some(front_proxy(&proxies, &["front"])),
    };
    let limits = InFlightLimits {
        reading: 10,
        mutating: 10,
    };
    let server = Server::with(config, limits, AnonymousAccess::Reviewed);
    let proxy = proxies.issue(&Subject::client("front"));
    let send = async |user: &str, target: &str| {
        let request = get(target, &[("x-remote-user", user)]);
        let response = server.send(&connection(Some(&proxy)), request).await;
        (
            response.code.as_u16(),
            response.headers.get("retry-after").cloned(),
        )
    };
    // The six seats of the level are taken for twenty seconds, and the queues of one user fill up.
    let target = "/apis/g/v/hangs?timeout=20s";
    let greedy = futures_util::future::join_all((0..300).map(|_| send("greedy", target)));
    let others = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        [
            send("system:anonymous", "/apis/g/v/rs").await,
            send("system:kube-scheduler", "/apis/g/v/rs").await,
            send("modest", "/apis/g/v/rs").await,
        ]
    };
    let (greedy, others) = tokio::join!(greedy, others);
    assert!(others.iter().all(|(code, _)| *code == 200), "{others:?}");
    let rejected = greedy.iter().filter(|(code, _)| *code == 429).count();
    assert_eq!(rejected, 294);
    assert!(
        greedy
            .iter()
            .all(|(code, after)| *code == 504 || after.as_ref().is_some_and(|after| after == "1"))
    );
    let text = server.send(&connection(None), get("/metrics", &[])).await.text;
    for line in [
        r#"apiserver_flowcontrol_rejected_requests_total{priority_level="workload",flow_schema="workload",reason="queue-full"} 94"#,
        r#"apiserver_flowcontrol_current_executing_requests{priority_level="workload",flow_schema="workload"} 0"#,
        r#"apiserver_flowcontrol_current_inqueue_requests{priority_level="workload",flow_schema="workload"} 0"#,
        r#"apiserver_flowcontrol_nominal_limit_seats{priority_level="workload"} 12"#,
    ] {
        assert!(text.lines().any(|own| own == line), "{line} is not in\n{text}");
    }
}
