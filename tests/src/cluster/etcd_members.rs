//! An etcd of several members, over TLS, whose members can be killed, paused and cut off.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::time::timeout;

use super::binaries::etcd_folder;
use super::control_plane::flag;
use super::folder::Folder;
use super::namespaces::{self, Namespaces};
use super::pki::{Authority, Validity};
use super::ports::Ports;
use super::process::{Lifetime, Process, Processes};
use crate::clients::eventually;

const START_DEADLINE: Duration = Duration::from_mins(1);
/// How long a command of an operator may take.
const COMMAND_DEADLINE: Duration = Duration::from_secs(20);
/// The link that names the folder with the current certificates, as in a mounted Secret.
const CERTIFICATES: &str = "certificates";

/// Where a member listens.
#[derive(Clone, Copy, Debug)]
struct Addresses {
    client: SocketAddr,
    peer: SocketAddr,
}

/// The members and their data. Dropping it kills the processes.
pub struct EtcdMembers {
    // Before the folder: the processes end before their files go.
    processes: Processes<usize>,
    namespaces: Option<Namespaces>,
    folder: Folder,
    binaries: PathBuf,
    addresses: Vec<Addresses>,
    flags: Vec<String>,
    authority: Authority,
}

impl EtcdMembers {
    /// Builds etcd if this machine has none, and starts an empty one of `count` members with more flags. Each has a network
    /// namespace of its own where this process may make some; otherwise all listen on loopback.
    ///
    /// # Errors
    /// It cannot be built, ended, or was not ready in time.
    pub async fn start(count: usize, flags: &[&str]) -> Result<Self> {
        let folder = Folder::temporary()?;
        let namespaces = if namespaces::are_possible() {
            Some(Namespaces::new(count, folder.path()).await?)
        } else {
            None
        };
        let mut addresses = Vec::new();
        let mut ports = Ports::reserve(2 * count)?;
        for member in 0..count {
            let (client, peer) = (ports.take()?, ports.take()?);
            addresses.push(match &namespaces {
                None => Addresses { client, peer },
                Some(namespaces) => {
                    let address = namespaces.member_address(member)?;
                    Addresses {
                        client: (address, client.port()).into(),
                        peer: (address, peer.port()).into(),
                    }
                }
            });
        }
        let members = Self {
            processes: Processes::default(),
            namespaces,
            folder,
            binaries: etcd_folder().await?,
            addresses,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            authority: Authority::new("etcd")?,
        };
        members.renew_certificates()?;
        for member in 0..count {
            members.start_member(member)?;
        }
        members.healthy().await?;
        Ok(members)
    }

    /// The number of members.
    #[must_use]
    pub fn count(&self) -> usize {
        self.addresses.len()
    }

    /// Starts a member with its data; it is ready when [`healthy`](Self::healthy) says so.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start_member(&self, member: usize) -> Result<()> {
        let own = self.addresses.get(member).context("a member")?;
        let (client, peer) = (format!("https://{}", own.client), format!("http://{}", own.peer));
        let binary = self.binaries.join("etcd");
        let mut command = match &self.namespaces {
            Some(namespaces) => namespaces.command(member, &binary)?,
            None => Command::new(&binary),
        };
        command
            .arg(flag("name", name_of(member)))
            .arg(flag("data-dir", self.data(member).display()))
            .arg(flag("listen-client-urls", &client))
            .arg(flag("advertise-client-urls", &client))
            .arg(flag("listen-peer-urls", &peer))
            .arg(flag("initial-advertise-peer-urls", &peer))
            .arg(flag("initial-cluster", self.initial_cluster()))
            .arg(flag("trusted-ca-file", self.file("ca.crt").display()))
            .arg(flag("cert-file", self.file("server.crt").display()))
            .arg(flag("key-file", self.file("server.key").display()))
            .args(["--client-cert-auth", "--log-level=warn"])
            .args(&self.flags);
        let name = format!("etcd-{member}");
        let process = Process::spawn(command, &name, self.folder.path(), Lifetime::WithParent)?;
        self.processes.insert(member, process);
        Ok(())
    }

    /// The data of a member.
    #[must_use]
    pub fn data(&self, member: usize) -> PathBuf {
        self.folder.path().join(format!("data-{member}"))
    }

    /// Kills a member.
    pub fn kill(&self, member: usize) {
        self.processes.kill(&member);
    }

    /// Stops the process of a member without ending it.
    ///
    /// # Errors
    /// It does not run.
    pub fn pause(&self, member: usize) -> Result<()> {
        self.processes.signal(&member, Signal::STOP)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// It does not run.
    pub fn resume(&self, member: usize) -> Result<()> {
        self.processes.signal(&member, Signal::CONT)
    }

    /// Whether the link of a member can be taken down: each has a network namespace.
    #[must_use]
    pub fn can_be_cut_off(&self) -> bool {
        self.namespaces.is_some()
    }

    /// Takes the link of a member down or up: nobody reaches it, and it reaches nobody.
    ///
    /// # Errors
    /// It has no network namespace.
    pub fn set_link(&self, member: usize, is_up: bool) -> Result<()> {
        let namespaces = self.namespaces.as_ref().context("members have namespaces")?;
        namespaces.set_link(member, is_up)
    }

    /// Waits until every member serves and knows the same leader; returns its number.
    ///
    /// # Errors
    /// They do not within a minute.
    pub async fn healthy(&self) -> Result<usize> {
        eventually("every member of etcd to serve", START_DEADLINE, async || {
            let status = self
                .etcdctl(&["endpoint", "status", "--write-out=json"], &[])
                .await?;
            let status: Vec<Value> = serde_json::from_str(&status).context("read the status")?;
            let part = |member: &Value, path: &str| member.pointer(path).and_then(Value::as_u64);
            let leaders: Vec<_> = status.iter().map(|it| part(it, "/Status/leader")).collect();
            let leader = leaders.first().copied().flatten().filter(|leader| *leader != 0);
            if status.len() != self.count() || leaders.iter().any(|it| *it != leader) {
                return Ok(None);
            }
            Ok(status
                .iter()
                .position(|it| part(it, "/Status/header/member_id") == leader))
        })
        .await
    }

    /// Runs etcdctl at all members with this standard input and returns what it prints.
    ///
    /// # Errors
    /// It fails, or does not end in time.
    pub async fn etcdctl(&self, arguments: &[&str], input: &[u8]) -> Result<String> {
        let endpoints: Vec<String> = self.endpoints();
        let mut command = tokio::process::Command::new(self.binaries.join("etcdctl"));
        command
            .arg(flag("endpoints", endpoints.join(",")))
            .arg(flag("cacert", self.file("ca.crt").display()))
            .arg(flag("cert", self.file("client.crt").display()))
            .arg(flag("key", self.file("client.key").display()))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut process = command.spawn().context("start etcdctl")?;
        let mut pipe = process.stdin.take().context("a pipe")?;
        pipe.write_all(input).await.context("write to etcdctl")?;
        drop(pipe);
        let output = timeout(COMMAND_DEADLINE, process.wait_with_output()).await;
        let output = output.context("etcdctl does not end")??;
        ensure!(
            output.status.success(),
            "etcdctl {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).context("etcdctl prints text")
    }

    /// The folder of `etcd`, `etcdctl` and `etcdutl`.
    #[must_use]
    pub fn binaries(&self) -> &Path {
        &self.binaries
    }

    /// The client URLs.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        let urls = self.addresses.iter().map(|it| format!("https://{}", it.client));
        urls.collect()
    }

    /// Replaces the certificates of members and clients, and their keys, all at once.
    ///
    /// # Errors
    /// They cannot be made or written.
    pub fn renew_certificates(&self) -> Result<()> {
        let link = self.folder.path().join(CERTIFICATES);
        let before = std::fs::read_link(&link).ok();
        let folder = tempfile::Builder::new()
            .prefix(CERTIFICATES)
            .tempdir_in(self.folder.path())
            .context("make a folder for certificates")?
            .keep();
        let mut addresses: Vec<IpAddr> = self.addresses.iter().map(|it| it.client.ip()).collect();
        addresses.push(Ipv4Addr::LOCALHOST.into());
        let server = self.authority.serving_at(&addresses, Validity::Current)?;
        let client = self.authority.client("drydock", None, Validity::Current)?;
        for (name, text) in [
            ("ca.crt", &self.authority.certificate()),
            ("server.crt", &server.certificate),
            ("server.key", &server.key),
            ("client.crt", &client.certificate),
            ("client.key", &client.key),
        ] {
            let path = folder.join(name);
            std::fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        }
        let new_link = folder.with_extension("link");
        std::os::unix::fs::symlink(&folder, &new_link).context("link the certificates")?;
        std::fs::rename(&new_link, &link).context("replace the link to the certificates")?;
        if let Some(before) = before {
            std::fs::remove_dir_all(&before).with_context(|| format!("remove {}", before.display()))?;
        }
        Ok(())
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(CERTIFICATES).join(name)
    }

    /// What a shell needs for the commands of an operator at the machine of one member: etcd's own variables for the member,
    /// those of etcdctl, and the URLs and files that a server is given.
    ///
    /// # Errors
    /// There is no such member.
    pub fn environment(&self, member: usize) -> Result<Vec<(&'static str, String)>> {
        let own = self.addresses.get(member).context("a member")?;
        let file = |name| self.file(name).display().to_string();
        Ok(vec![
            ("ETCD_NAME", name_of(member)),
            ("ETCD_DATA_DIR", self.data(member).display().to_string()),
            ("ETCD_INITIAL_CLUSTER", self.initial_cluster()),
            ("ETCD_INITIAL_ADVERTISE_PEER_URLS", format!("http://{}", own.peer)),
            ("ETCDCTL_ENDPOINTS", format!("https://{}", own.client)),
            ("ETCDCTL_CACERT", file("ca.crt")),
            ("ETCDCTL_CERT", file("client.crt")),
            ("ETCDCTL_KEY", file("client.key")),
            ("ETCD_SERVERS", self.endpoints().join(",")),
            ("ETCD_CAFILE", file("ca.crt")),
            ("ETCD_CERTFILE", file("client.crt")),
            ("ETCD_KEYFILE", file("client.key")),
        ])
    }

    /// All members, as etcd is told them.
    fn initial_cluster(&self) -> String {
        let members = (0..).zip(&self.addresses);
        let all: Vec<String> = members
            .map(|(number, it)| format!("{}=http://{}", name_of(number), it.peer))
            .collect();
        all.join(",")
    }

    /// The flags of a server that stores its objects in it.
    #[must_use]
    pub fn server_flags(&self) -> Vec<String> {
        vec![
            "--storage-backend=etcd".to_owned(),
            flag("etcd-servers", self.endpoints().join(",")),
            flag("etcd-cafile", self.file("ca.crt").display()),
            flag("etcd-certfile", self.file("client.crt").display()),
            flag("etcd-keyfile", self.file("client.key").display()),
        ]
    }
}

fn name_of(member: usize) -> String {
    format!("m{member}")
}
