//! The flags of the store and the `storage` commands.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};

use super::{
    error::ConfigError,
    etcd::EtcdFlags,
    settings::StorageConfig,
    values::{Bytes, Durability, GoDuration},
};

const DEFAULT_DATA_DIR: &str = "/var/lib/drydock";

/// Flags of the store, common to the server and the `storage` commands.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct StorageFlags {
    /// Which backend, and etcd.
    #[command(flatten)]
    etcd: Box<EtcdFlags>,
    /// File that configures encryption at rest: an `EncryptionConfiguration` of apiserver.config.k8s.io/v1, see
    /// docs/encryption.md.
    #[arg(long, env = "DRYDOCK_ENCRYPTION_PROVIDER_CONFIG", value_name = "FILE")]
    encryption_provider_config: Option<PathBuf>,
    /// Folder of the store.
    #[arg(long, env = "DRYDOCK_DATA_DIR", default_value = DEFAULT_DATA_DIR, value_name = "DIR")]
    data_dir: PathBuf,
    /// `strict`: a write is acknowledged after it is synced to disk. `relaxed=DURATION`: before, with a sync at that
    /// interval.
    #[arg(long, env = "DRYDOCK_STORAGE_DURABILITY", default_value_t = Durability::Strict, value_name = "MODE")]
    storage_durability: Durability,
    /// How long past revisions can be read and watched from.
    #[arg(
        long,
        env = "DRYDOCK_HISTORY_WINDOW",
        default_value = "5m",
        value_name = "DURATION"
    )]
    history_window: GoDuration,
    /// Total bytes of all objects, which are held in memory, at which creates and updates that grow are rejected. Status and
    /// deletions may exceed it by a quarter; 0 = no limit.
    #[arg(
        long,
        env = "DRYDOCK_STORAGE_OBJECT_BYTES_LIMIT",
        default_value = "1536Mi",
        value_name = "BYTES"
    )]
    storage_object_bytes_limit: Bytes,
    /// Accept file systems that cannot guarantee that a synced write is on disk: network mounts, overlays, tmpfs.
    #[arg(
        long,
        env = "DRYDOCK_STORAGE_ANY_FILE_SYSTEM",
        default_value_t = false,
        num_args = 0..=1,
        default_missing_value = "true",
        require_equals = true,
        value_name = "BOOL",
        action = clap::ArgAction::Set
    )]
    storage_any_file_system: bool,
}

impl StorageFlags {
    /// The settings of the store.
    ///
    /// # Errors
    /// [`ConfigError::Value`].
    pub fn validated(&self) -> Result<StorageConfig, ConfigError> {
        if self.history_window.0 < Duration::from_secs(1) {
            return Err(ConfigError::value("--history-window", "must be at least 1s"));
        }
        Ok(StorageConfig {
            etcd: self.etcd.validated()?,
            encryption: self.encryption_provider_config.clone(),
            data_dir: self.data_dir.clone(),
            durability: self.storage_durability,
            history_window: self.history_window.0,
            object_bytes_limit: self.storage_object_bytes_limit.0,
            any_file_system: self.storage_any_file_system,
            incremental_backup_dir: None,
            check_interval: Duration::ZERO,
        })
    }
}

/// Work on a store while no server uses it: on its files, or on objects in etcd (export, import, rewrite, remove-damaged).
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum StorageCommand {
    /// Recover a store that does not open, to its newest verifiable state.
    Recover {
        /// The store.
        #[command(flatten)]
        store: StorageFlags,
        /// Recover although acknowledged writes are missing.
        #[arg(long)]
        accept_loss: bool,
    },
    /// Check every record and report what is damaged.
    Verify(StorageFlags),
    /// Remove an object whose stored value is damaged, as named by `verify`. Its watchers list again. Finalizers and
    /// dependents are not considered.
    RemoveDamaged {
        /// The store.
        #[command(flatten)]
        store: StorageFlags,
        /// Key of the object: GROUP/RESOURCE/NAMESPACE/NAME.
        #[arg(value_name = "KEY")]
        key: String,
    },
    /// Write every object again that is sealed with another key than the configured first one, or not sealed, or sealed where
    /// nothing is sealed any more. Objects in etcd may be written by servers meanwhile.
    Rewrite(StorageFlags),
    /// Copy a store into a new folder below a folder of backups.
    Backup {
        /// The store.
        #[command(flatten)]
        store: StorageFlags,
        /// The destination.
        #[command(flatten)]
        target: BackupTarget,
        /// How many of the newest backups to keep there; 0 keeps all.
        #[arg(long, default_value_t = 0, value_name = "COUNT")]
        keep: usize,
    },
    /// Restore a backup into an absent or empty store.
    Restore {
        /// The store.
        #[command(flatten)]
        store: StorageFlags,
        /// Folder of the backup. In a folder of incremental backups the newest, or the one whose manifest is named.
        #[arg(long, value_name = "PATH")]
        from: PathBuf,
    },
    /// Write every object into a file.
    Export {
        /// The store.
        #[command(flatten)]
        store: StorageFlags,
        /// File to write.
        #[arg(long, value_name = "FILE")]
        to: PathBuf,
    },
    /// Read objects written by `export` into an absent or empty store.
    Import {
        /// The store.
        #[command(flatten)]
        store: StorageFlags,
        /// File to read.
        #[arg(long, value_name = "FILE")]
        from: PathBuf,
    },
}

impl StorageCommand {
    /// The flags of the store.
    #[must_use]
    pub fn store(&self) -> &StorageFlags {
        match self {
            Self::Verify(store)
            | Self::Rewrite(store)
            | Self::Recover { store, .. }
            | Self::RemoveDamaged { store, .. }
            | Self::Backup { store, .. }
            | Self::Restore { store, .. }
            | Self::Export { store, .. }
            | Self::Import { store, .. } => store,
        }
    }
}

/// Where a backup goes.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[group(required = true, multiple = false)]
pub struct BackupTarget {
    /// Folder of full backups. On the volume of the store they are hard links to its files.
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,
    /// Folder of incremental backups, on any volume: only files it does not have are copied.
    #[arg(long, value_name = "DIR")]
    pub incremental_to: Option<PathBuf>,
}
