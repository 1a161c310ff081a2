//! The flags of the audit log, with the names and defaults of kube-apiserver.

use std::{path::PathBuf, time::Duration};

use clap::Args;

use super::{error::ConfigError, values::GoDuration};
use crate::audit::{
    AuditSettings, BatchSettings, LogFormat, LogSettings, Mode, Throttle, TruncateSettings, WebhookSettings,
};

const DAY: Duration = Duration::from_hours(24);
const MEGABYTE: u64 = 1024 * 1024;
/// How many batches are on their way to the webhook at once.
const WEBHOOK_BATCHES: usize = 16;

/// The flags of the audit log.
#[derive(Clone, Debug, PartialEq, Args)]
pub(super) struct AuditFlags {
    /// Audit policy (`audit.k8s.io/v1`): which requests are recorded, and how much of each. Without it nothing is.
    #[arg(long, env = "DRYDOCK_AUDIT_POLICY_FILE", value_name = "FILE")]
    audit_policy_file: Option<PathBuf>,
    #[command(flatten)]
    log: LogFlags,
    #[command(flatten)]
    webhook: WebhookFlags,
}

#[derive(Clone, Debug, PartialEq, Args)]
struct LogFlags {
    /// File for audit events; - is standard output.
    #[arg(long, env = "DRYDOCK_AUDIT_LOG_PATH", value_name = "FILE")]
    audit_log_path: Option<PathBuf>,
    /// Days that replaced audit logs are kept; 0 = for ever.
    #[arg(
        long,
        env = "DRYDOCK_AUDIT_LOG_MAXAGE",
        default_value_t = 366,
        value_name = "DAYS"
    )]
    audit_log_maxage: u32,
    /// How many replaced audit logs are kept; 0 = all.
    #[arg(
        long,
        env = "DRYDOCK_AUDIT_LOG_MAXBACKUP",
        default_value_t = 100,
        value_name = "COUNT"
    )]
    audit_log_maxbackup: usize,
    /// Megabytes of an audit log before it is replaced; 0 = it never is.
    #[arg(
        long,
        env = "DRYDOCK_AUDIT_LOG_MAXSIZE",
        default_value_t = 100,
        value_name = "MEGABYTES"
    )]
    audit_log_maxsize: u32,
    /// Whether replaced audit logs are compressed with gzip.
    #[arg(long, env = "DRYDOCK_AUDIT_LOG_COMPRESS", value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    audit_log_compress: bool,
    /// Form of a line of the audit log.
    #[arg(long, env = "DRYDOCK_AUDIT_LOG_FORMAT", value_enum, default_value_t = LogFormat::Json, value_name = "FORMAT")]
    audit_log_format: LogFormat,
    /// Whether requests wait for the audit log.
    #[arg(long, env = "DRYDOCK_AUDIT_LOG_MODE", value_enum, default_value_t = Mode::Blocking, value_name = "MODE")]
    audit_log_mode: Mode,
    /// How many events wait for the audit log in mode batch.
    #[arg(
        long,
        env = "DRYDOCK_AUDIT_LOG_BATCH_BUFFER_SIZE",
        default_value_t = 10_000,
        value_name = "COUNT"
    )]
    audit_log_batch_buffer_size: usize,
    /// Whether large events are written without bodies.
    #[arg(long, env = "DRYDOCK_AUDIT_LOG_TRUNCATE_ENABLED", value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    audit_log_truncate_enabled: bool,
    /// Bytes of an event that is written whole.
    #[arg(
        long,
        env = "DRYDOCK_AUDIT_LOG_TRUNCATE_MAX_EVENT_SIZE",
        default_value_t = 102_400,
        value_name = "BYTES"
    )]
    audit_log_truncate_max_event_size: usize,
}

#[derive(Clone, Debug, PartialEq, Args)]
struct WebhookFlags {
    /// Kubeconfig that names the webhook for audit events.
    #[arg(long, env = "DRYDOCK_AUDIT_WEBHOOK_CONFIG_FILE", value_name = "FILE")]
    audit_webhook_config_file: Option<PathBuf>,
    /// Time before audit events are sent to the webhook a second time.
    #[arg(
        long,
        env = "DRYDOCK_AUDIT_WEBHOOK_INITIAL_BACKOFF",
        default_value = "10s",
        value_name = "DURATION"
    )]
    audit_webhook_initial_backoff: GoDuration,
    /// Whether requests wait for the webhook.
    #[arg(long, env = "DRYDOCK_AUDIT_WEBHOOK_MODE", value_enum, default_value_t = Mode::Batch, value_name = "MODE")]
    audit_webhook_mode: Mode,
    /// How many events wait for the webhook in mode batch.
    #[arg(
        long,
        env = "DRYDOCK_AUDIT_WEBHOOK_BATCH_BUFFER_SIZE",
        default_value_t = 10_000,
        value_name = "COUNT"
    )]
    audit_webhook_batch_buffer_size: usize,
    /// The most events of a batch for the webhook.
    #[arg(
        long,
        env = "DRYDOCK_AUDIT_WEBHOOK_BATCH_MAX_SIZE",
        default_value_t = 400,
        value_name = "COUNT"
    )]
    audit_webhook_batch_max_size: usize,
    /// How long the first event of a batch waits for others.
    #[arg(
        long,
        env = "DRYDOCK_AUDIT_WEBHOOK_BATCH_MAX_WAIT",
        default_value = "30s",
        value_name = "DURATION"
    )]
    audit_webhook_batch_max_wait: GoDuration,
    /// Whether batches for the webhook are limited by rate.
    #[arg(long, env = "DRYDOCK_AUDIT_WEBHOOK_BATCH_THROTTLE_ENABLE", value_name = "BOOL", default_value_t = true, num_args = 0..=1, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    audit_webhook_batch_throttle_enable: bool,
    /// Batches a second, in the long run.
    #[arg(
        long,
        env = "DRYDOCK_AUDIT_WEBHOOK_BATCH_THROTTLE_QPS",
        default_value_t = 10.0,
        value_name = "RATE"
    )]
    audit_webhook_batch_throttle_qps: f32,
    /// Batches at once, after a pause.
    #[arg(
        long,
        env = "DRYDOCK_AUDIT_WEBHOOK_BATCH_THROTTLE_BURST",
        default_value_t = 15,
        value_name = "COUNT"
    )]
    audit_webhook_batch_throttle_burst: u32,
    /// Whether large events are sent without bodies, and large batches in parts.
    #[arg(long, env = "DRYDOCK_AUDIT_WEBHOOK_TRUNCATE_ENABLED", value_name = "BOOL", default_value_t = false, num_args = 0..=1, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    audit_webhook_truncate_enabled: bool,
    /// Bytes of a batch that is sent whole.
    #[arg(
        long,
        env = "DRYDOCK_AUDIT_WEBHOOK_TRUNCATE_MAX_BATCH_SIZE",
        default_value_t = 10_485_760,
        value_name = "BYTES"
    )]
    audit_webhook_truncate_max_batch_size: usize,
    /// Bytes of an event that is sent whole.
    #[arg(
        long,
        env = "DRYDOCK_AUDIT_WEBHOOK_TRUNCATE_MAX_EVENT_SIZE",
        default_value_t = 102_400,
        value_name = "BYTES"
    )]
    audit_webhook_truncate_max_event_size: usize,
}

impl AuditFlags {
    /// The settings of the audit log; none without a policy.
    ///
    /// # Errors
    /// [`ConfigError::Value`]; also for a destination without a policy, or a policy without a destination, which would record
    /// nothing without a word.
    pub(super) fn validated(&self) -> Result<Option<AuditSettings>, ConfigError> {
        let (log, webhook) = (self.log.validated()?, self.webhook.validated()?);
        let Some(policy) = self.audit_policy_file.clone() else {
            let flag = match (&log, &webhook) {
                (Some(_), _) => "--audit-log-path",
                (None, Some(_)) => "--audit-webhook-config-file",
                (None, None) => return Ok(None),
            };
            return Err(ConfigError::value(flag, "needs --audit-policy-file"));
        };
        if log.is_none() && webhook.is_none() {
            return Err(ConfigError::value(
                "--audit-policy-file",
                "needs --audit-log-path or --audit-webhook-config-file",
            ));
        }
        Ok(Some(AuditSettings { policy, log, webhook }))
    }
}

impl LogFlags {
    fn validated(&self) -> Result<Option<LogSettings>, ConfigError> {
        let Some(path) = self.audit_log_path.clone() else {
            return Ok(None);
        };
        positive("--audit-log-batch-buffer-size", self.audit_log_batch_buffer_size)?;
        positive(
            "--audit-log-truncate-max-event-size",
            self.audit_log_truncate_max_event_size,
        )?;
        Ok(Some(LogSettings {
            path,
            max_bytes: u64::from(self.audit_log_maxsize) * MEGABYTE,
            max_age: DAY * self.audit_log_maxage,
            max_backups: self.audit_log_maxbackup,
            compress: self.audit_log_compress,
            format: self.audit_log_format,
            mode: self.audit_log_mode,
            buffer_size: self.audit_log_batch_buffer_size,
            truncate: self.audit_log_truncate_enabled.then_some(TruncateSettings {
                max_event_bytes: self.audit_log_truncate_max_event_size,
                max_batch_bytes: usize::MAX,
            }),
        }))
    }
}

impl WebhookFlags {
    fn validated(&self) -> Result<Option<WebhookSettings>, ConfigError> {
        let Some(config) = self.audit_webhook_config_file.clone() else {
            return Ok(None);
        };
        positive(
            "--audit-webhook-batch-buffer-size",
            self.audit_webhook_batch_buffer_size,
        )?;
        positive(
            "--audit-webhook-batch-max-size",
            self.audit_webhook_batch_max_size,
        )?;
        let throttle = Throttle {
            per_second: self.audit_webhook_batch_throttle_qps,
            burst: self.audit_webhook_batch_throttle_burst,
        };
        // Below, a pause would be longer than the server runs.
        if self.audit_webhook_batch_throttle_enable && !(0.001..=1e6).contains(&throttle.per_second) {
            return Err(ConfigError::value(
                "--audit-webhook-batch-throttle-qps",
                "must be between 0.001 and 1000000",
            ));
        }
        if self.audit_webhook_batch_throttle_enable && throttle.burst == 0 {
            return Err(ConfigError::value(
                "--audit-webhook-batch-throttle-burst",
                "must be above 0",
            ));
        }
        let truncate = TruncateSettings {
            max_event_bytes: self.audit_webhook_truncate_max_event_size,
            max_batch_bytes: self.audit_webhook_truncate_max_batch_size,
        };
        positive(
            "--audit-webhook-truncate-max-event-size",
            truncate.max_event_bytes,
        )?;
        if truncate.max_batch_bytes < truncate.max_event_bytes {
            return Err(ConfigError::value(
                "--audit-webhook-truncate-max-batch-size",
                "must not be below --audit-webhook-truncate-max-event-size",
            ));
        }
        Ok(Some(WebhookSettings {
            config,
            initial_backoff: self.audit_webhook_initial_backoff.0,
            mode: self.audit_webhook_mode,
            batch: BatchSettings {
                buffer_size: self.audit_webhook_batch_buffer_size,
                max_size: self.audit_webhook_batch_max_size,
                max_wait: self.audit_webhook_batch_max_wait.0,
                throttle: self.audit_webhook_batch_throttle_enable.then_some(throttle),
                parallel: WEBHOOK_BATCHES,
            },
            truncate: self.audit_webhook_truncate_enabled.then_some(truncate),
        }))
    }
}

fn positive(flag: &'static str, value: usize) -> Result<(), ConfigError> {
    if value == 0 {
        return Err(ConfigError::value(flag, "must be above 0"));
    }
    Ok(())
}
