use std::{sync::atomic::Ordering, time::Duration};

use http::{Method, Request};
use serde_json::json;

use super::*;
use crate::{
    fixtures::{Authority, Identity, Server, Subject, connection, front_proxy, get},
    host::{AccessVerdict, Attributes, AuthenticationConfig, HostError},
    request::UserInfo,
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

    /// The user a request runs as, or the code it is refused with.
    async fn who(&self, identity: Option<&Identity>, lines: &[(&str, &str)]) -> Result<String, u16> {
        let answer = self.server.send(&connection(identity), get(PATH, lines)).await;
        if answer.code != 200 {
            return Err(answer.code.as_u16());
        }
        let seen = answer.json();
        let headers = seen["headers"].to_string();
        assert!(
            !headers.contains("x-remote") && !headers.contains("authorization"),
            "{headers}"
        );
        Ok(seen["user"].as_str().unwrap().to_owned())
    }
}

#[tokio::test]
async fn front_proxy_speaks_for_users() {
    let cluster = Cluster::new();
    let lines = [
        ("x-remote-user", "alice"),
        ("x-remote-uid", "not configured"),
        ("x-remote-group", "dev"),
        ("x-remote-group", "ops"),
        ("x-remote-extra-acme.com%2fproject", "blue"),
    ];
    let proxy = cluster.proxy();
    let answer = cluster
        .server
        .send(&connection(Some(&proxy)), get(PATH, &lines))
        .await;
    let seen = answer.json();
    assert_eq!(seen["user"], "alice");
    assert_eq!(seen["uid"], "");
    assert_eq!(seen["groups"], json!(["dev", "ops", "system:authenticated"]));
    assert_eq!(seen["extra"], json!({"acme.com/project": ["blue"]}));
    assert_eq!(seen["headers"], json!([]));
}

#[tokio::test]
async fn headers_count_only_behind_the_front_proxy_certificate() {
    let cluster = Cluster::new();
    let forged = [("x-remote-user", "admin"), ("x-remote-group", "system:masters")];

    assert_eq!(
        cluster.who(None, &forged).await,
        Ok("system:anonymous".to_owned())
    );

    let user = cluster.clients.issue(&Subject::client("carol"));
    assert_eq!(cluster.who(Some(&user), &forged).await, Ok("carol".to_owned()));

    let stranger = Authority::new("strangers").issue(&Subject::client("front"));
    assert_eq!(cluster.who(Some(&stranger), &forged).await, Err(401));

    let unnamed = cluster.proxies.issue(&Subject::client("other"));
    assert_eq!(cluster.who(Some(&unnamed), &forged).await, Err(401));
    let by_san = Subject {
        alternative_names: &["front"],
        ..Subject::client("other")
    };
    assert_eq!(
        cluster.who(Some(&cluster.proxies.issue(&by_san)), &forged).await,
        Err(401)
    );

    let expired = Subject {
        until: (2026, 5, 31),
        ..Subject::client("front")
    };
    assert_eq!(
        cluster.who(Some(&cluster.proxies.issue(&expired)), &forged).await,
        Err(401)
    );

    let server_only = Subject {
        usages: Subject::server().usages,
        ..Subject::client("front")
    };
    assert_eq!(
        cluster
            .who(Some(&cluster.proxies.issue(&server_only)), &forged)
            .await,
        Err(401)
    );
    let no_usages = Subject {
        usages: Vec::new(),
        ..Subject::client("front")
    };
    assert_eq!(
        cluster
            .who(Some(&cluster.proxies.issue(&no_usages)), &forged)
            .await,
        Ok("admin".to_owned())
    );

    assert_eq!(cluster.who(Some(&cluster.proxy()), &[]).await, Err(401));
    assert_eq!(
        cluster
            .who(Some(&cluster.proxy()), &[("x-remote-user", "")])
            .await,
        Err(401)
    );
}

#[tokio::test]
async fn certificates_and_authorities_are_judged_per_request() {
    let cluster = Cluster::new();
    let proxy = cluster.proxy();
    let open = connection(Some(&proxy));
    let lines = [("x-remote-user", "alice")];
    let code = async || cluster.server.send(&open, get(PATH, &lines)).await.code;
    assert_eq!(code().await, 200);

    let renamed = AuthenticationConfig {
        client_ca: None,
        request_header: Some(front_proxy(&cluster.proxies, &["another"])),
    };
    let before = cluster.server.host.authentication.send_replace(renamed.into());
    assert_eq!(code().await, 401);
    cluster.server.host.authentication.send_replace(before);
    assert_eq!(code().await, 200);

    cluster.server.clock.set("2027-01-02T00:00:00Z".parse().unwrap());
    assert_eq!(code().await, 401, "expired while the connection was open");
}

#[tokio::test]
async fn client_certificates_name_their_holder() {
    let cluster = Cluster::new();
    let subject = Subject {
        organization: Some("dev"),
        ..Subject::client("carol")
    };
    let user = cluster.clients.issue(&subject);
    let seen = cluster
        .server
        .send(&connection(Some(&user)), get(PATH, &[]))
        .await
        .json();
    assert_eq!(seen["user"], "carol");
    assert_eq!(seen["groups"], json!(["dev", "system:authenticated"]));
    let id = seen["extra"]["authentication.kubernetes.io/credential-id"][0]
        .as_str()
        .unwrap();
    assert!(id.starts_with("X509SHA256=") && id.len() == 11 + 64, "{id}");
}

#[tokio::test(start_paused = true)]
async fn tokens_are_asked_once_and_bad_ones_refused() {
    let cluster = Cluster::new();
    let robot = UserInfo {
        name: "robot".to_owned(),
        ..UserInfo::default()
    };
    cluster
        .server
        .host
        .tokens
        .lock()
        .unwrap()
        .insert("good".to_owned(), robot);
    let with = |value: &'static str| [("authorization", value)];
    for _ in 0..3 {
        assert_eq!(
            cluster.who(None, &with("bearer good")).await,
            Ok("robot".to_owned())
        );
    }
    assert_eq!(cluster.server.host.token_reviews.load(Ordering::Relaxed), 1);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(
        cluster.who(None, &with("Bearer good trailing")).await,
        Ok("robot".to_owned())
    );
    assert_eq!(cluster.server.host.token_reviews.load(Ordering::Relaxed), 2);

    assert_eq!(cluster.who(None, &with("Bearer bad")).await, Err(401));
    assert_eq!(cluster.who(None, &with("Bearer unreachable")).await, Err(401));
    assert_eq!(
        cluster.who(None, &with("Basic abc")).await,
        Ok("system:anonymous".to_owned())
    );

    let user = cluster.clients.issue(&Subject::client("carol"));
    assert_eq!(
        cluster.who(Some(&user), &with("Bearer bad")).await,
        Ok("carol".to_owned())
    );

    let lines = [("authorization", "Bearer good"), ("x-remote-user", "admin")];
    assert_eq!(cluster.who(None, &lines).await, Ok("robot".to_owned()));
}

#[tokio::test]
async fn two_spaces_make_a_token_no_credential() {
    let cluster = Cluster::new();
    let answer = cluster
        .server
        .send(&connection(None), get(PATH, &[("authorization", "Bearer  x")]))
        .await;
    assert_eq!(answer.json()["user"], "system:anonymous");
    let warning = answer.headers["warning"].to_str().unwrap();
    assert!(
        warning.contains("contains extra space before the bearer token"),
        "{warning}"
    );
}

#[tokio::test]
async fn unauthorized_says_nothing_and_ends_the_connection() {
    let cluster = Cluster::new();
    let connection = connection(None);
    let lines = [("authorization", "Bearer bad")];
    let answer = cluster.server.send(&connection, get("/healthz", &lines)).await;
    assert_eq!(answer.code, 401);
    assert_eq!(answer.text.len(), 129);
    assert!(!answer.headers.contains_key("www-authenticate"));
    assert!(connection.is_closing());
}

#[tokio::test]
async fn anonymous_ends_its_own_connection_but_not_the_aggregators() {
    let cluster = Cluster::new();
    let alone = connection(None);
    cluster.server.send(&alone, get("/healthz", &[])).await;
    assert!(alone.is_closing());

    let proxy = cluster.proxy();
    let shared = connection(Some(&proxy));
    let lines = [
        ("x-remote-user", "system:anonymous"),
        ("x-remote-group", "system:unauthenticated"),
    ];
    let answer = cluster.server.send(&shared, get(PATH, &lines)).await;
    assert_eq!(answer.json()["groups"], json!(["system:unauthenticated"]));
    assert!(!shared.is_closing());
}

#[tokio::test]
async fn reviews_carry_everything_the_host_may_need() {
    let cluster = Cluster::new();
    let (asked, mut seen) = tokio::sync::mpsc::channel(4);
    cluster.server.host.decide_by(move |review| {
        asked.try_send(review.clone()).unwrap();
        Ok(AccessVerdict::Allowed(String::new()))
    });
    let proxy = cluster.proxy();
    let lines = [("x-remote-user", "alice"), ("x-remote-extra-a", "1")];
    let target = "/apis/g/v/namespaces/ns/rs?labelSelector=a%3Db&fieldSelector=metadata.name%3Dx&watch=1";
    cluster
        .server
        .send(&connection(Some(&proxy)), get(target, &lines))
        .await;
    let review = seen.recv().await.unwrap();
    assert_eq!(review.user.groups, ["system:authenticated"]);
    assert_eq!(review.user.extra["a"], ["1"]);
    let Attributes::Resource(r) = review.attributes else {
        panic!("not a path")
    };
    assert_eq!(
        (r.verb.as_str(), r.group.as_str(), r.version.as_str()),
        ("watch", "g", "v")
    );
    assert_eq!(
        (r.namespace.as_str(), r.resource.as_str(), r.name.as_str()),
        ("ns", "rs", "x")
    );
    assert_eq!((r.label_selector.len(), r.field_selector.len()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn decisions_are_kept_for_ten_seconds_and_errors_never() {
    let cluster = Cluster::new();
    let user = cluster.clients.issue(&Subject::client("carol"));
    let open = connection(Some(&user));
    let answer = async || cluster.server.send(&open, get(PATH, &[])).await;
    cluster.server.host.decide_by(|_| Err(HostError::Timeout));
    let failed = answer().await;
    assert_eq!(failed.code, 500);
    assert_eq!(
        failed.text,
        format!("Internal Server Error: \"{PATH}\": the host did not respond in time\n")
    );

    cluster
        .server
        .host
        .decide_by(|_| Ok(AccessVerdict::NoOpinion(String::new())));
    let denied = answer().await;
    assert_eq!(denied.code, 403);
    assert_eq!(
        denied.json()["message"],
        r#"rs.g "x" is forbidden: User "carol" cannot get resource "rs" in API group "g" in the namespace "ns""#
    );
    cluster
        .server
        .host
        .decide_by(|_| Ok(AccessVerdict::Allowed(String::new())));
    assert_eq!(answer().await.code, 403);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(answer().await.code, 200);
    assert_eq!(cluster.server.host.access_reviews.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn masters_and_health_need_no_host() {
    let cluster = Cluster::new();
    cluster.server.host.decide_by(|_| Err(HostError::Timeout));
    let masters = Subject {
        organization: Some("system:masters"),
        ..Subject::client("root")
    };
    let masters = cluster.clients.issue(&masters);
    let user = cluster.clients.issue(&Subject::client("carol"));
    for (identity, path, code) in [
        (Some(&masters), PATH, 200),
        (Some(&masters), "/metrics", 200),
        (None, "/healthz", 200),
        (None, "/livez", 200),
        (None, "/readyz", 200),
        (None, "/readyz/ping", 500),
        (Some(&user), "/metrics", 500),
        (Some(&user), "/version", 500),
        (Some(&user), "/apis", 500),
    ] {
        let answer = cluster.server.send(&connection(identity), get(path, &[])).await;
        assert_eq!(answer.code, code, "{path}");
    }
}

#[tokio::test]
async fn impersonation_is_reviewed_and_never_ignored() {
    let cluster = Cluster::new();
    let user = cluster.clients.issue(&Subject::client("carol"));
    let open = connection(Some(&user));
    cluster.server.host.decide_by(|review| match &review.attributes {
        Attributes::Resource(r) if r.verb == "impersonate" && r.name != "alice" => {
            Ok(AccessVerdict::NoOpinion(String::new()))
        }
        _ => Ok(AccessVerdict::Allowed(String::new())),
    });
    let send = async |lines: &[(&str, &str)]| cluster.server.send(&open, get(PATH, lines)).await;
    let seen = send(&[("impersonate-user", "alice")]).await.json();
    assert_eq!(
        (&seen["user"], &seen["impersonator"]),
        (&json!("alice"), &json!("carol"))
    );
    assert_eq!(seen["headers"], json!([]));

    let refused = send(&[("impersonate-user", "bob")]).await;
    assert_eq!(refused.code, 403);
    assert_eq!(
        refused.json()["message"],
        r#"users "bob" is forbidden: User "carol" cannot impersonate resource "users" in API group "" at the cluster scope"#
    );
    assert_eq!(send(&[("impersonate-group", "g")]).await.code, 400);
    assert_eq!(send(&[("impersonate-user", "")]).await.json()["user"], "carol");
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
        let answer = cluster.server.send(&connection(None), request).await;
        assert_eq!(answer.code, code, "{path}");
        assert_eq!(answer.headers["audit-id"], "mine");
        assert_eq!(answer.headers["cache-control"], "no-cache, private");
    }
    let answer = cluster.server.send(&connection(None), get(PATH, &[])).await;
    assert_eq!(answer.headers["audit-id"].len(), 36);
}

#[tokio::test]
async fn a_panic_is_one_request_s_affair() {
    let cluster = Cluster::new();
    let answer = cluster
        .server
        .send(&connection(None), get("/apis/g/v/panics", &[]))
        .await;
    assert_eq!(answer.code, 500);
    assert_eq!(
        answer.text,
        "This request caused apiserver to panic. Look in the logs for details.\n"
    );
    assert_eq!(
        cluster.server.send(&connection(None), get(PATH, &[])).await.code,
        200
    );
}

#[tokio::test]
async fn nothing_is_missing_before_the_routes_are_installed() {
    let cluster = Cluster::new();
    let missing = async |server: &Server| {
        server
            .send(&connection(None), get("/apis/g/v/missing", &[]))
            .await
    };
    assert_eq!(missing(&cluster.server).await.code, 404);

    let mut unready = Server::new(AuthenticationConfig::default());
    let chain = Arc::get_mut(&mut unready.chain).unwrap();
    chain.parts.routes_installed = Mark::default();
    let answer = missing(&unready).await;
    assert_eq!(answer.code, 503);
    assert_eq!(answer.headers["retry-after"], "5");
    chain_mark(&unready).set();
    assert_eq!(missing(&unready).await.code, 404);
}

fn chain_mark(server: &Server) -> &Mark {
    &server.chain.parts.routes_installed
}

#[tokio::test(start_paused = true)]
async fn time_is_up_after_sixty_seconds_or_what_the_client_gave() {
    let cluster = Cluster::new();
    let send = async |method: Method, target: &'static str| {
        let before = Instant::now();
        let request = Request::builder().method(method).uri(target).body("").unwrap();
        let answer = cluster.server.send(&connection(None), request).await;
        (answer.code.as_u16(), before.elapsed().as_secs(), answer.text)
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
        let answer = cluster.server.send(&connection(None), request).await;
        assert_eq!(answer.json()["seconds"], seconds, "{method} {target}");
    }
}

#[tokio::test]
async fn warnings_come_with_errors_too() {
    let cluster = Cluster::new();
    let answer = cluster
        .server
        .send(&connection(None), get("/apis/g/v/warns", &[]))
        .await;
    assert_eq!(answer.code, 400);
    assert_eq!(answer.headers["warning"], r#"299 - "careful""#);
}

#[tokio::test]
async fn upgrades_are_refused() {
    let cluster = Cluster::new();
    let lines = [("connection", "upgrade"), ("upgrade", "websocket")];
    assert_eq!(
        cluster
            .server
            .send(&connection(None), get(PATH, &lines))
            .await
            .code,
        400
    );
}

#[tokio::test(start_paused = true)]
async fn a_stopping_server_sends_clients_away() {
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
    let refused = send(PATH, &[]).await;
    assert_eq!(refused.code, 429);
    assert_eq!(refused.headers["retry-after"], "5");
    assert_eq!(
        refused.text,
        "The apiserver is shutting down, please try again later.\n"
    );
}

#[tokio::test]
async fn counts_have_the_labels_of_dashboards() {
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
async fn head_is_answered_without_a_body() {
    let cluster = Cluster::new();
    let request = Request::head("/readyz").body("").unwrap();
    let answer = cluster.server.send(&connection(None), request).await;
    assert_eq!((answer.code.as_u16(), answer.text.as_str()), (200, ""));
    assert_eq!(answer.headers["content-length"], "2");
}

#[tokio::test]
async fn refusals_of_filters_are_not_counted_as_api_requests() {
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
