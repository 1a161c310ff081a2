//! A Kubernetes control plane on one machine: its processes, their flags, and when they are ready.
//!
//! etcd, kube-apiserver, the controller manager and the scheduler are the real ones; kwok simulates the nodes, so that
//! pods run without a kubelet, a container runtime or a network. Start at
//! [`ControlPlane::start`].

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context as _, Result};
use k8s_openapi::api::core::v1::{Node, ServiceAccount};
use kube::api::{Api, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig as KubeconfigFile};

use super::audit_policy;
use super::binaries::{Binaries, DEFAULT_KUBERNETES_VERSION};
use super::detached;
use super::folder::Folder;
use super::kubeconfig::Kubeconfig;
use super::node::node;
use super::pki::{Credential, FRONT_PROXY_NAME, Pki};
use super::ports::Ports;
use super::process::{Lifetime, Process, Processes};
use crate::clients::{Kubectl, Protocol, RawClient, eventually};

/// The file of the audit policy.
const AUDIT_POLICY: &str = "audit-policy.json";
/// A component starts in seconds; on a busy machine with cold binaries it may take this long.
const START_DEADLINE: Duration = Duration::from_mins(3);

/// The token issuer, which is also the audience of service-account tokens.
const ISSUER: &str = "https://kubernetes.default.svc";

/// The options of a control plane.
#[derive(Clone, Debug)]
pub struct Options {
    /// The Kubernetes release, such as `1.37.2`.
    pub kubernetes_version: String,
    /// The folder of its files; `None` is a temporary folder.
    pub folder: Option<PathBuf>,
    /// When its processes end.
    pub lifetime: Lifetime,
    /// More flags for kube-apiserver, such as feature gates.
    pub apiserver_flags: Vec<String>,
    /// Whether our servers compare cache and store every few seconds and exit on a difference: for suites, not for
    /// benchmarks.
    pub frequent_cache_checks: bool,
    /// How many of our servers share the control plane's etcd; 0: one with a store of its own.
    pub etcd_servers: usize,
    /// Further flags of our servers.
    pub server_flags: Vec<String>,
}

impl Default for Options {
    /// A temporary control plane of the release that `DRYDOCK_KUBERNETES_VERSION` names, by default
    /// [`DEFAULT_KUBERNETES_VERSION`].
    fn default() -> Self {
        let kubernetes_version = std::env::var("DRYDOCK_KUBERNETES_VERSION")
            .ok()
            .filter(|version| !version.is_empty())
            .unwrap_or_else(|| DEFAULT_KUBERNETES_VERSION.to_owned());
        Self {
            kubernetes_version,
            folder: None,
            lifetime: Lifetime::WithParent,
            apiserver_flags: Vec::new(),
            frequent_cache_checks: true,
            etcd_servers: 0,
            server_flags: Vec::new(),
        }
    }
}

impl Options {
    /// The release without its patch, such as `1.37`.
    #[must_use]
    pub fn minor_release(&self) -> &str {
        let version = &self.kubernetes_version;
        version
            .rsplit_once('.')
            .map_or(version, |(release, _patch)| release)
    }
}

/// One process of the control plane, in the order in which they start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// The store.
    Etcd,
    /// kube-apiserver with the aggregator.
    ApiServer,
    /// Deployments, the garbage collector, namespaces, service accounts, and so on.
    ControllerManager,
    /// Binds pods to nodes.
    Scheduler,
    /// Simulates nodes and pods.
    Kwok,
}

impl Component {
    const ALL: [Self; 5] = [
        Self::Etcd,
        Self::ApiServer,
        Self::ControllerManager,
        Self::Scheduler,
        Self::Kwok,
    ];

    const fn command(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::ApiServer => "kube-apiserver",
            Self::ControllerManager => "kube-controller-manager",
            Self::Scheduler => "kube-scheduler",
            Self::Kwok => "kwok",
        }
    }
}

/// The addresses of the components, all on loopback.
#[derive(Clone, Copy, Debug)]
struct Addresses {
    etcd_client: SocketAddr,
    etcd_peer: SocketAddr,
    apiserver: SocketAddr,
    controller_manager: SocketAddr,
    scheduler: SocketAddr,
}

/// A running control plane. Dropping it ends its processes and removes a temporary folder.
pub struct ControlPlane {
    // Before the folder: processes end before their files go.
    processes: Processes<Component>,
    folder: Folder,
    binaries: Binaries,
    pki: Pki,
    addresses: Addresses,
    options: Options,
}

impl ControlPlane {
    /// Builds the binaries if this machine has none, starts every component and waits until all are
    /// ready and the `default` namespace takes pods. It has no node yet: see [`add_node`](Self::add_node).
    ///
    /// # Errors
    /// A binary cannot be built, or a component ended or was not ready in time; the message has the end
    /// of its log.
    pub async fn start(options: Options) -> Result<Self> {
        // On the heap: the state of all these waits is too large for a caller's stack.
        Box::pin(Self::start_all(options)).await
    }

    async fn start_all(options: Options) -> Result<Self> {
        let binaries = Binaries::build(&options.kubernetes_version).await?;
        let folder = match &options.folder {
            Some(path) => Folder::chosen(path)?,
            None => Folder::temporary()?,
        };
        let mut ports = Ports::reserve(5)?;
        let addresses = Addresses {
            etcd_client: ports.take()?,
            etcd_peer: ports.take()?,
            apiserver: ports.take()?,
            controller_manager: ports.take()?,
            scheduler: ports.take()?,
        };
        let control_plane = Self {
            processes: Processes::default(),
            folder,
            binaries,
            pki: Pki::new()?,
            addresses,
            options,
        };
        control_plane.write_files()?;
        control_plane.start_component(Component::Etcd).await?;
        control_plane.start_component(Component::ApiServer).await?;
        tokio::try_join!(
            control_plane.start_component(Component::ControllerManager),
            control_plane.start_component(Component::Scheduler),
            control_plane.start_component(Component::Kwok),
        )?;
        control_plane.default_namespace_takes_pods().await?;
        Ok(control_plane)
    }

    /// Starts a component with its existing data and waits until it is ready.
    ///
    /// # Errors
    /// It ended or was not ready in time.
    pub async fn start_component(&self, component: Component) -> Result<()> {
        let command = self.command_of(component)?;
        let mut process = Process::spawn(
            command,
            component.command(),
            self.folder.path(),
            self.options.lifetime,
        )?;
        detached::record(self.folder.path(), process.id())?;
        process
            .ready(START_DEADLINE, async || self.is_ready(component).await)
            .await?;
        self.processes.insert(component, process);
        Ok(())
    }

    /// Sends SIGKILL to a component, if it runs.
    pub fn kill_component(&self, component: Component) {
        self.processes.kill(&component);
    }

    /// Ends every process, the last started first, and removes a temporary folder.
    pub fn shutdown(self) {
        for component in Component::ALL.into_iter().rev() {
            self.kill_component(component);
        }
    }

    /// The id of a component's process, if it runs.
    #[must_use]
    pub fn process_id(&self, component: Component) -> Option<u32> {
        self.processes.id(&component)
    }

    /// The folder with its certificates, kubeconfigs, data and logs.
    #[must_use]
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Its authorities and credentials.
    #[must_use]
    pub fn pki(&self) -> &Pki {
        &self.pki
    }

    /// The release's binaries.
    #[must_use]
    pub fn binaries(&self) -> &Binaries {
        &self.binaries
    }

    /// The options that it was started with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The client URL of etcd.
    #[must_use]
    pub fn etcd_url(&self) -> String {
        format!("http://{}", self.addresses.etcd_client)
    }

    /// The address of kube-apiserver.
    #[must_use]
    pub fn apiserver_address(&self) -> SocketAddr {
        self.addresses.apiserver
    }

    /// kube-apiserver's URL.
    #[must_use]
    pub fn url(&self) -> String {
        format!("https://{}", self.addresses.apiserver)
    }

    /// The admin's kubeconfig: group `system:masters`.
    #[must_use]
    pub fn admin_kubeconfig(&self) -> PathBuf {
        self.folder.path().join("admin.kubeconfig")
    }

    /// The kubeconfig of `somebody`, a user without role bindings.
    #[must_use]
    pub fn somebody_kubeconfig(&self) -> PathBuf {
        self.folder.path().join("somebody.kubeconfig")
    }

    /// Writes a kubeconfig for a client certificate and returns its path.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn kubeconfig_with_certificate(&self, name: &str, credential: &Credential) -> Result<PathBuf> {
        let kubeconfig =
            Kubeconfig::with_certificate(&self.url(), &self.pki.cluster.certificate(), credential);
        self.folder
            .write(&format!("{name}.kubeconfig"), kubeconfig.to_text())
    }

    /// Writes a kubeconfig for a bearer token and returns its path.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn kubeconfig_with_token(&self, name: &str, token: &str) -> Result<PathBuf> {
        let kubeconfig = Kubeconfig::with_token(&self.url(), &self.pki.cluster.certificate(), token);
        self.folder
            .write(&format!("{name}.kubeconfig"), kubeconfig.to_text())
    }

    /// A client with the admin's rights. Its connections belong to the runtime that opened them, so each test needs
    /// its own.
    ///
    /// # Errors
    /// The kubeconfig cannot be read.
    pub async fn client(&self) -> Result<kube::Client> {
        client(&self.admin_kubeconfig()).await
    }

    /// `kubectl` with the admin's rights, for more than one call.
    #[must_use]
    pub fn admin(&self) -> Kubectl {
        self.kubectl_as(self.admin_kubeconfig())
    }

    /// `kubectl` with a kubeconfig.
    #[must_use]
    pub fn kubectl_as(&self, kubeconfig: PathBuf) -> Kubectl {
        let binary = self.binaries.command("kubectl");
        Kubectl {
            binary,
            kubeconfig,
            home: self.folder.path().to_owned(),
        }
    }

    /// Runs `kubectl` with the admin's rights and returns its output, whether it succeeded or not.
    ///
    /// # Errors
    /// It cannot be started, or does not end.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<Output> {
        self.admin().run(arguments).await
    }

    /// A raw client of kube-apiserver, with a client certificate or anonymous.
    ///
    /// # Errors
    /// The certificate cannot be read.
    pub fn raw_client(&self, identity: Option<&Credential>) -> Result<RawClient> {
        self.component_client(self.addresses.apiserver, identity)
    }

    /// A raw client with the admin's certificate, for a server with the control plane's serving certificate.
    ///
    /// # Errors
    /// The certificate cannot be read.
    pub fn client_of(&self, address: SocketAddr, protocol: Protocol) -> Result<RawClient> {
        let authority = self.pki.cluster.certificate();
        RawClient::new(address, "localhost", &authority, Some(&self.pki.admin), protocol)
    }

    /// Creates a node (see [`node`]) and waits until it is Ready.
    ///
    /// # Errors
    /// It exists, or was not Ready in time.
    pub async fn add_node(&self, name: &str, labels: &[(&str, &str)]) -> Result<Node> {
        let nodes: Api<Node> = Api::all(self.client().await?);
        nodes
            .create(&PostParams::default(), &node(name, labels))
            .await
            .with_context(|| format!("create node {name}"))?;
        eventually(&format!("node {name} Ready"), START_DEADLINE, async || {
            let node = nodes.get(name).await?;
            let conditions = node
                .status
                .iter()
                .flat_map(|status| status.conditions.iter().flatten());
            let is_ready = conditions
                .into_iter()
                .any(|it| it.type_ == "Ready" && it.status == "True");
            // The not-ready taint is removed a moment later.
            let is_tainted = node
                .spec
                .as_ref()
                .is_some_and(|spec| spec.taints.iter().flatten().next().is_some());
            Ok((is_ready && !is_tainted).then_some(node))
        })
        .await
    }

    fn write_files(&self) -> Result<()> {
        let (folder, pki) = (&self.folder, &self.pki);
        for (name, contents) in [
            ("cluster-ca.crt", &pki.cluster.certificate()),
            ("front-proxy-ca.crt", &pki.front_proxy.certificate()),
            ("serving.crt", &pki.serving.certificate),
            ("serving.key", &pki.serving.key),
            ("aggregator.crt", &pki.aggregator.certificate),
            ("aggregator.key", &pki.aggregator.key),
            ("service-account.key", &pki.service_account_key),
            ("service-account.pub", &pki.service_account_public_key),
        ] {
            folder.write(name, contents)?;
        }
        folder.write(AUDIT_POLICY, audit_policy::policy())?;
        for (name, credential) in [
            ("admin", &pki.admin),
            ("somebody", &pki.somebody),
            ("controller-manager", &pki.controller_manager),
            ("scheduler", &pki.scheduler),
        ] {
            self.kubeconfig_with_certificate(name, credential)?;
        }
        Ok(())
    }

    fn component_client(&self, address: SocketAddr, identity: Option<&Credential>) -> Result<RawClient> {
        let authority = self.pki.cluster.certificate();
        RawClient::new(address, "localhost", &authority, identity, Protocol::Http1)
    }

    async fn is_ready(&self, component: Component) -> Result<bool> {
        let (address, path) = match component {
            // kube-apiserver checks its health; the client port speaks plain gRPC.
            Component::Etcd => {
                return Ok(tokio::net::TcpStream::connect(self.addresses.etcd_client)
                    .await
                    .is_ok());
            }
            Component::ApiServer => (self.addresses.apiserver, "/readyz"),
            Component::ControllerManager => (self.addresses.controller_manager, "/healthz"),
            Component::Scheduler => (self.addresses.scheduler, "/readyz"),
            // It has no endpoint; a node that becomes Ready proves it.
            Component::Kwok => return Ok(true),
        };
        let response = self
            .component_client(address, Some(&self.pki.admin))?
            .get(path)
            .await?;
        Ok(response.status().is_success())
    }

    /// Waits for the default service account, without which no pod is admitted.
    async fn default_namespace_takes_pods(&self) -> Result<()> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, "default");
        eventually(
            "the service account of the default namespace",
            START_DEADLINE,
            async || Ok(accounts.get_opt("default").await?.map(drop)),
        )
        .await
    }

    fn command_of(&self, component: Component) -> Result<Command> {
        let mut command = Command::new(self.binaries.command(component.command()));
        match component {
            Component::Etcd => etcd_flags(
                &mut command,
                &self.folder.path().join("etcd"),
                self.addresses.etcd_client,
                self.addresses.etcd_peer,
            ),
            Component::ApiServer => self.apiserver_flags(&mut command),
            Component::ControllerManager => self.controller_manager_flags(&mut command),
            Component::Scheduler => self.scheduler_flags(&mut command),
            Component::Kwok => self.kwok_flags(&mut command)?,
        }
        Ok(command)
    }

    /// The audit log: a line of JSON for each request of Drydock's service accounts.
    #[must_use]
    pub fn audit_log(&self) -> PathBuf {
        self.folder.path().join("audit.log")
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn apiserver_flags(&self, command: &mut Command) {
        let address = self.addresses.apiserver;
        command
            .arg(flag(
                "etcd-servers",
                format!("http://{}", self.addresses.etcd_client),
            ))
            .arg(flag("bind-address", address.ip()))
            .arg(flag("advertise-address", address.ip()))
            .arg(flag("secure-port", address.port()))
            // Loopback addresses are not valid endpoints of the `kubernetes` Service.
            .arg(flag("endpoint-reconciler-type", "none"))
            .arg(flag("service-cluster-ip-range", "10.96.0.0/16"))
            .arg(flag("authorization-mode", "Node,RBAC"))
            .arg(flag("client-ca-file", self.file("cluster-ca.crt")))
            .arg(flag("tls-cert-file", self.file("serving.crt")))
            .arg(flag("tls-private-key-file", self.file("serving.key")))
            .arg(flag("cert-dir", self.file("kube-apiserver")))
            .arg(flag("service-account-issuer", ISSUER))
            .arg(flag("service-account-key-file", self.file("service-account.pub")))
            .arg(flag(
                "service-account-signing-key-file",
                self.file("service-account.key"),
            ))
            // Aggregation; the first five are published for aggregated servers to read.
            .arg(flag(
                "requestheader-client-ca-file",
                self.file("front-proxy-ca.crt"),
            ))
            .arg(flag("requestheader-allowed-names", FRONT_PROXY_NAME))
            .arg(flag("requestheader-username-headers", "X-Remote-User"))
            .arg(flag("requestheader-group-headers", "X-Remote-Group"))
            .arg(flag("requestheader-extra-headers-prefix", "X-Remote-Extra-"))
            .arg(flag("proxy-client-cert-file", self.file("aggregator.crt")))
            .arg(flag("proxy-client-key-file", self.file("aggregator.key")))
            .arg(flag("audit-policy-file", self.file(AUDIT_POLICY)))
            .arg(flag("audit-log-path", self.audit_log().display()))
            .args(&self.options.apiserver_flags);
    }

    fn controller_manager_flags(&self, command: &mut Command) {
        let kubeconfig = self.file("controller-manager.kubeconfig");
        self.component_flags(command, &kubeconfig, self.addresses.controller_manager);
        command
            .arg("--use-service-account-credentials")
            .arg(flag(
                "service-account-private-key-file",
                self.file("service-account.key"),
            ))
            .arg(flag("root-ca-file", self.file("cluster-ca.crt")));
    }

    fn scheduler_flags(&self, command: &mut Command) {
        let kubeconfig = self.file("scheduler.kubeconfig");
        self.component_flags(command, &kubeconfig, self.addresses.scheduler);
    }

    /// What the controller manager and the scheduler have in common.
    fn component_flags(&self, command: &mut Command, kubeconfig: &str, address: SocketAddr) {
        command
            .arg(flag("kubeconfig", kubeconfig))
            .arg(flag("authentication-kubeconfig", kubeconfig))
            .arg(flag("authorization-kubeconfig", kubeconfig))
            .arg(flag("bind-address", address.ip()))
            .arg(flag("secure-port", address.port()))
            .arg(flag("tls-cert-file", self.file("serving.crt")))
            .arg(flag("tls-private-key-file", self.file("serving.key")))
            // There is one of each.
            .arg(flag("leader-elect", false))
            // The default of 20 calls a second makes it start seconds later, and pods appear one by one.
            .arg(flag("kube-api-qps", 500))
            .arg(flag("kube-api-burst", 1000));
    }

    fn kwok_flags(&self, command: &mut Command) -> Result<()> {
        command
            .arg(flag("kubeconfig", self.admin_kubeconfig().display()))
            .arg(flag("manage-all-nodes", true))
            .arg(flag("node-lease-duration-seconds", 40));
        for stage in self.binaries.stages()? {
            command.arg(flag("config", stage.display()));
        }
        Ok(())
    }
}

/// The command line of an etcd of one member.
pub(super) fn etcd_flags(command: &mut Command, data_dir: &Path, client: SocketAddr, peer: SocketAddr) {
    let (client, peer) = (format!("http://{client}"), format!("http://{peer}"));
    command
        .arg(flag("data-dir", data_dir.display()))
        .arg(flag("listen-client-urls", &client))
        .arg(flag("advertise-client-urls", &client))
        .arg(flag("listen-peer-urls", &peer))
        .arg(flag("initial-advertise-peer-urls", &peer))
        .arg(flag("initial-cluster", format!("default={peer}")));
}

pub(super) fn flag(name: &str, value: impl std::fmt::Display) -> String {
    format!("--{name}={value}")
}

/// A client for the owner of a kubeconfig.
pub(crate) async fn client(kubeconfig: &Path) -> Result<kube::Client> {
    // Somebody else may have installed it before: all of this workspace installs the same one.
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .ok();
    let file =
        KubeconfigFile::read_from(kubeconfig).with_context(|| format!("read {}", kubeconfig.display()))?;
    let mut config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
        .await
        .with_context(|| format!("use {}", kubeconfig.display()))?;
    // The environment's proxy is not for loopback.
    config.proxy_url = None;
    kube::Client::try_from(config).context("make a client")
}
