//! Accepts connections and performs their TLS handshakes.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use rustix::net::sockopt;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    time::{sleep, timeout},
};
use tokio_rustls::TlsAcceptor;

use super::{
    certificate::PeerCertificates,
    connection::{self, Connection, Service},
    outgoing::READ_TIMEOUT,
    shutdown::Stages,
    streams::PeerKind,
    tls::Tls,
};
use crate::metrics::Metrics;

/// Time limit of a handshake; without it scanners and dead peers would hold tasks.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of connections. The aggregator needs a handful; more wait in the kernel.
const CONNECTIONS: usize = 4096;
/// Pause after the system had no file descriptor for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound port that does not accept connections yet.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds the port; with port 0 the system chooses one.
    ///
    /// # Errors
    /// The error of the system.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpListener::bind(address).await?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }

    /// The bound address, with the port that was chosen.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Accepts connections until the shutdown closes the listener. Each runs as a task of `stages`.
    pub async fn run<S: Service>(self, tls: Arc<Tls>, service: Arc<S>, metrics: Metrics, stages: Stages) {
        tracing::info!(address = %self.address, "serving securely");
        let permits = Arc::new(Semaphore::new(CONNECTIONS));
        loop {
            let accepted = tokio::select! {
                biased;
                () = stages.closed().cancelled() => return,
                accepted = async {
                    let permit = Arc::clone(&permits).acquire_owned().await;
                    (self.socket.accept().await, permit)
                } => accepted,
            };
            let (Ok((stream, remote)), Ok(permit)) = accepted else {
                // Usually a temporary lack of file descriptors; without the pause this loop would spin.
                tracing::warn!("accepting a connection failed");
                sleep(ACCEPT_PAUSE).await;
                continue;
            };
            let acceptor = TlsAcceptor::from(tls.current());
            let (service, metrics, closed) = (Arc::clone(&service), metrics.clone(), stages.closed().clone());
            stages.connections().spawn(async move {
                let _permit = permit;
                serve(stream, remote, acceptor, service, &metrics, closed).await;
            });
        }
    }
}

/// Sets socket options: small responses are sent at once, and the kernel closes the connection of a peer that acknowledges
/// no byte for [`READ_TIMEOUT`], a closed window included.
fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let timeout = u32::try_from(READ_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(stream, timeout)?;
    Ok(())
}

async fn serve<S: Service>(
    stream: TcpStream,
    remote: SocketAddr,
    acceptor: TlsAcceptor,
    service: Arc<S>,
    metrics: &Metrics,
    closed: tokio_util::sync::CancellationToken,
) {
    if let Err(error) = set_options(&stream) {
        tracing::debug!(%error, "setting the options of a connection failed");
    }
    let stream = match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            metrics.tls_handshake_failed();
            tracing::debug!(%remote, %error, "TLS handshake failed");
            return;
        }
        Err(_) => {
            metrics.tls_handshake_failed();
            tracing::debug!(%remote, "TLS handshake timed out");
            return;
        }
    };
    let (_, session) = stream.get_ref();
    let http2 = session.alpn_protocol() == Some(b"h2");
    let certificates = session.peer_certificates().and_then(PeerCertificates::new);
    let peer = certificates
        .as_ref()
        .map_or(PeerKind::Stranger, |certificates| service.peer(certificates));
    let connection = Connection::new(remote, http2, certificates).of(peer);
    connection::serve(stream, connection, service, closed).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_kernel_closes_connections_of_peers_that_do_not_read() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (stream, _) = accepted.unwrap();
        set_options(&stream).unwrap();
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 30_000);
        assert!(stream.nodelay().unwrap());
    }
}
