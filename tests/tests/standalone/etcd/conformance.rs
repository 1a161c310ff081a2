//! The conformance suite against a server over etcd, over HTTP/1.1 and HTTP/2.

use anyhow::Result;
use drydock_tests::clients::Protocol;
use drydock_tests::cluster::Etcd;
use drydock_tests::conformance::Endpoint;
use drydock_tests::conformance_suite;
use drydock_tests::standalone::Standalone;
use tokio::sync::OnceCell;

/// The server that all rules share; it ends before its etcd.
static SHARED: OnceCell<(Standalone, Etcd)> = OnceCell::const_new();

async fn endpoints(rule: &str) -> Result<((), Vec<Endpoint>)> {
    let start = async || {
        let etcd = Etcd::start().await?;
        anyhow::Ok((super::server(&etcd).await?, etcd))
    };
    let (standalone, _) = SHARED.get_or_try_init(start).await?;
    let mut endpoints = Vec::new();
    for (suffix, protocol) in [("h1", Protocol::Http1), ("h2", Protocol::Http2)] {
        let caller = standalone.caller(protocol)?;
        endpoints.push(Endpoint::new(caller.clone(), &caller, rule, suffix).await?);
    }
    Ok(((), endpoints))
}

conformance_suite!(endpoints);
