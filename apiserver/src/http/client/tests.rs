use std::sync::atomic::{AtomicUsize, Ordering};

use http::Response;
use hyper::body::Incoming;
use hyper::service::service_fn;
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::fixtures::{Authority, Identity, Subject};

/// Finds a server on loopback under any name.
struct Loopback(SocketAddr);

impl Resolver for Loopback {
    fn resolve<'a>(&'a self, host: &'a str, _: u16) -> BoxFuture<'a, io::Result<Vec<SocketAddr>>> {
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
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
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
            let Ok(stream) = acceptor.accept(stream).await else {
                continue;
            };
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service_fn(respond));
            tokio::spawn(async move { drop(connection.await) });
        }
    });
    (address, connections)
}

async fn respond(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, std::convert::Infallible> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    Ok(match path.as_str() {
        "/hangs" => std::future::pending().await,
        "/moved" => Response::builder()
            .status(307)
            .header("location", "/")
            .body(Full::default())
            .unwrap(),
        "/large" => Response::new(Full::from(vec![b'x'; 2000])),
        "/closes" => Response::builder()
            .header("connection", "close")
            .body(Full::new(body))
            .unwrap(),
        _ => Response::new(Full::new(body)),
    })
}

const MAX_BYTES: usize = 1000;

async fn post(client: &Client, target: &Target, path: &str) -> Result<(u16, Bytes), String> {
    let deadline = Instant::now() + Duration::from_mins(1);
    let answer = client
        .post(
            target,
            path,
            "test",
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
        trust: Arc::new(Trust::new(pem.as_bytes()).unwrap()),
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
    assert!(Trust::new(b"no PEM").is_err());
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
        .post(&target, "/hangs", "test", Bytes::new(), MAX_BYTES, deadline)
        .await;
    assert_eq!(late.unwrap_err().to_string(), "context deadline exceeded");
}
