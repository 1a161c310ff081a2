//! How do connections come in?

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
    outgoing::PATIENCE,
    shutdown::Stages,
    tls::Tls,
};
use crate::metrics::Metrics;

/// Time to shake hands; scanners and dead peers would hold a task otherwise.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// Connections at a time. The aggregator needs a handful; beyond this new ones wait in the kernel.
const CONNECTIONS: usize = 4096;
/// Pause after the system had no descriptor left for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A bound port that does not accept yet.
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds; port 0 lets the system choose.
    ///
    /// # Errors
    /// What the system says.
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

    /// Accepts connections until `stages` closes the listener. Each runs as a task of `stages`.
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
                // Mostly a lack of descriptors, which passes; without the pause this loop would spin.
                tracing::warn!("a connection could not be accepted");
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

/// Small answers leave at once, and a peer that takes no byte for [`PATIENCE`] is given up: the kernel knows, since it
/// sees what is acknowledged, with a window that stays shut too.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let patience = u32::try_from(PATIENCE.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(stream, patience)?;
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
    if let Err(error) = prepare(&stream) {
        tracing::debug!(%error, "the options of a connection were not set");
    }
    let stream = match timeout(HANDSHAKE_TIME, acceptor.accept(stream)).await {
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
    let connection = Connection::new(remote, http2, certificates);
    connection::serve(stream, connection, service, closed).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn peers_that_take_nothing_are_given_up_by_the_kernel() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (stream, _) = accepted.unwrap();
        prepare(&stream).unwrap();
        assert_eq!(sockopt::tcp_user_timeout(&stream).unwrap(), 30_000);
        assert!(stream.nodelay().unwrap());
    }
}
