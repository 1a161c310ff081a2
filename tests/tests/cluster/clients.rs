//! The raw client, and the reference for our server: how kube-apiserver authenticates.

use anyhow::{Context as _, Result};
use bytes::Bytes;
use drydock_tests::clients::{Protocol, RawClient, expect_status};
use drydock_tests::cluster::pki::{Authority, Credential, FRONT_PROXY_NAME, Validity};
use drydock_tests::cluster::{ControlPlane, shared};
use http::{Request, Version};
use http_body_util::BodyExt as _;

const PODS: &str = "/api/v1/namespaces/default/pods";

fn client(cluster: &ControlPlane, identity: Option<&Credential>, protocol: Protocol) -> Result<RawClient> {
    let authority = cluster.pki().cluster.certificate();
    RawClient::new(
        cluster.apiserver_address(),
        "kubernetes.default.svc",
        &authority,
        identity,
        protocol,
    )
}

#[tokio::test]
async fn kube_apiserver_authenticates_current_certificates_of_its_authority() -> Result<()> {
    let Some(cluster) = shared().await? else {
        return Ok(());
    };
    let pki = cluster.pki();
    let foreign = Authority::new("foreign")?.client("admin", Some("system:masters"), Validity::Current)?;
    let expired = pki
        .cluster
        .client("admin", Some("system:masters"), Validity::Expired)?;
    let check = async |identity: Option<&Credential>, status: u16, text: &str| {
        let response = client(cluster, identity, Protocol::Http1)?.get(PODS).await?;
        expect_status(&response, status)?;
        let body = String::from_utf8_lossy(response.body());
        assert!(body.contains(text), "{body}");
        Ok::<_, anyhow::Error>(())
    };
    check(Some(&pki.admin), 200, "PodList").await?;
    check(Some(&pki.somebody), 403, r#"User \"somebody\" cannot list"#).await?;
    check(None, 403, r#"User \"system:anonymous\" cannot list"#).await?;
    check(Some(&foreign), 401, "Unauthorized").await?;
    check(Some(&expired), 401, "Unauthorized").await
}

#[tokio::test]
async fn kube_apiserver_reads_identity_headers_only_of_the_front_proxy() -> Result<()> {
    let Some(cluster) = shared().await? else {
        return Ok(());
    };
    let pki = cluster.pki();
    let request = || {
        let request = Request::get(PODS)
            .header("X-Remote-User", "admin")
            .header("X-Remote-Group", "system:masters");
        request.body(Bytes::new()).context("a request")
    };
    let impostor = pki.front_proxy.client("impostor", None, Validity::Current)?;
    let of_the_cluster = pki.cluster.client(FRONT_PROXY_NAME, None, Validity::Current)?;
    for (identity, status) in [
        (None, 403),
        (Some(&pki.aggregator), 200),
        (Some(&impostor), 401),
        (Some(&of_the_cluster), 403),
    ] {
        let response = client(cluster, identity, Protocol::Http1)?
            .send(request()?)
            .await?;
        expect_status(&response, status)?;
    }
    Ok(())
}

#[tokio::test]
async fn both_protocols_carry_many_requests_and_a_watch_on_one_connection() -> Result<()> {
    let Some(cluster) = shared().await? else {
        return Ok(());
    };
    for (protocol, version) in [
        (Protocol::Http1, Version::HTTP_11),
        (Protocol::Http2, Version::HTTP_2),
    ] {
        let mut connection = client(cluster, Some(&cluster.pki().admin), protocol)?
            .connect()
            .await?;
        for _ in 0..3 {
            let response = connection.send(Request::get(PODS).body("")?).await?;
            expect_status(&response, 200)?;
            assert_eq!(response.version(), version);
        }
        let path = "/api/v1/namespaces?watch=true&fieldSelector=metadata.name%3Ddefault";
        let mut watch = connection.stream(Request::get(path).body("")?).await?;
        let frame = watch.body_mut().frame().await.context("the watch ended")??;
        let event: serde_json::Value = serde_json::from_slice(&frame.into_data().ok().context("data")?)?;
        assert_eq!(event["type"], "ADDED");
        assert_eq!(event["object"]["metadata"]["name"], "default");
    }
    Ok(())
}

#[tokio::test]
async fn the_client_rejects_untrusted_server_certificates() -> Result<()> {
    let Some(cluster) = shared().await? else {
        return Ok(());
    };
    let address = cluster.apiserver_address();
    let rejected = async |authority: &Authority, name: &str| {
        let client = RawClient::new(address, name, &authority.certificate(), None, Protocol::Http1)?;
        let error = client
            .get("/readyz")
            .await
            .err()
            .context("the server was trusted")?;
        assert!(format!("{error:#}").contains("certificate"), "{error:#}");
        Ok::<_, anyhow::Error>(())
    };
    rejected(&cluster.pki().drydock, "localhost").await?;
    rejected(&cluster.pki().cluster, "drydock-apiserver.drydock-system.svc").await
}
