//! The storage backend: what the server needs of a store beyond [`Store`], and the store it runs on.
//!
//! RocksDB or etcd is chosen here and nowhere else in the server; [`crate::storage_command`] works on a store while no
//! server runs. Another backend implements [`Backend`] and is opened in [`open`].

mod chosen;

use std::error::Error;
use std::path::{Path, PathBuf};

pub(crate) use drydock_storage::etcd::EtcdMemberChange;
pub use drydock_storage::etcd::EtcdNotice;
use drydock_storage::etcd::{EtcdOpened, EtcdOptions, EtcdStore, EtcdTls};
use drydock_storage::rocks::{Opened, RocksStore};
use drydock_storage::{Options, Store};
use prometheus_client::registry::Registry;
use serde::Serialize;
use tokio::sync::broadcast;

pub use chosen::{ServerEvents, ServerStore};

use crate::config::{Durability, EtcdConfig, StorageConfig};
use crate::encryption::Encryption;
use crate::threads;

/// A store the server can run on.
pub trait Backend: Store {
    /// Adds the metrics of the store to those of the server.
    fn register_metrics(&self, registry: &mut Registry);

    /// Changes of the members behind the store, for people; none for an embedded store.
    fn notices(&self) -> Option<broadcast::Receiver<EtcdNotice>> {
        None
    }

    /// For people, where backups are taken if this store takes none.
    fn backups_are_elsewhere(&self) -> Option<&'static str> {
        None
    }

    /// Takes a whole backup into a new folder below `folder` and keeps the newest `keep` there (0 = all). Blocks; writers
    /// do not wait.
    ///
    /// # Errors
    /// There is no backup.
    fn back_up(&self, folder: &Path, keep: usize) -> Result<BackupReport, BackupError>;

    /// Brings the incremental backups in `folder` up to date and keeps the newest `keep` (0 = all). Blocks; writers do
    /// not wait.
    ///
    /// # Errors
    /// There is no backup.
    fn back_up_incrementally(&self, folder: &Path, keep: usize) -> Result<BackupReport, BackupError>;
}

/// A backup that was taken.
#[derive(Debug)]
pub struct BackupReport {
    /// The backup: its folder, or the manifest of an incremental one.
    pub path: PathBuf,
    /// What the backend says about it, or why that is no JSON.
    pub details: serde_json::Result<serde_json::Value>,
}

impl BackupReport {
    fn new(path: &Path, details: &impl Serialize) -> Self {
        Self {
            path: path.to_owned(),
            details: serde_json::to_value(details),
        }
    }
}

/// Why no backup was taken.
pub type BackupError = Box<dyn Error + Send + Sync>;

impl Backend for RocksStore {
    fn register_metrics(&self, registry: &mut Registry) {
        self.metrics().register(registry);
    }

    fn back_up(&self, folder: &Path, keep: usize) -> Result<BackupReport, BackupError> {
        let report = self.backup(folder, keep, &|progress| {
            tracing::debug!(step = progress.step, done = progress.done, "backup");
        })?;
        Ok(BackupReport::new(&report.path, &report))
    }

    fn back_up_incrementally(&self, folder: &Path, keep: usize) -> Result<BackupReport, BackupError> {
        let report = self.backup_incrementally(folder, keep)?;
        Ok(BackupReport::new(&report.path, &report))
    }
}

/// How etcd is backed up, for people.
pub(crate) const ETCD_BACKUPS: &str =
    "objects are stored in etcd, which takes its own backups: use etcdctl snapshot save";

impl Backend for EtcdStore {
    fn register_metrics(&self, registry: &mut Registry) {
        self.metrics().register(registry);
    }

    fn notices(&self) -> Option<broadcast::Receiver<EtcdNotice>> {
        Some(Self::notices(self))
    }

    fn backups_are_elsewhere(&self) -> Option<&'static str> {
        Some(ETCD_BACKUPS)
    }

    fn back_up(&self, _: &Path, _: usize) -> Result<BackupReport, BackupError> {
        Err(ETCD_BACKUPS.into())
    }

    fn back_up_incrementally(&self, _: &Path, _: usize) -> Result<BackupReport, BackupError> {
        Err(ETCD_BACKUPS.into())
    }
}

/// Why the store cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The backend refused to open it.
    #[error("the storage cannot be opened")]
    Refused(#[source] Box<dyn Error + Send + Sync>),
    /// Values are sealed, and no configuration says how: new ones would be written in clear.
    #[error("{values} values are encrypted, such as {first}, and --encryption-provider-config is missing")]
    Sealed {
        /// How many.
        values: u64,
        /// Why the first one does not open; names it.
        first: String,
    },
    /// There is no thread to open it on.
    #[error("no thread to open the storage")]
    NoThread(#[source] std::io::Error),
    /// The backend panicked.
    #[error("opening the storage panicked")]
    Panicked,
}

/// The options of a store, for a server and for work on its files alike.
pub(crate) fn options(config: &StorageConfig, encryption: &Encryption) -> Options {
    Options {
        seal: encryption.seal(),
        durability: match config.durability {
            Durability::Strict => drydock_storage::Durability::Strict,
            Durability::Relaxed(interval) => drydock_storage::Durability::Relaxed { interval },
        },
        window: config.history_window,
        object_bytes: config.object_bytes_limit,
        any_file_system: config.any_file_system,
        check_every: config.check_interval,
        ..Options::new(&config.data_dir)
    }
}

/// The options of a store in etcd.
pub(crate) fn etcd_options(config: &EtcdConfig, encryption: &Encryption) -> EtcdOptions {
    EtcdOptions {
        seal: encryption.seal(),
        tls: EtcdTls {
            ca: config.files.ca.clone(),
            certificate: config.files.certificate.clone(),
            key: config.files.key.clone(),
        },
        prefix: config.prefix.clone(),
        compaction_interval: config.compaction_interval,
        ..EtcdOptions::new(config.servers.clone())
    }
}

/// Opens the store, whose values are sealed and opened by `encryption`.
///
/// # Errors
/// [`OpenError`].
pub async fn open(config: &StorageConfig, encryption: &Encryption) -> Result<ServerStore, OpenError> {
    match &config.etcd {
        None => open_rocks(config, encryption).await.map(ServerStore::Rocks),
        Some(etcd) => open_etcd(etcd, encryption).await.map(ServerStore::Etcd),
    }
}

async fn open_etcd(config: &EtcdConfig, encryption: &Encryption) -> Result<EtcdStore, OpenError> {
    let opened = EtcdStore::open(etcd_options(config, encryption)).await;
    let (
        store,
        EtcdOpened {
            store: id,
            revision,
            version,
            silent,
            without_clock: _,
        },
    ) = opened.map_err(|error| OpenError::Refused(error.into()))?;
    tracing::info!(store = %id, revision, version, prefix = config.prefix, "storage in etcd opened");
    if !silent.is_empty() {
        tracing::warn!(endpoints = ?silent, "members of etcd did not answer: neither their version nor their cluster is known");
    }
    Ok(store)
}

/// Opens the embedded store on a thread of its own, whose rank the threads of the store inherit: see [`crate::threads`].
async fn open_rocks(config: &StorageConfig, encryption: &Encryption) -> Result<RocksStore, OpenError> {
    let options = options(config, encryption);
    let (store, report) = threads::beside_workers(move || RocksStore::open(options))
        .await
        .map_err(OpenError::NoThread)?
        .ok_or(OpenError::Panicked)?
        .map_err(|error| OpenError::Refused(error.into()))?;
    log_opened(&report, config.durability);
    match report.unopened_because {
        Some(first) if config.encryption.is_none() => Err(OpenError::Sealed {
            values: report.unopened,
            first,
        }),
        _ => Ok(store),
    }
}

fn log_opened(report: &Opened, durability: Durability) {
    tracing::info!(
        store = %report.store,
        revision = report.revision,
        objects = report.objects,
        %durability,
        took_ms = report.took_ms,
        "storage opened"
    );
    if report.resumed_at_ceiling {
        tracing::warn!(
            revision = report.revision,
            "power loss in relaxed mode: the newest writes may be missing; revisions continue above every revision \
             issued before, and every client must list again"
        );
    }
    if let Some(first) = &report.unopened_because {
        tracing::error!(
            values = report.unopened,
            first,
            "sealed values do not open: reads of them and lists fail until their encryption key is available"
        );
    }
    for key in &report.damaged {
        tracing::error!(key, "stored value is damaged: reads of it fail");
    }
}
