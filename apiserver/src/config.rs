//! How is the server told what to do?
//!
//! Flags are named as the Go servers name them. Each can also be an environment variable (`DRYDOCK_` and the flag in
//! upper case) or a member of the file that `--config` names; a flag beats the environment, which beats the file, which
//! beats the default. Texts end here: what leaves is a validated [`ServeConfig`] or [`ServerConfig`].

mod file;
mod flags;

use std::{
    ffi::OsString,
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use clap::{Args, Parser, Subcommand};
use serde::Deserialize;

use self::flags::GoDuration;
pub use self::flags::{ServeFlags, ServerFlags, StorageFlags};
use crate::{filters::InFlightLimits, host::reviews::ReviewTtls, http::tls::MinTlsVersion};

/// Settings of `serve`.
#[derive(Clone, Debug, PartialEq)]
pub struct ServeConfig {
    /// How the host is reached.
    pub host: HostConfig,
    /// What replaces the host's authentication settings.
    pub authentication: AuthenticationOverrides,
    /// What `serve` and `standalone` share.
    pub server: ServerConfig,
}

/// How the host is reached; absent files mean the service account of the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostConfig {
    /// For namespaces, pods, nodes and events.
    pub kubeconfig: Option<PathBuf>,
    /// For token reviews and the authentication settings; else as `kubeconfig`.
    pub authentication_kubeconfig: Option<PathBuf>,
    /// For access reviews; else as `kubeconfig`.
    pub authorization_kubeconfig: Option<PathBuf>,
    /// Do not read the authentication settings from the host.
    pub skip_lookup: bool,
    /// Start though the authentication settings cannot be read.
    pub tolerate_lookup_failure: bool,
}

/// Authentication settings from flags instead of the host's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuthenticationOverrides {
    /// Authorities of users' certificates.
    pub client_ca_file: Option<PathBuf>,
    /// Settings of the front proxy, when its authority is given by a flag.
    pub request_header: Option<RequestHeaderOverrides>,
}

/// Settings of the front proxy from flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHeaderOverrides {
    /// Authorities of the front-proxy certificate.
    pub ca_file: PathBuf,
    /// Allowed common names; empty = any.
    pub allowed_names: Vec<String>,
    /// Headers with the user name.
    pub username_headers: Vec<String>,
    /// Headers with the uid; none unless asked for.
    pub uid_headers: Vec<String>,
    /// Headers with groups.
    pub group_headers: Vec<String>,
    /// Prefixes of headers with extras.
    pub extra_headers_prefixes: Vec<String>,
}

/// What every serving mode needs.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerConfig {
    /// Where to listen; port 0 lets the system choose.
    pub address: SocketAddr,
    /// Certificate and key files; absent only in standalone mode, which makes its own.
    pub certificate: Option<CertificateFiles>,
    /// The oldest TLS version.
    pub min_tls_version: MinTlsVersion,
    /// Paths that need no review.
    pub always_allow_paths: Vec<String>,
    /// Time between not being ready and closing the listener.
    pub shutdown_delay: Duration,
    /// Time of a request that is no watch.
    pub request_timeout: Duration,
    /// Requests being handled at a time.
    pub limits: InFlightLimits,
    /// How long answers of the host are kept.
    pub review_ttls: ReviewTtls,
    /// Requester and interceptor names under `k8s.io` that are allowed beside the built-in ones.
    pub allowed_reserved_names: Vec<String>,
    /// The store.
    pub storage: StorageConfig,
    /// The log.
    pub log: LogConfig,
    /// For tests: how often caches are compared with the store, ending the process when they differ.
    pub debug_cache_check_period: Option<Duration>,
}

/// A serving certificate on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// Certificate and intermediates, PEM.
    pub certificate: PathBuf,
    /// Private key, PEM.
    pub key: PathBuf,
}

/// Settings of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StorageConfig {
    /// Folder of the store.
    pub data_dir: PathBuf,
    /// When a write is on disk.
    pub durability: Durability,
    /// How long past revisions can be read and watched from.
    pub history_window: Duration,
    /// Bytes of all objects at which nothing larger is taken; 0 = no limit.
    pub object_bytes_limit: u64,
    /// Whether file systems are taken that cannot promise that a write is on disk.
    pub any_file_system: bool,
    /// Where a running server keeps incremental backups, if anywhere.
    pub incremental_backup_dir: Option<PathBuf>,
    /// How often a running server compares every value with its checksums; zero = never.
    pub check_interval: Duration,
}

/// When a write counts as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// After the disk confirmed it.
    Strict,
    /// At once; the disk is asked this often, and a crash of the machine loses at most that much.
    Relaxed(Duration),
}

/// Settings of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// Form of a line.
    pub format: LogFormat,
    /// Filter directives, such as `info` or `drydock_apiserver=debug,info`.
    pub level: String,
}

/// Form of a log line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// For machines.
    Json,
}

/// Work on the files of a store; the server must not run on them.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum StorageCommand {
    /// Bring a store that does not open back to its newest provable state.
    Recover {
        /// The store.
        #[command(flatten)]
        store: StorageFlags,
        /// Take what can be read though acknowledged writes are missing.
        #[arg(long)]
        accept_loss: bool,
    },
    /// Check every record and report what is wrong.
    Verify(StorageFlags),
    /// Remove an object whose stored value is damaged, as named by `verify`. Its watchers list anew; whatever depends
    /// on it is left to break.
    RemoveDamaged {
        /// The store.
        #[command(flatten)]
        store: StorageFlags,
        /// Key of the object: GROUP/RESOURCE/NAMESPACE/NAME.
        #[arg(value_name = "KEY")]
        key: String,
    },
    /// Copy a store into a new folder below a folder of backups.
    Backup {
        /// The store.
        #[command(flatten)]
        store: StorageFlags,
        /// Where to.
        #[command(flatten)]
        target: BackupTarget,
        /// How many of the newest backups to keep there; 0 keeps all.
        #[arg(long, default_value_t = 0, value_name = "COUNT")]
        keep: usize,
    },
    /// Put a backup in place of an absent or empty store.
    Restore {
        /// The store.
        #[command(flatten)]
        store: StorageFlags,
        /// Folder of the backup; of incremental ones the newest is taken, or the one whose manifest is named.
        #[arg(long, value_name = "PATH")]
        from: PathBuf,
    },
    /// Write every object into one file.
    Export {
        /// The store.
        #[command(flatten)]
        store: StorageFlags,
        /// File to write.
        #[arg(long, value_name = "FILE")]
        to: PathBuf,
    },
    /// Read objects written by `export` into an absent or empty store.
    Import {
        /// The store.
        #[command(flatten)]
        store: StorageFlags,
        /// File to read.
        #[arg(long, value_name = "FILE")]
        from: PathBuf,
    },
}

/// Where a backup goes.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[group(required = true, multiple = false)]
pub struct BackupTarget {
    /// Folder of backups, each whole; on the volume of the store they share its files.
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,
    /// Folder of incremental backups, on any volume: only what it lacks is copied.
    #[arg(long, value_name = "DIR")]
    pub incremental_to: Option<PathBuf>,
}

const DEFAULT_DATA_DIR: &str = "/var/lib/drydock";

/// Why the process does not start.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The command line; prints usage, help or version.
    #[error("{0}")]
    Flags(#[source] clap::Error),
    /// The configuration file cannot be read.
    #[error("cannot read the configuration file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The configuration file says something unknown or of the wrong kind.
    #[error("the configuration file {path} is wrong: {text}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong, on one line.
        text: String,
    },
    /// A value that cannot be.
    #[error("{setting}: {text}")]
    Value {
        /// The flag.
        setting: &'static str,
        /// What is wrong.
        text: String,
    },
}

impl FromStr for Durability {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text == "strict" => Ok(Self::Strict),
            Some(("relaxed", every)) => {
                let GoDuration(every) = every.parse()?;
                if every.is_zero() {
                    return Err("relaxed needs a duration above 0".to_owned());
                }
                Ok(Self::Relaxed(every))
            }
            _ => Err(format!("{text:?} is neither `strict` nor `relaxed=DURATION`")),
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Strict => f.write_str("strict"),
            Self::Relaxed(every) => write!(f, "relaxed={}ms", every.as_millis()),
        }
    }
}

/// A command line whose flags may also stand in a configuration file.
pub trait CommandLine: Parser {
    /// The file that `--config` names.
    fn config_file(&self) -> Option<&Path>;
}

/// Reads a command line, program name first, with what the environment and the configuration file add to it.
///
/// # Errors
/// [`ConfigError`], to be printed as it is.
pub fn parse<L: CommandLine>(mut arguments: Vec<OsString>) -> Result<L, ConfigError> {
    let matches = L::command()
        .try_get_matches_from(&arguments)
        .map_err(ConfigError::Flags)?;
    let line = L::from_arg_matches(&matches).map_err(ConfigError::Flags)?;
    let Some(path) = line.config_file() else {
        return Ok(line);
    };
    let given = matches.subcommand().map(|(_, matches)| matches);
    for (flag, value) in file::read(path)? {
        let defaulted = given.is_some_and(|matches| file::is_default(matches, flag));
        // The file is read as flags that only stand where nothing else was said.
        if defaulted {
            arguments.push(format!("--{flag}={value}").into());
        }
    }
    L::try_parse_from(arguments).map_err(ConfigError::Flags)
}

#[cfg(test)]
mod tests;
