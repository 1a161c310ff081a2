//! Does the official Python client work with our kinds? Its story is `tests/clients/python/story.py`.

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
    let made = Command::new(folder.join("build.sh"))
        .stderr(Stdio::inherit())
        .output()
        .await?;
    ensure!(
        made.status.success(),
        "there is no Python environment: see standard error"
    );
    let told = Command::new(String::from_utf8(made.stdout)?.trim_end())
        .arg(folder.join("story.py"))
        .arg(stage.control_plane().admin_kubeconfig())
        .env_remove("HTTPS_PROXY")
        .env_remove("https_proxy")
        .kill_on_drop(true)
        .output();
    let told = timeout(PATIENCE, told).await.context("the story did not end")??;
    let (said, complained) = (
        String::from_utf8_lossy(&told.stdout),
        String::from_utf8_lossy(&told.stderr),
    );
    ensure!(told.status.success() && said == "done\n", "{said}{complained}");
    Ok(())
}
