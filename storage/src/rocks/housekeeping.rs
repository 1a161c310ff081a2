//! Periodic work.
//!
//! One thread syncs the mark (and the log, in relaxed mode), so that nothing delays the promise of relaxed mode. Another
//! one measures the disk and the engine, opens values that did
//! not open before, has history older than the window dropped, and removes whole files below the
//! durable floor. They affect commits only through the queue. A panic of either poisons the store: without them the disk
//! fills, or the promise is not kept.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::capacity::NO_ROOM_BYTES;
use super::disk_probe::try_room;
use super::parts::Parts;
use crate::StoreError;
use crate::clock::Stopwatch;
use crate::options::Durability;
use crate::sync::lock;

/// How often the mark is synced.
const SYNC_MARK_EVERY: Duration = Duration::from_secs(1);
/// How often the thread checks what is due.
const TICK: Duration = Duration::from_secs(1);
/// How often the disk and the engine are measured.
const MEASURE_EVERY: Duration = Duration::from_secs(5);
/// How often history is dropped.
const COMPACT_EVERY: Duration = Duration::from_mins(1);
/// When a failed compaction is retried.
const COMPACT_RETRY: Duration = Duration::from_secs(5);
/// How often whole files below the floor are removed.
const DROP_FILES_EVERY: Duration = Duration::from_mins(10);

/// Tells threads to stop.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    pub(crate) fn set(&self) {
        *lock(&self.is_set) = true;
        self.changed.notify_all();
    }

    /// Whether to stop.
    pub(crate) fn is_set(&self) -> bool {
        *lock(&self.is_set)
    }

    /// Waits for at most `pause`; returns whether to stop.
    pub(crate) fn wait(&self, pause: Duration) -> bool {
        let is_set = lock(&self.is_set);
        if *is_set {
            return true;
        }
        let waited = self.changed.wait_timeout(is_set, pause);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The periodic work of a store.
pub(crate) struct Housekeeping {
    pub(crate) parts: Arc<Parts>,
    pub(crate) stop: Arc<Stop>,
}

/// The result of a queued compaction.
type Compacting = oneshot::Receiver<Result<(), StoreError>>;

impl Housekeeping {
    /// Measures and compacts until stopped.
    pub(crate) fn run(self) {
        self.or_poison("housekeeping", || self.run_rounds());
    }

    /// Syncs until stopped.
    pub(crate) fn run_syncs(self) {
        let every = match self.parts.settings.durability {
            Durability::Strict => SYNC_MARK_EVERY,
            Durability::Relaxed { interval } => interval.min(SYNC_MARK_EVERY),
        };
        self.or_poison("the sync thread", || {
            while !self.stop.wait(every) {
                fail::fail_point!("sync-round");
                self.sync();
            }
        });
    }

    fn or_poison(&self, who: &str, work: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            self.parts.lifecycle.poison(&format!("{who} panicked"));
        }
    }

    fn run_rounds(&self) {
        let since = Stopwatch::start();
        let mut compacting: Option<Compacting> = None;
        let mut measure_at = Duration::ZERO;
        let (mut compact_at, mut drop_at) = if self.parts.capacity.is_short() {
            (Duration::ZERO, Duration::ZERO)
        } else {
            (COMPACT_EVERY, DROP_FILES_EVERY)
        };
        loop {
            fail::fail_point!("housekeeping-round");
            let now = since.elapsed();
            if now >= measure_at {
                if self.measure() {
                    (compact_at, drop_at) = (now, now);
                }
                measure_at = now + MEASURE_EVERY;
            }
            self.reopen();
            // A stalled commit thread replies late; the disk is measured meanwhile.
            if let Some(mut result) = compacting.take() {
                match result.try_recv() {
                    Err(oneshot::error::TryRecvError::Empty) => compacting = Some(result),
                    result => {
                        if !self.finish_compaction(result.ok()) {
                            compact_at = now + COMPACT_RETRY;
                        }
                    }
                }
            }
            if compacting.is_none() && now >= compact_at {
                compacting = self.begin_compaction();
                compact_at = now + COMPACT_EVERY;
            }
            if compacting.is_none() && now >= drop_at {
                self.drop_files();
                drop_at = now + DROP_FILES_EVERY;
            }
            if self.stop.wait(TICK) {
                return;
            }
        }
    }

    /// Does everything once, for callers that advance time themselves. The sync comes last: nothing before it may depend
    /// on one.
    pub(crate) fn once(&self) {
        self.measure();
        self.reopen();
        if let Some(result) = self.begin_compaction() {
            self.finish_compaction(result.blocking_recv().ok());
        }
        self.drop_files();
        self.sync();
    }

    fn reopen(&self) {
        if let Err(error) = self.parts.reopen(&self.stop) {
            tracing::warn!(%error, "sealed values were not tried again");
        }
    }

    /// Syncs the mark; in relaxed mode the log before it.
    fn sync(&self) {
        if self.parts.lifecycle.is_poisoned() {
            return;
        }
        let synced = match self.parts.settings.durability {
            Durability::Strict => self.parts.mark.sync().map_err(|error| error.to_string()),
            Durability::Relaxed { .. } => self.sync_relaxed(),
        };
        if let Err(reason) = synced {
            self.parts.lifecycle.poison(&format!("a sync failed: {reason}"));
        }
    }

    fn sync_relaxed(&self) -> Result<(), String> {
        let synced = self.parts.published.current();
        let engine = self.parts.lifecycle.engine().map_err(|error| error.to_string())?;
        let since = Stopwatch::start();
        engine.sync_log().map_err(|error| error.to_string())?;
        let took = since.elapsed().as_secs_f64();
        self.parts.metrics.sync_seconds.observe(took);
        fail::fail_point!("relaxed-after-sync");
        let mark = &self.parts.mark;
        let written = mark.write(synced, false).and_then(|()| mark.sync());
        written.map_err(|error| error.to_string())
    }

    /// Measures the disk and the engine; returns whether there is less room than the last time.
    fn measure(&self) -> bool {
        let parts = &*self.parts;
        parts.retention.observe_window();
        let floor = parts.retention.floors().listable_from;
        parts.past_reads.drop_stale(floor, parts.retention.now_ms());
        if let Ok(engine) = parts.lifecycle.engine() {
            parts.observe_pressure(&engine);
        }
        match parts.capacity.measure() {
            Ok((space, has_shrunk)) => {
                if space.free >= NO_ROOM_BYTES && parts.lifecycle.is_read_only() {
                    self.allow_writes();
                }
                has_shrunk
            }
            Err(error) => {
                tracing::warn!(%error, "the free disk space cannot be measured");
                false
            }
        }
    }

    /// Accepts writes again if the disk does. A quota may be used up while the disk shows free space, and a write of the
    /// engine that failed over it would have an unknown outcome.
    fn allow_writes(&self) {
        match try_room(&self.parts.settings.folder) {
            Ok(()) => self.parts.lifecycle.allow_writes(),
            Err(error) => tracing::warn!(%error, "the disk shows free space but accepts no write"),
        }
    }

    /// Asks the commit thread to raise the floors to the start of the window; none if they are there.
    fn begin_compaction(&self) -> Option<Compacting> {
        let parts = &*self.parts;
        let wanted = parts
            .retention
            .due(parts.published.current(), parts.capacity.is_short())?;
        let queued = parts.queue_compaction(wanted, true).ok();
        if queued.is_none() {
            parts.metrics.compactions_skipped.inc();
        }
        queued
    }

    /// Takes the result of a compaction, none if the commit thread ended without one; returns whether history was dropped.
    fn finish_compaction(&self, result: Option<Result<(), StoreError>>) -> bool {
        let parts = &*self.parts;
        if let Some(Ok(())) = result {
            parts.retention.trim();
            parts.retention.observe_window();
            return true;
        }
        parts.metrics.compactions_skipped.inc();
        if let Some(Err(error)) = result
            && !matches!(error, StoreError::ReadOnly { .. })
        {
            tracing::warn!(%error, "history was not dropped");
        }
        false
    }

    /// Removes files below the durable floor: the published one may be above what a start would find.
    pub(crate) fn drop_files(&self) {
        fail::fail_point!("compact-between-families");
        if self.parts.lifecycle.is_poisoned() {
            return;
        }
        let Ok(engine) = self.parts.lifecycle.engine() else {
            return;
        };
        if let Err(error) = engine.drop_history_files(self.parts.retention.durable_floor()) {
            tracing::warn!(%error, "files of old history were not removed");
        }
    }
}
