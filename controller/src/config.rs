//! The configuration of the process, parsed and validated into a typed [`Config`].
//!
//! Every flag can also be set by an environment variable (`DRYDOCK_` and the flag in upper case) or by a member of the
//! YAML file that `--config` names. A flag overrides the environment, which overrides the file, which overrides the
//! default.

mod neighbours;
mod tls;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{ArgAction, Parser, ValueEnum};
use drydock_machinery::field_error::FieldPath;
use drydock_machinery::names::AllowedNames;

pub use self::neighbours::BridgeConfig;
use self::neighbours::NeighbourFlags;
pub use self::tls::{CertificateFiles, TlsFiles};
use crate::access::DEFAULT_OPEN_PATHS;
use crate::descheduling::annotations::Annotated;
use crate::descheduling::nominations;
use crate::leader::ElectionTiming;
use crate::nodemaintenance::model::StaticPods;
use crate::request_labels::RequestLabels;

/// The validated configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The kubeconfig of the host cluster; `None` uses the pod's service account.
    pub kubeconfig: Option<PathBuf>,
    /// The kubeconfig of drydock-apiserver; `None` reaches it through the host cluster.
    pub apiserver_kubeconfig: Option<PathBuf>,
    /// Leader election; `None` acts without a Lease.
    pub election: Option<ElectionConfig>,
    /// The address of health and metrics.
    pub address: SocketAddr,
    /// The paths that anybody may read; others need a token of a user who may get them.
    pub open_paths: Vec<String>,
    /// The certificates of the secure port.
    pub tls: TlsFiles,
    /// Logging.
    pub log: LogConfig,
    /// How long finished requests without a TTL of their own are kept; zero keeps them.
    pub default_ttl: Duration,
    /// Whether static pods count against `Drained`.
    pub static_pods: StaticPods,
    /// How long the watch of a kind may fail before the leader gives up the Lease.
    pub watch_failure_deadline: Duration,
    /// Which reserved names interceptors may have.
    pub allowed_names: AllowedNames,
    /// Which labels requests have from their pods.
    pub labels: RequestLabels,
    /// The eviction bridge; `None` if it is not served.
    pub bridge: Option<BridgeConfig>,
    /// Which pods get the annotations of the descheduler.
    pub descheduler_annotations: Annotated,
    /// What requests nominated pods; `None` if it is not served.
    pub descheduling: Option<nominations::Options>,
}

/// Leader election.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElectionConfig {
    /// The namespace of the Lease.
    pub namespace: String,
    /// The durations of the election.
    pub timing: ElectionTiming,
}

/// Logging.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// The format.
    pub format: LogFormat,
    /// The level, or directives per module.
    pub level: String,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Plain text.
    Text,
    /// One JSON object a line.
    Json,
}

/// Why the configuration was rejected. Each message is one line.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The command line is invalid, or requests help.
    #[error("{0}")]
    Arguments(#[source] clap::Error),
    /// The file cannot be read.
    #[error("cannot read the configuration file {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not a mapping of flags to values.
    #[error("the configuration file {path} is not a mapping of flags to values: {message}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        message: String,
    },
    /// The value of a flag is invalid.
    #[error("--{flag}: {message}")]
    Value {
        /// The flag.
        flag: &'static str,
        /// Why.
        message: String,
    },
}

/// A duration in Go's format: `15s`, `24h`, `1h30m`, `0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct GoDuration(Duration);

impl FromStr for GoDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "0" {
            return Ok(Self(Duration::ZERO));
        }
        let parsed: jiff::SignedDuration = text
            .parse()
            .map_err(|_| format!("{text:?} is not a duration such as 15s or 1h30m"))?;
        let duration = Duration::try_from(parsed).map_err(|_| "a duration cannot be negative".to_owned())?;
        Ok(Self(duration))
    }
}

/// Carries out EvictionRequests and NodeMaintenances.
#[derive(Debug, Parser)]
#[command(name = "drydock-controller", version, args_override_self = true)]
struct Flags {
    /// The kubeconfig of the cluster; the pod's service account is used when absent.
    #[arg(long, env = "DRYDOCK_KUBECONFIG", value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The kubeconfig of drydock-apiserver itself; it is reached through the cluster when absent.
    #[arg(long, env = "DRYDOCK_APISERVER_KUBECONFIG", value_name = "FILE")]
    apiserver_kubeconfig: Option<PathBuf>,
    /// Act only while holding a Lease, so that several replicas can run.
    #[arg(long, env = "DRYDOCK_LEADER_ELECT", default_value_t = true, action = ArgAction::Set, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    leader_elect: bool,
    /// The namespace of the Lease.
    #[arg(
        long,
        env = "DRYDOCK_LEADER_ELECT_RESOURCE_NAMESPACE",
        default_value = "drydock-system",
        value_name = "NAMESPACE"
    )]
    leader_elect_resource_namespace: String,
    /// How long other replicas wait without a renewal before they acquire the Lease.
    #[arg(
        long,
        env = "DRYDOCK_LEADER_ELECT_LEASE_DURATION",
        default_value = "15s",
        value_name = "DURATION"
    )]
    leader_elect_lease_duration: GoDuration,
    /// How long the leader acts without a renewal.
    #[arg(
        long,
        env = "DRYDOCK_LEADER_ELECT_RENEW_DEADLINE",
        default_value = "10s",
        value_name = "DURATION"
    )]
    leader_elect_renew_deadline: GoDuration,
    /// The interval between attempts to acquire or renew the Lease.
    #[arg(
        long,
        env = "DRYDOCK_LEADER_ELECT_RETRY_PERIOD",
        default_value = "2s",
        value_name = "DURATION"
    )]
    leader_elect_retry_period: GoDuration,
    /// How long the watch of a kind may fail before the leader gives up the Lease and the process ends.
    #[arg(
        long,
        env = "DRYDOCK_WATCH_FAILURE_DEADLINE",
        default_value = "2m",
        value_name = "DURATION"
    )]
    watch_failure_deadline: GoDuration,
    /// The address health and metrics are served on, over HTTPS.
    #[arg(long, env = "DRYDOCK_BIND_ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED), value_name = "IP")]
    bind_address: IpAddr,
    /// The port health and metrics are served on; 0 chooses a free port.
    #[arg(
        long,
        env = "DRYDOCK_SECURE_PORT",
        default_value_t = 10258,
        value_name = "PORT"
    )]
    secure_port: u16,
    /// Paths that anybody may read, separated by commas. Others need a bearer token of a user who may get them.
    #[arg(
        long,
        env = "DRYDOCK_AUTHORIZATION_ALWAYS_ALLOW_PATHS",
        default_value = DEFAULT_OPEN_PATHS,
        value_delimiter = ',',
        value_name = "PATHS"
    )]
    authorization_always_allow_paths: Vec<String>,
    /// The serving certificate of the secure port, read again when it changes; a self-signed one is created when absent.
    #[arg(long, env = "DRYDOCK_TLS_CERT_FILE", value_name = "FILE")]
    tls_cert_file: Option<PathBuf>,
    /// The key of the certificate.
    #[arg(long, env = "DRYDOCK_TLS_PRIVATE_KEY_FILE", value_name = "FILE")]
    tls_private_key_file: Option<PathBuf>,
    /// The format of log lines.
    #[arg(long, env = "DRYDOCK_LOG_FORMAT", value_enum, default_value = "text")]
    log_format: LogFormat,
    /// Which log lines are written: error, warn, info, debug, trace, or directives per module.
    #[arg(long, env = "DRYDOCK_LOG_LEVEL", default_value = "info", value_name = "LEVEL")]
    log_level: String,
    /// How long finished eviction requests without ttlSecondsAfterFinished are kept; 0 keeps them.
    #[arg(
        long,
        env = "DRYDOCK_DEFAULT_TTL_AFTER_FINISHED",
        default_value = "24h",
        value_name = "DURATION"
    )]
    default_ttl_after_finished: GoDuration,
    /// Whether static pods count against the Drained condition.
    #[arg(long, env = "DRYDOCK_STATIC_PODS", value_enum, default_value = "reported")]
    static_pods: StaticPods,
    /// Names under k8s.io and kubernetes.io that interceptors may have in addition to the built-in ones, separated by commas.
    #[arg(
        long,
        env = "DRYDOCK_ALLOWED_RESERVED_NAMES",
        value_delimiter = ',',
        value_name = "NAMES"
    )]
    allowed_reserved_names: Vec<String>,
    /// Prefixes of pod labels that eviction requests do not get, in addition to the tracking labels of Argo CD, Flux and kapp, separated by commas.
    #[arg(
        long,
        env = "DRYDOCK_EXCLUDED_LABEL_PREFIXES",
        value_delimiter = ',',
        value_name = "PREFIXES"
    )]
    excluded_label_prefixes: Vec<String>,
    #[command(flatten)]
    neighbours: NeighbourFlags,
    /// A YAML file of flags and their values.
    #[arg(long, env = "DRYDOCK_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Config {
    /// The configuration from the command line, the environment and the file they name.
    ///
    /// # Errors
    ///
    /// [`ConfigError`]; for `--help` and `--version`, the text to print.
    pub fn from_process() -> Result<Self, ConfigError> {
        Self::from_arguments(std::env::args_os().collect(), |name| std::env::var_os(name))
    }

    fn from_arguments(
        arguments: Vec<OsString>,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, ConfigError> {
        let mut all: Vec<OsString> = arguments.iter().take(1).cloned().collect();
        if let Some(path) = config_file(&arguments, &environment) {
            all.extend(from_file(path, &environment)?);
        }
        // The last value of a flag overrides earlier ones: the command line comes after the file.
        all.extend(arguments.into_iter().skip(1));
        Flags::try_parse_from(all)
            .map_err(ConfigError::Arguments)?
            .validate()
    }
}

/// The file named by `--config`, found before the command line is parsed.
fn config_file(arguments: &[OsString], environment: &impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let mut path = environment("DRYDOCK_CONFIG");
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            Some("--config") => path = arguments.next().cloned(),
            Some(text) => {
                if let Some(value) = text.strip_prefix("--config=") {
                    path = Some(value.into());
                }
            }
            None => {}
        }
    }
    path.map(PathBuf::from)
}

/// The members of the file as arguments, except those that the environment sets.
fn from_file(
    path: PathBuf,
    environment: &impl Fn(&str) -> Option<OsString>,
) -> Result<Vec<OsString>, ConfigError> {
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(source) => return Err(ConfigError::Read { path, source }),
    };
    let members: BTreeMap<String, serde_json::Value> = match serde_saphyr::from_str(&text) {
        Ok(members) => members,
        Err(error) => {
            let message = error.to_string();
            return Err(ConfigError::File { path, message });
        }
    };
    let mut arguments = Vec::new();
    for (flag, value) in members {
        let variable = format!("DRYDOCK_{}", flag.replace('-', "_").to_uppercase());
        if environment(&variable).is_some() {
            continue;
        }
        let value = match value {
            serde_json::Value::String(text) => text,
            serde_json::Value::Array(items) => {
                let items: Vec<_> = items
                    .iter()
                    .map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned))
                    .collect();
                items.join(",")
            }
            value @ (serde_json::Value::Bool(_) | serde_json::Value::Number(_)) => value.to_string(),
            value => {
                let message = format!("{flag} cannot be {value}");
                return Err(ConfigError::File { path, message });
            }
        };
        arguments.push(format!("--{flag}={value}").into());
    }
    Ok(arguments)
}

impl Flags {
    fn validate(self) -> Result<Config, ConfigError> {
        let timing = ElectionTiming {
            lease_duration: self.leader_elect_lease_duration.0,
            renew_deadline: self.leader_elect_renew_deadline.0,
            retry_period: self.leader_elect_retry_period.0,
        };
        check_timing(timing)?;
        if self.watch_failure_deadline.0.is_zero() {
            return Err(invalid("watch-failure-deadline", "must be longer than 0"));
        }
        let certificate = match (self.tls_cert_file, self.tls_private_key_file) {
            (Some(certificate), Some(key)) => Some(CertificateFiles { certificate, key }),
            (None, None) => None,
            _ => {
                return Err(invalid(
                    "tls-cert-file",
                    "goes together with --tls-private-key-file",
                ));
            }
        };
        let neighbours = self.neighbours.validate()?;
        let path = FieldPath::new("name");
        let mut allowed_names = AllowedNames::default();
        for name in &self.allowed_reserved_names {
            let mut trial = AllowedNames::default();
            trial.extend([name.clone()]);
            let errors = trial.validate(&path, name);
            if !errors.is_empty() {
                return Err(invalid("allowed-reserved-names", errors.to_string()));
            }
        }
        allowed_names.extend(self.allowed_reserved_names);
        if self.excluded_label_prefixes.iter().any(String::is_empty) {
            return Err(invalid("excluded-label-prefixes", "a prefix is empty"));
        }
        Ok(Config {
            kubeconfig: self.kubeconfig,
            apiserver_kubeconfig: self.apiserver_kubeconfig,
            election: self.leader_elect.then_some(ElectionConfig {
                namespace: self.leader_elect_resource_namespace,
                timing,
            }),
            address: SocketAddr::new(self.bind_address, self.secure_port),
            open_paths: self.authorization_always_allow_paths,
            tls: TlsFiles {
                serving: certificate,
                client_authority: neighbours.client_authority,
            },
            log: LogConfig {
                format: self.log_format,
                level: self.log_level,
            },
            default_ttl: self.default_ttl_after_finished.0,
            static_pods: self.static_pods,
            watch_failure_deadline: self.watch_failure_deadline.0,
            allowed_names,
            labels: RequestLabels::excluding(self.excluded_label_prefixes),
            bridge: neighbours.bridge,
            descheduler_annotations: neighbours.descheduler_annotations,
            descheduling: neighbours.descheduling,
        })
    }
}

fn check_timing(timing: ElectionTiming) -> Result<(), ConfigError> {
    if timing.retry_period.is_zero() {
        return Err(invalid("leader-elect-retry-period", "must be longer than 0"));
    }
    if timing.renew_deadline <= timing.retry_period.mul_f64(1.2) {
        return Err(invalid(
            "leader-elect-renew-deadline",
            "must be longer than 1.2 times the retry period",
        ));
    }
    // A Lease counts whole seconds.
    if Duration::from_secs(timing.lease_duration.as_secs()) <= timing.renew_deadline {
        return Err(invalid(
            "leader-elect-lease-duration",
            "must be longer than the renew deadline, in whole seconds",
        ));
    }
    if timing.lease_duration.as_secs() < 1 {
        return Err(invalid("leader-elect-lease-duration", "must be at least 1s"));
    }
    Ok(())
}

fn invalid(flag: &'static str, message: impl Into<String>) -> ConfigError {
    ConfigError::Value {
        flag,
        message: message.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn parse(arguments: &[&str], environment: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let arguments = std::iter::once("drydock-controller").chain(arguments.iter().copied());
        Config::from_arguments(arguments.map(OsString::from).collect(), |name| {
            environment
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| OsString::from(value))
        })
    }

    #[test]
    fn defaults_are_valid() {
        let config = parse(&[], &[]).unwrap();
        assert_eq!(config.default_ttl, Duration::from_hours(24));
        assert_eq!(config.static_pods, StaticPods::Reported);
        let election = config.election.unwrap();
        assert_eq!(election.namespace, "drydock-system");
        assert_eq!(election.timing.lease_duration, Duration::from_secs(15));
        assert_eq!(config.address.port(), 10258);
    }

    #[test]
    fn flags_are_parsed() {
        let config = parse(
            &[
                "--leader-elect=false",
                "--secure-port=0",
                "--bind-address=127.0.0.1",
                "--default-ttl-after-finished=0",
                "--static-pods=required",
                "--log-format=json",
                "--allowed-reserved-names=mine.k8s.io,yours.kubernetes.io",
            ],
            &[],
        )
        .unwrap();
        assert!(config.election.is_none() && config.default_ttl.is_zero());
        assert_eq!(config.address, "127.0.0.1:0".parse().unwrap());
        assert_eq!(config.static_pods, StaticPods::Required);
        assert_eq!(
            (config.bridge, config.descheduler_annotations),
            (None, Annotated::None)
        );
        let bridge = parse(
            &["--eviction-bridge", "--eviction-bridge-client-ca-file=ca.pem"],
            &[],
        )
        .unwrap();
        assert_eq!(bridge.tls.client_authority, Some(PathBuf::from("ca.pem")));
        assert_eq!(bridge.descheduler_annotations, Annotated::Requested);
        let bridge = bridge.bridge.unwrap();
        assert_eq!(
            (bridge.clients, bridge.lifetime),
            (Some(Vec::new()), Duration::from_mins(15))
        );
        assert!(
            config
                .allowed_names
                .validate(&FieldPath::new("name"), "mine.k8s.io")
                .is_empty()
        );
    }

    #[test]
    fn flags_override_the_environment_which_overrides_the_file() {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(
            b"secure-port: 1111\nleader-elect: false\nlog-level: debug\ndefault-ttl-after-finished: 1h30m\nallowed-reserved-names: [a.k8s.io, b.k8s.io]\n",
        )
        .unwrap();
        let path = file.path().to_str().unwrap();
        let config = parse(&["--config", path, "--log-level=trace"], &[]).unwrap();
        assert_eq!(
            (config.address.port(), config.log.level.as_str()),
            (1111, "trace")
        );
        assert_eq!(config.default_ttl, Duration::from_mins(90));
        assert!(config.election.is_none());
        // clap reads the process environment, which this test does not set; the variable only hides the file's value.
        let config = parse(&[], &[("DRYDOCK_CONFIG", path), ("DRYDOCK_SECURE_PORT", "2222")]).unwrap();
        assert_eq!(config.address.port(), 10258);
        assert_eq!(config.log.level, "debug");
    }

    #[test]
    fn invalid_values_are_reported_with_their_flag() {
        for (arguments, expected) in [
            (
                &["--leader-elect-renew-deadline=20s"][..],
                "--leader-elect-lease-duration: must be longer",
            ),
            (
                &[
                    "--leader-elect-lease-duration=10.9s",
                    "--leader-elect-renew-deadline=10.5s",
                ],
                "--leader-elect-lease-duration: must be longer",
            ),
            (
                &["--leader-elect-retry-period=9s"],
                "--leader-elect-renew-deadline: must be longer",
            ),
            (
                &["--leader-elect-retry-period=0"],
                "--leader-elect-retry-period: must be longer than 0",
            ),
            (
                &["--watch-failure-deadline=0"],
                "--watch-failure-deadline: must be longer than 0",
            ),
            (&["--tls-cert-file=a.pem"], "--tls-cert-file: goes together"),
            (
                &["--eviction-bridge", "--eviction-bridge-client-names=apiserver"],
                "needs --eviction-bridge-client-ca-file",
            ),
            (
                &["--eviction-bridge-client-ca-file=ca.pem"],
                "needs --eviction-bridge",
            ),
            (
                &["--eviction-bridge", "--eviction-bridge-request-lifetime=59s"],
                "must be at least 1m",
            ),
            (&["--allowed-reserved-names=No"], "--allowed-reserved-names: "),
            (
                &["--default-ttl-after-finished=soon"],
                "is not a duration such as",
            ),
            (
                &["--config=/does/not/exist"],
                "cannot read the configuration file",
            ),
            (&["--static-pods=maybe"], "maybe"),
            (
                &["--excluded-label-prefixes=a.example.com/,"],
                "a prefix is empty",
            ),
        ] {
            let message = parse(arguments, &[]).unwrap_err().to_string();
            assert!(message.contains(expected), "{arguments:?}: {message}");
        }
    }
}
