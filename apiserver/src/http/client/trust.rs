//! Whom the client trusts: the authorities of a bundle, or those of the system.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::credential::ClientCertificate;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject};
use rustls::server::ParsedCertificate;
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore,
    SignatureScheme,
};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Why a bundle cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TrustProblem {
    /// There is no certificate in it.
    #[error("unable to load root certificates: unable to parse bytes as PEM block")]
    NoCertificate,
    /// TLS cannot be set up.
    #[error("unable to load root certificates: {0}")]
    Setup(String),
}

/// The authorities of servers, and the TLS configuration with them.
#[derive(Debug)]
pub struct Trust {
    id: u64,
    config: Arc<ClientConfig>,
}

impl Trust {
    /// The authorities of a PEM bundle; an empty one stands for the authorities of the system. A certificate is shown to
    /// servers that ask for one.
    ///
    /// # Errors
    /// [`TrustProblem`].
    pub fn new(pem: &[u8], certificate: Option<&ClientCertificate>) -> Result<Self, TrustProblem> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let bundle: Vec<CertificateDer<'static>> = if pem.is_empty() {
            rustls_native_certs::load_native_certs().certs
        } else {
            let certificates = CertificateDer::pem_slice_iter(pem);
            certificates
                .collect::<Result<_, _>>()
                .map_err(|_| TrustProblem::NoCertificate)?
        };
        let mut roots = RootCertStore::empty();
        let (usable, _) = roots.add_parsable_certificates(bundle.iter().cloned());
        if usable == 0 {
            return Err(TrustProblem::NoCertificate);
        }
        let setup = |error: &dyn std::fmt::Display| TrustProblem::Setup(error.to_string());
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(|error| setup(&error))?;
        let pinned = if pem.is_empty() { Vec::new() } else { bundle };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| setup(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Verifier { verifier, pinned }));
        let config = match certificate {
            None => config.with_no_client_auth(),
            Some(certificate) => config
                .with_client_auth_cert(certificate.chain.clone(), certificate.key())
                .map_err(|error| setup(&error))?,
        };
        Ok(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            config: Arc::new(config),
        })
    }

    /// Tells it from all others.
    pub(super) const fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config)
    }
}

/// Verifies as usual, except that a certificate of the bundle itself is trusted as a server's. Many webhooks have a
/// self-signed certificate that is marked as an authority, which clients in Go accept and the library of rustls does not.
#[derive(Debug)]
struct Verifier {
    verifier: Arc<WebPkiServerVerifier>,
    pinned: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified = self
            .verifier
            .verify_server_cert(leaf, intermediates, name, ocsp_response, now);
        if verified.is_ok() || !self.pinned.iter().any(|pinned| pinned.as_ref() == leaf.as_ref()) {
            return verified;
        }
        verify_server_name(&ParsedCertificate::try_from(leaf)?, name)?;
        let (_, parsed) = X509Certificate::from_der(leaf)
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let validity = parsed.validity();
        if seconds < validity.not_before.timestamp() {
            return Err(Error::InvalidCertificate(CertificateError::NotValidYet));
        }
        if seconds > validity.not_after.timestamp() {
            return Err(Error::InvalidCertificate(CertificateError::Expired));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

fn tls_error(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref::<Error>()
}

/// The text of a failed handshake.
pub(super) fn handshake_text(error: &io::Error) -> String {
    match tls_error(error) {
        Some(Error::InvalidCertificate(problem)) => {
            let text = match problem {
                CertificateError::UnknownIssuer => "certificate signed by unknown authority".to_owned(),
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    "certificate has expired or is not yet valid".to_owned()
                }
                other => other.to_string(),
            };
            format!("tls: failed to verify certificate: x509: {text}")
        }
        Some(Error::AlertReceived(alert)) => refusal_text(*alert),
        _ => error.to_string(),
    }
}

/// The text of a connection that broke. A server that does not accept the client's certificate says so only after the client
/// has finished its handshake.
pub(super) fn broken_text(error: &hyper::Error) -> String {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    match source.and_then(tls_error) {
        Some(Error::AlertReceived(alert)) => refusal_text(*alert),
        _ => "EOF".to_owned(),
    }
}

/// The alert by which the other side ended the connection.
fn refusal_text(alert: AlertDescription) -> String {
    let text = match alert {
        AlertDescription::CertificateRequired => "certificate required",
        AlertDescription::BadCertificate => "bad certificate",
        AlertDescription::UnknownCA => "unknown certificate authority",
        AlertDescription::CertificateExpired => "expired certificate",
        AlertDescription::CertificateRevoked => "revoked certificate",
        AlertDescription::CertificateUnknown => "unknown certificate",
        AlertDescription::UnsupportedCertificate => "unsupported certificate",
        AlertDescription::AccessDenied => "access denied",
        AlertDescription::DecryptError => "error decrypting message",
        AlertDescription::HandshakeFailure => "handshake failure",
        AlertDescription::ProtocolVersion => "protocol version not supported",
        AlertDescription::UnrecognisedName => "unrecognized name",
        AlertDescription::InternalError => "internal error",
        other => return format!("remote error: tls: alert({})", u8::from(other)),
    };
    format!("remote error: tls: {text}")
}
