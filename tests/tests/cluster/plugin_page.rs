//! Runs the commands of `docs/kubectl-drydock.md` in their order, and checks the exit codes that the page states.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use drydock_tests::cluster::own_binaries;
use tokio::process::Command;
use tokio::time::timeout;

use crate::plugin::{Plugin, application};
use crate::stage::{PATIENCE, together};

pub(crate) fn repository() -> Result<PathBuf> {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    Ok(tests.parent().context("the repository")?.to_path_buf())
}

/// The blocks of a language.
pub(crate) fn blocks<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let fence = format!("```{language}\n");
    page.split(fence.as_str())
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .collect()
}

/// The commands of a page, each with the exit code that the comment before it states.
pub(crate) fn commands(page: &str) -> Vec<(&str, i32)> {
    let mut commands = Vec::new();
    for block in blocks(page, "sh") {
        let mut code = 0;
        for line in block.lines() {
            match line.strip_prefix("# exit code ") {
                Some(stated) => {
                    let digits: String = stated.chars().take_while(char::is_ascii_digit).collect();
                    code = digits.parse().unwrap_or_default();
                }
                None => commands.push((line, std::mem::take(&mut code))),
            }
        }
    }
    commands
}

#[test]
fn commands_have_the_codes_of_their_comments() {
    let page = "a\n```sh\nkubectl one\n# exit code 8: why\nkubectl two\n```\nb\n```text\nno\n```\n```sh\nkubectl three\n```";
    assert_eq!(
        commands(page),
        [("kubectl one", 0), ("kubectl two", 8), ("kubectl three", 0)]
    );
    assert_eq!(blocks(page, "text"), ["no\n"]);
}

#[tokio::test]
async fn the_page_of_the_plugin_can_be_followed() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let page =
        std::fs::read_to_string(repository()?.join("docs/kubectl-drydock.md")).context("read the page")?;
    let namespace = stage.namespace("shop").await?;
    // All pods are on the first node: the second one joins later.
    stage
        .control_plane()
        .add_node("node-a", &[("pool", "old")])
        .await?;
    application(&stage, &namespace, "old").await?;
    stage
        .control_plane()
        .add_node("node-b", &[("pool", "old")])
        .await?;
    let plugin = Plugin::new(&stage).await?;
    let folder = tempfile::tempdir().context("a folder")?;
    let plan = blocks(&page, "yaml");
    std::fs::write(folder.path().join("plan.yaml"), plan.first().context("a plan")?)
        .context("write the plan")?;
    let commands = commands(&page);
    ensure!(commands.len() > 15, "{commands:?}");
    for (line, code) in commands {
        let words = line
            .strip_prefix("kubectl ")
            .with_context(|| format!("{line} is no kubectl command"))?;
        let mut command = plugin.kubectl_command(words);
        let output = timeout(PATIENCE, command.current_dir(folder.path()).output())
            .await
            .with_context(|| format!("{line} did not end"))??;
        ensure!(
            output.status.code() == Some(code),
            "{line} ended with {}, the page says {code}:\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    manifests_are_accepted(&plugin).await
}

/// Every manifest in the pages about the kinds is accepted by the server.
async fn manifests_are_accepted(plugin: &Plugin) -> Result<()> {
    let mut count = 0;
    for entry in std::fs::read_dir(repository()?.join("docs/kinds")).context("read the pages")? {
        let path = entry.context("a page")?.path();
        let page = std::fs::read_to_string(&path).context("read a page")?;
        for manifest in blocks(&page, "yaml") {
            let arguments = ["create", "--dry-run=server", "-f", "-"];
            let output = plugin.kubectl.run_with_input(&arguments, manifest).await?;
            let error = String::from_utf8_lossy(&output.stderr);
            ensure!(output.status.success(), "{}: {error}", path.display());
            count += 1;
        }
    }
    ensure!(count >= 3, "{count} manifests");
    Ok(())
}

#[tokio::test]
async fn the_krew_manifest_names_the_archive_and_its_checksum() -> Result<()> {
    let Some(_stage) = together().await? else {
        return Ok(());
    };
    let folder = tempfile::tempdir().context("a folder")?;
    let output = Command::new(repository()?.join("deploy/krew/package.sh"))
        .arg(folder.path())
        .arg("https://example.com/kubectl-drydock.tar.gz")
        .env("DRYDOCK_BIN_DIR", own_binaries().await?)
        .output()
        .await
        .context("run package.sh")?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = std::fs::read_to_string(folder.path().join("drydock.yaml")).context("read the manifest")?;
    let manifest: serde_json::Value = serde_saphyr::from_str(&text).context("YAML")?;
    let platform = &manifest["spec"]["platforms"][0];
    assert_eq!(platform["bin"], "kubectl-drydock");
    assert_eq!(platform["uri"], "https://example.com/kubectl-drydock.tar.gz");
    let archive = std::fs::read_dir(folder.path())
        .context("read the folder")?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "gz"))
        .context("an archive")?;
    let sum = Command::new("sha256sum")
        .arg(&archive)
        .output()
        .await
        .context("run sha256sum")?;
    let sum = String::from_utf8_lossy(&sum.stdout).into_owned();
    assert_eq!(platform["sha256"].as_str(), sum.split(' ').next());
    let listed = Command::new("tar")
        .arg("tzf")
        .arg(&archive)
        .output()
        .await
        .context("run tar")?;
    for file in platform["files"].as_array().context("files")? {
        let name = file["from"].as_str().context("a name")?;
        ensure!(
            String::from_utf8_lossy(&listed.stdout)
                .lines()
                .any(|line| line == name),
            "{name}"
        );
    }
    Ok(())
}
