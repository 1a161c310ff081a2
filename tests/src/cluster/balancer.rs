//! A TCP balancer in front of several servers, in place of a Service: each connection goes to the next server that accepts
//! one.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};

/// Forwards connections without end.
///
/// # Errors
/// The address cannot be listened on.
pub async fn balance(listen: SocketAddr, to: Vec<SocketAddr>) -> Result<()> {
    let listener = TcpListener::bind(listen).await.context("listen")?;
    let to = Arc::new(to);
    let next = AtomicUsize::new(0);
    loop {
        let Ok((client, _)) = listener.accept().await else {
            continue;
        };
        let (to, first) = (Arc::clone(&to), next.fetch_add(1, Ordering::Relaxed));
        tokio::spawn(async move {
            // A side that is gone ends both.
            let _ended = forward(client, &to, first).await;
        });
    }
}

async fn forward(mut client: TcpStream, to: &[SocketAddr], first: usize) -> std::io::Result<()> {
    for position in 0..to.len() {
        let Some(address) = to.get((first + position) % to.len()) else {
            continue;
        };
        if let Ok(mut server) = TcpStream::connect(address).await {
            copy_bidirectional(&mut client, &mut server).await?;
            return Ok(());
        }
    }
    Ok(())
}
