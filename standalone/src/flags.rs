//! Flags of `drydock-apiserver standalone` and the settings they become.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use clap::Args;
use drydock_apiserver::config::{ConfigError, ServerConfig, ServerFlags};

/// Flags of `standalone`.
#[derive(Debug, Args)]
pub struct StandaloneFlags {
    /// File to write the kubeconfig for clients to.
    #[arg(
        long,
        env = "DRYDOCK_WRITE_KUBECONFIG",
        default_value = "drydock.kubeconfig",
        value_name = "FILE"
    )]
    write_kubeconfig: PathBuf,
    /// Listen on an address that other machines can reach. Whoever has the kubeconfig may do everything there.
    #[arg(
        long,
        env = "DRYDOCK_INSECURE_ALLOW_REMOTE",
        default_value_t = false,
        num_args = 0..=1,
        default_missing_value = "true",
        require_equals = true,
        value_name = "BOOL",
        action = clap::ArgAction::Set
    )]
    insecure_allow_remote: bool,
    #[command(flatten)]
    server: ServerFlags,
}

/// Settings of `standalone`.
#[derive(Clone, Debug, PartialEq)]
pub struct StandaloneConfig {
    /// Where the kubeconfig for clients is written.
    pub write_kubeconfig: PathBuf,
    /// Settings common to `serve` and `standalone`.
    pub server: ServerConfig,
}

impl StandaloneFlags {
    /// The path of the configuration file, if any.
    #[must_use]
    pub fn config_file(&self) -> Option<&Path> {
        self.server.config_file()
    }

    /// The validated settings. Without an address the server listens on loopback.
    ///
    /// # Errors
    /// [`ConfigError::Value`], also for an address that other machines can reach, unless a flag allows it.
    pub fn validated(self) -> Result<StandaloneConfig, ConfigError> {
        let mut server = self.server.validated()?;
        let ip = server.address.ip();
        if ip.is_unspecified() && !self.insecure_allow_remote {
            server.address.set_ip(Ipv4Addr::LOCALHOST.into());
        } else if !ip.is_loopback() && !self.insecure_allow_remote {
            return Err(ConfigError::value(
                "--bind-address",
                "standalone mode listens on loopback only, unless --insecure-allow-remote says otherwise",
            ));
        }
        Ok(StandaloneConfig {
            write_kubeconfig: self.write_kubeconfig,
            server,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Program {
        #[command(flatten)]
        flags: StandaloneFlags,
    }

    fn address(arguments: &[&str]) -> Result<String, ConfigError> {
        let arguments = std::iter::once("standalone").chain(arguments.iter().copied());
        let program = Program::try_parse_from(arguments).unwrap();
        Ok(program.flags.validated()?.server.address.ip().to_string())
    }

    #[test]
    fn only_a_flag_that_says_so_makes_it_reachable_from_elsewhere() {
        let insecure = "--insecure-allow-remote";
        for (arguments, expected) in [
            (&[][..], "127.0.0.1"),
            (&["--bind-address=0.0.0.0"], "127.0.0.1"),
            (&["--bind-address=::1"], "::1"),
            (&[insecure], "0.0.0.0"),
            (&[insecure, "--bind-address=192.0.2.1"], "192.0.2.1"),
        ] {
            assert_eq!(address(arguments).unwrap(), expected, "{arguments:?}");
        }
        for arguments in [&["--bind-address=192.0.2.1"][..], &["--bind-address=2001:db8::1"]] {
            let error = address(arguments).unwrap_err().to_string();
            assert!(error.contains("--insecure-allow-remote"), "{error}");
        }
    }
}
