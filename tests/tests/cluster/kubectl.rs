//! kubectl with our kinds: discovery, explain, get, describe, apply, patch, edit, watch, delete.

use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::clients::{Kubectl, eventually};
use drydock_tests::cluster::{self, DEFAULT_KUBERNETES_VERSION};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use crate::stage::{
    PATIENCE, Stage, eviction_request, fails, idle_maintenance, interceptor, text, together, uid,
};

/// The prefix of the UIDs of this file.
const UIDS: u16 = 0xc71;

/// An object of one kind, and how kubectl shows it.
struct Subject {
    kind: &'static str,
    short: &'static str,
    object: Value,
    /// The columns of `get` and those that `-o wide` adds.
    columns: (&'static str, &'static str),
    /// A field of the spec that may change, for `edit`, with its first and second value.
    field: (&'static str, Value, Value),
}

impl Subject {
    fn name(&self) -> Result<String> {
        text(&self.object["metadata"]["name"])
    }

    /// `kubectl VERB SHORT NAME …` in the object's namespace.
    fn arguments<'a>(&'a self, verb: &'a str, name: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let mut arguments = vec![verb, self.short, name];
        if let Some(namespace) = self.object["metadata"]["namespace"].as_str() {
            arguments.extend(["-n", namespace]);
        }
        arguments.extend(more);
        arguments
    }
}

async fn subjects(stage: &Stage, test: &str, number: u64) -> Result<Vec<Subject>> {
    let namespace = stage.namespace(test).await?;
    let mut request = eviction_request(&namespace, "no-such-pod", &uid(UIDS, number));
    request["spec"]["ttlSecondsAfterFinished"] = json!(3600);
    let mut maintenance = idle_maintenance(test, "nowhere");
    maintenance["spec"]["reason"] = json!("first");
    let mut interceptor = interceptor(&format!("{test}.example.com"), test);
    interceptor["spec"]["priority"] = json!(20_001);
    Ok(vec![
        Subject {
            kind: "EvictionRequest",
            short: "er",
            object: request,
            columns: ("NAME POD ACTIVE STATE REQUESTERS RETRIES ETA AGE", "UID MESSAGE"),
            field: ("ttlSecondsAfterFinished", json!(3600), json!(7200)),
        },
        Subject {
            kind: "NodeMaintenance",
            short: "nm",
            object: maintenance,
            columns: (
                "NAME STAGE NODES DRAINED PODS LEFT MESSAGE AGE",
                "NODE NAMES REASON",
            ),
            field: ("reason", json!("first"), json!("second")),
        },
        Subject {
            kind: "EvictionInterceptor",
            short: "ei",
            object: interceptor,
            columns: ("NAME INTERCEPTOR PRIORITY PODS ACCEPTED AGE", "ROLE"),
            field: ("priority", json!(20_001), json!(20_002)),
        },
    ])
}

/// Applies the object and waits until the controller has nothing more to write to it.
async fn settled(stage: &Stage, subject: &Subject) -> Result<()> {
    let kubectl = stage.kubectl();
    let output = apply(&kubectl, &subject.object).await?;
    ensure!(output.contains(" created"), "{output}");
    let name = subject.name()?;
    match subject.short {
        "er" => {
            let arguments = subject.arguments("wait", &name, &["--for=condition=Canceled", "--timeout=50s"]);
            kubectl.ok(&arguments).await?;
        }
        "ei" => {
            eventually("the interceptor to be accepted", PATIENCE, async || {
                let more = [
                    "-o",
                    "jsonpath={.status.conditions[?(@.type==\"Accepted\")].status}",
                ];
                let status = kubectl.ok(&subject.arguments("get", &name, &more)).await?;
                Ok((status == "True").then_some(()))
            })
            .await?;
        }
        _ => {}
    }
    Ok(())
}

/// Applies on the client's side, and returns kubectl's output.
async fn apply(kubectl: &Kubectl, object: &Value) -> Result<String> {
    let output = kubectl
        .run_with_input(&["apply", "-f", "-"], &object.to_string())
        .await?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && error.is_empty(), "{error}");
    String::from_utf8(output.stdout).context("kubectl writes UTF-8")
}

#[tokio::test]
async fn resources_are_discovered_and_explained() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let kubectl = stage.kubectl();
    let listed = kubectl
        .ok(&[
            "api-resources",
            "--api-group=coordination.k8s.io",
            "--no-headers",
            "-o",
            "wide",
        ])
        .await?;
    for (plural, short, namespaced, kind) in [
        ("evictionrequests", "er", "true", "EvictionRequest"),
        ("nodemaintenances", "nm", "false", "NodeMaintenance"),
        ("evictioninterceptors", "ei", "false", "EvictionInterceptor"),
        ("leases", "", "true", "Lease"),
    ] {
        let line = listed
            .lines()
            .find(|line| line.starts_with(&format!("{plural} ")))
            .with_context(|| format!("{plural} is not listed:\n{listed}"))?;
        for word in [short, namespaced, kind] {
            ensure!(
                word.is_empty() || line.split_whitespace().any(|it| it == word),
                "{word}: {line}"
            );
        }
    }
    for (plural, members) in [
        (
            "evictionrequests",
            [
                "heartbeatDeadlineSeconds",
                "activationTime",
                "failedAPIEvictionCounter",
            ],
        ),
        ("nodemaintenances", ["drainPlan", "podPriority", "stageStatuses"]),
        (
            "evictioninterceptors",
            ["interceptorName", "matchConditions", "matchedPods"],
        ),
    ] {
        let explained = kubectl.ok(&["explain", plural]).await?;
        for word in [
            "GROUP:      coordination.k8s.io",
            "VERSION:    v1alpha3",
            "spec",
            "status",
        ] {
            ensure!(explained.contains(word), "{plural}, {word}:\n{explained}");
        }
        let all = kubectl.ok(&["explain", plural, "--recursive"]).await?;
        for member in members {
            ensure!(
                all.contains(&format!("{member}\t<")),
                "{plural}, {member}:\n{all}"
            );
        }
        let spec = kubectl.ok(&["explain", &format!("{plural}.spec")]).await?;
        ensure!(
            spec.contains("DESCRIPTION:") && !spec.contains("<no description>"),
            "{spec}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn objects_are_shown() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let kubectl = stage.kubectl();
    for subject in subjects(&stage, "kubectl-show", 1).await? {
        settled(&stage, &subject).await?;
        let name = subject.name()?;
        let header = async |more: &[&str]| {
            let shown = kubectl.ok(&subject.arguments("get", &name, more)).await?;
            let first = shown.lines().next().unwrap_or_default().to_owned();
            ensure!(shown.contains(&name), "{shown}");
            Ok::<_, anyhow::Error>(first.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        let (columns, wide) = subject.columns;
        assert_eq!(header(&[]).await?, columns);
        assert_eq!(header(&["-o", "wide"]).await?, format!("{columns} {wide}"));
        let yaml = kubectl
            .ok(&subject.arguments("get", &name, &["-o", "yaml"]))
            .await?;
        ensure!(
            yaml.starts_with("apiVersion: coordination.k8s.io/v1alpha3\nkind: "),
            "{yaml}"
        );
        let read: Value = serde_saphyr::from_str(&yaml).context("read YAML")?;
        assert_eq!(read["metadata"]["name"], name);
        let named = kubectl
            .ok(&subject.arguments("get", &name, &["-o", "name"]))
            .await?;
        assert_eq!(
            named.trim_end(),
            format!("{}.coordination.k8s.io/{name}", subject.kind.to_lowercase())
        );
        let described = kubectl.ok(&subject.arguments("describe", &name, &[])).await?;
        for word in [
            format!("Name:         {name}"),
            format!("Kind:         {}", subject.kind),
        ] {
            ensure!(described.contains(&word), "{word}:\n{described}");
        }
    }
    // All kinds by their category.
    let all = kubectl.ok(&["get", "drydock", "-A", "-o", "name"]).await?;
    for kind in ["evictionrequest", "nodemaintenance", "evictioninterceptor"] {
        ensure!(
            all.contains(&format!("{kind}.coordination.k8s.io/")),
            "{kind}: {all}"
        );
    }
    Ok(())
}

/// kubectl with an object of the cluster.
struct Live<'a> {
    kubectl: Kubectl,
    subject: &'a Subject,
    name: String,
}

impl Live<'_> {
    async fn run(&self, verb: &str, more: &[&str]) -> Result<String> {
        let arguments = self.subject.arguments(verb, &self.name, more);
        self.kubectl.ok(&arguments).await
    }

    async fn fails(&self, verb: &str, more: &[&str]) -> Result<String> {
        let arguments = self.subject.arguments(verb, &self.name, more);
        fails(&self.kubectl, &arguments, "").await
    }

    async fn read(&self, pointer: &str) -> Result<Value> {
        let text = self.run("get", &["-o", "json"]).await?;
        let object: Value = serde_json::from_str(&text).context("read JSON")?;
        Ok(object.pointer(pointer).cloned().unwrap_or_default())
    }

    /// `apply` and `patch`, both types.
    async fn apply_and_patch(&self) -> Result<()> {
        let output = apply(&self.kubectl, &self.subject.object).await?;
        ensure!(output.contains(" unchanged"), "{output}");
        let (field, first, second) = &self.subject.field;
        let mut changed = self.subject.object.clone();
        changed["spec"][*field] = second.clone();
        let output = apply(&self.kubectl, &changed).await?;
        ensure!(output.contains(" configured"), "{output}");
        let pointer = format!("/spec/{field}");
        assert_eq!(&self.read(&pointer).await?, second);

        let patch = json!({ "spec": { *field: first } }).to_string();
        self.run("patch", &["--type=merge", "-p", &patch]).await?;
        assert_eq!(&self.read(&pointer).await?, first);
        let patch = json!([{ "op": "replace", "path": pointer, "value": second }]).to_string();
        self.run("patch", &["--type=json", "-p", &patch]).await?;
        assert_eq!(&self.read(&pointer).await?, second);
        Ok(())
    }

    async fn label_and_annotate(&self) -> Result<()> {
        self.run("label", &["tier=one"]).await?;
        assert_eq!(self.read("/metadata/labels/tier").await?, "one");
        self.run("annotate", &["note=some words"]).await?;
        assert_eq!(self.read("/metadata/annotations/note").await?, "some words");
        self.run("label", &["tier-"]).await?;
        assert_eq!(self.read("/metadata/labels/tier").await?, Value::Null);
        Ok(())
    }

    async fn edit_and_replace(&self) -> Result<()> {
        let (field, first, second) = &self.subject.field;
        let pointer = format!("/spec/{field}");
        let script = format!("s/{field}: .*/{field}: {first}/");
        edit(&self.kubectl, self.subject, &self.name, &script).await?;
        assert_eq!(&self.read(&pointer).await?, first);

        let mut live = self.read("").await?;
        live["spec"][*field] = second.clone();
        let arguments = ["replace", "-f", "-"];
        let output = self.kubectl.run_with_input(&arguments, &live.to_string()).await?;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        assert_eq!(&self.read(&pointer).await?, second);
        Ok(())
    }

    /// A field that another command has changed is a conflict, which `--force-conflicts` takes.
    async fn apply_server_side(&self) -> Result<()> {
        let (field, first, second) = &self.subject.field;
        let pointer = format!("/spec/{field}");
        let object = self.subject.object.to_string();
        let arguments = ["apply", "--server-side", "--field-manager=deployer", "-f", "-"];
        let error = fails(&self.kubectl, &arguments, &object).await?;
        ensure!(
            error.contains("Apply failed with 1 conflict") && error.contains(&format!(".spec.{field}")),
            "{error}"
        );
        assert_eq!(&self.read(&pointer).await?, second);
        let forced = [&arguments[..], &["--force-conflicts"]].concat();
        for arguments in [&forced[..], &arguments] {
            let output = self.kubectl.run_with_input(arguments, &object).await?;
            let (stdout, stderr) = (text_of(&output.stdout), text_of(&output.stderr));
            ensure!(stdout.contains("serverside-applied"), "{stdout}{stderr}");
            assert_eq!(&self.read(&pointer).await?, first);
        }
        let owners = [
            "-o",
            "jsonpath={.metadata.managedFields}",
            "--show-managed-fields",
        ];
        let owners = self.run("get", &owners).await?;
        ensure!(
            owners.contains(r#""manager":"deployer","operation":"Apply""#),
            "{owners}"
        );
        Ok(())
    }

    /// `diff`, dry runs by the server, and `wait`.
    async fn compare_and_wait(&self) -> Result<()> {
        let (field, first, second) = &self.subject.field;
        let mut changed = self.subject.object.clone();
        changed["spec"][*field] = second.clone();
        let changed = changed.to_string();
        for more in [&[][..], &["--server-side", "--field-manager=deployer"]] {
            let diff = [&["diff", "-f", "-"], more].concat();
            let output = self.kubectl.run_with_input(&diff, &changed).await?;
            let shown = text_of(&output.stdout);
            ensure!(
                output.status.code() == Some(1),
                "{shown}{}",
                text_of(&output.stderr)
            );
            let [before, after] = [first, second].map(text_or_number);
            let lines = [format!("-  {field}: {before}"), format!("+  {field}: {after}")];
            ensure!(lines.iter().all(|line| shown.contains(line)), "{shown}");
            let apply = [&["apply", "--dry-run=server", "-f", "-"], more].concat();
            let output = self.kubectl.run_with_input(&apply, &changed).await?;
            let shown = text_of(&output.stdout);
            ensure!(
                shown.contains("(server dry run)"),
                "{shown}{}",
                text_of(&output.stderr)
            );
            assert_eq!(&self.read(&format!("/spec/{field}")).await?, first);
        }
        let met = format!("--for=jsonpath={{.spec.{field}}}={}", text_or_number(first));
        let output = self.run("wait", &[&met, "--timeout=30s"]).await?;
        ensure!(output.contains("condition met"), "{output}");
        let unmet = format!("--for=jsonpath={{.spec.{field}}}={}", text_or_number(second));
        let error = self.fails("wait", &[&unmet, "--timeout=1s"]).await?;
        ensure!(error.contains("timed out waiting for the condition"), "{error}");
        Ok(())
    }

    /// Strategic merge patches are the default of `kubectl patch`.
    async fn patch_strategically(&self) -> Result<()> {
        let patch = r#"{"metadata":{"annotations":{"example.com/strategic":"yes"}}}"#;
        let output = self.run("patch", &["-p", patch]).await?;
        ensure!(output.contains("patched"), "{output}");
        let path = "jsonpath={.metadata.annotations.example\\.com/strategic}";
        assert_eq!(self.run("get", &["-o", path]).await?, "yes");
        Ok(())
    }

    async fn delete(&self) -> Result<()> {
        let output = self.run("delete", &["--wait=true", "--timeout=30s"]).await?;
        ensure!(output.contains("deleted"), "{output}");
        let error = self.fails("get", &[]).await?;
        ensure!(error.contains("NotFound"), "{error}");
        Ok(())
    }
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A value as kubectl prints it.
fn text_or_number(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[tokio::test]
async fn objects_are_changed() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let kubectl = stage.kubectl();
    changes(&stage, kubectl, "kubectl-change", 2).await
}

#[tokio::test]
async fn kubectl_of_another_release_changes_objects() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let other = match stage.control_plane().options().minor_release() {
        "1.34" => DEFAULT_KUBERNETES_VERSION,
        _ => "1.34.4",
    };
    let kubectl = Kubectl {
        binary: cluster::kubectl(other).await?,
        ..stage.kubectl()
    };
    changes(&stage, kubectl, "kubectl-other", 4).await
}

/// Changes an object of each kind by every command that writes.
async fn changes(stage: &Stage, kubectl: Kubectl, test: &str, number: u64) -> Result<()> {
    for subject in subjects(stage, test, number).await? {
        settled(stage, &subject).await?;
        let live = Live {
            kubectl: kubectl.clone(),
            subject: &subject,
            name: subject.name()?,
        };
        live.apply_and_patch().await?;
        live.label_and_annotate().await?;
        live.edit_and_replace().await?;
        live.apply_server_side().await?;
        live.compare_and_wait().await?;
        live.patch_strategically().await?;
        live.delete().await?;
    }
    Ok(())
}

/// Edits an object with an editor that runs a sed script.
async fn edit(kubectl: &Kubectl, subject: &Subject, name: &str, script: &str) -> Result<()> {
    let output = Command::new(&kubectl.binary)
        .args(subject.arguments("edit", name, &[]))
        .env("KUBECONFIG", &kubectl.kubeconfig)
        .env("HOME", &kubectl.home)
        .env("KUBE_EDITOR", format!("sed -i '{script}'"))
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(PATIENCE, output)
        .await
        .context("the edit did not end")??;
    let shown = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success() && shown.contains("edited"),
        "{shown}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

#[tokio::test]
async fn a_watch_shows_every_change_as_a_row() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let kubectl = stage.kubectl();
    let name = "kubectl-watch";
    apply(&kubectl, &idle_maintenance(name, "nowhere")).await?;
    let mut child = Command::new(&kubectl.binary)
        .args(["get", "nm", name, "--watch", "-o", "wide", "--no-headers"])
        .env("KUBECONFIG", &kubectl.kubeconfig)
        .env("HOME", &kubectl.home)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("start kubectl")?;
    let mut lines = BufReader::new(child.stdout.take().context("kubectl's output")?).lines();
    let mut row = async || timeout(PATIENCE, lines.next_line()).await?.context("read a row");
    let first = row().await?.context("a row")?;
    ensure!(first.starts_with(name), "{first}");
    for reason in ["one", "two", "three"] {
        let patch = json!({ "spec": { "reason": reason } }).to_string();
        kubectl
            .ok(&["patch", "nm", name, "--type=merge", "-p", &patch])
            .await?;
        let next = row().await?.context("a row")?;
        ensure!(
            next.starts_with(name) && next.trim_end().ends_with(reason),
            "{reason}: {next}"
        );
    }
    kubectl.ok(&["delete", "nm", name]).await?;
    child.kill().await.context("end kubectl")?;
    Ok(())
}

#[tokio::test]
async fn unknown_fields_are_rejected() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let mut wrong = idle_maintenance("kubectl-unknown", "nowhere");
    wrong["spec"]["surprise"] = json!(true);
    let output = stage
        .kubectl_fails(&["create", "-f", "-"], &wrong.to_string())
        .await?;
    ensure!(output.contains("unknown field \"spec.surprise\""), "{output}");
    let output = stage.kubectl_fails(&["get", "nm", "kubectl-unknown"], "").await?;
    ensure!(
        output.contains("nodemaintenances.coordination.k8s.io \"kubectl-unknown\" not found"),
        "{output}"
    );
    Ok(())
}
