//! Authentication, impersonation and authorization.

use std::{sync::atomic::Ordering, time::Duration};

use serde_json::json;

use super::{Cluster, PATH};
use crate::{
    fixtures::{Authority, Subject, connection, front_proxy, get},
    host::{AccessVerdict, Attributes, AuthenticationConfig, HostError},
    request::UserInfo,
};

#[tokio::test]
async fn front_proxy_names_the_user() {
    let cluster = Cluster::new();
    let lines = [
        ("x-remote-user", "alice"),
        ("x-remote-uid", "not configured"),
        ("x-remote-group", "dev"),
        ("x-remote-group", "ops"),
        ("x-remote-extra-acme.com%2fproject", "blue"),
    ];
    let proxy = cluster.proxy();
    let response = cluster
        .server
        .send(&connection(Some(&proxy)), get(PATH, &lines))
        .await;
    let seen = response.json();
    assert_eq!(seen["user"], "alice");
    assert_eq!(seen["uid"], "");
    assert_eq!(seen["groups"], json!(["dev", "ops", "system:authenticated"]));
    assert_eq!(seen["extra"], json!({"acme.com/project": ["blue"]}));
    assert_eq!(seen["headers"], json!([]));
}

#[tokio::test]
async fn identity_headers_need_the_front_proxy_certificate() {
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
async fn certificates_are_verified_per_request() {
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
async fn client_certificates_name_the_user() {
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
async fn valid_tokens_are_cached_and_invalid_ones_rejected() {
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
async fn a_bearer_header_with_two_spaces_is_ignored() {
    let cluster = Cluster::new();
    let response = cluster
        .server
        .send(&connection(None), get(PATH, &[("authorization", "Bearer  x")]))
        .await;
    assert_eq!(response.json()["user"], "system:anonymous");
    let warning = response.headers["warning"].to_str().unwrap();
    assert!(
        warning.contains("contains extra space before the bearer token"),
        "{warning}"
    );
}

#[tokio::test]
async fn unauthorized_reveals_nothing_and_closes_the_connection() {
    let cluster = Cluster::new();
    let connection = connection(None);
    let lines = [("authorization", "Bearer bad")];
    let response = cluster.server.send(&connection, get("/healthz", &lines)).await;
    assert_eq!(response.code, 401);
    assert_eq!(response.text.len(), 129);
    assert!(!response.headers.contains_key("www-authenticate"));
    assert!(connection.is_closing());
}

#[tokio::test]
async fn an_anonymous_request_closes_its_own_connection_but_not_the_aggregators() {
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
    let response = cluster.server.send(&shared, get(PATH, &lines)).await;
    assert_eq!(response.json()["groups"], json!(["system:unauthenticated"]));
    assert!(!shared.is_closing());
}

#[tokio::test]
async fn access_reviews_carry_user_attributes_and_selectors() {
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
async fn decisions_are_cached_for_ten_seconds_and_errors_are_not() {
    let cluster = Cluster::new();
    let user = cluster.clients.issue(&Subject::client("carol"));
    let open = connection(Some(&user));
    let send = async || cluster.server.send(&open, get(PATH, &[])).await;
    cluster.server.host.decide_by(|_| Err(HostError::Timeout));
    let failed = send().await;
    assert_eq!(failed.code, 500);
    assert_eq!(
        failed.text,
        format!("Internal Server Error: \"{PATH}\": the host did not respond in time\n")
    );

    cluster
        .server
        .host
        .decide_by(|_| Ok(AccessVerdict::NoOpinion(String::new())));
    let denied = send().await;
    assert_eq!(denied.code, 403);
    assert_eq!(
        denied.json()["message"],
        r#"rs.g "x" is forbidden: User "carol" cannot get resource "rs" in API group "g" in the namespace "ns""#
    );
    cluster
        .server
        .host
        .decide_by(|_| Ok(AccessVerdict::Allowed(String::new())));
    assert_eq!(send().await.code, 403);
    tokio::time::advance(Duration::from_secs(10)).await;
    assert_eq!(send().await.code, 200);
    assert_eq!(cluster.server.host.access_reviews.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn masters_and_health_paths_need_no_review() {
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
        let response = cluster.server.send(&connection(identity), get(path, &[])).await;
        assert_eq!(response.code, code, "{path}");
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

    let rejected = send(&[("impersonate-user", "bob")]).await;
    assert_eq!(rejected.code, 403);
    assert_eq!(
        rejected.json()["message"],
        r#"users "bob" is forbidden: User "carol" cannot impersonate resource "users" in API group "" at the cluster scope"#
    );
    assert_eq!(send(&[("impersonate-group", "g")]).await.code, 400);
    assert_eq!(send(&[("impersonate-user", "")]).await.json()["user"], "carol");
}
