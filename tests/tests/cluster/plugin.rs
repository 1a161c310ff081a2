//! The kubectl plugin on a real control plane, as a person runs it: through kubectl, in a terminal or in a pipe.

use std::path::PathBuf;
use std::process::{Output, Stdio};

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::MERGE_PATCH;
use drydock_tests::clients::{Kubectl, eventually};
use drydock_tests::cluster::{Part, own_binaries};
use drydock_tests::pseudo_terminal::{PseudoTerminal, frames};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::stage::{PATIENCE, ROOT, Stage, alone, requests_of, text, together};

/// kubectl with the plugin on its path.
pub(crate) struct Plugin {
    pub(crate) kubectl: Kubectl,
    path: String,
}

impl Plugin {
    pub(crate) async fn new(stage: &Stage) -> Result<Self> {
        let kubectl = stage.kubectl();
        let repository = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let completion = repository.parent().context("the repository")?.join("cli");
        let folders = [
            own_binaries().await?,
            completion,
            kubectl.binary.parent().context("kubectl's folder")?.to_path_buf(),
        ];
        let folders: Vec<String> = folders
            .iter()
            .map(|folder| folder.display().to_string())
            .collect();
        Ok(Self {
            kubectl,
            path: format!("{}:/usr/bin:/bin", folders.join(":")),
        })
    }

    /// The command of `kubectl drydock` with these words.
    fn command(&self, line: &str) -> Command {
        self.kubectl_command(&format!("drydock {line}"))
    }

    pub(crate) fn kubectl_command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.kubectl.binary);
        command
            .args(words(line))
            .env_clear()
            .env("PATH", &self.path)
            .env("KUBECONFIG", &self.kubectl.kubeconfig)
            .env("HOME", &self.kubectl.home)
            .env("TERM", "xterm")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    async fn output(&self, line: &str) -> Result<Output> {
        let output = self.command(line).output();
        timeout(PATIENCE, output)
            .await
            .with_context(|| format!("{line} did not end"))?
            .context("run the plugin")
    }

    /// Runs a command that must end with this code; returns both outputs.
    async fn ends(&self, line: &str, code: i32) -> Result<(String, String)> {
        let output = self.output(line).await?;
        let (out, error) = (string(output.stdout)?, string(output.stderr)?);
        ensure!(
            output.status.code() == Some(code),
            "{line} ended with {}, not {code}:\n{out}{error}",
            output.status
        );
        Ok((out, error))
    }

    /// Runs a command that must succeed; returns its standard output.
    async fn ok(&self, line: &str) -> Result<String> {
        Ok(self.ends(line, 0).await?.0)
    }
}

fn string(bytes: Vec<u8>) -> Result<String> {
    String::from_utf8(bytes).context("the plugin writes UTF-8")
}

/// The words of a line; quotes hold words together.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut is_quoted = false;
    for character in line.chars() {
        match character {
            '\'' => is_quoted = !is_quoted,
            ' ' if !is_quoted => words.push(String::new()),
            character => {
                if let Some(word) = words.last_mut() {
                    word.push(character);
                }
            }
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// A node of a name with a web application of two pods and a database whose budget never allows a disruption. The name
/// is also that of the namespace and of the pool.
pub(crate) async fn scene(stage: &Stage, name: &str) -> Result<String> {
    let namespace = stage.namespace(name).await?;
    stage.control_plane().add_node(name, &[("pool", name)]).await?;
    application(stage, &namespace, name).await?;
    Ok(namespace)
}

/// The application on the nodes of a pool.
pub(crate) async fn application(stage: &Stage, namespace: &str, pool: &str) -> Result<()> {
    let kubectl = stage.kubectl();
    let workload = |kind: &str, app: &str, replicas: u32| {
        json!({
            "apiVersion": "apps/v1",
            "kind": kind,
            "metadata": { "name": app, "namespace": namespace },
            "spec": {
                "replicas": replicas,
                "serviceName": app,
                "selector": { "matchLabels": { "app": app } },
                "template": {
                    "metadata": { "labels": { "app": app } },
                    "spec": {
                        "nodeSelector": { "pool": pool },
                        "terminationGracePeriodSeconds": 1,
                        "containers": [{ "name": "main", "image": "main" }],
                    },
                },
            },
        })
    };
    let mut web = workload("Deployment", "web", 2);
    web["spec"]
        .as_object_mut()
        .context("a spec")?
        .remove("serviceName");
    let objects = json!({
        "apiVersion": "v1",
        "kind": "List",
        "items": [
            web,
            workload("StatefulSet", "database", 1),
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": { "name": "database", "namespace": namespace },
                "spec": { "minAvailable": 1, "selector": { "matchLabels": { "app": "database" } } },
            },
        ],
    });
    kubectl.apply(&objects.to_string()).await?;
    for what in ["deployment/web", "statefulset/database"] {
        kubectl
            .ok(&["rollout", "status", what, "-n", namespace, "--timeout=55s"])
            .await?;
    }
    eventually("the budget to be computed", PATIENCE, async || {
        let path = "jsonpath={.status.currentHealthy},{.status.expectedPods}";
        let status = kubectl
            .ok(&["get", "pdb", "database", "-n", namespace, "-o", path])
            .await?;
        Ok((status == "1,1").then_some(()))
    })
    .await
}

/// The text with `#` for every duration: ages differ from run to run.
fn without_ages(text: &str) -> String {
    let is_age = |word: &str| {
        let word = word.trim_matches([',', '.', ')', ':', '(']);
        let units = word.chars().filter(char::is_ascii_alphabetic).count();
        !word.is_empty()
            && word.starts_with(|c: char| c.is_ascii_digit())
            && (1..=2).contains(&units)
            && word.chars().all(|c| c.is_ascii_digit() || "smhd".contains(c))
    };
    let line = |line: &str| {
        let words: Vec<String> = line
            .split(' ')
            .map(|word| match word {
                word if is_age(word) => {
                    let end = word.trim_end_matches([',', '.', ')', ':']).len();
                    format!("#{}", &word[end..])
                }
                word => word.to_owned(),
            })
            .collect();
        words.join(" ").trim_start_matches(' ').to_owned()
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n") + "\n"
}

#[expect(
    clippy::expect_used,
    reason = "only where golden files are written on purpose"
)]
#[track_caller]
fn check_golden(name: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/cluster/golden")
        .join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("the folder can be created");
        std::fs::write(&path, text).expect("a golden file can be written");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{name}; UPDATE_GOLDEN=1 writes it");
}

/// Waits until the database's request reports its budget.
async fn database_is_blocked(stage: &Stage, namespace: &str) -> Result<()> {
    let uid = uid_of(stage, namespace, "database-0").await?;
    let host = stage.host()?;
    eventually("the budget to hold the database", PATIENCE, async || {
        let request = host
            .get(&format!("{}/{uid}", requests_of(namespace)))
            .await?
            .expect(200)?;
        let failed = request["status"]["podEvictionStatus"]["failedAPIEvictionCounter"].as_i64();
        Ok((failed.unwrap_or_default() > 0).then_some(()))
    })
    .await
}

async fn uid_of(stage: &Stage, namespace: &str, pod: &str) -> Result<String> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}");
    text(&stage.host()?.get(&path).await?.expect(200)?["metadata"]["uid"])
}

/// What others see of a drain: at 120 columns, without colour, and in a pipe.
async fn others_see(plugin: &Plugin, node: &str, maintenance: &str) -> Result<()> {
    let mut wide = plugin.command(&format!("status {maintenance}"));
    wide.env("NO_COLOR", "1");
    let (status, drawn) = PseudoTerminal::spawn(wide, 120, 24)?.finish().await?;
    ensure!(status.success() && !drawn.contains('\u{1b}'), "{drawn}");
    let shown = without_ages(&drawn.replace('\r', ""));
    let (screen, message) = shown.trim_end().rsplit_once('\n').context("a message")?;
    // Its words are the controller's.
    ensure!(message.contains("database"), "{message}");
    check_golden("status-120.txt", &format!("{screen}\n"));
    let explained = plugin.ok(&format!("explain nm/{maintenance}")).await?;
    for word in [
        "database-0",
        "blocked",
        "Budget",
        "kubectl scale statefulset/database",
        "replace a disk",
    ] {
        ensure!(explained.contains(word), "{word}: {explained}");
    }
    ensure!(!explained.contains('\u{1b}'), "{explained}");
    let objects = plugin.ok(&format!("explain node/{node} -o json")).await?;
    let objects: Value = serde_json::from_str(&objects).context("JSON")?;
    ensure!(
        objects[0]["pod"] == "database-0" && objects[0]["blocked"]["reason"] == "Budget",
        "{objects}"
    );
    Ok(())
}

/// A drain in a terminal: the bars move, the budget is named, and it ends when the budget is gone.
#[tokio::test]
async fn a_drain_is_shown_in_a_terminal_until_its_end() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let name = "plugin-live";
    let namespace = scene(&stage, name).await?;
    let plugin = Plugin::new(&stage).await?;
    let line = format!("drain {name} --reason 'replace a disk' --wait --timeout 55s");
    let terminal = PseudoTerminal::spawn(plugin.command(&line), 80, 24)?;
    database_is_blocked(&stage, &namespace).await?;
    let maintenance = format!("drain-{name}");
    let path = format!("{}/{maintenance}", ROOT.to_owned() + "/nodemaintenances");
    let host = stage.host()?;
    eventually("the maintenance to name its blocker", PATIENCE, async || {
        let object = host.get(&path).await?.expect(200)?;
        let is_alone = object["status"]["drainStatus"]["activeEvictionRequests"] == json!(1);
        Ok((is_alone && object["status"]["blockers"][0]["reason"] == "Budget").then_some(()))
    })
    .await?;

    terminal.shows("Held, the oldest first", PATIENCE).await?;
    others_see(&plugin, name, &maintenance).await?;
    stage
        .kubectl()
        .ok(&["delete", "pdb", "database", "-n", &namespace])
        .await?;
    let (status, drawn) = timeout(PATIENCE, terminal.finish())
        .await
        .context("the drain did not end")??;
    ensure!(status.success(), "{status}: {drawn}");
    ensure!(drawn.contains("\u{1b}[1m"), "a terminal has colours: {drawn:?}");
    let frames = frames(&drawn);
    for line in frames.iter().flat_map(|frame| frame.lines()) {
        ensure!(line.chars().count() <= 80, "{line}");
    }
    ensure!(
        frames
            .iter()
            .any(|frame| frame.contains("Held, the oldest first") && frame.contains("Budget")),
        "{frames:#?}"
    );
    let last = frames.last().context("a frame")?;
    check_golden("drained-80.txt", &without_ages(last));

    // The same command goes on with the same maintenance; completing it returns the node to service.
    let again = plugin.ok(&format!("drain {name}")).await?;
    ensure!(again.contains("is draining already"), "{again}");
    plugin
        .ok(&format!("complete {maintenance} --wait --timeout 50s"))
        .await?;
    let cordoned = ["get", "node", name, "-o", "jsonpath={.spec.unschedulable}"];
    ensure!(
        stage.kubectl().ok(&cordoned).await?.is_empty(),
        "the node is in service"
    );
    let list = plugin.ok("status").await?;
    ensure!(list.contains(&maintenance) && list.contains("Complete"), "{list}");
    plugin
        .ok(&format!("cancel {maintenance} --wait --timeout 50s"))
        .await?;
    let (_, error) = plugin.ends(&format!("status {maintenance}"), 3).await?;
    ensure!(error.contains("not found"), "{error}");
    Ok(())
}

/// In a pipe, a drain is told in lines, and a timeout ends the wait and not the drain.
#[tokio::test]
async fn a_drain_in_a_pipe_is_told_in_lines() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let name = "plugin-lines";
    let namespace = scene(&stage, name).await?;
    let plugin = Plugin::new(&stage).await?;
    let (findings, _) = plugin.ends(&format!("preflight {name}"), 8).await?;
    ensure!(
        findings.contains("BudgetNever") && findings.contains("SingleReplica"),
        "{findings}"
    );
    ensure!(findings.contains("1 finding blocks a drain"), "{findings}");

    let plan = "- {podType: Default, podPriority: 1000000000, podSelector: {matchLabels: {app: web}}}";
    let file = plugin.kubectl.home.join("plugin-plan.yaml");
    std::fs::write(&file, plan).context("write a plan")?;
    let line = format!(
        "drain -l pool={name} --name {name} --plan {} -o json",
        file.display()
    );
    let object: Value = serde_json::from_str(&plugin.ok(&line).await?).context("JSON")?;
    ensure!(
        object["spec"]["drainPlan"][0]["podSelector"]["matchLabels"]["app"] == "web",
        "{object}"
    );
    ensure!(
        object["metadata"]["managedFields"][0]["manager"] == "kubectl-drydock",
        "{object}"
    );
    database_is_blocked(&stage, &namespace).await?;
    let line = format!("drain -l pool={name} --name {name} --wait --timeout 3s");
    let (lines, error) = plugin.ends(&line, 6).await?;
    ensure!(lines.contains(&format!("{name}: stage Drain")), "{lines}");
    ensure!(!lines.contains('\u{1b}'), "{lines}");
    ensure!(error.contains("is not drained after 3 s"), "{error}");
    plugin.ends(&format!("drain {name} --name {name}"), 7).await?;
    plugin.ok(&format!("cancel {name} --wait --timeout 50s")).await?;
    let requests = stage
        .kubectl()
        .ok(&["get", "er", "-n", &namespace, "--no-headers"])
        .await?;
    ensure!(
        requests
            .lines()
            .all(|row| row.contains("Canceled") || row.contains("Evicted")),
        "{requests}"
    );
    plugin
        .ok(&format!("preflight {name} -o yaml"))
        .await
        .err()
        .context("it still blocks")?;
    Ok(())
}

/// A pod with interceptors of each source: a rule, and three annotations.
async fn four_sources(kubectl: &Kubectl, namespace: &str) -> Result<()> {
    let rule = json!({
        "apiVersion": "coordination.k8s.io/v1alpha3",
        "kind": "EvictionInterceptor",
        "metadata": { "name": "plugin-rule.example.com" },
        "spec": {
            "interceptorName": "plugin-rule.example.com", "priority": 15000,
            "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": namespace } },
            "matchConditions": [{ "name": "one", "expression": "pod.metadata.name.startsWith('one')" }],
        },
    });
    kubectl.apply(&rule.to_string()).await?;
    kubectl
        .wait("ei/plugin-rule.example.com", "", "condition=Accepted")
        .await?;
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "one", "namespace": namespace, "annotations": {
            "interceptor.evictionrequest.coordination.k8s.io/priority_first.example.com": "20000",
            "evictionrequest.coordination.k8s.io/interceptors": "second.example.com,third.example.com",
            "evacuation.coordination.k8s.io/priority_last.example.com": "5",
        } },
        "spec": { "schedulerName": "nobody", "containers": [{ "name": "main", "image": "main" }] },
    });
    kubectl.apply(&pod.to_string()).await?;
    Ok(())
}

/// The order of interceptors before a request is the order that the controller stores; a withdrawal cancels.
#[tokio::test]
async fn interceptors_are_shown_as_the_controller_orders_them() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let namespace = stage.namespace("plugin-evict").await?;
    let kubectl = stage.kubectl();
    four_sources(&kubectl, &namespace).await?;
    let plugin = Plugin::new(&stage).await?;
    let names = async || -> Result<Vec<String>> {
        let shown = plugin
            .ok(&format!("interceptors one -n {namespace} -o json"))
            .await?;
        let shown: Vec<Value> = serde_json::from_str(&shown).context("JSON")?;
        shown.iter().map(|one| text(&one["name"])).collect()
    };
    let before = names().await?;
    assert_eq!(
        before,
        [
            "first.example.com",
            "plugin-rule.example.com",
            "second.example.com",
            "third.example.com",
            "last.example.com",
            "imperative-eviction.k8s.io",
        ]
    );
    plugin.ok(&format!("evict one -n {namespace}")).await?;
    let uid = uid_of(&stage, &namespace, "one").await?;
    let host = stage.host()?;
    let path = format!("{}/{uid}", requests_of(&namespace));
    let stored = eventually("the first interceptor to have its turn", PATIENCE, async || {
        let request = host.get(&path).await?.expect(200)?;
        let is_active = request["status"]["activeInterceptors"] == json!(["first.example.com"]);
        Ok(is_active.then_some(request))
    })
    .await?;
    let targets = stored["status"]["targetInterceptors"]
        .as_array()
        .context("targets")?;
    let targets: Vec<String> = targets
        .iter()
        .map(|one| text(&one["name"]))
        .collect::<Result<_>>()?;
    assert_eq!(targets, before, "the controller stores the order that was shown");
    assert_eq!(names().await?, before);
    assert_eq!(
        stored["spec"]["requesters"],
        json!([{ "name": "kubectl.drydock" }])
    );
    let explained = plugin.ok(&format!("explain one -n {namespace}")).await?;
    ensure!(
        explained.contains("1. first.example.com") && explained.contains("its turn for"),
        "{explained}"
    );

    // Who waits learns of the withdrawal.
    let mut waiting = plugin.command(&format!("evict one -n {namespace} --wait"));
    let mut waiting = waiting.stdout(Stdio::piped()).spawn().context("run the plugin")?;
    let mut lines = BufReader::new(waiting.stdout.take().context("its output")?).lines();
    let first = timeout(PATIENCE, lines.next_line()).await??.context("a line")?;
    assert_eq!(first, format!("evictionrequest/{uid} requested for pod/one"));
    plugin.ok(&format!("evict one -n {namespace} --withdraw")).await?;
    let status = timeout(PATIENCE, waiting.wait())
        .await
        .context("the wait did not end")??;
    assert_eq!(status.code(), Some(9));
    let request = host.get(&path).await?.expect(200)?;
    ensure!(crate::stage::is_true(&request, "Canceled"), "{request}");

    // A canceled request is final: who asks again gets a new one.
    plugin.ok(&format!("evict one -n {namespace}")).await?;
    let again = host.get(&path).await?.expect(200)?;
    ensure!(again["metadata"]["uid"] != request["metadata"]["uid"], "{again}");
    plugin.ok(&format!("evict one -n {namespace} --withdraw")).await?;
    kubectl.ok(&["delete", "ei", "plugin-rule.example.com"]).await?;
    Ok(())
}

/// What scripts rely on: exit codes, and words that name the cause.
#[tokio::test]
async fn failures_have_exit_codes_and_words() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let plugin = Plugin::new(&stage).await?;
    for (line, code, word) in [
        ("drain", 2, "required"),
        ("drain nowhere", 3, "nodes \"nowhere\" not found"),
        ("explain nothing", 3, "no pod nothing"),
        ("evict nothing -n default", 3, "pods \"nothing\" not found"),
        ("release nowhere", 3, "not found"),
        (
            "status --as nobody",
            4,
            "cannot list resource \"nodemaintenances\"",
        ),
        (
            "status --token wrong --server https://127.0.0.1:1 --insecure-skip-tls-verify",
            10,
            "cannot be reached",
        ),
        ("status --kubeconfig /nowhere", 10, "kubeconfig"),
        ("explain svc/web", 2, "cannot be explained"),
        ("drain -l ''", 2, "required"),
    ] {
        let (_, error) = plugin.ends(line, code).await?;
        ensure!(error.contains(word), "{line}: {error}");
    }
    let help = plugin.ok("drain --help").await?;
    ensure!(help.contains("kubectl drydock drain -l pool=old"), "{help}");
    Ok(())
}

/// A maintenance that vanished: its record is given up, and not while another maintenance holds the node.
#[tokio::test]
async fn a_node_is_released_from_a_maintenance_that_vanished() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let name = "plugin-release";
    stage.control_plane().add_node(name, &[]).await?;
    let plugin = Plugin::new(&stage).await?;
    plugin.ok(&format!("drain {name} --wait --timeout 50s")).await?;
    let (_, error) = plugin.ends(&format!("release {name}"), 7).await?;
    ensure!(
        error.contains(&format!("kubectl drydock complete drain-{name}")),
        "{error}"
    );
    plugin
        .ok(&format!("complete drain-{name} --wait --timeout 50s"))
        .await?;
    let (_, error) = plugin.ends(&format!("release {name}"), 3).await?;
    ensure!(error.contains("no maintenance has left a record"), "{error}");

    plugin.ok(&format!("drain {name} --wait --timeout 50s")).await?;
    let host = stage.host()?;
    let path = format!("{ROOT}/nodemaintenances/drain-{name}");
    // Deleted and without finalizers in one go, faster than any controller.
    eventually("the maintenance to vanish", PATIENCE, async || {
        let response = host.delete(&path).await?;
        let bare = json!({ "metadata": { "finalizers": null } });
        host.patch(&path, MERGE_PATCH, &bare).await?;
        Ok((response.status == 404).then_some(()))
    })
    .await?;
    let node = format!("/api/v1/nodes/{name}");
    let record = async || -> Result<Option<String>> {
        let object = host.get(&node).await?.expect(200)?;
        let annotation = &object["metadata"]["annotations"]["nodemaintenance.coordination.k8s.io/status"];
        Ok(annotation.as_str().map(str::to_owned))
    };
    eventually("the record to say so", PATIENCE, async || {
        let record = record().await?.context("a record")?;
        Ok(record.contains("\"vanished\":[").then_some(()))
    })
    .await?;
    let released = plugin.ok(&format!("release {name}")).await?;
    assert_eq!(
        released,
        format!("node/{name} released from drain-{name} and uncordoned\n")
    );
    eventually("the node to be free", PATIENCE, async || {
        let object = host.get(&node).await?.expect(200)?;
        Ok((record().await?.is_none() && object["spec"]["unschedulable"] != true).then_some(()))
    })
    .await
}

/// kubectl completes the plugin's command lines through `kubectl_complete-drydock`.
#[tokio::test]
async fn kubectl_completes_commands_flags_and_names() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    stage.control_plane().add_node("plugin-complete", &[]).await?;
    let plugin = Plugin::new(&stage).await?;
    for (before, last, expected) in [
        ("drydock", "pre", "preflight"),
        ("drydock drain", "plugin-com", "plugin-complete"),
        ("drydock drain", "--rea", "--reason"),
        ("drydock drain a -o", "", "yaml"),
        ("drydock -n", "kube-sys", "kube-system"),
    ] {
        let mut command = plugin.kubectl_command(&format!("__complete {before}"));
        let output = timeout(PATIENCE, command.arg(last).output())
            .await
            .context("no completion")??;
        let words = string(output.stdout)?;
        let found = words
            .lines()
            .any(|line| line.split('\t').next() == Some(expected));
        ensure!(
            found && words.trim_end().ends_with(":4"),
            "{before} {last}: {words}"
        );
    }
    Ok(())
}

/// Without its server, Drydock is reported as not available, with where to look.
#[tokio::test]
async fn a_server_that_is_away_is_named() -> Result<()> {
    let Some(stage) = alone().await? else {
        return Ok(());
    };
    let plugin = Plugin::new(&stage).await?;
    plugin.ok("status").await?;
    stage.drydock.stop_part(Part::ApiServer).await?;
    let (_, error) = plugin.ends("status", 5).await?;
    ensure!(
        error.contains("its server is not available") && error.contains("kubectl get apiservice"),
        "{error}"
    );
    Ok(())
}
