//! The settings of the audit log.

use std::path::PathBuf;
use std::time::Duration;

/// The settings of the audit log. They have the names and the defaults of the reference's flags.
#[derive(Clone, Debug, PartialEq)]
pub struct AuditSettings {
    /// The file with the policy.
    pub policy: PathBuf,
    /// The log on disk, if any.
    pub log: Option<LogSettings>,
    /// The webhook, if any.
    pub webhook: Option<WebhookSettings>,
}

/// How events are handed to a log or a webhook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// They wait in a queue, and requests do not wait for them. Events that find the queue full are lost.
    Batch,
    /// Requests wait until their events are stored, up to 30 s. A request whose event is lost goes on.
    #[default]
    Blocking,
    /// The same, and a request whose first event (`RequestReceived`) is lost is rejected.
    BlockingStrict,
}

/// The form of a line of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// A JSON object.
    #[default]
    Json,
    /// Text, with less of the event.
    Legacy,
}

/// The largest event and batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TruncateSettings {
    /// Bytes of an event above which its bodies are left out; if it is still larger, it is lost.
    pub max_event_bytes: usize,
    /// Bytes of a batch above which it is split.
    pub max_batch_bytes: usize,
}

/// The queue of mode [`Mode::Batch`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchSettings {
    /// How many events wait.
    pub buffer_size: usize,
    /// The most events of a batch.
    pub max_size: usize,
    /// How long the first event of a batch waits for others.
    pub max_wait: Duration,
    /// Limits on batches, if any.
    pub throttle: Option<Throttle>,
    /// How many batches are under way at once, at least 1. The reference has no limit: it starts one per permit of the
    /// throttle, and while a webhook is away each stays for minutes.
    pub parallel: usize,
}

/// A limit on batches.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Throttle {
    /// Batches a second in the long run, above 0.
    pub per_second: f32,
    /// Batches at once after a pause, at least 1.
    pub burst: u32,
}

/// The log on disk.
#[derive(Clone, Debug, PartialEq)]
pub struct LogSettings {
    /// The file; `-` is standard output.
    pub path: PathBuf,
    /// The size in bytes above which the file is replaced; 0 = never.
    pub max_bytes: u64,
    /// How old a replaced file may become; zero = any age.
    pub max_age: Duration,
    /// How many replaced files are kept; 0 = all.
    pub max_backups: usize,
    /// Whether replaced files are compressed with gzip.
    pub compress: bool,
    /// The form of a line.
    pub format: LogFormat,
    /// Whether requests wait.
    pub mode: Mode,
    /// How many events wait in mode [`Mode::Batch`].
    pub buffer_size: usize,
    /// Limits on the size of events, if any.
    pub truncate: Option<TruncateSettings>,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self {
            path: PathBuf::from("-"),
            max_bytes: 100 << 20,
            max_age: Duration::from_hours(366 * 24),
            max_backups: 100,
            compress: false,
            format: LogFormat::default(),
            mode: Mode::default(),
            buffer_size: 10_000,
            truncate: None,
        }
    }
}

/// The webhook.
#[derive(Clone, Debug, PartialEq)]
pub struct WebhookSettings {
    /// A kubeconfig whose current context names the webhook and the credentials for it.
    pub config: PathBuf,
    /// Time before the second attempt; each later pause is half as long again.
    pub initial_backoff: Duration,
    /// Whether requests wait.
    pub mode: Mode,
    /// The queue of mode [`Mode::Batch`].
    pub batch: BatchSettings,
    /// Limits on the size of events and batches, if any.
    pub truncate: Option<TruncateSettings>,
}
