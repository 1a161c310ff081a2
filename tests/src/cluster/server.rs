//! How does a test get a `drydock-apiserver` that nobody else uses, and that it may kill?
//!
//! It reviews its callers with the shared host, but is not registered there: no controller acts on its
//! objects, and nobody misses it while it is away.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::drydock::{Drydock, SERVER_NAME};
use super::pki::{Credential, Validity};
use super::ports::Ports;
use super::process::{Lifetime, Process};
use crate::clients::{Protocol, RawClient};

const START_DEADLINE: Duration = Duration::from_mins(1);
const STOP_GRACE: Duration = Duration::from_mins(1);

/// One server with data of its own. Address, certificate and data stay the same over kills and starts.
pub struct Server<'a> {
    drydock: &'a Drydock<'a>,
    name: String,
    flags: Vec<String>,
    folder: PathBuf,
    address: SocketAddr,
    process: Mutex<Option<Process>>,
}

impl<'a> Server<'a> {
    /// Starts a server whose files lie below the cluster's folder under `name`.
    ///
    /// # Errors
    /// The name is taken, or the server ended or was not ready in time.
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
            process: Mutex::default(),
        };
        let authority = &drydock.control_plane().pki().drydock;
        server.serve_with(&authority.serving(&[SERVER_NAME], Validity::Current)?)?;
        server.start_again().await?;
        Ok(server)
    }

    /// Starts it once more, and waits until it is ready.
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
        self.put(Some(process));
        Ok(())
    }

    /// Asks it to end and waits for that. `None` if it does not run.
    ///
    /// # Errors
    /// It did not end within a minute.
    pub async fn stop(&self) -> Result<Option<ExitStatus>> {
        match self.put(None) {
            Some(process) => process.terminate(STOP_GRACE).await.map(Some),
            None => Ok(None),
        }
    }

    /// Kills it, as a machine that loses power does.
    pub fn kill(&self) {
        drop(self.put(None));
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

    /// The id of its process, if it runs.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        let running = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        running.as_ref().map(Process::id)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The folder with its certificate, data and log.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn put(&self, process: Option<Process>) -> Option<Process> {
        let mut running = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *running, process)
    }
}
