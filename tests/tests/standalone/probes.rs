//! Probes are answered while large requests compute: a kubelet would end the server otherwise.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use drydock_tests::calls::JSON_PATCH;
use drydock_tests::clients::Protocol;
use drydock_tests::objects::{ROOT, interceptor};
use drydock_tests::standalone::Standalone;
use futures_util::future::try_join_all;
use http::Method;
use serde_json::{Value, json};

/// Large requests at once, as many as compute at the same time.
const LANES: usize = 4;
/// How many of them, one after the other.
const ROUNDS: usize = 5;
/// Operations of a patch, as many as are allowed.
const OPERATIONS: usize = 10_000;

/// A probe that had to wait for a large request each time would be answered about once for each. It is answered more often.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_are_answered_while_large_requests_compute() -> Result<()> {
    let server = Standalone::start().await?;
    let caller = server.caller(Protocol::Http2)?;
    let collection = format!("{ROOT}/evictioninterceptors");
    let mut object = interceptor("probes.example.com", "probes");
    object["metadata"]["labels"] = json!({ "a": "0" });
    caller.post(&collection, &object).await?.expect(201)?;
    let operations: Vec<Value> = (0..OPERATIONS)
        .map(|number| json!({ "op": "replace", "path": "/metadata/labels/a", "value": number.to_string() }))
        .collect();
    let patch = Value::from(operations).to_string();
    let target = format!("{collection}/probes.example.com?dryRun=All");
    let finished = AtomicBool::new(false);
    let large = async {
        let lanes = (0..LANES).map(async |_| {
            for _ in 0..ROUNDS {
                let patched = caller
                    .call(Method::PATCH, &target, JSON_PATCH, patch.clone())
                    .await?;
                patched.expect(200)?;
            }
            anyhow::Ok(())
        });
        let outcome = try_join_all(lanes).await;
        finished.store(true, Ordering::Relaxed);
        outcome
    };
    let probes = async {
        let prober = server.caller(Protocol::Http1)?;
        let mut answered = 0;
        while !finished.load(Ordering::Relaxed) {
            ensure!(prober.get("/livez").await?.status == 200);
            answered += 1;
        }
        Ok(answered)
    };
    let (large, answered) = tokio::join!(large, probes);
    large?;
    let answered: usize = answered?;
    ensure!(answered > LANES * ROUNDS, "{answered} probes were answered");
    Ok(())
}
