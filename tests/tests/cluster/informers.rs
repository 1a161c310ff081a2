//! The caches of kube-rs and client-go stay correct across a stop and a kill of the server.

use std::collections::BTreeMap;
use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::{Caller, MERGE_PATCH};
use drydock_tests::clients::eventually;
use drydock_tests::cluster::Part;
use drydock_tests::conformance::version;
use drydock_tests::lock;
use futures_util::StreamExt as _;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::{WatchStreamExt as _, watcher};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Child;

use crate::stage::{PATIENCE, ROOT, Stage, alone, go_client, idle_maintenance, text};

/// A client may back off for 30 s before it reconnects.
const CATCH_UP: Duration = Duration::from_mins(2);

/// A client's cache, filled from its events: every revision of each object, in order.
#[derive(Default)]
struct ClientCache {
    versions: Mutex<BTreeMap<String, Vec<u64>>>,
    faults: Mutex<Vec<String>>,
}

impl ClientCache {
    /// Records an added or changed object.
    fn put(&self, name: &str, version: u64) {
        let (mut versions, mut faults) = (lock(&self.versions), lock(&self.faults));
        let seen = versions.entry(name.to_owned()).or_default();
        if seen.last().is_some_and(|last| *last >= version) {
            faults.push(format!("{name} at {version} came after {seen:?}"));
        }
        seen.push(version);
    }

    fn remove(&self, name: &str) {
        let (mut versions, mut faults) = (lock(&self.versions), lock(&self.faults));
        if versions.remove(name).is_none() {
            faults.push(format!("{name} was deleted twice"));
        }
    }

    /// The newest revision of each object.
    fn current(&self) -> Result<BTreeMap<String, u64>> {
        let faults = lock(&self.faults);
        ensure!(faults.is_empty(), "{faults:?}");
        let versions = lock(&self.versions);
        Ok(versions
            .iter()
            .filter_map(|(name, seen)| Some((name.clone(), *seen.last()?)))
            .collect())
    }
}

/// Runs kube-rs' watcher on this test's objects.
async fn kube_rs(stage: &Stage, cache: &'static ClientCache) -> Result<()> {
    let kind = GroupVersionKind::gvk("coordination.k8s.io", "v1alpha3", "NodeMaintenance");
    let resource = ApiResource::from_gvk_with_plural(&kind, "nodemaintenances");
    let objects: Api<DynamicObject> = Api::all_with(stage.control_plane().client().await?, &resource);
    let config = watcher::Config::default().labels("suite=informers");
    tokio::spawn(async move {
        let mut events = watcher(objects, config).default_backoff().boxed();
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Apply(object) | watcher::Event::InitApply(object)) => {
                    let version = object.metadata.resource_version.and_then(|it| it.parse().ok());
                    cache.put(
                        &object.metadata.name.unwrap_or_default(),
                        version.unwrap_or_default(),
                    );
                }
                Ok(watcher::Event::Delete(object)) => cache.remove(&object.metadata.name.unwrap_or_default()),
                // The watcher must recover from errors.
                Ok(watcher::Event::Init | watcher::Event::InitDone) | Err(_) => {}
            }
        }
    });
    Ok(())
}

/// Starts client-go's informer, a program that prints one event per line.
async fn client_go(stage: &Stage, cache: &'static ClientCache) -> Result<Child> {
    let log = std::fs::File::create(stage.control_plane().folder().path().join("client-go.log"))?;
    let mut child = go_client("informer")
        .await?
        .arg("--kubeconfig")
        .arg(stage.control_plane().admin_kubeconfig())
        .args(["--resource", "nodemaintenances", "--selector", "suite=informers"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .context("start the Go client")?;
    let mut lines = BufReader::new(child.stdout.take().context("its output")?).lines();
    tokio::spawn(async move {
        while let Ok(Some(line)) = lines.next_line().await {
            let event: Value = serde_json::from_str(&line).unwrap_or_default();
            let name = event["name"].as_str().unwrap_or_default();
            match event["type"].as_str() {
                Some("DELETED") => cache.remove(name),
                _ => cache.put(
                    name,
                    event["resourceVersion"]
                        .as_str()
                        .and_then(|it| it.parse().ok())
                        .unwrap_or_default(),
                ),
            }
        }
    });
    Ok(child)
}

/// Writes objects, and keeps their revisions.
struct Writer {
    host: Caller,
    truth: BTreeMap<String, Vec<u64>>,
    next: usize,
}

impl Writer {
    async fn write(&mut self) -> Result<()> {
        self.next += 1;
        let name = format!("informer-{}", self.next);
        let path = format!("{ROOT}/nodemaintenances");
        let mut object = idle_maintenance(&name, "nowhere");
        object["metadata"]["labels"] = json!({ "suite": "informers" });
        // The aggregator may notice only now that the server was away, and then answers 503 without sending the request on.
        let created = eventually("the server to be reached", PATIENCE, async || {
            let response = self.host.post(&path, &object).await?;
            Ok((response.status != 503).then_some(response))
        });
        let created = created.await?.expect(201)?;
        self.truth.insert(name, vec![version(&created)?]);
        let mut names = vec![format!("informer-{}", self.next)];
        // One object changes every time.
        if self.next > 1 {
            names.push("informer-1".to_owned());
        }
        for name in names {
            let patch = json!({ "spec": { "reason": format!("write {}", self.next) } });
            let patched = self
                .host
                .patch(&format!("{path}/{name}"), MERGE_PATCH, &patch)
                .await?
                .expect(200)?;
            self.truth
                .entry(text(&patched["metadata"]["name"])?)
                .or_default()
                .push(version(&patched)?);
        }
        if self.next.is_multiple_of(3) {
            let name = format!("informer-{}", self.next - 1);
            self.host.delete(&format!("{path}/{name}")).await?.expect(200)?;
            self.truth.remove(&name);
        }
        Ok(())
    }

    fn current(&self) -> BTreeMap<String, u64> {
        let newest = |(name, seen): (&String, &Vec<u64>)| Some((name.clone(), *seen.last()?));
        self.truth.iter().filter_map(newest).collect()
    }
}

async fn caught_up(what: &str, cache: &ClientCache, truth: &BTreeMap<String, u64>) -> Result<()> {
    eventually(&format!("{what} to catch up"), CATCH_UP, async || {
        let current = cache.current()?;
        ensure!(&current == truth, "{current:?} instead of {truth:?}");
        Ok(Some(()))
    })
    .await
}

#[tokio::test]
async fn client_caches_are_correct_after_a_stop_and_a_kill_of_the_server() -> Result<()> {
    let Some(stage) = alone().await? else {
        return Ok(());
    };
    // Leaked, since the tasks that fill them outlive this function's scope.
    let (rust, go): (&'static ClientCache, &'static ClientCache) =
        (Box::leak(Box::default()), Box::leak(Box::default()));
    let mut writer = Writer {
        host: stage.host()?,
        truth: BTreeMap::new(),
        next: 0,
    };
    writer.write().await?;
    kube_rs(&stage, rust).await?;
    let _client = client_go(&stage, go).await?;
    caught_up("kube-rs", rust, &writer.current()).await?;
    caught_up("client-go", go, &writer.current()).await?;
    for ending in ["stop", "kill"] {
        writer.write().await?;
        writer.write().await?;
        if ending == "stop" {
            let status = stage
                .drydock
                .stop_part(Part::ApiServer)
                .await?
                .context("the server ran")?;
            ensure!(status.success(), "{status}");
        } else {
            stage.drydock.kill_part(Part::ApiServer);
        }
        stage.drydock.start_part(Part::ApiServer).await?;
        stage.drydock.available().await?;
        writer.write().await?;
        writer.write().await?;
        caught_up("kube-rs", rust, &writer.current()).await?;
        caught_up("client-go", go, &writer.current()).await?;
    }
    // kube-rs resumes from its revision, so it has seen each one, not only the last.
    let seen = lock(&rust.versions).clone();
    let first = |all: &BTreeMap<String, Vec<u64>>| all.get("informer-1").cloned().unwrap_or_default();
    // Except for those before its list.
    let (seen, truth) = (first(&seen), first(&writer.truth));
    ensure!(
        truth.ends_with(&seen) && seen.len() + 2 > truth.len(),
        "{seen:?} of {truth:?}"
    );
    Ok(())
}
