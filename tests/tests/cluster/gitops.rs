//! Tools that keep objects as declared in Git, and the requests of such tools: kustomize, Flux, Argo CD, Helm, Terraform, and a
//! controller on controller-runtime. The programs come from `tests/clients/gitops`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::clients::Kubectl;
use serde_json::Value;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::time::timeout;

use crate::stage::{PATIENCE, Stage, ends_with_done, together};

/// The folder of the built programs.
async fn programs() -> Result<PathBuf> {
    let built = Command::new(sources().join("build.sh"))
        .stderr(Stdio::inherit())
        .output()
        .await?;
    ensure!(
        built.status.success(),
        "the GitOps programs could not be built: see standard error"
    );
    Ok(PathBuf::from(String::from_utf8(built.stdout)?.trim_end()))
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/gitops")
}

/// Runs a program to its end and returns what it printed.
async fn run(command: &mut Command) -> Result<String> {
    let output = timeout(PATIENCE, command.kill_on_drop(true).output())
        .await
        .context("the program did not end")??;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {error}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}

/// The manifests with a prefix before each name, as kustomize prints them.
async fn manifests(programs: &Path, prefix: &str) -> Result<String> {
    let folder = TempDir::new()?;
    fs::copy(
        sources().join("manifests/resources.yaml"),
        folder.path().join("resources.yaml"),
    )?;
    let kustomization = format!(
        "namePrefix: {prefix}-\n\
         resources: [resources.yaml]\n\
         commonAnnotations: {{ example.com/team: storage }}\n\
         patches:\n\
         - target: {{ kind: NodeMaintenance }}\n  \
           patch: '[{{\"op\": \"replace\", \"path\": \"/spec/reason\", \"value\": \"kernel update\"}}]'\n\
         replacements:\n\
         - source: {{ kind: EvictionInterceptor, fieldPath: metadata.name }}\n  \
           targets: [{{ select: {{ kind: EvictionInterceptor }}, fieldPaths: [spec.interceptorName] }}]\n"
    );
    fs::write(folder.path().join("kustomization.yaml"), kustomization)?;
    run(Command::new(programs.join("kustomize"))
        .arg("build")
        .arg(folder.path()))
    .await
}

async fn maintenance(kubectl: &Kubectl, name: &str) -> Result<Value> {
    let shown = kubectl
        .ok(&[
            "get",
            "nodemaintenance",
            name,
            "-o",
            "json",
            "--show-managed-fields",
        ])
        .await?;
    Ok(serde_json::from_str(&shown)?)
}

/// The managers of an object's fields, with the operation.
fn managers(object: &Value) -> Vec<(&str, &str)> {
    let entries = object["metadata"]["managedFields"].as_array();
    entries
        .into_iter()
        .flatten()
        .filter_map(|entry| Some((entry["manager"].as_str()?, entry["operation"].as_str()?)))
        .collect()
}

async fn delete(kubectl: &Kubectl, manifests: &str) -> Result<()> {
    let output = kubectl.run_with_input(&["delete", "-f", "-"], manifests).await?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

#[tokio::test]
async fn kustomize_builds_what_kubectl_applies_and_compares() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let manifests = manifests(&programs().await?, "kustomize").await?;
    let kubectl = stage.kubectl();
    let applied = kubectl.apply(&manifests).await?;
    assert_eq!(applied.matches("serverside-applied").count(), 2, "{applied}");
    let first = maintenance(&kubectl, "kustomize-rack").await?;
    assert_eq!(first["spec"]["reason"], "kernel update");
    assert_eq!(first["metadata"]["annotations"]["example.com/team"], "storage");

    // Exit code 1 would be a difference.
    let same = kubectl
        .run_with_input(&["diff", "--server-side", "-f", "-"], &manifests)
        .await?;
    assert_eq!(
        same.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&same.stdout)
    );
    let changed = manifests.replace("kernel update", "disk replacement");
    let different = kubectl
        .run_with_input(&["diff", "--server-side", "-f", "-"], &changed)
        .await?;
    assert_eq!(different.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&different.stdout).contains("+  reason: disk replacement"));

    kubectl.apply(&manifests).await?;
    let again = maintenance(&kubectl, "kustomize-rack").await?;
    assert_eq!(
        again["metadata"]["resourceVersion"],
        first["metadata"]["resourceVersion"]
    );
    delete(&kubectl, &manifests).await
}

#[tokio::test]
async fn flux_applies_detects_drift_waits_and_prunes() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let programs = programs().await?;
    let file = TempDir::new()?;
    let path = file.path().join("manifests.yaml");
    fs::write(&path, manifests(&programs, "flux").await?)?;
    let mut flux = Command::new(programs.join("flux"));
    flux.arg("-kubeconfig")
        .arg(stage.control_plane().admin_kubeconfig())
        .stdin(fs::File::open(&path)?);
    ends_with_done(&mut flux).await
}

/// Argo CD syncs by kubectl's code with these flags, and finds differences by the same apply as a dry run.
#[tokio::test]
async fn argo_cd_syncs_with_force_and_finds_no_difference_afterwards() -> Result<()> {
    const SYNC: [&str; 6] = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "--field-manager=argocd-controller",
        "--validate=false",
        "-f",
    ];
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let kubectl = stage.kubectl();
    let manifests = manifests(&programs().await?, "argo").await?.replace(
        "example.com/team: storage",
        "argocd.argoproj.io/tracking-id: app:coordination.k8s.io/NodeMaintenance:/argo-rack",
    );
    let sync = [SYNC.as_slice(), &["-"]].concat();
    // Somebody made the object by hand before, and owns the field.
    let by_hand = manifests.replace("kernel update", "made by hand");
    kubectl.apply(&by_hand).await?;
    let output = kubectl.run_with_input(&sync, &manifests).await?;
    ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );

    let live = maintenance(&kubectl, "argo-rack").await?;
    assert_eq!(live["spec"]["reason"], "kernel update");
    assert!(
        managers(&live).contains(&("argocd-controller", "Apply")),
        "{live}"
    );
    let predict = [
        sync.as_slice(),
        &["--dry-run=server", "-o", "json", "--show-managed-fields"],
    ]
    .concat();
    let output = kubectl.run_with_input(&predict, &manifests).await?;
    let predicted: Value = serde_json::from_slice(&output.stdout)?;
    let predicted = predicted["items"].as_array().context("a list of two")?;
    assert!(predicted.contains(&live), "{predicted:?} without {live}");
    delete(&kubectl, &manifests).await
}

/// Argo CD itself, by its engine: both ways of applying, differences, health, drift, pruning, and its cache of both versions.
#[tokio::test]
async fn the_engine_of_argo_cd_syncs_compares_prunes_and_follows() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let programs = programs().await?;
    let kubeconfig = stage.control_plane().admin_kubeconfig();
    let folder = TempDir::new()?;
    for (name, arguments) in [("argo-server", ["-server-side"].as_slice()), ("argo-client", &[])] {
        let path = folder.path().join(name);
        fs::write(&path, manifests(&programs, name).await?)?;
        let mut argo = Command::new(programs.join("argo-cd"));
        argo.arg("-kubeconfig")
            .arg(&kubeconfig)
            .args(arguments)
            // The engine writes manifests and a kubeconfig to files.
            .env("TMPDIR", folder.path())
            .stdin(fs::File::open(&path)?);
        ends_with_done(&mut argo).await?;
    }
    Ok(())
}

/// Helm of release 4, which applies on the server, with the release's record in a namespace of this test.
struct Helm {
    program: PathBuf,
    home: TempDir,
    kubeconfig: PathBuf,
    namespace: String,
}

impl Helm {
    async fn new(stage: &Stage, programs: &Path) -> Result<Self> {
        Ok(Self {
            program: programs.join("helm"),
            home: TempDir::new()?,
            kubeconfig: stage.control_plane().admin_kubeconfig().clone(),
            namespace: stage.namespace("helm").await?,
        })
    }

    async fn run(&self, arguments: &[&str]) -> Result<String> {
        run(Command::new(&self.program)
            .args(arguments)
            .args(["--namespace", &self.namespace])
            .env("HOME", self.home.path())
            .env("KUBECONFIG", &self.kubeconfig))
        .await
    }
}

#[tokio::test]
async fn helm_installs_upgrades_rolls_back_and_uninstalls() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let helm = Helm::new(&stage, &programs().await?).await?;
    let kubectl = stage.kubectl();
    let chart = sources().join("chart");
    let chart = chart.to_str().context("the path is UTF-8")?;
    let reason = async || {
        let live = maintenance(&kubectl, "helm-rack").await?;
        Ok::<_, anyhow::Error>((
            live["spec"]["reason"].clone(),
            live["metadata"]["resourceVersion"].clone(),
        ))
    };

    helm.run(&["install", "helm-rack", chart, "--wait"]).await?;
    let live = maintenance(&kubectl, "helm-rack").await?;
    assert!(managers(&live).contains(&("helm", "Apply")), "{live}");
    let (installed, version) = reason().await?;
    assert_eq!(installed, "firmware update");
    helm.run(&["upgrade", "helm-rack", chart, "--wait"]).await?;
    assert_eq!(reason().await?.1, version, "an upgrade without a change");
    helm.run(&[
        "upgrade",
        "helm-rack",
        chart,
        "--wait",
        "--set",
        "reason=kernel update",
    ])
    .await?;
    assert_eq!(reason().await?.0, "kernel update");
    helm.run(&["rollback", "helm-rack", "1", "--wait"]).await?;
    assert_eq!(reason().await?.0, "firmware update");
    helm.run(&["uninstall", "helm-rack", "--wait"]).await?;
    let gone = kubectl
        .ok(&["get", "nodemaintenances,evictioninterceptors", "-o", "name"])
        .await?;
    assert!(!gone.contains("helm-rack"), "{gone}");
    kubectl
        .ok(&["delete", "namespace", &helm.namespace, "--wait=false"])
        .await?;
    Ok(())
}

#[tokio::test]
async fn terraform_plans_what_it_applies_and_changes_nothing_twice() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let mut terraform = Command::new(programs().await?.join("terraform"));
    terraform
        .arg("-kubeconfig")
        .arg(stage.control_plane().admin_kubeconfig())
        .args(["-name", "terraform-rack"]);
    ends_with_done(&mut terraform).await
}

#[tokio::test]
async fn a_controller_on_controller_runtime_reconciles_from_its_cache() -> Result<()> {
    let Some(stage) = together().await? else {
        return Ok(());
    };
    let mut controller = Command::new(programs().await?.join("controller"));
    controller
        .arg("-kubeconfig")
        .arg(stage.control_plane().admin_kubeconfig())
        .args(["-prefix", "controller-runtime"]);
    ends_with_done(&mut controller).await
}
