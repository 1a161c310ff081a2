//! Which ports do the processes of a cluster listen on?

use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::{Context as _, Result};

/// Loopback ports that the operating system has found free, for processes that must be told their port.
///
/// The listeners stay open until a port is taken, so that no two ports are the same. Between taking a
/// port and the process's own bind another process could get it; the operating system hands out ports
/// in an order that makes this rare, and the process then says so in its log.
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
        listener
            .local_addr()
            .context("ask for the port that was reserved")
    }
}
