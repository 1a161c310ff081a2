//! The runbook of `docs/encryption.md`, step by step, on a server of its own.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::clients::{Protocol, eventually};
use drydock_tests::files::files_with;
use drydock_tests::objects::{ROOT, interceptor};
use drydock_tests::standalone::Standalone;
use tempfile::TempDir;
use tokio::process::Command;

use crate::stage::together;

const PATIENCE: Duration = Duration::from_mins(2);
const PAGE: &str = include_str!("../../../docs/encryption.md");

/// The code block of the page that begins with this comment.
fn block(comment: &str) -> Result<String> {
    let start = PAGE.find(comment).with_context(|| comment.to_owned())?;
    let rest = PAGE.get(start..).unwrap_or_default();
    let end = rest.find("```").context("the end of the block")?;
    let lines = rest.get(..end).unwrap_or_default().lines();
    // Blocks in a list are indented by three.
    let lines = lines.map(|line| line.strip_prefix("   ").unwrap_or(line));
    Ok(lines.collect::<Vec<_>>().join("\n"))
}

async fn run(script: &str, folder: &Path, kubeconfig: &Path, kubectl: &Path) -> Result<Output> {
    let commands = kubectl.parent().context("the folder of kubectl")?.display();
    let others = std::env::var("PATH").unwrap_or_default();
    let script = Command::new("bash")
        .args(["-euo", "pipefail", "-c", script])
        .current_dir(folder)
        .env("KUBECONFIG", kubeconfig)
        .env("HOME", folder)
        .env("PATH", format!("{commands}:{others}"))
        .kill_on_drop(true)
        .output();
    Ok(tokio::time::timeout(PATIENCE, script)
        .await
        .context("in time")??)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_runbook_replaces_a_key() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let kubectl = stage.kubectl().binary;
    let folder = TempDir::new()?;
    let file = folder.path().join("encryption.yaml");
    let put = |step: &str| -> Result<()> {
        let next = folder.path().join("next");
        std::fs::write(&next, block(step)?)?;
        std::fs::rename(next, &file)?;
        Ok(())
    };
    put("# step 1")?;
    let configuration = format!("--encryption-provider-config={}", file.display());
    let reload = "--encryption-provider-config-automatic-reload";
    let server = Standalone::start_with(&[&configuration, reload]).await?;
    let caller = server.caller(Protocol::Http2)?;
    for number in 0..3 {
        let object = interceptor(&format!("runbook-{number}.example.com"), "runbook");
        caller
            .post(&format!("{ROOT}/evictioninterceptors"), &object)
            .await?
            .expect(201)?;
    }
    let sealed_with = |key: &str| files_with(&server.data(), &format!("k8s:enc:secretbox:v1:{key}:"));
    ensure!(!sealed_with("old")?.is_empty() && sealed_with("new")?.is_empty());
    let reloads = async || {
        let page = caller.get("/metrics").await?;
        let page = page.text();
        let success = page.lines().find(|line| {
            line.starts_with(
                "apiserver_encryption_config_controller_automatic_reloads_total{status=\"success\"",
            )
        });
        let count = success.and_then(|line| line.rsplit(' ').next()).unwrap_or("0");
        Ok::<u64, anyhow::Error>(count.parse()?)
    };
    put("# step 2")?;
    eventually("step 2 in force", PATIENCE, async || {
        Ok((reloads().await? == 1).then_some(()))
    })
    .await?;
    let output = run(
        &block("# rewrite: while the servers run")?,
        folder.path(),
        &server.kubeconfig(),
        &kubectl,
    )
    .await?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{text}");
    ensure!(!sealed_with("new")?.is_empty());
    put("# step 4")?;
    eventually("step 4 in force", PATIENCE, async || {
        Ok((reloads().await? == 2).then_some(()))
    })
    .await?;
    server.stop().await?;
    server.start_again().await?;
    let list = caller
        .get(&format!("{ROOT}/evictioninterceptors"))
        .await?
        .expect(200)?;
    ensure!(list["items"].as_array().context("items")?.len() == 3, "{list}");
    server.stop().await?;
    Ok(())
}
