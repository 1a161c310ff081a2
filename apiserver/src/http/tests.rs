//! Tests over real sockets and TLS, with both protocols.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use drydock_machinery::clock::ManualClock;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, RootCertStore, client::ResolvesClientCert, pki_types::ServerName, sign::CertifiedKey,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, DuplexStream},
    net::TcpStream,
    task::JoinHandle,
    time::Instant,
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tokio_util::sync::CancellationToken;

use super::{
    body::{RequestBody, ResponseBody},
    connection::{self, Connection, Service},
    listener::Listener,
    tls::{CertificateSource, MinTlsVersion, Tls},
};
use crate::{
    error::BODY_LIMIT,
    fixtures::{Authority, Identity, Server, Subject, front_proxy, noon},
    host::AuthenticationConfig,
};

mod streams;

const PATH: &str = "/apis/g/v/namespaces/ns/rs/x";

struct Cluster {
    serving: Authority,
    proxies: Authority,
    users: Authority,
    server: Server,
    address: SocketAddr,
    running: JoinHandle<()>,
}

impl Cluster {
    async fn start() -> Self {
        let (serving, proxies) = (Authority::new("serving"), Authority::new("proxies"));
        let users = Authority::new("users");
        let server = Server::new(AuthenticationConfig {
            client_ca: Some(users.bundle()),
            request_header: Some(front_proxy(&proxies, &["front"])),
        });
        let identity = serving.issue(&Subject::server());
        let source = CertificateSource::Pem {
            certificate: identity.certificate_pem,
            key: identity.key_pem,
        };
        let settings = server.host.authentication.subscribe();
        let (tls, _) = Tls::load(source, MinTlsVersion::Tls12, settings).await.unwrap();
        let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))
            .await
            .unwrap();
        let address = listener.address();
        let running = tokio::spawn(listener.run(
            tls,
            Arc::clone(&server.chain),
            server.metrics.clone(),
            server.stages.clone(),
        ));
        Self {
            serving,
            proxies,
            users,
            server,
            address,
            running,
        }
    }

    fn proxy(&self) -> Identity {
        self.proxies.issue(&Subject::client("front"))
    }

    async fn dial(
        &self,
        identity: Option<&Identity>,
        protocol: &str,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        dial(self.address, &self.serving, resolver(identity), protocol).await
    }

    async fn client(&self, identity: Option<&Identity>, protocol: &str) -> Client {
        Client::over(self.dial(identity, protocol).await.unwrap(), protocol).await
    }
}

/// Presents `certificate` and signs with `key`, even if they do not belong together.
#[derive(Debug)]
struct Presented(Option<Arc<CertifiedKey>>);

impl ResolvesClientCert for Presented {
    fn resolve(&self, _: &[&[u8]], _: &[rustls::SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.clone()
    }

    fn has_certs(&self) -> bool {
        self.0.is_some()
    }
}

fn presented(certificate: &Identity, key: &Identity) -> Arc<Presented> {
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key.key()).unwrap();
    Arc::new(Presented(Some(Arc::new(CertifiedKey::new(
        certificate.chain(),
        key,
    )))))
}

fn resolver(identity: Option<&Identity>) -> Arc<Presented> {
    identity.map_or_else(
        || Arc::new(Presented(None)),
        |identity| presented(identity, identity),
    )
}

async fn dial(
    address: SocketAddr,
    authority: &Authority,
    certificate: Arc<Presented>,
    protocol: &str,
) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    let pem = authority.pem();
    roots
        .add(rustls::pki_types::pem::PemObject::from_pem_slice(pem.as_bytes()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_cert_resolver(certificate);
    if !protocol.is_empty() {
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    }
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("drydock.test").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await
}

enum Sender {
    Http1(hyper::client::conn::http1::SendRequest<Full<Bytes>>),
    Http2(hyper::client::conn::http2::SendRequest<Full<Bytes>>),
}

struct Client {
    sender: Sender,
    connection: JoinHandle<Result<(), hyper::Error>>,
}

impl Client {
    async fn over(stream: TlsStream<TcpStream>, protocol: &str) -> Self {
        let io = TokioIo::new(stream);
        if protocol == "h2" {
            let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io)
                .await
                .unwrap();
            Self {
                sender: Sender::Http2(sender),
                connection: tokio::spawn(connection),
            }
        } else {
            let (sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
            Self {
                sender: Sender::Http1(sender),
                connection: tokio::spawn(connection),
            }
        }
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, hyper::Error> {
        match &mut self.sender {
            Sender::Http1(sender) => sender.send_request(request).await,
            Sender::Http2(sender) => sender.send_request(request).await,
        }
    }
}

fn request(method: &str, path: &str, body: impl Into<Bytes>) -> Request<Full<Bytes>> {
    Request::builder()
        .method(method)
        .uri(format!("https://drydock.test{path}"))
        .header("x-remote-user", "alice")
        .body(Full::new(body.into()))
        .unwrap()
}

async fn text(response: Response<Incoming>) -> String {
    String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
}

#[tokio::test]
async fn the_front_proxy_names_users_over_both_protocols() {
    let cluster = Cluster::start().await;
    let proxy = cluster.proxy();
    for protocol in ["h2", "http/1.1", ""] {
        let mut client = cluster.client(Some(&proxy), protocol).await;
        for _ in 0..2 {
            let response = client.send(request("GET", PATH, "")).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK, "{protocol}");
            assert!(
                response.headers().contains_key("content-length") && response.headers().contains_key("date")
            );
            assert!(text(response).await.contains(r#""user":"alice""#));
        }
        let mut stranger = cluster.client(None, protocol).await;
        let response = stranger.send(request("GET", PATH, "")).await.unwrap();
        assert!(
            text(response).await.contains(r#""user":"system:anonymous""#),
            "{protocol}"
        );
    }
}

#[tokio::test]
async fn an_unknown_protocol_fails_the_handshake() {
    let cluster = Cluster::start().await;
    assert!(cluster.dial(None, "spdy/3").await.is_err());
}

#[tokio::test]
async fn untrusted_certificates_pass_the_handshake_and_get_401() {
    let cluster = Cluster::start().await;
    let stranger = Authority::new("strangers").issue(&Subject::client("front"));
    let mut client = cluster.client(Some(&stranger), "h2").await;
    let response = client.send(request("GET", PATH, "")).await.unwrap();
    assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
}

#[tokio::test]
async fn a_certificate_without_its_key_fails_the_handshake() {
    let cluster = Cluster::start().await;
    let (proxy, thief) = (cluster.proxy(), cluster.proxy());
    let certificate = presented(&proxy, &thief);
    // Under TLS 1.3 the client notices on its first read.
    if let Ok(mut stream) = dial(cluster.address, &cluster.serving, certificate, "http/1.1").await {
        let head = format!("GET {PATH} HTTP/1.1\r\nHost: a\r\nX-Remote-User: admin\r\n\r\n");
        let mut response = Vec::new();
        let _refused = stream.write_all(head.as_bytes()).await;
        let _refused = stream.flush().await;
        let read = stream.read_to_end(&mut response).await;
        assert!(read.is_err() && response.is_empty(), "{read:?}");
    }
}

#[tokio::test]
async fn unauthenticated_clients_get_one_response_per_http2_connection() {
    let cluster = Cluster::start().await;
    let mut stranger = cluster.client(None, "h2").await;
    let response = stranger.send(request("GET", "/healthz", "")).await.unwrap();
    assert_eq!(text(response).await, "ok");
    stranger.connection.await.unwrap().unwrap();

    let mut stranger = cluster.client(None, "http/1.1").await;
    for _ in 0..2 {
        let response = stranger.send(request("GET", "/healthz", "")).await.unwrap();
        assert_eq!(text(response).await, "ok");
    }
}

#[tokio::test]
async fn bodies_up_to_three_mebibytes_are_read() {
    let cluster = Cluster::start().await;
    let proxy = cluster.proxy();
    for protocol in ["h2", "http/1.1"] {
        for (size, code) in [(BODY_LIMIT, 200), (BODY_LIMIT + 1, 413)] {
            let mut client = cluster.client(Some(&proxy), protocol).await;
            let response = client
                .send(request("POST", "/apis/g/v/rs", vec![b'x'; size]))
                .await
                .unwrap();
            assert_eq!(response.status(), code, "{protocol} {size}");
            let text = text(response).await;
            if code == 413 {
                assert!(
                    text.contains("Request entity too large: limit is 3145728"),
                    "{text}"
                );
            } else {
                assert!(text.contains(&format!("\"bytes\":{size}")), "{text}");
            }
        }
    }
}

#[tokio::test]
async fn large_responses_are_compressed_for_clients_that_accept_gzip() {
    let cluster = Cluster::start().await;
    let mut client = cluster.client(Some(&cluster.proxy()), "h2").await;
    let mut asking = request("GET", "/apis/g/v/large", "");
    asking
        .headers_mut()
        .insert("accept-encoding", "gzip".parse().unwrap());
    let response = client.send(asking).await.unwrap();
    assert_eq!(response.headers()["content-encoding"], "gzip");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert!(body.len() < 10_000, "{}", body.len());
}

#[tokio::test]
async fn watches_have_no_length_and_end_cleanly_on_shutdown() {
    let cluster = Cluster::start().await;
    let proxy = cluster.proxy();
    for protocol in ["h2", "http/1.1"] {
        let mut client = cluster.client(Some(&proxy), protocol).await;
        let response = client
            .send(request("GET", "/apis/g/v/watches?watch=1", ""))
            .await
            .unwrap();
        assert!(!response.headers().contains_key("content-length"), "{protocol}");
        let mut body = response.into_body();
        assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "{}\n");
    }
}

#[tokio::test]
async fn a_shutdown_finishes_requests_then_watches_then_connections() {
    let cluster = Cluster::start().await;
    let proxy = cluster.proxy();
    let mut watching = cluster.client(Some(&proxy), "h2").await;
    let watch = watching
        .send(request("GET", "/apis/g/v/watches?watch=1", ""))
        .await
        .unwrap();
    let mut idle = cluster.client(Some(&proxy), "http/1.1").await;
    text(idle.send(request("GET", PATH, "")).await.unwrap()).await;
    let held = cluster.server.stages.begin_request().unwrap();

    let stages = cluster.server.stages.clone();
    let stopping = tokio::spawn(async move { stages.stop(Duration::ZERO).await });
    cluster.running.await.unwrap();
    assert!(
        TcpStream::connect(cluster.address).await.is_err(),
        "the listener is closed"
    );
    idle.connection.await.unwrap().unwrap();
    assert!(
        !cluster.server.stages.ending().is_cancelled(),
        "a request is in flight"
    );
    drop(held);

    assert_eq!(text(watch).await, "{}\n{\"end\":true}\n");
    drop(watching.sender);
    watching.connection.await.unwrap().unwrap();
    stopping.await.unwrap();
    assert_eq!(cluster.server.stages.connections().len(), 0);
}

#[tokio::test]
async fn a_replaced_certificate_is_used_for_new_connections() {
    let (first, second) = (Authority::new("first"), Authority::new("second"));
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = (folder.path().join("tls.crt"), folder.path().join("tls.key"));
    let write = |identity: &Identity| {
        std::fs::write(&certificate, &identity.certificate_pem).unwrap();
        std::fs::write(&key, &identity.key_pem).unwrap();
    };
    write(&first.issue(&Subject::server()));
    let server = Server::new(AuthenticationConfig::default());
    let source = CertificateSource::Files {
        certificate: certificate.clone(),
        key: key.clone(),
    };
    let settings = server.host.authentication.subscribe();
    let (tls, mut reloader) = Tls::load(source, MinTlsVersion::Tls12, settings).await.unwrap();
    let listener = Listener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))
        .await
        .unwrap();
    let address = listener.address();
    tokio::spawn(listener.run(
        tls,
        Arc::clone(&server.chain),
        server.metrics.clone(),
        server.stages.clone(),
    ));
    let trusts = async |authority: &Authority| dial(address, authority, resolver(None), "h2").await.is_ok();

    assert!(trusts(&first).await && !trusts(&second).await);
    assert!(!reloader.reload().await.unwrap(), "nothing changed");

    let replacement = second.issue(&Subject::server());
    std::fs::write(&certificate, &replacement.certificate_pem).unwrap();
    reloader.reload().await.unwrap_err();
    std::fs::write(&certificate, "").unwrap();
    reloader.reload().await.unwrap_err();
    assert!(
        trusts(&first).await,
        "a pair that does not fit leaves the old one"
    );

    write(&replacement);
    assert!(reloader.reload().await.unwrap());
    assert!(trusts(&second).await && !trusts(&first).await);

    let clock = Arc::new(ManualClock::new(noon()));
    let stop = CancellationToken::new();
    stop.cancel();
    reloader.run(server.metrics.clone(), clock, stop).await;
}

/// An HTTP/1.1 connection without a socket, so that time can be paused, and a task that returns when the server closed it.
fn pipe() -> (DuplexStream, JoinHandle<Duration>) {
    let (client, stream) = tokio::io::duplex(64 * 1024);
    let server = Server::new(AuthenticationConfig::default());
    let connection = Connection::new(SocketAddr::from(([127, 0, 0, 1], 1)), false, None);
    let begun = Instant::now();
    let ended = tokio::spawn(async move {
        connection::serve(stream, connection, server.chain, CancellationToken::new()).await;
        begun.elapsed()
    });
    (client, ended)
}

#[tokio::test(start_paused = true)]
async fn connections_with_slow_headers_are_closed_after_half_a_minute() {
    let (mut client, ended) = pipe();
    client
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n")
        .await
        .unwrap();
    let seconds = ended.await.unwrap().as_secs();
    assert!((32..=36).contains(&seconds), "{seconds}");
    let mut response = Vec::new();
    client.read_to_end(&mut response).await.unwrap();
    assert!(response.is_empty());
}

#[tokio::test(start_paused = true)]
async fn idle_connections_are_closed_after_ninety_seconds() {
    let (mut client, ended) = pipe();
    client
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        .await
        .unwrap();
    let seconds = ended.await.unwrap().as_secs();
    assert!((90..=94).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn oversized_headers_are_431() {
    let (mut client, ended) = pipe();
    let writing = tokio::spawn(async move {
        let flood = format!(
            "GET /healthz HTTP/1.1\r\nHost: a\r\nX: {}\r\n\r\n",
            "x".repeat(1_100_000)
        );
        let _cut = client.write_all(flood.as_bytes()).await;
        let mut response = Vec::new();
        let _reset = client.read_to_end(&mut response).await;
        String::from_utf8_lossy(&response).into_owned()
    });
    ended.await.unwrap();
    let response = writing.await.unwrap();
    assert!(response.starts_with("HTTP/1.1 431 "), "{response}");
}

/// Responds with endless bodies, and reports when a body is dropped.
struct Endless {
    dropped: tokio::sync::mpsc::Sender<Duration>,
    begun: Instant,
    /// Bytes that were polled from bodies.
    handed: Arc<AtomicUsize>,
}

struct OnDrop(tokio::sync::mpsc::Sender<Duration>, Instant);

impl Drop for OnDrop {
    fn drop(&mut self) {
        let _full_or_closed = self.0.try_send(self.1.elapsed());
    }
}

impl Service for Endless {
    async fn serve(&self, _: &Connection, request: Request<RequestBody>) -> Response<ResponseBody> {
        if request.uri().path() == "/short" {
            return Response::new(ResponseBody::full("short"));
        }
        let handed = Arc::clone(&self.handed);
        let frames = futures_util::stream::repeat_with(move || {
            handed.fetch_add(16 * 1024, Ordering::Relaxed);
            Bytes::from_static(&[b'x'; 16 * 1024])
        });
        Response::new(ResponseBody::stream(frames).holding(OnDrop(self.dropped.clone(), self.begun)))
    }
}

/// A connection with endless responses.
struct EndlessConnection {
    client: DuplexStream,
    /// When bodies were dropped.
    drops: tokio::sync::mpsc::Receiver<Duration>,
    handed: Arc<AtomicUsize>,
    ended: JoinHandle<Duration>,
}

fn endless(http2: bool) -> EndlessConnection {
    let (client, stream) = tokio::io::duplex(64 * 1024);
    let begun = Instant::now();
    let (dropped, drops) = tokio::sync::mpsc::channel(8);
    let handed = Arc::new(AtomicUsize::new(0));
    let connection = Connection::new(SocketAddr::from(([127, 0, 0, 1], 1)), http2, None);
    let service = Arc::new(Endless {
        dropped,
        begun,
        handed: Arc::clone(&handed),
    });
    let ended = tokio::spawn(async move {
        connection::serve(stream, connection, service, CancellationToken::new()).await;
        begun.elapsed()
    });
    EndlessConnection {
        client,
        drops,
        handed,
        ended,
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_blocked_for_two_minutes_is_closed() {
    let mut it = endless(false);
    let ask = b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n";
    it.client.write_all(ask).await.unwrap();
    let seconds = it.ended.await.unwrap().as_secs();
    assert!((120..=124).contains(&seconds), "{seconds}");
    assert!(it.drops.recv().await.unwrap().as_secs() <= seconds);
    // Little more was polled than the 64 KiB that are in the pipe.
    let handed = it.handed.load(Ordering::Relaxed);
    assert!(handed <= 64 * 1024 + 128 * 1024 + 64 * 1024, "{handed}");
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_is_not_limited_over_http_1() {
    let mut it = endless(false);
    let ask = b"GET /endless HTTP/1.1\r\nHost: a\r\n\r\n";
    it.client.write_all(ask).await.unwrap();
    let mut read = vec![0; 10 << 20];
    it.client.read_exact(&mut read).await.unwrap();
    assert!(it.handed.load(Ordering::Relaxed) > 9 << 20);
}

#[tokio::test(start_paused = true)]
async fn an_unread_stream_is_dropped_and_other_streams_continue() {
    let mut it = endless(true);
    let (mut sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(it.client))
            .await
            .unwrap();
    tokio::spawn(connection);
    let get = |path: &str| request("GET", path, Bytes::new());
    // The unread body fills only its own window.
    let mut unread = sender.send_request(get("/endless")).await.unwrap().into_body();
    let mut read = sender.send_request(get("/endless")).await.unwrap().into_body();
    let seconds = loop {
        tokio::select! {
            dropped = it.drops.recv() => break dropped.unwrap().as_secs(),
            () = tokio::time::sleep(Duration::from_secs(1)) => {
                // Slowly: less than two windows in half a minute.
                assert!(read.frame().await.unwrap().is_ok());
            }
        }
    };
    assert!((30..=34).contains(&seconds), "{seconds}");
    assert_eq!(
        text(sender.send_request(get("/short")).await.unwrap()).await,
        "short"
    );
    assert!(read.frame().await.unwrap().is_ok());
    // When the client reads on, it gets the bytes in flight and then a reset, which is not a clean end.
    let reset = loop {
        match unread.frame().await {
            Some(Ok(_)) => {}
            other => break other,
        }
    };
    assert!(reset.unwrap().is_err());
}
