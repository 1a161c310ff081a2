//! Flags of `drydock-apiserver standalone` and the settings they become.

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

    /// The validated settings.
    ///
    /// # Errors
    /// [`ConfigError::Value`].
    pub fn validated(self) -> Result<StandaloneConfig, ConfigError> {
        Ok(StandaloneConfig {
            write_kubeconfig: self.write_kubeconfig,
            server: self.server.validated()?,
        })
    }
}
