//! The queue of events that go to an output in batches.
//!
//! A batch is full, or its first event has waited long enough. Batches are limited by rate and by how many are under way. The
//! queue is limited by events and by bytes; what finds it full is lost and counted.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;

use super::settings::{BatchSettings, Throttle};
use super::sink::{Encoded, Output, lost};
use crate::metrics::AuditMetrics;

/// The unit in which the bytes of the queue are counted.
const UNIT_BYTES: usize = 1024;
/// The most bytes of all events in the queue and under way, in units.
const QUEUE_UNITS: usize = 64 * 1024;
/// What metrics call the loss of an event for which the queue has no room.
const BUFFERED: &str = "buffered";

/// An event, and its share of the bytes.
struct Queued {
    event: Arc<Encoded>,
    share: OwnedSemaphorePermit,
}

/// The queue and the task that empties it.
pub(super) struct Batches {
    queue: mpsc::Sender<Queued>,
    units: Arc<Semaphore>,
    closing: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
    metrics: AuditMetrics,
}

impl Batches {
    /// Starts the task. `name` is the output's in metrics; a batch is split above `max_bytes`.
    pub(super) fn start(
        name: &'static str,
        output: Arc<dyn Output>,
        settings: BatchSettings,
        max_bytes: Option<usize>,
        metrics: AuditMetrics,
    ) -> Self {
        let (queue, events) = mpsc::channel(settings.buffer_size.max(1));
        let closing = CancellationToken::new();
        let emptier = Emptier {
            name,
            output,
            settings,
            max_bytes: max_bytes.unwrap_or(usize::MAX),
            closing: closing.clone(),
            metrics: metrics.clone(),
        };
        Self {
            queue,
            units: Arc::new(Semaphore::new(QUEUE_UNITS)),
            closing,
            task: Mutex::new(Some(tokio::spawn(emptier.run(events)))),
            metrics,
        }
    }

    /// Adds an event, or loses it.
    pub(super) fn offer(&self, event: Arc<Encoded>) {
        let units = u32::try_from(event.json.len() / UNIT_BYTES + 1).unwrap_or(u32::MAX);
        let share = Arc::clone(&self.units).try_acquire_many_owned(units);
        let added = share.is_ok_and(|share| self.queue.try_send(Queued { event, share }).is_ok());
        if !added {
            lost(&self.metrics, BUFFERED, 1, "the queue of audit events is full");
        }
    }

    /// Waits until all events are delivered or lost.
    pub(super) async fn close(&self) {
        self.closing.cancel();
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(task) = task {
            // It has no other error than that it panicked, which is logged.
            task.await.ok();
        }
    }
}

/// Empties the queue.
struct Emptier {
    name: &'static str,
    output: Arc<dyn Output>,
    settings: BatchSettings,
    max_bytes: usize,
    closing: CancellationToken,
    metrics: AuditMetrics,
}

impl Emptier {
    async fn run(self, mut events: mpsc::Receiver<Queued>) {
        let mut pace = self.settings.throttle.map(Pace::new);
        let mut under_way = JoinSet::new();
        while let Some(collected) = self.collect(&mut events).await {
            for batch in split(collected, self.max_bytes) {
                if let Some(pace) = &mut pace {
                    pace.wait(&self.closing).await;
                }
                if under_way.len() >= self.settings.parallel {
                    under_way.join_next().await;
                }
                under_way.spawn(self.delivery(batch));
            }
            while under_way.try_join_next().is_some() {}
        }
        while under_way.join_next().await.is_some() {}
    }

    /// The next batch; none once the queue is closed and empty.
    async fn collect(&self, events: &mut mpsc::Receiver<Queued>) -> Option<Vec<Queued>> {
        let first = tokio::select! {
            first = events.recv() => first,
            () = self.closing.cancelled() => {
                // What is in the queue stays in it.
                events.close();
                events.recv().await
            }
        };
        let mut batch = vec![first?];
        let until = Instant::now() + self.settings.max_wait;
        while batch.len() < self.settings.max_size {
            let next = tokio::select! {
                biased;
                next = timeout_at(until, events.recv()) => next,
                () = self.closing.cancelled() => break,
            };
            match next {
                Ok(Some(event)) => batch.push(event),
                // The batch is what came in time.
                Ok(None) | Err(_) => break,
            }
        }
        Some(batch)
    }

    fn delivery(&self, batch: Vec<Queued>) -> impl Future<Output = ()> + Send + use<> {
        let (output, metrics, name) = (Arc::clone(&self.output), self.metrics.clone(), self.name);
        async move {
            let (events, _shares): (Vec<_>, Vec<_>) = batch
                .into_iter()
                .map(|queued| (queued.event, queued.share))
                .unzip();
            if let Err(why) = output.deliver(&events).await {
                lost(&metrics, name, events.len(), &why);
            }
        }
    }
}

/// Splits a batch into parts of at most `max_bytes`, or of one event.
fn split(batch: Vec<Queued>, max_bytes: usize) -> Vec<Vec<Queued>> {
    let mut parts: Vec<Vec<Queued>> = Vec::new();
    let mut bytes = 0;
    for queued in batch {
        let length = queued.event.json.len();
        match parts.last_mut() {
            Some(part) if bytes + length <= max_bytes => {
                bytes += length;
                part.push(queued);
            }
            _ => {
                bytes = length;
                parts.push(vec![queued]);
            }
        }
    }
    parts
}

/// Spaces batches in time: a bucket of permits that fills at a constant rate.
struct Pace {
    interval: Duration,
    burst: u32,
    /// When the bucket would be full.
    full_at: Instant,
}

impl Pace {
    fn new(throttle: Throttle) -> Self {
        Self {
            interval: Duration::from_secs_f32(1.0 / throttle.per_second),
            burst: throttle.burst.max(1),
            full_at: Instant::now(),
        }
    }

    /// Waits for a permit, but not while the server stops.
    async fn wait(&mut self, closing: &CancellationToken) {
        let now = Instant::now();
        self.full_at = self.full_at.max(now) + self.interval;
        if let Some(earliest) = self.full_at.checked_sub(self.interval * self.burst)
            && earliest > now
        {
            tokio::select! {
                () = sleep_until(earliest) => {}
                () = closing.cancelled() => {}
            }
        }
    }
}
