//! The flags of a server, and their validation.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use clap::Args;

use super::{
    admission::AdmissionFlags,
    audit::AuditFlags,
    error::ConfigError,
    settings::{CertificateFiles, ServeConfig, ServerConfig, StorageConfig},
    storage::StorageFlags,
    values::{GoDuration, parse_tls_version},
};
use crate::{
    authorization::DEFAULT_ALWAYS_ALLOW,
    filters::InFlightLimits,
    host::{
        kube::{AuthenticationOverrides, HostConfig, RequestHeaderOverrides},
        reviews::ReviewTtls,
    },
    http::tls::MinTlsVersion,
    telemetry::{LogConfig, LogFormat, TracingSettings},
};

/// Flags of `serve`.
#[derive(Debug, Args)]
pub struct ServeFlags {
    #[command(flatten)]
    host: HostFlags,
    #[command(flatten)]
    admission: AdmissionFlags,
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
    /// Start even if the host's authentication settings cannot be read.
    #[arg(long, env = "DRYDOCK_AUTHENTICATION_TOLERATE_LOOKUP_FAILURE", value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    authentication_tolerate_lookup_failure: bool,
    /// CA bundle for users' client certificates, instead of the host's.
    #[arg(long, env = "DRYDOCK_CLIENT_CA_FILE", value_name = "FILE")]
    client_ca_file: Option<PathBuf>,
    /// CA bundle for the front-proxy certificate, instead of the host's.
    #[arg(long, env = "DRYDOCK_REQUESTHEADER_CLIENT_CA_FILE", value_name = "FILE")]
    requestheader_client_ca_file: Option<PathBuf>,
    /// Allowed common names of the front-proxy certificate; none = any.
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

/// Flags of everything that serves.
#[derive(Debug, Args)]
pub struct ServerFlags {
    /// YAML file with flags as members, in camelCase: `securePort: 6443`.
    #[arg(long, env = "DRYDOCK_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address to listen on.
    #[arg(long, env = "DRYDOCK_BIND_ADDRESS", default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED), value_name = "IP")]
    bind_address: IpAddr,
    /// Port to listen on; with 0 the system chooses one, which is logged.
    #[arg(long, env = "DRYDOCK_SECURE_PORT", default_value_t = 443, value_name = "PORT")]
    secure_port: u16,
    /// Serving certificate with intermediates, PEM.
    #[arg(long, env = "DRYDOCK_TLS_CERT_FILE", value_name = "FILE")]
    tls_cert_file: Option<PathBuf>,
    /// Key of the serving certificate, PEM.
    #[arg(long, env = "DRYDOCK_TLS_PRIVATE_KEY_FILE", value_name = "FILE")]
    tls_private_key_file: Option<PathBuf>,
    /// The oldest TLS version, `VersionTLS12` or `VersionTLS13`.
    #[arg(long, env = "DRYDOCK_TLS_MIN_VERSION", default_value = "VersionTLS12", value_parser = parse_tls_version, value_name = "VERSION")]
    tls_min_version: MinTlsVersion,
    /// Paths that need no authorization; a trailing * matches every path with that prefix.
    #[arg(long, env = "DRYDOCK_AUTHORIZATION_ALWAYS_ALLOW_PATHS", value_delimiter = ',', default_values_t = DEFAULT_ALWAYS_ALLOW.map(str::to_owned), value_name = "PATHS")]
    authorization_always_allow_paths: Vec<String>,
    #[command(flatten)]
    store: StorageFlags,
    /// Put changes of the file named by `--encryption-provider-config` into force without a restart.
    #[arg(
        long,
        env = "DRYDOCK_ENCRYPTION_PROVIDER_CONFIG_AUTOMATIC_RELOAD",
        default_value_t = false,
        num_args = 0..=1,
        default_missing_value = "true",
        require_equals = true,
        value_name = "BOOL",
        action = clap::ArgAction::Set
    )]
    encryption_provider_config_automatic_reload: bool,
    /// Folder, on any volume, for the incremental backups of `POST /storage/backups?incremental=true`.
    #[arg(long, env = "DRYDOCK_INCREMENTAL_BACKUP_DIR", value_name = "DIR")]
    incremental_backup_dir: Option<PathBuf>,
    /// How often every stored value is read and its checksums verified; 0 = never.
    #[arg(
        long,
        env = "DRYDOCK_STORAGE_CHECK_INTERVAL",
        default_value = "168h",
        value_name = "DURATION"
    )]
    storage_check_interval: GoDuration,
    /// Time between failing readiness and closing the listener.
    #[arg(
        long,
        env = "DRYDOCK_SHUTDOWN_DELAY_DURATION",
        default_value = "5s",
        value_name = "DURATION"
    )]
    shutdown_delay_duration: GoDuration,
    /// Time limit of a request that is not a watch.
    #[arg(
        long,
        env = "DRYDOCK_REQUEST_TIMEOUT",
        default_value = "1m",
        value_name = "DURATION"
    )]
    request_timeout: GoDuration,
    /// Maximum number of concurrent reads, shared by the priority levels of users; 0 = no limit.
    #[arg(
        long,
        env = "DRYDOCK_MAX_REQUESTS_INFLIGHT",
        default_value_t = 400,
        value_name = "COUNT"
    )]
    max_requests_inflight: usize,
    /// Maximum number of concurrent writes, shared by the priority levels of users; 0 = no limit.
    #[arg(
        long,
        env = "DRYDOCK_MAX_MUTATING_REQUESTS_INFLIGHT",
        default_value_t = 200,
        value_name = "COUNT"
    )]
    max_mutating_requests_inflight: usize,
    /// How long the review of a valid token is cached.
    #[arg(
        long,
        env = "DRYDOCK_AUTHENTICATION_TOKEN_WEBHOOK_CACHE_TTL",
        default_value = "10s",
        value_name = "DURATION"
    )]
    authentication_token_webhook_cache_ttl: GoDuration,
    /// How long a review that allows is cached.
    #[arg(
        long,
        env = "DRYDOCK_AUTHORIZATION_WEBHOOK_CACHE_AUTHORIZED_TTL",
        default_value = "10s",
        value_name = "DURATION"
    )]
    authorization_webhook_cache_authorized_ttl: GoDuration,
    /// How long a review that does not allow is cached.
    #[arg(
        long,
        env = "DRYDOCK_AUTHORIZATION_WEBHOOK_CACHE_UNAUTHORIZED_TTL",
        default_value = "10s",
        value_name = "DURATION"
    )]
    authorization_webhook_cache_unauthorized_ttl: GoDuration,
    /// Review each object's name at the host, also where the user has the right for all objects. Needed where an authorizer of the
    /// host denies single names, which RBAC cannot; costs a review for each object.
    #[arg(long, env = "DRYDOCK_AUTHORIZATION_REVIEW_EVERY_NAME", value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    authorization_review_every_name: bool,
    /// Names under k8s.io that requesters and interceptors may have in addition to the built-in ones.
    #[arg(
        long,
        env = "DRYDOCK_ALLOWED_RESERVED_NAMES",
        value_delimiter = ',',
        value_name = "NAMES"
    )]
    allowed_reserved_names: Vec<String>,
    /// For tests: compare caches with the store this often, and abort the process if they differ.
    #[arg(
        long,
        env = "DRYDOCK_DEBUG_CACHE_CHECK_PERIOD",
        hide = true,
        value_name = "DURATION"
    )]
    debug_cache_check_period: Option<GoDuration>,
    #[command(flatten)]
    audit: Box<AuditFlags>,
    /// Tracing configuration (`apiserver.config.k8s.io/v1`): the OTLP collector for spans of requests. Without it there are none.
    #[arg(long, env = "DRYDOCK_TRACING_CONFIG_FILE", value_name = "FILE")]
    tracing_config_file: Option<PathBuf>,
    /// Format of log lines.
    #[arg(long, env = "DRYDOCK_LOG_FORMAT", value_enum, default_value_t = LogFormat::Text, value_name = "FORMAT")]
    log_format: LogFormat,
    /// What is logged: a level, or directives such as `drydock_apiserver=debug,info`.
    #[arg(long, env = "DRYDOCK_LOG_LEVEL", default_value = "info", value_name = "LEVEL")]
    log_level: String,
}

impl ServeFlags {
    /// The path of the configuration file, if any.
    #[must_use]
    pub fn config_file(&self) -> Option<&Path> {
        self.server.config_file()
    }

    /// The validated settings.
    ///
    /// # Errors
    /// [`ConfigError::Value`].
    pub fn validated(self) -> Result<ServeConfig, ConfigError> {
        let server = self.server.validated()?;
        if server.certificate.is_none() {
            return Err(ConfigError::value(
                "--tls-cert-file",
                "and --tls-private-key-file are needed to serve",
            ));
        }
        let (host, authentication) = self.host.validated()?;
        Ok(ServeConfig {
            host,
            authentication,
            plugins: self.admission.validated()?,
            server,
        })
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
                return Err(ConfigError::value(
                    setting,
                    format!("{bad:?} is not a header name"),
                ));
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
    /// The path of the configuration file, if any.
    #[must_use]
    pub fn config_file(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// The validated settings.
    ///
    /// # Errors
    /// [`ConfigError::Value`].
    pub fn validated(self) -> Result<ServerConfig, ConfigError> {
        let certificate = match (self.tls_cert_file, self.tls_private_key_file) {
            (Some(certificate), Some(key)) => Some(CertificateFiles { certificate, key }),
            (None, None) => None,
            (Some(_), None) => {
                return Err(ConfigError::value(
                    "--tls-private-key-file",
                    "is needed with --tls-cert-file",
                ));
            }
            (None, Some(_)) => {
                return Err(ConfigError::value(
                    "--tls-cert-file",
                    "is needed with --tls-private-key-file",
                ));
            }
        };
        if self.request_timeout.0 < Duration::from_secs(1) {
            return Err(ConfigError::value("--request-timeout", "must be at least 1s"));
        }
        let storage = StorageConfig {
            incremental_backup_dir: self.incremental_backup_dir,
            check_interval: self.storage_check_interval.0,
            ..self.store.validated()?
        };
        if self.encryption_provider_config_automatic_reload && storage.encryption.is_none() {
            return Err(ConfigError::value(
                "--encryption-provider-config-automatic-reload",
                "must be set with --encryption-provider-config",
            ));
        }
        if let Some(bad) = self
            .authorization_always_allow_paths
            .iter()
            .find(|path| !path.starts_with('/'))
        {
            return Err(ConfigError::value(
                "--authorization-always-allow-paths",
                format!("{bad:?} does not start with /"),
            ));
        }
        if let Err(error) = tracing_subscriber::EnvFilter::try_new(&self.log_level) {
            return Err(ConfigError::value("--log-level", error.to_string()));
        }
        let tracing = self
            .tracing_config_file
            .as_deref()
            .map(TracingSettings::read)
            .transpose()
            .map_err(|error| ConfigError::value("--tracing-config-file", error.to_string()))?;
        Ok(ServerConfig {
            tracing,
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
                every_name: self.authorization_review_every_name,
            },
            reload_encryption: self.encryption_provider_config_automatic_reload,
            allowed_reserved_names: self.allowed_reserved_names,
            debug_cache_check_period: self.debug_cache_check_period.map(|period| period.0),
            storage,
            audit: self.audit.validated()?,
            log: LogConfig {
                format: self.log_format,
                level: self.log_level,
            },
        })
    }
}
