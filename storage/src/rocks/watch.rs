//! Watches: cursors over the events of the store.
//!
//! A watch reads events from the tail in memory. If its next event is no longer there, it reads history from disk until it
//! has caught up; a few watches do so at a time. It never delays the commit thread.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::history::{HistoryError, read_after};
use super::parts::Parts;
use super::tail::Following;
use crate::{Event, Events, KeyRange, Revision, Signal};

/// The watch of a [`RocksStore`](super::RocksStore).
pub struct RocksEvents {
    parts: Arc<Parts>,
    pulse: watch::Receiver<u64>,
    range: KeyRange,
    /// Read from tail or disk, not looked at yet.
    taken: VecDeque<Arc<Event>>,
    /// Every event up to this revision has been looked at.
    looked: Revision,
    /// Every event up to this revision has been delivered.
    delivered: Revision,
    seen_requests: u64,
    /// A running read of history. Kept here so that a cancelled `next` loses neither its result nor its permit.
    reading: Option<Reading>,
    has_ended: bool,
}

/// A read of the events after `seen`, up to `through`. Aborted when it is dropped.
struct Reading {
    seen: Revision,
    through: Revision,
    /// None if the store is closed.
    task: JoinHandle<Option<Result<Vec<Arc<Event>>, HistoryError>>>,
}

impl Reading {
    fn begin(parts: &Arc<Parts>, seen: Revision, through: Revision) -> Self {
        let parts = Arc::clone(parts);
        let task = tokio::spawn(async move {
            let permit = parts.replays.permit().await?;
            let engine = parts.lifecycle.engine().ok()?;
            parts.metrics.replays.inc();
            let read = tokio::task::spawn_blocking(move || {
                // An aborted read runs to its end, and keeps its permit until then.
                let _permit = permit;
                read_after(&engine, &parts.records, seen, through)
            });
            read.await.ok()
        });
        Self { seen, through, task }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl RocksEvents {
    pub(crate) fn new(parts: Arc<Parts>, range: KeyRange, first: Revision) -> Self {
        parts.metrics.watches.inc();
        Self {
            pulse: parts.published.pulse(),
            seen_requests: parts.published.progress_requests(),
            // No record belongs to the revision where history begins.
            looked: first.previous().max(parts.retention.origin()),
            parts,
            range,
            taken: VecDeque::new(),
            delivered: first.previous(),
            reading: None,
            has_ended: false,
        }
    }

    /// The next taken event in the range.
    fn next_taken(&mut self) -> Option<Signal> {
        while let Some(event) = self.taken.pop_front() {
            self.looked = event.revision;
            if self.range.contains(event.key.as_str()) {
                self.delivered = event.revision;
                return Some(Signal::Change((*event).clone()));
            }
        }
        None
    }

    /// A progress signal, if `current` is new to the reader or progress was requested.
    fn progress(&mut self, current: Revision) -> Option<Signal> {
        let requests = self.parts.published.progress_requests();
        if self.delivered >= current && self.seen_requests >= requests {
            return None;
        }
        self.seen_requests = requests;
        self.delivered = self.delivered.max(current);
        Some(Signal::Progress(self.delivered))
    }

    fn end(&mut self, floor: Revision) -> Signal {
        self.has_ended = true;
        self.taken.clear();
        self.reading = None;
        Signal::Compacted(floor)
    }

    /// Reads the next events from disk. Returns a signal if the watch ends here. Cancel safe.
    async fn replay(&mut self, through: Revision) -> Option<Signal> {
        let reading = match &mut self.reading {
            Some(reading) => reading,
            none => none.insert(Reading::begin(&self.parts, self.looked, through)),
        };
        let read = (&mut reading.task).await;
        let (seen, through) = (reading.seen, reading.through);
        self.reading = None;
        let floor = self.parts.retention.floors().watchable_from;
        if seen.next() < floor {
            return Some(self.end(floor));
        }
        match read {
            Ok(Some(Ok(events))) => {
                self.taken.extend(events);
                None
            }
            Ok(Some(Err(HistoryError::Damaged { revision, reason }))) => {
                self.parts.metrics.checksum_failures.inc();
                tracing::error!(%revision, reason, "history is damaged: the watch ends and its client must list again");
                Some(self.end(through.next()))
            }
            Ok(Some(Err(error))) => {
                tracing::error!(
                    ?error,
                    "history cannot be read: the watch ends and its client must list again"
                );
                Some(self.end(through.next()))
            }
            Ok(None) | Err(_) => {
                self.has_ended = true;
                None
            }
        }
    }
}

impl Events for RocksEvents {
    async fn next(&mut self) -> Option<Signal> {
        while !self.has_ended {
            if let Some(signal) = self.next_taken() {
                return Some(signal);
            }
            self.pulse.borrow_and_update();
            let floor = self.parts.retention.floors().watchable_from;
            if self.looked.next() < floor && !self.parts.lifecycle.is_closed() {
                return Some(self.end(floor));
            }
            match self.parts.published.following(self.looked) {
                Following::Closed => self.has_ended = true,
                Following::OnDisk(through) => {
                    if let Some(signal) = self.replay(through).await {
                        return Some(signal);
                    }
                }
                Following::Events(events, current) if events.is_empty() => {
                    if let Some(signal) = self.progress(current) {
                        return Some(signal);
                    }
                    if self.pulse.changed().await.is_err() {
                        self.has_ended = true;
                    }
                }
                Following::Events(events, _) => self.taken.extend(events),
            }
        }
        None
    }
}

impl Drop for RocksEvents {
    fn drop(&mut self) {
        self.parts.metrics.watches.dec();
    }
}
