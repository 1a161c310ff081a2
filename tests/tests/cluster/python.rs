//! The official Python client with our kinds: runs `tests/clients/python/client.py`.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;
use tokio::time::timeout;

use crate::stage::{PATIENCE, together};

#[tokio::test]
async fn the_python_client_creates_patches_watches_and_deletes() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/python");
    let built = Command::new(folder.join("build.sh"))
        .stderr(Stdio::inherit())
        .output()
        .await?;
    ensure!(
        built.status.success(),
        "the Python environment could not be built: see standard error"
    );
    let output = Command::new(String::from_utf8(built.stdout)?.trim_end())
        .arg(folder.join("client.py"))
        .arg(stage.control_plane().admin_kubeconfig())
        .env_remove("HTTPS_PROXY")
        .env_remove("https_proxy")
        .kill_on_drop(true)
        .output();
    let output = timeout(PATIENCE, output)
        .await
        .context("the client did not end")??;
    let (printed, error) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(output.status.success() && printed == "done\n", "{printed}{error}");
    Ok(())
}
