//! A large drain that is called off while pods are still being requested to leave.

use std::collections::HashSet;

use anyhow::{Result, ensure};
use drydock_tests::calls::Caller;
use serde_json::Value;

use super::arena::{Arena, Drain};
use crate::stage::requests_of;

async fn items(host: &Caller, path: &str) -> Result<Vec<Value>> {
    let list = host.get(path).await?.expect(200)?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

/// Half of the pods have an interceptor for whom nobody acts, so their requests are active when they are withdrawn.
pub(super) async fn requests_canceled_in_mid_drain(arena: &Arena<'_>, pods: usize) -> Result<()> {
    let drain = Drain::prepare(arena, "called-off").await?;
    drain.add_pods(pods, |number| number % 2 == 0).await?;
    drain.start().await?;
    let requests = requests_of(&drain.name);
    arena
        .eventually("a part of the pods to be requested", async || {
            Ok((items(&drain.host, &requests).await?.len() > pods / 10).then_some(()))
        })
        .await?;
    drain.ends_exactly().await?;

    // From its end on, no pod is requested, and those that were not evicted stay.
    let ended = drain.ended_requests().await?;
    drain.every_eviction_was_requested().await?;
    let path = format!("/api/v1/namespaces/{}/pods", drain.name);
    let left: HashSet<String> = arena
        .eventually("evicted pods to go", async || {
            let left = items(&drain.host, &path).await?;
            let leaving = left
                .iter()
                .find(|pod| !pod["metadata"]["deletionTimestamp"].is_null());
            ensure!(leaving.is_none(), "{leaving:?}");
            let names = left.iter().filter_map(|pod| pod["metadata"]["name"].as_str());
            Ok(Some(names.map(str::to_owned).collect()))
        })
        .await?;
    let evictions = arena.evictions(&drain.name)?;
    ensure!(
        left.len() + evictions.len() == pods,
        "{} left, {} evicted",
        left.len(),
        evictions.len()
    );
    for pod in &left {
        ensure!(!evictions.contains_key(pod), "{pod} was evicted and is there");
    }
    let guarded = (0..pods).step_by(2).map(|number| format!("pod-{number}"));
    for pod in guarded {
        ensure!(
            left.contains(&pod),
            "{pod} is gone, and its interceptor has not completed"
        );
    }
    let again = items(&drain.host, &requests).await?;
    ensure!(
        again.len() == ended.len(),
        "{} requests, {} before",
        again.len(),
        ended.len()
    );
    Ok(())
}
