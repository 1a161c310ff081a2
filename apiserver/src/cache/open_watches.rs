//! Where each open watch is. The feeder looks at these cursors once a second to find watches that lag: a watch whose
//! client reads nothing is not polled and cannot report itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drydock_storage::Revision;
use tokio::time::Instant;

use super::class::Class;
use super::history::History;
use super::lock::lock;

/// A watch lags when an event has been waiting for it for this long.
const LAGGING: Duration = Duration::from_secs(1);

/// Where a watch is.
#[derive(Debug)]
pub(super) struct Cursor {
    class: Arc<Class>,
    /// The position of the next event to look at, or [`NOT_LIVE`].
    next: AtomicU64,
    /// Every event up to this revision has been sent.
    seen: AtomicU64,
}

/// In place of a position: the watch reads something other than events in memory.
const NOT_LIVE: u64 = u64::MAX;

/// In place of a position: the watch reads nothing more. Behind every real position, so such a watch does not lag.
const ENDED: u64 = u64::MAX - 1;

impl Cursor {
    /// The watch reads events in memory, from `next` on.
    pub(super) fn set_live(&self, next: u64, seen: Revision) {
        self.set(next, seen);
    }

    /// The watch waits, or reads initial events or the store's history.
    pub(super) fn set_not_live(&self, seen: Revision) {
        self.set(NOT_LIVE, seen);
    }

    /// The watch reads nothing more.
    pub(super) fn set_ended(&self, seen: Revision) {
        self.set(ENDED, seen);
    }

    fn set(&self, next: u64, seen: Revision) {
        self.seen.store(seen.0, Ordering::Relaxed);
        self.next.store(next, Ordering::Relaxed);
    }

    /// The number of revisions from the first event that has been waiting for [`LAGGING`] up to `applied`; 0 for a
    /// watch that does not lag.
    fn lag(&self, history: &History, applied: Revision, now: Instant) -> u64 {
        let next = self.next.load(Ordering::Relaxed);
        let behind = |revision: Revision| applied.0.saturating_sub(revision.0);
        if next == NOT_LIVE {
            return behind(Revision(self.seen.load(Ordering::Relaxed)));
        }
        let Some(pending) = self.class.pending(next) else {
            return 0;
        };
        match history.at(std::iter::once(pending)).first() {
            Some(event) if now.duration_since(event.at) < LAGGING => 0,
            Some(event) => behind(event.revision.previous()),
            None => behind(history.floor()).max(1),
        }
    }
}

/// The cursors of all open watches of a cache.
#[derive(Debug)]
pub(super) struct OpenWatches {
    cursors: Mutex<HashMap<u64, Arc<Cursor>>>,
    opened: AtomicU64,
    random: Mutex<fastrand::Rng>,
}

/// What a watch gets when it is opened.
pub(super) struct Opened {
    /// Identifies the watch among all watches of the cache.
    pub(super) id: u64,
    pub(super) cursor: Arc<Cursor>,
    /// The watch's own source of jitter.
    pub(super) random: fastrand::Rng,
}

impl OpenWatches {
    pub(super) fn new(random: fastrand::Rng) -> Self {
        Self {
            cursors: Mutex::default(),
            opened: AtomicU64::new(0),
            random: Mutex::new(random),
        }
    }

    /// Registers a watch of `class` at `next`. It must be closed.
    pub(super) fn open(&self, class: &Arc<Class>, next: u64, seen: Revision) -> Opened {
        let id = self.opened.fetch_add(1, Ordering::Relaxed);
        let cursor = Arc::new(Cursor {
            class: Arc::clone(class),
            next: AtomicU64::new(next),
            seen: AtomicU64::new(seen.0),
        });
        lock(&self.cursors).insert(id, Arc::clone(&cursor));
        Opened {
            id,
            cursor,
            random: lock(&self.random).fork(),
        }
    }

    pub(super) fn close(&self, id: u64) {
        lock(&self.cursors).remove(&id);
    }

    /// How many revisions each open watch lags behind `applied`; 0 for one that does not.
    pub(super) fn lags(&self, history: &History, applied: Revision, now: Instant) -> Vec<u64> {
        // Copied first: looking at class logs and the history must not block watches that open or close.
        let cursors: Vec<_> = lock(&self.cursors).values().cloned().collect();
        let lags = cursors.iter().map(|cursor| cursor.lag(history, applied, now));
        lags.collect()
    }
}
