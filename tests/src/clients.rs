//! Clients of the suites: kubectl, a raw HTTPS client, and [`eventually`], which waits for a condition.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpSocket, TcpStream};
use tokio::process::Command;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::cluster::pki::Credential;

/// The time between two checks of [`eventually`].
pub const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The timeout of a call, enough for a busy machine.
const CALL_DEADLINE: Duration = Duration::from_mins(1);

/// Waits until the condition returns a value. `Ok(None)` and errors mean "not yet": a starting server refuses
/// connections.
///
/// # Errors
/// The deadline passed. The message names `what` and the last error of the condition.
pub async fn eventually<T>(
    what: &str,
    deadline: Duration,
    mut condition: impl AsyncFnMut() -> Result<Option<T>>,
) -> Result<T> {
    let started = Instant::now();
    loop {
        let response = condition().await;
        if let Ok(Some(response)) = response {
            return Ok(response);
        }
        if started.elapsed() >= deadline {
            let context = format!("timed out after {deadline:?} waiting for {what}");
            return match response {
                Err(error) => Err(error.context(context)),
                Ok(_) => Err(anyhow::Error::msg(context)),
            };
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// A `kubectl` for one cluster and one user.
#[derive(Clone, Debug)]
pub struct Kubectl {
    /// The command.
    pub binary: PathBuf,
    /// The cluster and the user.
    pub kubeconfig: PathBuf,
    /// The folder of its discovery cache: never the user's own home.
    pub home: PathBuf,
}

impl Kubectl {
    /// Runs kubectl and returns its output, whether it succeeded or not.
    ///
    /// # Errors
    /// It cannot be started, or does not end within a minute.
    pub async fn run(&self, arguments: &[&str]) -> Result<Output> {
        self.run_with_input(arguments, "").await
    }

    /// Runs kubectl with text on its standard input (`-f -`).
    ///
    /// # Errors
    /// As for [`run`](Self::run).
    pub async fn run_with_input(&self, arguments: &[&str], input: &str) -> Result<Output> {
        let mut child = Command::new(&self.binary)
            .args(arguments)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", &self.home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("start {}", self.binary.display()))?;
        let mut stdin = child.stdin.take().context("kubectl's standard input")?;
        let (written, output) = timeout(CALL_DEADLINE, async {
            tokio::join!(
                async {
                    // A kubectl that fails early does not read its input.
                    let written = stdin.write_all(input.as_bytes()).await;
                    drop(stdin);
                    written
                },
                child.wait_with_output()
            )
        })
        .await
        .with_context(|| format!("kubectl {} did not end", arguments.join(" ")))?;
        let output = output.context("wait for kubectl")?;
        if output.status.success() {
            written.context("write to kubectl")?;
        }
        Ok(output)
    }

    /// Runs kubectl and returns its standard output.
    ///
    /// # Errors
    /// As for [`run`](Self::run), or it failed; the message has its standard error.
    pub async fn ok(&self, arguments: &[&str]) -> Result<String> {
        succeeded(arguments, self.run(arguments).await?)
    }

    /// Waits up to 50 s for what `--for` names, such as `condition=Ready` or `delete`; `what` is like `pod/web`. A
    /// cluster-scoped object has an empty namespace.
    ///
    /// # Errors
    /// As for [`ok`](Self::ok).
    pub async fn wait(&self, what: &str, namespace: &str, condition: &str) -> Result<()> {
        let condition = format!("--for={condition}");
        let mut arguments = vec!["wait", what, &condition, "--timeout=50s"];
        if !namespace.is_empty() {
            arguments.extend(["-n", namespace]);
        }
        self.ok(&arguments).await?;
        Ok(())
    }

    /// Applies objects, written as JSON or YAML, server-side.
    ///
    /// # Errors
    /// As for [`ok`](Self::ok).
    pub async fn apply(&self, objects: &str) -> Result<String> {
        let arguments = ["apply", "--server-side", "-f", "-"];
        succeeded(&arguments, self.run_with_input(&arguments, objects).await?)
    }
}

fn succeeded(arguments: &[&str], output: Output) -> Result<String> {
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "kubectl {} ended with {}: {error}",
        arguments.join(" "),
        output.status
    );
    String::from_utf8(output.stdout).context("kubectl writes UTF-8")
}

/// The protocol that a [`RawClient`] offers by ALPN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// `http/1.1`.
    Http1,
    /// `h2`.
    Http2,
}

impl Protocol {
    /// Its names in ALPN.
    fn names(self) -> Vec<Vec<u8>> {
        match self {
            Self::Http1 => vec![b"http/1.1".to_vec()],
            Self::Http2 => vec![b"h2".to_vec()],
        }
    }
}

/// An HTTPS client that sends requests unchanged, for forged identity headers, unusual paths and untrusted client
/// certificates. It verifies the server's certificate.
#[derive(Clone)]
pub struct RawClient {
    address: SocketAddr,
    /// The address of its side, unless the system chooses one.
    source: Option<IpAddr>,
    server_name: ServerName<'static>,
    tls: Arc<ClientConfig>,
    protocol: Protocol,
}

impl RawClient {
    /// A client of the server at `address`, which must present a certificate of `authority` (PEM bundle) for
    /// `server_name`. With an identity it presents that client certificate.
    ///
    /// # Errors
    /// Something is not PEM, or the name is neither a DNS name nor an IP address.
    pub fn new(
        address: SocketAddr,
        server_name: &str,
        authority: &str,
        identity: Option<&Credential>,
        protocol: Protocol,
    ) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(authority.as_bytes()) {
            roots
                .add(certificate.context("read the authority's certificate")?)
                .context("trust the authority")?;
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("choose TLS versions")?
            .with_root_certificates(roots);
        let mut tls = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes())
                    .collect::<Result<Vec<_>, _>>()
                    .context("read the client certificate")?;
                let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())
                    .context("read the client certificate's key")?;
                builder
                    .with_client_auth_cert(chain, key)
                    .context("use the client certificate")?
            }
        };
        tls.alpn_protocols = protocol.names();
        let server_name = ServerName::try_from(server_name.to_owned())
            .with_context(|| format!("{server_name} is not a server name"))?;
        Ok(Self {
            address,
            source: None,
            server_name,
            tls: Arc::new(tls),
            protocol,
        })
    }

    /// The same client at an address of this machine, such as another one of the loopback network.
    #[must_use]
    pub fn coming_from(mut self, source: IpAddr) -> Self {
        self.source = Some(source);
        self
    }

    /// Opens a connection for any number of requests.
    ///
    /// # Errors
    /// The connection or the handshake fails, or the server does not speak the protocol.
    pub async fn connect(&self) -> Result<Connection> {
        timeout(CALL_DEADLINE, self.connect_without_deadline())
            .await
            .with_context(|| format!("{} does not respond", self.address))?
    }

    /// The server's address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The protocol that it offers.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The same client over HTTP/1.1.
    #[must_use]
    pub(crate) fn over_http1(&self) -> Self {
        let mut tls = ClientConfig::clone(&self.tls);
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        Self {
            tls: Arc::new(tls),
            protocol: Protocol::Http1,
            ..self.clone()
        }
    }

    /// The same client with another protocol.
    #[must_use]
    pub fn speaking(&self, protocol: Protocol) -> Self {
        let mut tls = ClientConfig::clone(&self.tls);
        tls.alpn_protocols = protocol.names();
        Self {
            tls: Arc::new(tls),
            protocol,
            ..self.clone()
        }
    }

    /// Opens a TLS connection, without the handshake of HTTP.
    pub(crate) async fn open(&self) -> Result<TlsStream<TcpStream>> {
        let socket = match self.address {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        };
        let socket = socket.context("make a socket")?;
        if let Some(source) = self.source {
            socket
                .bind(SocketAddr::new(source, 0))
                .with_context(|| format!("use the address {source}"))?;
        }
        let stream = socket
            .connect(self.address)
            .await
            .with_context(|| format!("connect to {}", self.address))?;
        stream.set_nodelay(true).context("set TCP_NODELAY")?;
        TlsConnector::from(Arc::clone(&self.tls))
            .connect(self.server_name.clone(), stream)
            .await
            .with_context(|| format!("TLS handshake with {}", self.address))
    }

    async fn connect_without_deadline(&self) -> Result<Connection> {
        let io = TokioIo::new(self.open().await?);
        // Errors of the connection's task are errors of the request too.
        let (sender, task) = match self.protocol {
            Protocol::Http1 => {
                let (sender, connection) = hyper::client::conn::http1::handshake(io)
                    .await
                    .context("start HTTP/1.1")?;
                (
                    Sender::Http1(sender),
                    tokio::spawn(async { drop(connection.await) }),
                )
            }
            Protocol::Http2 => {
                let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
                    .await
                    .context("start HTTP/2")?;
                (
                    Sender::Http2(sender),
                    tokio::spawn(async { drop(connection.await) }),
                )
            }
        };
        Ok(Connection {
            sender,
            task,
            authority: self.address.to_string(),
        })
    }

    /// Sends one request on a connection of its own and reads the whole response. The request's URI is the path and
    /// query; a `host` header is added if there is none.
    ///
    /// # Errors
    /// As for [`connect`](Self::connect), or the server closed the connection without a response.
    pub async fn send(&self, request: Request<impl Into<Bytes>>) -> Result<Response<Bytes>> {
        self.connect().await?.send(request).await
    }

    /// A GET of one path.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub async fn get(&self, path: &str) -> Result<Response<Bytes>> {
        let request = Request::get(path)
            .body(Bytes::new())
            .with_context(|| format!("{path} is not a path"))?;
        self.send(request).await
    }
}

enum Sender {
    Http1(hyper::client::conn::http1::SendRequest<Full<Bytes>>),
    Http2(hyper::client::conn::http2::SendRequest<Full<Bytes>>),
}

/// One TLS connection. Dropping it closes it.
pub struct Connection {
    sender: Sender,
    task: JoinHandle<()>,
    authority: String,
}

impl Connection {
    /// Sends a request and reads the whole response, within a minute.
    ///
    /// # Errors
    /// The connection is closed, or there is no response.
    pub async fn send(&mut self, request: Request<impl Into<Bytes>>) -> Result<Response<Bytes>> {
        let exchange = async {
            let (head, body) = self.stream(request).await?.into_parts();
            let body = body
                .collect()
                .await
                .context("read the body of the response")?
                .to_bytes();
            Ok(Response::from_parts(head, body))
        };
        timeout(CALL_DEADLINE, exchange)
            .await
            .context("the response is incomplete")?
    }

    /// Sends a request and returns as soon as the head of the response has come: for watches.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub async fn stream(&mut self, request: Request<impl Into<Bytes>>) -> Result<Response<Incoming>> {
        let (mut head, body) = request.into_parts();
        let path = head
            .uri
            .path_and_query()
            .map_or("/", |path| path.as_str())
            .to_owned();
        let body = Full::new(body.into());
        let response = match &mut self.sender {
            Sender::Http1(sender) => {
                if !head.headers.contains_key(http::header::HOST) {
                    head.headers.insert(
                        http::header::HOST,
                        self.authority.parse().context("a host header")?,
                    );
                }
                head.uri = path.parse().context("a request target")?;
                sender.ready().await.context("the connection is closed")?;
                sender.send_request(Request::from_parts(head, body)).await
            }
            Sender::Http2(sender) => {
                let uri = Uri::builder()
                    .scheme("https")
                    .authority(self.authority.as_str())
                    .path_and_query(path);
                head.uri = uri.build().context("a request target")?;
                head.version = http::Version::HTTP_2;
                sender.ready().await.context("the connection is closed")?;
                sender.send_request(Request::from_parts(head, body)).await
            }
        };
        response.context("no response")
    }
}

impl Connection {
    /// Keeps the connection open until its last response ends.
    pub(crate) fn detach(mut self) {
        self.task = tokio::spawn(async {});
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Checks the status of a response.
///
/// # Errors
/// It is another one; the message has the body.
pub fn expect_status(response: &Response<Bytes>, expected: u16) -> Result<()> {
    if response.status().as_u16() != expected {
        bail!(
            "expected status {expected}, got {}: {}",
            response.status(),
            String::from_utf8_lossy(response.body())
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn eventually_returns_the_first_value_after_any_errors() {
        let mut calls = 0;
        let response = eventually("an response", Duration::from_secs(5), async || {
            calls += 1;
            match calls {
                1 => Ok(None),
                2 => bail!("refused"),
                calls => Ok(Some(calls)),
            }
        });
        assert_eq!(response.await.unwrap(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn eventually_ends_at_the_deadline_with_the_last_error() {
        let started = Instant::now();
        let waited = eventually(
            "the moon",
            Duration::from_secs(5),
            async || -> Result<Option<()>> { bail!("refused") },
        );
        let text = format!("{:#}", waited.await.unwrap_err());
        assert!(text.contains("the moon") && text.ends_with("refused"), "{text}");
        assert!(started.elapsed() < Duration::from_secs(6));
    }
}
