//! The commands of `docs/etcd.md`: moving to etcd and back, and restoring a backup.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::Watch;
use drydock_tests::clients::Protocol;
use drydock_tests::cluster::{EtcdMembers, own_binaries};
use drydock_tests::conformance::{Endpoint, version};
use drydock_tests::standalone::Standalone;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_mins(1);
const NO_WAIT: &str = "--unsafe-no-fsync";

/// The shell commands below a heading of the page, block by block.
fn blocks<const N: usize>(heading: &str) -> Result<[String; N]> {
    let page = include_str!("../../../../docs/etcd.md");
    let (_, section) = page
        .split_once(&format!("\n{heading}\n"))
        .with_context(|| format!("the page has no {heading}"))?;
    // To the next heading, of any level.
    let (section, _) = section.split_once("\n#").unwrap_or((section, ""));
    let blocks = section.split("```sh\n").skip(1);
    let blocks: Vec<String> = blocks
        .filter_map(|block| block.split_once("```"))
        .map(|(block, _)| block.to_owned())
        .collect();
    let count = blocks.len();
    blocks
        .try_into()
        .ok()
        .with_context(|| format!("{heading} has {count} blocks"))
}

/// Runs a block as an operator at the machine of a member.
async fn run(
    block: &str,
    members: &EtcdMembers,
    member: usize,
    folder: &Path,
    more: &[(&str, &Path)],
) -> Result<()> {
    let mut path = std::ffi::OsString::from(own_binaries().await?);
    path.push(":");
    path.push(members.binaries());
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", block])
        .current_dir(folder)
        .env("PATH", path)
        .envs(members.environment(member)?)
        .envs(more.iter().copied())
        .kill_on_drop(true)
        .output();
    let output = timeout(PATIENCE, output)
        .await
        .context("the commands do not end")??;
    ensure!(
        output.status.success(),
        "{block}\n{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// All maintenances by name, without their revisions, and the revision of the list.
async fn objects(endpoint: &Endpoint) -> Result<(BTreeMap<String, Value>, u64)> {
    let mut list = endpoint.caller.get(&endpoint.maintenances()).await?.expect(200)?;
    let revision = version(&list)?;
    let items = list["items"].as_array_mut().context("items")?;
    let mut objects = BTreeMap::new();
    for item in items {
        ensure!(version(item)? <= revision, "{item} is newer than its list");
        let metadata = item["metadata"].as_object_mut().context("metadata")?;
        metadata.remove("resourceVersion");
        let name = metadata["name"].as_str().context("a name")?.to_owned();
        objects.insert(name, item.clone());
    }
    Ok((objects, revision))
}

/// Revisions are above all that clients knew, and a watch from one of these is told to list again.
async fn is_above(endpoint: &Endpoint, known: u64) -> Result<()> {
    let list = endpoint.caller.get(&endpoint.maintenances()).await?.expect(200)?;
    for item in list["items"].as_array().context("items")?.iter().chain([&list]) {
        ensure!(version(item)? > 0, "{item}");
    }
    ensure!(version(&list)? > known, "the list is at {}", version(&list)?);
    let expired = |status: &Value| status["code"] == 410;
    let path = format!("{}?watch=true&resourceVersion={known}", endpoint.maintenances());
    let watch: Result<Watch> = endpoint.caller.watch(&path).await;
    match watch {
        Ok(mut watch) => {
            let event = timeout(PATIENCE, watch.next()).await??.context("an event")?;
            ensure!(event["type"] == "ERROR" && expired(&event["object"]), "{event}");
        }
        Err(error) => ensure!(error.to_string().contains("410"), "{error:#}"),
    }
    let created = endpoint.create(&format!("after-{known}")).await?;
    ensure!(version(&created)? > known, "{created}");
    Ok(())
}

fn endpoint(server: &Standalone) -> Result<Endpoint> {
    Ok(Endpoint::in_default(server.caller(Protocol::Http2)?))
}

async fn stop(server: &Standalone) -> Result<()> {
    let status = server.stop().await?.context("it runs")?;
    ensure!(status.success(), "{status}");
    Ok(())
}

async fn on_etcd(members: &EtcdMembers) -> Result<Standalone> {
    let flags = members.server_flags();
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    Standalone::start_with(&flags).await
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_move_to_etcd_and_back_as_the_page_says() -> Result<()> {
    let [export, snapshot, raise, import] = blocks("### To etcd")?;
    let [back] = blocks("### Back to the embedded store")?;
    let folder = tempfile::tempdir()?;
    let members = EtcdMembers::start(1, &[NO_WAIT]).await?;
    let source = Standalone::start().await?;
    let at_source = endpoint(&source)?;
    for number in 0..20 {
        at_source.create(&format!("moved-{number}")).await?;
    }
    let labels = json!({ "metadata": { "labels": { "changed": "yes" } } });
    at_source.merge("moved-3", &labels).await?.expect(200)?;
    let (expected, newest) = objects(&at_source).await?;
    stop(&source).await?;

    let data = source.data();
    run(&export, &members, 0, folder.path(), &[("DATA_DIR", &data)]).await?;
    run(&snapshot, &members, 0, folder.path(), &[]).await?;
    members.kill(0);
    run(&raise, &members, 0, folder.path(), &[]).await?;
    members.start_member(0)?;
    members.healthy().await?;
    run(&import, &members, 0, folder.path(), &[]).await?;
    let moved = on_etcd(&members).await?;
    let at_etcd = endpoint(&moved)?;
    let (found, _) = objects(&at_etcd).await?;
    ensure!(found == expected, "{found:?} instead of {expected:?}");
    is_above(&at_etcd, newest).await?;
    let (expected, newest) = objects(&at_etcd).await?;
    stop(&moved).await?;

    let new = folder.path().join("new");
    run(&back, &members, 0, folder.path(), &[("NEW_DATA_DIR", &new)]).await?;
    let returned = Standalone::start_with(&["--data-dir", &new.display().to_string()]).await?;
    let at_home = endpoint(&returned)?;
    let (found, _) = objects(&at_home).await?;
    ensure!(found == expected, "{found:?} instead of {expected:?}");
    is_above(&at_home, newest).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_restored_as_the_page_says() -> Result<()> {
    let [save, restore] = blocks("## Backups")?;
    let folder = tempfile::tempdir()?;
    let members = EtcdMembers::start(3, &[NO_WAIT]).await?;
    let servers = [on_etcd(&members).await?, on_etcd(&members).await?];
    let [one, two] = [endpoint(&servers[0])?, endpoint(&servers[1])?];
    for number in 0..5 {
        one.create(&format!("kept-{number}")).await?;
    }
    let (expected, _) = objects(&one).await?;
    run(&save, &members, 1, folder.path(), &[]).await?;
    two.create("too-late").await?;
    two.caller.delete(&two.path("kept-0")).await?.expect(200)?;
    let (_, newest) = objects(&two).await?;
    for server in &servers {
        stop(server).await?;
    }
    for member in 0..members.count() {
        members.kill(member);
    }
    for member in 0..members.count() {
        run(&restore, &members, member, folder.path(), &[]).await?;
        members.start_member(member)?;
    }
    members.healthy().await?;
    for server in &servers {
        server.start_again().await?;
        let (found, _) = objects(&endpoint(server)?).await?;
        ensure!(found == expected, "{found:?} instead of {expected:?}");
    }
    is_above(&endpoint(&servers[0])?, newest).await
}
