//! A `drydock-apiserver` of a test's own, which it may kill.
//!
//! It authenticates and authorizes with the shared control plane, but has no `APIService`: no controller acts on its
//! objects.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::drydock::{Drydock, SERVER_NAME};
use super::pki::{Credential, Validity};
use super::ports::Ports;
use super::process::{Lifetime, Process, Processes};
use crate::clients::{Protocol, RawClient};

const START_DEADLINE: Duration = Duration::from_mins(1);
const STOP_GRACE: Duration = Duration::from_mins(1);

/// A server with data of its own. Address, certificate and data stay the same across restarts.
pub struct Server<'a> {
    drydock: &'a Drydock<'a>,
    name: String,
    flags: Vec<String>,
    folder: PathBuf,
    address: SocketAddr,
    process: Processes<()>,
}

impl<'a> Server<'a> {
    /// Starts a server with its files in the folder `name` of the cluster's folder.
    ///
    /// # Errors
    /// The name is in use, or the server ended or was not ready in time.
    pub async fn start(drydock: &'a Drydock<'a>, name: &str) -> Result<Self> {
        Self::start_with(drydock, name, &[]).await
    }

    /// The same, with more flags.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub async fn start_with(drydock: &'a Drydock<'a>, name: &str, flags: &[&str]) -> Result<Self> {
        let folder = drydock.control_plane().folder().path().join(name);
        std::fs::create_dir(&folder).with_context(|| format!("create {}", folder.display()))?;
        let server = Self {
            drydock,
            name: name.to_owned(),
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            folder,
            address: Ports::reserve(1)?.take()?,
            process: Processes::default(),
        };
        let authority = &drydock.control_plane().pki().drydock;
        server.serve_with(&authority.serving(&[SERVER_NAME], Validity::Current)?)?;
        server.start_again().await?;
        Ok(server)
    }

    /// Starts it again, and waits until it is ready.
    ///
    /// # Errors
    /// It ended or was not ready in time.
    pub async fn start_again(&self) -> Result<()> {
        let mut command = self.drydock.server_command(
            self.address,
            &self.folder.join("tls.crt"),
            &self.folder.join("tls.key"),
            &self.folder.join("data"),
        );
        command.args(&self.flags);
        let mut process = Process::spawn(command, &self.name, &self.folder, Lifetime::WithParent)?;
        let probe = self.raw_client(None, Protocol::Http1)?;
        process
            .ready(START_DEADLINE, async || {
                Ok(probe.get("/readyz").await?.status().is_success())
            })
            .await?;
        self.process.insert((), process);
        Ok(())
    }

    /// Stops it with SIGTERM. `None` if it was not started.
    ///
    /// # Errors
    /// It did not end within a minute.
    pub async fn stop(&self) -> Result<Option<ExitStatus>> {
        self.process.stop(&(), STOP_GRACE).await
    }

    /// Kills it.
    pub fn kill(&self) {
        self.process.kill(&());
    }

    /// Replaces the files of its serving certificate, the key first.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn serve_with(&self, credential: &Credential) -> Result<()> {
        for (name, text) in [("tls.key", &credential.key), ("tls.crt", &credential.certificate)] {
            let (path, new) = (self.folder.join(name), self.folder.join(format!("{name}.new")));
            std::fs::write(&new, text).with_context(|| format!("write {}", new.display()))?;
            std::fs::rename(&new, &path).with_context(|| format!("replace {}", path.display()))?;
        }
        Ok(())
    }

    /// A raw client with a client certificate or anonymous.
    ///
    /// # Errors
    /// The certificate cannot be read.
    pub fn raw_client(&self, identity: Option<&Credential>, protocol: Protocol) -> Result<RawClient> {
        let authority = self.drydock.control_plane().pki().drydock.certificate();
        RawClient::new(self.address, SERVER_NAME, &authority, identity, protocol)
    }

    /// The ID of its process, if it was started.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        self.process.id(&())
    }

    /// Its address.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The folder with its certificate, data and log.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}
