//! How is the server told what to do?
//!
//! Flags are named as the Go servers name them. Each can also be an environment variable (`DRYDOCK_` and the flag in
//! upper case) or a member of the file that `--config` names; a flag beats the environment, which beats the file, which
//! beats the default. Texts end here: what leaves is a validated [`Config`].

use std::{
    ffi::OsString,
    fmt,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, parser::ValueSource};
use serde::Deserialize;

use crate::{
    filters::{DEFAULT_ALWAYS_ALLOW, InFlightLimits},
    host::reviews::ReviewTtls,
    http::tls::MinTlsVersion,
    request::duration::parse_go_duration,
};

/// What the process is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Config {
    /// Serve as an aggregated API server.
    Serve(Box<ServeConfig>),
    /// Serve everything alone, without a cluster, for a first look.
    Standalone(Box<StandaloneConfig>),
    /// Work on the files of a store.
    Storage(StorageCommand),
}

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

/// Settings of `standalone`.
#[derive(Clone, Debug, PartialEq)]
pub struct StandaloneConfig {
    /// Where the kubeconfig for clients is written.
    pub write_kubeconfig: PathBuf,
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
        store: StorageFolder,
        /// Take what can be read though acknowledged writes are missing.
        #[arg(long)]
        accept_loss: bool,
    },
    /// Check every record and report what is wrong.
    Verify(StorageFolder),
    /// Copy a store into a new folder below a folder of backups.
    Backup {
        /// The store.
        #[command(flatten)]
        store: StorageFolder,
        /// Folder of backups.
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
        /// How many of the newest backups to keep there; 0 keeps all.
        #[arg(long, default_value_t = 0, value_name = "COUNT")]
        keep: usize,
    },
    /// Put a backup in place of an absent or empty store.
    Restore {
        /// The store.
        #[command(flatten)]
        store: StorageFolder,
        /// Folder of the backup.
        #[arg(long, value_name = "DIR")]
        from: PathBuf,
    },
    /// Write every object into one file.
    Export {
        /// The store.
        #[command(flatten)]
        store: StorageFolder,
        /// File to write.
        #[arg(long, value_name = "FILE")]
        to: PathBuf,
    },
    /// Read objects written by `export` into an absent or empty store.
    Import {
        /// The store.
        #[command(flatten)]
        store: StorageFolder,
        /// File to read.
        #[arg(long, value_name = "FILE")]
        from: PathBuf,
    },
}

/// Which store a command works on.
#[derive(Clone, Debug, PartialEq, Eq, Args)]
pub struct StorageFolder {
    /// Folder of the store.
    #[arg(long, env = "DRYDOCK_DATA_DIR", default_value = DEFAULT_DATA_DIR, value_name = "DIR")]
    pub data_dir: PathBuf,
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

/// A Go duration (`1h30m`) that is not negative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct GoDuration(Duration);

impl FromStr for GoDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let nanoseconds = parse_go_duration(text).map_err(|error| error.to_string())?;
        let nanoseconds = u64::try_from(nanoseconds).map_err(|_| format!("{text} is negative"))?;
        Ok(Self(Duration::from_nanos(nanoseconds)))
    }
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

fn parse_tls_version(text: &str) -> Result<MinTlsVersion, String> {
    match text {
        "VersionTLS12" => Ok(MinTlsVersion::Tls12),
        "VersionTLS13" => Ok(MinTlsVersion::Tls13),
        _ => Err("must be VersionTLS12 or VersionTLS13".to_owned()),
    }
}

/// Drydock's API server.
#[derive(Debug, Parser)]
#[command(name = "drydock-apiserver", version, about, disable_help_subcommand = true)]
struct CommandLine {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve as an aggregated API server of a cluster.
    Serve(Box<ServeFlags>),
    /// Serve everything alone, without a cluster: a first look, demos and tests, never a way to run a cluster.
    Standalone(Box<StandaloneFlags>),
    /// Work on the files of a store that no server has open.
    #[command(subcommand)]
    Storage(StorageCommand),
}

#[derive(Debug, Args)]
struct ServeFlags {
    #[command(flatten)]
    host: HostFlags,
    #[command(flatten)]
    server: ServerFlags,
}

#[derive(Debug, Args)]
struct StandaloneFlags {
    /// File that the kubeconfig for clients is written to.
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

#[derive(Debug, Args)]
struct HostFlags {
    /// Kubeconfig for the host; without it the service account of the pod.
    #[arg(long, env = "DRYDOCK_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Kubeconfig for token reviews and the host's authentication settings.
    #[arg(long, env = "DRYDOCK_AUTHENTICATION_KUBECONFIG", value_name = "FILE")]
    authentication_kubeconfig: Option<PathBuf>,
    /// Kubeconfig for access reviews.
    #[arg(long, env = "DRYDOCK_AUTHORIZATION_KUBECONFIG", value_name = "FILE")]
    authorization_kubeconfig: Option<PathBuf>,
    /// Do not read authentication settings from the host.
    #[arg(long, env = "DRYDOCK_AUTHENTICATION_SKIP_LOOKUP", value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    authentication_skip_lookup: bool,
    /// Start though the host's authentication settings cannot be read.
    #[arg(long, env = "DRYDOCK_AUTHENTICATION_TOLERATE_LOOKUP_FAILURE", value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    authentication_tolerate_lookup_failure: bool,
    /// Authorities of users' client certificates, instead of the host's.
    #[arg(long, env = "DRYDOCK_CLIENT_CA_FILE", value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// Authorities of the front-proxy certificate, instead of the host's.
    #[arg(long, env = "DRYDOCK_REQUESTHEADER_CLIENT_CA_FILE", value_name = "FILE")]
    requestheader_client_ca_file: Option<PathBuf>,
    /// Common names the front-proxy certificate may have; none = any.
    #[arg(
        long,
        env = "DRYDOCK_REQUESTHEADER_ALLOWED_NAMES",
        value_delimiter = ',',
        value_name = "NAMES"
    )]
    requestheader_allowed_names: Vec<String>,
    /// Headers with the user name.
    #[arg(
        long,
        env = "DRYDOCK_REQUESTHEADER_USERNAME_HEADERS",
        value_delimiter = ',',
        default_value = "x-remote-user",
        value_name = "HEADERS"
    )]
    requestheader_username_headers: Vec<String>,
    /// Headers with the uid.
    #[arg(
        long,
        env = "DRYDOCK_REQUESTHEADER_UID_HEADERS",
        value_delimiter = ',',
        value_name = "HEADERS"
    )]
    requestheader_uid_headers: Vec<String>,
    /// Headers with groups.
    #[arg(
        long,
        env = "DRYDOCK_REQUESTHEADER_GROUP_HEADERS",
        value_delimiter = ',',
        default_value = "x-remote-group",
        value_name = "HEADERS"
    )]
    requestheader_group_headers: Vec<String>,
    /// Prefixes of headers with extras.
    #[arg(
        long,
        env = "DRYDOCK_REQUESTHEADER_EXTRA_HEADERS_PREFIX",
        value_delimiter = ',',
        default_value = "x-remote-extra-",
        value_name = "PREFIXES"
    )]
    requestheader_extra_headers_prefix: Vec<String>,
}

#[derive(Debug, Args)]
struct ServerFlags {
    /// YAML file with flags as members, in camelCase: `securePort: 6443`.
    #[arg(long, env = "DRYDOCK_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address to listen on.
    #[arg(long, env = "DRYDOCK_BIND_ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED), value_name = "IP")]
    bind_address: IpAddr,
    /// Port to listen on; 0 lets the system choose, and the choice is logged.
    #[arg(long, env = "DRYDOCK_SECURE_PORT", default_value_t = 443, value_name = "PORT")]
    secure_port: u16,
    /// Serving certificate with intermediates, PEM.
    #[arg(long, env = "DRYDOCK_TLS_CERT_FILE", value_name = "FILE")]
    tls_cert_file: Option<PathBuf>,
    /// Key of the serving certificate, PEM.
    #[arg(long, env = "DRYDOCK_TLS_PRIVATE_KEY_FILE", value_name = "FILE")]
    tls_private_key_file: Option<PathBuf>,
    /// The oldest TLS version: VersionTLS12 or VersionTLS13.
    #[arg(long, env = "DRYDOCK_TLS_MIN_VERSION", default_value = "VersionTLS12", value_parser = parse_tls_version, value_name = "VERSION")]
    tls_min_version: MinTlsVersion,
    /// Paths that need no authorization; a trailing * stands for every path with that start.
    #[arg(long, env = "DRYDOCK_AUTHORIZATION_ALWAYS_ALLOW_PATHS", value_delimiter = ',', default_values_t = DEFAULT_ALWAYS_ALLOW.map(str::to_owned), value_name = "PATHS")]
    authorization_always_allow_paths: Vec<String>,
    /// Folder of the store.
    #[arg(long, env = "DRYDOCK_DATA_DIR", default_value = DEFAULT_DATA_DIR, value_name = "DIR")]
    data_dir: PathBuf,
    /// `strict`: a write is answered when the disk has it. `relaxed=DURATION`: the disk is asked that often.
    #[arg(long, env = "DRYDOCK_STORAGE_DURABILITY", default_value_t = Durability::Strict, value_name = "MODE")]
    storage_durability: Durability,
    /// How long past revisions can be watched from.
    #[arg(
        long,
        env = "DRYDOCK_HISTORY_WINDOW",
        default_value = "5m",
        value_name = "DURATION"
    )]
    history_window: GoDuration,
    /// Time between failing readiness and closing the listener.
    #[arg(
        long,
        env = "DRYDOCK_SHUTDOWN_DELAY_DURATION",
        default_value = "5s",
        value_name = "DURATION"
    )]
    shutdown_delay_duration: GoDuration,
    /// Time of a request that is no watch.
    #[arg(
        long,
        env = "DRYDOCK_REQUEST_TIMEOUT",
        default_value = "1m",
        value_name = "DURATION"
    )]
    request_timeout: GoDuration,
    /// Reads handled at a time; 0 = no limit.
    #[arg(
        long,
        env = "DRYDOCK_MAX_REQUESTS_INFLIGHT",
        default_value_t = 400,
        value_name = "COUNT"
    )]
    max_requests_inflight: usize,
    /// Writes handled at a time; 0 = no limit.
    #[arg(
        long,
        env = "DRYDOCK_MAX_MUTATING_REQUESTS_INFLIGHT",
        default_value_t = 200,
        value_name = "COUNT"
    )]
    max_mutating_requests_inflight: usize,
    /// How long a good token is not reviewed again.
    #[arg(
        long,
        env = "DRYDOCK_AUTHENTICATION_TOKEN_WEBHOOK_CACHE_TTL",
        default_value = "10s",
        value_name = "DURATION"
    )]
    authentication_token_webhook_cache_ttl: GoDuration,
    /// How long an allowed access is not reviewed again.
    #[arg(
        long,
        env = "DRYDOCK_AUTHORIZATION_WEBHOOK_CACHE_AUTHORIZED_TTL",
        default_value = "10s",
        value_name = "DURATION"
    )]
    authorization_webhook_cache_authorized_ttl: GoDuration,
    /// How long a refused access is not reviewed again.
    #[arg(
        long,
        env = "DRYDOCK_AUTHORIZATION_WEBHOOK_CACHE_UNAUTHORIZED_TTL",
        default_value = "10s",
        value_name = "DURATION"
    )]
    authorization_webhook_cache_unauthorized_ttl: GoDuration,
    /// Names under k8s.io that requesters and interceptors may have beside the built-in ones.
    #[arg(
        long,
        env = "DRYDOCK_ALLOWED_RESERVED_NAMES",
        value_delimiter = ',',
        value_name = "NAMES"
    )]
    allowed_reserved_names: Vec<String>,
    /// Form of log lines.
    #[arg(long, env = "DRYDOCK_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    log_format: LogFormat,
    /// What is logged: a level, or directives such as `drydock_apiserver=debug,info`.
    #[arg(long, env = "DRYDOCK_LOG_LEVEL", default_value = "info", value_name = "LEVEL")]
    log_level: String,
}

/// The members of a configuration file: every flag, in camelCase.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct File {
    kubeconfig: Option<String>,
    authentication_kubeconfig: Option<String>,
    authorization_kubeconfig: Option<String>,
    authentication_skip_lookup: Option<bool>,
    authentication_tolerate_lookup_failure: Option<bool>,
    client_ca_file: Option<String>,
    requestheader_client_ca_file: Option<String>,
    requestheader_allowed_names: Option<Vec<String>>,
    requestheader_username_headers: Option<Vec<String>>,
    requestheader_uid_headers: Option<Vec<String>>,
    requestheader_group_headers: Option<Vec<String>>,
    requestheader_extra_headers_prefix: Option<Vec<String>>,
    write_kubeconfig: Option<String>,
    bind_address: Option<String>,
    secure_port: Option<u16>,
    tls_cert_file: Option<String>,
    tls_private_key_file: Option<String>,
    tls_min_version: Option<String>,
    authorization_always_allow_paths: Option<Vec<String>>,
    data_dir: Option<String>,
    storage_durability: Option<String>,
    history_window: Option<String>,
    shutdown_delay_duration: Option<String>,
    request_timeout: Option<String>,
    max_requests_inflight: Option<u32>,
    max_mutating_requests_inflight: Option<u32>,
    authentication_token_webhook_cache_ttl: Option<String>,
    authorization_webhook_cache_authorized_ttl: Option<String>,
    authorization_webhook_cache_unauthorized_ttl: Option<String>,
    allowed_reserved_names: Option<Vec<String>>,
    log_format: Option<LogFormat>,
    log_level: Option<String>,
}

/// A file's member as the flag it stands for, and the flag's value.
type Setting = (&'static str, String);

impl File {
    /// The settings of the file as flags.
    fn settings(self) -> Vec<Setting> {
        fn text<T: ToString>(flag: &'static str, value: Option<T>) -> Option<Setting> {
            value.map(|value| (flag, value.to_string()))
        }
        fn list(flag: &'static str, value: Option<Vec<String>>) -> Option<Setting> {
            value.map(|values| (flag, values.join(",")))
        }
        let format = self.log_format.map(|format| match format {
            LogFormat::Text => "text",
            LogFormat::Json => "json",
        });
        [
            text("kubeconfig", self.kubeconfig),
            text("authentication-kubeconfig", self.authentication_kubeconfig),
            text("authorization-kubeconfig", self.authorization_kubeconfig),
            text("authentication-skip-lookup", self.authentication_skip_lookup),
            text(
                "authentication-tolerate-lookup-failure",
                self.authentication_tolerate_lookup_failure,
            ),
            text("client-ca-file", self.client_ca_file),
            text("requestheader-client-ca-file", self.requestheader_client_ca_file),
            list("requestheader-allowed-names", self.requestheader_allowed_names),
            list(
                "requestheader-username-headers",
                self.requestheader_username_headers,
            ),
            list("requestheader-uid-headers", self.requestheader_uid_headers),
            list("requestheader-group-headers", self.requestheader_group_headers),
            list(
                "requestheader-extra-headers-prefix",
                self.requestheader_extra_headers_prefix,
            ),
            text("write-kubeconfig", self.write_kubeconfig),
            text("bind-address", self.bind_address),
            text("secure-port", self.secure_port),
            text("tls-cert-file", self.tls_cert_file),
            text("tls-private-key-file", self.tls_private_key_file),
            text("tls-min-version", self.tls_min_version),
            list(
                "authorization-always-allow-paths",
                self.authorization_always_allow_paths,
            ),
            text("data-dir", self.data_dir),
            text("storage-durability", self.storage_durability),
            text("history-window", self.history_window),
            text("shutdown-delay-duration", self.shutdown_delay_duration),
            text("request-timeout", self.request_timeout),
            text("max-requests-inflight", self.max_requests_inflight),
            text(
                "max-mutating-requests-inflight",
                self.max_mutating_requests_inflight,
            ),
            text(
                "authentication-token-webhook-cache-ttl",
                self.authentication_token_webhook_cache_ttl,
            ),
            text(
                "authorization-webhook-cache-authorized-ttl",
                self.authorization_webhook_cache_authorized_ttl,
            ),
            text(
                "authorization-webhook-cache-unauthorized-ttl",
                self.authorization_webhook_cache_unauthorized_ttl,
            ),
            list("allowed-reserved-names", self.allowed_reserved_names),
            text("log-format", format),
            text("log-level", self.log_level),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

impl Config {
    /// Reads the process's command line, environment and configuration file.
    ///
    /// # Errors
    /// [`ConfigError`], to be printed as it is.
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
            let settings = read_file(path)?;
            let given = matches.subcommand().map(|(_, matches)| matches);
            let mut arguments = arguments;
            for (flag, value) in settings {
                let defaulted = given.is_some_and(|matches| is_default(matches, flag));
                // The file is read as flags that only stand where nothing else was said.
                if defaulted {
                    arguments.push(format!("--{flag}={value}").into());
                }
            }
            line = CommandLine::try_parse_from(arguments).map_err(ConfigError::Flags)?;
        }
        line.command.validated()
    }
}

fn read_file(path: &Path) -> Result<Vec<Setting>, ConfigError> {
    let text = std::fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    let file: File = serde_saphyr::from_str(&text).map_err(|error| ConfigError::File {
        path: path.to_owned(),
        text: error.to_string().lines().next().unwrap_or_default().to_owned(),
    })?;
    Ok(file.settings())
}

/// Whether nobody gave the flag. One that the command does not know counts as given: the file may serve both commands.
fn is_default(matches: &clap::ArgMatches, flag: &str) -> bool {
    let id = flag.replace('-', "_");
    match matches.try_contains_id(&id) {
        Ok(_) => matches!(matches.value_source(&id), None | Some(ValueSource::DefaultValue)),
        Err(_) => false,
    }
}

impl Command {
    fn config_file(&self) -> Option<&Path> {
        match self {
            Self::Serve(flags) => flags.server.config.as_deref(),
            Self::Standalone(flags) => flags.server.config.as_deref(),
            Self::Storage(_) => None,
        }
    }

    fn validated(self) -> Result<Config, ConfigError> {
        match self {
            Self::Serve(flags) => {
                let server = flags.server.validated()?;
                if server.certificate.is_none() {
                    return Err(wrong(
                        "--tls-cert-file",
                        "and --tls-private-key-file are needed to serve",
                    ));
                }
                let (host, authentication) = flags.host.validated()?;
                Ok(Config::Serve(Box::new(ServeConfig {
                    host,
                    authentication,
                    server,
                })))
            }
            Self::Standalone(flags) => Ok(Config::Standalone(Box::new(StandaloneConfig {
                write_kubeconfig: flags.write_kubeconfig,
                server: flags.server.validated()?,
            }))),
            Self::Storage(command) => Ok(Config::Storage(command)),
        }
    }
}

fn wrong(setting: &'static str, text: impl Into<String>) -> ConfigError {
    ConfigError::Value {
        setting,
        text: text.into(),
    }
}

impl HostFlags {
    fn validated(self) -> Result<(HostConfig, AuthenticationOverrides), ConfigError> {
        for (setting, headers) in [
            (
                "--requestheader-username-headers",
                &self.requestheader_username_headers,
            ),
            ("--requestheader-uid-headers", &self.requestheader_uid_headers),
            ("--requestheader-group-headers", &self.requestheader_group_headers),
            (
                "--requestheader-extra-headers-prefix",
                &self.requestheader_extra_headers_prefix,
            ),
        ] {
            if let Some(bad) = headers
                .iter()
                .find(|name| http::HeaderName::from_str(name).is_err())
            {
                return Err(wrong(setting, format!("{bad:?} is no header name")));
            }
        }
        let request_header = self
            .requestheader_client_ca_file
            .map(|ca_file| RequestHeaderOverrides {
                ca_file,
                allowed_names: self.requestheader_allowed_names,
                username_headers: self.requestheader_username_headers,
                uid_headers: self.requestheader_uid_headers,
                group_headers: self.requestheader_group_headers,
                extra_headers_prefixes: self.requestheader_extra_headers_prefix,
            });
        let host = HostConfig {
            kubeconfig: self.kubeconfig,
            authentication_kubeconfig: self.authentication_kubeconfig,
            authorization_kubeconfig: self.authorization_kubeconfig,
            skip_lookup: self.authentication_skip_lookup,
            tolerate_lookup_failure: self.authentication_tolerate_lookup_failure,
        };
        Ok((
            host,
            AuthenticationOverrides {
                client_ca_file: self.client_ca_file,
                request_header,
            },
        ))
    }
}

impl ServerFlags {
    fn validated(self) -> Result<ServerConfig, ConfigError> {
        let certificate = match (self.tls_cert_file, self.tls_private_key_file) {
            (Some(certificate), Some(key)) => Some(CertificateFiles { certificate, key }),
            (None, None) => None,
            (Some(_), None) => {
                return Err(wrong("--tls-private-key-file", "is needed with --tls-cert-file"));
            }
            (None, Some(_)) => {
                return Err(wrong("--tls-cert-file", "is needed with --tls-private-key-file"));
            }
        };
        if self.request_timeout.0 < Duration::from_secs(1) {
            return Err(wrong("--request-timeout", "must be at least 1s"));
        }
        if self.history_window.0 < Duration::from_secs(1) {
            return Err(wrong("--history-window", "must be at least 1s"));
        }
        if let Some(bad) = self
            .authorization_always_allow_paths
            .iter()
            .find(|path| !path.starts_with('/'))
        {
            return Err(wrong(
                "--authorization-always-allow-paths",
                format!("{bad:?} does not start with /"),
            ));
        }
        if let Err(error) = tracing_subscriber::EnvFilter::try_new(&self.log_level) {
            return Err(wrong("--log-level", error.to_string()));
        }
        Ok(ServerConfig {
            address: SocketAddr::new(self.bind_address, self.secure_port),
            certificate,
            min_tls_version: self.tls_min_version,
            always_allow_paths: self.authorization_always_allow_paths,
            shutdown_delay: self.shutdown_delay_duration.0,
            request_timeout: self.request_timeout.0,
            limits: InFlightLimits {
                reading: self.max_requests_inflight,
                mutating: self.max_mutating_requests_inflight,
            },
            review_ttls: ReviewTtls {
                token: self.authentication_token_webhook_cache_ttl.0,
                authorized: self.authorization_webhook_cache_authorized_ttl.0,
                unauthorized: self.authorization_webhook_cache_unauthorized_ttl.0,
            },
            allowed_reserved_names: self.allowed_reserved_names,
            storage: StorageConfig {
                data_dir: self.data_dir,
                durability: self.storage_durability,
                history_window: self.history_window.0,
            },
            log: LogConfig {
                format: self.log_format,
                level: self.log_level,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(arguments: &[&str]) -> Result<Config, ConfigError> {
        Config::parse(
            std::iter::once("drydock-apiserver")
                .chain(arguments.iter().copied())
                .map(OsString::from)
                .collect(),
        )
    }

    const PAIR: [&str; 3] = ["serve", "--tls-cert-file=c", "--tls-private-key-file=k"];

    fn serve(flags: &[&str]) -> Result<ServeConfig, ConfigError> {
        match parse(&[&PAIR, flags].concat())? {
            Config::Serve(config) => Ok(*config),
            other => panic!("{other:?}"),
        }
    }

    fn fault(flags: &[&str]) -> String {
        serve(flags).unwrap_err().to_string()
    }

    fn clap_exit(error: ConfigError) -> i32 {
        match error {
            ConfigError::Flags(error) => error.exit_code(),
            other => panic!("{other}"),
        }
    }

    #[test]
    fn defaults_are_those_of_the_go_servers() {
        let config = serve(&[]).unwrap();
        assert_eq!(config.server.address, SocketAddr::from(([0, 0, 0, 0], 443)));
        assert_eq!(
            config.server.limits,
            InFlightLimits {
                reading: 400,
                mutating: 200
            }
        );
        assert_eq!(config.server.request_timeout, Duration::from_secs(60));
        assert_eq!(config.server.review_ttls, ReviewTtls::default());
        assert_eq!(
            config.server.always_allow_paths,
            ["/healthz", "/readyz", "/livez"]
        );
        assert_eq!(config.server.storage.durability, Durability::Strict);
        assert_eq!(config.authentication, AuthenticationOverrides::default());
        assert!(!config.host.skip_lookup);
    }

    #[test]
    fn flags_become_typed() {
        let config = serve(&[
            "--bind-address=127.0.0.1",
            "--secure-port=0",
            "--requestheader-client-ca-file=ca",
            "--requestheader-allowed-names=a,b",
            "--storage-durability=relaxed=50ms",
            "--shutdown-delay-duration=1m10s",
            "--authentication-skip-lookup",
            "--log-format=json",
        ])
        .unwrap();
        assert_eq!(config.server.address, SocketAddr::from(([127, 0, 0, 1], 0)));
        let front_proxy = config.authentication.request_header.unwrap();
        assert_eq!(front_proxy.allowed_names, ["a", "b"]);
        assert_eq!(front_proxy.username_headers, ["x-remote-user"]);
        assert_eq!(front_proxy.uid_headers, [""; 0]);
        assert_eq!(
            config.server.storage.durability,
            Durability::Relaxed(Duration::from_millis(50))
        );
        assert_eq!(config.server.shutdown_delay, Duration::from_secs(70));
        assert!(config.host.skip_lookup);
        assert_eq!(config.server.log.format, LogFormat::Json);
    }

    #[test]
    fn wrong_values_are_one_clear_line() {
        for (flags, text) in [
            (
                &["--request-timeout=0s"][..],
                "--request-timeout: must be at least 1s",
            ),
            (
                &["--authorization-always-allow-paths=x"],
                "--authorization-always-allow-paths: \"x\" does not start with /",
            ),
            (
                &["--requestheader-uid-headers=a b"],
                "--requestheader-uid-headers: \"a b\" is no header name",
            ),
        ] {
            assert_eq!(fault(flags), text);
        }
        for flags in [
            "--secure-port=70000",
            "--shutdown-delay-duration=soon",
            "--storage-durability=lax",
            "--nope",
        ] {
            assert_eq!(clap_exit(serve(&[flags]).unwrap_err()), 2, "{flags}");
        }
        let lonely = parse(&["serve", "--tls-cert-file=c"]).unwrap_err().to_string();
        assert_eq!(lonely, "--tls-private-key-file: is needed with --tls-cert-file");
        assert!(
            parse(&["serve"])
                .unwrap_err()
                .to_string()
                .contains("are needed to serve")
        );
        assert_eq!(clap_exit(parse(&["--help"]).unwrap_err()), 0);
    }

    fn with_file(text: &str, flags: &[&str]) -> Result<ServeConfig, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        std::fs::write(&path, text).unwrap();
        serve(&[&[format!("--config={}", path.display()).as_str()], flags].concat())
    }

    #[test]
    fn flags_beat_the_file_and_the_file_beats_defaults() {
        let text = "securePort: 6443\nrequestTimeout: 30s\nallowedReservedNames: [a.k8s.io, b.k8s.io]\nauthenticationSkipLookup: true\nwriteKubeconfig: ignored-by-serve\n";
        let config = with_file(text, &["--request-timeout=20s"]).unwrap();
        assert_eq!(config.server.address.port(), 6443);
        assert_eq!(config.server.request_timeout, Duration::from_secs(20));
        assert_eq!(config.server.allowed_reserved_names, ["a.k8s.io", "b.k8s.io"]);
        assert!(config.host.skip_lookup);
    }

    #[test]
    fn unknown_members_of_the_file_are_refused() {
        let error = with_file("securPort: 1\n", &[]).unwrap_err();
        assert!(matches!(error, ConfigError::File { .. }));
        assert!(error.to_string().contains("securPort"), "{error}");
        assert!(matches!(
            with_file("securePort: many\n", &[]),
            Err(ConfigError::File { .. })
        ));
        let absent = serve(&["--config=/nowhere/at/all"]).unwrap_err();
        assert!(matches!(absent, ConfigError::Read { .. }));
    }

    #[test]
    fn storage_commands_parse() {
        let config = parse(&["storage", "backup", "--data-dir=/d", "--to=/b"]).unwrap();
        let store = StorageFolder {
            data_dir: "/d".into(),
        };
        assert_eq!(
            config,
            Config::Storage(StorageCommand::Backup {
                store,
                to: "/b".into(),
                keep: 0
            })
        );
        assert!(parse(&["storage"]).is_err());
    }

    #[test]
    fn every_flag_has_an_environment_variable_and_a_member_in_the_file() {
        let command = CommandLine::command();
        let serve = command.find_subcommand("serve").unwrap();
        let known = File::deserialize(serde_json::json!({})).is_ok();
        assert!(known);
        for argument in serve
            .get_arguments()
            .filter(|argument| argument.get_long() != Some("help"))
        {
            let flag = argument.get_long().unwrap();
            let variable = format!("DRYDOCK_{}", flag.replace('-', "_").to_uppercase());
            assert_eq!(argument.get_env().unwrap().to_str(), Some(variable.as_str()));
            if flag == "config" {
                continue;
            }
            let mut member = String::new();
            for (index, word) in flag.split('-').enumerate() {
                let (first, rest) = word.split_at(1);
                member.push_str(&if index == 0 {
                    first.to_owned()
                } else {
                    first.to_uppercase()
                });
                member.push_str(rest);
            }
            let refused = File::deserialize(serde_json::json!({ member.clone(): {} })).unwrap_err();
            assert!(
                !refused.to_string().contains("unknown field"),
                "{member}: {refused}"
            );
        }
    }
}
