use super::*;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::future::join_all;
use http::{Request, Response, Version};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::fixtures::clock_at;
use crate::lease_fence::LeaseFence;
use crate::metrics::Metrics;
use crate::server_time::ServerClock;
use crate::transport::NotLeading;

/// The version and the user agent of each request.
type Requests = Arc<Mutex<Vec<(Version, Option<HeaderValue>)>>>;

/// A server that offers some protocols, and what it has seen.
struct Server {
    config: ClientConfig,
    connections: Arc<AtomicUsize>,
    requests: Requests,
    _tasks: JoinSet<()>,
}

impl Server {
    async fn offering(protocols: &[&[u8]]) -> Self {
        drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
        let issued = rcgen::generate_simple_self_signed(vec!["server.test".to_owned()]).unwrap();
        let certificate = issued.cert.der().clone();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(issued.signing_key.serialize_der()));
        let mut tls = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .unwrap();
        tls.alpn_protocols = protocols.iter().map(|one| one.to_vec()).collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let mut config = ClientConfig::new(url.parse().unwrap());
        config.root_cert = Some(vec![certificate.to_vec()]);
        config.tls_server_name = Some("server.test".to_owned());
        let connections = Arc::<AtomicUsize>::default();
        let requests = Requests::default();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(
            listener,
            TlsAcceptor::from(Arc::new(tls)),
            Arc::clone(&connections),
            Arc::clone(&requests),
        ));
        Self {
            config,
            connections,
            requests,
            _tasks: tasks,
        }
    }
}

async fn serve(listener: TcpListener, tls: TlsAcceptor, connections: Arc<AtomicUsize>, requests: Requests) {
    let mut tasks = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        let (tls, connections, requests) = (tls.clone(), Arc::clone(&connections), Arc::clone(&requests));
        tasks.spawn(async move {
            let Ok(stream) = tls.accept(stream).await else {
                return;
            };
            let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
            let is_first = AtomicUsize::new(0);
            let service = service_fn(|request: Request<Incoming>| {
                // A connection counts once a call comes over it.
                if is_first.fetch_add(1, Ordering::Relaxed) == 0 {
                    connections.fetch_add(1, Ordering::Relaxed);
                }
                let agent = request.headers().get(USER_AGENT).cloned();
                requests.lock().unwrap().push((request.version(), agent));
                async { Ok::<_, std::convert::Infallible>(Response::new(Full::new(Bytes::from("{}")))) }
            });
            let stream = TokioIo::new(stream);
            // The client ends its connections when it wants.
            if is_http2 {
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                drop(builder.serve_connection(stream, service).await);
            } else {
                let builder = hyper::server::conn::http1::Builder::new();
                drop(builder.serve_connection(stream, service).await);
            }
        });
    }
}

fn transport(fence: LeaseFence) -> TransportLayer {
    TransportLayer {
        fence: Arc::new(fence),
        clock: Arc::new(ServerClock::new(clock_at(10))),
        metrics: Metrics::default(),
    }
}

async fn call(client: &Client, method: &str) -> kube::Result<serde_json::Value> {
    let request = Request::builder().method(method).uri("/api/v1/pods");
    client.request(request.body(Vec::new()).unwrap()).await
}

#[tokio::test]
async fn calls_share_a_connection_where_the_server_offers_http_2() {
    let server = Server::offering(&PROTOCOLS).await;
    let client = sharing(server.config.clone(), &transport(LeaseFence::open())).unwrap();
    call(&client, "GET").await.unwrap();
    for response in join_all((0..20).map(|_| call(&client, "POST"))).await {
        response.unwrap();
    }
    assert_eq!(server.connections.load(Ordering::Relaxed), 1);
    let requests = server.requests.lock().unwrap();
    assert_eq!(requests.len(), 21);
    let agent = Some(agent().1);
    assert!(
        requests
            .iter()
            .all(|one| *one == (Version::HTTP_2, agent.clone()))
    );
}

#[tokio::test]
async fn calls_are_sent_to_servers_that_offer_only_http_1() {
    for protocols in [&[][..], &[&b"http/1.1"[..]][..]] {
        let server = Server::offering(protocols).await;
        let client = sharing(server.config.clone(), &transport(LeaseFence::open())).unwrap();
        call(&client, "POST").await.unwrap();
        let requests = server.requests.lock().unwrap();
        assert_eq!(requests[0], (Version::HTTP_11, Some(agent().1)));
    }
}

#[tokio::test]
async fn calls_pass_the_fence_of_the_lease() {
    let server = Server::offering(&PROTOCOLS).await;
    let client = sharing(server.config.clone(), &transport(LeaseFence::closed())).unwrap();
    call(&client, "GET").await.unwrap();
    let error = call(&client, "POST").await.unwrap_err();
    let kube::Error::Service(error) = error else {
        panic!("{error}");
    };
    assert!(error.is::<NotLeading>(), "{error}");
    assert_eq!(server.requests.lock().unwrap().len(), 1);
}
