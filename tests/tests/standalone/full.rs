//! Does the server say that it cannot write, and end, when the disk is full?

use anyhow::{Context as _, Result, ensure};
use drydock_tests::clients::Protocol;
use drydock_tests::conformance::Road;
use drydock_tests::standalone::Standalone;
use serde_json::{Value, json};

/// So many bytes of hexadecimal digits in an annotation: they hardly compress.
const BYTES: usize = 100_000;
/// The log of the engine reaches it after a few objects, the server's own output never.
const LIMIT: u64 = 1_000_000;

fn noise(random: &mut fastrand::Rng) -> String {
    std::iter::repeat_with(|| format!("{:016x}", random.u64(..)))
        .take(BYTES / 16)
        .collect()
}

#[tokio::test]
async fn a_full_disk_is_told_and_ends_the_server_and_what_was_answered_stays() -> Result<()> {
    let standalone = Standalone::start().await?;
    let road = Road {
        caller: standalone.caller(Protocol::Http2)?,
        namespace: "default".to_owned(),
        through_host: false,
    };
    let mut written: Vec<(String, Value)> = Vec::new();
    standalone.limit_files(LIMIT)?;
    let mut random = fastrand::Rng::with_seed(1);
    let mut refused = None;
    for number in 0..100 {
        let name = format!("m{number}");
        let mut object = road.maintenance(&name);
        object["metadata"]["annotations"] = json!({ "example.com/noise": noise(&mut random) });
        let answer = road.caller.post(&road.maintenances(), &object).await?;
        if answer.status != 201 {
            refused = Some(answer);
            break;
        }
        written.push((name, answer.json()?));
    }
    // Nobody knows whether it happened, so it is no success and no refusal that one may rely on.
    let refused = refused.context("the disk was never full")?;
    let text = refused.text();
    ensure!(
        refused.status >= 500 && text.contains("may or may not have been stored"),
        "{text}"
    );
    ensure!(!written.is_empty(), "nothing was written before");

    let status = standalone.ended().await?;
    ensure!(
        status.is_some_and(|status| status.code().is_some_and(|code| code != 0)),
        "{status:?}"
    );
    standalone.start_again().await?;
    for (name, before) in &written {
        assert_eq!(&road.read(name).await?, before, "{name}");
    }
    // There is room again.
    road.create("later").await?;
    Ok(())
}
