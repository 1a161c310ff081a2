//! The validated settings of a server. They hold no text that is still to be parsed.

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use super::values::Durability;
use crate::{
    admission::AdmissionSettings,
    audit::AuditSettings,
    filters::InFlightLimits,
    host::{
        kube::{AuthenticationOverrides, HostConfig},
        reviews::ReviewTtls,
    },
    http::tls::MinTlsVersion,
    telemetry::{LogConfig, TracingSettings},
};

/// Settings of `serve`.
#[derive(Clone, Debug, PartialEq)]
pub struct ServeConfig {
    /// How the host is reached.
    pub host: HostConfig,
    /// Authentication settings that replace those of the host.
    pub authentication: AuthenticationOverrides,
    /// The admission plugins that run, and their configuration.
    pub plugins: AdmissionSettings,
    /// Settings common to `serve` and `standalone`.
    pub server: ServerConfig,
}

/// Settings common to `serve` and `standalone`.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerConfig {
    /// Where to listen; with port 0 the system chooses the port.
    pub address: SocketAddr,
    /// Certificate and key files; absent only in standalone mode, which generates its own.
    pub certificate: Option<CertificateFiles>,
    /// The oldest TLS version.
    pub min_tls_version: MinTlsVersion,
    /// Paths that need no review.
    pub always_allow_paths: Vec<String>,
    /// Time between failing readiness and closing the listener.
    pub shutdown_delay: Duration,
    /// Time limit of a request that is not a watch.
    pub request_timeout: Duration,
    /// Limits on concurrent requests.
    pub limits: InFlightLimits,
    /// How long reviews of the host are cached.
    pub review_ttls: ReviewTtls,
    /// Requester and interceptor names under `k8s.io` that are allowed in addition to the built-in ones.
    pub allowed_reserved_names: Vec<String>,
    /// Whether changes of the encryption configuration take effect without a restart.
    pub reload_encryption: bool,
    /// The store.
    pub storage: StorageConfig,
    /// The audit log, if there is a policy.
    pub audit: Option<AuditSettings>,
    /// The log.
    pub log: LogConfig,
    /// Where the spans of requests go, if anywhere.
    pub tracing: Option<TracingSettings>,
    /// For tests: how often caches are compared with the store. The process aborts if they differ.
    pub debug_cache_check_period: Option<Duration>,
}

/// A serving certificate on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// Certificate and intermediates, PEM.
    pub certificate: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
}

/// Settings of a store in etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdConfig {
    /// Client URLs of the members.
    pub servers: Vec<String>,
    /// Certificates.
    pub files: EtcdFiles,
    /// What precedes every key.
    pub prefix: String,
    /// How often history is compacted; zero = never.
    pub compaction_interval: Duration,
}

/// Certificates for the connections to etcd, PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EtcdFiles {
    /// The authorities that sign the certificates of etcd.
    pub ca: Option<PathBuf>,
    /// The client certificate.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
}

/// Settings of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageConfig {
    /// Settings of etcd if objects are stored there; all others are those of the embedded store.
    pub etcd: Option<EtcdConfig>,
    /// The file that configures encryption at rest, if any.
    pub encryption: Option<PathBuf>,
    /// Folder of the store.
    pub data_dir: PathBuf,
    /// When a write is acknowledged.
    pub durability: Durability,
    /// How long past revisions can be read and watched from.
    pub history_window: Duration,
    /// Total bytes of all objects at which writes that grow are rejected; 0 = no limit.
    pub object_bytes_limit: u64,
    /// Whether to accept file systems that cannot guarantee that a synced write is on disk.
    pub any_file_system: bool,
    /// Where a running server keeps incremental backups, if anywhere.
    pub incremental_backup_dir: Option<PathBuf>,
    /// How often a running server verifies the checksums of every value; zero = never.
    pub check_interval: Duration,
}
