//! How does a reader follow the store?
//!
//! A watch is a cursor. It takes changes from the tail in memory; behind the tail it reads history from disk, a few
//! such readers at a time, until it has caught up. It never holds up the commit thread.

use std::collections::VecDeque;
use std::sync::Arc;

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::Shared;
use super::history::{HistoryError, read_after};
use super::tail::Following;
use crate::{Event, Events, KeyRange, Revision, Signal};

/// The watch of a [`RocksStore`](super::RocksStore).
pub struct RocksEvents {
    shared: Arc<Shared>,
    pulse: watch::Receiver<u64>,
    range: KeyRange,
    /// Taken from tail or disk, not looked at yet.
    taken: VecDeque<Arc<Event>>,
    /// Every event up to this revision has been looked at.
    looked: Revision,
    /// Every event up to this revision has been delivered.
    delivered: Revision,
    seen_requests: u64,
    /// A read of history that is under way, for whoever asks next: who stops waiting for it loses neither what it reads
    /// nor its turn.
    reading: Option<Reading>,
    has_ended: bool,
}

/// A read of the changes behind `seen`, up to `through`. Given up when it is dropped.
struct Reading {
    seen: Revision,
    through: Revision,
    /// Nothing when the store is closed.
    task: JoinHandle<Option<Result<Vec<Arc<Event>>, HistoryError>>>,
}

impl Reading {
    fn begin(shared: &Arc<Shared>, seen: Revision, through: Revision) -> Self {
        let shared = Arc::clone(shared);
        let task = tokio::spawn(async move {
            let permit = Arc::clone(&shared.replays).acquire_owned().await.ok()?;
            let engine = shared.engine().ok()?;
            shared.metrics.replays.inc();
            let read = tokio::task::spawn_blocking(move || {
                // The read goes on when nobody waits for it any more, and so does its turn.
                let _permit = permit;
                read_after(&engine, &shared.records, seen, through)
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
    pub(crate) fn new(shared: Arc<Shared>, range: KeyRange, first: Revision) -> Self {
        shared.metrics.watches.inc();
        Self {
            pulse: shared.tail.pulse(),
            seen_requests: shared.tail.progress_requests(),
            // No record belongs to the revision a store began at.
            looked: first.previous().max(shared.origin),
            shared,
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

    /// Tells how far the store is, if that is news or was asked for.
    fn progress(&mut self, current: Revision) -> Option<Signal> {
        let requests = self.shared.tail.progress_requests();
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

    /// Takes what follows from the disk. A signal if the watch ends here. Cancel safe.
    async fn replay(&mut self, through: Revision) -> Option<Signal> {
        let reading = match &mut self.reading {
            Some(reading) => reading,
            none => none.insert(Reading::begin(&self.shared, self.looked, through)),
        };
        let read = (&mut reading.task).await;
        let (seen, through) = (reading.seen, reading.through);
        self.reading = None;
        let floor = self.shared.floors().watchable_from;
        if seen.next() < floor {
            return Some(self.end(floor));
        }
        match read {
            Ok(Some(Ok(events))) => {
                self.taken.extend(events);
                None
            }
            Ok(Some(Err(HistoryError::Damaged { revision, reason }))) => {
                self.shared.metrics.checksum_failures.inc();
                tracing::error!(%revision, reason, "history is damaged: the watch starts over behind it");
                Some(self.end(through.next()))
            }
            Ok(Some(Err(error))) => {
                tracing::error!(?error, "history cannot be read: the watch starts over behind it");
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
            let floor = self.shared.floors().watchable_from;
            if self.looked.next() < floor && !self.shared.poison.is_closed() {
                return Some(self.end(floor));
            }
            match self.shared.tail.read(self.looked) {
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
        self.shared.metrics.watches.dec();
    }
}
