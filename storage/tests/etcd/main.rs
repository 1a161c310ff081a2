//! The conformance suite on etcd, one process for each case, and what only etcd has.
#![expect(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod clocks;
#[path = "../support/etcd_process.rs"]
mod etcd_process;
mod faults;
mod moving;
mod scans;
mod sealed;
mod starts;
mod tls;

use drydock_storage::conformance::Backend;
use drydock_storage::etcd::EtcdStore;
use etcd_process::EtcdProcess;
use tokio::sync::OnceCell;

#[derive(Default)]
struct Etcd(OnceCell<EtcdProcess>);

impl Backend for Etcd {
    type Store = EtcdStore;

    const ENDS_AT_ONCE: bool = false;

    async fn open(&self) -> EtcdStore {
        self.0.get_or_init(EtcdProcess::start).await.store().await
    }
}

drydock_storage::conformance_suite!(crate::Etcd::default());
