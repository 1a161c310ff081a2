//! Starts and ends a real control plane with Drydock in the background, for `make cluster` and `make cluster-down`.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use clap::{Parser, Subcommand};
use drydock_tests::cluster::{
    ControlPlane, DEFAULT_KUBERNETES_VERSION, Drydock, Lifetime, Options, balance, end_detached,
};

/// Starts and ends a real control plane with Drydock on this machine.
#[derive(Debug, Parser)]
#[command(name = "drydock-cluster")]
struct Arguments {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Starts a cluster in the background and prints its KUBECONFIG
    Up {
        /// The Kubernetes release
        #[arg(long, env = "DRYDOCK_KUBERNETES_VERSION", default_value = DEFAULT_KUBERNETES_VERSION)]
        kubernetes_version: String,
        /// The folder of its certificates, data and logs
        #[arg(long, default_value_os_t = default_folder())]
        dir: PathBuf,
        /// The number of nodes
        #[arg(long, default_value_t = 3)]
        nodes: usize,
        /// Start the control plane without Drydock
        #[arg(long)]
        no_drydock: bool,
        /// The number of servers that share the control plane's etcd; 0: one with a store of its own
        #[arg(long, default_value_t = 0)]
        etcd_servers: usize,
    },
    /// Forwards connections to several servers
    #[command(hide = true)]
    Balance {
        /// Where to listen
        #[arg(long)]
        listen: SocketAddr,
        /// The servers
        #[arg(long)]
        to: Vec<SocketAddr>,
        /// The cluster's folder, by which the process is found
        #[arg(long)]
        dir: PathBuf,
    },
    /// Ends a cluster and removes its folder
    Down {
        /// The cluster's folder
        #[arg(long, default_value_os_t = default_folder())]
        dir: PathBuf,
    },
}

/// `.run/cluster` in the repository, which git ignores.
fn default_folder() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).join(".run/cluster")
}

#[tokio::main]
async fn main() -> Result<()> {
    match Arguments::parse().command {
        Verb::Up {
            kubernetes_version,
            dir,
            nodes,
            no_drydock,
            etcd_servers,
        } => {
            ensure!(
                !dir.exists(),
                "{} exists: a cluster runs there already; end it with `drydock-cluster down --dir {}` first",
                dir.display(),
                dir.display()
            );
            let options = Options {
                kubernetes_version,
                folder: Some(dir.clone()),
                lifetime: Lifetime::Detached,
                etcd_servers,
                ..Options::default()
            };
            let started = up(options, nodes, !no_drydock).await;
            if started.is_err() {
                say(&format!(
                    "the cluster did not start; its logs are in {}",
                    dir.display()
                ))?;
                say("processes that did start are still running: end them with `drydock-cluster down`")?;
            }
            started
        }
        Verb::Balance { listen, to, dir: _ } => balance(listen, to).await,
        Verb::Down { dir } => {
            end_detached(&dir).await?;
            say("ended")
        }
    }
}

async fn up(options: Options, nodes: usize, with_drydock: bool) -> Result<()> {
    say(&format!("starting Kubernetes {}", options.kubernetes_version))?;
    let control_plane = ControlPlane::start(options).await?;
    for index in 1..=nodes {
        control_plane.add_node(&format!("node-{index}"), &[]).await?;
    }
    if with_drydock {
        say("starting drydock-apiserver and drydock-controller")?;
        Drydock::start(&control_plane).await?;
    }
    say(&format!(
        "kubectl of this release: {}",
        control_plane.binaries().command("kubectl").display()
    ))?;
    say(&format!("logs: {}", control_plane.folder().path().display()))?;
    // Standard output is for the shell: eval "$(drydock-cluster up)".
    writeln!(
        std::io::stdout(),
        "export KUBECONFIG={}",
        control_plane.admin_kubeconfig().display()
    )?;
    Ok(())
}

/// Progress and hints go to standard error.
fn say(message: &str) -> Result<()> {
    writeln!(std::io::stderr(), "drydock-cluster: {message}")?;
    Ok(())
}
