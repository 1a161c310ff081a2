//! An etcd of one member for servers that store their objects in it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;

use super::binaries::etcd_folder;
use super::control_plane::etcd_flags;
use super::folder::Folder;
use super::ports::Ports;
use super::process::{Lifetime, Process, Processes};

const START_DEADLINE: Duration = Duration::from_mins(1);

/// The process and its data. Dropping it kills the process.
pub struct Etcd {
    // Before the folder: the process ends before its files go.
    process: Processes<()>,
    folder: Folder,
    binary: PathBuf,
    client: SocketAddr,
    peer: SocketAddr,
}

impl Etcd {
    /// Builds etcd if this machine has none, and starts an empty one.
    ///
    /// # Errors
    /// It cannot be built, ended, or was not ready in time.
    pub async fn start() -> Result<Self> {
        let mut ports = Ports::reserve(2)?;
        let etcd = Self {
            process: Processes::default(),
            folder: Folder::temporary()?,
            binary: etcd_folder().await?.join("etcd"),
            client: ports.take()?,
            peer: ports.take()?,
        };
        etcd.start_again().await?;
        Ok(etcd)
    }

    /// Starts it with its data.
    ///
    /// # Errors
    /// It ended or was not ready in time.
    pub async fn start_again(&self) -> Result<()> {
        let mut command = Command::new(&self.binary);
        etcd_flags(
            &mut command,
            &self.folder.path().join("data"),
            self.client,
            self.peer,
        );
        let mut process = Process::spawn(command, "etcd", self.folder.path(), Lifetime::WithParent)?;
        let responds = async || Ok(tokio::net::TcpStream::connect(self.client).await.is_ok());
        process.ready(START_DEADLINE, responds).await?;
        self.process.insert((), process);
        Ok(())
    }

    /// Stops its process without ending it.
    ///
    /// # Errors
    /// It does not run.
    pub fn pause(&self) -> Result<()> {
        self.process.signal(&(), Signal::STOP)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// It does not run.
    pub fn resume(&self) -> Result<()> {
        self.process.signal(&(), Signal::CONT)
    }

    /// Its client URL.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.client)
    }

    /// Kills it.
    pub fn kill(&self) {
        self.process.kill(&());
    }

    /// The flags of a server that stores its objects in it.
    #[must_use]
    pub fn server_flags(&self) -> [String; 2] {
        [
            "--storage-backend=etcd".to_owned(),
            format!("--etcd-servers={}", self.endpoint()),
        ]
    }

    /// The id of its process, if it runs.
    #[must_use]
    pub fn process_id(&self) -> Option<u32> {
        self.process.id(&())
    }
}
