//! The flags of a store in etcd, with the names of kube-apiserver.

use std::{path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};

use super::{
    error::ConfigError,
    settings::{EtcdConfig, EtcdFiles},
    values::GoDuration,
};

const DEFAULT_PREFIX: &str = "/registry/drydock";

/// Where objects are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum StorageBackend {
    /// In RocksDB, in the data folder.
    #[default]
    Rocksdb,
    /// In etcd, which any number of servers share.
    Etcd,
}

/// The flags that choose the backend, and those of etcd.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub(super) struct EtcdFlags {
    /// Where objects are stored: `rocksdb`, in the data folder of one server, or `etcd`, shared by any number of servers.
    #[arg(
        long,
        env = "DRYDOCK_STORAGE_BACKEND",
        default_value = "rocksdb",
        value_name = "BACKEND"
    )]
    storage_backend: StorageBackend,
    /// Client URLs of the members of etcd, comma separated: `http://HOST:PORT` or `https://HOST:PORT`.
    #[arg(
        long,
        env = "DRYDOCK_ETCD_SERVERS",
        value_delimiter = ',',
        value_name = "URLS"
    )]
    etcd_servers: Vec<String>,
    /// PEM file of the authorities that sign the certificates of etcd.
    #[arg(long, env = "DRYDOCK_ETCD_CAFILE", value_name = "FILE")]
    etcd_cafile: Option<PathBuf>,
    /// PEM file of the client certificate for etcd.
    #[arg(long, env = "DRYDOCK_ETCD_CERTFILE", value_name = "FILE")]
    etcd_certfile: Option<PathBuf>,
    /// PEM file of its private key.
    #[arg(long, env = "DRYDOCK_ETCD_KEYFILE", value_name = "FILE")]
    etcd_keyfile: Option<PathBuf>,
    /// What precedes every key in etcd.
    #[arg(long, env = "DRYDOCK_ETCD_PREFIX", default_value = DEFAULT_PREFIX, value_name = "PATH")]
    etcd_prefix: String,
    /// How often history in etcd is compacted, by one of all servers; 0 = never. Nothing is compacted where kube-apiserver
    /// does it.
    #[arg(
        long,
        env = "DRYDOCK_ETCD_COMPACTION_INTERVAL",
        default_value = "5m",
        value_name = "DURATION"
    )]
    etcd_compaction_interval: GoDuration,
}

impl EtcdFlags {
    /// The settings of etcd; none for RocksDB.
    ///
    /// # Errors
    /// [`ConfigError::Value`].
    pub(super) fn validated(&self) -> Result<Option<EtcdConfig>, ConfigError> {
        if self.storage_backend == StorageBackend::Rocksdb {
            if !self.etcd_servers.is_empty() {
                return Err(ConfigError::value(
                    "--etcd-servers",
                    "needs --storage-backend=etcd",
                ));
            }
            return Ok(None);
        }
        if self.etcd_servers.is_empty() {
            return Err(ConfigError::value(
                "--etcd-servers",
                "is needed with --storage-backend=etcd",
            ));
        }
        if self.etcd_certfile.is_some() != self.etcd_keyfile.is_some() {
            return Err(ConfigError::value(
                "--etcd-certfile",
                "needs --etcd-keyfile, and the reverse",
            ));
        }
        let interval = self.etcd_compaction_interval.0;
        if !interval.is_zero() && interval < Duration::from_secs(1) {
            return Err(ConfigError::value(
                "--etcd-compaction-interval",
                "must be 0 or at least 1s",
            ));
        }
        Ok(Some(EtcdConfig {
            servers: self.etcd_servers.clone(),
            files: EtcdFiles {
                ca: self.etcd_cafile.clone(),
                certificate: self.etcd_certfile.clone(),
                key: self.etcd_keyfile.clone(),
            },
            prefix: self.etcd_prefix.clone(),
            compaction_interval: interval,
        }))
    }
}
