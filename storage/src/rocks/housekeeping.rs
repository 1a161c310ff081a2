//! What happens without being asked for?
//!
//! One thread syncs the mark (and, in relaxed mode, the log), so that nothing delays the promise of relaxed mode.
//! Another one watches the disk and the engine, lets go of history that is older than the window, and removes whole
//! files below the floor that is durable. They never touch the commit path but through its queue. A panic of either
//! poisons the store: without them a store fills its disk, or keeps no promise.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::Shared;
use super::commit::Message;
use super::compact::Keep;
use super::disk::{NO_ROOM_BYTES, Room, judge};
use super::mark::Mark;
use super::open::try_room;
use super::queue::Weight;
use super::read::forget_stale;
use crate::StoreError;
use crate::clock::Stopwatch;
use crate::metrics::gauge_value;
use crate::options::Durability;

/// How often the mark is synced.
const SYNC_MARK_EVERY: Duration = Duration::from_secs(1);
/// How often the thread looks what is due.
const TICK: Duration = Duration::from_secs(1);
/// How often the disk and the engine are looked at.
const WATCH_EVERY: Duration = Duration::from_secs(5);
/// How often history is let go of.
const COMPACT_EVERY: Duration = Duration::from_mins(1);
/// How soon letting go is tried again when it failed.
const COMPACT_AGAIN: Duration = Duration::from_secs(5);
/// How often whole files below the floor are removed.
const DROP_FILES_EVERY: Duration = Duration::from_mins(10);

/// Tells the thread to stop.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    pub(crate) fn set(&self) {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits; whether it is time to stop.
    pub(crate) fn wait(&self, pause: Duration) -> bool {
        let is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_set {
            return true;
        }
        let waited = self.changed.wait_timeout(is_set, pause);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// What the threads of a store do beside commits.
pub(crate) struct Housekeeping {
    pub(crate) shared: Arc<Shared>,
    pub(crate) stop: Arc<Stop>,
}

/// The answer of the commit thread to the wish to let go of history.
type Compacting = oneshot::Receiver<Result<(), StoreError>>;

impl Housekeeping {
    /// Watches and lets go until told to stop.
    pub(crate) fn run(self) {
        self.or_poison("housekeeping", || self.keep());
    }

    /// Syncs until told to stop.
    pub(crate) fn run_syncs(self) {
        let every = match self.shared.durability {
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
            self.shared.poison.poison(&format!("{who} panicked"));
        }
    }

    fn keep(&self) {
        let since = Stopwatch::start();
        let mut compacting: Option<Compacting> = None;
        let mut watch_at = Duration::ZERO;
        let (mut compact_at, mut drop_at) = match self.shared.room() {
            Room::Plenty => (COMPACT_EVERY, DROP_FILES_EVERY),
            Room::Short | Room::Critical => (Duration::ZERO, Duration::ZERO),
        };
        loop {
            fail::fail_point!("housekeeping-round");
            let now = since.elapsed();
            if now >= watch_at {
                if self.watch() {
                    (compact_at, drop_at) = (now, now);
                }
                watch_at = now + WATCH_EVERY;
            }
            // A stalled commit thread answers late; the disk is watched meanwhile.
            if let Some(mut answer) = compacting.take() {
                match answer.try_recv() {
                    Err(oneshot::error::TryRecvError::Empty) => compacting = Some(answer),
                    answer => {
                        if !self.compacted(answer.ok()) {
                            compact_at = now + COMPACT_AGAIN;
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

    /// Everything once, for those who advance time themselves. The sync comes last: nothing before it may rely on one.
    pub(crate) fn once(&self) {
        self.watch();
        if let Some(answer) = self.begin_compaction() {
            self.compacted(answer.blocking_recv().ok());
        }
        self.drop_files();
        self.sync();
    }

    /// Syncs the mark; in relaxed mode the log before it.
    fn sync(&self) {
        if self.shared.poison.is_poisoned() {
            return;
        }
        let synced = match self.shared.durability {
            Durability::Strict => self.shared.mark_file.sync().map_err(|error| error.to_string()),
            Durability::Relaxed { .. } => self.sync_relaxed(),
        };
        if let Err(reason) = synced {
            self.shared.poison.poison(&format!("a sync failed: {reason}"));
        }
    }

    fn sync_relaxed(&self) -> Result<(), String> {
        let synced = self.shared.current();
        let engine = self.shared.engine().map_err(|error| error.to_string())?;
        let since = Stopwatch::start();
        engine.sync_log().map_err(|error| error.to_string())?;
        let took = since.elapsed().as_secs_f64();
        self.shared.metrics.sync_seconds.observe(took);
        fail::fail_point!("relaxed-after-sync");
        let mark = Mark {
            synced,
            ..self.shared.mark_template(self.shared.clock.now_ms())
        };
        let written = self
            .shared
            .mark_file
            .write(&mark)
            .and_then(|()| self.shared.mark_file.sync());
        written.map_err(|error| error.to_string())
    }

    /// Looks at the disk and the engine; whether there is less room than the last time.
    fn watch(&self) -> bool {
        self.shared.observe_window();
        forget_stale(&self.shared);
        if let Ok(engine) = self.shared.engine() {
            self.shared.observe_pressure(&engine);
        }
        match (self.shared.measure_disk)(&self.shared.folder) {
            Ok(space) => {
                self.shared.metrics.disk_free_bytes.set(gauge_value(space.free));
                if space.free >= NO_ROOM_BYTES && self.shared.poison.is_read_only() {
                    self.allow_writes();
                }
                let room = judge(space);
                let is_less = room > self.shared.set_room(room);
                if is_less {
                    tracing::warn!(?room, "the disk fills up");
                }
                is_less
            }
            Err(error) => {
                tracing::warn!(%error, "the free bytes of the disk are not known");
                false
            }
        }
    }

    /// Takes writes again if the disk does: a quota may be used up where the disk shows room, and a write of the engine
    /// that failed over it would end in doubt.
    fn allow_writes(&self) {
        match try_room(&self.shared.folder) {
            Ok(()) => self.shared.poison.allow_writes(),
            Err(error) => tracing::warn!(%error, "the disk shows room and takes no write"),
        }
    }

    /// Asks the commit thread to raise the floors to the start of the window; nothing if they are there.
    fn begin_compaction(&self) -> Option<Compacting> {
        let shared = &self.shared;
        let mut keep = shared.keep;
        if shared.room() > Room::Plenty {
            keep = Keep {
                window: keep.window.min(keep.minimum_window),
                watchable_revisions: 0,
                ..keep
            };
        }
        let floors = shared.floors();
        let now_ms = shared.steady_ms();
        let wanted = shared.timeline().floors(now_ms, shared.current(), floors, keep);
        if wanted == floors {
            shared.timeline().trim(floors);
            return None;
        }
        let (reply, answer) = oneshot::channel();
        let message = Message::Compact {
            wanted,
            queued: Stopwatch::start(),
            reply,
        };
        // A queue that is full for long is when letting go matters most.
        let weight = Weight { writes: 1, bytes: 0 };
        if shared.queue.push_regardless(message, weight).is_err() {
            shared.metrics.compactions_skipped.inc();
            return None;
        }
        Some(answer)
    }

    /// Takes the commit thread's answer, none if it ended without one; whether history was let go of.
    fn compacted(&self, answer: Option<Result<(), StoreError>>) -> bool {
        let shared = &self.shared;
        if let Some(Ok(())) = answer {
            shared.timeline().trim(shared.floors());
            shared.observe_window();
            return true;
        }
        shared.metrics.compactions_skipped.inc();
        if let Some(Err(error)) = answer
            && !matches!(error, StoreError::ReadOnly { .. })
        {
            tracing::warn!(%error, "history was not let go of");
        }
        false
    }

    /// Removes files below the durable floor: the published one may be ahead of what a start would find.
    pub(crate) fn drop_files(&self) {
        fail::fail_point!("compact-between-families");
        if self.shared.poison.is_poisoned() {
            return;
        }
        let Ok(engine) = self.shared.engine() else {
            return;
        };
        if let Err(error) = engine.drop_history_files(self.shared.durable_floor()) {
            tracing::warn!(%error, "files of old history were not removed");
        }
    }
}
