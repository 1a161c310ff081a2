use super::*;
use std::fmt::Write as _;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

/// A connection that never ends.
fn connect(connections: &mut JoinSet<()>, open: &mut VecDeque<Open>, address: IpAddr, is_trusted: bool) {
    make_way(open);
    open.push_back(Open {
        address,
        connection: connections.spawn(std::future::pending()),
        is_trusted: Arc::new(Mutex::new(is_trusted)),
    });
}

#[tokio::test]
async fn connections_of_the_address_with_the_most_make_way() {
    let (holder, prober) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let mut connections = JoinSet::new();
    let mut open = VecDeque::new();
    connect(&mut connections, &mut open, prober, false);
    for _ in 0..MAX_CONNECTIONS * 2 {
        connect(&mut connections, &mut open, holder, false);
    }
    assert_eq!(open.len(), MAX_CONNECTIONS);
    assert_eq!(open.front().map(|one| one.address), Some(prober));
    for _ in 0..=MAX_CONNECTIONS {
        assert!(connections.join_next().await.unwrap().unwrap_err().is_cancelled());
    }
    assert_eq!(connections.len(), MAX_CONNECTIONS);
}

#[tokio::test]
async fn connections_with_a_client_certificate_stay() {
    let mut connections = JoinSet::new();
    let mut open = VecDeque::new();
    let server = IpAddr::from([10, 0, 0, 1]);
    connect(&mut connections, &mut open, server, true);
    for number in 0..MAX_CONNECTIONS * 2 {
        let address = IpAddr::from([10, 0, 1, u8::try_from(number % 250).unwrap()]);
        connect(&mut connections, &mut open, address, false);
    }
    assert!(open.iter().any(|one| one.address == server));
}

/// Answers with the name in the client's certificate.
struct Names;

impl Respond for Names {
    async fn respond(&self, _: Request<Incoming>, peer: &Peer) -> Response<Full<Bytes>> {
        Response::new(Full::from(format!("{:?}", peer.certificate_name)))
    }
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: Issuer::new(params, key),
            pem,
        }
    }

    /// Certificate and key, PEM.
    fn issue(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap())
            .unwrap();
        roots
    }
}

/// The body of the response over a new connection with these certificates; `Err` if the handshake or the request fails.
async fn get(
    certificates: &Certificates,
    trusts: &Authority,
    identity: Option<(String, String)>,
) -> io::Result<String> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let tls = TlsAcceptor::from(Arc::clone(&certificates.config));
    let serving = tokio::spawn(async move {
        let (stream, remote) = listener.accept().await?;
        let is_trusted = Mutex::new(false);
        serve_connection(stream, remote.ip(), tls, Arc::new(Names), &is_trusted).await
    });
    let builder = ClientConfig::builder().with_root_certificates(trusts.roots());
    let mut config = match identity {
        Some((certificate, key)) => builder
            .with_client_auth_cert(
                vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap(),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    let stream = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    stream
        .write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    drop(serving.await);
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    Ok(body.unwrap_or_default())
}

#[tokio::test]
async fn certificates_are_verified_and_read_again() {
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (first, second, stranger) = (Authority::new(), Authority::new(), Authority::new());
    let write = |authority: &Authority| {
        let (certificate, key) = authority.issue("drydock");
        std::fs::write(path("tls.crt"), certificate).unwrap();
        std::fs::write(path("tls.key"), key).unwrap();
    };
    write(&first);
    std::fs::write(path("ca.crt"), &first.pem).unwrap();
    let files = TlsFiles {
        serving: Some(CertificateFiles {
            certificate: path("tls.crt"),
            key: path("tls.key"),
        }),
        client_authority: Some(path("ca.crt")),
    };
    let mut certificates = Certificates::load("127.0.0.1:0".parse().unwrap(), &files).unwrap();
    assert_eq!(get(&certificates, &first, None).await.unwrap(), "None");
    let known = Some(first.issue("kube-apiserver"));
    let name = get(&certificates, &first, known).await.unwrap();
    assert_eq!(name, "Some(\"kube-apiserver\")");
    let unknown = || Some(stranger.issue("other"));
    assert!(get(&certificates, &first, unknown()).await.is_err());

    std::fs::write(path("tls.crt"), "not a certificate").unwrap();
    certificates.reload();
    let kept = get(&certificates, &first, None).await.unwrap();
    assert_eq!(kept, "None");

    write(&second);
    let mut both = first.pem.clone();
    write!(both, "\n{}", stranger.pem).unwrap();
    std::fs::write(path("ca.crt"), both).unwrap();
    certificates.reload();
    assert!(get(&certificates, &first, None).await.is_err());
    let name = get(&certificates, &second, unknown()).await.unwrap();
    assert_eq!(name, "Some(\"other\")");
}
