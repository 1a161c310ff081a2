//! The official Python client with our kinds: runs `tests/clients/python/client.py`.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Result, ensure};
use tokio::process::Command;

use crate::stage::{ends_with_done, together};

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
    let mut client = Command::new(String::from_utf8(built.stdout)?.trim_end());
    client
        .arg(folder.join("client.py"))
        .arg(stage.control_plane().admin_kubeconfig());
    ends_with_done(&mut client).await
}
