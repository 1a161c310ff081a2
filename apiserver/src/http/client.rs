//! The client that calls admission webhooks: POST over HTTP/1.1 and TLS, with connections that are kept for the next call.
//!
//! Redirects are not followed, bodies are limited, and every call ends at its deadline. Errors read as those of the Go
//! client, since they are part of what users see.

mod trust;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

pub use self::trust::{Trust, TrustProblem};

/// How long an unused connection is kept.
const IDLE_TIME: Duration = Duration::from_secs(90);
/// How many unused connections are kept for a target.
const IDLE_CONNECTIONS: usize = 16;
/// How many calls to a target are in flight; others wait.
const CALLS_IN_FLIGHT: usize = 128;

/// Finds the addresses of a host.
pub trait Resolver: Send + Sync {
    /// The addresses of a host name or an IP address.
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>>;
}

/// The resolver of the system: in a cluster, its DNS, which knows Services.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemResolver;

impl Resolver for SystemResolver {
    fn resolve<'a>(&'a self, host: &'a str, port: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
        async move { Ok(lookup_host((host, port)).await?.collect()) }.boxed()
    }
}

/// Where a call goes, and whom it trusts. Targets with the same members share connections.
#[derive(Debug, Clone)]
pub struct Target {
    /// Host name or IP address, which is the name that the certificate has to have.
    pub host: String,
    /// Port.
    pub port: u16,
    /// The authorities of the certificate.
    pub trust: Arc<Trust>,
}

type Key = (String, u16, u64);

impl Target {
    fn key(&self) -> Key {
        (self.host.clone(), self.port, self.trust.id())
    }

    /// The `host:port` of a URL.
    #[must_use]
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

/// A response with its body.
#[derive(Debug)]
pub struct Answer {
    /// HTTP status.
    pub code: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The deadline has passed.
    #[error("context deadline exceeded")]
    Deadline,
    /// The host has no address.
    #[error("dial tcp: lookup {host}: no such host")]
    Resolve {
        /// The host.
        host: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// There is no connection.
    #[error("dial tcp {address}: connect: {}", connect_text(.source))]
    Connect {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The TLS handshake failed.
    #[error("{}", trust::handshake_text(.0))]
    Tls(#[source] io::Error),
    /// The connection broke.
    #[error("EOF")]
    Broken(#[source] hyper::Error),
    /// The response is too large.
    #[error("the response has more than {0} bytes")]
    TooLarge(usize),
    /// The request cannot be built, for example because the URL is not valid.
    #[error("{0}")]
    Request(#[source] http::Error),
}

fn connect_text(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::NetworkUnreachable => "network is unreachable".to_owned(),
        io::ErrorKind::HostUnreachable => "no route to host".to_owned(),
        _ => error.to_string(),
    }
}

type Sender = SendRequest<Full<Bytes>>;

struct Pool {
    idle: Vec<(Sender, Instant)>,
    calls: Arc<Semaphore>,
}

/// A client. Connections belong to it and end with it.
pub struct Client {
    resolver: Box<dyn Resolver>,
    pools: Mutex<HashMap<Key, Pool>>,
}

impl Client {
    /// A client that finds hosts with this resolver.
    #[must_use]
    pub fn new(resolver: impl Resolver + 'static) -> Self {
        Self {
            resolver: Box::new(resolver),
            pools: Mutex::default(),
        }
    }

    /// Posts JSON. `path` has the query.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn post(
        &self,
        target: &Target,
        path: &str,
        user_agent: &str,
        body: Bytes,
        max_bytes: usize,
        deadline: Instant,
    ) -> Result<Answer, CallError> {
        let call = async {
            let calls = self.calls(target);
            // The semaphore is never closed.
            let _place = calls.acquire_owned().await.ok();
            let request = || {
                Request::post(path)
                    .header(header::HOST, target.authority())
                    .header(header::USER_AGENT, user_agent)
                    .header(header::CONTENT_TYPE, "application/json")
                    .header(header::ACCEPT, "application/json, */*")
                    .body(Full::new(body.clone()))
                    .map_err(CallError::Request)
            };
            // A connection that the other side closed while it was unused is no failure of the call.
            if let Some(sender) = self.take_idle(target) {
                match self.exchange(target, sender, request()?, max_bytes).await {
                    Err(CallError::Broken(_)) => {}
                    result => return result,
                }
            }
            let sender = self.connect(target).await?;
            self.exchange(target, sender, request()?, max_bytes).await
        };
        timeout_at(deadline, call)
            .await
            .unwrap_or(Err(CallError::Deadline))
    }

    async fn exchange(
        &self,
        target: &Target,
        mut sender: Sender,
        request: Request<Full<Bytes>>,
        max_bytes: usize,
    ) -> Result<Answer, CallError> {
        sender.ready().await.map_err(CallError::Broken)?;
        let response = sender.send_request(request).await.map_err(CallError::Broken)?;
        let (head, mut body) = response.into_parts();
        let mut read = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(CallError::Broken)?.into_data() else {
                continue;
            };
            if read.len() + data.len() > max_bytes {
                return Err(CallError::TooLarge(max_bytes));
            }
            read.extend_from_slice(&data);
        }
        self.keep(target, sender);
        Ok(Answer {
            code: head.status,
            headers: head.headers,
            body: read.freeze(),
        })
    }

    fn calls(&self, target: &Target) -> Arc<Semaphore> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        // Forgets the connections of targets that are not called any more.
        pools.retain(|_, pool| {
            pool.idle
                .retain(|(sender, since)| !sender.is_closed() && since.elapsed() < IDLE_TIME);
            !pool.idle.is_empty() || Arc::strong_count(&pool.calls) > 1
        });
        let pool = pools.entry(target.key()).or_insert_with(|| Pool {
            idle: Vec::new(),
            calls: Arc::new(Semaphore::new(CALLS_IN_FLIGHT)),
        });
        Arc::clone(&pool.calls)
    }

    fn take_idle(&self, target: &Target) -> Option<Sender> {
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        pools.get_mut(&target.key())?.idle.pop().map(|(sender, _)| sender)
    }

    fn keep(&self, target: &Target, sender: Sender) {
        if sender.is_closed() {
            return;
        }
        let mut pools = self.pools.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pool) = pools.get_mut(&target.key())
            && pool.idle.len() < IDLE_CONNECTIONS
        {
            pool.idle.push((sender, Instant::now()));
        }
    }

    async fn connect(&self, target: &Target) -> Result<Sender, CallError> {
        let resolve = |source| CallError::Resolve {
            host: target.host.clone(),
            source,
        };
        let addresses = self
            .resolver
            .resolve(&target.host, target.port)
            .await
            .map_err(resolve)?;
        let mut failed = None;
        for address in addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => return secure(target, stream).await,
                Err(source) => failed = failed.or(Some(CallError::Connect { address, source })),
            }
        }
        Err(failed.unwrap_or_else(|| resolve(io::ErrorKind::NotFound.into())))
    }
}

async fn secure(target: &Target, stream: TcpStream) -> Result<Sender, CallError> {
    let tls = |error: io::Error| CallError::Tls(error);
    stream.set_nodelay(true).map_err(tls)?;
    let name = ServerName::try_from(target.host.clone()).map_err(|error| tls(io::Error::other(error)))?;
    let connector = TlsConnector::from(target.trust.config());
    let stream = connector.connect(name, stream).await.map_err(tls)?;
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(CallError::Broken)?;
    // It ends when the sender is dropped or the other side closes; its errors are those of the calls.
    tokio::spawn(async move { drop(connection.await) });
    Ok(sender)
}

#[cfg(test)]
mod tests;
