//! The certificates of the secure port.

use std::path::PathBuf;

/// The certificates of the secure port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The serving certificate; `None` creates a self-signed one.
    pub serving: Option<CertificateFiles>,
    /// The authorities that sign certificates of clients, PEM; `None` asks clients for none.
    pub client_authority: Option<PathBuf>,
}

/// Paths of a certificate and its key, both PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate chain, leaf first.
    pub certificate: PathBuf,
    /// The private key.
    pub key: PathBuf,
}
