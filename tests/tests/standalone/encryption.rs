//! Encryption at rest of a running server: keys that are replaced, lost and found, and a key service that comes and goes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_storage::seal::kms::plugin::{Behaviour, Plugin};
use drydock_tests::calls::{Caller, Response};
use drydock_tests::clients::{Protocol, eventually};
use drydock_tests::cluster::{Etcd, own_binaries};
use drydock_tests::files::files_with;
use drydock_tests::objects::{ROOT, interceptor};
use drydock_tests::standalone::Standalone;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;

/// What must not be on any disk.
const MARKER: &str = "qZx9vKw2-marker-7Hd3pLs8";
/// The reload looks every five seconds, and a key service has ten to become well.
const PATIENCE: Duration = Duration::from_mins(2);

const OLD: &str = "{secretbox: {keys: [{name: old, secret: b2xkb2xkb2xkb2xkb2xkb2xkb2xkb2xkb2xkb2xkb2w=}]}}";
const NEW: &str = "{aesgcm: {keys: [{name: new, secret: bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmV3bmU=}]}}";
const IDENTITY: &str = "{identity: {}}";

/// The file that the server follows.
struct Configuration {
    folder: TempDir,
}

impl Configuration {
    fn new(providers: &[&str]) -> Result<Self> {
        let configuration = Self {
            folder: TempDir::new()?,
        };
        configuration.write(providers)?;
        Ok(configuration)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("encryption.yaml")
    }

    /// Changes the file at once, as a mounted Secret does.
    fn write(&self, providers: &[&str]) -> Result<()> {
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: ['*.coordination.k8s.io']\n  \
             providers: [{}]\n",
            providers.join(", ")
        );
        let next = self.folder.path().join("next");
        std::fs::write(&next, text)?;
        std::fs::rename(next, self.path())?;
        Ok(())
    }

    fn flags(&self) -> [String; 2] {
        [
            format!("--encryption-provider-config={}", self.path().display()),
            "--encryption-provider-config-automatic-reload".to_owned(),
        ]
    }
}

async fn start(configuration: &Configuration, more: &[String]) -> Result<Standalone> {
    let flags = configuration.flags();
    let flags: Vec<&str> = flags.iter().chain(more).map(String::as_str).collect();
    Standalone::start_with(&flags).await
}

fn path(number: usize) -> String {
    format!("{ROOT}/evictioninterceptors/sealed-{number}.example.com")
}

fn collection() -> String {
    format!("{ROOT}/evictioninterceptors")
}

async fn create(caller: &Caller, number: usize) -> Result<Value> {
    let mut object = interceptor(&format!("sealed-{number}.example.com"), "sealed");
    object["metadata"]["annotations"] = serde_json::json!({ "example.com/note": MARKER });
    caller.post(&collection(), &object).await?.expect(201)
}

/// Sends an object as it is; returns its revision before and after.
async fn put_again(caller: &Caller, number: usize) -> Result<(Value, Value)> {
    let object = caller.get(&path(number)).await?.expect(200)?;
    let put = caller.put(&path(number), &object).await?.expect(200)?;
    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
    Ok((version(&object), version(&put)))
}

async fn reloads(caller: &Caller, status: &str) -> Result<u64> {
    let page = caller.get("/metrics").await?;
    let page = page.text();
    let start =
        format!("apiserver_encryption_config_controller_automatic_reloads_total{{status=\"{status}\"");
    let line = page.lines().find(|line| line.starts_with(&start));
    let count = line.and_then(|line| line.rsplit(' ').next());
    Ok(count.map_or(Ok(0), str::parse)?)
}

/// Writes another configuration and waits until it is in force.
async fn put_into_force(caller: &Caller, configuration: &Configuration, providers: &[&str]) -> Result<()> {
    let before = reloads(caller, "success").await?;
    configuration.write(providers)?;
    eventually("another configuration in force", PATIENCE, async || {
        Ok((reloads(caller, "success").await? > before).then_some(()))
    })
    .await
}

/// Checks that a read or a write fails since a value does not open, or cannot be sealed.
fn expect_failure(response: &Response, why: &str) -> Result<()> {
    let status = response.expect(500)?;
    ensure!(status["reason"] == "InternalError", "{status}");
    let message = status["message"].as_str().unwrap_or_default();
    ensure!(
        message.starts_with("Internal error occurred: ") && message.ends_with(why),
        "{message}"
    );
    Ok(())
}

/// The whole life of a key. `search` finds texts where values are stored.
async fn replace_a_key(more: &[String], search: impl Fn(&str) -> Result<bool>) -> Result<()> {
    let configuration = Configuration::new(&[IDENTITY, OLD])?;
    let server = start(&configuration, more).await?;
    let caller = server.caller(Protocol::Http2)?;
    create(&caller, 0).await?;
    ensure!(search(MARKER)?, "nothing is sealed yet, so the search finds it");
    // On: new values are sealed, an old one when it is written again.
    put_into_force(&caller, &configuration, &[OLD, IDENTITY]).await?;
    create(&caller, 1).await?;
    let (before, after) = put_again(&caller, 0).await?;
    ensure!(before != after, "a value in clear is stale");
    ensure!(search("k8s:enc:secretbox:v1:old:")?);
    // A wrong file changes nothing.
    let failures = reloads(&caller, "failure").await?;
    configuration.write(&["{secretbox: {keys: []}}"])?;
    eventually("a refused configuration", PATIENCE, async || {
        Ok((reloads(&caller, "failure").await? > failures).then_some(()))
    })
    .await?;
    let (before, after) = put_again(&caller, 1).await?;
    ensure!(before == after, "it is still sealed with the first key");
    // Another key.
    put_into_force(&caller, &configuration, &[NEW, OLD]).await?;
    for number in 0..2 {
        let (before, after) = put_again(&caller, number).await?;
        ensure!(before != after, "a value under the old key is stale");
        let (before, after) = put_again(&caller, number).await?;
        ensure!(before == after, "once is enough");
    }
    put_into_force(&caller, &configuration, &[NEW]).await?;
    server.stop().await?;
    server.start_again().await?;
    let list = caller.get(&collection()).await?.expect(200)?;
    let names: Vec<_> = list["items"].as_array().context("items")?.iter().collect();
    ensure!(names.len() == 2, "{list}");
    // The wrong key: nothing is absent. The right one again: everything is back, without a restart.
    put_into_force(&caller, &configuration, &[OLD]).await?;
    server.stop().await?;
    server.start_again().await?;
    let why = "data from the storage is not transformable revision=0: no matching prefix found";
    expect_failure(&caller.get(&path(0)).await?, why)?;
    let all = "failed to read one or more evictioninterceptors.coordination.k8s.io from the storage";
    caller
        .get(&collection())
        .await?
        .expect_error(500, "StorageReadError", all)?;
    put_into_force(&caller, &configuration, &[OLD, NEW]).await?;
    eventually("values that open again", PATIENCE, async || {
        let response = caller.get(&collection()).await?;
        Ok((response.status == 200).then_some(()))
    })
    .await?;
    let (before, after) = put_again(&caller, 0).await?;
    ensure!(before != after, "the old key seals again");
    server.stop().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_is_replaced_lost_and_found_without_a_restart() -> Result<()> {
    let data = TempDir::new()?;
    let folder = data.path().join("data");
    let flags = ["--data-dir".to_owned(), folder.display().to_string()];
    replace_a_key(&flags, |text| Ok(!files_with(&folder, text)?.is_empty())).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_of_values_in_etcd_is_replaced_lost_and_found() -> Result<()> {
    let etcd = Etcd::start().await?;
    let folder = etcd.data();
    replace_a_key(&etcd.server_flags(), |text| {
        Ok(!files_with(&folder, text)?.is_empty())
    })
    .await
}

async fn storage(arguments: &[&str], data: &Path, configuration: Option<&Path>) -> Result<Value> {
    let mut command = Command::new(own_binaries().await?.join("drydock-apiserver"));
    command
        .arg("storage")
        .args(arguments)
        .arg("--data-dir")
        .arg(data)
        .arg("--storage-any-file-system")
        .kill_on_drop(true);
    if let Some(configuration) = configuration {
        command.arg("--encryption-provider-config").arg(configuration);
    }
    let output = tokio::time::timeout(PATIENCE, command.output())
        .await
        .context("in time")??;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{arguments:?}: {text}");
    serde_json::from_slice(&output.stdout).context("a report")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sealed_stores_are_rewritten_verified_exported_and_imported() -> Result<()> {
    let configuration = Configuration::new(&[OLD])?;
    let server = start(&configuration, &[]).await?;
    let caller = server.caller(Protocol::Http2)?;
    for number in 0..3 {
        create(&caller, number).await?;
    }
    server.stop().await?;
    let data = server.data();
    ensure!(files_with(&data, MARKER)?.is_empty());
    let file = configuration.path();
    configuration.write(&[NEW, OLD])?;
    let report = storage(&["rewrite"], &data, Some(&file)).await?;
    // The kinds of the embedded host are not sealed.
    ensure!(report["rewritten"] == 3, "{report}");
    let report = storage(&["rewrite"], &data, Some(&file)).await?;
    ensure!(report["rewritten"] == 0, "{report}");
    // Nothing needs the old key any more, history neither.
    configuration.write(&[NEW])?;
    let report = storage(&["verify"], &data, Some(&file)).await?;
    ensure!(report["unopened"] == 0, "{report}");
    let report = storage(&["verify"], &data, None).await?;
    ensure!(report["unopened"].as_u64() >= Some(3), "{report}");
    ensure!(report["damaged"] == serde_json::json!([]), "{report}");
    // What is sealed is not removed as damaged, with no key and with another one.
    let sealed = "coordination.k8s.io/evictioninterceptors//sealed-0.example.com";
    let wrong = Configuration::new(&[OLD])?;
    for configuration in [None, Some(wrong.path())] {
        let refused = storage(&["remove-damaged", sealed], &data, configuration.as_deref()).await;
        let refused = format!("{:#}", refused.unwrap_err());
        ensure!(
            refused.contains("is sealed and does not open")
                && refused.contains("--encryption-provider-config"),
            "{refused}"
        );
    }
    let report = storage(&["verify"], &data, Some(&file)).await?;
    ensure!(report["unopened"] == 0, "{report}");

    let folder = TempDir::new()?;
    let export = folder.path().join("all.export");
    let imported = folder.path().join("imported");
    let (to, from) = (export.display().to_string(), export.display().to_string());
    let refused = storage(&["export", "--to", &to], &data, None).await.unwrap_err();
    ensure!(
        format!("{refused:#}").contains("identity transformer tried to read encrypted data"),
        "{refused:#}"
    );
    storage(&["export", "--to", &to], &data, Some(&file)).await?;
    let refused = storage(&["import", "--from", &from], &folder.path().join("none"), None).await;
    let refused = format!("{:#}", refused.unwrap_err());
    ensure!(
        refused.contains("Give --encryption-provider-config with its key"),
        "{refused}"
    );
    storage(&["import", "--from", &from], &imported, Some(&file)).await?;
    ensure!(files_with(folder.path(), MARKER)?.is_empty());
    let flags = configuration.flags();
    let imported = imported.display().to_string();
    let server = Standalone::start_with(&[&flags[0], "--data-dir", &imported]).await?;
    let caller = server.caller(Protocol::Http2)?;
    for number in 0..3 {
        let object = caller.get(&path(number)).await?.expect(200)?;
        ensure!(
            object["metadata"]["annotations"]["example.com/note"] == MARKER,
            "{object}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_wrong_configuration_prevents_the_start_and_is_explained() -> Result<()> {
    let configuration = Configuration::new(&["{aesgcm: {keys: [{name: k, secret: c2hvcnQ=}]}}"])?;
    let data = TempDir::new()?;
    let refused = storage(&["verify"], data.path(), Some(&configuration.path())).await;
    let refused = format!("{:#}", refused.unwrap_err());
    for part in [
        "resources[0].providers[0].aesgcm.keys[0].secret: Invalid value: \"REDACTED\"",
        "secret is not of the expected length, got 5, expected one of [16 24 32]",
    ] {
        ensure!(refused.contains(part), "{refused}");
    }
    ensure!(!refused.contains("c2hvcnQ="), "{refused}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_service_comes_and_goes() -> Result<()> {
    let sockets = TempDir::new()?;
    let socket = sockets.path().join("kms.sock");
    let plugin = Plugin::start(&socket, Behaviour::default())?;
    let kms = format!(
        "{{kms: {{apiVersion: v2, name: main, endpoint: '{}', timeout: 10s}}}}",
        plugin.endpoint()
    );
    let configuration = Configuration::new(&[&kms, IDENTITY])?;
    // Without the reload the check is there as well.
    let flags = configuration.flags();
    let server = Standalone::start_with(&[&flags[0]]).await?;
    let caller = server.caller(Protocol::Http2)?;
    create(&caller, 0).await?;
    let check = "/readyz/kms-providers";
    ensure!(caller.get(check).await?.status == 200);
    ensure!(files_with(&server.data(), MARKER)?.is_empty());
    ensure!(!files_with(&server.data(), "k8s:enc:kms:v2:main:")?.is_empty());
    // Another key: what is written again is sealed with it.
    plugin.change(|it| it.key_id = "key-2".to_owned());
    eventually("a new key of the service", PATIENCE, async || {
        let (before, after) = put_again(&caller, 0).await?;
        Ok((before != after).then_some(()))
    })
    .await?;
    // It goes: the check fails within its period, and what is known goes on.
    drop(plugin);
    eventually("a failed check", PATIENCE, async || {
        Ok((caller.get(check).await?.status == 500).then_some(()))
    })
    .await?;
    caller.get(&path(0)).await?.expect(200)?;
    create(&caller, 1).await?;
    // Nothing restarts the server for that, if the probe is as in the manifests.
    ensure!(caller.get("/livez").await?.status == 500);
    ensure!(caller.get("/livez?exclude=kms-providers").await?.status == 200);
    // And comes back.
    let behaviour = Behaviour {
        key_id: "key-2".to_owned(),
        ..Behaviour::default()
    };
    let plugin = Plugin::start(&socket, behaviour)?;
    eventually("a check that passes", PATIENCE, async || {
        Ok((caller.get(check).await?.status == 200).then_some(()))
    })
    .await?;
    // A start without it: the server runs, and reads and writes of sealed kinds fail until it is there.
    server.stop().await?;
    drop(plugin);
    let without = async {
        let nothing = "got unexpected nil transformer";
        eventually("a server that is not ready", PATIENCE, async || {
            Ok((caller.get(check).await?.status == 500).then_some(()))
        })
        .await?;
        expect_failure(&caller.get(&path(0)).await?, nothing)?;
        let object = interceptor("sealed-2.example.com", "sealed");
        let refused = caller.post(&collection(), &object).await?;
        expect_failure(&refused, nothing)?;
        let behaviour = Behaviour {
            key_id: "key-2".to_owned(),
            ..Behaviour::default()
        };
        Ok::<_, anyhow::Error>(Plugin::start(&socket, behaviour)?)
    };
    let (started, plugin) = tokio::join!(server.start_again(), without);
    started?;
    let plugin = plugin?;
    eventually("values that open again", PATIENCE, async || {
        let response = caller.get(&collection()).await?;
        Ok((response.status == 200).then_some(()))
    })
    .await?;
    create(&caller, 2).await?;
    ensure!(
        plugin.behaviour().calls[2] > 0,
        "seeds of the runs before were asked for"
    );
    server.stop().await?;
    Ok(())
}
