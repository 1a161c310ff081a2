//! The conformance suite against a server in standalone mode, over HTTP/1.1 and HTTP/2.

use anyhow::Result;
use drydock_tests::clients::Protocol;
use drydock_tests::conformance::Endpoint;
use drydock_tests::conformance_suite;
use drydock_tests::standalone::shared;

async fn endpoints(rule: &str) -> Result<((), Vec<Endpoint>)> {
    let standalone = shared().await?;
    let mut endpoints = Vec::new();
    for (suffix, protocol) in [("h1", Protocol::Http1), ("h2", Protocol::Http2)] {
        let caller = standalone.caller(protocol)?;
        endpoints.push(Endpoint::new(caller.clone(), &caller, rule, suffix).await?);
    }
    Ok(((), endpoints))
}

conformance_suite!(endpoints);
