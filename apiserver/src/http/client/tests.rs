use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::BoxFuture;
use futures_util::{FutureExt as _, StreamExt as _};
use http::Response;
use http_body_util::StreamBody;
use http_body_util::combinators::BoxBody;
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::fixtures::{Authority, Identity, Subject};

/// Finds a server on loopback under any name.
struct Loopback(SocketAddr);

impl Resolver for Loopback {
    fn resolve(&self, host: &str, _: u16) -> BoxFuture<'static, io::Result<Vec<SocketAddr>>> {
        let found = if host == "missing" {
            Err(io::ErrorKind::NotFound.into())
        } else {
            Ok(vec![self.0])
        };
        std::future::ready(found).boxed()
    }
}

/// A server that answers with the body, or as the path says. Counts connections.
async fn serve(identity: &Identity) -> (SocketAddr, Arc<AtomicUsize>) {
    serve_to(identity, WebPkiClientVerifier::no_client_auth()).await
}

/// Such a server that verifies its clients.
async fn serve_to(
    identity: &Identity,
    clients: Arc<dyn ClientCertVerifier>,
) -> (SocketAddr, Arc<AtomicUsize>) {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(identity.certificate_pem.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(identity.key_pem.as_bytes()).unwrap(),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            let stream = match acceptor.accept(stream).into_fallible().await {
                Ok(stream) => stream,
                Err((_, mut stream)) => {
                    // Until the client closes: what it sent and nobody read would make the kernel drop the alert.
                    tokio::spawn(async move { tokio::io::copy(&mut stream, &mut tokio::io::sink()).await });
                    continue;
                }
            };
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(respond));
            tokio::spawn(async move { drop(connection.await) });
        }
    });
    (address, connections)
}

async fn respond(request: Request<Incoming>) -> io::Result<Response<BoxBody<Bytes, io::Error>>> {
    let path = request.uri().path().to_owned();
    let authorization = request.headers().get(header::AUTHORIZATION).cloned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let full = |bytes: Bytes| Full::new(bytes).map_err(|never| match never {}).boxed();
    Ok(match path.as_str() {
        "/hangs" => std::future::pending().await,
        "/drops" => return Err(io::ErrorKind::ConnectionReset.into()),
        "/breaks" => {
            let begins = std::future::ready(Ok(Frame::data(Bytes::from_static(b"{"))));
            let breaks = async {
                // What was written so far is sent.
                tokio::task::yield_now().await;
                Err(io::ErrorKind::ConnectionReset.into())
            };
            let pieces = begins.into_stream().chain(breaks.into_stream());
            Response::new(http_body_util::BodyExt::boxed(StreamBody::new(pieces)))
        }
        "/moved" => Response::builder()
            .status(307)
            .header("location", "/")
            .body(full(Bytes::new()))
            .unwrap(),
        "/who" => {
            let shown =
                authorization.map_or_else(Bytes::new, |value| Bytes::copy_from_slice(value.as_bytes()));
            Response::new(full(shown))
        }
        "/large" => Response::new(full(vec![b'x'; 2000].into())),
        "/closes" => Response::builder()
            .header("connection", "close")
            .body(full(body))
            .unwrap(),
        _ => Response::new(full(body)),
    })
}

const MAX_BYTES: usize = 1000;

async fn post(client: &Client, target: &Target, path: &str) -> Result<(u16, Bytes), String> {
    let deadline = Instant::now() + Duration::from_mins(1);
    let answer = client
        .post(
            target,
            path,
            &HeaderMap::new(),
            Bytes::from_static(b"{}"),
            MAX_BYTES,
            deadline,
        )
        .await;
    answer
        .map(|answer| (answer.code.as_u16(), answer.body))
        .map_err(|error| error.to_string())
}

fn target(host: &str, pem: &str) -> Target {
    Target {
        host: host.to_owned(),
        port: 443,
        trust: Arc::new(Trust::new(pem.as_bytes(), None).unwrap()),
        authorization: None,
    }
}

#[tokio::test]
async fn connections_are_kept_and_replaced_when_the_server_closes_them() {
    let authority = Authority::new("webhooks");
    let (address, connections) = serve(&authority.issue(&Subject::server())).await;
    let client = Client::new(Loopback(address));
    let target = target("drydock.test", &authority.pem());
    for path in ["/", "/moved", "/closes", "/"] {
        let (code, _) = post(&client, &target, path).await.unwrap();
        assert_eq!(code, if path == "/moved" { 307 } else { 200 });
    }
    assert_eq!(connections.load(Ordering::SeqCst), 2);
    assert_eq!(
        post(&client, &target, "/large").await.unwrap_err(),
        "the response has more than 1000 bytes"
    );
}

#[tokio::test]
async fn a_call_that_was_sent_is_not_repeated() {
    let authority = Authority::new("webhooks");
    let (address, connections) = serve(&authority.issue(&Subject::server())).await;
    let client = Client::new(Loopback(address));
    let target = target("drydock.test", &authority.pem());
    let broken = || Err("EOF".to_owned());
    for (path, expected, made) in [
        ("/drops", broken(), 1),
        ("/", Ok(200), 2),
        // On the connection that is kept. A second call would take a third one.
        ("/drops", broken(), 2),
        ("/", Ok(200), 3),
        // The webhook has begun to answer.
        ("/breaks", broken(), 3),
    ] {
        let answer = post(&client, &target, path).await;
        assert_eq!(
            (answer.map(|(code, _)| code), connections.load(Ordering::SeqCst)),
            (expected, made),
            "{path}"
        );
    }
}

#[tokio::test]
async fn a_call_for_which_the_kept_connection_had_ended_takes_a_new_one() {
    let authority = Authority::new("webhooks");
    let (address, connections) = serve(&authority.issue(&Subject::server())).await;
    let client = Client::new(Loopback(address));
    let target = target("drydock.test", &authority.pem());
    let (near, _far) = tokio::io::duplex(1);
    let (ended, connection) = handshake(TokioIo::new(near)).await.unwrap();
    drop(connection);
    // The call has looked for connections that ended, and waits for its turn, when this one does.
    let calls = client.calls(&target);
    let all = calls.acquire_many(u32::try_from(CALLS_IN_FLIGHT).unwrap()).await;
    let end = async {
        let mut pools = client.pools.lock().unwrap();
        let pool = pools.get_mut(&target.key()).unwrap();
        pool.idle.push((ended, Instant::now()));
        drop((pools, all));
    };
    let (answer, ()) = tokio::join!(biased; post(&client, &target, "/"), end);
    assert_eq!(answer.unwrap().0, 200);
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_server_is_trusted_by_the_bundle_alone_and_needs_the_name() {
    let (authority, other) = (Authority::new("webhooks"), Authority::new("others"));
    let (address, _) = serve(&authority.issue(&Subject::server())).await;
    let client = Client::new(Loopback(address));
    let stranger = post(&client, &target("drydock.test", &other.pem()), "/")
        .await
        .unwrap_err();
    assert_eq!(
        stranger,
        "tls: failed to verify certificate: x509: certificate signed by unknown authority"
    );
    let renamed = post(&client, &target("other.test", &authority.pem()), "/")
        .await
        .unwrap_err();
    assert!(
        renamed.starts_with("tls: failed to verify certificate: x509: certificate not valid for name"),
        "{renamed}"
    );
    assert_eq!(
        post(&client, &target("missing", &authority.pem()), "/")
            .await
            .unwrap_err(),
        "dial tcp: lookup missing: no such host"
    );
    assert!(Trust::new(b"no PEM", None).is_err());
}

#[tokio::test]
async fn a_self_signed_authority_is_trusted_as_a_server_if_the_bundle_has_it() {
    let mut params = CertificateParams::new(vec!["drydock.test".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let identity = Identity {
        certificate_pem: params.self_signed(&key).unwrap().pem(),
        key_pem: key.serialize_pem(),
    };
    let (address, _) = serve(&identity).await;
    let client = Client::new(Loopback(address));
    let (code, _) = post(&client, &target("drydock.test", &identity.certificate_pem), "/")
        .await
        .unwrap();
    assert_eq!(code, 200);
    post(&client, &target("other.test", &identity.certificate_pem), "/")
        .await
        .unwrap_err();
}

#[tokio::test]
async fn a_call_ends_at_its_deadline() {
    let authority = Authority::new("webhooks");
    let (address, _) = serve(&authority.issue(&Subject::server())).await;
    let client = Client::new(Loopback(address));
    let target = target("drydock.test", &authority.pem());
    let deadline = Instant::now() + Duration::from_millis(50);
    let late = client
        .post(
            &target,
            "/hangs",
            &HeaderMap::new(),
            Bytes::new(),
            MAX_BYTES,
            deadline,
        )
        .await;
    assert_eq!(late.unwrap_err().to_string(), "context deadline exceeded");
}

#[tokio::test]
async fn credentials_are_shown_to_the_server() {
    let authority = Authority::new("webhooks");
    let mut roots = RootCertStore::empty();
    let root = CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap();
    roots.add(root).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
    let server = authority.issue(&Subject::server());
    let (address, _) = serve_to(&server, clients.build().unwrap()).await;
    let client = Client::new(Loopback(address));
    let stranger = target("drydock.test", &authority.pem());
    assert_eq!(
        post(&client, &stranger, "/who").await.unwrap_err(),
        "remote error: tls: certificate required"
    );
    let with_certificate = |issuer: &Authority| {
        let own = issuer.issue(&Subject::client("drydock"));
        let certificate = ClientCertificate::from_pem(own.certificate_pem.as_bytes(), own.key_pem.as_bytes());
        Target {
            trust: Arc::new(Trust::new(authority.pem().as_bytes(), Some(&certificate.unwrap())).unwrap()),
            ..stranger.clone()
        }
    };
    assert_eq!(
        post(&client, &with_certificate(&Authority::new("others")), "/who")
            .await
            .unwrap_err(),
        "remote error: tls: unknown certificate authority"
    );
    let known = with_certificate(&authority);
    assert_eq!(post(&client, &known, "/who").await.unwrap(), (200, Bytes::new()));
    let with_token = Target {
        authorization: Some(Arc::new(Authorization::bearer("a-token").unwrap())),
        ..known
    };
    let (_, shown) = post(&client, &with_token, "/who").await.unwrap();
    assert_eq!(shown, "Bearer a-token");
}
