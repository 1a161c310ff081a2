//! Network namespaces for the members of a cluster: the link of one can be taken down, as when its machine is cut off.
//!
//! ```text
//! this process ── 198.18.x.1 ── bridge in a namespace of its own ──┬── 198.18.x.10, first member
//!                                                                  └── 198.18.x.11, …
//! ```
//!
//! A process that only sleeps holds each namespace. When these processes end, however that comes, the kernel removes the
//! namespaces with everything in them.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

use super::process::{Lifetime, Process, Processes};

/// Of 198.18.0.0/15, which no real network uses.
const FIRST_OCTETS: [u8; 2] = [198, 18];
/// The last octet of this process's address, and of the first member's.
const OWN_OCTET: u8 = 1;
const FIRST_MEMBER_OCTET: u8 = 10;
const START_DEADLINE: Duration = Duration::from_mins(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Holder {
    Member(usize),
    Bridge,
}

/// Namespaces with a bridge between them. Dropping it removes them.
pub(super) struct Namespaces {
    holders: Processes<Holder>,
    subnet: u8,
}

/// Whether this process may make network namespaces.
pub(super) fn are_possible() -> bool {
    Command::new("unshare")
        .args(["--net", "ip", "link", "add", "probe", "type", "bridge"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Runs a command to its end.
fn run(program: &str, arguments: &[&str]) -> Result<()> {
    let output = Command::new(program)
        .args(arguments)
        .output()
        .with_context(|| format!("run {program}"))?;
    ensure!(
        output.status.success(),
        "{program} {}: {}",
        arguments.join(" "),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

impl Namespaces {
    /// A namespace for each of `members`; the logs of their holders go to `folder`.
    pub(super) async fn new(members: usize, folder: &Path) -> Result<Self> {
        let mut this = Self {
            holders: Processes::default(),
            subnet: 0,
        };
        this.hold(Holder::Bridge, folder).await?;
        this.ip(Holder::Bridge, &["link", "add", "bridge", "type", "bridge"])?;
        this.ip(Holder::Bridge, &["link", "set", "bridge", "up"])?;
        this.subnet = link_to(&this.process_id(Holder::Bridge)?)?;
        let own_link = own_link(this.subnet);
        let own_address = format!("{}/24", this.address(OWN_OCTET));
        run("ip", &["address", "add", &own_address, "dev", &own_link])?;
        run("ip", &["link", "set", &own_link, "up"])?;
        this.attach("host")?;
        for member in 0..members {
            this.hold(Holder::Member(member), folder).await?;
            let (link, holder) = (link(member), this.process_id(Holder::Member(member))?);
            this.ip(
                Holder::Bridge,
                &[
                    "link", "add", &link, "type", "veth", "peer", "name", "uplink", "netns", &holder,
                ],
            )?;
            this.attach(&link)?;
            let address = format!("{}/24", this.member_address(member)?);
            let own = Holder::Member(member);
            this.ip(own, &["address", "add", &address, "dev", "uplink"])?;
            this.ip(own, &["link", "set", "uplink", "up"])?;
            this.ip(own, &["link", "set", "lo", "up"])?;
        }
        Ok(this)
    }

    /// Starts the process that holds a namespace.
    async fn hold(&self, holder: Holder, folder: &Path) -> Result<()> {
        let mut command = Command::new("unshare");
        command.args(["--net", "sleep", "infinity"]);
        let name = format!("namespace-{holder:?}");
        let mut process = Process::spawn(command, &name, folder, Lifetime::WithParent)?;
        let of = |id: &str| std::fs::read_link(format!("/proc/{id}/ns/net"));
        let id = process.id().to_string();
        process
            .ready(START_DEADLINE, async || Ok(of(&id)? != of("self")?))
            .await?;
        self.holders.insert(holder, process);
        Ok(())
    }

    fn process_id(&self, holder: Holder) -> Result<String> {
        let id = self.holders.id(&holder).context("the namespace is held")?;
        Ok(id.to_string())
    }

    /// Runs `ip` in a namespace.
    fn ip(&self, holder: Holder, arguments: &[&str]) -> Result<()> {
        let id = self.process_id(holder)?;
        run(
            "nsenter",
            &[&["--target", &id, "--net", "ip"], arguments].concat(),
        )
    }

    fn attach(&self, link: &str) -> Result<()> {
        self.ip(Holder::Bridge, &["link", "set", link, "master", "bridge", "up"])
    }

    fn address(&self, octet: u8) -> IpAddr {
        let [first, second] = FIRST_OCTETS;
        Ipv4Addr::new(first, second, self.subnet, octet).into()
    }

    /// The address of a member.
    pub(super) fn member_address(&self, member: usize) -> Result<IpAddr> {
        let octet = FIRST_MEMBER_OCTET.checked_add(u8::try_from(member)?);
        Ok(self.address(octet.context("few members")?))
    }

    /// A command that runs `program` in the namespace of a member, as the same process.
    pub(super) fn command(&self, member: usize, program: &Path) -> Result<Command> {
        let id = self.process_id(Holder::Member(member))?;
        let mut command = Command::new("nsenter");
        command.args(["--target", &id, "--net"]).arg(program);
        Ok(command)
    }

    /// Takes the link of a member down or up.
    pub(super) fn set_link(&self, member: usize, is_up: bool) -> Result<()> {
        let state = if is_up { "up" } else { "down" };
        self.ip(Holder::Bridge, &["link", "set", &link(member), state])
    }
}

/// The end of a member's link at the bridge.
fn link(member: usize) -> String {
    format!("member{member}")
}

/// The end of the link to the bridge in this process's own namespace.
fn own_link(subnet: u8) -> String {
    format!("drydock{subnet}")
}

/// Links this namespace with another one, and returns the subnet that the link is named after: the first one that no other
/// test has.
fn link_to(bridge: &str) -> Result<u8> {
    let first = u8::try_from(std::process::id() % 250)?;
    for subnet in (first..250).chain(0..first) {
        let link = own_link(subnet);
        let arguments = [
            "link", "add", &link, "type", "veth", "peer", "name", "host", "netns", bridge,
        ];
        match run("ip", &arguments) {
            Ok(()) => return Ok(subnet),
            Err(error) if error.to_string().contains("File exists") => {}
            Err(error) => return Err(error),
        }
    }
    bail!("every subnet is in use")
}
