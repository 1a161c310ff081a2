//! On what do the stories of this suite play, and who may stop a part of it?
//!
//! Stories share one control plane with one Drydock, each in names of its own. A story that stops the
//! registered server plays [`alone`]; the others, [`together`], wait meanwhile.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::Caller;
use drydock_tests::clients::{Kubectl, Protocol, eventually};
use drydock_tests::cluster::pki::Credential;
use drydock_tests::cluster::{ControlPlane, Drydock, Part, Server, shared_drydock};
use serde_json::{Value, json};
use tokio::sync::{Mutex, OnceCell, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The served group-version.
pub(crate) const GROUP_VERSION: &str = "coordination.k8s.io/v1alpha3";
/// Where it is served.
pub(crate) const ROOT: &str = "/apis/coordination.k8s.io/v1alpha3";
/// Everything here takes seconds; a busy machine may need this long.
pub(crate) const PATIENCE: Duration = Duration::from_mins(1);

static PARTS: RwLock<()> = RwLock::const_new(());
static REPAIR: Mutex<()> = Mutex::const_new(());
static CALM: OnceCell<Server<'static>> = OnceCell::const_new();

/// The stage while a story plays.
pub(crate) struct Stage {
    pub(crate) drydock: &'static Drydock<'static>,
    _others: Others,
}

#[expect(dead_code, reason = "the guards are held, not read")]
enum Others {
    Play(RwLockReadGuard<'static, ()>),
    Wait(RwLockWriteGuard<'static, ()>),
}

/// The stage for a story that leaves both processes as they are. `None` if the suite is skipped.
pub(crate) async fn together() -> Result<Option<Stage>> {
    set(async || Others::Play(PARTS.read().await)).await
}

/// The stage for a story that stops or kills them. Whatever it leaves is repaired.
pub(crate) async fn alone() -> Result<Option<Stage>> {
    set(async || Others::Wait(PARTS.write().await)).await
}

async fn set(others: impl AsyncFnOnce() -> Others) -> Result<Option<Stage>> {
    let Some(drydock) = shared_drydock().await? else {
        return Ok(None);
    };
    let others = others().await;
    let _one_at_a_time = REPAIR.lock().await;
    for part in [Part::ApiServer, Part::Controller] {
        if !drydock.has_started(part) {
            drydock.start_part(part).await?;
            drydock.available().await?;
        }
    }
    Ok(Some(Stage {
        drydock,
        _others: others,
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

    /// The admin at kube-apiserver, which passes our kinds on to the registered server.
    pub(crate) fn host(&self) -> Result<Caller> {
        self.host_as(Some(&self.control_plane().pki().admin))
    }

    /// Somebody at kube-apiserver.
    pub(crate) fn host_as(&self, identity: Option<&Credential>) -> Result<Caller> {
        Ok(Caller::new(self.control_plane().raw_client(identity)?))
    }

    /// Somebody at the registered server itself.
    pub(crate) fn direct_as(&self, identity: Option<&Credential>, protocol: Protocol) -> Result<Caller> {
        Ok(Caller::new(self.drydock.raw_client(identity, protocol)?))
    }

    /// The admin at a second server, on whose objects no controller acts.
    pub(crate) async fn calm(&self, protocol: Protocol) -> Result<Caller> {
        let server = CALM
            .get_or_try_init(|| Server::start(self.drydock, "calm"))
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

    /// Creates a Pod that nothing runs and returns its UID.
    pub(crate) async fn pod(&self, namespace: &str, name: &str) -> Result<String> {
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": name, "namespace": namespace },
            // No scheduler takes it: it stays pending, whatever nodes there are.
            "spec": { "schedulerName": "nobody", "containers": [{ "name": "main", "image": "main" }] },
        });
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let pod = self.host()?.post(&path, &pod).await?.expect(201)?;
        text(&pod["metadata"]["uid"])
    }

    /// Runs kubectl and returns its standard error, having checked that it failed.
    pub(crate) async fn kubectl_fails(&self, arguments: &[&str], input: &str) -> Result<String> {
        let output = self.kubectl().run_with_input(arguments, input).await?;
        ensure!(
            !output.status.success(),
            "kubectl {} succeeded: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stdout)
        );
        String::from_utf8(output.stderr).context("read what kubectl said")
    }
}

/// A UID that no other object of this run has, from a number that the story chooses.
pub(crate) fn uid(story: u16, number: u64) -> String {
    format!("{story:08x}-0000-4000-8000-{number:012x}")
}

/// A request for the pod `name` with that UID.
pub(crate) fn eviction_request(namespace: &str, name: &str, uid: &str) -> Value {
    json!({
        "apiVersion": GROUP_VERSION,
        "kind": "EvictionRequest",
        "metadata": { "name": uid, "namespace": namespace },
        "spec": {
            "target": { "pod": { "name": name, "uid": uid } },
            "requesters": [{ "name": "suite.example.com" }],
        },
    })
}

/// A maintenance of the nodes with this host name that touches nothing.
pub(crate) fn idle_maintenance(name: &str, node: &str) -> Value {
    json!({
        "apiVersion": GROUP_VERSION,
        "kind": "NodeMaintenance",
        "metadata": { "name": name },
        "spec": { "nodeSelector": { "nodeSelectorTerms": [{
            "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": [node] }],
        }] } },
    })
}

/// An interceptor for pods with this label.
pub(crate) fn interceptor(name: &str, app: &str) -> Value {
    json!({
        "apiVersion": GROUP_VERSION,
        "kind": "EvictionInterceptor",
        "metadata": { "name": name },
        "spec": {
            "interceptorName": name,
            "podSelector": { "matchLabels": { "app": app } },
        },
    })
}

/// Where the requests of a namespace are.
pub(crate) fn requests_of(namespace: &str) -> String {
    format!("{ROOT}/namespaces/{namespace}/evictionrequests")
}

/// The text of a JSON member.
pub(crate) fn text(value: &Value) -> Result<String> {
    value
        .as_str()
        .map(str::to_owned)
        .with_context(|| format!("{value} is no text"))
}
