//! Serves `/livez`, `/readyz`, `/healthz` and `/metrics` over HTTPS. [`access`](crate::access) decides who may read what.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
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
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::access::Access;
use crate::config::CertificateFiles;
use crate::metrics::Metrics;
use crate::stores::Stores;

/// How many connections are served at a time; beyond that old ones make way. Probes and scrapers need few.
const MAX_CONNECTIONS: usize = 64;
/// The timeout of a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// The timeout for receiving the head of a request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// The lifetime of a connection, so that idle ones do not use up the limit.
const MAX_CONNECTION_AGE: Duration = Duration::from_mins(5);

const TEXT: &str = "text/plain; charset=utf-8";

/// Why health and metrics cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum HealthError {
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

/// The state that the endpoints report.
#[derive(Debug, Clone)]
pub struct Health {
    stores: Stores,
    metrics: Metrics,
    access: Arc<Access>,
    shutdown: CancellationToken,
}

impl Health {
    /// The health of a process that is ready while the stores are synced and their watches work, until `shutdown` is
    /// cancelled.
    #[must_use]
    pub fn new(stores: Stores, metrics: Metrics, access: Arc<Access>, shutdown: CancellationToken) -> Self {
        Self {
            stores,
            metrics,
            access,
            shutdown,
        }
    }

    /// Status, content type and body of the response.
    fn respond(&self, method: &Method, path: &str) -> (StatusCode, &'static str, String) {
        if method != Method::GET && method != Method::HEAD {
            return (StatusCode::METHOD_NOT_ALLOWED, TEXT, "only GET\n".to_owned());
        }
        match path {
            // The process exits when a part of it ends, so a response proves liveness.
            "/livez" => (StatusCode::OK, TEXT, "ok".to_owned()),
            "/readyz" | "/healthz" => {
                let not_ready = if self.shutdown.is_cancelled() {
                    Some("shutting down".to_owned())
                } else {
                    self.stores.not_ready()
                };
                match not_ready {
                    None => (StatusCode::OK, TEXT, "ok".to_owned()),
                    Some(text) => (StatusCode::SERVICE_UNAVAILABLE, TEXT, format!("{text}\n")),
                }
            }
            "/metrics" => {
                const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
                (StatusCode::OK, OPEN_METRICS, self.metrics.render())
            }
            _ => (StatusCode::NOT_FOUND, TEXT, "not found\n".to_owned()),
        }
    }

    async fn handle(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        let authorization = request.headers().get(header::AUTHORIZATION);
        let authorization = authorization.and_then(|header| header.to_str().ok());
        let (status, content_type, body) = match self.access.check(path, authorization).await {
            Ok(()) => self.respond(request.method(), path),
            Err((status, text)) => (status, TEXT, text),
        };
        let mut response = Response::new(Full::from(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            header::HeaderValue::from_static(content_type),
        );
        headers.insert(
            header::X_CONTENT_TYPE_OPTIONS,
            header::HeaderValue::from_static("nosniff"),
        );
        response
    }
}

/// A bound listener with its serving certificate.
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
    /// Binds the address and logs the bound address as `listening`. Without certificate files it creates a
    /// self-signed certificate.
    ///
    /// # Errors
    ///
    /// [`HealthError`].
    pub async fn bind(address: SocketAddr, files: Option<&CertificateFiles>) -> Result<Self, HealthError> {
        let (chain, key) = match files {
            Some(files) => read_files(files)?,
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

    /// Serves until cancelled.
    pub async fn serve(self, health: Health, cancel: CancellationToken) {
        let mut connections = JoinSet::new();
        let mut open = VecDeque::new();
        loop {
            let accepted = tokio::select! {
                () = cancel.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            while connections.try_join_next().is_some() {}
            let Ok((stream, remote)) = accepted else {
                // Most likely the process is out of file descriptors, which connections release as they end.
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            };
            make_way(&mut open);
            let (tls, health) = (self.tls.clone(), health.clone());
            let connection = connections.spawn(async move {
                let served = tokio::time::timeout(MAX_CONNECTION_AGE, serve_connection(stream, tls, health));
                if let Ok(Err(error)) = served.await {
                    tracing::debug!(%error, "a connection for health or metrics failed");
                }
            });
            open.push_back((remote.ip(), connection));
        }
    }
}

/// Ends a connection if there are too many: the oldest of the address that has the most. Probes have few and are answered at
/// once, so they always find room.
fn make_way(open: &mut VecDeque<(IpAddr, AbortHandle)>) {
    open.retain(|(_, connection)| !connection.is_finished());
    if open.len() < MAX_CONNECTIONS {
        return;
    }
    let mut counts = HashMap::<IpAddr, usize>::new();
    for (address, _) in &*open {
        *counts.entry(*address).or_default() += 1;
    }
    let most = counts.values().copied().max();
    let oldest = open
        .iter()
        .position(|(address, _)| counts.get(address).copied() == most);
    if let Some((_, connection)) = oldest.and_then(|at| open.remove(at)) {
        connection.abort();
    }
}

async fn serve_connection(
    stream: TcpStream,
    tls: TlsAcceptor,
    health: Health,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let stream = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)).await??;
    let service = service_fn(move |request| {
        let health = health.clone();
        async move { Ok::<_, Infallible>(health.handle(&request).await) }
    });
    hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service)
        .await?;
    Ok(())
}

type CertifiedKey = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn read_files(files: &CertificateFiles) -> Result<CertifiedKey, HealthError> {
    let invalid = |path: &PathBuf| {
        let path = path.clone();
        move |source| HealthError::Pem { path, source }
    };
    let chain = CertificateDer::pem_file_iter(&files.certificate)
        .and_then(Iterator::collect)
        .map_err(invalid(&files.certificate))?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(invalid(&files.key))?;
    Ok((chain, key))
}

fn self_signed(address: SocketAddr) -> Result<CertifiedKey, HealthError> {
    let names = vec![
        "localhost".to_owned(),
        "drydock-controller".to_owned(),
        address.ip().to_string(),
    ];
    let certified = rcgen::generate_simple_self_signed(names).map_err(HealthError::SelfSigned)?;
    let key = rustls_pki_types::PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der());
    Ok((vec![certified.cert.der().clone()], key.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::tests::host;
    use crate::fixtures::{clock_at, empty_stores};
    use crate::stores::Informers;
    use crate::watch_metrics::WatchFailures;

    #[tokio::test]
    async fn connections_of_the_address_with_the_most_make_way() {
        let (holder, prober) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut connections = JoinSet::new();
        let mut open = VecDeque::new();
        let connect = |connections: &mut JoinSet<()>, open: &mut VecDeque<_>, address| {
            make_way(open);
            open.push_back((address, connections.spawn(std::future::pending())));
        };
        connect(&mut connections, &mut open, prober);
        for _ in 0..MAX_CONNECTIONS * 2 {
            connect(&mut connections, &mut open, holder);
        }
        assert_eq!(open.len(), MAX_CONNECTIONS);
        assert_eq!(open.front().map(|(address, _)| *address), Some(prober));
        for _ in 0..=MAX_CONNECTIONS {
            assert!(connections.join_next().await.unwrap().unwrap_err().is_cancelled());
        }
        assert_eq!(connections.len(), MAX_CONNECTIONS);
    }

    #[tokio::test(start_paused = true)]
    async fn process_whose_watch_fails_is_not_ready_and_names_it() {
        let stores = empty_stores();
        let access = Arc::new(Access::new(host(), Vec::new(), clock_at(0)));
        let metrics = Metrics::default();
        metrics.register_collector(WatchFailures(stores.clone()));
        let health = Health::new(stores.clone(), metrics, access, CancellationToken::new());
        let ready = || health.respond(&Method::GET, "/readyz");
        assert_eq!(ready().0, StatusCode::OK);
        stores
            .nodes
            .health()
            .failed("nodes is forbidden (403)".to_owned());
        assert_eq!(ready().0, StatusCode::OK, "a server may be restarting");
        tokio::time::advance(Duration::from_secs(12)).await;
        let (status, _, text) = ready();
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            text,
            "the watch of nodes has failed for 12 s: nodes is forbidden (403)\n"
        );
        let text = health.respond(&Method::GET, "/metrics").2;
        for line in [
            "drydock_controller_watch_failing_seconds{resource=\"nodes\"} 12.0",
            "drydock_controller_watch_failing_seconds{resource=\"pods\"} 0.0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
        stores.nodes.health().delivered();
        assert_eq!(ready().0, StatusCode::OK);
    }

    #[tokio::test]
    async fn process_is_ready_from_synced_stores_until_shutdown() {
        let (_informers, stores) = Informers::new();
        let shutdown = CancellationToken::new();
        let clock = clock_at(0);
        let access = Arc::new(Access::new(host(), Vec::new(), clock));
        let health = Health::new(stores, Metrics::default(), access, shutdown.clone());
        let get = |path| health.respond(&Method::GET, path);
        assert_eq!(get("/livez").0, StatusCode::OK);
        let (status, _, text) = get("/readyz");
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(text.contains("pods"), "{text}");
        shutdown.cancel();
        assert!(get("/healthz").2.contains("shutting down"));
        assert!(get("/metrics").2.ends_with("# EOF\n"));
        assert_eq!(get("/").0, StatusCode::NOT_FOUND);
        assert_eq!(
            health.respond(&Method::POST, "/livez").0,
            StatusCode::METHOD_NOT_ALLOWED
        );
    }
}
