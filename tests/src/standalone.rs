//! How does a suite get the server without a cluster?
//!
//! One process with an embedded host, and the controller beside it: no Go, no control plane, ready in
//! moments.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::config::Kubeconfig;
use rustix::process::{Pid, Resource, getrlimit, prlimit};
use tokio::sync::OnceCell;

use crate::calls::Caller;
use crate::clients::{Protocol, RawClient};
use crate::cluster::pki::Credential;
use crate::cluster::{Folder, Lifetime, Ports, Process, own_binaries};

const START_DEADLINE: Duration = Duration::from_mins(1);
const STOP_GRACE: Duration = Duration::from_mins(1);

static SHARED: OnceCell<Standalone> = OnceCell::const_new();

/// The server that all tests of one binary share, started by the first that asks; no controller acts
/// on its objects.
///
/// # Errors
/// It could not be built or started. Every test that asks gets to try again.
pub async fn shared() -> Result<&'static Standalone> {
    SHARED.get_or_try_init(Standalone::start).await
}

/// A server in standalone mode. Dropping it ends its processes.
pub struct Standalone {
    // Before the folder: processes end before their files go.
    server: Mutex<Option<Process>>,
    controller: Mutex<Option<Process>>,
    folder: Folder,
    binaries: PathBuf,
    address: SocketAddr,
    flags: Vec<String>,
}

impl Standalone {
    /// Starts a server with an empty store.
    ///
    /// # Errors
    /// It does not build, ended, or was not ready in time.
    pub async fn start() -> Result<Self> {
        Self::start_with(&[]).await
    }

    /// The same, with more flags on every start.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub async fn start_with(flags: &[&str]) -> Result<Self> {
        let standalone = Self {
            server: Mutex::default(),
            controller: Mutex::default(),
            folder: Folder::temporary()?,
            binaries: own_binaries().await?,
            address: Ports::reserve(1)?.take()?,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        };
        standalone.start_again().await?;
        Ok(standalone)
    }

    /// Starts the server once more, with the data it left.
    ///
    /// # Errors
    /// It ended or was not ready in time.
    pub async fn start_again(&self) -> Result<()> {
        // A signal that is ignored stays ignored across exec: a write beyond a limit fails, and does not kill.
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""])
            .arg(self.binaries.join("drydock-apiserver"))
            .arg("standalone")
            .args(["--bind-address", &self.address.ip().to_string()])
            .args(["--secure-port", &self.address.port().to_string()])
            .arg("--write-kubeconfig")
            .arg(self.kubeconfig())
            .args(&self.flags);
        let is_chosen = |name| self.flags.iter().any(|flag| flag == name);
        if !is_chosen("--debug-cache-check-period") {
            command.args(["--debug-cache-check-period", "5s"]);
        }
        if !is_chosen("--data-dir") {
            command.arg("--data-dir").arg(self.data());
        }
        let mut process = Process::spawn(command, "standalone", self.folder.path(), Lifetime::WithParent)?;
        process
            .ready(START_DEADLINE, async || {
                let answer = self.raw_client(Protocol::Http1)?.get("/readyz").await?;
                Ok(answer.status().is_success())
            })
            .await?;
        put(&self.server, Some(process));
        Ok(())
    }

    /// Starts the controller and waits until it is ready.
    ///
    /// # Errors
    /// It ended or was not ready in time.
    pub async fn start_controller(&self) -> Result<()> {
        let mut command = Command::new(self.binaries.join("drydock-controller"));
        command
            .arg("--kubeconfig")
            .arg(self.kubeconfig())
            .arg("--leader-elect")
            .args(["--leader-elect-resource-namespace", "default"])
            .args(["--bind-address", "127.0.0.1", "--secure-port", "0"]);
        let mut process = Process::spawn(command, "controller", self.folder.path(), Lifetime::WithParent)?;
        let caller = self.caller(Protocol::Http1)?;
        process
            .ready(START_DEADLINE, async || {
                let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
                let leases = caller.get(leases).await?.expect(200)?;
                let holder = leases.pointer("/items/0/spec/holderIdentity");
                Ok(holder.is_some_and(|holder| holder.as_str().is_some_and(|it| !it.is_empty())))
            })
            .await?;
        put(&self.controller, Some(process));
        Ok(())
    }

    /// Asks the server to end and waits for that. `None` if it does not run.
    ///
    /// # Errors
    /// It did not end within a minute.
    pub async fn stop(&self) -> Result<Option<ExitStatus>> {
        match put(&self.server, None) {
            Some(process) => process.terminate(STOP_GRACE).await.map(Some),
            None => Ok(None),
        }
    }

    /// Waits until the server ends by itself. `None` if it does not run.
    ///
    /// # Errors
    /// It did not end within a minute.
    pub async fn ended(&self) -> Result<Option<ExitStatus>> {
        match put(&self.server, None) {
            Some(process) => process.ended(STOP_GRACE).await.map(Some),
            None => Ok(None),
        }
    }

    /// From now on no file of the server grows beyond so many bytes: writes fail there, as on a full disk.
    ///
    /// # Errors
    /// The server does not run.
    pub fn limit_files(&self, bytes: u64) -> Result<()> {
        let id = self.process_id().context("a server that runs")?;
        let id = i32::try_from(id).ok().and_then(Pid::from_raw);
        let mut limit = getrlimit(Resource::Fsize);
        limit.current = Some(bytes);
        prlimit(id, Resource::Fsize, limit).context("limit the server's files")?;
        Ok(())
    }

    /// The id of the server's process, if it runs.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        let running = self.server.lock().unwrap_or_else(PoisonError::into_inner);
        running.as_ref().map(Process::id)
    }

    /// Kills the server, as a machine that loses power does.
    pub fn kill(&self) {
        drop(put(&self.server, None));
    }

    /// Kills the controller.
    pub fn kill_controller(&self) {
        drop(put(&self.controller, None));
    }

    /// The folder of its store, unless a flag says another.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The admin's kubeconfig, which the server wrote.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// The admin.
    ///
    /// # Errors
    /// The kubeconfig is not what it should be.
    pub fn caller(&self, protocol: Protocol) -> Result<Caller> {
        Ok(Caller::new(self.raw_client(protocol)?))
    }

    /// The admin's raw client.
    ///
    /// # Errors
    /// The kubeconfig is not what it should be.
    pub fn raw_client(&self, protocol: Protocol) -> Result<RawClient> {
        let config = Kubeconfig::read_from(self.kubeconfig()).context("read the kubeconfig")?;
        let decode = |data: Option<&str>| {
            let bytes = STANDARD
                .decode(data.context("data in the kubeconfig")?)
                .context("base64")?;
            String::from_utf8(bytes).context("PEM is text")
        };
        let cluster = config
            .clusters
            .first()
            .and_then(|it| it.cluster.as_ref())
            .context("a cluster")?;
        let user = config
            .auth_infos
            .first()
            .and_then(|it| it.auth_info.as_ref())
            .context("a user")?;
        let authority = decode(cluster.certificate_authority_data.as_deref())?;
        let certificate = decode(user.client_certificate_data.as_deref())?;
        let file = serde_json::to_value(user).context("read the user")?;
        let key = file.get("client-key-data").and_then(|key| key.as_str());
        let credential = Credential {
            certificate,
            key: decode(key)?,
        };
        RawClient::new(self.address, "localhost", &authority, Some(&credential), protocol)
    }
}

fn put(slot: &Mutex<Option<Process>>, process: Option<Process>) -> Option<Process> {
    let mut running = slot.lock().unwrap_or_else(PoisonError::into_inner);
    std::mem::replace(&mut *running, process)
}
