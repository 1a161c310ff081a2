//! The audit log: who did what, written where the operator says.
//!
//! A policy decides how much of each request is recorded. A request that is recorded has a [`Trail`], which the audit filter
//! makes after authentication; it writes an event per [`Stage`] to a log on disk and to a webhook. Without a policy there is no
//! [`Auditor`], and requests pay nothing. `docs/audit.md` is the page for operators.
//!
//! Events never change a response, with one exception: in mode `blocking-strict` a request whose first event cannot be stored
//! is rejected before anything else happens. What is lost is counted in `apiserver_audit_error_total`.
//!
//! ```text
//! trail → sink → batch → file, webhook
//! ```

mod batch;
mod event;
mod file;
#[cfg(test)]
pub(crate) mod memory;
mod policy;
mod settings;
mod sink;
mod trail;
mod webhook;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use drydock_machinery::clock::Clock;
use futures_util::future::join_all;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use self::batch::Batches;
use self::event::{Event, TRUNCATED};
use self::file::LogOutput;
use self::policy::Policy;
use self::sink::{Encoded, NotStored, Sink, lost};
use self::trail::Encodings;
use self::webhook::WebhookOutput;
use crate::metrics::AuditMetrics;
use crate::request::AuditLevel;

pub use self::policy::{Stage, fuzz_parse};
pub use self::settings::{
    AuditSettings, BatchSettings, LogFormat, LogSettings, Mode, Throttle, TruncateSettings, WebhookSettings,
};
pub use self::trail::{Arrival, Outcome, RESPONSE_BYTES, ResponseContents, StoreFailed, Trail};

/// The names of the destinations in metrics, as in the reference.
const LOG: &str = "log";
const WEBHOOK: &str = "webhook";
const TRUNCATE: &str = "truncate";
/// How long a stop waits for events to be delivered.
const CLOSE_GRACE: Duration = Duration::from_secs(10);

/// Why the audit log cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The policy cannot be read.
    #[error("cannot read the audit policy {path}")]
    ReadPolicy {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The policy is not valid.
    #[error("the audit policy {path} is invalid: {text}")]
    Policy {
        /// The file.
        path: PathBuf,
        /// Everything that is wrong, on one line.
        text: String,
    },
    /// The log cannot be written.
    #[error("cannot write the audit log {path}")]
    LogFile {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The kubeconfig of the webhook cannot be used.
    #[error("cannot use the kubeconfig of the audit webhook {path}")]
    Webhook {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// The audit log of a server.
pub struct Auditor {
    policy: Policy,
    sinks: Vec<Sink>,
    clock: Arc<dyn Clock>,
    metrics: AuditMetrics,
    /// Events that are encoded after their response.
    late: TaskTracker,
}

impl std::fmt::Debug for Auditor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Auditor")
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

impl Auditor {
    /// Reads the policy and opens the destinations.
    ///
    /// # Errors
    /// [`AuditError`].
    pub async fn start(
        settings: &AuditSettings,
        clock: Arc<dyn Clock>,
        metrics: AuditMetrics,
    ) -> Result<Arc<Self>, AuditError> {
        let policy = Policy::read(&settings.policy)?;
        let mut sinks = Vec::new();
        if let Some(log) = &settings.log {
            sinks.push(log_sink(log, &clock, &metrics)?);
        }
        if let Some(webhook) = &settings.webhook {
            sinks.push(webhook_sink(webhook, &metrics).await?);
        }
        Ok(Arc::new(Self {
            policy,
            sinks,
            clock,
            metrics,
            late: TaskTracker::new(),
        }))
    }

    /// The trail of a request; none if the policy does not record it.
    #[must_use]
    pub fn begin(self: &Arc<Self>, arrival: &Arrival<'_>) -> Option<Arc<Trail>> {
        let decision = self.policy.decide(arrival.user.map(|user| &**user), arrival.info);
        self.metrics.decided(decision.level);
        (decision.level > AuditLevel::None).then(|| Arc::new(Trail::new(self, decision.clone(), arrival)))
    }

    /// Counts a request that is rejected since its event could not be stored.
    pub fn rejected(&self) {
        self.metrics.rejected();
    }

    /// Encodes an event for every destination.
    fn encode(&self, event: &mut Event<'_>) -> Option<Encodings> {
        self.metrics.made();
        let legacy = if self.sinks.iter().any(|sink| sink.needs_legacy) {
            event.to_line()
        } else {
            String::new()
        };
        // An event holds text and JSON that was parsed, so encoding cannot fail.
        let whole = Arc::new(Encoded {
            json: event.to_json().ok()?,
            legacy,
        });
        let mut reduced: Option<Arc<Encoded>> = None;
        let mut encodings = Vec::with_capacity(self.sinks.len());
        for sink in &self.sinks {
            let limit = sink.max_event_bytes.unwrap_or(usize::MAX);
            if whole.json.len() <= limit {
                encodings.push(Some(Arc::clone(&whole)));
                continue;
            }
            let smaller = if let Some(reduced) = &reduced {
                Arc::clone(reduced)
            } else {
                event.request_object = None;
                event.response_object = None;
                event.annotations.insert(TRUNCATED.to_owned(), "true".to_owned());
                let legacy = whole.legacy.clone();
                let json = event.to_json().ok()?;
                Arc::clone(reduced.insert(Arc::new(Encoded { json, legacy })))
            };
            encodings.push(if smaller.json.len() <= limit {
                Some(smaller)
            } else {
                lost(
                    &self.metrics,
                    TRUNCATE,
                    1,
                    "the event is too large even without bodies",
                );
                None
            });
        }
        Some(Encodings(encodings))
    }

    /// Counts an event as lost for every destination.
    fn lose(&self, why: &str) {
        for sink in &self.sinks {
            sink.lost(why);
        }
    }

    async fn store(&self, Encodings(events): &Encodings) -> Result<(), NotStored> {
        let stores = self
            .sinks
            .iter()
            .zip(events)
            .map(async |(sink, event)| match event {
                Some(event) => sink.store(Arc::clone(event)).await,
                None => Ok(()),
            });
        join_all(stores).await.into_iter().collect()
    }

    fn offer(&self, Encodings(events): &Encodings) {
        for (sink, event) in self.sinks.iter().zip(events) {
            if let Some(event) = event {
                sink.offer(Arc::clone(event));
            }
        }
    }

    /// Delivers what was written so far, for up to 10 s. Call it when no request is left.
    pub async fn close(&self) {
        self.late.close();
        let all = async {
            self.late.wait().await;
            join_all(self.sinks.iter().map(Sink::close)).await;
        };
        if timeout(CLOSE_GRACE, all).await.is_err() {
            tracing::error!("audit events were not delivered before the stop");
        }
    }
}

fn log_sink(
    settings: &LogSettings,
    clock: &Arc<dyn Clock>,
    metrics: &AuditMetrics,
) -> Result<Sink, AuditError> {
    let output = Arc::new(LogOutput::start(settings, Arc::clone(clock))?);
    let batches = BatchSettings {
        buffer_size: settings.buffer_size,
        // The thread that writes takes them one by one.
        max_size: 1,
        max_wait: Duration::ZERO,
        throttle: None,
        // Lines stay in order.
        parallel: 1,
    };
    let own = metrics.clone();
    let queue = |output| Batches::start(LOG, output, batches, None, own);
    let mut sink = Sink::new(LOG, output, settings.mode, queue, metrics.clone());
    sink.max_event_bytes = settings.truncate.map(|truncate| truncate.max_event_bytes);
    sink.needs_legacy = settings.format == LogFormat::Legacy;
    Ok(sink)
}

async fn webhook_sink(settings: &WebhookSettings, metrics: &AuditMetrics) -> Result<Sink, AuditError> {
    let output = Arc::new(WebhookOutput::start(settings).await?);
    let max_bytes = settings.truncate.map(|truncate| truncate.max_batch_bytes);
    let (batches, own) = (settings.batch, metrics.clone());
    let queue = |output| Batches::start(WEBHOOK, output, batches, max_bytes, own);
    let mut sink = Sink::new(WEBHOOK, output, settings.mode, queue, metrics.clone());
    sink.max_event_bytes = settings.truncate.map(|truncate| truncate.max_event_bytes);
    Ok(sink)
}
