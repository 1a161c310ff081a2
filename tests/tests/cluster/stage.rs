//! The control plane and the Drydock that all tests of this suite share.
//!
//! Each test uses names of its own. A test that stops or kills the registered server or the controller takes the
//! [`Stage`] with [`alone`], while the others, which take it with [`together`], wait.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::Caller;
use drydock_tests::clients::{Kubectl, Protocol, eventually};
use drydock_tests::cluster::pki::Credential;
use drydock_tests::cluster::{ControlPlane, Drydock, Part, Server, shared_drydock};
pub(crate) use drydock_tests::objects::{
    ROOT, condition, eviction_request, idle_maintenance, interceptor, is_true, requests_of,
};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::{Mutex, OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::time::timeout;

/// The deadline of every wait: seconds on an idle machine, more on a busy one.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

static PARTS: RwLock<()> = RwLock::const_new(());
static REPAIR: Mutex<()> = Mutex::const_new(());
static UNMANAGED: OnceCell<Server<'static>> = OnceCell::const_new();

/// The shared cluster, held for one test.
pub(crate) struct Stage {
    pub(crate) drydock: &'static Drydock<'static>,
    _guard: Guard,
}

#[expect(dead_code, reason = "the guards are held, not read")]
enum Guard {
    Together(RwLockReadGuard<'static, ()>),
    Alone(RwLockWriteGuard<'static, ()>),
}

/// For a test that leaves both processes running. `None` if the suite is skipped.
pub(crate) async fn together() -> Result<Option<Stage>> {
    take(async || Guard::Together(PARTS.read().await)).await
}

/// For a test that stops or kills them; the next test starts what is missing.
pub(crate) async fn alone() -> Result<Option<Stage>> {
    take(async || Guard::Alone(PARTS.write().await)).await
}

async fn take(guard: impl AsyncFnOnce() -> Guard) -> Result<Option<Stage>> {
    let Some(drydock) = shared_drydock().await? else {
        return Ok(None);
    };
    let guard = guard().await;
    let _one_at_a_time = REPAIR.lock().await;
    for part in [Part::ApiServer, Part::Controller] {
        if !drydock.has_started(part) {
            drydock.start_part(part).await?;
            drydock.available().await?;
        }
    }
    Ok(Some(Stage {
        drydock,
        _guard: guard,
    }))
}

impl Stage {
    pub(crate) fn control_plane(&self) -> &'static ControlPlane {
        self.drydock.control_plane()
    }

    /// `kubectl` of the admin.
    pub(crate) fn kubectl(&self) -> Kubectl {
        self.control_plane().admin()
    }

    /// The admin at kube-apiserver, which forwards our kinds to the registered server.
    pub(crate) fn host(&self) -> Result<Caller> {
        self.host_as(Some(&self.control_plane().pki().admin))
    }

    /// A user at kube-apiserver.
    pub(crate) fn host_as(&self, identity: Option<&Credential>) -> Result<Caller> {
        Ok(Caller::new(self.control_plane().raw_client(identity)?))
    }

    /// A user at the registered server, without kube-apiserver.
    pub(crate) fn direct_as(&self, identity: Option<&Credential>, protocol: Protocol) -> Result<Caller> {
        Ok(Caller::new(self.drydock.raw_client(identity, protocol)?))
    }

    /// The admin at a second server, without kube-apiserver; no controller acts on its objects.
    pub(crate) async fn unmanaged(&self, protocol: Protocol) -> Result<Caller> {
        let server = UNMANAGED
            .get_or_try_init(|| Server::start(self.drydock, "unmanaged"))
            .await?;
        let admin = &self.control_plane().pki().admin;
        Ok(Caller::new(server.raw_client(Some(admin), protocol)?))
    }

    /// A new namespace that takes pods.
    pub(crate) async fn namespace(&self, name: &str) -> Result<String> {
        let host = self.host()?;
        let object = json!({ "metadata": { "name": name } });
        host.post("/api/v1/namespaces", &object).await?.expect(201)?;
        let account = format!("/api/v1/namespaces/{name}/serviceaccounts/default");
        eventually(&format!("namespace {name} takes pods"), PATIENCE, async || {
            host.get(&account).await?.expect(200).map(Some)
        })
        .await?;
        Ok(name.to_owned())
    }

    /// Creates a Pod that stays pending and returns its UID.
    pub(crate) async fn pod(&self, namespace: &str, name: &str) -> Result<String> {
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name, "namespace": namespace },
            // No scheduler has this name.
            "spec": { "schedulerName": "nobody", "containers": [{ "name": "main", "image": "main" }] },
        });
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let pod = self.host()?.post(&path, &pod).await?.expect(201)?;
        text(&pod["metadata"]["uid"])
    }

    /// Whether the host serves `MutatingAdmissionPolicy` at `v1`; before 1.36 it does so only behind a feature gate.
    pub(crate) async fn serves_mutating_policies(&self) -> Result<bool> {
        let path = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
        Ok(self.host()?.get(path).await?.status != 404)
    }

    /// Runs kubectl and returns its standard error, having checked that it failed.
    pub(crate) async fn kubectl_fails(&self, arguments: &[&str], input: &str) -> Result<String> {
        fails(&self.kubectl(), arguments, input).await
    }
}

/// Runs a kubectl and returns its standard error, having checked that it failed.
pub(crate) async fn fails(kubectl: &Kubectl, arguments: &[&str], input: &str) -> Result<String> {
    let output = kubectl.run_with_input(arguments, input).await?;
    ensure!(
        !output.status.success(),
        "kubectl {} succeeded: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stdout)
    );
    String::from_utf8(output.stderr).context("kubectl writes UTF-8")
}

/// A UID from a number of the test file and one of the object.
pub(crate) fn uid(file: u16, number: u64) -> String {
    format!("{file:08x}-0000-4000-8000-{number:012x}")
}

/// A program of `tests/clients/go`, which is built once per machine.
pub(crate) async fn go_client(program: &str) -> Result<Command> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients/go/build.sh");
    let built = Command::new(script)
        .arg(program)
        .stderr(Stdio::inherit())
        .output()
        .await
        .context("run build.sh")?;
    ensure!(
        built.status.success(),
        "the Go program {program} could not be built: see standard error"
    );
    Ok(Command::new(String::from_utf8(built.stdout)?.trim_end()))
}

/// Runs a client program, which prints `done` when its checks passed.
pub(crate) async fn ends_with_done(client: &mut Command) -> Result<()> {
    let output = client
        .env_remove("HTTPS_PROXY")
        .env_remove("https_proxy")
        .kill_on_drop(true)
        .output();
    let output = timeout(PATIENCE, output)
        .await
        .context("the client did not end")??;
    let (printed, error) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    ensure!(output.status.success() && printed == "done\n", "{printed}{error}");
    Ok(())
}

/// The text of a JSON member.
pub(crate) fn text(value: &Value) -> Result<String> {
    value
        .as_str()
        .map(str::to_owned)
        .with_context(|| format!("{value} is not a string"))
}
