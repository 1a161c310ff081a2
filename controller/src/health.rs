//! Is the process well, and what has it counted? `/livez`, `/readyz`, `/healthz` and `/metrics` over HTTPS.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::config::CertificateFiles;
use crate::metrics::Metrics;
use crate::stores::Stores;

/// How many connections are served at a time: probes and scrapers are few.
const CONNECTIONS: usize = 64;
/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a client may take to send the head of a request.
const HEADERS: Duration = Duration::from_secs(10);
/// How long a connection lives at most, so that idle ones do not hold places.
const CONNECTION: Duration = Duration::from_mins(5);

/// Why health and metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum HealthError {
    /// A file holds no usable PEM.
    #[error("cannot use {path}")]
    Pem {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rustls_pki_types::pem::Error,
    },
    /// A certificate was not made.
    #[error("no certificate could be made")]
    SelfSigned(#[source] rcgen::Error),
    /// Certificate and key do not do.
    #[error("certificate and key cannot be used")]
    Tls(#[source] rustls::Error),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What is asked about.
#[derive(Debug, Clone)]
pub struct Health {
    stores: Stores,
    metrics: Metrics,
    shutdown: CancellationToken,
}

impl Health {
    /// The health of a process with these stores, which is not ready any more when `shutdown` is cancelled.
    #[must_use]
    pub fn new(stores: Stores, metrics: Metrics, shutdown: CancellationToken) -> Self {
        Self {
            stores,
            metrics,
            shutdown,
        }
    }

    fn answer(&self, method: &Method, path: &str) -> (StatusCode, &'static str, String) {
        const TEXT: &str = "text/plain; charset=utf-8";
        if method != Method::GET && method != Method::HEAD {
            return (StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n".to_owned());
        }
        match path {
            // A process whose parts end exits; one that answers lives.
            "/livez" => (StatusCode::OK, TEXT, "ok".to_owned()),
            "/readyz" | "/healthz" => {
                let waits = self.stores.unsynced();
                if self.shutdown.is_cancelled() {
                    (
                        StatusCode::SERVICE_UNAVAILABLE,
                        TEXT,
                        "shutting down\n".to_owned(),
                    )
                } else if waits.is_empty() {
                    (StatusCode::OK, TEXT, "ok".to_owned())
                } else {
                    let text = format!("waiting for the first list of {}\n", waits.join(", "));
                    (StatusCode::SERVICE_UNAVAILABLE, TEXT, text)
                }
            }
            "/metrics" => {
                const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                (StatusCode::OK, OPEN_METRICS, self.metrics.render())
            }
            _ => (StatusCode::NOT_FOUND, TEXT, "not found\n".to_owned()),
        }
    }

    fn respond(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let (status, kind, body) = self.answer(request.method(), request.uri().path());
        let mut response = Response::new(Full::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
        headers.insert(
            header::X_CONTENT_TYPE_OPTIONS,
            header::HeaderValue::from_static("nosniff"),
        );
        response
    }
}

/// A listener that is bound, with the certificate it shows.
pub struct Listener {
    listener: TcpListener,
    tls: TlsAcceptor,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener")
            .field("listener", &self.listener)
            .finish_non_exhaustive()
    }
}

impl Listener {
    /// Binds the address. The address bound is logged as `listening`.
    ///
    /// # Errors
    ///
    /// [`HealthError`].
    pub async fn bind(address: SocketAddr, files: Option<&CertificateFiles>) -> Result<Self, HealthError> {
        let (chain, key) = match files {
            Some(files) => read(files)?,
            None => self_signed(address)?,
        };
        let mut config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .map_err(HealthError::Tls)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let listen = |source| HealthError::Listen { address, source };
        let listener = TcpListener::bind(address).await.map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        tracing::info!(%address, "listening");
        Ok(Self {
            listener,
            tls: TlsAcceptor::from(Arc::new(config)),
        })
    }

    /// The address that is bound.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until cancelled.
    pub async fn serve(self, health: Health, cancel: CancellationToken) {
        let places = Arc::new(Semaphore::new(CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            let place = Arc::clone(&places).acquire_owned();
            let accepted = tokio::select! {
                () = cancel.cancelled() => return,
                accepted = async { (place.await, self.listener.accept().await) } => accepted,
            };
            while connections.try_join_next().is_some() {}
            let (Ok(place), Ok((stream, _))) = accepted else {
                // Out of file descriptors, most likely: they come back.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            let (tls, health) = (self.tls.clone(), health.clone());
            connections.spawn(async move {
                let served = tokio::time::timeout(CONNECTION, serve_one(stream, tls, health));
                if let Ok(Err(error)) = served.await {
                    tracing::debug!(%error, "a connection for health or metrics ended");
                }
                drop(place);
            });
        }
    }
}

async fn serve_one(
    stream: TcpStream,
    tls: TlsAcceptor,
    health: Health,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let stream = tokio::time::timeout(HANDSHAKE, tls.accept(stream)).await??;
    let service = service_fn(move |request| {
        let response = health.respond(&request);
        async move { Ok::<_, Infallible>(response) }
    });
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADERS)
        .serve_connection(TokioIo::new(stream), service)
        .await?;
    Ok(())
}

type Identity = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn read(files: &CertificateFiles) -> Result<Identity, HealthError> {
    let wrong = |path: &PathBuf| {
        let path = path.clone();
        move |source| HealthError::Pem { path, source }
    };
    let chain = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect)
        .map_err(wrong(&files.certificate))?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(wrong(&files.key))?;
    Ok((chain, key))
}

fn self_signed(address: SocketAddr) -> Result<Identity, HealthError> {
    let names = vec![
        "localhost".to_owned(),
        "drydock-controller".to_owned(),
        address.ip().to_string(),
    ];
    let made = rcgen::generate_simple_self_signed(names).map_err(HealthError::SelfSigned)?;
    let key = rustls_pki_types::PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    Ok((vec![made.cert.der().clone()], key.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stores::Informers;

    #[test]
    fn a_process_is_ready_when_its_stores_are_and_until_it_ends() {
        let (_informers, stores) = Informers::new();
        let shutdown = CancellationToken::new();
        let health = Health::new(stores, Metrics::default(), shutdown.clone());
        let answer = |path| health.answer(&Method::GET, path);
        assert_eq!(answer("/livez").0, StatusCode::OK);
        let (status, _, text) = answer("/readyz");
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(text.contains("pods"), "{text}");
        shutdown.cancel();
        assert!(answer("/healthz").2.contains("shutting down"));
        assert!(answer("/metrics").2.ends_with("# EOF\n"));
        assert_eq!(answer("/").0, StatusCode::NOT_FOUND);
        assert_eq!(
            health.answer(&Method::POST, "/livez").0,
            StatusCode::METHOD_NOT_ALLOWED
        );
    }
}
