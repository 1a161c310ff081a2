//! A baseline server that does nothing: the cost of HTTP/2 over TLS alone.
//!
//! A process with the server's HTTP and TLS stack, which reads each request and responds with 201 and a fixed object.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bytes::Bytes;
use drydock_tests::cluster::{ControlPlane, Lifetime, Process};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::subject::eviction_request;

/// The argument that runs this program as that server.
pub(crate) const COMMAND: &str = "do-nothing";

const START_DEADLINE: Duration = Duration::from_secs(20);
/// The flow-control windows and the number of streams of our server.
const WINDOW_BYTES: u32 = 256 * 1024;
const STREAMS: u32 = 1000;

/// The process.
pub(crate) struct DoNothing {
    process: Process,
    /// Its address.
    pub(crate) address: SocketAddr,
}

impl DoNothing {
    /// Starts it with the control plane's serving certificate.
    pub(crate) async fn start(control_plane: &ControlPlane) -> Result<Self> {
        let folder = control_plane.folder().path();
        let mut command = Command::new(std::env::current_exe().context("find this program")?);
        command
            .arg(COMMAND)
            .arg(folder.join("serving.crt"))
            .arg(folder.join("serving.key"));
        let mut process = Process::spawn(command, COMMAND, folder, Lifetime::WithParent)?;
        let log = process.log().to_owned();
        let address = || -> Option<SocketAddr> { std::fs::read_to_string(&log).ok()?.trim().parse().ok() };
        process
            .ready(START_DEADLINE, async || Ok(address().is_some()))
            .await?;
        let address = address().context("it has printed its address")?;
        Ok(Self { process, address })
    }

    /// Its process ID.
    pub(crate) fn id(&self) -> u32 {
        self.process.id()
    }
}

/// Serves until the process is killed; prints the address first.
pub(crate) async fn serve(certificate: &str, key: &str) -> Result<()> {
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .context("read the certificate")?;
    let key = PrivateKeyDer::from_pem_file(key).context("read the key")?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut tls = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(tls));
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    println!("{}", listener.local_addr()?);
    let body = eviction_request(0);
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(connection(stream, acceptor.clone(), body.clone()));
    }
}

async fn connection(stream: TcpStream, acceptor: TlsAcceptor, body: Bytes) -> Result<()> {
    stream.set_nodelay(true)?;
    let stream = acceptor.accept(stream).await?;
    let service = service_fn(move |request: Request<Incoming>| {
        let body = body.clone();
        async move {
            request.into_body().collect().await?;
            let mut response = Response::new(Full::new(body));
            *response.status_mut() = StatusCode::CREATED;
            Ok::<_, hyper::Error>(response)
        }
    });
    Builder::new(TokioExecutor::new())
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(100 * WINDOW_BYTES)
        .max_frame_size(WINDOW_BYTES)
        .serve_connection(TokioIo::new(stream), service)
        .await?;
    Ok(())
}
