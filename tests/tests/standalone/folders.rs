//! Data folders that the server rejects, and its messages.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context as _, Result};
use drydock_tests::cluster::own_binaries;
use drydock_tests::standalone::Standalone;
use tempfile::TempDir;
use tokio::process::Command;

/// More than the time that the server waits for a locked store.
const PATIENCE: Duration = Duration::from_mins(1);

async fn run(arguments: &[&str], data: &Path) -> Result<Output> {
    let mut command = Command::new(own_binaries().await?.join("drydock-apiserver"));
    command
        .args(arguments)
        .arg("--data-dir")
        .arg(data)
        .kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await;
    output.context("it exits in time")?.context("it runs")
}

/// Runs it and checks that it fails with a last line that contains all of `expected`.
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
async fn an_unwritable_folder_is_named() -> Result<()> {
    let folder = TempDir::new()?;
    let kubeconfig = folder.path().join("kubeconfig").display().to_string();
    let serve = [
        "standalone",
        "--bind-address=127.0.0.1",
        "--secure-port=0",
        "--write-kubeconfig",
        &kubeconfig,
    ];
    // Not even root can create folders there.
    let unwritable = Path::new("/sys/drydock/data");
    check(&serve, unwritable, &["cannot use /sys/drydock"]).await?;
    let file = folder.path().join("file");
    std::fs::write(&file, "not a folder")?;
    check(&serve, &file, &["cannot use", &file.display().to_string()]).await?;
    assert_eq!(std::fs::read_to_string(&file)?, "not a folder");
    Ok(())
}

#[tokio::test]
async fn tmpfs_is_rejected_unless_a_flag_allows_it() -> Result<()> {
    let memory = Path::new("/dev/shm");
    if !memory.is_dir() {
        println!("skipped: no /dev/shm");
        return Ok(());
    }
    let folder = TempDir::new_in(memory)?;
    let export = folder.path().join("export").display().to_string();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    // A store to export, created with the flag.
    let standalone = Standalone::start_with(&[
        "--data-dir",
        &source.display().to_string(),
        "--storage-any-file-system",
    ])
    .await?;
    standalone.stop().await?;
    check(&["storage", "export", "--to", &export], &source, &["tmpfs"]).await?;
    let allowed = ["storage", "export", "--storage-any-file-system", "--to", &export];
    assert!(run(&allowed, &source).await?.status.success());
    check(&["storage", "import", "--from", &export], &target, &["tmpfs"]).await
}

#[tokio::test]
async fn the_process_that_holds_a_store_is_named() -> Result<()> {
    let standalone = Standalone::start().await?;
    let id = standalone.process_id().context("it runs")?;
    let expected = ["another process holds the store", &format!("pid={id}")];
    check(&["storage", "verify"], &standalone.data(), &expected).await
}
