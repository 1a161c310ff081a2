//! The client that calls admission webhooks: POST over HTTP/1.1 and TLS, with connections that are kept for the next call.
//!
//! Redirects are not followed, bodies are limited, and every call ends at its deadline. Errors read as those of the Go
//! client, since they are part of what users see.

mod credential;
mod lookups;
mod trust;

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

pub use self::credential::{Authorization, ClientCertificate, CredentialProblem};
use self::lookups::Lookups;
pub use self::lookups::{LookupError, Resolver, SystemResolver};
pub use self::trust::{Trust, TrustProblem};

/// How long an unused connection is kept.
const IDLE_TIME: Duration = Duration::from_secs(90);
/// How many unused connections are kept for a target.
const IDLE_CONNECTIONS: usize = 16;
/// How many calls to a target are in flight; others wait.
const CALLS_IN_FLIGHT: usize = 128;

/// Where a call goes, and whom it trusts. Targets with the same members share connections.
#[derive(Debug, Clone)]
pub struct Target {
    /// Host name or IP address, which is the name that the certificate has to have.
    pub host: String,
    /// Port.
    pub port: u16,
    /// The authorities of the certificate, and what the client shows of itself.
    pub trust: Arc<Trust>,
    /// The header `Authorization`, if any. It is not part of what is compared: connections have no credentials.
    pub authorization: Option<Arc<Authorization>>,
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
    /// The host has no address that is known.
    #[error("dial tcp: lookup {host}: {source}")]
    Resolve {
        /// The host.
        host: String,
        /// Why.
        #[source]
        source: LookupError,
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
    #[error("{}", trust::broken_text(.0))]
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

/// Why an exchange on a connection failed.
enum Failed {
    /// The connection had ended before anything of the request was written to it.
    Unsent(hyper::Error),
    Other(CallError),
}

impl From<CallError> for Failed {
    fn from(error: CallError) -> Self {
        Self::Other(error)
    }
}

impl From<Failed> for CallError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Unsent(error) => Self::Broken(error),
            Failed::Other(error) => error,
        }
    }
}

type Sender = SendRequest<Full<Bytes>>;

struct Pool {
    idle: Vec<(Sender, Instant)>,
    calls: Arc<Semaphore>,
}

/// A client. Connections belong to it and end with it.
pub struct Client {
    lookups: Lookups,
    pools: Mutex<HashMap<Key, Pool>>,
}

impl Client {
    /// A client that finds hosts with this resolver.
    #[must_use]
    pub fn new(resolver: impl Resolver + 'static) -> Self {
        Self {
            lookups: Lookups::new(resolver),
            pools: Mutex::default(),
        }
    }

    /// Posts JSON, with these headers beside those that every call has. `path` has the query.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn post(
        &self,
        target: &Target,
        path: &str,
        headers: &HeaderMap,
        body: Bytes,
        max_bytes: usize,
        deadline: Instant,
    ) -> Result<Answer, CallError> {
        let call = async {
            let calls = self.calls(target);
            // The semaphore is never closed.
            let _place = calls.acquire_owned().await.ok();
            let request = || {
                let mut request = Request::post(path);
                if let Some(own) = request.headers_mut() {
                    own.extend(headers.clone());
                }
                if let Some(authorization) = &target.authorization {
                    request = request.header(header::AUTHORIZATION, authorization.value());
                }
                request
                    .header(header::HOST, target.authority())
                    .header(header::CONTENT_TYPE, "application/json")
                    .header(header::ACCEPT, "application/json, */*")
                    .body(Full::new(body.clone()))
                    .map_err(CallError::Request)
            };
            if let Some(sender) = self.take_idle(target) {
                match self.exchange(target, sender, request()?, max_bytes).await {
                    // The other side closed the connection while it was unused. A request of which the other side may have
                    // got anything is not sent again, as by the Go client.
                    Err(Failed::Unsent(_)) => {}
                    result => return result.map_err(Failed::into),
                }
            }
            let sender = self.connect(target).await?;
            let result = self.exchange(target, sender, request()?, max_bytes).await;
            result.map_err(Failed::into)
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
    ) -> Result<Answer, Failed> {
        sender.ready().await.map_err(Failed::Unsent)?;
        let sent = sender.try_send_request(request).await;
        let response = sent.map_err(|mut failed| {
            let unsent = failed.take_message().is_some();
            let error = failed.into_error();
            if unsent {
                Failed::Unsent(error)
            } else {
                CallError::Broken(error).into()
            }
        })?;
        let (head, mut body) = response.into_parts();
        let mut read = BytesMut::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(CallError::Broken)?.into_data() else {
                continue;
            };
            if read.len() + data.len() > max_bytes {
                return Err(CallError::TooLarge(max_bytes).into());
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
        let addresses = self.lookups.find(&target.host, target.port).await;
        let addresses = addresses.map_err(resolve)?;
        let mut failed = None;
        for &address in &*addresses {
            match TcpStream::connect(address).await {
                Ok(stream) => return secure(target, stream).await,
                Err(source) => failed = failed.or(Some(CallError::Connect { address, source })),
            }
        }
        Err(failed.unwrap_or_else(|| resolve(LookupError::NotFound)))
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
