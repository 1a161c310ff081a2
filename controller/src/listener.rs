//! The secure port: TLS, connections and their limits. What is served is in [`crate::health`] and [`crate::bridge`].
//!
//! Certificate files are polled by content, since mounted secrets change by symlink; an invalid pair leaves the old one in
//! use.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::config::{CertificateFiles, TlsFiles};
use crate::sync::lock;

/// How many connections are served at a time; beyond that old ones make way. API servers, probes and scrapers need few.
const MAX_CONNECTIONS: usize = 128;
/// How many requests of one connection are served at a time, over HTTP/2.
const MAX_STREAMS: u32 = 250;
/// The timeout of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout for receiving the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// The lifetime of a connection, so that idle ones do not use up the limit.
const MAX_CONNECTION_AGE: Duration = Duration::from_mins(5);
/// How long the last requests of a connection may take after its lifetime.
const LAST_REQUESTS: Duration = Duration::from_secs(10);
/// How often the certificate files are read.
const POLL: Duration = Duration::from_secs(10);

/// Why the secure port cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ListenerError {
    /// A file cannot be read.
    #[error("cannot read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file does not contain the expected PEM.
    #[error("cannot use {path}")]
    Pem {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rustls_pki_types::pem::Error,
    },
    /// The self-signed certificate could not be created.
    #[error("cannot create a self-signed certificate")]
    SelfSigned(#[source] rcgen::Error),
    /// The certificate and key were rejected.
    #[error("cannot use the certificate and key")]
    Tls(#[source] rustls::Error),
    /// The authority of client certificates was rejected.
    #[error("cannot use {path} as the authority of client certificates")]
    ClientAuthority {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The address cannot be bound.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// The client of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub address: IpAddr,
    /// The common name of its certificate, if it has one that the client authority has signed.
    pub certificate_name: Option<String>,
}

/// What answers requests.
pub trait Respond: Send + Sync + 'static {
    /// The response to one request.
    fn respond(
        &self,
        request: Request<Incoming>,
        peer: &Peer,
    ) -> impl Future<Output = Response<Full<Bytes>>> + Send;
}

/// A bound listener with its certificates.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    certificates: Certificates,
}

impl Listener {
    /// Binds the address and logs the bound address as `listening`. Without certificate files it creates a
    /// self-signed certificate.
    ///
    /// # Errors
    ///
    /// [`ListenerError`].
    pub async fn bind(address: SocketAddr, files: &TlsFiles) -> Result<Self, ListenerError> {
        let certificates = Certificates::load(address, files)?;
        let listen = |source| ListenerError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        tracing::info!(%address, "listening");
        Ok(Self {
            listener,
            certificates,
        })
    }

    /// Serves until cancelled.
    pub async fn serve(mut self, responder: Arc<impl Respond>, cancel: CancellationToken) {
        let mut connections = JoinSet::new();
        let mut open = VecDeque::new();
        let mut poll = tokio::time::interval(POLL);
        loop {
            let accepted = tokio::select! {
                () = cancel.cancelled() => return,
                _ = poll.tick() => {
                    self.certificates.reload();
                    continue;
                }
                accepted = self.listener.accept() => accepted,
            };
            while connections.try_join_next().is_some() {}
            let Ok((stream, remote)) = accepted else {
                // Most likely the process is out of file descriptors, which connections release as they end.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            make_way(&mut open);
            let tls = TlsAcceptor::from(Arc::clone(&self.certificates.config));
            let (responder, is_trusted) = (Arc::clone(&responder), Arc::<Mutex<bool>>::default());
            let trusted = Arc::clone(&is_trusted);
            let connection = connections.spawn(async move {
                if let Err(error) = serve_connection(stream, remote.ip(), tls, responder, &trusted).await {
                    tracing::debug!(%error, "a connection failed");
                }
            });
            open.push_back(Open {
                address: remote.ip(),
                connection,
                is_trusted,
            });
        }
    }
}

/// An open connection.
struct Open {
    address: IpAddr,
    connection: AbortHandle,
    /// Set after the handshake when the client has a certificate.
    is_trusted: Arc<Mutex<bool>>,
}

/// Ends a connection if there are too many: the oldest of the address that has the most, but none with a client certificate.
/// Probes have few and are answered at once, so they always find room.
fn make_way(open: &mut VecDeque<Open>) {
    open.retain(|one| !one.connection.is_finished());
    if open.len() < MAX_CONNECTIONS {
        return;
    }
    let mut counts = HashMap::<IpAddr, usize>::new();
    for one in open.iter().filter(|one| !*lock(&one.is_trusted)) {
        *counts.entry(one.address).or_default() += 1;
    }
    let most = counts.values().copied().max();
    let oldest = open
        .iter()
        .position(|one| !*lock(&one.is_trusted) && counts.get(&one.address).copied() == most);
    if let Some(one) = oldest.and_then(|at| open.remove(at)) {
        one.connection.abort();
    }
}

async fn serve_connection(
    stream: TcpStream,
    address: IpAddr,
    tls: TlsAcceptor,
    responder: Arc<impl Respond>,
    is_trusted: &Mutex<bool>,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await??;
    let session = stream.get_ref().1;
    // The handshake has verified it.
    let certificate = session.peer_certificates().and_then(|chain| chain.first());
    let peer = Peer {
        address,
        certificate_name: certificate.and_then(common_name),
    };
    *lock(is_trusted) = peer.certificate_name.is_some();
    let is_http2 = session.alpn_protocol() == Some(b"h2");
    let service = service_fn(move |request| {
        let (responder, peer) = (Arc::clone(&responder), peer.clone());
        async move { Ok::<_, Infallible>(responder.respond(request, &peer).await) }
    });
    let age = tokio::time::sleep(MAX_CONNECTION_AGE);
    // Both builders end a connection gracefully: requests that have begun are answered.
    macro_rules! serve {
        ($connection:expr) => {{
            let mut connection = std::pin::pin!($connection);
            tokio::select! {
                served = connection.as_mut() => return Ok(served?),
                () = age => connection.as_mut().graceful_shutdown(),
            }
            tokio::time::timeout(LAST_REQUESTS, connection).await??;
        }};
    }
    if is_http2 {
        let mut builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(16 * 1024)
            .keep_alive_interval(Duration::from_secs(30));
        serve!(builder.serve_connection(TokioIo::new(stream), service));
    } else {
        let mut builder = hyper::server::conn::http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT);
        serve!(builder.serve_connection(TokioIo::new(stream), service));
    }
    Ok(())
}

/// The common name of a certificate.
fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    use x509_parser::prelude::FromDer as _;
    let (_, parsed) = x509_parser::certificate::X509Certificate::from_der(certificate).ok()?;
    let name = parsed.subject().iter_common_name().next()?;
    name.as_str().ok().map(str::to_owned)
}

type CertifiedKey = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// The contents of the certificate files: chain, key and client authority.
type Contents = [Vec<u8>; 3];

/// The certificates in use.
struct Certificates {
    config: Arc<ServerConfig>,
    serving: Serving,
    client_authority: Option<PathBuf>,
    contents: Contents,
}

/// Where the serving certificate comes from.
enum Serving {
    Files(CertificateFiles),
    SelfSigned(CertifiedKey),
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificates")
            .field("client_authority", &self.client_authority)
            .finish_non_exhaustive()
    }
}

impl Certificates {
    fn load(address: SocketAddr, files: &TlsFiles) -> Result<Self, ListenerError> {
        let serving = match &files.serving {
            Some(files) => Serving::Files(files.clone()),
            None => Serving::SelfSigned(self_signed(address)?),
        };
        let client_authority = files.client_authority.clone();
        let contents = read(&serving, client_authority.as_deref())?;
        let config = server_config(&serving, client_authority.as_deref(), &contents)?;
        Ok(Self {
            config: Arc::new(config),
            serving,
            client_authority,
            contents,
        })
    }

    /// Reads the files again, and uses what changed if it is valid. New connections use it.
    fn reload(&mut self) {
        let authority = self.client_authority.as_deref();
        let read = read(&self.serving, authority);
        if matches!(&read, Ok(contents) if *contents == self.contents) {
            return;
        }
        let config = read.and_then(|contents| {
            let config = server_config(&self.serving, authority, &contents)?;
            Ok((config, contents))
        });
        match config {
            Ok((config, contents)) => {
                self.config = Arc::new(config);
                self.contents = contents;
                tracing::info!("certificates replaced");
            }
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::error!(%error, cause, "invalid certificates, keeping the old ones");
            }
        }
    }
}

/// Reads the files; those that are not configured are empty.
fn read(serving: &Serving, client_authority: Option<&Path>) -> Result<Contents, ListenerError> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|source| ListenerError::Read {
            path: path.to_owned(),
            source,
        })
    };
    let (certificate, key) = match serving {
        Serving::Files(files) => (read(&files.certificate)?, read(&files.key)?),
        Serving::SelfSigned(_) => (Vec::new(), Vec::new()),
    };
    let authority = client_authority.map(read).transpose()?.unwrap_or_default();
    Ok([certificate, key, authority])
}

fn server_config(
    serving: &Serving,
    client_authority: Option<&Path>,
    [certificate, key, authority]: &Contents,
) -> Result<ServerConfig, ListenerError> {
    let (chain, key) = match serving {
        Serving::Files(files) => {
            let invalid = |path: &Path| {
                let path = path.to_owned();
                move |source| ListenerError::Pem { path, source }
            };
            let chain = CertificateDer::pem_slice_iter(certificate)
                .collect::<Result<Vec<_>, _>>()
                .map_err(invalid(&files.certificate))?;
            let key = PrivateKeyDer::from_pem_slice(key).map_err(invalid(&files.key))?;
            (chain, key)
        }
        Serving::SelfSigned((chain, key)) => (chain.clone(), key.clone_key()),
    };
    let builder = ServerConfig::builder();
    let builder = match client_authority {
        Some(path) => builder.with_client_cert_verifier(client_verifier(authority).map_err(|source| {
            ListenerError::ClientAuthority {
                path: path.to_owned(),
                source,
            }
        })?),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(ListenerError::Tls)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Verifies client certificates against these authorities. Probes and scrapers have none.
fn client_verifier(
    authority: &[u8],
) -> Result<Arc<dyn ClientCertVerifier>, Box<dyn std::error::Error + Send + Sync>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authority) {
        roots.add(certificate?)?;
    }
    Ok(WebPkiClientVerifier::builder(Arc::new(roots))
        .allow_unauthenticated()
        .build()?)
}

fn self_signed(address: SocketAddr) -> Result<CertifiedKey, ListenerError> {
    let names = vec![
        "localhost".to_owned(),
        "drydock-controller".to_owned(),
        address.ip().to_string(),
    ];
    let certified = rcgen::generate_simple_self_signed(names).map_err(ListenerError::SelfSigned)?;
    let key = rustls_pki_types::PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    Ok((vec![certified.cert.der().clone()], key.into()))
}

#[cfg(test)]
mod tests;
