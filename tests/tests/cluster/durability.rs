//! Acknowledged writes survive a kill and a stop of the server.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::Caller;
use drydock_tests::clients::Protocol;
use drydock_tests::cluster::Server;
use drydock_tests::conformance::version;
use drydock_tests::lock;
use futures_util::future::join_all;
use serde_json::Value;
use tokio::sync::Notify;

use crate::stage::{ROOT, idle_maintenance, text, together};

const CLIENTS: usize = 8;
const WRITES: usize = 25;
const ROUNDS: usize = 3;

/// The acknowledged writes: the resourceVersion of each object.
#[derive(Default)]
struct Acknowledged {
    objects: Mutex<BTreeMap<String, u64>>,
    count: AtomicUsize,
    enough: Notify,
}

impl Acknowledged {
    fn add(&self, object: &Value, enough: usize) -> Result<()> {
        let (name, version) = (text(&object["metadata"]["name"])?, version(object)?);
        lock(&self.objects).insert(name, version);
        if self.count.fetch_add(1, Ordering::SeqCst) + 1 == enough {
            self.enough.notify_one();
        }
        Ok(())
    }
}

fn collection() -> String {
    format!("{ROOT}/nodemaintenances")
}

/// Creates objects until all are created or the server is gone.
async fn write(
    caller: &Caller,
    round: usize,
    client: usize,
    acknowledged: &Acknowledged,
    enough: usize,
) -> Result<()> {
    for number in 0..WRITES {
        let object = idle_maintenance(&format!("r{round}-c{client}-n{number}"), "nowhere");
        let Ok(response) = caller.post(&collection(), &object).await else {
            return Ok(());
        };
        acknowledged.add(&response.expect(201)?, enough)?;
    }
    Ok(())
}

/// Reads a watch from a revision until the server is gone or `until` objects were added in total.
async fn read(caller: &Caller, seen: &mut BTreeMap<String, u64>, from: &mut u64, until: usize) -> Result<()> {
    let path = format!("{}?watch=true&resourceVersion={from}", collection());
    let Ok(mut watch) = caller.watch(&path).await else {
        return Ok(());
    };
    while seen.len() < until {
        let Ok(Some(event)) = watch.next().await else {
            return Ok(());
        };
        let (name, revision) = (
            text(&event["object"]["metadata"]["name"])?,
            version(&event["object"])?,
        );
        ensure!(event["type"] == "ADDED", "{event}");
        ensure!(revision > *from, "{revision} came after {from}");
        ensure!(
            seen.insert(name.clone(), revision).is_none(),
            "{name} was added twice"
        );
        *from = revision;
    }
    Ok(())
}

#[tokio::test]
async fn a_killed_server_has_every_write_it_acknowledged() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let server = Server::start(stage.drydock, "durable").await?;
    let admin = &stage.control_plane().pki().admin;
    let caller = Caller::new(server.raw_client(Some(admin), Protocol::Http2)?);
    let acknowledged = Acknowledged::default();
    let (mut seen, mut from) = (
        BTreeMap::new(),
        version(&caller.get(&collection()).await?.expect(200)?)?,
    );
    for round in 0..ROUNDS {
        let enough = acknowledged.count.load(Ordering::SeqCst) + CLIENTS * WRITES / 2;
        let writers =
            join_all((0..CLIENTS).map(|client| write(&caller, round, client, &acknowledged, enough)));
        let kill = async {
            acknowledged.enough.notified().await;
            server.kill();
        };
        let (written, (), watched) =
            tokio::join!(writers, kill, read(&caller, &mut seen, &mut from, usize::MAX));
        written.into_iter().collect::<Result<Vec<_>>>()?;
        watched?;
        server.start_again().await?;

        let list = caller.get(&collection()).await?.expect(200)?;
        let stored = list["items"]
            .as_array()
            .context("items")?
            .iter()
            .map(|item| Ok((text(&item["metadata"]["name"])?, version(item)?)))
            .collect::<Result<BTreeMap<_, _>>>()?;
        let objects = lock(&acknowledged.objects).clone();
        ensure!(objects.len() >= enough, "killed too early");
        for (name, revision) in &objects {
            ensure!(
                stored.get(name) == Some(revision),
                "{name} at {revision} is lost: {:?}",
                stored.get(name)
            );
        }
        // A write without a response may be stored too, with a revision of its own.
        let mut revisions: Vec<_> = stored.values().collect();
        revisions.sort_unstable();
        revisions.dedup();
        assert_eq!(revisions.len(), stored.len(), "a revision is repeated");
        // The watch resumes and misses nothing.
        read(&caller, &mut seen, &mut from, stored.len()).await?;
        assert_eq!(seen, stored);
    }
    Ok(())
}

#[tokio::test]
async fn a_stopped_server_ends_watches_and_finishes_writes() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let server = Server::start(stage.drydock, "stopped").await?;
    let admin = &stage.control_plane().pki().admin;
    let caller = Caller::new(server.raw_client(Some(admin), Protocol::Http1)?);
    let from = version(&caller.get(&collection()).await?.expect(200)?)?;
    let path = format!("{}?watch=true&resourceVersion={from}", collection());
    let mut watch = caller.watch(&path).await?;
    let acknowledged = Acknowledged::default();
    let writers = join_all((0..CLIENTS).map(|client| {
        let caller = caller.clone();
        let acknowledged = &acknowledged;
        async move {
            for number in 0..WRITES {
                let object = idle_maintenance(&format!("c{client}-n{number}"), "nowhere");
                let Ok(response) = caller.post(&collection(), &object).await else {
                    return Ok(());
                };
                // A server that shuts down may reject requests.
                if response.status == 429 || response.status == 503 {
                    return Ok(());
                }
                acknowledged.add(&response.expect(201)?, 50)?;
            }
            Ok::<_, anyhow::Error>(())
        }
    }));
    let stop = async {
        acknowledged.enough.notified().await;
        server.stop().await
    };
    let read = async {
        let mut seen = 0;
        // The stream ends cleanly.
        while watch.next().await?.is_some() {
            seen += 1;
        }
        Ok::<_, anyhow::Error>(seen)
    };
    let (written, stopped, seen) = tokio::join!(writers, stop, read);
    written.into_iter().collect::<Result<Vec<_>>>()?;
    let status = stopped?.context("it ran")?;
    ensure!(status.success(), "{status}");
    ensure!(seen? > 0, "the watch received no event");
    server.start_again().await?;
    let list = caller.get(&collection()).await?.expect(200)?;
    let stored = list["items"].as_array().context("items")?.len();
    ensure!(
        stored >= acknowledged.count.load(Ordering::SeqCst),
        "{stored} are stored"
    );
    Ok(())
}
