//! A destination of events, and what happens to requests while it stores them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::batch::Batches;
use super::settings::{LogFormat, Mode};
use crate::metrics::AuditMetrics;

/// How long a request waits until its event is stored. The event is not lost then: its delivery goes on.
const PATIENCE: Duration = Duration::from_secs(30);
/// How many events may be on their way to one destination in the blocking modes.
pub(super) const UNDER_WAY: usize = 1000;

/// An encoded event.
#[derive(Debug)]
pub(super) struct Encoded {
    /// A JSON object without `kind` and `apiVersion`.
    pub(super) json: Vec<u8>,
    /// The form of the log format `legacy`, if a log needs it.
    pub(super) legacy: String,
}

impl Encoded {
    /// The line of a log, with its end.
    pub(super) fn line(&self, format: LogFormat) -> Bytes {
        let mut line = Vec::with_capacity(self.json.len() + 64);
        match format {
            LogFormat::Legacy => line.extend_from_slice(self.legacy.as_bytes()),
            LogFormat::Json => {
                line.extend_from_slice(br#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","#);
                line.extend_from_slice(self.json.get(1..).unwrap_or_default());
            }
        }
        line.push(b'\n');
        line.into()
    }
}

/// Where events go.
pub(super) trait Output: Send + Sync + 'static {
    /// Delivers events, in order. The error says why they are lost, all of them.
    fn deliver(&self, events: &[Arc<Encoded>]) -> BoxFuture<'_, Result<(), String>>;
}

/// The event was not stored, and its request has to be rejected.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NotStored;

/// How events reach an output.
enum Way {
    Queue(Batches),
    /// Each event by itself; as many permits as events may be under way.
    Direct {
        under_way: Arc<Semaphore>,
        is_strict: bool,
    },
}

/// An output, and how events reach it.
pub(super) struct Sink {
    /// The name in metrics.
    name: &'static str,
    /// The largest event; none: any size.
    pub(super) max_event_bytes: Option<usize>,
    /// Whether events need [`Encoded::legacy`].
    pub(super) needs_legacy: bool,
    output: Arc<dyn Output>,
    way: Way,
    metrics: AuditMetrics,
}

impl Sink {
    /// A destination with the name `name` in metrics. `queue` is what mode [`Mode::Batch`] hands events to.
    pub(super) fn new(
        name: &'static str,
        output: Arc<dyn Output>,
        mode: Mode,
        queue: impl FnOnce(Arc<dyn Output>) -> Batches,
        metrics: AuditMetrics,
    ) -> Self {
        let way = match mode {
            Mode::Batch => Way::Queue(queue(Arc::clone(&output))),
            Mode::Blocking | Mode::BlockingStrict => Way::Direct {
                under_way: Arc::new(Semaphore::new(UNDER_WAY)),
                is_strict: mode == Mode::BlockingStrict,
            },
        };
        Self {
            name,
            max_event_bytes: None,
            needs_legacy: false,
            output,
            way,
            metrics,
        }
    }

    /// Stores an event as the mode says: in a queue, or by waiting for the output. It is stored even if the caller stops
    /// waiting.
    ///
    /// # Errors
    /// The event is lost, or not stored after 30 s, and the mode is [`Mode::BlockingStrict`].
    pub(super) async fn store(&self, event: Arc<Encoded>) -> Result<(), NotStored> {
        let Way::Direct { under_way, is_strict } = &self.way else {
            self.offer(event);
            return Ok(());
        };
        let stored = if let Ok(permit) = Arc::clone(under_way).try_acquire_owned() {
            let delivery = tokio::spawn(self.delivery(event, permit));
            matches!(timeout(PATIENCE, delivery).await, Ok(Ok(true)))
        } else {
            self.lost("too many events are under way");
            false
        };
        if stored || !is_strict {
            Ok(())
        } else {
            Err(NotStored)
        }
    }

    /// Stores an event without waiting for it.
    pub(super) fn offer(&self, event: Arc<Encoded>) {
        match &self.way {
            Way::Queue(batches) => batches.offer(event),
            Way::Direct { under_way, .. } => {
                // A connection may be dropped after the runtime has ended.
                let (permit, runtime) = (Arc::clone(under_way).try_acquire_owned(), Handle::try_current());
                match (permit, runtime) {
                    (Ok(permit), Ok(runtime)) => drop(runtime.spawn(self.delivery(event, permit))),
                    _ => self.lost("too many events are under way, or the server ends"),
                }
            }
        }
    }

    fn delivery(
        &self,
        event: Arc<Encoded>,
        permit: OwnedSemaphorePermit,
    ) -> impl Future<Output = bool> + Send + use<> {
        let (output, metrics, name) = (Arc::clone(&self.output), self.metrics.clone(), self.name);
        async move {
            let _under_way = permit;
            let delivered = output.deliver(&[event]).await;
            if let Err(why) = &delivered {
                lost(&metrics, name, 1, why);
            }
            delivered.is_ok()
        }
    }

    /// Counts an event that is lost.
    pub(super) fn lost(&self, why: &str) {
        lost(&self.metrics, self.name, 1, why);
    }

    /// Waits until the events so far are delivered or lost; later ones are lost.
    pub(super) async fn close(&self) {
        match &self.way {
            Way::Queue(batches) => batches.close().await,
            Way::Direct { under_way, .. } => {
                // All permits: nothing is under way. It is not closed before, and holds no more permits than that.
                let all = u32::try_from(UNDER_WAY).unwrap_or(u32::MAX);
                if let Ok(permits) = under_way.acquire_many(all).await {
                    permits.forget();
                }
            }
        }
    }
}

/// Counts lost events, and says so: for the first, and whenever their number has doubled, since a destination that is away
/// loses thousands a second.
pub(super) fn lost(metrics: &AuditMetrics, plugin: &'static str, events: usize, why: &str) {
    let in_all = metrics.lost(plugin, events);
    let before = in_all.saturating_sub(events as u64);
    if before == 0 || before.ilog2() < in_all.ilog2() {
        tracing::error!(plugin, events, in_all, why, "audit events are lost");
    }
}

#[cfg(test)]
mod tests;
