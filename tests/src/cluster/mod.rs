//! The processes of a cluster on one machine.
//!
//! The binaries are built from Go modules by `tests/cluster/build.sh`, once per machine.

use std::io::Write as _;

use anyhow::Result;
use tokio::sync::OnceCell;

mod audit_policy;
mod balancer;
mod binaries;
mod control_plane;
mod detached;
mod drydock;
mod etcd;
mod etcd_members;
mod folder;
mod gate;
mod kubeconfig;
mod namespaces;
mod node;
pub mod pki;
mod ports;
mod process;
mod sample_apiserver;
mod server;

pub use self::audit_policy::{AUDITED_GROUP, AUDITED_RULES};
pub use self::balancer::balance;
pub use self::binaries::{
    Binaries, DEFAULT_KUBERNETES_VERSION, descheduler, kubectl, own as own_binaries, prometheus,
};
pub(crate) use self::control_plane::client as client_of;
pub use self::control_plane::{Component, ControlPlane, Options};
pub use self::detached::end_detached;
pub use self::drydock::{Drydock, NAMESPACE, Part, Road, SERVER_NAME};
pub use self::etcd::Etcd;
pub use self::etcd_members::EtcdMembers;
pub use self::folder::Folder;
pub use self::gate::Gate;
pub use self::kubeconfig::Kubeconfig;
pub use self::node::node;
pub use self::ports::Ports;
pub use self::process::{Lifetime, Process, Processes};
pub use self::sample_apiserver::SampleApiServer;
pub use self::server::Server;

static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();
static SHARED_DRYDOCK: OnceCell<Drydock<'static>> = OnceCell::const_new();

/// The control plane that all tests of one test binary share, started by the first.
///
/// `None` with `DRYDOCK_TEST_CLUSTER=skip`; the test then returns, and a line on standard error says so.
///
/// # Errors
/// The control plane could not be built or started; the message names the log. The next test tries again.
pub async fn shared() -> Result<Option<&'static ControlPlane>> {
    if std::env::var("DRYDOCK_TEST_CLUSTER").is_ok_and(|value| value == "skip") {
        writeln!(std::io::stderr(), "skipped: DRYDOCK_TEST_CLUSTER=skip")?;
        return Ok(None);
    }
    SHARED
        .get_or_try_init(|| ControlPlane::start(Options::default()))
        .await
        .map(Some)
}

/// The [`shared`] control plane with the project's server and controller, started by the first test.
///
/// # Errors
/// As for [`shared`], or one of the two processes could not be built or started.
pub async fn shared_drydock() -> Result<Option<&'static Drydock<'static>>> {
    let Some(control_plane) = shared().await? else {
        return Ok(None);
    };
    SHARED_DRYDOCK
        .get_or_try_init(|| Drydock::start(control_plane))
        .await
        .map(Some)
}
