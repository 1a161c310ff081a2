//! A real etcd for a test: a folder of its own, ports from the operating system, killed when dropped.
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

/// The folder of `etcd`, `etcdctl` and `etcdutl`: built once per machine.
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

/// An address on which nobody listens.
pub(crate) fn free_port() -> SocketAddr {
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
        let timing = ["--heartbeat-interval=20", "--election-timeout=200"];
        let flags = [&timing[..], flags].concat();
        let mut members = Self::start_members(1, &flags).await;
        members.pop().unwrap()
    }

    /// Starts an empty etcd of three members that wait for the disk.
    pub(crate) async fn start_three() -> Vec<Self> {
        Self::start_members(3, &[]).await
    }

    async fn start_members(count: usize, flags: &[&str]) -> Vec<Self> {
        for _ in 0..5 {
            let peers: Vec<SocketAddr> = (0..count).map(|_| free_port()).collect();
            let cluster: Vec<String> = peers
                .iter()
                .enumerate()
                .map(|(number, peer)| format!("m{number}=http://{peer}"))
                .collect();
            let mut members = Vec::new();
            for (number, peer) in peers.into_iter().enumerate() {
                let mut member = Self {
                    process: None,
                    folder: tempfile::tempdir().unwrap(),
                    client: free_port(),
                    peer,
                    flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
                };
                member.flags.push(format!("--name=m{number}"));
                member
                    .flags
                    .push(format!("--initial-cluster={}", cluster.join(",")));
                member.spawn();
                members.push(member);
            }
            let mut all_serve = true;
            for member in &mut members {
                all_serve &= member.serves().await;
            }
            if all_serve {
                return members;
            }
            // Somebody else got one of the ports.
        }
        panic!("etcd does not start");
    }

    fn spawn(&mut self) {
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
            .arg("--log-level=warn")
            .args(&self.flags)
            .stdout(Stdio::null())
            .stderr(log);
        self.process = Some(command.spawn().unwrap());
    }

    /// Waits until it serves; returns whether it does.
    async fn serves(&mut self) -> bool {
        let process = self.process.as_mut().unwrap();
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
        serves.await.unwrap()
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
        self.spawn();
        assert!(self.serves().await, "etcd does not start again");
    }

    /// Raises its revision by so much, as an operator does with a new etcd before objects move there.
    pub(crate) async fn raise(&mut self, by: u64) {
        let folder = self.folder.path().to_owned();
        let snapshot = folder.join("snapshot").display().to_string();
        self.etcdctl(&["snapshot", "save", &snapshot]);
        self.kill();
        std::fs::remove_dir_all(folder.join("data")).unwrap();
        let (name, peer) = ("m0", format!("http://{}", self.peer));
        let restored = Command::new(binaries().join("etcdutl"))
            .args([
                "snapshot",
                "restore",
                &snapshot,
                "--mark-compacted",
                "--name",
                name,
            ])
            .arg(format!("--bump-revision={by}"))
            .arg(format!("--data-dir={}", folder.join("data").display()))
            .arg(format!("--initial-cluster={name}={peer}"))
            .arg(format!("--initial-advertise-peer-urls={peer}"))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&restored.stderr);
        assert!(restored.status.success(), "etcdutl: {said}");
        self.restart().await;
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.process.as_ref().unwrap().id()
    }

    /// Its client URL.
    pub(crate) fn endpoint(&self) -> String {
        let is_tls = self.flags.iter().any(|flag| flag.starts_with("--cert-file"));
        format!("http{}://{}", if is_tls { "s" } else { "" }, self.client)
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
