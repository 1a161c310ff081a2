//! The controller that reaches drydock-apiserver itself, as the manifests configure it.

use anyhow::{Context as _, Result, ensure};
use drydock_tests::clients::eventually;
use drydock_tests::cluster::{Part, Road};

use crate::stage::{PATIENCE, alone, eviction_request};

const NAMESPACE: &str = "direct";

/// The controller carries out a request, and nothing that concerns requests goes through kube-apiserver.
#[tokio::test]
async fn controller_reaches_the_server_without_the_aggregator() -> Result<()> {
    let Some(stage) = alone().await? else {
        return Ok(());
    };
    let (drydock, kubectl) = (stage.drydock, stage.kubectl());
    stage.namespace(NAMESPACE).await?;
    let uid = stage.pod(NAMESPACE, "web").await?;
    drydock.stop_part(Part::Controller).await?;
    let log = stage.control_plane().audit_log();
    let before = std::fs::metadata(&log).context("find the audit log")?.len();
    drydock.start_controller(Road::Direct).await?;
    kubectl
        .apply(&eviction_request(NAMESPACE, "web", &uid).to_string())
        .await?;
    let name = format!("evictionrequest/{uid}");
    kubectl.wait(&name, NAMESPACE, "condition=Evicted").await?;
    drydock.stop_part(Part::Controller).await?;

    let text = eventually("the audit log", PATIENCE, async || {
        let text = std::fs::read(&log).context("read the audit log")?;
        let since = usize::try_from(before).context("a file that fits into memory")?;
        let text = String::from_utf8_lossy(text.get(since..).unwrap_or_default()).into_owned();
        // The eviction did go through kube-apiserver.
        Ok(text.contains("pods/web/eviction").then_some(text))
    })
    .await?;
    let proxied: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("system:serviceaccount:drydock-system:drydock-controller"))
        .filter(|line| line.contains("/apis/coordination.k8s.io/v1alpha3"))
        .collect();
    ensure!(proxied.is_empty(), "went through the aggregator: {proxied:?}");
    drydock.start_part(Part::Controller).await?;
    kubectl
        .ok(&["delete", "namespace", NAMESPACE, "--wait=false"])
        .await?;
    Ok(())
}
