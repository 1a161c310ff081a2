//! Many watchers and slow ones do not delay others; overload is a 429.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::{Caller, MERGE_PATCH};
use drydock_tests::clients::{Protocol, eventually};
use drydock_tests::cluster::Server;
use drydock_tests::cluster::pki::Validity;
use drydock_tests::conformance::version;
use futures_util::future::try_join_all;
use http::Request;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use crate::stage::{PATIENCE, ROOT, idle_maintenance, together};

fn collection() -> String {
    format!("{ROOT}/nodemaintenances")
}

#[tokio::test]
async fn a_slow_reader_delays_no_one_and_loses_nothing() -> Result<()> {
    const WRITES: usize = 400;
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let server = Server::start(stage.drydock, "slow-reader").await?;
    let admin = &stage.control_plane().pki().admin;
    let caller = Caller::new(server.raw_client(Some(admin), Protocol::Http1)?);
    let object = idle_maintenance("large", "nowhere");
    let created = caller.post(&collection(), &object).await?.expect(201)?;
    let mut from = version(&created)?;
    let path = |from: u64| format!("{}?watch=true&resourceVersion={from}", collection());
    let mut slow = caller.watch(&path(from)).await?;
    let mut quick = caller.watch(&path(from)).await?;
    let write = async {
        let filling = "x".repeat(100_000);
        for number in 0..WRITES {
            let annotations = json!({ "number": number.to_string(), "filling": filling });
            let patch = json!({ "metadata": { "annotations": annotations } });
            let started = Instant::now();
            let item = format!("{}/large", collection());
            caller.patch(&item, MERGE_PATCH, &patch).await?.expect(200)?;
            ensure!(
                started.elapsed() < Duration::from_secs(10),
                "write {number} took {:?}",
                started.elapsed()
            );
        }
        Ok::<_, anyhow::Error>(())
    };
    let number = |event: &Value| -> Result<usize> {
        let number = &event["object"]["metadata"]["annotations"]["number"];
        number
            .as_str()
            .and_then(|it| it.parse().ok())
            .with_context(|| format!("no number: {number}"))
    };
    let read = async {
        for expected in 0..WRITES {
            assert_eq!(number(&quick.event().await?)?, expected);
        }
        Ok::<_, anyhow::Error>(())
    };
    tokio::try_join!(write, read)?;
    // Now the slow one reads. Its stream may have ended; then it resumes.
    let mut expected = 0;
    while expected < WRITES {
        match slow.next().await? {
            Some(event) => {
                assert_eq!(number(&event)?, expected);
                from = version(&event["object"])?;
                expected += 1;
            }
            None => slow = caller.watch(&path(from)).await?,
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_thousand_watches_share_one_connection_with_other_requests() -> Result<()> {
    const WATCHES: usize = 990;
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let server = Server::start(stage.drydock, "many-watchers").await?;
    let admin = &stage.control_plane().pki().admin;
    let client = server.raw_client(Some(admin), Protocol::Http2)?;
    let mut connection = client.connect().await?;
    let path = format!("{}?watch=true&resourceVersion=0", collection());
    let mut watches = Vec::with_capacity(WATCHES);
    for _ in 0..WATCHES {
        let watch = connection.stream(Request::get(&path).body("")?).await?;
        assert_eq!(watch.status(), 200);
        watches.push(watch.into_body());
    }
    let started = Instant::now();
    let response = connection.send(Request::get(collection()).body("")?).await?;
    assert_eq!(response.status(), 200);
    ensure!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    let caller = Caller::new(client);
    caller
        .post(&collection(), &idle_maintenance("created", "nowhere"))
        .await?
        .expect(201)?;
    let received = try_join_all(watches.iter_mut().map(async |watch| {
        let frame = timeout(PATIENCE, watch.frame())
            .await
            .context("no event came")?
            .context("the watch ended")??;
        let event: Value = serde_json::from_slice(&frame.into_data().ok().context("data")?)?;
        assert_eq!(
            (&event["type"], &event["object"]["metadata"]["name"]),
            (&json!("ADDED"), &json!("created"))
        );
        Ok::<_, anyhow::Error>(())
    }))
    .await?;
    assert_eq!(received.len(), WATCHES);
    Ok(())
}

#[tokio::test]
async fn requests_beyond_the_limit_in_flight_are_429() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let flags = ["--max-requests-inflight", "1"];
    let server = Server::start_with(stage.drydock, "busy", &flags).await?;
    let pki = stage.control_plane().pki();
    let visitor = pki.cluster.client("visitor", None, Validity::Current)?;
    let client = server.raw_client(Some(&visitor), Protocol::Http2)?;
    let admin = Caller::new(server.raw_client(Some(&pki.admin), Protocol::Http2)?);
    // Each path needs an access review of its own, which takes time. Two hundred requests of a user may wait.
    let busy = eventually("more requests than may wait", PATIENCE, async || {
        let all = (0..300).map(async |number| {
            let path = format!("{}/n{number}", collection());
            Caller::new(client.clone()).get(&path).await
        });
        let responses = try_join_all(all).await?;
        // The group system:masters is exempt.
        admin.get(&collection()).await?.expect(200)?;
        Ok(responses.into_iter().find(|response| response.status == 429))
    })
    .await?;
    assert_eq!(
        busy.text().trim_end(),
        "Too many requests, please try again later."
    );
    assert_eq!(busy.header("retry-after"), "1");
    ensure!(
        busy.header("content-type").starts_with("text/plain"),
        "{:?}",
        busy.headers
    );
    Ok(())
}
