//! TLS: the serving certificate, and the rules for client certificates.
//!
//! Client certificates are requested but not required, and not rejected for issuer or dates: these are verified per
//! request. That the client holds the key is always verified here. The certificate files are polled by content, since
//! mounted secrets change by symlink; an invalid pair leaves the old one in use.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use drydock_machinery::clock::Clock;
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject},
    server::danger::{ClientCertVerified, ClientCertVerifier},
    sign::CertifiedKey,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::certificate::expiry;
use crate::{host::AuthenticationConfig, metrics::Metrics};

/// How often the certificate files are read.
const POLL: Duration = Duration::from_secs(10);

/// The oldest TLS version that clients may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MinTlsVersion {
    /// TLS 1.2 and 1.3.
    #[default]
    Tls12,
    /// TLS 1.3 only.
    Tls13,
}

/// Why a serving certificate cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// No certificate in the PEM text.
    #[error("no certificate in the serving certificate file")]
    NoCertificate,
    /// Not PEM.
    #[error("the serving certificate is not PEM")]
    CertificatePem(#[source] rustls_pki_types::pem::Error),
    /// No private key in the PEM text.
    #[error("no private key in the key file")]
    KeyPem(#[source] rustls_pki_types::pem::Error),
    /// The key is unusable or belongs to another certificate.
    #[error("certificate and key do not fit together")]
    Pair(#[source] Error),
    /// rustls rejects the configuration.
    #[error("TLS cannot be set up")]
    Setup(#[source] Error),
}

/// The source of certificate and key.
#[derive(Clone, Debug)]
pub enum CertificateSource {
    /// PEM files, which are polled.
    Files {
        /// Certificate and intermediates.
        certificate: PathBuf,
        /// Private key.
        key: PathBuf,
    },
    /// PEM texts that do not change.
    Pem {
        /// Certificate and intermediates.
        certificate: String,
        /// Private key.
        key: String,
    },
}

/// The TLS side of a listener: holds the current configuration for new connections.
pub struct Tls {
    current: ArcSwap<ServerConfig>,
    source: CertificateSource,
    min_version: MinTlsVersion,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("source", &self.source)
            .finish_non_exhaustive()
    }
}

type PemPair = (Vec<u8>, Vec<u8>);

impl CertificateSource {
    async fn read(&self) -> Result<PemPair, TlsError> {
        match self {
            Self::Files { certificate, key } => Ok((read_file(certificate).await?, read_file(key).await?)),
            Self::Pem { certificate, key } => Ok((certificate.clone().into(), key.clone().into())),
        }
    }
}

async fn read_file(path: &Path) -> Result<Vec<u8>, TlsError> {
    tokio::fs::read(path).await.map_err(|source| TlsError::Read {
        path: path.to_owned(),
        source,
    })
}

/// Follows the certificate files and the names of acceptable authorities. See [`Tls::load`].
pub struct Reloader {
    tls: Arc<Tls>,
    pem: PemPair,
    authentication: watch::Receiver<Arc<AuthenticationConfig>>,
}

impl Tls {
    /// Reads the certificate for the first time.
    ///
    /// # Errors
    /// [`TlsError`].
    pub async fn load(
        source: CertificateSource,
        min_version: MinTlsVersion,
        mut authentication: watch::Receiver<Arc<AuthenticationConfig>>,
    ) -> Result<(Arc<Self>, Reloader), TlsError> {
        let pem = source.read().await?;
        let trusted = Arc::clone(&authentication.borrow_and_update());
        let config = server_config(&pem, min_version, &trusted)?;
        let tls = Arc::new(Self {
            current: ArcSwap::from_pointee(config),
            source,
            min_version,
        });
        let reloader = Reloader {
            tls: Arc::clone(&tls),
            pem,
            authentication,
        };
        Ok((tls, reloader))
    }

    /// The configuration for a new connection.
    #[must_use]
    pub fn current(&self) -> Arc<ServerConfig> {
        self.current.load_full()
    }
}

impl Reloader {
    /// Reads the files once, and replaces the configuration if their content changed and is valid. Returns whether it did.
    ///
    /// # Errors
    /// [`TlsError`]; the pair in use stays.
    pub async fn reload(&mut self) -> Result<bool, TlsError> {
        let pem = self.tls.source.read().await?;
        if pem == self.pem {
            return Ok(false);
        }
        let trusted = Arc::clone(&self.authentication.borrow());
        let config = server_config(&pem, self.tls.min_version, &trusted)?;
        self.tls.current.store(Arc::new(config));
        self.pem = pem;
        Ok(true)
    }

    /// Keeps the configuration current until `stop`.
    pub async fn run(mut self, metrics: Metrics, clock: Arc<dyn Clock>, stop: CancellationToken) {
        let mut poll = tokio::time::interval(POLL);
        let mut watching = true;
        self.report_expiry(&metrics, &*clock);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = poll.tick() => match self.reload().await {
                    Ok(true) => {
                        tracing::info!("serving certificate replaced");
                        self.report_expiry(&metrics, &*clock);
                    }
                    Ok(false) => {}
                    Err(error) => {
                        let cause = std::error::Error::source(&error).map(ToString::to_string);
                        tracing::error!(%error, cause, "invalid serving certificate, keeping the old one");
                    }
                },
                changed = self.authentication.changed(), if watching => {
                    watching = changed.is_ok();
                    if watching {
                        self.update_hints();
                    } else if !stop.is_cancelled() {
                        tracing::error!("the authentication settings are no longer followed");
                    }
                }
            }
        }
    }

    fn update_hints(&mut self) {
        let trusted = Arc::clone(&self.authentication.borrow_and_update());
        match server_config(&self.pem, self.tls.min_version, &trusted) {
            Ok(config) => self.tls.current.store(Arc::new(config)),
            Err(error) => {
                tracing::error!(%error, "updating the TLS configuration failed, keeping the old one");
            }
        }
    }

    fn report_expiry(&self, metrics: &Metrics, clock: &dyn Clock) {
        let leaf = CertificateDer::pem_slice_iter(&self.pem.0)
            .next()
            .and_then(Result::ok);
        if let Some(expires) = leaf.as_ref().and_then(expiry) {
            metrics.serving_certificate(expires);
            if expires <= clock.now().as_second() {
                tracing::error!(expires, "the serving certificate has expired");
            }
        }
    }
}

fn server_config(
    (certificate, key): &PemPair,
    min_version: MinTlsVersion,
    trusted: &AuthenticationConfig,
) -> Result<ServerConfig, TlsError> {
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificate)
        .collect::<Result<_, _>>()
        .map_err(TlsError::CertificatePem)?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate);
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(TlsError::KeyPem)?;
    let provider = Arc::new(aws_lc_rs::default_provider());
    CertifiedKey::from_der(chain.clone(), key.clone_key(), &provider)
        .and_then(|pair| pair.keys_match())
        .map_err(TlsError::Pair)?;
    let versions: &[&rustls::SupportedProtocolVersion] = match min_version {
        MinTlsVersion::Tls12 => &[&rustls::version::TLS13, &rustls::version::TLS12],
        MinTlsVersion::Tls13 => &[&rustls::version::TLS13],
    };
    let verifier = AnyClientCertificate {
        hints: hints(trusted),
        provider: Arc::clone(&provider),
    };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .map_err(TlsError::Setup)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_single_cert(chain, key)
        .map_err(TlsError::Pair)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Names of all authorities whose certificates authenticate users. They are hints: other certificates are accepted too.
fn hints(trusted: &AuthenticationConfig) -> Vec<DistinguishedName> {
    let front_proxy = trusted
        .request_header
        .as_ref()
        .and_then(|config| config.ca.as_ref());
    let mut hints: Vec<DistinguishedName> = Vec::new();
    for bundle in trusted.client_ca.iter().chain(front_proxy) {
        for subject in bundle.subjects() {
            if !hints.iter().any(|hint| hint.as_ref() == subject.as_ref()) {
                hints.push(subject.clone());
            }
        }
    }
    hints
}

/// Accepts any client certificate if the client proves that it holds the key.
#[derive(Debug)]
struct AnyClientCertificate {
    hints: Vec<DistinguishedName>,
    provider: Arc<CryptoProvider>,
}

impl ClientCertVerifier for AnyClientCertificate {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// Issuer and dates are verified per request, with the current authorities.
    fn verify_client_cert(
        &self,
        _leaf: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(
            message,
            leaf,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(
            message,
            leaf,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
