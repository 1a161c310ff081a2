//! On a full disk the server reports the failed write, exits, and keeps what it acknowledged.

use anyhow::{Context as _, Result, ensure};
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
