//! Three servers over the control plane's etcd, behind one Service: clients of kube-apiserver notice the end of a server,
//! and of etcd, by a delay at most, and nothing acknowledged is lost.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::Caller;
use drydock_tests::clients::eventually;
use drydock_tests::cluster::{Component, ControlPlane, Drydock, EtcdMembers, Options, Server};
use drydock_tests::conformance::{Endpoint, version};
use serde_json::Value;

use crate::stage::together;

const SERVERS: usize = 3;
/// How long a client may have to repeat a request.
const PATIENCE: Duration = Duration::from_secs(30);

/// Creates an object, again until it is known to exist. A repeated create of one of unknown outcome conflicts.
async fn create(endpoint: &Endpoint, name: &str) -> Result<u64> {
    let body = endpoint.maintenance(name);
    eventually(&format!("{name} to be created"), PATIENCE, async || {
        let response = endpoint.caller.post(&endpoint.maintenances(), &body).await?;
        match response.status {
            201 => Ok(Some(version(&response.json()?)?)),
            409 => Ok(Some(version(&endpoint.read(name).await?)?)),
            // What a client repeats.
            429 | 500 | 503 | 504 => Ok(None),
            _ => response.expect(201).map(|_| None),
        }
    })
    .await
}

/// Everything created is listed with its revision, also after `what` happened.
async fn check(endpoint: &Endpoint, expected: &BTreeMap<String, u64>, what: &str) -> Result<()> {
    let list = eventually(&format!("a list after {what}"), PATIENCE, async || {
        let response = endpoint.caller.get(&endpoint.own()).await?;
        Ok((response.status == 200).then(|| response.json()))
    })
    .await??;
    let mut found = BTreeMap::new();
    for item in list["items"].as_array().context("a list has items")? {
        let name = item["metadata"]["name"].as_str().unwrap_or_default();
        found.insert(name.to_owned(), version(item)?);
    }
    ensure!(
        found == *expected,
        "after {what}: {found:?} instead of {expected:?}"
    );
    Ok(())
}

/// Whoever looks at the cluster sees which member is gone, and that it is back.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_gone_is_an_event_of_the_cluster() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let rights = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/etcd/rbac.yaml");
    let kubectl = stage.kubectl();
    kubectl
        .ok(&["apply", "--server-side", "-f", &rights.display().to_string()])
        .await?;
    let members = EtcdMembers::start(3, &["--unsafe-no-fsync"]).await?;
    let flags = members.server_flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let _server = Server::start_with(stage.drydock, "member-events", &flags).await?;
    let reported = async |reason: &str| {
        let what = format!("the event {reason}");
        let selector = format!("--field-selector=reason={reason}");
        let arguments = [
            "get",
            "events",
            "-n",
            "default",
            "-o",
            "jsonpath={.items[*].message}",
            &selector,
        ];
        eventually(&what, Duration::from_mins(1), async || {
            let notes = kubectl.ok(&arguments).await?;
            Ok(notes.contains(&members.endpoints()[1]).then_some(()))
        })
        .await
    };
    members.kill(1);
    reported("EtcdMemberGone").await?;
    members.start_member(1)?;
    reported("EtcdMemberServes").await
}

#[tokio::test(flavor = "multi_thread")]
async fn three_servers_over_etcd_survive_the_end_of_any_part() -> Result<()> {
    if std::env::var("DRYDOCK_TEST_CLUSTER").is_ok_and(|value| value == "skip") {
        writeln!(std::io::stderr(), "skipped: DRYDOCK_TEST_CLUSTER=skip")?;
        return Ok(());
    }
    let options = Options {
        etcd_servers: SERVERS,
        ..Options::default()
    };
    let control_plane = ControlPlane::start(options).await?;
    let drydock = Drydock::start(&control_plane).await?;
    let caller = Caller::new(control_plane.raw_client(Some(&control_plane.pki().admin))?);
    let endpoint = Endpoint::in_default(caller);

    let mut expected = BTreeMap::new();
    let mut newest = create(&endpoint, "first").await?;
    expected.insert(endpoint.name("first"), newest);
    let mut watch = endpoint.watch(&format!("&resourceVersion={newest}")).await?;
    let mut seen = newest;
    for round in 0..SERVERS {
        drydock.kill_server(round);
        for number in 0..5 {
            let name = format!("created-{round}-{number}");
            let revision = create(&endpoint, &name).await?;
            ensure!(revision > newest, "revisions grow");
            newest = revision;
            expected.insert(endpoint.name(&name), revision);
        }
        check(&endpoint, &expected, "the end of a server").await?;
        drydock.start_server(round).await?;
    }
    control_plane.kill_component(Component::Etcd);
    control_plane.start_component(Component::Etcd).await?;
    newest = create(&endpoint, "last").await?;
    expected.insert(endpoint.name("last"), newest);
    check(&endpoint, &expected, "a restart of etcd").await?;

    // A watch that broke with its server is continued where it was.
    let mut revisions: Vec<u64> = expected
        .values()
        .copied()
        .filter(|revision| *revision > seen)
        .collect();
    revisions.sort_unstable();
    for revision in revisions {
        let event: Value = loop {
            match watch.next().await {
                Ok(Some(event)) if event["type"] != "ERROR" => break event,
                _ => watch = endpoint.watch(&format!("&resourceVersion={seen}")).await?,
            }
        };
        ensure!(
            version(&event["object"])? == revision,
            "{revision} is due, not {event}"
        );
        seen = revision;
    }
    Ok(())
}
