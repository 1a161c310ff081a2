//! An aggregated server in Go, for comparison in benchmarks.
//!
//! `k8s.io/sample-apiserver` serves the kinds of `wardle.example.com` with the library that most aggregated servers
//! use, on an etcd of its own. It authenticates and authorizes with the control plane, but has no `APIService`.

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::binaries::sample_apiserver;
use super::control_plane::{ControlPlane, etcd_flags, flag};
use super::ports::Ports;
use super::process::{Lifetime, Process};
use crate::clients::{Protocol, RawClient};

const START_DEADLINE: Duration = Duration::from_mins(1);

/// The server and its etcd. Dropping it kills both.
pub struct SampleApiServer<'a> {
    // Before its store: the client ends first.
    server: Process,
    etcd: Process,
    control_plane: &'a ControlPlane,
    address: SocketAddr,
    etcd_client: SocketAddr,
}

impl<'a> SampleApiServer<'a> {
    /// Builds it if this machine has none, starts it and waits until it is ready. It has the control plane's serving
    /// certificate and client CA.
    ///
    /// # Errors
    /// It cannot be built, ended, or was not ready in time; the message has the end of its log.
    pub async fn start(control_plane: &'a ControlPlane) -> Result<Self> {
        let binary = sample_apiserver().await?;
        let folder = control_plane.folder().path();
        let mut ports = Ports::reserve(3)?;
        let (client, peer, address) = (ports.take()?, ports.take()?, ports.take()?);

        let mut command = Command::new(control_plane.binaries().command("etcd"));
        etcd_flags(&mut command, &folder.join("sample-etcd"), client, peer);
        let mut etcd = Process::spawn(command, "sample-etcd", folder, Lifetime::WithParent)?;
        let responses = async || Ok(tokio::net::TcpStream::connect(client).await.is_ok());
        etcd.ready(START_DEADLINE, responses).await?;

        let mut command = Command::new(binary);
        let kubeconfig = control_plane.admin_kubeconfig();
        for name in [
            "kubeconfig",
            "authentication-kubeconfig",
            "authorization-kubeconfig",
        ] {
            command.arg(flag(name, kubeconfig.display()));
        }
        command
            .arg(flag("etcd-servers", format!("http://{client}")))
            .arg(flag("bind-address", address.ip()))
            .arg(flag("secure-port", address.port()))
            .arg(flag("tls-cert-file", folder.join("serving.crt").display()))
            .arg(flag("tls-private-key-file", folder.join("serving.key").display()));
        let mut server = Process::spawn(command, "sample-apiserver", folder, Lifetime::WithParent)?;
        let probe = control_plane.client_of(address, Protocol::Http1)?;
        server
            .ready(START_DEADLINE, async || {
                Ok(probe.get("/readyz").await?.status().is_success())
            })
            .await?;
        Ok(Self {
            server,
            etcd,
            control_plane,
            address,
            etcd_client: client,
        })
    }

    /// The process IDs of the server and its etcd.
    #[must_use]
    pub fn process_ids(&self) -> [u32; 2] {
        [self.server.id(), self.etcd.id()]
    }

    /// The client URL of its etcd.
    #[must_use]
    pub fn etcd_url(&self) -> String {
        format!("http://{}", self.etcd_client)
    }

    /// A raw client with all rights.
    ///
    /// # Errors
    /// The certificate cannot be read.
    pub fn raw_client(&self, protocol: Protocol) -> Result<RawClient> {
        self.control_plane.client_of(self.address, protocol)
    }
}
