//! `deploy/monitoring` with a real Prometheus that scrapes both programs during a drain: every panel of the dashboards shows
//! something, every metric of the alerts exists, and the alerts fire when they should.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::clients::eventually;
use drydock_tests::cluster::{Lifetime, NAMESPACE, Ports, Process, SERVER_NAME, prometheus, shared};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

use crate::stage::{PATIENCE, Stage, is_true, together};

const NODE: &str = "monitored";
const ACCOUNT: &str = "monitoring";

/// The files of `deploy/monitoring`.
fn deployed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../deploy/monitoring")
        .join(name)
}

/// The dashboards' panels: title and expression.
fn panels() -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    for name in ["drains.json", "server.json"] {
        let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(deployed(name))?)?;
        for panel in dashboard["panels"].as_array().context("panels")? {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let expression = target["expr"].as_str().context("an expression")?;
                let expression = expression
                    .replace("$__rate_interval", "30s")
                    .replace("$instance", ".*");
                found.push((format!("{name}: {}", panel["title"]), expression));
            }
        }
    }
    Ok(found)
}

/// The metrics that the alerts read: every one has a selector.
fn alerting_metrics() -> Result<BTreeSet<String>> {
    let rules = std::fs::read_to_string(deployed("alerts.yaml"))?;
    let mut names = BTreeSet::new();
    for (before, _) in rules.match_indices("{job=").map(|(at, _)| rules.split_at(at)) {
        let start = before
            .rfind(|letter: char| !letter.is_alphanumeric() && letter != '_')
            .map_or(0, |at| at + 1);
        let name = before.get(start..).unwrap_or_default();
        names.insert(name.trim_end_matches("_bucket").to_owned());
    }
    Ok(names)
}

/// A Prometheus that scrapes both programs each second.
struct Prometheus {
    programs: PathBuf,
    url: String,
    folder: TempDir,
    process: Process,
}

impl Prometheus {
    async fn start(stage: &Stage) -> Result<Self> {
        let programs = prometheus().await?;
        let folder = TempDir::new()?;
        let token = token(stage).await?;
        let authority = folder.path().join("drydock-ca.crt");
        std::fs::write(&authority, stage.control_plane().pki().drydock.certificate())?;
        let job = |name: &str, address: String, tls: Value| {
            json!({
                "job_name": name,
                "scheme": "https",
                "static_configs": [{ "targets": [address] }],
                "authorization": { "credentials": token },
                "tls_config": tls,
            })
        };
        let configuration = json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
            "rule_files": [deployed("alerts.yaml")],
            "scrape_configs": [
                job(
                    "drydock-apiserver",
                    stage.drydock.address().to_string(),
                    json!({ "ca_file": authority, "server_name": SERVER_NAME }),
                ),
                job(
                    "drydock-controller",
                    stage.drydock.controller_address().to_string(),
                    json!({ "insecure_skip_verify": true }),
                ),
            ],
        });
        let file = folder.path().join("prometheus.json");
        std::fs::write(&file, configuration.to_string())?;
        let address = Ports::reserve(1)?.take()?;
        let mut command = std::process::Command::new(programs.join("prometheus"));
        command
            .arg("--config.file")
            .arg(&file)
            .arg("--storage.tsdb.path")
            .arg(folder.path().join("data"))
            .args(["--web.listen-address", &address.to_string()]);
        let process = Process::spawn(command, "prometheus", folder.path(), Lifetime::WithParent)?;
        let mut started = Self {
            programs,
            url: format!("http://{address}"),
            folder,
            process,
        };
        let (promtool, url) = (started.programs.join("promtool"), started.url.clone());
        let ready = async || {
            let checked = Command::new(&promtool)
                .args(["check", "ready", "--url", &url])
                .output()
                .await?;
            Ok(checked.status.success())
        };
        started.process.ready(PATIENCE, ready).await?;
        Ok(started)
    }

    /// Runs promtool and returns what it printed.
    async fn promtool(&self, arguments: &[&str]) -> Result<String> {
        let output = Command::new(self.programs.join("promtool"))
            .args(arguments)
            .current_dir(self.folder.path())
            .kill_on_drop(true)
            .output()
            .await?;
        let (printed, error) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        ensure!(
            output.status.success(),
            "promtool {}: {printed}{error}",
            arguments.join(" ")
        );
        Ok(printed.into_owned())
    }

    /// Whether an expression had a value at any time since the start.
    async fn has_values(&self, expression: &str) -> Result<bool> {
        let printed = self
            .promtool(&["query", "range", "--step=1s", "-o", "json", &self.url, expression])
            .await?;
        let series: Value = serde_json::from_str(&printed).with_context(|| printed.clone())?;
        Ok(series.as_array().is_some_and(|series| !series.is_empty()))
    }
}

/// A token of an account that may read metrics, and nothing else.
pub(crate) async fn token(stage: &Stage) -> Result<String> {
    let kubectl = stage.kubectl();
    let account = json!({
        "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": ACCOUNT, "namespace": NAMESPACE },
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": { "name": ACCOUNT },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "drydock-metrics-reader" },
        "subjects": [{ "kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE }],
    });
    kubectl.apply(&account.to_string()).await?;
    kubectl.apply(&binding.to_string()).await?;
    let token = kubectl.ok(&["create", "token", ACCOUNT, "-n", NAMESPACE]).await?;
    Ok(token.trim_end().to_owned())
}

/// Drains a node with one pod, which its budget holds until the request is in the metrics.
async fn drain(stage: &Stage, prometheus: &Prometheus) -> Result<()> {
    let (kubectl, host) = (stage.kubectl(), stage.host()?);
    stage.control_plane().add_node(NODE, &[]).await?;
    let namespace = stage.namespace(NODE).await?;
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "web", "namespace": namespace, "labels": { "app": "web" } },
        "spec": {
            "nodeSelector": { "kubernetes.io/hostname": NODE },
            "terminationGracePeriodSeconds": 1,
            "containers": [{ "name": "main", "image": "main" }],
        },
    });
    let budget = json!({
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": { "name": "web", "namespace": namespace },
        "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "web" } } },
    });
    kubectl.apply(&pod.to_string()).await?;
    kubectl.apply(&budget.to_string()).await?;
    kubectl.wait("pod/web", &namespace, "condition=Ready").await?;
    let mut maintenance = crate::stage::idle_maintenance(NODE, NODE);
    maintenance["spec"]["stage"] = json!("Drain");
    let path = format!("{}/nodemaintenances", crate::stage::ROOT);
    host.post(&path, &maintenance).await?.expect(201)?;
    let active = "evictionrequest_controller_active_interceptor";
    eventually("the request is in the metrics", PATIENCE, async || {
        Ok(prometheus.has_values(active).await?.then_some(()))
    })
    .await?;
    kubectl
        .ok(&["delete", "poddisruptionbudget", "web", "-n", &namespace])
        .await?;
    let drained = async || {
        let object = host.get(&format!("{path}/{NODE}")).await?.expect(200)?;
        Ok(is_true(&object, "Drained").then_some(()))
    };
    eventually("the node is drained", PATIENCE, drained).await
}

/// A program evicts a pod with an interceptor, and another one nominates it.
async fn evict_and_nominate(stage: &Stage) -> Result<()> {
    let namespace = crate::bridge::bridged_namespace(stage, "monitored-bridge").await?;
    let host = stage.host()?;
    let pods = format!("/api/v1/namespaces/{namespace}/pods");
    let web = crate::bridge::pod(&namespace, "web", None, true);
    let web = host.post(&pods, &web).await?.expect(201)?;
    let eviction = json!({ "metadata": { "name": "web" } });
    host.post(&format!("{pods}/web/eviction"), &eviction)
        .await?
        .expect(429)?;
    let nomination = json!({ "namespace": namespace, "name": "web", "uid": web["metadata"]["uid"] });
    crate::bridge::nominate(stage, &namespace, &json!({ "nominations": [nomination] })).await?;
    Ok(())
}

#[tokio::test]
async fn dashboards_and_alerts_show_what_both_programs_measure() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let prometheus = Prometheus::start(&stage).await?;
    drain(&stage, &prometheus).await?;
    evict_and_nominate(&stage).await?;
    let mut empty = panels()?;
    eventually("every panel shows something", PATIENCE, async || {
        let mut left = Vec::new();
        for (title, expression) in empty.drain(..) {
            if !prometheus.has_values(&expression).await? {
                left.push((title, expression));
            }
        }
        empty = left;
        ensure!(empty.is_empty(), "{empty:?}");
        Ok(Some(()))
    })
    .await?;
    let names = alerting_metrics()?;
    ensure!(names.len() > 10, "{names:?}");
    for name in names {
        let any = format!("{{__name__=~\"{name}(_bucket)?\"}}");
        ensure!(prometheus.has_values(&any).await?, "{name} does not exist");
    }
    // `kubectl drydock` needs no help from Prometheus, so nothing of a healthy cluster may fire.
    let firing = "ALERTS{alertstate=\"firing\", severity=\"critical\"}";
    ensure!(
        !prometheus.has_values(firing).await?,
        "an alert fires without a cause"
    );
    let kubectl = stage.kubectl();
    kubectl
        .ok(&["delete", "nodemaintenance", NODE, "--timeout=50s"])
        .await?;
    kubectl.ok(&["delete", "namespace", NODE, "--wait=false"]).await?;
    kubectl.ok(&["delete", "node", NODE]).await?;
    Ok(())
}

#[tokio::test]
async fn alerts_fire_for_their_causes_and_the_scrape_jobs_are_valid() -> Result<()> {
    if shared().await?.is_none() {
        return Ok(());
    }
    let promtool = prometheus().await?.join("promtool");
    let cases = |name| {
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("cluster/prometheus")
            .join(name)
    };
    for (arguments, file) in [
        (["check", "rules", "--lint=all"], deployed("alerts.yaml")),
        (["check", "rules", "--lint=all"], deployed("alerts-etcd.yaml")),
        (["check", "config", "--syntax-only"], deployed("scrape.yaml")),
        (["test", "rules", "--diff"], cases("alerts_test.yaml")),
        (["test", "rules", "--diff"], cases("alerts_etcd_test.yaml")),
    ] {
        let command = Command::new(&promtool).args(arguments).arg(&file).output();
        let output = tokio::time::timeout(Duration::from_mins(1), command).await??;
        ensure!(
            output.status.success(),
            "promtool {}: {}{}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}
