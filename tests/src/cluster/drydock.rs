//! Drydock as it runs in a control plane: manifests, registration, and its two processes.
//!
//! The manifests of `deploy/` are applied as they are, except for the workloads: the two binaries run as processes
//! with the service accounts that the manifests create. The Service is an `ExternalName` for this machine, and the
//! `APIService` gets the port and the CA certificate.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::Duration;

use anyhow::{Context as _, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Api, ListParams};
use serde_json::{Value, json};

use super::binaries::{own, repository};
use super::control_plane::ControlPlane;
use super::detached;
use super::kubeconfig::Kubeconfig;
use super::pki::{Credential, Validity};
use super::ports::Ports;
use super::process::{Process, Processes};
use crate::clients::{Protocol, RawClient, eventually};

/// The namespace of Drydock's workloads, accounts and Lease.
pub const NAMESPACE: &str = "drydock-system";

/// The name in the serving certificate, which the aggregator verifies.
pub const SERVER_NAME: &str = "drydock-apiserver.drydock-system.svc";

/// The name in the serving certificate of the controller, which kube-apiserver verifies when it calls the eviction bridge.
const CONTROLLER_NAME: &str = "drydock-controller.drydock-system.svc";
/// The kubeconfig with which the controller reaches the server itself.
const DIRECT_KUBECONFIG: &str = "drydock-controller-direct.kubeconfig";

/// The names of the `APIService` objects in the manifest.
const API_SERVICES: [&str; 2] = ["v1alpha3.coordination.k8s.io", "v1alpha1.coordination.k8s.io"];

/// Enough for the server to open its store and for the aggregator's next check, every 30 s.
const START_DEADLINE: Duration = Duration::from_mins(2);

/// The termination grace period, as in a cluster.
const STOP_GRACE: Duration = Duration::from_mins(1);

/// One of the project's two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// `drydock-apiserver`.
    ApiServer,
    /// `drydock-controller`.
    Controller,
}

impl Part {
    const fn command(self) -> &'static str {
        match self {
            Self::ApiServer => "drydock-apiserver",
            Self::Controller => "drydock-controller",
        }
    }
}

/// The way of the controller to Drydock's own kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Road {
    /// Through the aggregator of kube-apiserver.
    Aggregator,
    /// To drydock-apiserver itself, by `--apiserver-kubeconfig`.
    Direct,
}

/// The project's server and controller, joined to a control plane. Dropping it ends both processes.
///
/// Addresses, credentials and data stay the same across restarts.
pub struct Drydock<'a> {
    processes: Processes<Part>,
    /// The balancer and the further servers, where several share an etcd.
    others: Processes<usize>,
    control_plane: &'a ControlPlane,
    binaries: PathBuf,
    address: SocketAddr,
    controller_address: SocketAddr,
    /// The addresses of the balancer and of the further servers.
    other_addresses: Vec<SocketAddr>,
    serving: Credential,
}

impl<'a> Drydock<'a> {
    /// Applies the manifests, starts the server, waits until the host can reach it, then starts the
    /// controller and waits until it leads.
    ///
    /// # Errors
    /// A binary does not build, a manifest is rejected, or a process ended or was not ready in time.
    pub async fn start(control_plane: &'a ControlPlane) -> Result<Self> {
        // On the heap: the state of all these waits is too large for a caller's stack.
        Box::pin(Self::start_all(control_plane)).await
    }

    async fn start_all(control_plane: &'a ControlPlane) -> Result<Self> {
        let drydock = Self::prepare(control_plane).await?;
        drydock.start_part(Part::ApiServer).await?;
        for number in 1..drydock.other_addresses.len() {
            drydock.start_server(number).await?;
        }
        drydock.start_balancer()?;
        drydock.register().await?;
        drydock.available().await?;
        drydock.start_part(Part::Controller).await?;
        Ok(drydock)
    }

    /// Everything before the first process: accounts, rights, certificate, kubeconfigs.
    async fn prepare(control_plane: &'a ControlPlane) -> Result<Self> {
        let binaries = own().await?;
        let folder = control_plane.folder();
        let serving = control_plane
            .pki()
            .drydock
            .serving(&[SERVER_NAME], Validity::Current)?;
        folder.write("drydock-serving.crt", &serving.certificate)?;
        folder.write("drydock-serving.key", &serving.key)?;
        let bridge = control_plane
            .pki()
            .drydock
            .serving(&[CONTROLLER_NAME], Validity::Current)?;
        folder.write("drydock-controller-serving.crt", &bridge.certificate)?;
        folder.write("drydock-controller-serving.key", &bridge.key)?;

        let admin = control_plane.admin();
        let deploy = repository().join("deploy");
        let mut manifests = vec!["namespace.yaml", "rbac", "bridge/rbac.yaml"];
        if control_plane.options().etcd_servers > 0 {
            manifests.push("etcd/rbac.yaml");
        }
        let mut apply = vec!["apply".to_owned(), "--server-side".to_owned()];
        for manifest in manifests {
            apply.extend(["-f".to_owned(), deploy.join(manifest).display().to_string()]);
        }
        let apply: Vec<&str> = apply.iter().map(String::as_str).collect();
        admin.ok(&apply).await?;
        let server_token = create_token(control_plane, Part::ApiServer).await?;
        control_plane.kubeconfig_with_token(Part::ApiServer.command(), &server_token)?;
        let token = create_token(control_plane, Part::Controller).await?;
        control_plane.kubeconfig_with_token(Part::Controller.command(), &token)?;
        let servers = control_plane.options().etcd_servers;
        let mut ports = Ports::reserve(servers + 2)?;
        let drydock = Self {
            processes: Processes::default(),
            others: Processes::default(),
            control_plane,
            binaries,
            // The same for all starts, since the `APIService` names the port.
            address: ports.take()?,
            controller_address: ports.take()?,
            other_addresses: (0..servers).map(|_| ports.take()).collect::<Result<_>>()?,
            serving,
        };
        let url = format!("https://127.0.0.1:{}", drydock.service_port());
        let authority = control_plane.pki().drydock.certificate();
        let direct = Kubeconfig::with_token(&url, &authority, &token).with_server_name(SERVER_NAME);
        folder.write(DIRECT_KUBECONFIG, direct.to_text())?;
        Ok(drydock)
    }

    /// Starts one of the two processes and waits until it is ready.
    ///
    /// # Errors
    /// It ended or was not ready in time.
    pub async fn start_part(&self, part: Part) -> Result<()> {
        self.start_command(part, self.command_of(part)).await
    }

    /// Starts the controller on one of its roads, and waits until it leads.
    ///
    /// # Errors
    /// As for [`start_part`](Self::start_part).
    pub async fn start_controller(&self, road: Road) -> Result<()> {
        self.start_command(Part::Controller, self.controller_command(road))
            .await
    }

    async fn start_command(&self, part: Part, command: Command) -> Result<()> {
        let (folder, lifetime) = (
            self.control_plane.folder().path(),
            self.control_plane.options().lifetime,
        );
        let mut process = Process::spawn(command, part.command(), folder, lifetime)?;
        detached::record(folder, process.id())?;
        match part {
            Part::ApiServer => {
                process
                    .ready(START_DEADLINE, async || self.is_ready().await)
                    .await?;
            }
            Part::Controller => {
                let leases: Api<Lease> = Api::namespaced(self.control_plane.client().await?, NAMESPACE);
                let leads = async || {
                    let leases = leases.list(&ListParams::default()).await?;
                    let mut holders = leases
                        .items
                        .into_iter()
                        .filter_map(|lease| lease.spec?.holder_identity);
                    Ok(holders.any(|holder| !holder.is_empty()))
                };
                process.ready(START_DEADLINE, leads).await?;
            }
        }
        self.processes.insert(part, process);
        Ok(())
    }

    /// Starts one of several servers over one etcd, which are numbered from 0, and waits until it is ready.
    ///
    /// # Errors
    /// It ended or was not ready in time, or there is no such server.
    pub async fn start_server(&self, number: usize) -> Result<()> {
        if number == 0 {
            return self.start_part(Part::ApiServer).await;
        }
        let address = *self
            .other_addresses
            .get(number)
            .context("there is such a server")?;
        let command = self.server_command(
            address,
            &self.file("drydock-serving.crt"),
            &self.file("drydock-serving.key"),
            &self.data_dir(),
        );
        let (folder, lifetime) = (
            self.control_plane.folder().path(),
            self.control_plane.options().lifetime,
        );
        let name = format!("drydock-apiserver-{number}");
        let mut process = Process::spawn(command, &name, folder, lifetime)?;
        detached::record(folder, process.id())?;
        let authority = self.control_plane.pki().drydock.certificate();
        let probe = RawClient::new(address, SERVER_NAME, &authority, None, Protocol::Http1)?;
        let is_ready = async || Ok(probe.get("/readyz").await?.status().is_success());
        process.ready(START_DEADLINE, is_ready).await?;
        self.others.insert(number, process);
        Ok(())
    }

    /// Kills one of several servers over one etcd. It may be started again.
    pub fn kill_server(&self, number: usize) {
        if number == 0 {
            self.kill_part(Part::ApiServer);
        } else {
            self.others.kill(&number);
        }
    }

    /// Starts the balancer in front of several servers, if there are several.
    fn start_balancer(&self) -> Result<()> {
        let Some((listen, others)) = self.other_addresses.split_first() else {
            return Ok(());
        };
        let (folder, lifetime) = (
            self.control_plane.folder().path(),
            self.control_plane.options().lifetime,
        );
        let mut command = Command::new(self.binaries.join("drydock-cluster"));
        command.arg("balance").arg("--dir").arg(folder);
        command.args(["--listen", &listen.to_string()]);
        for server in std::iter::once(&self.address).chain(others) {
            command.args(["--to", &server.to_string()]);
        }
        let process = Process::spawn(command, "balancer", folder, lifetime)?;
        detached::record(folder, process.id())?;
        self.others.insert(0, process);
        Ok(())
    }

    /// Where the Service leads to.
    fn service_port(&self) -> u16 {
        let balancer = self.other_addresses.first();
        balancer.unwrap_or(&self.address).port()
    }

    /// Stops a process with SIGTERM, as a rolling update does. `None` if it was not started.
    ///
    /// # Errors
    /// It did not end within its grace period.
    pub async fn stop_part(&self, part: Part) -> Result<Option<ExitStatus>> {
        self.processes.stop(&part, STOP_GRACE).await
    }

    /// Kills a process. It may be started again.
    pub fn kill_part(&self, part: Part) {
        self.processes.kill(&part);
    }

    /// Waits until every `APIService` is Available.
    ///
    /// # Errors
    /// One is not in time; the error has the condition's message.
    pub async fn available(&self) -> Result<()> {
        for name in API_SERVICES {
            self.version_available(name).await?;
        }
        Ok(())
    }

    async fn version_available(&self, name: &str) -> Result<()> {
        let services: Api<APIService> = Api::all(self.control_plane.client().await?);
        eventually(&format!("{name} to be Available"), START_DEADLINE, async || {
            let status = services.get(name).await?.status;
            let conditions = status
                .into_iter()
                .flat_map(|status| status.conditions.unwrap_or_default());
            let condition = conditions.into_iter().find(|it| it.type_ == "Available");
            let condition = condition.context("no Available condition yet")?;
            anyhow::ensure!(
                condition.status == "True",
                "{}: {}",
                condition.reason.unwrap_or_default(),
                condition.message.unwrap_or_default()
            );
            Ok(Some(()))
        })
        .await
    }

    /// The control plane that it joined.
    #[must_use]
    pub fn control_plane(&self) -> &'a ControlPlane {
        self.control_plane
    }

    /// The server's address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the controller's secure port.
    #[must_use]
    pub fn controller_address(&self) -> SocketAddr {
        self.controller_address
    }

    /// The server's serving certificate and key.
    #[must_use]
    pub fn serving(&self) -> &Credential {
        &self.serving
    }

    /// The id of a process, if it runs.
    #[must_use]
    pub fn process_id(&self, part: Part) -> Option<u32> {
        self.processes.id(&part)
    }

    /// The server's data folder.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.file("drydock-data")
    }

    /// The log of a process.
    #[must_use]
    pub fn log(&self, part: Part) -> PathBuf {
        self.file(&format!("{}.log", part.command()))
    }

    /// The kubeconfig of a process, with its service account.
    #[must_use]
    pub fn kubeconfig(&self, part: Part) -> PathBuf {
        self.file(&format!("{}.kubeconfig", part.command()))
    }

    /// A raw client of the server, without the aggregator, with a client certificate or anonymous.
    ///
    /// # Errors
    /// The certificate cannot be read.
    pub fn raw_client(&self, identity: Option<&Credential>, protocol: Protocol) -> Result<RawClient> {
        let authority = self.control_plane.pki().drydock.certificate();
        RawClient::new(self.address, SERVER_NAME, &authority, identity, protocol)
    }

    /// A raw client of the controller's secure port, with a client certificate or anonymous.
    ///
    /// # Errors
    /// The certificate cannot be read.
    pub fn controller_client(&self, identity: Option<&Credential>, protocol: Protocol) -> Result<RawClient> {
        let authority = self.control_plane.pki().drydock.certificate();
        RawClient::new(
            self.controller_address,
            CONTROLLER_NAME,
            &authority,
            identity,
            protocol,
        )
    }

    /// The command line of a process, for tests that start another one, at another port.
    #[must_use]
    pub fn command_of(&self, part: Part) -> Command {
        match part {
            Part::ApiServer => self.server_command(
                self.address,
                &self.file("drydock-serving.crt"),
                &self.file("drydock-serving.key"),
                &self.data_dir(),
            ),
            Part::Controller => self.controller_command(Road::Aggregator),
        }
    }

    fn controller_command(&self, road: Road) -> Command {
        let mut command = Command::new(self.binaries.join(Part::Controller.command()));
        command
            .arg("--kubeconfig")
            .arg(self.kubeconfig(Part::Controller))
            .arg("--leader-elect")
            .args(["--leader-elect-resource-namespace", NAMESPACE])
            .args(["--bind-address", "127.0.0.1"])
            .args(["--secure-port", &self.controller_address.port().to_string()])
            .args(["--eviction-bridge", "--descheduling"])
            // Pods of tests are young.
            .args(["--descheduling-pause", "1s"])
            .arg("--tls-cert-file")
            .arg(self.file("drydock-controller-serving.crt"))
            .arg("--tls-private-key-file")
            .arg(self.file("drydock-controller-serving.key"));
        if road == Road::Direct {
            command
                .arg("--apiserver-kubeconfig")
                .arg(self.file(DIRECT_KUBECONFIG));
        }
        command
    }

    /// The command line of a server with the same service account, but another address, certificate and store.
    pub(super) fn server_command(
        &self,
        address: SocketAddr,
        certificate: &Path,
        key: &Path,
        data_dir: &Path,
    ) -> Command {
        let mut command = Command::new(self.binaries.join(Part::ApiServer.command()));
        let kubeconfig = self.kubeconfig(Part::ApiServer);
        command
            .arg("serve")
            .args(["--bind-address", &address.ip().to_string()])
            .args(["--secure-port", &address.port().to_string()])
            .args(["--log-format", "json"])
            .arg("--kubeconfig")
            .arg(&kubeconfig)
            .arg("--authentication-kubeconfig")
            .arg(&kubeconfig)
            .arg("--authorization-kubeconfig")
            .arg(&kubeconfig)
            .arg("--tls-cert-file")
            .arg(certificate)
            .arg("--tls-private-key-file")
            .arg(key)
            .arg("--data-dir")
            .arg(data_dir);
        if self.control_plane.options().frequent_cache_checks {
            command.args(["--debug-cache-check-period", "5s"]);
        }
        if self.control_plane.options().etcd_servers > 0 {
            command.arg("--storage-backend=etcd");
            command.args(["--etcd-servers", &self.control_plane.etcd_url()]);
        }
        command.args(&self.control_plane.options().server_flags);
        command
    }

    /// Whether the process was started and neither stopped nor killed.
    #[must_use]
    pub fn has_started(&self, part: Part) -> bool {
        self.processes.contains(&part)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.control_plane.folder().path().join(name)
    }

    async fn is_ready(&self) -> Result<bool> {
        let response = self.raw_client(None, Protocol::Http1)?.get("/readyz").await?;
        Ok(response.status().is_success())
    }

    /// Creates the Service and the `APIService` objects of a server on this machine.
    async fn register(&self) -> Result<()> {
        // By default the aggregator resolves the Service's name instead of using endpoints.
        let service = json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": { "name": "drydock-apiserver", "namespace": NAMESPACE },
            "spec": { "type": "ExternalName", "externalName": "localhost" },
        });
        let authority = self.control_plane.pki().drydock.certificate();
        let manifest = repository().join("deploy/apiserver/apiservice.yaml");
        let mut items = vec![service];
        for api_service in read_manifests(&manifest)? {
            items.push(local_api_service(&api_service, self.service_port(), &authority)?);
        }
        let admin = self.control_plane.admin();
        admin
            .apply(&json!({ "apiVersion": "v1", "kind": "List", "items": items }).to_string())
            .await?;
        Ok(())
    }
}

/// A token of the service account of a process.
async fn create_token(control_plane: &ControlPlane, part: Part) -> Result<String> {
    let account = part.command();
    let arguments = [
        "create",
        "token",
        account,
        "--namespace",
        NAMESPACE,
        "--duration",
        "24h",
    ];
    let token = control_plane.admin().ok(&arguments).await?;
    Ok(token.trim_end().to_owned())
}

/// Reads the documents of a manifest.
fn read_manifests(path: &Path) -> Result<Vec<Value>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    text.split("\n---\n")
        .map(|document| serde_saphyr::from_str(document).with_context(|| format!("parse {}", path.display())))
        .collect()
}

/// The `APIService` with the port and the CA certificate of a server on this machine.
fn local_api_service(manifest: &Value, port: u16, authority: &str) -> Result<Value> {
    let mut api_service = manifest.clone();
    let spec = api_service
        .get_mut("spec")
        .and_then(Value::as_object_mut)
        .context("an APIService has a spec")?;
    spec.insert("caBundle".to_owned(), Value::String(STANDARD.encode(authority)));
    let service = spec.get_mut("service").and_then(Value::as_object_mut);
    service
        .context("an APIService names a service")?
        .insert("port".to_owned(), port.into());
    Ok(api_service)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_port_and_ca_of_the_api_service_differ() {
        let manifests = read_manifests(&repository().join("deploy/apiserver/apiservice.yaml")).unwrap();
        assert_eq!(manifests.len(), API_SERVICES.len());
        for (manifest, name) in manifests.iter().zip(API_SERVICES) {
            let mut local = local_api_service(manifest, 4711, "PEM").unwrap();
            assert_eq!(local["spec"]["service"]["port"], 4711);
            assert_eq!(local["spec"]["caBundle"], STANDARD.encode("PEM"));
            assert_eq!(local["metadata"]["name"], name);
            local["spec"]["service"]["port"] = manifest["spec"]["service"]["port"].clone();
            local["spec"].as_object_mut().unwrap().remove("caBundle");
            assert_eq!(local, *manifest);
        }
    }
}
