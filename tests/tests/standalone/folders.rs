//! Which folders does the server refuse, and does it say why?

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context as _, Result};
use drydock_tests::cluster::own_binaries;
use drydock_tests::standalone::Standalone;
use tempfile::TempDir;
use tokio::process::Command;

/// Longer than a held store is waited for.
const PATIENCE: Duration = Duration::from_mins(1);

async fn run(arguments: &[&str], data: &Path) -> Result<Output> {
    let mut command = Command::new(own_binaries().await?.join("drydock-apiserver"));
    command
        .args(arguments)
        .arg("--data-dir")
        .arg(data)
        .kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await;
    output.context("it refuses soon")?.context("it runs")
}

/// It ends with a failure and one line that says so much.
async fn check(arguments: &[&str], data: &Path, expected: &[&str]) -> Result<()> {
    let output = run(arguments, data).await?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let last = text.lines().last().unwrap_or_default();
    for part in expected {
        assert!(last.contains(part), "{part:?} is missing in {text}");
    }
    Ok(())
}

#[tokio::test]
async fn a_folder_that_cannot_be_written_is_named() -> Result<()> {
    let folder = TempDir::new()?;
    let kubeconfig = folder.path().join("kubeconfig").display().to_string();
    let serve = [
        "standalone",
        "--bind-address=127.0.0.1",
        "--secure-port=0",
        "--write-kubeconfig",
        &kubeconfig,
    ];
    // Nobody, root neither, makes folders there.
    let nobodys = Path::new("/sys/drydock/data");
    check(&serve, nobodys, &["cannot use /sys/drydock"]).await?;
    let file = folder.path().join("file");
    std::fs::write(&file, "not a folder")?;
    check(&serve, &file, &["cannot use", &file.display().to_string()]).await?;
    assert_eq!(std::fs::read_to_string(&file)?, "not a folder");
    Ok(())
}

#[tokio::test]
async fn a_disk_in_memory_is_refused_unless_the_risk_is_taken() -> Result<()> {
    let memory = Path::new("/dev/shm");
    if !memory.is_dir() {
        println!("no disk in memory here");
        return Ok(());
    }
    let folder = TempDir::new_in(memory)?;
    let export = folder.path().join("export").display().to_string();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    // A store to begin with, made where the risk was taken.
    let standalone = Standalone::start_with(&[
        "--data-dir",
        &source.display().to_string(),
        "--storage-any-file-system",
    ])
    .await?;
    standalone.stop().await?;
    check(&["storage", "export", "--to", &export], &source, &["tmpfs"]).await?;
    let taken = ["storage", "export", "--storage-any-file-system", "--to", &export];
    assert!(run(&taken, &source).await?.status.success());
    check(&["storage", "import", "--from", &export], &target, &["tmpfs"]).await
}

#[tokio::test]
async fn a_store_that_is_in_use_names_its_holder() -> Result<()> {
    let standalone = Standalone::start().await?;
    let id = standalone.process_id().context("it runs")?;
    let expected = ["another process holds the store", &format!("pid={id}")];
    check(&["storage", "verify"], &standalone.data(), &expected).await
}
