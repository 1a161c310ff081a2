//! The configuration: command line, environment and file become a validated [`Config`].
//!
//! Flags are named as in the Go servers. Each flag can also be an environment variable (`DRYDOCK_` and the flag in upper
//! case) or a member of the file named by `--config`. A flag overrides the environment, which overrides the file, which
//! overrides the default.

mod error;
mod file;
mod flags;
mod settings;
mod storage;
mod values;

use std::ffi::OsString;

use clap::{CommandFactory, FromArgMatches, Parser};

use self::flags::{Command, CommandLine};
pub use self::{
    error::ConfigError,
    settings::{
        CertificateFiles, LogConfig, LogFormat, ServeConfig, ServerConfig, StandaloneConfig, StorageConfig,
    },
    storage::{BackupTarget, StorageCommand, StorageFlags},
    values::Durability,
};

/// What the process does.
#[derive(Clone, Debug, PartialEq)]
pub enum Config {
    /// Serve as an aggregated API server.
    Serve(Box<ServeConfig>),
    /// Serve without a cluster, for a first look.
    Standalone(Box<StandaloneConfig>),
    /// Work on the files of a store.
    Storage(StorageCommand),
}

impl Config {
    /// Reads the process's command line, environment and configuration file.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn from_process() -> Result<Self, ConfigError> {
        Self::parse(std::env::args_os().collect())
    }

    /// Reads a command line, program name first.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn parse(arguments: Vec<OsString>) -> Result<Self, ConfigError> {
        let matches = CommandLine::command()
            .try_get_matches_from(&arguments)
            .map_err(ConfigError::Flags)?;
        let mut line = CommandLine::from_arg_matches(&matches).map_err(ConfigError::Flags)?;
        if let Some(path) = line.command.config_file() {
            let settings = file::read(path)?;
            let given = matches.subcommand().map(|(_, matches)| matches);
            let mut arguments = arguments;
            for (flag, value) in settings {
                let defaulted = given.is_some_and(|matches| file::is_default(matches, flag));
                // The file sets only flags that are neither on the command line nor in the environment.
                if defaulted {
                    arguments.push(format!("--{flag}={value}").into());
                }
            }
            line = CommandLine::try_parse_from(arguments).map_err(ConfigError::Flags)?;
        }
        match line.command {
            Command::Serve(flags) => Ok(Self::Serve(Box::new(flags.validated()?))),
            Command::Standalone(flags) => Ok(Self::Standalone(Box::new(flags.validated()?))),
            Command::Storage(command) => Ok(Self::Storage(command)),
        }
    }
}

#[cfg(test)]
mod tests;
