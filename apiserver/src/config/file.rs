//! The configuration file: a member per flag, in camelCase. Unknown members are rejected.

use std::path::Path;

use clap::parser::ValueSource;
use serde::Deserialize;

use super::{error::ConfigError, settings::LogFormat};

/// The members of a configuration file: every flag, in camelCase.
#[derive(Debug, Default, Deserialize)]
#[expect(clippy::struct_field_names, reason = "members are named as the flags")]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct File {
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
    storage_object_bytes_limit: Option<String>,
    storage_any_file_system: Option<bool>,
    incremental_backup_dir: Option<String>,
    storage_check_interval: Option<String>,
    shutdown_delay_duration: Option<String>,
    request_timeout: Option<String>,
    max_requests_inflight: Option<u32>,
    max_mutating_requests_inflight: Option<u32>,
    authentication_token_webhook_cache_ttl: Option<String>,
    authorization_webhook_cache_authorized_ttl: Option<String>,
    authorization_webhook_cache_unauthorized_ttl: Option<String>,
    allowed_reserved_names: Option<Vec<String>>,
    debug_cache_check_period: Option<String>,
    log_format: Option<LogFormat>,
    log_level: Option<String>,
}

/// A file's member as the flag it stands for, and the flag's value.
pub(super) type Setting = (&'static str, String);

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
            text("storage-object-bytes-limit", self.storage_object_bytes_limit),
            text("storage-any-file-system", self.storage_any_file_system),
            text("incremental-backup-dir", self.incremental_backup_dir),
            text("storage-check-interval", self.storage_check_interval),
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
            text("debug-cache-check-period", self.debug_cache_check_period),
            text("log-format", format),
            text("log-level", self.log_level),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// The settings in a file.
pub(super) fn read(path: &Path) -> Result<Vec<Setting>, ConfigError> {
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

/// Whether the flag has its default value. A flag that the command does not know counts as set, since one file may be used
/// for both commands.
pub(super) fn is_default(matches: &clap::ArgMatches, flag: &str) -> bool {
    let id = flag.replace('-', "_");
    match matches.try_contains_id(&id) {
        Ok(_) => matches!(matches.value_source(&id), None | Some(ValueSource::DefaultValue)),
        Err(_) => false,
    }
}
