//! What happens without being asked for?
//!
//! A thread of its own syncs the mark (and, in relaxed mode, the log), watches the disk, lets go of history that is
//! older than the window, and removes whole files below the floor. It never touches the commit path but through
//! its queue.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::Shared;
use super::commit::Message;
use super::compact::Keep;
use super::disk::{NO_ROOM_BYTES, Room, judge};
use super::mark::Mark;
use super::queue::Weight;
use crate::StoreError;
use crate::clock::Stopwatch;
use crate::metrics::{Unit, gauge_value};
use crate::options::Durability;

/// How often the mark is synced.
const SYNC_MARK_EVERY: Duration = Duration::from_secs(1);
/// How often free bytes are looked at.
const WATCH_DISK_EVERY: Duration = Duration::from_secs(5);
/// How often history is let go of.
const COMPACT_EVERY: Duration = Duration::from_mins(1);
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
    fn wait(&self, pause: Duration) -> bool {
        let is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        if *is_set {
            return true;
        }
        let waited = self.changed.wait_timeout(is_set, pause);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// The housekeeping thread.
pub(crate) struct Housekeeping {
    pub(crate) shared: Arc<Shared>,
    pub(crate) stop: Arc<Stop>,
}

impl Housekeeping {
    /// Works until told to stop.
    pub(crate) fn run(self) {
        let since = Stopwatch::start();
        let sync_every = match self.shared.durability {
            Durability::Strict => SYNC_MARK_EVERY,
            Durability::Relaxed { interval } => interval.min(SYNC_MARK_EVERY),
        };
        let mut disk_at = Duration::ZERO;
        let mut compact_at = COMPACT_EVERY;
        let mut drop_at = DROP_FILES_EVERY;
        while !self.stop.wait(sync_every) {
            self.sync();
            let now = since.elapsed();
            if now >= disk_at {
                self.watch_disk();
                disk_at = now + WATCH_DISK_EVERY;
            }
            if now >= compact_at {
                self.compact();
                compact_at = now + COMPACT_EVERY;
            }
            if now >= drop_at {
                self.drop_files();
                drop_at = now + DROP_FILES_EVERY;
            }
        }
    }

    /// Everything once, for those who advance time themselves.
    pub(crate) fn once(&self) {
        self.sync();
        self.watch_disk();
        self.compact();
        self.drop_files();
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
        engine.sync_log().map_err(|error| error.to_string())?;
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

    fn watch_disk(&self) {
        let metrics = &self.shared.metrics;
        let waiting = self.shared.queue.weight();
        for (unit, amount) in [("writes", waiting.writes), ("bytes", waiting.bytes)] {
            let gauge = metrics.commit_queue.get_or_create(&Unit { unit }).clone();
            gauge.set(gauge_value(amount as u64));
        }
        let room = match (self.shared.measure_disk)(&self.shared.folder) {
            Ok(space) => {
                metrics.disk_free_bytes.set(gauge_value(space.free));
                if space.free >= NO_ROOM_BYTES {
                    self.shared.poison.allow_writes();
                }
                judge(space)
            }
            Err(error) => {
                tracing::warn!(%error, "the free bytes of the disk are not known");
                return;
            }
        };
        let before = self.shared.set_room(room);
        if room > before {
            tracing::warn!(?room, "the disk fills up");
            self.compact();
            self.drop_files();
        }
    }

    /// Raises the floors to the start of the window.
    fn compact(&self) {
        let since = Stopwatch::start();
        let shared = &self.shared;
        let now_ms = shared.clock.now_ms();
        let mut keep = shared.keep;
        if shared.room() > Room::Plenty {
            keep = Keep {
                window: keep.minimum_window,
                watchable_revisions: 0,
                ..keep
            };
        }
        let floors = shared.floors();
        let wanted = shared.timeline().floors(now_ms, shared.current(), floors, keep);
        if wanted != floors {
            let (reply, answer) = oneshot::channel();
            let message = Message::Compact { wanted, reply };
            let weight = Weight { writes: 1, bytes: 0 };
            if shared.queue.push(message, weight).is_err() {
                return;
            }
            match answer.blocking_recv() {
                Ok(Ok(())) | Err(_) => {}
                // The next round tries again.
                Ok(Err(StoreError::ReadOnly { .. })) => return,
                Ok(Err(error)) => tracing::warn!(%error, "history was not let go of"),
            }
        }
        shared.timeline().trim(shared.floors());
        let window = shared.timeline().window_seconds(now_ms, shared.floors());
        shared.metrics.window_seconds.set(gauge_value(window));
        shared
            .metrics
            .compaction_seconds
            .observe(since.elapsed().as_secs_f64());
        let Ok(engine) = shared.engine() else {
            return;
        };
        match engine.pressure() {
            Ok((true, pending)) => {
                tracing::warn!(pending, "the engine takes no writes until it has compacted");
            }
            Ok((false, _)) => {}
            Err(error) => tracing::warn!(%error, "the pressure of the engine is not known"),
        }
    }

    fn drop_files(&self) {
        fail::fail_point!("compact-between-families");
        let Ok(engine) = self.shared.engine() else {
            return;
        };
        if let Err(error) = engine.drop_history_files(self.shared.floors().watchable_from) {
            tracing::warn!(%error, "files of old history were not removed");
        }
    }
}
