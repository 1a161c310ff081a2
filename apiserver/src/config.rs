//! The configuration: command line, environment and file become validated settings.
//!
//! Flags are named as in the Go servers. Each flag can also be an environment variable (`DRYDOCK_` and the flag in upper
//! case) or a member of the file named by `--config`. A flag overrides the environment, which overrides the file, which
//! overrides the default. The program lists its commands; [`parse`] reads the command line of any program.

mod admission;
mod audit;
mod error;
mod etcd;
mod file;
mod flags;
mod settings;
mod storage;
mod values;

use std::{ffi::OsString, path::Path};

use clap::Parser;

pub use self::{
    error::ConfigError,
    flags::{ServeFlags, ServerFlags},
    settings::{
        CertificateFiles, EtcdConfig, EtcdFiles, LogConfig, LogFormat, ServeConfig, ServerConfig,
        StorageConfig,
    },
    storage::{BackupTarget, StorageCommand, StorageFlags},
    values::Durability,
};

/// A command line whose flags may also be set in a configuration file.
pub trait CommandLine: Parser {
    /// The file that `--config` names.
    fn config_file(&self) -> Option<&Path>;
}

/// Parses a command line, program name first, together with the environment and the configuration file.
///
/// # Errors
/// [`ConfigError`].
pub fn parse<L: CommandLine>(mut arguments: Vec<OsString>) -> Result<L, ConfigError> {
    let program = L::command();
    let matches = program
        .clone()
        .try_get_matches_from(&arguments)
        .map_err(ConfigError::Flags)?;
    let line = L::from_arg_matches(&matches).map_err(ConfigError::Flags)?;
    let Some(path) = line.config_file() else {
        return Ok(line);
    };
    let given = matches.subcommand().map(|(_, matches)| matches);
    for (flag, value) in file::read(path, &program)? {
        // The file sets only flags that are neither on the command line nor in the environment.
        if given.is_some_and(|matches| file::is_default(matches, &flag)) {
            arguments.push(format!("--{flag}={value}").into());
        }
    }
    L::try_parse_from(arguments).map_err(|error| file::invalid(path, &error))
}

#[cfg(test)]
mod tests;
