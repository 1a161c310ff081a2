//! The pages for people: their commands are run, their manifests and files are used. `plugin_page` and `bridge` follow two more.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::clients::Kubectl;
use drydock_tests::cluster::{ControlPlane, Drydock, Options, Part, Server, own_binaries, shared};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::timeout;

use crate::plugin_page::{blocks, repository};
use crate::stage::{PATIENCE, is_true, requests_of, together};

/// Each page that has commands, manifests or files, and what uses them.
const PAGES: &[(&str, &str)] = &[
    (
        "deploy/README.md",
        "pages::drydock_is_installed_operated_and_removed_as_the_pages_say",
    ),
    (
        "docs/admission.md",
        "pages::files_and_manifests_of_the_pages_are_accepted",
    ),
    (
        "docs/audit.md",
        "pages::files_and_manifests_of_the_pages_are_accepted",
    ),
    ("docs/encryption.md", "encryption"),
    ("docs/etcd.md", "standalone: etcd::runbooks"),
    (
        "docs/kinds/evictioninterceptor.md",
        "plugin_page, pages::the_worked_examples_of_the_kinds_can_be_followed",
    ),
    (
        "docs/kinds/evictionrequest.md",
        "plugin_page, pages::the_worked_examples_of_the_kinds_can_be_followed",
    ),
    (
        "docs/kinds/nodemaintenance.md",
        "plugin_page, pages::the_worked_examples_of_the_kinds_can_be_followed",
    ),
    ("docs/kubectl-drydock.md", "plugin_page"),
    ("docs/neighbours.md", "bridge, client_certificates"),
    (
        "docs/operating.md",
        "pages::drydock_is_installed_operated_and_removed_as_the_pages_say",
    ),
    (
        "docs/storage.md",
        "pages::drydock_is_installed_operated_and_removed_as_the_pages_say",
    ),
    (
        "docs/tracing.md",
        "pages::files_and_manifests_of_the_pages_are_accepted",
    ),
    (
        "docs/writing-an-interceptor.md",
        "pages::an_interceptor_can_be_written_as_the_page_says",
    ),
];

fn page(name: &str) -> Result<String> {
    let path = repository()?.join(name);
    std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
}

/// The Markdown files of a folder.
fn markdown(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let paths = entries.map(|entry| Ok(entry?.path()));
    let mut paths = paths.collect::<Result<Vec<_>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    Ok(paths)
}

#[test]
fn every_page_with_commands_is_followed_by_a_test() -> Result<()> {
    let repository = repository()?;
    let mut found = vec![repository.join("deploy/README.md")];
    for folder in ["docs", "docs/kinds"] {
        found.extend(markdown(&repository.join(folder))?);
    }
    let known: BTreeMap<&str, &str> = PAGES.iter().copied().collect();
    for path in found {
        let text = std::fs::read_to_string(&path)?;
        let has_code = ["sh", "yaml", "json"]
            .iter()
            .any(|language| !blocks(&text, language).is_empty());
        let name = path.strip_prefix(&repository)?.display().to_string();
        ensure!(
            has_code == known.contains_key(name.as_str()),
            "{name} is not followed, or has nothing to follow"
        );
    }
    Ok(())
}

/// A shell with kubectl and the plugin of a cluster, in a folder.
struct Shell {
    kubectl: Kubectl,
    path: String,
    folder: tempfile::TempDir,
    variables: Vec<(String, String)>,
}

impl Shell {
    /// In a new folder that has `deploy/` as the repository does.
    async fn new(cluster: &ControlPlane) -> Result<Self> {
        let kubectl = cluster.admin();
        let folder = tempfile::tempdir().context("a folder")?;
        std::os::unix::fs::symlink(repository()?.join("deploy"), folder.path().join("deploy"))?;
        // The command is called kubectl, and nothing else that is beside it is found.
        std::os::unix::fs::symlink(&kubectl.binary, folder.path().join("kubectl"))?;
        Ok(Self {
            path: format!(
                "{}:{}:/usr/bin:/bin",
                folder.path().display(),
                own_binaries().await?.display()
            ),
            kubectl,
            folder,
            variables: Vec::new(),
        })
    }

    /// Writes the YAML blocks of a page that begin with the name of a file.
    fn write_files(&self, page: &str) -> Result<()> {
        for block in blocks(page, "yaml") {
            if let Some(name) = block.lines().next().and_then(|line| line.strip_prefix("# "))
                && Path::new(name)
                    .extension()
                    .is_some_and(|extension| extension == "yaml")
            {
                std::fs::write(self.folder.path().join(name), block)
                    .with_context(|| format!("write {name}"))?;
            }
        }
        Ok(())
    }

    /// Runs a script that succeeds. Returns what it printed.
    async fn run(&self, script: &str) -> Result<String> {
        self.ends(script, 0).await
    }

    /// Runs a script that ends with this code. Returns what it printed.
    async fn ends(&self, script: &str, code: i32) -> Result<String> {
        let output = Command::new("/usr/bin/bash")
            .args(["-euo", "pipefail", "-c", script])
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", &self.path)
            .env("KUBECONFIG", &self.kubectl.kubeconfig)
            .env("HOME", &self.kubectl.home)
            .envs(self.variables.iter().cloned())
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = timeout(PATIENCE * 2, output)
            .await
            .with_context(|| format!("{script}\ndid not end"))??;
        let (out, error) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        ensure!(
            output.status.code() == Some(code),
            "{script}\nended with {}:\n{out}{error}",
            output.status
        );
        Ok(out.into_owned())
    }
}

#[tokio::test]
async fn an_interceptor_can_be_written_as_the_page_says() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let page = page("docs/writing-an-interceptor.md")?;
    let namespace = stage.namespace("accounts").await?;
    let ledger = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "ledger-0", "namespace": namespace, "labels": { "app": "ledger" } },
        "spec": { "schedulerName": "nobody", "containers": [{ "name": "main", "image": "main" }] },
    });
    stage.kubectl().apply(&ledger.to_string()).await?;
    let shell = Shell::new(stage.control_plane()).await?;
    shell.write_files(&page)?;
    let mut printed = String::new();
    let scripts = blocks(&page, "sh");
    ensure!(scripts.len() == 6, "{scripts:?}");
    for script in scripts {
        printed.push_str(&shell.run(script).await?);
    }
    for expected in ["backup.example.com", "copying 12 GiB", "condition met"] {
        ensure!(printed.contains(expected), "{expected}: {printed}");
    }
    let requests = stage.host()?.get(&requests_of(&namespace)).await?.expect(200)?;
    let request = &requests["items"][0];
    ensure!(is_true(request, "Evicted"), "{request}");
    assert_eq!(
        request["status"]["processedInterceptors"],
        json!(["backup.example.com"]),
        "{request}"
    );
    shell.run("kubectl delete ei backup.example.com").await?;
    Ok(())
}

#[tokio::test]
async fn the_worked_examples_of_the_kinds_can_be_followed() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let pod = |namespace: &str, name: &str, app: &str, node: Option<&str>| {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "namespace": namespace, "labels": { "app": app } },
            "spec": {
                "schedulerName": "nobody", "terminationGracePeriodSeconds": 1,
                "containers": [{ "name": "main", "image": "main" }],
            },
        });
        if let Some(node) = node {
            pod["spec"]["nodeName"] = json!(node);
        }
        pod
    };
    for namespace in ["carts", "orders", "racks"] {
        stage.namespace(namespace).await?;
    }
    for node in ["rack-1", "rack-2"] {
        stage.control_plane().add_node(node, &[("rack", "r7")]).await?;
    }
    let mut cart = pod("carts", "cart-0", "cart", None);
    cart["metadata"]["annotations"] =
        json!({ "evictionrequest.coordination.k8s.io/interceptors": "backup.example.com" });
    let pods = json!({ "apiVersion": "v1", "kind": "List", "items": [
        cart, pod("orders", "orders-0", "orders", None),
        pod("racks", "web-0", "web", Some("rack-1")), pod("racks", "database-0", "database", Some("rack-2")),
    ] });
    stage.kubectl().apply(&pods.to_string()).await?;
    let shell = Shell::new(stage.control_plane()).await?;
    for (name, count) in [
        ("evictionrequest", 3),
        ("evictioninterceptor", 2),
        ("nodemaintenance", 3),
    ] {
        let page = page(&format!("docs/kinds/{name}.md"))?;
        let scripts = blocks(&page, "sh");
        ensure!(scripts.len() == count, "{name}: {scripts:?}");
        let mut printed = String::new();
        for script in scripts {
            printed.push_str(&shell.run(script).await?);
        }
        // What the page shows of the output.
        for line in blocks(&page, "text").iter().flat_map(|block| block.lines()) {
            ensure!(
                printed.lines().any(|printed| printed.trim_end() == line),
                "{line:?} of {name}: {printed}"
            );
        }
    }
    let left = shell
        .run("kubectl get pods -n racks -o name; kubectl get nodes rack-1 rack-2 --no-headers")
        .await?;
    ensure!(
        !left.contains("pod/") && !left.contains("SchedulingDisabled"),
        "{left}"
    );
    shell.run("kubectl delete node rack-1 rack-2").await?;
    Ok(())
}

#[tokio::test]
async fn files_and_manifests_of_the_pages_are_accepted() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let admission = page("docs/admission.md")?;
    let (files, manifests): (Vec<_>, Vec<_>) = blocks(&admission, "yaml")
        .into_iter()
        .partition(|block| block.contains("kind: AdmissionConfiguration"));
    for manifest in manifests {
        let arguments = ["create", "--dry-run=server", "--validate=strict", "-f", "-"];
        let output = stage.kubectl().run_with_input(&arguments, manifest).await?;
        let error = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{error}");
    }
    let folder = tempfile::tempdir().context("a folder")?;
    let mut flags = vec![format!(
        "--audit-log-path={}",
        folder.path().join("audit.log").display()
    )];
    for (name, flag) in [
        ("docs/audit.md", "audit-policy-file"),
        ("docs/tracing.md", "tracing-config-file"),
    ] {
        let page = page(name)?;
        let files = blocks(&page, "yaml");
        let path = folder.path().join(flag);
        std::fs::write(&path, files.first().context("a file")?)?;
        ensure!(files.len() == 1 && page.contains(&format!("--{flag}")), "{name}");
        flags.push(format!("--{flag}={}", path.display()));
    }
    let path = folder.path().join("admission.yaml");
    let kubeconfig = stage.control_plane().somebody_kubeconfig();
    let file = files.first().context("a file")?;
    let shown = "/etc/drydock/webhooks.kubeconfig";
    ensure!(files.len() == 1 && file.contains(shown), "{files:?}");
    std::fs::write(&path, file.replace(shown, &kubeconfig.display().to_string()))?;
    flags.push(format!("--admission-control-config-file={}", path.display()));
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    // It does not become ready with a file that it does not understand.
    Server::start_with(stage.drydock, "files-of-the-pages", &flags)
        .await
        .map(drop)
}

/// What cert-manager would serve: enough for its manifests to be accepted.
fn cert_manager() -> Value {
    let kind = |plural: &str, kind: &str| {
        let any = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": format!("{plural}.cert-manager.io") },
            "spec": {
                "group": "cert-manager.io", "scope": "Namespaced",
                "names": { "plural": plural, "singular": kind.to_lowercase(), "kind": kind },
                "versions": [{ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": any } }],
            },
        })
    };
    let kinds = [kind("certificates", "Certificate"), kind("issuers", "Issuer")];
    json!({ "apiVersion": "v1", "kind": "List", "items": kinds })
}

/// The volume of the server's claim, for which this cluster has no provisioner.
fn volume() -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "drydock-data" },
        "spec": {
            "capacity": { "storage": "100Gi" }, "accessModes": ["ReadWriteOncePod"],
            "hostPath": { "path": "/var/lib/drydock" },
            "claimRef": { "namespace": "drydock-system", "name": "data-drydock-apiserver-0" },
        },
    })
}

/// The commands of README.md for its application, with the plugin and without it.
async fn follow_readme(shell: &Shell) -> Result<()> {
    shell
        .run(
            "kubectl apply -f deploy/demo/application.yaml
             kubectl wait --for=condition=Ready --timeout=50s pod/web-1 pod/web-2 pod/web-3 pod/database-0",
        )
        .await?;
    let readme = page("README.md")?;
    let scripts = blocks(&readme, "sh");
    let with_plugin = scripts
        .iter()
        .find(|script| script.contains("kubectl drydock drain"));
    let lines: Vec<&str> = with_plugin.context("commands of the plugin")?.lines().collect();
    let [preflight, drain, explain, delete, complete] = lines.as_slice() else {
        anyhow::bail!("{lines:?}");
    };
    shell.ends(preflight, 8).await?;
    let beside = async {
        let explained = shell.run(explain).await?;
        ensure!(explained.contains("database-0"), "{explained}");
        shell.run(delete).await
    };
    tokio::try_join!(shell.run(drain), beside)?;
    shell.run(complete).await?;
    let without = scripts
        .iter()
        .find(|script| script.contains("deploy/demo/maintenance.yaml"));
    shell.run(without.context("commands of kubectl")?).await?;
    Ok(())
}

/// A control plane with what the pages take for granted: two nodes, cert-manager, and a volume.
async fn bare_cluster() -> Result<ControlPlane> {
    let cluster = ControlPlane::start(Options::default()).await?;
    for node in ["node-a", "node-b"] {
        cluster.add_node(node, &[]).await?;
    }
    let kubectl = cluster.admin();
    kubectl.apply(&cert_manager().to_string()).await?;
    kubectl.apply(&volume().to_string()).await?;
    for kind in ["certificates", "issuers"] {
        kubectl
            .wait(
                &format!("crd/{kind}.cert-manager.io"),
                "",
                "condition=Established",
            )
            .await?;
    }
    Ok(cluster)
}

/// Installs Drydock as deploy/README.md says, in every way.
async fn install<'a>(shell: &Shell, cluster: &'a ControlPlane) -> Result<Drydock<'a>> {
    let page = page("deploy/README.md")?;
    let scripts = blocks(&page, "sh");
    let [
        with_manager,
        without_manager,
        check,
        several,
        bridge,
        bridge_without_manager,
    ] = scripts.as_slice()
    else {
        anyhow::bail!("{scripts:?}");
    };
    // The workloads do not run here: the simulated kubelets say that they do.
    for script in [
        with_manager,
        without_manager,
        several,
        bridge,
        bridge_without_manager,
    ] {
        shell.run(script).await?;
    }
    // From here on, as processes on this machine, they do.
    shell
        .run(
            "kubectl delete -f deploy/apiserver/apiservice.yaml -f deploy/apiserver/service.yaml -f deploy/etcd/
             kubectl delete -f deploy/rbac/ -f deploy/bridge/rbac.yaml
             kubectl apply -f deploy/apiserver/statefulset.yaml",
        )
        .await?;
    let drydock = Drydock::start(cluster).await?;
    shell.run(check).await?;
    Ok(drydock)
}

/// Operates and removes it as docs/operating.md says. Returns what the commands printed.
async fn operate(shell: &mut Shell, drydock: &Drydock<'_>) -> Result<String> {
    let cluster = drydock.control_plane();
    let authority = cluster.pki().drydock.certificate();
    std::fs::write(shell.folder.path().join("ca.crt"), authority)?;
    let port = drydock.address().port().to_string();
    let create = ["create", "token", "default", "-n", "default"];
    let token = cluster.admin().ok(&create).await?;
    shell
        .variables
        .push(("TOKEN".to_owned(), token.trim().to_owned()));
    // The server is on this machine already.
    let here = |script: &str| {
        let lines = script.lines().filter(|line| !line.contains("port-forward"));
        let lines: Vec<String> = lines.map(|line| line.replace("8443", &port)).collect();
        lines.join("\n")
    };
    let (operating, storage) = (page("docs/operating.md")?, page("docs/storage.md")?);
    let scripts = blocks(&operating, "sh");
    ensure!(scripts.len() == 6, "{scripts:?}");
    let mut printed = String::new();
    for script in &scripts {
        if script.contains("kubectl delete apiservice") {
            drydock.stop_part(Part::Controller).await?;
        }
        printed.push_str(&shell.run(&here(script)).await?);
        if script.contains("/storage/backups") {
            let scripts = blocks(&storage, "sh");
            printed.push_str(&shell.run(&here(scripts.first().context("a backup")?)).await?);
        }
    }
    Ok(printed)
}

#[tokio::test]
async fn drydock_is_installed_operated_and_removed_as_the_pages_say() -> Result<()> {
    if shared().await?.is_none() {
        return Ok(());
    }
    let cluster = bare_cluster().await?;
    let mut shell = Shell::new(&cluster).await?;
    let drydock = install(&shell, &cluster).await?;
    follow_readme(&shell).await?;
    let printed = operate(&mut shell, &drydock).await?;
    for expected in [
        "v1alpha3.coordination.k8s.io",
        "\"revision\"",
        "yes\nyes",
        "successfully rolled out",
    ] {
        ensure!(printed.contains(expected), "{expected}: {printed}");
    }
    // Nothing of it is left, and namespaces can be deleted.
    let left = shell
        .run(
            "kubectl get apiservices,clusterroles,clusterrolebindings,validatingwebhookconfigurations \
             -l app.kubernetes.io/part-of=drydock -o name
             kubectl create namespace afterwards >&2
             kubectl delete namespace afterwards --timeout=50s >&2",
        )
        .await?;
    ensure!(left.is_empty(), "{left}");
    Ok(())
}
