//! Several servers over one etcd: each serves what was written at another, watches move between them, and the end of one
//! server or a restart of etcd loses nothing.

use std::time::Duration;

use anyhow::{Result, ensure};
use drydock_tests::clients::{Protocol, eventually};
use drydock_tests::cluster::Etcd;
use drydock_tests::conformance::{Endpoint, names, version};
use drydock_tests::standalone::Standalone;
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(30);

struct Replicas {
    // Before etcd: clients end first.
    servers: Vec<Standalone>,
    etcd: Etcd,
}

impl Replicas {
    async fn start(count: usize) -> Result<Self> {
        let etcd = Etcd::start().await?;
        let mut servers = Vec::new();
        for _ in 0..count {
            servers.push(super::server(&etcd).await?);
        }
        Ok(Self { servers, etcd })
    }

    fn endpoints(&self) -> Result<Vec<Endpoint>> {
        let callers = self.servers.iter().map(|server| server.caller(Protocol::Http2));
        callers.map(|caller| Ok(Endpoint::in_default(caller?))).collect()
    }
}

/// Whether the message of a Status has this text.
fn says(status: &Value, text: &str) -> bool {
    status["message"]
        .as_str()
        .is_some_and(|message| message.contains(text))
}

/// Without waiting: a read that begins after a write was acknowledged elsewhere contains it.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_at_one_server_is_read_at_the_others() -> Result<()> {
    let replicas = Replicas::start(3).await?;
    let endpoints = replicas.endpoints()?;
    let mut newest = 0;
    for round in 0..30 {
        let writer = &endpoints[round % 3];
        let name = format!("replicated-{round}");
        let created = writer.create(&name).await?;
        ensure!(version(&created)? > newest, "revisions grow across servers");
        newest = version(&created)?;
        for reader in &endpoints {
            ensure!(reader.read(&name).await? == created);
            let path = reader.maintenances();
            let list = reader.caller.get(&path).await?.expect(200)?;
            ensure!(version(&list)? >= newest);
            ensure!(
                names(&list).contains(&writer.name(&name)),
                "a list contains {name}"
            );
            let cached = format!("{path}?resourceVersion={newest}&resourceVersionMatch=NotOlderThan");
            let list = reader.caller.get(&cached).await?.expect(200)?;
            ensure!(names(&list).contains(&writer.name(&name)));
        }
        let next = &endpoints[(round + 1) % 3];
        let merged = next
            .merge(&name, &json!({"metadata": {"labels": {"by": "another"}}}))
            .await?;
        newest = version(&merged.expect(200)?)?;
    }
    // A revision that etcd has not issued is the future at every server.
    for reader in &endpoints {
        let path = format!("{}?resourceVersion={}", reader.maintenances(), newest + 1_000_000);
        let status = reader.caller.get(&path).await?.expect(504)?;
        ensure!(says(&status, "Too large resource version"), "{status}");
    }
    Ok(())
}

/// A client whose server is killed continues its watch at another one, without a gap and without a repetition.
#[tokio::test(flavor = "multi_thread")]
async fn a_watch_moves_to_another_server() -> Result<()> {
    let replicas = Replicas::start(2).await?;
    let endpoints = replicas.endpoints()?;
    let first = version(&endpoints[0].create("watched-0").await?)?;
    let mut watch = endpoints[0].watch(&format!("&resourceVersion={first}")).await?;
    let mut seen = first;
    let mut expected = Vec::new();
    for round in 1..=3 {
        let name = format!("watched-{round}");
        expected.push(version(&endpoints[1].create(&name).await?)?);
        let event = watch.event().await?;
        seen = version(&event["object"])?;
        ensure!(expected.last() == Some(&seen), "{event}");
    }
    replicas.servers[0].kill();
    for round in 4..=6 {
        expected.push(version(&endpoints[1].create(&format!("watched-{round}")).await?)?);
    }
    let mut watch = endpoints[1].watch(&format!("&resourceVersion={seen}")).await?;
    for revision in &expected[3..] {
        let event = watch.event().await?;
        ensure!(version(&event["object"])? == *revision, "{event}");
    }
    replicas.servers[0].start_again().await?;
    let again = Endpoint::in_default(replicas.servers[0].caller(Protocol::Http2)?);
    let mut watch = again.watch(&format!("&resourceVersion={first}")).await?;
    for revision in &expected {
        let event = watch.event().await?;
        ensure!(version(&event["object"])? == *revision, "{event}");
    }
    Ok(())
}

/// While etcd is away a server is not ready but lives; what was acknowledged is there afterwards, and open watches go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_kill_of_etcd_loses_nothing() -> Result<()> {
    let replicas = Replicas::start(2).await?;
    let endpoints = replicas.endpoints()?;
    let created = endpoints[0].create("kept").await?;
    let mut watch = endpoints[1]
        .watch(&format!("&resourceVersion={}", version(&created)?))
        .await?;
    replicas.etcd.kill();
    let caller = &endpoints[0].caller;
    eventually("the server to be unready", PATIENCE, async || {
        let status = caller.get("/readyz/etcd").await?.status;
        Ok((status == 500).then_some(()))
    })
    .await?;
    ensure!(caller.get("/livez").await?.status == 200);
    let refused = caller
        .post(&endpoints[0].maintenances(), &endpoints[0].maintenance("refused"))
        .await?;
    ensure!(refused.expect(503)?["reason"] == "ServiceUnavailable");
    replicas.etcd.start_again().await?;
    eventually("the server to be ready", PATIENCE, async || {
        let status = caller.get("/readyz/etcd").await?.status;
        Ok((status == 200).then_some(()))
    })
    .await?;
    for endpoint in &endpoints {
        ensure!(endpoint.read("kept").await? == created);
    }
    let after = endpoints[0].create("after").await?;
    let event = watch.event().await?;
    ensure!(event["object"] == after, "{event}");
    Ok(())
}

/// The log names the member that stands still, that is gone, and that serves again.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_names_a_member_that_is_slow_or_gone() -> Result<()> {
    let replicas = Replicas::start(1).await?;
    let server = &replicas.servers[0];
    let says = async |text: &str, after: usize| {
        eventually(text, PATIENCE, async || {
            let log = server.log()?;
            let lines = log.get(after..).unwrap_or_default().lines();
            let is_line = |line: &str| line.contains(text) && line.contains(&replicas.etcd.endpoint());
            Ok(lines.into_iter().any(is_line).then_some(()))
        })
        .await
    };
    replicas.etcd.pause()?;
    says("a member of etcd is slow", 0).await?;
    says("a member of etcd does not serve", 0).await?;
    replicas.etcd.resume()?;
    says("a member of etcd serves again", 0).await?;
    let before = server.log()?.len();
    replicas.etcd.kill();
    says("a member of etcd does not serve", before).await
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_and_refusals_name_etcd() -> Result<()> {
    let replicas = Replicas::start(1).await?;
    let caller = replicas.servers[0].caller(Protocol::Http2)?;
    let metrics = caller.get("/metrics").await?.text();
    for name in [
        "etcd_request_duration_seconds_bucket{",
        "etcd_requests_total{",
        "apiserver_storage_size_bytes{",
        "drydock_storage_etcd_member_up{",
    ] {
        ensure!(metrics.contains(name), "{name} is missing");
    }
    let alerts = include_str!("../../../../deploy/monitoring/alerts-etcd.yaml");
    for (before, _) in alerts.match_indices("{job=").map(|(at, _)| alerts.split_at(at)) {
        let name = before.rsplit(['(', ' ']).next().unwrap_or_default();
        ensure!(
            metrics.contains(&format!("\n{name}")),
            "{name} of the alerts is missing"
        );
    }
    let refused = caller.post("/storage/backups", &json!({})).await?;
    let status = refused.expect(400)?;
    ensure!(says(&status, "etcdctl snapshot save"), "{status}");
    Ok(())
}
