//! Options of a store in etcd.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, fs, io};

use etcd_client::{Certificate, ConnectOptions, Identity, TlsOptions};

use crate::seal::{Seal, Unsealed};

/// PEM files of a TLS connection to etcd.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct EtcdTls {
    /// The authorities that may have signed the certificates of etcd.
    pub ca: Option<PathBuf>,
    /// The certificate presented to etcd, which decides what this client may do.
    pub certificate: Option<PathBuf>,
    /// Its private key.
    pub key: Option<PathBuf>,
}

/// The contents of the PEM files.
#[derive(Clone, PartialEq, Eq, Default)]
pub(super) struct Pem {
    pub(super) ca: Option<Vec<u8>>,
    pub(super) certificate: Option<Vec<u8>>,
    pub(super) key: Option<Vec<u8>>,
}

impl EtcdTls {
    /// Reads the files.
    pub(super) fn read(&self) -> io::Result<Pem> {
        let read = |path: &Option<PathBuf>| path.as_ref().map(fs::read).transpose();
        Ok(Pem {
            ca: read(&self.ca)?,
            certificate: read(&self.certificate)?,
            key: read(&self.key)?,
        })
    }
}

/// Options of a store in etcd. [`EtcdOptions::new`] returns the defaults of a server.
#[derive(Clone)]
pub struct EtcdOptions {
    /// The client URLs of the members: `http://HOST:PORT`, or all `https://`.
    pub endpoints: Vec<String>,
    /// The files of TLS.
    pub tls: EtcdTls,
    /// What precedes every key. Default `/registry/drydock`.
    pub prefix: String,
    /// How often history is compacted, which is how long it is kept at least; zero: never. Only one of all servers
    /// compacts, and none if kube-apiserver compacts this etcd. Default 5 min.
    pub compaction_interval: Duration,
    /// How long a start waits for a member that answers. Default 30 s.
    pub start_wait: Duration,
    /// How long a read may take, with all attempts. Default 5 s.
    pub read_deadline: Duration,
    /// How long a write may take; then its outcome is unknown. Longer than etcd's own limit, so that etcd says why.
    /// Default 10 s.
    pub write_deadline: Duration,
    /// How often every member is asked whether it serves. Default 1 s.
    pub probe_period: Duration,
    /// Encryption at rest.
    pub seal: Arc<dyn Seal>,
}

impl EtcdOptions {
    /// The defaults, for the members at `endpoints`.
    #[must_use]
    pub fn new(endpoints: Vec<String>) -> Self {
        Self {
            endpoints,
            tls: EtcdTls::default(),
            prefix: "/registry/drydock".to_owned(),
            compaction_interval: Duration::from_mins(5),
            start_wait: Duration::from_secs(30),
            read_deadline: Duration::from_secs(5),
            write_deadline: Duration::from_secs(10),
            probe_period: Duration::from_secs(1),
            seal: Arc::new(Unsealed),
        }
    }

    /// The options of a connection. A member that is cut off is noticed by pings, at most as often as etcd allows.
    pub(super) fn connection(&self, pem: &Pem) -> ConnectOptions {
        let options = ConnectOptions::new()
            .with_connect_timeout(Duration::from_secs(2))
            .with_keep_alive(Duration::from_secs(6), Duration::from_secs(4))
            .with_keep_alive_while_idle(true)
            .with_require_leader(true);
        if self
            .endpoints
            .iter()
            .any(|endpoint| !endpoint.starts_with("https://"))
        {
            return options;
        }
        let mut tls = TlsOptions::new();
        if let Some(ca) = &pem.ca {
            tls = tls.ca_certificate(Certificate::from_pem(ca));
        }
        if let (Some(certificate), Some(key)) = (&pem.certificate, &pem.key) {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        options.with_tls(tls)
    }
}

impl fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("endpoints", &self.endpoints)
            .field("tls", &self.tls)
            .field("prefix", &self.prefix)
            .field("compaction_interval", &self.compaction_interval)
            .finish_non_exhaustive()
    }
}
