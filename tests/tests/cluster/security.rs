//! Authentication and authorization, direct and through kube-apiserver.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::{Caller, MERGE_PATCH, Response};
use drydock_tests::clients::{Protocol, eventually};
use drydock_tests::cluster::Server;
use drydock_tests::cluster::pki::{Authority, Credential, FRONT_PROXY_NAME, Validity};
use http::Method;
use serde_json::{Value, json};

use crate::monitoring::token;
use crate::stage::{PATIENCE, ROOT, Stage, eviction_request, requests_of, together, uid};

/// The prefix of the UIDs of this file.
const UIDS: u16 = 0x5ec;
const MAINTENANCES: &str = "/apis/coordination.k8s.io/v1alpha3/nodemaintenances";
const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

const CLUSTER: &str = "at the cluster scope";
const DEFAULT: &str = "in the namespace \"default\"";

/// Requests that a user without rights may not send: method, path, verb, resource, name, scope. The objects do not
/// exist, which the response must not reveal.
const FORBIDDEN: &[(Method, &str, &str, &str, &str, &str)] = &[
    (
        Method::GET,
        "/apis/coordination.k8s.io/v1alpha3/nodemaintenances/x",
        "get",
        "nodemaintenances",
        "x",
        CLUSTER,
    ),
    (
        Method::DELETE,
        "/apis/coordination.k8s.io/v1alpha3/nodemaintenances/x",
        "delete",
        "nodemaintenances",
        "x",
        CLUSTER,
    ),
    (
        Method::DELETE,
        MAINTENANCES,
        "deletecollection",
        "nodemaintenances",
        "",
        CLUSTER,
    ),
    (
        Method::GET,
        "/apis/coordination.k8s.io/v1alpha3/namespaces/default/evictionrequests?watch=1",
        "watch",
        "evictionrequests",
        "",
        DEFAULT,
    ),
    (
        Method::GET,
        "/apis/coordination.k8s.io/v1alpha3/namespaces/default/evictionrequests?fieldSelector=metadata.name%3Dx",
        "list",
        "evictionrequests",
        "x",
        DEFAULT,
    ),
    (
        Method::PUT,
        "/apis/coordination.k8s.io/v1alpha3/namespaces/default/evictionrequests/x/status",
        "update",
        "evictionrequests/status",
        "x",
        DEFAULT,
    ),
];

/// A user with a certificate of the cluster.
pub(crate) fn person(stage: &Stage, name: &str, group: Option<&str>) -> Result<Credential> {
    stage
        .control_plane()
        .pki()
        .cluster
        .client(name, group, Validity::Current)
}

/// The message of a 403 for a kind of ours.
fn may_not(user: &str, verb: &str, resource: &str, name: &str, place: &str) -> String {
    let plural = resource.split('/').next().unwrap_or_default();
    let name = if name.is_empty() {
        String::new()
    } else {
        format!(" {name:?}")
    };
    format!(
        "{plural}.coordination.k8s.io{name} is forbidden: User {user:?} cannot {verb} resource {resource:?} in API group \
         \"coordination.k8s.io\" {place}"
    )
}

/// The 403 for a list of all maintenances.
fn may_not_list(user: &str) -> String {
    may_not(user, "list", "nodemaintenances", "", CLUSTER)
}

/// Grants verbs on resources of ours (and pods) in a namespace.
pub(crate) async fn grant(stage: &Stage, namespace: &str, user: &str, rules: &Value) -> Result<()> {
    let role = json!({ "apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": { "name": user, "namespace": namespace }, "rules": rules,
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": { "name": user, "namespace": namespace },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": user },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user }],
        },
    ] });
    stage.kubectl().apply(&role.to_string()).await?;
    Ok(())
}

#[tokio::test]
async fn a_user_without_rights_is_forbidden_by_kube_apiserver_and_by_us() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let somebody = &stage.control_plane().pki().somebody;
    let cluster = may_not_list("somebody");
    stage
        .host_as(Some(somebody))?
        .get(MAINTENANCES)
        .await?
        .expect_error(403, "Forbidden", &cluster)?;
    for protocol in BOTH {
        let direct = stage.direct_as(Some(somebody), protocol)?;
        let response = direct.get(MAINTENANCES).await?;
        let status = response.expect_error(403, "Forbidden", &cluster)?;
        assert_eq!(
            status["details"],
            json!({ "group": "coordination.k8s.io", "kind": "nodemaintenances" })
        );
        assert_eq!(response.header("x-content-type-options"), "nosniff");
        for (method, path, verb, resource, name, place) in FORBIDDEN {
            let response = direct.call(method.clone(), path, "", "").await?;
            let message = may_not("somebody", verb, resource, name, place);
            response.expect_error(403, "Forbidden", &message)?;
        }
        let status = direct.get("/metrics").await?;
        status.expect_error(
            403,
            "Forbidden",
            "forbidden: User \"somebody\" cannot get path \"/metrics\"",
        )?;
    }
    Ok(())
}

/// What only operators may do is refused at both ports, and kube-apiserver forwards none of it.
#[tokio::test]
async fn metrics_and_backups_are_for_operators() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("security-operators").await?;
    let stranger = stage
        .kubectl()
        .ok(&["create", "token", "default", "-n", &namespace])
        .await?;
    let reader = token(&stage).await?;
    let anonymous = Caller::new(stage.drydock.controller_client(None, Protocol::Http2)?);
    for (token, code) in [("", 401), (stranger.trim_end(), 403), (reader.as_str(), 200)] {
        let mut caller = anonymous.clone();
        if !token.is_empty() {
            caller = caller.with_header("authorization", &format!("Bearer {token}"))?;
        }
        let response = caller.get("/metrics").await?;
        ensure!(response.status == code, "{code}: {}", response.text());
    }
    let health = anonymous.get("/readyz").await?;
    ensure!(health.status == 200, "{}", health.text());
    // Who may take backups may not remove those of others.
    let keeper = person(&stage, "keeper", None)?;
    let role = json!({ "apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "keeper" },
            "rules": [{ "nonResourceURLs": ["/storage/backups"], "verbs": ["post"] }],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": "keeper" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "keeper" },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "keeper" }],
        },
    ] });
    stage.kubectl().apply(&role.to_string()).await?;
    let path = "/storage/backups?keep=1";
    let direct = stage.direct_as(Some(&keeper), Protocol::Http2)?;
    eventually("the role to be in force", PATIENCE, async || {
        let response = direct.call(Method::POST, path, "", "").await?;
        let message = "forbidden: User \"keeper\" cannot delete path \"/storage/backups\"";
        Ok(response.expect_error(403, "Forbidden", message).ok().map(drop))
    })
    .await?;
    let host = stage.host_as(Some(&keeper))?;
    let response = host.call(Method::POST, path, "", "").await?;
    ensure!(response.status == 404, "{}", response.text());
    Ok(())
}

#[tokio::test]
async fn identity_headers_need_a_front_proxy_certificate() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let pki = stage.control_plane().pki();
    let foreign = Authority::new("front-proxy")?.client(FRONT_PROXY_NAME, None, Validity::Current)?;
    let expired = pki
        .front_proxy
        .client(FRONT_PROXY_NAME, None, Validity::Expired)?;
    let impostor = pki.front_proxy.client("impostor", None, Validity::Current)?;
    let of_cluster = pki.cluster.client(FRONT_PROXY_NAME, None, Validity::Current)?;
    let anonymous = may_not_list("system:anonymous");
    let own = may_not_list(FRONT_PROXY_NAME);
    for protocol in BOTH {
        let forged = |identity: Option<&Credential>| {
            stage
                .direct_as(identity, protocol)?
                .with_header("x-remote-user", "admin")?
                .with_header("x-remote-group", "system:masters")
        };
        forged(Some(&pki.aggregator))?
            .get(MAINTENANCES)
            .await?
            .expect(200)?;
        // Without a certificate the headers are ignored.
        forged(None)?
            .get(MAINTENANCES)
            .await?
            .expect_error(403, "Forbidden", &anonymous)?;
        // A certificate of the cluster's authority identifies only itself.
        forged(Some(&of_cluster))?
            .get(MAINTENANCES)
            .await?
            .expect_error(403, "Forbidden", &own)?;
        for identity in [&foreign, &expired, &impostor] {
            let response = forged(Some(identity))?.get(MAINTENANCES).await?;
            let status = response.expect_error(401, "Unauthorized", "Unauthorized")?;
            assert_eq!(status["details"], Value::Null);
            assert_eq!(response.header("www-authenticate"), "");
        }
        // The front proxy without a user header.
        let without_user = stage.direct_as(Some(&pki.aggregator), protocol)?;
        without_user
            .get(MAINTENANCES)
            .await?
            .expect_error(401, "Unauthorized", "Unauthorized")?;
    }
    Ok(())
}

#[tokio::test]
async fn certificates_and_tokens_are_authenticated() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let pki = stage.control_plane().pki();
    let foreign = Authority::new("cluster")?.client("admin", Some("system:masters"), Validity::Current)?;
    let expired = pki
        .cluster
        .client("admin", Some("system:masters"), Validity::Expired)?;
    for protocol in BOTH {
        stage
            .direct_as(Some(&pki.admin), protocol)?
            .get(MAINTENANCES)
            .await?
            .expect(200)?;
        for identity in [&foreign, &expired] {
            let caller = stage.direct_as(Some(identity), protocol)?;
            caller
                .get(MAINTENANCES)
                .await?
                .expect_error(401, "Unauthorized", "Unauthorized")?;
            // A failed authentication does not fall back to anonymous.
            assert_eq!(caller.get("/healthz").await?.status, 401);
        }
        let bad = stage
            .direct_as(None, protocol)?
            .with_header("authorization", "Bearer no-such-token")?;
        bad.get(MAINTENANCES)
            .await?
            .expect_error(401, "Unauthorized", "Unauthorized")?;
        let certified = stage
            .direct_as(Some(&pki.admin), protocol)?
            .with_header("authorization", "Bearer no-such-token")?;
        certified.get(MAINTENANCES).await?.expect(200)?;

        let anonymous = stage.direct_as(None, protocol)?;
        assert_eq!(anonymous.get("/healthz").await?.text(), "ok");
        let message = may_not_list("system:anonymous");
        anonymous
            .get(MAINTENANCES)
            .await?
            .expect_error(403, "Forbidden", &message)?;
    }
    // A service account token identifies the service account.
    let token = stage
        .kubectl()
        .ok(&["create", "token", "default", "-n", "default"])
        .await?;
    let bearer = format!("Bearer {}", token.trim_end());
    let user = "system:serviceaccount:default:default";
    let message = may_not_list(user);
    for caller in [stage.direct_as(None, Protocol::Http2)?, stage.host_as(None)?] {
        let caller = caller.with_header("authorization", &bearer)?;
        caller
            .get(MAINTENANCES)
            .await?
            .expect_error(403, "Forbidden", &message)?;
    }
    Ok(())
}

/// The 403 of `asker` for a request whose pod it may not delete.
fn may_not_delete_pod(namespace: &str, request: &str, pod: &str) -> String {
    format!(
        "evictionrequests.coordination.k8s.io \"{request}\" is forbidden: User \"asker\" cannot delete resource \"pods\" \
         in API group \"\" in the namespace \"{namespace}\": pod \"{pod}\""
    )
}

#[tokio::test]
async fn requesting_an_eviction_needs_the_right_to_delete_the_pod() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("security-pods").await?;
    let asker = person(&stage, "asker", None)?;
    let requests = json!({
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["evictionrequests", "evictionrequests/status"],
        "verbs": ["*"],
    });
    grant(&stage, &namespace, "asker", &json!([requests])).await?;
    let callers = [
        stage.host_as(Some(&asker))?,
        stage.direct_as(Some(&asker), Protocol::Http2)?,
    ];
    let path = requests_of(&namespace);
    eventually("the role to be in force", PATIENCE, async || {
        callers[0].get(&path).await?.expect(200)?;
        Ok(Some(()))
    })
    .await?;
    without_the_right(&stage, &callers, &namespace).await?;

    // The right to delete one pod is enough for that pod, and for no other.
    let item = format!("{path}/{}", uid(UIDS, 1));
    let one_pod =
        json!({ "apiGroups": [""], "resources": ["pods"], "resourceNames": ["web-0"], "verbs": ["delete"] });
    grant(&stage, &namespace, "asker", &json!([requests, one_pod])).await?;
    eventually("the right to be in force", Duration::from_secs(30), async || {
        let dry_run = format!("{item}?dryRun=All");
        callers[1].delete(&dry_run).await?.expect(200)?;
        Ok(Some(()))
    })
    .await?;
    callers[0].delete(&item).await?.expect(200)?;
    let other = uid(UIDS, 2);
    let message = may_not_delete_pod(&namespace, &other, "web-1");
    let other = eviction_request(&namespace, "web-1", &other);
    let response = callers[0].post(&path, &other).await?;
    response.expect_error(403, "Forbidden", &message)?;
    Ok(())
}

/// Without the right to delete the pod, a request for it cannot be created, changed or deleted.
async fn without_the_right(stage: &Stage, callers: &[Caller], namespace: &str) -> Result<()> {
    let first = uid(UIDS, 1);
    let path = requests_of(namespace);
    let item = format!("{path}/{first}");
    let request = eviction_request(namespace, "web-0", &first);
    let message = may_not_delete_pod(namespace, &first, "web-0");
    let forbidden = |response: Response| response.expect_error(403, "Forbidden", &message);
    for caller in callers {
        forbidden(caller.post(&path, &request).await?)?;
        forbidden(caller.post(&format!("{path}?dryRun=All"), &request).await?)?;
    }
    stage.host()?.post(&path, &request).await?.expect(201)?;
    let withdraw = json!({ "spec": { "requesters": [] } });
    for caller in callers {
        forbidden(caller.patch(&item, MERGE_PATCH, &withdraw).await?)?;
        forbidden(caller.delete(&item).await?)?;
        forbidden(caller.delete(&path).await?)?;
        // A write without a change needs no right on pods: storage version migrations do that.
        caller.patch(&item, MERGE_PATCH, &json!({})).await?.expect(200)?;
        // Status has rights of its own.
        let live = caller.get(&item).await?.expect(200)?;
        caller.put(&format!("{item}/status"), &live).await?;
    }
    Ok(())
}

#[tokio::test]
async fn impersonation_is_honoured_or_rejected_but_never_ignored() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let pki = stage.control_plane().pki();
    for protocol in BOTH {
        // The admin as another user has only that user's rights.
        let response = stage
            .direct_as(Some(&pki.admin), protocol)?
            .with_header("impersonate-user", "somebody")?
            .get(MAINTENANCES)
            .await?;
        assert_eq!(response.status, 403, "{}", response.text());
        // A user without rights cannot gain any.
        let response = stage
            .direct_as(Some(&pki.somebody), protocol)?
            .with_header("impersonate-user", "admin")?
            .with_header("impersonate-group", "system:masters")?
            .get(MAINTENANCES)
            .await?;
        assert_eq!(response.status, 403, "{}", response.text());
        let response = stage
            .direct_as(Some(&pki.admin), protocol)?
            .with_header("impersonate-group", "system:masters")?
            .get(MAINTENANCES)
            .await?;
        ensure!([400, 403].contains(&response.status), "{}", response.text());
    }
    // kube-apiserver forwards the impersonated user.
    let message = may_not_list("somebody");
    let response = stage
        .host()?
        .with_header("impersonate-user", "somebody")?
        .get(MAINTENANCES)
        .await?;
    let status = response.expect(403)?;
    ensure!(
        status["message"]
            .as_str()
            .is_some_and(|it| it.starts_with(&message)),
        "{status}"
    );
    Ok(())
}

#[tokio::test]
async fn identity_headers_are_decoded() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let aggregator = &stage.control_plane().pki().aggregator;
    for protocol in BOTH {
        let proxied = |user: &str| {
            stage
                .direct_as(Some(aggregator), protocol)?
                .with_header("x-remote-user", user)
        };
        // UTF-8 is kept; a comma does not split a group.
        let message = may_not_list("björn");
        proxied("björn")?
            .with_header("x-remote-group", "a,system:masters")?
            .get(MAINTENANCES)
            .await?
            .expect_error(403, "Forbidden", &message)?;
        proxied("somebody")?
            .with_header("x-remote-group", "a")?
            .with_header("X-REMOTE-GROUP", "system:masters")?
            .with_header("X-Remote-Extra-Acme.Com%2fproject", "p")?
            .with_header("x-remote-extra-odd%zz", "kept")?
            .get(MAINTENANCES)
            .await?
            .expect(200)?;
        // A user without groups is authenticated: the aggregator itself sends none.
        proxied("system:aggregator")?.get(ROOT).await?.expect(200)?;
        proxied("system:aggregator")?
            .get("/openapi/v3")
            .await?
            .expect(200)?;
    }
    Ok(())
}

#[tokio::test]
async fn extras_are_accepted_in_access_reviews() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    // RBAC ignores extras, so only their acceptance can be observed.
    let namespace = stage.namespace("security-extras").await?;
    let rules = json!([{ "apiGroups": ["coordination.k8s.io"], "resources": ["evictionrequests"], "verbs": ["list"] }]);
    grant(&stage, &namespace, "with-extras", &rules).await?;
    let caller = stage
        .direct_as(Some(&stage.control_plane().pki().aggregator), Protocol::Http2)?
        .with_header("x-remote-user", "with-extras")?
        .with_header(
            "x-remote-extra-authentication.kubernetes.io%2fcredential-id",
            "JTI=1",
        )?
        .with_header("x-remote-extra-%c3%a4", "ä")?;
    eventually("the review with extras to allow it", PATIENCE, async || {
        caller.get(&requests_of(&namespace)).await?.expect(200)?;
        Ok(Some(()))
    })
    .await
}

#[tokio::test]
async fn a_new_serving_certificate_is_used_without_a_restart() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let server = Server::start(stage.drydock, "certificates").await?;
    let pki = stage.control_plane().pki();
    let new_authority = Authority::new("drydock-serving-2")?;
    let name = "drydock-apiserver.drydock-system.svc";
    let trusting_new = drydock_tests::clients::RawClient::new(
        server.address(),
        name,
        &new_authority.certificate(),
        Some(&pki.admin),
        Protocol::Http2,
    )?;
    ensure!(
        trusting_new.get("/readyz").await.is_err(),
        "the new authority is not in use yet"
    );
    let mut kept = server
        .raw_client(Some(&pki.admin), Protocol::Http2)?
        .connect()
        .await?;
    server.serve_with(&new_authority.serving(&[name], Validity::Current)?)?;
    eventually("the new certificate", Duration::from_secs(90), async || {
        Ok(trusting_new.get("/readyz").await.ok())
    })
    .await?;
    // Existing connections stay open.
    let request = http::Request::get("/readyz").body("")?;
    assert_eq!(kept.send(request).await?.status(), 200);
    Ok(())
}

#[tokio::test]
async fn paths_are_authorized_as_they_are_served() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("security-paths").await?;
    let reader = person(&stage, "reader", None)?;
    let rules = json!([{ "apiGroups": ["coordination.k8s.io"], "resources": ["*"], "verbs": ["*"] }]);
    grant(&stage, &namespace, "reader", &rules).await?;
    let caller = stage.direct_as(Some(&reader), Protocol::Http1)?;
    eventually("the role to be in force", PATIENCE, async || {
        caller.get(&requests_of(&namespace)).await?.expect(200)?;
        Ok(Some(()))
    })
    .await?;
    // A right in a namespace does not extend to cluster-scoped resources.
    let wrong = format!("{ROOT}/namespaces/{namespace}/nodemaintenances/x");
    assert_eq!(caller.get(&wrong).await?.status, 404);
    for (path, codes) in [
        (
            format!("{ROOT}/namespaces/{namespace}/../default/evictionrequests"),
            [403, 404],
        ),
        (
            format!("{ROOT}/namespaces/{namespace}%2f..%2fdefault/evictionrequests"),
            [403, 404],
        ),
        (format!("{}/%2e%2e", requests_of(&namespace)), [400, 404]),
        (format!("{}/a%2fb", requests_of(&namespace)), [403, 404]),
        (format!("{}/a%25b", requests_of(&namespace)), [400, 404]),
    ] {
        let response = caller.get(&path).await?;
        ensure!(
            codes.contains(&response.status),
            "{path}: {} {}",
            response.status,
            response.text()
        );
    }
    let message = may_not("reader", "list", "evictionrequests", "", "at the cluster scope");
    caller
        .get(&format!("{ROOT}/evictionrequests"))
        .await?
        .expect_error(403, "Forbidden", &message)?;
    caller
        .get(&format!("{}/", requests_of(&namespace)))
        .await
        .context("a trailing slash")?
        .expect(200)?;
    Ok(())
}
