//! A real etcd of one member for a test: a folder of its own, ports from the operating system, killed when dropped.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use drydock_storage::etcd::{EtcdOptions, EtcdStore};
use tempfile::TempDir;

/// Starting and restarting takes a part of a second; on a busy machine it may take this long.
const PATIENCE: Duration = Duration::from_mins(1);

/// One member.
pub(crate) struct EtcdProcess {
    process: Option<Child>,
    folder: TempDir,
    client: SocketAddr,
    peer: SocketAddr,
    flags: Vec<String>,
}

/// The folder of `etcd` and `etcdctl`: built once per machine.
fn binaries() -> &'static PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/cluster/build.sh");
        let built = Command::new(script)
            .arg("etcd")
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        assert!(built.status.success(), "{script} failed");
        String::from_utf8(built.stdout).unwrap().trim().into()
    })
}

fn free_port() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap()
}

impl EtcdProcess {
    /// Starts an empty etcd that does not wait for the disk.
    pub(crate) async fn start() -> Self {
        Self::start_with(&["--unsafe-no-fsync"]).await
    }

    /// Starts an empty etcd with more flags.
    pub(crate) async fn start_with(flags: &[&str]) -> Self {
        for _ in 0..5 {
            let mut etcd = Self {
                process: None,
                folder: tempfile::tempdir().unwrap(),
                client: free_port(),
                peer: free_port(),
                flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            };
            if etcd.run().await {
                return etcd;
            }
            // Somebody else got one of its ports.
        }
        panic!("etcd does not start");
    }

    /// Starts the process; returns whether it serves.
    async fn run(&mut self) -> bool {
        let (client, peer) = (self.endpoint(), format!("http://{}", self.peer));
        let log = std::fs::File::create(self.folder.path().join("log")).unwrap();
        // The process ends with this one, however this one ends.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(binaries().join("etcd"))
            .arg(format!(
                "--data-dir={}",
                self.folder.path().join("data").display()
            ))
            .arg(format!("--listen-client-urls={client}"))
            .arg(format!("--advertise-client-urls={client}"))
            .arg(format!("--listen-peer-urls={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .arg(format!("--initial-cluster=default={peer}"))
            .args([
                "--heartbeat-interval=20",
                "--election-timeout=200",
                "--log-level=warn",
            ])
            .args(&self.flags)
            .stdout(Stdio::null())
            .stderr(log);
        let mut process = command.spawn().unwrap();
        let serves = tokio::time::timeout(PATIENCE, async {
            loop {
                if process.try_wait().unwrap().is_some() {
                    return false;
                }
                if TcpStream::connect(self.client).is_ok() {
                    return true;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let serves = serves.await.unwrap();
        self.process = Some(process);
        serves
    }

    /// Kills it, as a crash would.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Starts it again with its data.
    pub(crate) async fn restart(&mut self) {
        self.kill();
        assert!(self.run().await, "etcd does not start again");
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    /// Its client URL.
    pub(crate) fn endpoint(&self) -> String {
        format!("http://{}", self.client)
    }

    /// Options of a store in it.
    pub(crate) fn options(&self) -> EtcdOptions {
        EtcdOptions {
            compaction_interval: Duration::ZERO,
            probe_period: Duration::from_millis(100),
            ..EtcdOptions::new(vec![self.endpoint()])
        }
    }

    /// A store in it.
    pub(crate) async fn store(&self) -> EtcdStore {
        EtcdStore::open(self.options()).await.unwrap().0
    }

    /// Runs `etcdctl` and returns what it prints.
    pub(crate) fn etcdctl(&self, arguments: &[&str]) -> String {
        let run = Command::new(binaries().join("etcdctl"))
            .arg(format!("--endpoints={}", self.endpoint()))
            .args(arguments)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&run.stdout).into_owned();
        assert!(
            run.status.success(),
            "etcdctl {arguments:?}: {text}{}",
            String::from_utf8_lossy(&run.stderr)
        );
        text
    }
}

impl Drop for EtcdProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
