//! A store at its limit, behind the aggregator: reports about objects and their deletion go on within a reserve, nothing else
//! grows, and what is refused costs no memory.

use anyhow::{Context as _, Result, bail, ensure};
use drydock_tests::calls::{Caller, MERGE_PATCH, Response};
use drydock_tests::clients::Protocol;
use drydock_tests::cluster::{ControlPlane, Drydock, Options, Part, shared};
use drydock_tests::load::{forget_peak, peak_bytes, resident_bytes};
use futures_util::future::try_join_all;
use serde_json::{Value, json};

use crate::stage::{eviction_request, requests_of, text, uid};

/// The prefix of the UIDs of this file.
const UIDS: u16 = 0xab06;
/// The limit for the bytes of all objects, and its reserve.
const LIMIT: f64 = 1_048_576.0;
const RESERVE: f64 = LIMIT / 4.0;
/// The objects whose reports go on. Small reports of all fit into the reserve, and large ones do not.
const OBJECTS: u64 = 16;
const SMALL: usize = 10_000;
const LARGE: usize = 28_000;
/// More than an object may add in a full store.
const TOO_LARGE: usize = 600_000;
/// Refused writes: 255 MB in all, of which ten run at a time.
const REFUSED: usize = 600;
const AT_ONCE: usize = 10;
/// How much more memory the server may take for them.
const MEMORY: u64 = 128 << 20;

/// A status of about this many bytes.
fn status(bytes: usize) -> Value {
    const MESSAGE: usize = 30_000;
    let condition = |index: usize| {
        json!({ "type": format!("example.com/C{index}"), "status": "True", "reason": "Test",
            "message": "m".repeat(MESSAGE.min(bytes - index * MESSAGE)), "lastTransitionTime": "2026-01-01T00:00:00Z" })
    };
    let all: Vec<Value> = (0..bytes.div_ceil(MESSAGE)).map(condition).collect();
    json!({ "status": { "conditions": all } })
}

fn annotation(bytes: usize) -> Value {
    json!({ "metadata": { "annotations": { "example.com/noise": "x".repeat(bytes) } } })
}

/// Checks that a write was refused for want of room.
fn refused(response: &Response) -> Result<()> {
    let error = response.expect(503)?;
    let message = text(&error["message"])?;
    ensure!(
        error["reason"] == "ServiceUnavailable" && message.starts_with("the storage is full: "),
        "{error}"
    );
    ensure!(response.header("retry-after") == "30", "{:?}", response.headers);
    Ok(())
}

/// The administrator at kube-apiserver, and at the registered server for what the aggregator does not forward.
struct Roads {
    host: Caller,
    direct: Caller,
}

impl Roads {
    fn new(cluster: &ControlPlane, drydock: &Drydock<'_>) -> Result<Self> {
        let admin = &cluster.pki().admin;
        Ok(Self {
            host: Caller::new(cluster.raw_client(Some(admin))?),
            direct: Caller::new(drydock.raw_client(Some(admin), Protocol::Http2)?),
        })
    }

    async fn object_bytes(&self) -> Result<f64> {
        let page = self.direct.get("/metrics").await?.text();
        let mut lines = page.lines();
        let value = lines.find_map(|line| line.strip_prefix("drydock_storage_object_bytes "));
        Ok(value.context("the metric")?.parse()?)
    }

    async fn patch(&self, path: &str, body: &Value) -> Result<Response> {
        self.host.patch(path, MERGE_PATCH, body).await
    }

    async fn report(&self, path: &str, bytes: usize) -> Result<Response> {
        self.patch(&format!("{path}/status"), &status(bytes)).await
    }

    /// Creates requests until there is no room for another.
    async fn fill(&self) -> Result<Vec<String>> {
        let collection = requests_of("default");
        let mut created = Vec::new();
        for number in 1000..1100 {
            let name = uid(UIDS, number);
            let mut object = eviction_request("default", "absent", &name);
            object["metadata"]["annotations"] = annotation(20_000)["metadata"]["annotations"].clone();
            let response = self.host.post(&collection, &object).await?;
            if response.status != 201 {
                refused(&response)?;
                return Ok(created);
            }
            created.push(format!("{collection}/{name}"));
        }
        bail!("the store is never full")
    }

    /// Writes that would make objects grow too much.
    async fn overload(&self, paths: &[String]) -> Result<()> {
        for start in (0..REFUSED).step_by(AT_ONCE) {
            let targets = paths.iter().cycle().skip(start);
            let batch = (start..start + AT_ONCE).zip(targets);
            try_join_all(batch.map(async |(number, path)| {
                refused(&if number % 2 == 0 {
                    self.report(path, TOO_LARGE).await?
                } else {
                    self.patch(path, &annotation(250_000)).await?
                })
            }))
            .await?;
        }
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_and_deletions_go_on_within_the_reserve() -> Result<()> {
    if shared().await?.is_none() {
        return Ok(());
    }
    // A control plane of its own, since nothing else may be written there.
    let cluster = ControlPlane::start(Options {
        server_flags: vec!["--storage-object-bytes-limit=1Mi".to_owned()],
        ..Options::default()
    })
    .await?;
    let drydock = Drydock::start(&cluster).await?;
    drydock.stop_part(Part::Controller).await?;
    let process = drydock.process_id(Part::ApiServer).context("the server runs")?;
    let roads = Roads::new(&cluster, &drydock)?;

    let collection = requests_of("default");
    let mut paths = Vec::new();
    for number in 0..OBJECTS {
        let uid = uid(UIDS, number);
        let mut request = eviction_request("default", "absent", &uid);
        request["metadata"]["finalizers"] = json!(["example.com/hold"]);
        roads.host.post(&collection, &request).await?.expect(201)?;
        paths.push(format!("{collection}/{uid}"));
    }
    let filling = roads.fill().await?;

    // Every object is still reported about, and none grows otherwise.
    for path in &paths {
        roads.report(path, SMALL).await?.expect(200)?;
        refused(&roads.patch(path, &annotation(LARGE)).await?)?;
        refused(&roads.report(path, TOO_LARGE).await?)?;
    }
    let mut large = 0;
    for path in &paths {
        let response = roads.report(path, LARGE).await?;
        if response.status == 200 {
            large += 1;
        } else {
            refused(&response)?;
        }
    }
    ensure!(
        (1..OBJECTS).contains(&large),
        "{large} large reports fit into the reserve"
    );
    for path in &paths {
        let terminating = roads.host.delete(path).await?.expect(200)?;
        ensure!(
            terminating["metadata"]["deletionTimestamp"].is_string(),
            "{terminating}"
        );
        refused(&roads.patch(path, &annotation(LARGE)).await?)?;
    }

    let before = resident_bytes(process)?;
    forget_peak(process)?;
    roads.overload(&paths).await?;
    let peak = peak_bytes(process)?;
    eprintln!("{before} bytes of memory before, {peak} at most");
    ensure!(
        peak < before + MEMORY,
        "{before} bytes of memory grew to {peak} by writes that are refused"
    );
    let found = roads.object_bytes().await?;
    // The last report within the reserve may exceed it, and every object got a deletion timestamp.
    ensure!(
        (LIMIT + RESERVE..LIMIT + RESERVE + 64_000.0).contains(&found),
        "{found}"
    );

    // The reserve is used up, and still every object is reported about, and goes.
    for path in &paths {
        roads.report(path, SMALL / 2).await?.expect(200)?;
        let free = json!({ "metadata": { "finalizers": null } });
        roads.patch(path, &free).await?.expect(200)?;
        ensure!(roads.host.get(path).await?.status == 404, "{path} is not gone");
    }
    for path in &filling {
        roads.host.delete(path).await?.expect(200)?;
    }
    let uid = uid(UIDS, OBJECTS);
    let request = eviction_request("default", "absent", &uid);
    roads.host.post(&collection, &request).await?.expect(201)?;
    Ok(())
}
