//! Bundles of certificate authorities that client certificates are verified against.

use std::{fmt, sync::Arc};

use rustls::{
    DistinguishedName, RootCertStore,
    pki_types::{CertificateDer, UnixTime, pem::PemObject},
    server::{WebPkiClientVerifier, danger::ClientCertVerifier},
};

/// A set of authorities read from PEM. Bundles for users and for the front proxy are never merged: a certificate of the
/// latter may name any user.
pub struct TrustBundle {
    pem: String,
    verifier: Arc<dyn ClientCertVerifier>,
}

/// Why a bundle cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The text is not PEM.
    #[error("the CA bundle is not PEM")]
    Pem(#[source] rustls_pki_types::pem::Error),
    /// There is no certificate in it.
    #[error("the CA bundle holds no certificate")]
    Empty,
    /// A certificate that cannot be an authority.
    #[error("the CA bundle holds an unusable certificate")]
    Certificate(#[source] rustls::Error),
    /// No verifier can be built from the bundle.
    #[error("no verifier for the CA bundle")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

impl fmt::Debug for TrustBundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TrustBundle")
            .field("subjects", &self.subjects().len())
            .finish_non_exhaustive()
    }
}

impl PartialEq for TrustBundle {
    fn eq(&self, other: &Self) -> bool {
        self.pem == other.pem
    }
}

impl Eq for TrustBundle {}

impl TrustBundle {
    /// Reads every certificate of a PEM bundle; other PEM sections are skipped.
    ///
    /// # Errors
    /// [`TrustError`]; a bundle with one invalid certificate is rejected as a whole, so that the last valid one stays in use.
    pub fn from_pem(pem: &str) -> Result<Self, TrustError> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            roots
                .add(certificate.map_err(TrustError::Pem)?)
                .map_err(TrustError::Certificate)?;
        }
        if roots.is_empty() {
            return Err(TrustError::Empty);
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(TrustError::Verifier)?;
        Ok(Self {
            pem: pem.to_owned(),
            verifier,
        })
    }

    /// Verifies that one of the authorities issued `leaf`, through the other presented certificates, that all are valid at
    /// `now`, and that the leaf is for clients (or does not restrict its usage).
    ///
    /// # Errors
    /// The error of rustls.
    pub fn verify(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), rustls::Error> {
        self.verifier
            .verify_client_cert(leaf, intermediates, now)
            .map(|_| ())
    }

    /// Names of the authorities, as hints for clients.
    #[must_use]
    pub fn subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    /// The text that the bundle was read from.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }
}
