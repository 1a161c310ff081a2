//! The runbook of `docs/encryption.md`, step by step, on a cluster of its own.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::Caller;
use drydock_tests::clients::{Protocol, eventually};
use drydock_tests::cluster::{ControlPlane, Drydock, Options, Part, shared};
use drydock_tests::files::files_with;
use drydock_tests::objects::{ROOT, interceptor};
use serde_json::json;
use tempfile::TempDir;
use tokio::process::Command;

const PATIENCE: Duration = Duration::from_mins(2);
/// What must not be on any disk.
const MARKER: &str = "qZx9vKw2-marker-7Hd3pLs8";
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

/// The file of the flag, which the steps of the page replace at once.
struct File(TempDir);

impl File {
    fn path(&self) -> PathBuf {
        self.0.path().join("encryption.yaml")
    }

    fn put(&self, step: &str) -> Result<()> {
        let next = self.0.path().join("next");
        std::fs::write(&next, block(step)?)?;
        std::fs::rename(next, self.path())?;
        Ok(())
    }
}

fn interceptors() -> String {
    format!("{ROOT}/evictioninterceptors")
}

async fn all_are_read(host: &Caller) -> Result<()> {
    let list = host.get(&interceptors()).await?.expect(200)?;
    let items = list["items"].as_array().context("items")?;
    ensure!(items.len() == 3, "{list}");
    for item in items {
        ensure!(
            item["metadata"]["annotations"]["example.com/note"] == MARKER,
            "{item}"
        );
        let name = item["metadata"]["name"].as_str().context("a name")?;
        host.get(&format!("{}/{name}", interceptors()))
            .await?
            .expect(200)?;
    }
    Ok(())
}

/// Waits until the server has put another file into force for the nth time.
async fn in_force(server: &Caller, times: u64) -> Result<()> {
    eventually("another file in force", PATIENCE, async || {
        let page = server.get("/metrics").await?;
        let page = page.text();
        let success = page.lines().find(|line| {
            line.starts_with(
                "apiserver_encryption_config_controller_automatic_reloads_total{status=\"success\"",
            )
        });
        let count = success.and_then(|line| line.rsplit(' ').next()).unwrap_or("0");
        Ok((count.parse::<u64>()? == times).then_some(()))
    })
    .await
}

/// Behind the aggregator: what clients of kube-apiserver write is sealed, and stays readable for them while the key is replaced
/// and after a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_runbook_replaces_a_key() -> Result<()> {
    if shared().await?.is_none() {
        return Ok(());
    }
    let file = File(TempDir::new()?);
    file.put("# step 1")?;
    // A control plane of its own, since the values of this one need the key from now on.
    let options = Options {
        server_flags: vec![
            format!("--encryption-provider-config={}", file.path().display()),
            "--encryption-provider-config-automatic-reload".to_owned(),
        ],
        ..Options::default()
    };
    let control_plane = ControlPlane::start(options).await?;
    let drydock = Drydock::start(&control_plane).await?;
    let admin = &control_plane.pki().admin;
    let host = Caller::new(control_plane.raw_client(Some(admin))?);
    let direct = Caller::new(drydock.raw_client(Some(admin), Protocol::Http2)?);
    for number in 0..3 {
        let mut object = interceptor(&format!("runbook-{number}.example.com"), "runbook");
        object["metadata"]["annotations"] = json!({ "example.com/note": MARKER });
        host.post(&interceptors(), &object).await?.expect(201)?;
    }
    let data = drydock.data_dir();
    let sealed_with = |key: &str| files_with(&data, &format!("k8s:enc:secretbox:v1:{key}:"));
    all_are_read(&host).await?;
    ensure!(files_with(&data, MARKER)?.is_empty(), "in clear");
    ensure!(!sealed_with("old")?.is_empty() && sealed_with("new")?.is_empty());
    file.put("# step 2")?;
    in_force(&direct, 1).await?;
    let output = run(
        &block("# rewrite: while the servers run")?,
        file.0.path(),
        &control_plane.admin_kubeconfig(),
        &control_plane.admin().binary,
    )
    .await?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{text}");
    ensure!(!sealed_with("new")?.is_empty());
    file.put("# step 4")?;
    in_force(&direct, 2).await?;
    drydock.stop_part(Part::ApiServer).await?;
    drydock.start_part(Part::ApiServer).await?;
    drydock.available().await?;
    all_are_read(&host).await?;
    ensure!(files_with(&data, MARKER)?.is_empty(), "in clear");
    // The probes of the manifests pass, and the check that they leave out is there.
    for path in ["/livez?exclude=kms-providers", "/readyz", "/readyz/kms-providers"] {
        ensure!(direct.get(path).await?.status == 200, "{path}");
    }
    Ok(())
}
