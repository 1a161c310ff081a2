//! The conformance suite on a real control plane: direct over HTTP/1.1 and HTTP/2, and through kube-apiserver.

use anyhow::Result;
use drydock_tests::clients::Protocol;
use drydock_tests::conformance::Endpoint;
use drydock_tests::conformance_suite;

use crate::stage::{Stage, together};

async fn endpoints(rule: &str) -> Result<(Option<Stage>, Vec<Endpoint>)> {
    let Some(stage) = together().await? else {
        return Ok((None, Vec::new()));
    };
    let host = stage.host()?;
    let h1 = stage.unmanaged(Protocol::Http1).await?;
    let h2 = stage.unmanaged(Protocol::Http2).await?;
    let through_host = Endpoint {
        through_host: true,
        ..Endpoint::new(host.clone(), &host, rule, "kube").await?
    };
    let endpoints = vec![
        Endpoint::new(h1, &host, rule, "h1").await?,
        Endpoint::new(h2, &host, rule, "h2").await?,
        through_host,
    ];
    Ok((Some(stage), endpoints))
}

conformance_suite!(endpoints);
