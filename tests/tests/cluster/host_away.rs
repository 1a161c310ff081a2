//! The server while kube-apiserver is down: what works without access reviews, and what fails.

use anyhow::{Result, ensure};
use drydock_tests::calls::Caller;
use drydock_tests::clients::{Protocol, eventually};
use drydock_tests::cluster::pki::Validity;
use drydock_tests::cluster::{Component, ControlPlane, Drydock, Options, Part, shared};
use serde_json::json;

use crate::stage::{PATIENCE, ROOT, eviction_request, idle_maintenance, requests_of, uid};

#[tokio::test]
async fn requests_that_need_a_review_fail_until_the_host_is_back() -> Result<()> {
    if shared().await?.is_none() {
        return Ok(());
    }
    // A control plane of its own, since other tests need kube-apiserver.
    let cluster = ControlPlane::start(Options::default()).await?;
    let drydock = Drydock::start(&cluster).await?;
    let pki = cluster.pki();
    let maintenances = format!("{ROOT}/nodemaintenances");
    let stranger = pki.cluster.client("stranger", None, Validity::Current)?;
    let caller =
        |identity| Ok::<_, anyhow::Error>(Caller::new(drydock.raw_client(Some(identity), Protocol::Http2)?));
    let (admin, stranger) = (caller(&pki.admin)?, caller(&stranger)?);
    admin
        .post(&maintenances, &idle_maintenance("before", "nowhere"))
        .await?
        .expect(201)?;

    cluster.kill_component(Component::ApiServer);
    // Requests that need no review work, including the aggregator's availability check.
    admin.get(&maintenances).await?.expect(200)?;
    admin
        .post(&maintenances, &idle_maintenance("meanwhile", "nowhere"))
        .await?
        .expect(201)?;
    admin.get(ROOT).await?.expect(200)?;
    let probe = Caller::new(drydock.raw_client(None, Protocol::Http1)?);
    for path in ["/healthz", "/livez", "/readyz"] {
        let response = probe.get(path).await?;
        ensure!(response.status == 200, "{path}: {}", response.text());
    }
    // Requests that need one fail with a retriable error.
    let response = stranger.get(&maintenances).await?;
    ensure!(response.status == 500, "{} {}", response.status, response.text());
    ensure!(
        response.text().starts_with("Internal Server Error: \"/apis/"),
        "{}",
        response.text()
    );
    let token = probe.clone().with_header("authorization", "Bearer somebody's")?;
    ensure!(
        token.get(&maintenances).await?.status == 401,
        "a token that cannot be reviewed"
    );

    cluster.start_component(Component::ApiServer).await?;
    drydock.available().await?;
    let response = stranger.get(&maintenances).await?;
    ensure!(response.status == 403, "{} {}", response.status, response.text());
    let host = Caller::new(cluster.raw_client(Some(&pki.admin))?);
    for name in ["before", "meanwhile"] {
        host.get(&format!("{maintenances}/{name}")).await?.expect(200)?;
    }
    // The controller may have lost its lease and exited; a cluster restarts it.
    drydock.kill_part(Part::Controller);
    drydock.start_part(Part::Controller).await?;
    let namespace = json!({ "metadata": { "name": "after" } });
    host.post("/api/v1/namespaces", &namespace).await?.expect(201)?;
    let uid = uid(0xa3a7, 1);
    let item = format!("{}/{uid}", requests_of("after"));
    // A new namespace is known or looked up.
    host.post(&requests_of("after"), &eviction_request("after", "absent", &uid))
        .await?
        .expect(201)?;
    eventually("the controller to act again", PATIENCE, async || {
        let request = host.get(&item).await?.expect(200)?;
        ensure!(
            request["status"]["conditions"][0]["type"] == "Canceled",
            "{request}"
        );
        Ok(Some(()))
    })
    .await
}
