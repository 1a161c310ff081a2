//! Ports for the processes of a cluster.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::{Context as _, Result};

/// Free loopback ports, for processes that take a port number.
///
/// The listeners stay open until a port is taken, so that no two ports are the same. Another process could get the
/// port before it is bound; the operating system assigns ports in an order that makes this rare, and the process then
/// logs it.
#[derive(Debug, Default)]
pub struct Ports {
    reserved: Vec<TcpListener>,
}

impl Ports {
    /// Finds `count` free ports.
    ///
    /// # Errors
    /// The operating system has none left.
    pub fn reserve(count: usize) -> Result<Self> {
        let reserved = (0..count)
            .map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
            .collect::<std::io::Result<_>>()
            .context("reserve a loopback port")?;
        Ok(Self { reserved })
    }

    /// Releases one of the ports for the process that will bind it.
    ///
    /// # Errors
    /// All of them are taken.
    pub fn take(&mut self) -> Result<SocketAddr> {
        let listener = self.reserved.pop().context("more ports taken than reserved")?;
        listener.local_addr().context("read the reserved port")
    }
}
