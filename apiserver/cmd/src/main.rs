//! `drydock-apiserver`: parses the command line and runs the command it names.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use drydock_apiserver::config::{self, CommandLine, ConfigError, ServeFlags, StorageCommand};
use drydock_apiserver::{server, storage_command, threads};
use drydock_standalone::StandaloneFlags;

/// Serves the engine's C++ too, since its symbols are the process's `malloc` and `free`.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Drydock's API server.
#[derive(Debug, Parser)]
#[command(name = "drydock-apiserver", version, about, disable_help_subcommand = true)]
struct Program {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve as an aggregated API server of a cluster.
    Serve(Box<ServeFlags>),
    /// Serve without a cluster, for a first look, demos and tests. Not for running a cluster.
    Standalone(Box<StandaloneFlags>),
    /// Work on a store while no server uses it: on its files, or on objects in etcd (export, import, rewrite, remove-damaged).
    #[command(subcommand)]
    Storage(StorageCommand),
}

impl CommandLine for Program {
    fn config_file(&self) -> Option<&Path> {
        match &self.command {
            Command::Serve(flags) => flags.config_file(),
            Command::Standalone(flags) => flags.config_file(),
            Command::Storage(_) => None,
        }
    }
}

fn main() -> ExitCode {
    match config::parse::<Program>(std::env::args_os().collect()) {
        Ok(program) => match run(program.command) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => fail(&format!("{error:#}")),
        },
        Err(ConfigError::Flags(error)) => error.exit(),
        Err(error) => fail(&error.to_string()),
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    rustls::crypto::aws_lc_rs::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("a second crypto provider was installed"))?;
    let runtime = threads::runtime().context("the runtime cannot be built")?;
    runtime.block_on(async {
        match command {
            Command::Serve(flags) => server::serve(flags.validated()?).await?,
            Command::Standalone(flags) => drydock_standalone::serve(flags.validated()?).await?,
            Command::Storage(command) => storage_command::run(command).await?,
        }
        Ok(())
    })
}

#[expect(
    clippy::print_stderr,
    reason = "the last word of a process that could not do its work"
)]
fn fail(text: &str) -> ExitCode {
    eprintln!("drydock-apiserver: {text}");
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn one_configuration_file_serves_every_command() {
        Program::command().debug_assert();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        std::fs::write(&path, "writeKubeconfig: a\nkubeconfig: b\nsecurePort: 6443\n").unwrap();
        let parse = |command: &str| {
            let arguments = ["drydock-apiserver", command, "--config"].map(Into::into);
            let arguments = arguments.into_iter().chain([path.clone().into()]);
            config::parse::<Program>(arguments.collect()).unwrap().command
        };
        let Command::Standalone(flags) = parse("standalone") else {
            panic!("another command");
        };
        let standalone = flags.validated().unwrap();
        assert_eq!(standalone.write_kubeconfig, Path::new("a"));
        assert_eq!(standalone.server.address.port(), 6443);
        assert!(matches!(parse("serve"), Command::Serve(_)));
    }
}
