//! Calls to a plugin: gRPC over a Unix socket, without TLS.
//!
//! The calls run on a small runtime of their own, so that whoever waits for one may be on any thread. A call waits for a
//! plugin that is not there yet, until its deadline.

use std::collections::BTreeMap;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixStream as StdUnixStream};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use drydock_proto::kms::v2::{
    DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, StatusRequest, StatusResponse,
};
use http::uri::PathAndQuery;
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::UnixStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::{sleep, timeout};
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint as TonicEndpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use uuid::Uuid;
use zeroize::Zeroizing;

use super::{CallError, KeyService, KmsOptions, SealMetrics};
use crate::clock::Stopwatch;

/// The wait before a plugin that is not there is tried again.
const RETRY: Duration = Duration::from_millis(100);
/// The largest answer: a seed and its annotations.
const MOST_BYTES: usize = 64 << 10;

/// The socket of a plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A file.
    Path(PathBuf),
    /// A name that no file system has, of Linux.
    Abstract(String),
}

/// An address that is no endpoint of a plugin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadEndpoint {
    /// Another scheme than `unix`.
    #[error("unsupported scheme {0:?} for KMS provider, only unix is supported")]
    Scheme(String),
    /// No path.
    #[error("invalid endpoint for kms provider, error: parse {0:?}: it names no socket")]
    Path(String),
}

impl FromStr for Endpoint {
    type Err = BadEndpoint;

    /// Reads `unix:///path` or `unix:///@name`.
    fn from_str(text: &str) -> Result<Self, BadEndpoint> {
        let (scheme, rest) = text.split_once(':').unwrap_or_default();
        let scheme = scheme.to_ascii_lowercase();
        if scheme != "unix" {
            return Err(BadEndpoint::Scheme(scheme));
        }
        let Some(path) = rest.strip_prefix("//") else {
            return Err(BadEndpoint::Path(text.to_owned()));
        };
        if let Some(name) = path.strip_prefix("/@").filter(|name| !name.is_empty()) {
            return Ok(Self::Abstract(name.to_owned()));
        }
        if path.len() < 2 || !path.starts_with('/') || path.contains('\0') {
            return Err(BadEndpoint::Path(text.to_owned()));
        }
        Ok(Self::Path(PathBuf::from(path)))
    }
}

impl Endpoint {
    async fn connect(self) -> io::Result<TokioIo<UnixStream>> {
        let stream = match self {
            Self::Path(path) => UnixStream::connect(path).await?,
            Self::Abstract(name) => {
                let address = SocketAddr::from_abstract_name(name)?;
                // Does not wait: an abstract socket refuses at once.
                let stream = StdUnixStream::connect_addr(&address)?;
                stream.set_nonblocking(true)?;
                UnixStream::from_std(stream)?
            }
        };
        Ok(TokioIo::new(stream))
    }
}

/// A plugin.
pub(super) struct Client {
    name: String,
    channel: Channel,
    timeout: Duration,
    metrics: SealMetrics,
    /// Always there, but while it is dropped.
    runtime: Option<Runtime>,
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Dropping it would wait, which a task of another runtime must not.
            runtime.shutdown_background();
        }
    }
}

impl Client {
    pub(super) fn new(options: KmsOptions, metrics: SealMetrics) -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("kms-calls")
            .enable_all()
            .build()?;
        let endpoint = options.endpoint;
        let connect = tower::service_fn(move |_: http::Uri| endpoint.clone().connect());
        let channel = {
            // The channel's own task runs there.
            let _inside = runtime.enter();
            TonicEndpoint::from_static("http://localhost").connect_with_connector_lazy(connect)
        };
        Ok(Self {
            name: options.name,
            channel,
            timeout: options.timeout,
            metrics,
            runtime: Some(runtime),
        })
    }

    /// Calls a method and waits for the answer.
    fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, CallError>
    where
        Q: Message + Clone + Default + 'static,
        A: Message + Default + 'static,
    {
        let runtime = self.runtime.as_ref().ok_or_else(|| CallError {
            text: "the client is closed".to_owned(),
            is_outage: false,
        })?;
        let since = Stopwatch::start();
        let (sender, receiver) = sync_channel(1);
        let (channel, limit) = (self.channel.clone(), self.timeout);
        runtime.spawn(async move {
            let mut last = None;
            let answer = timeout(limit, attempt(channel, path, request, &mut last)).await;
            let answer = answer.unwrap_or_else(|_| {
                Err(last.unwrap_or_else(|| Status::deadline_exceeded("context deadline exceeded")))
            });
            // Whoever waited may be gone.
            let _unread = sender.send(answer);
        });
        // The runtime may be too busy to notice the deadline.
        let answer = receiver
            .recv_timeout(self.timeout + Duration::from_secs(1))
            .unwrap_or_else(|_| Err(Status::deadline_exceeded("context deadline exceeded")));
        let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
        let took = since.elapsed();
        self.metrics
            .called(&self.name, path, format!("{code:?}"), took.as_secs_f64());
        answer.map_err(|status| {
            let message: String = status.message().chars().take(1024).collect();
            CallError {
                text: format!("rpc error: code = {:?} desc = {message}", status.code()),
                // A refusal that takes this long is one of what is behind the plugin: the next one would take as long.
                is_outage: matches!(code, Code::Unavailable | Code::DeadlineExceeded)
                    || took >= self.timeout / 2,
            }
        })
    }
}

/// Calls until the plugin answers. `last` is why it did not.
async fn attempt<Q, A>(
    channel: Channel,
    path: &'static str,
    request: Q,
    last: &mut Option<Status>,
) -> Result<A, Status>
where
    Q: Message + Clone + Default + 'static,
    A: Message + Default + 'static,
{
    loop {
        let mut client = Grpc::new(channel.clone()).max_decoding_message_size(MOST_BYTES);
        let answer = match client.ready().await {
            Ok(()) => {
                let codec: ProstCodec<Q, A> = ProstCodec::default();
                let path = PathAndQuery::from_static(path);
                client.unary(Request::new(request.clone()), path, codec).await
            }
            Err(error) => Err(Status::unavailable(error.to_string())),
        };
        match answer {
            Ok(answer) => return Ok(answer.into_inner()),
            Err(status) if status.code() == Code::Unavailable => *last = Some(status),
            // A connection of a plugin that has ended.
            Err(status) if is_lost(&status) => *last = Some(Status::unavailable(status.message())),
            Err(status) => return Err(status),
        }
        sleep(RETRY).await;
    }
}

/// Whether a call failed since its connection was lost.
fn is_lost(status: &Status) -> bool {
    match std::error::Error::source(status) {
        Some(source) => source.is::<tonic::transport::Error>(),
        None => false,
    }
}

fn uid() -> String {
    Uuid::new_v4().to_string()
}

impl KeyService for Client {
    fn status(&self) -> Result<StatusResponse, CallError> {
        self.call("/v2.KeyManagementService/Status", StatusRequest {})
    }

    fn encrypt(&self, plaintext: &[u8]) -> Result<EncryptResponse, CallError> {
        let request = EncryptRequest {
            plaintext: plaintext.to_vec(),
            uid: uid(),
        };
        let path = "/v2.KeyManagementService/Encrypt";
        self.call(path, request)
    }

    fn decrypt(
        &self,
        ciphertext: &[u8],
        key_id: &str,
        annotations: &BTreeMap<String, Vec<u8>>,
    ) -> Result<Zeroizing<Vec<u8>>, CallError> {
        let request = DecryptRequest {
            ciphertext: ciphertext.to_vec(),
            uid: uid(),
            key_id: key_id.to_owned(),
            annotations: annotations.clone(),
        };
        let path = "/v2.KeyManagementService/Decrypt";
        let answer: DecryptResponse = self.call(path, request)?;
        Ok(Zeroizing::new(answer.plaintext))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_unix_sockets() {
        let path = |text: &str| Ok(Endpoint::Path(PathBuf::from(text)));
        for (text, expected) in [
            ("unix:///run/kms.sock", path("/run/kms.sock")),
            ("UNIX:///run/kms.sock", path("/run/kms.sock")),
            ("unix:///@kms", Ok(Endpoint::Abstract("kms".to_owned()))),
            ("unix:///", Err(BadEndpoint::Path("unix:///".to_owned()))),
            ("unix://run", Err(BadEndpoint::Path("unix://run".to_owned()))),
            ("unix:run", Err(BadEndpoint::Path("unix:run".to_owned()))),
            ("https://a", Err(BadEndpoint::Scheme("https".to_owned()))),
            ("/run/kms.sock", Err(BadEndpoint::Scheme(String::new()))),
        ] {
            assert_eq!(text.parse::<Endpoint>(), expected, "{text}");
        }
    }
}
