//! On a full disk the server reports the failed write, exits, and keeps what it acknowledged. At the limit for objects it goes
//! on, within a reserve.

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::{Caller, MERGE_PATCH};
use drydock_tests::clients::Protocol;
use drydock_tests::conformance::Endpoint;
use drydock_tests::standalone::Standalone;
use serde_json::{Value, json};

/// The size of an annotation of hexadecimal digits, which hardly compress.
const BYTES: usize = 100_000;
/// The limit of a file's size: the engine's log reaches it after a few objects, the server's output never.
const LIMIT: u64 = 1_000_000;

fn noise(random: &mut fastrand::Rng) -> String {
    std::iter::repeat_with(|| format!("{:016x}", random.u64(..)))
        .take(BYTES / 16)
        .collect()
}

#[tokio::test]
async fn a_full_disk_ends_the_server_and_acknowledged_writes_remain() -> Result<()> {
    let standalone = Standalone::start().await?;
    let api = Endpoint::in_default(standalone.caller(Protocol::Http2)?);
    let mut written: Vec<(String, Value)> = Vec::new();
    standalone.limit_files(LIMIT)?;
    let mut random = fastrand::Rng::with_seed(1);
    let mut failed = None;
    for number in 0..100 {
        let name = format!("m{number}");
        let mut object = api.maintenance(&name);
        object["metadata"]["annotations"] = json!({ "example.com/noise": noise(&mut random) });
        let response = api.caller.post(&api.maintenances(), &object).await?;
        if response.status != 201 {
            failed = Some(response);
            break;
        }
        written.push((name, response.json()?));
    }
    // The outcome is unknown: neither a success nor a definite failure.
    let failed = failed.context("the disk was never full")?;
    let text = failed.text();
    ensure!(
        failed.status >= 500 && text.contains("may or may not have been stored"),
        "{text}"
    );
    ensure!(!written.is_empty(), "the first write failed");

    let status = standalone.ended().await?;
    ensure!(
        status.is_some_and(|status| status.code().is_some_and(|code| code != 0)),
        "{status:?}"
    );
    standalone.start_again().await?;
    for (name, before) in &written {
        assert_eq!(&api.read(name).await?, before, "{name}");
    }
    // Writes work again.
    api.create("later").await?;
    Ok(())
}

/// The limit for the bytes of all objects, and its reserve.
const OBJECTS: f64 = 1_048_576.0;
const RESERVE: f64 = OBJECTS / 4.0;

async fn object_bytes(caller: &Caller) -> Result<f64> {
    let text = caller.get("/metrics").await?.text();
    let line = text
        .lines()
        .find(|line| line.starts_with("drydock_storage_object_bytes "))
        .context("the metric")?;
    let number = line.rsplit(' ').next().context("a number")?;
    Ok(number.parse()?)
}

/// Conditions of about this many bytes.
fn conditions(bytes: usize) -> Value {
    const MESSAGE: usize = 16_384;
    let condition = |index| {
        json!({ "type": format!("example.com/C{index}"), "status": "True", "reason": "Test",
            "message": "m".repeat(MESSAGE), "lastTransitionTime": "2026-01-01T00:00:00Z" })
    };
    let all: Vec<Value> = (0..bytes.div_ceil(MESSAGE)).map(condition).collect();
    json!({ "status": { "conditions": all } })
}

#[tokio::test]
async fn statuses_and_terminating_objects_stay_within_the_reserve() -> Result<()> {
    let standalone = Standalone::start_with(&["--storage-object-bytes-limit", "1Mi"]).await?;
    let api = Endpoint::in_default(standalone.caller(Protocol::Http2)?);
    let mut paths = Vec::new();
    for _ in 0..60 {
        let mut request = api.request();
        request["metadata"]["finalizers"] = json!(["example.com/hold"]);
        let created = api.caller.post(&api.requests(), &request).await?.expect(201)?;
        let name = created["metadata"]["name"].as_str().context("a name")?;
        paths.push(format!("{}/{name}", api.requests()));
    }
    let (last, others) = paths.split_last().context("requests")?;
    // Each status has room for 1 MiB as long as the store is not full.
    let mut refused = 0;
    for path in others {
        for bytes in [10_000, 30_000, 200_000] {
            let path = format!("{path}/status");
            let response = api.caller.patch(&path, MERGE_PATCH, &conditions(bytes)).await?;
            ensure!([200, 503].contains(&response.status), "{}", response.text());
            refused += usize::from(response.status == 503);
        }
    }
    ensure!(refused > 20, "{refused}");
    // Terminating objects do not grow either, except by their deletion timestamp.
    for path in &paths {
        api.caller.delete(path).await?.expect(200)?;
        let more = json!({ "metadata": { "annotations": { "a": "x".repeat(100_000) } } });
        api.caller.patch(path, MERGE_PATCH, &more).await?.expect(503)?;
    }
    let found = object_bytes(&api.caller).await?;
    ensure!(
        (OBJECTS..OBJECTS + RESERVE + 64_000.0).contains(&found),
        "{found}"
    );
    // What leads to a removal goes on, and makes room.
    let free = json!({ "metadata": { "finalizers": [] } });
    for path in others {
        api.caller.patch(path, MERGE_PATCH, &free).await?.expect(200)?;
    }
    let path = format!("{last}/status");
    api.caller
        .patch(&path, MERGE_PATCH, &conditions(200_000))
        .await?
        .expect(200)?;
    Ok(())
}
