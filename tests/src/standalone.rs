//! The server in standalone mode, and the controller: no Go, no control plane, ready in moments.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::config::Kubeconfig;
use rustix::process::{Pid, Resource, Signal, getrlimit, prlimit};
use tokio::sync::OnceCell;

use crate::calls::Caller;
use crate::clients::{Protocol, RawClient};
use crate::cluster::pki::Credential;
use crate::cluster::{Folder, Lifetime, Part, Ports, Process, Processes, client_of, own_binaries};

const START_DEADLINE: Duration = Duration::from_mins(1);
const STOP_GRACE: Duration = Duration::from_mins(1);

static SHARED: OnceCell<Standalone> = OnceCell::const_new();

/// The server that all tests of one binary share, started by the first; no controller acts on its objects.
///
/// # Errors
/// It could not be built or started. The next test tries again.
pub async fn shared() -> Result<&'static Standalone> {
    SHARED.get_or_try_init(Standalone::start).await
}

/// A server in standalone mode. Dropping it kills its processes.
pub struct Standalone {
    // Before the folder: processes end before their files go.
    processes: Processes<Part>,
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
            processes: Processes::default(),
            folder: Folder::temporary()?,
            binaries: own_binaries().await?,
            address: Ports::reserve(1)?.take()?,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        };
        standalone.start_again().await?;
        Ok(standalone)
    }

    /// Starts the server again with its data.
    ///
    /// # Errors
    /// It ended or was not ready in time.
    pub async fn start_again(&self) -> Result<()> {
        // An ignored signal stays ignored across exec, so a write beyond the limit fails instead of killing.
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
                let response = self.raw_client(Protocol::Http1)?.get("/readyz").await?;
                Ok(response.status().is_success())
            })
            .await?;
        self.processes.insert(Part::ApiServer, process);
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
        self.processes.insert(Part::Controller, process);
        Ok(())
    }

    /// Stops the server with SIGTERM. `None` if it was not started.
    ///
    /// # Errors
    /// It did not end within a minute.
    pub async fn stop(&self) -> Result<Option<ExitStatus>> {
        self.processes.stop(&Part::ApiServer, STOP_GRACE).await
    }

    /// Waits until the server ends. `None` if it was not started.
    ///
    /// # Errors
    /// It did not end within a minute.
    pub async fn ended(&self) -> Result<Option<ExitStatus>> {
        self.processes.ended(&Part::ApiServer, STOP_GRACE).await
    }

    /// Limits the size of every file that the server writes: writes beyond it fail, as on a full disk.
    ///
    /// # Errors
    /// The server does not run.
    pub fn limit_files(&self, bytes: u64) -> Result<()> {
        let id = self.process_id().context("the server runs")?;
        let id = i32::try_from(id).ok().and_then(Pid::from_raw);
        let mut limit = getrlimit(Resource::Fsize);
        limit.current = Some(bytes);
        prlimit(id, Resource::Fsize, limit).context("limit the server's files")?;
        Ok(())
    }

    /// The ID of the server's process, if it was started.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        self.processes.id(&Part::ApiServer)
    }

    /// Stops the server's process without ending it.
    ///
    /// # Errors
    /// It does not run.
    pub fn pause(&self) -> Result<()> {
        self.processes.signal(&Part::ApiServer, Signal::STOP)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// It does not run.
    pub fn resume(&self) -> Result<()> {
        self.processes.signal(&Part::ApiServer, Signal::CONT)
    }

    /// What the server has written to its log.
    ///
    /// # Errors
    /// The log cannot be read.
    pub fn log(&self) -> Result<String> {
        let path = self.folder.path().join("standalone.log");
        let bytes = std::fs::read(&path).with_context(|| format!("read {}", path.display()))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Kills the server.
    pub fn kill(&self) {
        self.processes.kill(&Part::ApiServer);
    }

    /// Kills the controller.
    pub fn kill_controller(&self) {
        self.processes.kill(&Part::Controller);
    }

    /// The folder of its store, unless a flag names another.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// The admin's kubeconfig, which the server wrote.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// A caller with the admin's rights.
    ///
    /// # Errors
    /// The kubeconfig cannot be read.
    pub fn caller(&self, protocol: Protocol) -> Result<Caller> {
        Ok(Caller::new(self.raw_client(protocol)?))
    }

    /// A client of kube-rs with the admin's rights.
    ///
    /// # Errors
    /// The kubeconfig cannot be read.
    pub async fn client(&self) -> Result<kube::Client> {
        client_of(&self.kubeconfig()).await
    }

    /// A raw client with the admin's rights.
    ///
    /// # Errors
    /// The kubeconfig cannot be read.
    pub fn raw_client(&self, protocol: Protocol) -> Result<RawClient> {
        let (authority, admin) = self.credentials()?;
        RawClient::new(self.address, "localhost", &authority, Some(&admin), protocol)
    }

    /// A raw client without a credential.
    ///
    /// # Errors
    /// The kubeconfig cannot be read.
    pub fn stranger(&self, protocol: Protocol) -> Result<RawClient> {
        let (authority, _) = self.credentials()?;
        RawClient::new(self.address, "localhost", &authority, None, protocol)
    }

    /// The authority of the server's certificate, and the admin's credential.
    fn credentials(&self) -> Result<(String, Credential)> {
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
        Ok((authority, credential))
    }
}
