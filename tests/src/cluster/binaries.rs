//! The binaries of a cluster.
//!
//! `tests/cluster/build.sh` builds those of the control plane once per machine; cargo builds the project's own each
//! time, so that no test runs against an old server.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::process::Command;

/// The Kubernetes release that suites run against, unless `DRYDOCK_KUBERNETES_VERSION` names another.
pub const DEFAULT_KUBERNETES_VERSION: &str = "1.37.2";

/// The folder with the control plane of one release.
#[derive(Clone, Debug)]
pub struct Binaries {
    folder: PathBuf,
}

impl Binaries {
    /// The control plane of a Kubernetes release such as `1.37.2`, built if this machine has none.
    ///
    /// # Errors
    /// The build failed: Go is missing, a module cannot be fetched, or the release is not known. The script's message
    /// is on standard error.
    pub async fn build(kubernetes_version: &str) -> Result<Self> {
        let script = repository().join("tests/cluster/build.sh");
        let folder = built_by(&script, &[kubernetes_version])
            .await
            .with_context(|| format!("build the control plane of Kubernetes {kubernetes_version}"))?;
        Ok(Self { folder })
    }

    /// The path of one command, such as `kubectl`.
    #[must_use]
    pub fn command(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// kwok's stage files, which define the life cycle of its nodes and pods.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn stages(&self) -> Result<Vec<PathBuf>> {
        let folder = self.folder.join("stages");
        let mut stages = std::fs::read_dir(&folder)
            .and_then(|entries| {
                entries
                    .map(|entry| Ok(entry?.path()))
                    .collect::<std::io::Result<Vec<_>>>()
            })
            .with_context(|| format!("list {}", folder.display()))?;
        stages.sort();
        Ok(stages)
    }
}

/// The folder of `etcd`, `etcdctl` and `etcdutl`, built if this machine has none.
///
/// # Errors
/// The build failed; the script's message is on standard error.
pub(super) async fn etcd_folder() -> Result<PathBuf> {
    let script = repository().join("tests/cluster/build.sh");
    built_by(&script, &["etcd"]).await.context("build etcd")
}

/// The aggregated server in Go, built if this machine has none.
///
/// # Errors
/// The build failed; the script's message is on standard error.
pub(super) async fn sample_apiserver() -> Result<PathBuf> {
    let script = repository().join("tests/cluster/build.sh");
    let folder = built_by(&script, &["sample-apiserver"])
        .await
        .context("build sample-apiserver")?;
    Ok(folder.join("sample-apiserver"))
}

/// `kubectl` of a Kubernetes release such as `1.34.4`, built if this machine has none.
///
/// # Errors
/// The build failed; the script's message is on standard error.
pub async fn kubectl(kubernetes_version: &str) -> Result<PathBuf> {
    let script = repository().join("tests/cluster/build.sh");
    let folder = built_by(&script, &["kubectl", kubernetes_version])
        .await
        .with_context(|| format!("build kubectl {kubernetes_version}"))?;
    Ok(folder.join("kubectl"))
}

/// The descheduler, built if this machine has none.
///
/// # Errors
/// The build failed; the script's message is on standard error.
pub async fn descheduler() -> Result<PathBuf> {
    let script = repository().join("tests/cluster/build.sh");
    let folder = built_by(&script, &["descheduler"])
        .await
        .context("build the descheduler")?;
    Ok(folder.join("descheduler"))
}

/// The folder of `prometheus` and `promtool`, built if this machine has none.
///
/// # Errors
/// The build failed; the script's message is on standard error.
pub async fn prometheus() -> Result<PathBuf> {
    let script = repository().join("tests/cluster/build.sh");
    built_by(&script, &["prometheus"])
        .await
        .context("build Prometheus")
}

/// The folder with `drydock-apiserver`, `drydock-controller` and `kubectl-drydock`: `DRYDOCK_BIN_DIR`, or a fresh build by cargo.
///
/// # Errors
/// The build failed (its output is on standard error), or the folder lacks one of them.
pub async fn own() -> Result<PathBuf> {
    let folder = match std::env::var_os("DRYDOCK_BIN_DIR") {
        Some(folder) => PathBuf::from(folder),
        None => build_own().await?,
    };
    for name in ["drydock-apiserver", "drydock-controller", "kubectl-drydock"] {
        if !folder.join(name).is_file() {
            bail!("{} has no {name}", folder.display());
        }
    }
    Ok(folder)
}

async fn build_own() -> Result<PathBuf> {
    let folder = profile_folder()?;
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        None | Some("debug") => "dev",
        Some(profile) => profile,
    };
    // Cargo sets this for the tests that it runs.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(cargo);
    if std::env::var_os("ROCKSDB_LIB_DIR").is_none() {
        // Otherwise cargo would compile RocksDB, which takes 15 min.
        let script = repository().join("storage/rocksdb/build.sh");
        command
            .env("ROCKSDB_LIB_DIR", built_by(&script, &[]).await?)
            .env("ROCKSDB_STATIC", "1");
    }
    let status = command
        .args([
            "build",
            "--locked",
            "--quiet",
            "-p",
            "drydock-server",
            "-p",
            "drydock-controller",
            "-p",
            "drydock-cli",
            "-p",
            "drydock-tests",
            "--bins",
        ])
        .args(["--profile", profile, "--target-dir"])
        .arg(
            folder
                .parent()
                .context("a profile's folder is in a target folder")?,
        )
        .current_dir(repository())
        .stdin(Stdio::null())
        .status()
        .await
        .context("run cargo")?;
    ensure!(
        status.success(),
        "drydock-apiserver, drydock-controller and kubectl-drydock do not build"
    );
    Ok(folder)
}

/// Runs a build script of the repository, which prints the folder of its results.
async fn built_by(script: &Path, arguments: &[&str]) -> Result<PathBuf> {
    let output = Command::new(script)
        .args(arguments)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .await
        .with_context(|| format!("run {}", script.display()))?;
    ensure!(
        output.status.success(),
        "{} failed: its message is on standard error",
        script.display()
    );
    let folder = String::from_utf8(output.stdout).context("read the folder that the script prints")?;
    Ok(PathBuf::from(folder.trim_end()))
}

/// The folder of the profile that this program was built in, such as `target/debug`.
fn profile_folder() -> Result<PathBuf> {
    let own = std::env::current_exe().context("find the folder of this program")?;
    let folder = own.parent().context("a program is in a folder")?;
    // Test binaries are in its folder `deps`.
    let is_deps = folder.file_name().is_some_and(|name| name == "deps");
    let folder = if is_deps {
        folder.parent().context("deps is in a folder")?
    } else {
        folder
    };
    Ok(folder.to_owned())
}

/// The root of the repository that this harness was compiled in.
pub(super) fn repository() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package)
}
