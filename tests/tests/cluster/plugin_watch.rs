//! `--watch` of the plugin's commands, in a pipe: what has changed is printed, and what has an end of its own ends.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use tokio::io::{AsyncBufReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout};
use tokio::time::timeout;

use crate::plugin::{Plugin, scene};
use crate::stage::{PATIENCE, together};

/// A command that goes on, and what it prints.
struct Watching {
    line: String,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watching {
    fn begin(plugin: &Plugin, line: &str) -> Result<Self> {
        let mut command = plugin.kubectl_command(&format!("drydock {line}"));
        let mut child = command.stdout(Stdio::piped()).spawn().context("run the plugin")?;
        let out = child.stdout.take().context("its output")?;
        Ok(Self {
            line: line.to_owned(),
            child,
            lines: BufReader::new(out).lines(),
        })
    }

    /// Waits until it prints this.
    async fn prints(&mut self, expected: &str) -> Result<()> {
        let reading = async {
            while let Some(line) = self.lines.next_line().await? {
                if line.contains(expected) {
                    return Ok(());
                }
            }
            anyhow::bail!("{} has ended without {expected:?}", self.line)
        };
        timeout(PATIENCE, reading)
            .await
            .with_context(|| format!("{} did not print {expected:?}", self.line))?
    }

    async fn ends(mut self) -> Result<()> {
        let reading = async {
            while self.lines.next_line().await?.is_some() {}
            anyhow::Ok(self.child.wait().await?)
        };
        let status = timeout(PATIENCE, reading)
            .await
            .with_context(|| format!("{} did not end", self.line))??;
        ensure!(status.success(), "{} ended with {status}", self.line);
        Ok(())
    }
}

#[tokio::test]
async fn commands_that_watch_print_what_changes() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = scene(&stage, "plugin-watch").await?;
    let plugin = Plugin::new(&stage).await?;
    let kubectl = stage.kubectl();
    let mut preflight = Watching::begin(&plugin, &format!("preflight {namespace} --watch"))?;
    let mut explain = Watching::begin(&plugin, &format!("explain database-0 -n {namespace} --watch"))?;
    let mut interceptors = Watching::begin(&plugin, &format!("interceptors database-0 -n {namespace} -w"))?;
    preflight.prints("1 finding blocks a drain").await?;
    explain.prints("pod plugin-watch/database-0").await?;
    interceptors.prints("imperative-eviction.k8s.io").await?;

    let annotation = "evictionrequest.coordination.k8s.io/interceptors=watched.example.com";
    kubectl
        .ok(&["annotate", "pod", "database-0", "-n", &namespace, annotation])
        .await?;
    interceptors.prints("watched.example.com").await?;
    let evict = plugin
        .kubectl_command(&format!("drydock evict database-0 -n {namespace}"))
        .output()
        .await?;
    ensure!(
        evict.status.success(),
        "{}",
        String::from_utf8_lossy(&evict.stderr)
    );
    explain.prints("watched.example.com").await?;
    kubectl
        .ok(&["delete", "pdb", "database", "-n", &namespace])
        .await?;
    preflight.ends().await?;
    kubectl.ok(&["delete", "node", &namespace]).await?;
    Ok(())
}
