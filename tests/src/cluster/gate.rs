//! A TCP proxy on loopback that can be closed: it then forwards nothing and ends nothing, like a network that loses every
//! packet.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A running proxy. Dropping it ends its connections.
#[derive(Debug)]
pub struct Gate {
    address: SocketAddr,
    is_open: watch::Sender<bool>,
    serving: JoinHandle<()>,
}

impl Gate {
    /// Starts an open proxy in front of this address.
    ///
    /// # Errors
    /// There is no free port.
    pub async fn start(to: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("listen")?;
        let address = listener.local_addr().context("the proxy's address")?;
        let (is_open, state) = watch::channel(true);
        let serving = tokio::spawn(serve(listener, to, state));
        Ok(Self {
            address,
            is_open,
            serving,
        })
    }

    /// Where it listens.
    #[must_use]
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops forwarding. What is sent from now on never arrives.
    pub fn close(&self) {
        self.is_open.send_replace(false);
    }

    /// Forwards new connections again. Those that were open while it was closed are reset.
    pub fn open(&self) {
        self.is_open.send_replace(true);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, to: SocketAddr, is_open: watch::Receiver<bool>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        connections.spawn(forward(client, to, is_open.clone()));
        while connections.try_join_next().is_some() {}
    }
}

async fn forward(mut client: TcpStream, to: SocketAddr, mut is_open: watch::Receiver<bool>) {
    // The sender outlives the connections.
    if *is_open.borrow()
        && let Ok(mut server) = TcpStream::connect(to).await
    {
        tokio::select! {
            // Once it is closed, nothing more is read.
            biased;
            _closed = is_open.wait_for(|open| !open) => {}
            _ended = copy_bidirectional(&mut client, &mut server) => return,
        }
        // Both sides keep their connection, and nothing is read from it.
        let _opened = is_open.wait_for(|open| *open).await;
        return;
    }
    let _opened = is_open.wait_for(|open| *open).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    #[tokio::test]
    async fn closed_gate_forwards_nothing_and_what_was_sent_is_lost() {
        let server = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let gate = Gate::start(server.local_addr().unwrap()).await.unwrap();
        let mut client = TcpStream::connect(gate.address()).await.unwrap();
        let (mut accepted, _) = server.accept().await.unwrap();
        client.write_all(b"a").await.unwrap();
        assert_eq!(accepted.read_u8().await.unwrap(), b'a');
        gate.close();
        client.write_all(b"b").await.unwrap();
        let late = tokio::time::timeout(Duration::from_millis(300), accepted.read_u8()).await;
        assert!(late.is_err(), "{late:?}");
        gate.open();
        assert!(accepted.read_u8().await.is_err(), "the connection is reset");
        let mut client = TcpStream::connect(gate.address()).await.unwrap();
        client.write_all(b"c").await.unwrap();
        let (mut accepted, _) = server.accept().await.unwrap();
        assert_eq!(accepted.read_u8().await.unwrap(), b'c');
    }
}
