//! Is what lies on the disk still what was written?
//!
//! Once a week every value of `state` and `history` is read and compared with its checksums, those of the engine's
//! blocks and those of our records, on a thread of the least priority and at a bounded rate. What is read is a checkpoint
//! (the same files under a second name), by an engine of its own: the one that runs would answer from its cache, and what
//! it has in memory says nothing about the disk.
//!
//! A damaged value of `state` is set apart at once, as a start would do. Below a damaged record of `history` nothing can
//! be read through any more: the floors rise above it, so that its readers start over.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::oneshot;

use super::column_families::{
    Access, Engine, HISTORY, Meta, Recovery, STATE, View, history_key, parse_history_key,
};
use super::commit::Message;
use super::disk::Room;
use super::error::OpenError;
use super::format::write_durably;
use super::housekeeping::Stop;
use super::index::Slot;
use super::progress::read_row;
use super::queue::Weight;
use super::read::engine_failed;
use super::{RocksStore, Shared};
use crate::clock::Stopwatch;
use crate::metrics::gauge_value;
use crate::record::{RecordError, StoredChange};
use crate::{Floors, Key, Revision, StoreError};

/// How often the thread looks whether a pass is due.
const TICK: Duration = Duration::from_mins(1);
/// How soon a pass that did not end is begun again: an hour.
const AGAIN_MS: u64 = 3_600_000;
/// How much is read between two pauses.
const SLICE_BYTES: usize = 256 << 10;
/// How much is read in a second: two gigabytes in about four minutes, beside disks that do a hundred times that.
const BYTES_A_SECOND: u64 = 8 << 20;
/// The nice value of the thread: the least priority there is.
const NICE: i32 = 19;

/// What a pass over all values found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckReport {
    /// Values of `state` that were read.
    pub objects: u64,
    /// Records of `history` that were read.
    pub history_records: u64,
    /// Keys whose value was found to be damaged and was set apart.
    pub damaged: Vec<String>,
    /// Revisions whose record was found to be damaged; the floors stand above them now.
    pub damaged_history: Vec<u64>,
}

/// Waits for so long; whether to stop.
type Pause<'a> = dyn Fn(Duration) -> bool + 'a;

impl RocksStore {
    /// Reads every value from the disk and compares it with its checksums, without pauses. Blocks.
    ///
    /// # Errors
    /// The engine cannot be read, which says nothing about the values.
    pub fn check_values(&self) -> Result<CheckReport, StoreError> {
        check(&self.shared, &|_| false)
    }
}

/// Where the files that are read stand under a second name.
const FOLDER: &str = "check";

/// One pass, from taking the checkpoint to removing it.
fn check(shared: &Shared, pause: &Pause<'_>) -> Result<CheckReport, StoreError> {
    let folder = shared.folder.join(FOLDER);
    let unavailable = |error: std::io::Error| StoreError::Unavailable {
        reason: format!("{}: {error}", folder.display()),
    };
    remove(&folder).map_err(unavailable)?;
    let taken = shared.engine()?.checkpoint(&folder);
    let checked = taken.map_err(|error| engine_failed(&error)).and_then(|()| {
        let engine = Engine::open(&folder, Access::ReadOnly, Recovery::Strict)
            .map_err(|error| does_not_open(&error))?;
        let view = engine.view();
        let revision = view.meta(Meta::Revision).map_err(|error| engine_failed(&error))?;
        let check = Check {
            shared,
            pause,
            revision: Revision(revision.unwrap_or_default()),
            view,
            report: CheckReport::default(),
        };
        check.run()
    });
    if matches!(checked, Err(StoreError::Corrupt { .. })) {
        shared.metrics.value_check_failures.inc();
    }
    remove(&folder).map_err(unavailable)?;
    checked
}

fn does_not_open(error: &OpenError) -> StoreError {
    let reason = error.to_string();
    match error {
        OpenError::Damaged { .. } => StoreError::Corrupt {
            key: "the engine's files".to_owned(),
            reason,
        },
        _ => StoreError::Unavailable { reason },
    }
}

fn remove(folder: &Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// The thread that checks when it is due.
pub(crate) struct Checker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) stop: Arc<Stop>,
    pub(crate) every: Duration,
}

impl Checker {
    /// Works until told to stop.
    pub(crate) fn run(self) {
        // Of this thread alone, on Linux. Where it is refused, the rate is the limit.
        if let Err(error) = rustix::process::setpriority_process(None, NICE) {
            tracing::debug!(%error, "the check of values runs at the usual priority");
        }
        // What a pass left behind that was cut short.
        if let Err(error) = remove(&self.shared.folder.join(FOLDER)) {
            tracing::warn!(%error, "an old checkpoint was not removed");
        }
        let path = checked_path(&self.shared.folder);
        // The first pass is due a while after a store is first seen.
        let mut last_ms = read_checked(&path).unwrap_or_else(|| self.note_checked(&path));
        let mut again_ms = 0;
        while !self.stop.wait(TICK.min(self.every)) {
            let now_ms = self.shared.clock.now_ms();
            let is_due = u128::from(now_ms.saturating_sub(last_ms)) >= self.every.as_millis();
            if !is_due || now_ms < again_ms {
                continue;
            }
            if self.shared.room() > Room::Plenty {
                // The checkpoint keeps what compaction would remove.
                continue;
            }
            let pass = || check(&self.shared, &|pause| self.stop.wait(pause));
            match catch_unwind(AssertUnwindSafe(pass)) {
                Ok(Ok(report)) => {
                    tracing::info!(?report, "every value was checked");
                    last_ms = self.note_checked(&path);
                    continue;
                }
                Ok(Err(StoreError::Closed { .. })) => return,
                Ok(Err(error)) => tracing::warn!(%error, "values were not checked to the end"),
                Err(_) => tracing::error!("the check of values panicked"),
            }
            again_ms = self.shared.clock.now_ms().saturating_add(AGAIN_MS);
        }
    }

    fn note_checked(&self, path: &Path) -> u64 {
        let now_ms = self.shared.clock.now_ms();
        if let Err(error) = write_durably(path, now_ms.to_string().as_bytes()) {
            tracing::warn!(%error, "when values were checked last is not written down");
        }
        now_ms
    }
}

/// Where the time of the last pass stands, in milliseconds since 1970.
fn checked_path(folder: &Path) -> PathBuf {
    folder.join("checked")
}

fn read_checked(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// One pass.
struct Check<'a> {
    shared: &'a Shared,
    pause: &'a Pause<'a>,
    view: View<'a>,
    /// The revision of what is read.
    revision: Revision,
    report: CheckReport,
}

/// How a slice of a pass ended.
enum Slice {
    /// Read on from this key.
    From(Vec<u8>),
    /// The engine's checks fail at or after this key.
    Damage(Vec<u8>),
    /// There is nothing more.
    End,
}

impl Check<'_> {
    fn run(mut self) -> Result<CheckReport, StoreError> {
        self.check_state()?;
        self.check_history()?;
        let metrics = &self.shared.metrics;
        let now_seconds = self.shared.clock.now_ms() / 1000;
        metrics.values_checked_seconds.set(gauge_value(now_seconds));
        Ok(self.report)
    }

    /// Reads a slice of a family from a key on and hands each row to `look`.
    fn slice(
        &self,
        family: &'static str,
        mut from: Vec<u8>,
        mut look: impl FnMut(&[u8], &[u8]),
    ) -> Result<Slice, StoreError> {
        let mut bytes = 0;
        let rows = self.view.check(family, &from);
        let mut rows = rows.map_err(|error| engine_failed(&error))?;
        while bytes < SLICE_BYTES {
            match rows.next() {
                Ok(None) => return Ok(Slice::End),
                Ok(Some((key, record))) => {
                    look(key, record);
                    bytes += key.len() + record.len();
                    from.clear();
                    from.extend_from_slice(key);
                    from.push(0);
                }
                Err(error) if error.is_damage() => return Ok(Slice::Damage(from)),
                Err(error) => return Err(engine_failed(&error)),
            }
        }
        Ok(Slice::From(from))
    }

    fn rest(&self) -> Result<(), StoreError> {
        let pause =
            Duration::from_secs(SLICE_BYTES as u64) / u32::try_from(BYTES_A_SECOND).unwrap_or(u32::MAX);
        if (self.pause)(pause) {
            return Err(super::closed());
        }
        Ok(())
    }

    fn check_state(&mut self) -> Result<(), StoreError> {
        let mut from = Vec::new();
        loop {
            let mut suspects = Vec::new();
            let mut seen = 0;
            let slice = self.slice(STATE, from, |key, record| {
                seen += 1;
                let text = String::from_utf8_lossy(key);
                if read_row(&self.shared.records, &text, record).is_err_and(|error| error.is_damage()) {
                    suspects.push(text.into_owned());
                }
            })?;
            self.report.objects += seen;
            for suspect in suspects {
                self.judge(&suspect)?;
            }
            from = match slice {
                Slice::End => return Ok(()),
                Slice::From(next) => next,
                Slice::Damage(at) => match self.pass_damaged_state(&at)? {
                    None => return Ok(()),
                    Some(next) => next,
                },
            };
            self.rest()?;
        }
    }

    /// Judges the keys from `at` on one by one until one can be read: the engine does not say which are damaged.
    fn pass_damaged_state(&mut self, at: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let index = self.shared.index();
        let mut keys: Vec<Key> = index.iter().map(|(key, _)| key.clone()).collect();
        drop(index);
        keys.retain(|key| key.as_str().as_bytes() >= at);
        keys.sort_unstable();
        for key in keys {
            if !self.judge(key.as_str())? {
                return Ok(Some(key.as_str().as_bytes().to_vec()));
            }
        }
        Ok(None)
    }

    /// Reads the record of a key alone, and sets it apart if it is damaged and has not been replaced since. Whether it is
    /// damaged.
    fn judge(&mut self, text: &str) -> Result<bool, StoreError> {
        let why = match self.view.state_record(text) {
            Ok(None) => return Ok(false),
            Ok(Some(record)) => match read_row(&self.shared.records, text, &record) {
                Err(error) if error.is_damage() => error.to_string(),
                Ok(_) | Err(_) => return Ok(false),
            },
            Err(error) if error.is_damage() => error.to_string(),
            Err(error) => return Err(engine_failed(&error)),
        };
        let mut index = self.shared.index_mut();
        let (key, place) = match index.find(text) {
            Some((key, slot @ Slot::Whole(entry))) if entry.modified <= self.revision => {
                (key.clone(), slot.place())
            }
            // Known already, or replaced meanwhile.
            _ => return Ok(true),
        };
        index.set(key, Some(Slot::Damaged(place)));
        drop(index);
        tracing::error!(key = text, why, "a value is damaged and set apart");
        self.count_failure();
        self.report.damaged.push(text.to_owned());
        Ok(true)
    }

    fn count_failure(&self) {
        self.shared.metrics.checksum_failures.inc();
        self.shared.metrics.value_check_failures.inc();
    }

    fn check_history(&mut self) -> Result<(), StoreError> {
        let mut from = history_key(self.shared.floors().watchable_from, 0).to_vec();
        loop {
            let mut damaged = None;
            let mut seen = 0;
            let slice = self.slice(HISTORY, from, |key, record| {
                seen += 1;
                let fault = match parse_history_key(key) {
                    None => Err(RecordError::Place),
                    Some(place) => StoredChange::decode(place, record)
                        .and_then(|stored| self.shared.records.event(stored).map(drop)),
                };
                if let Err(error) = fault
                    && error.is_damage()
                {
                    let revision =
                        parse_history_key(key).map_or(Revision::default(), |(revision, _)| revision);
                    damaged = Some((revision, error.to_string()));
                }
            })?;
            self.report.history_records += seen;
            from = match slice {
                Slice::End => {
                    return damaged.map_or(Ok(()), |(revision, why)| self.rise_above(revision, &why));
                }
                Slice::From(next) => next,
                Slice::Damage(at) => match self.pass_damaged_history(&at)? {
                    None => return Ok(()),
                    Some(next) => next,
                },
            };
            if let Some((revision, why)) = damaged {
                self.rise_above(revision, &why)?;
            }
            self.rest()?;
        }
    }

    /// Looks for the first revision from `at` on that can be read, and raises the floors to it.
    fn pass_damaged_history(&mut self, at: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let current = self.revision;
        // Of the revision before there may be more records; they are no better than nothing.
        let mut last = at
            .first_chunk::<8>()
            .map_or(self.shared.floors().watchable_from, |revision| {
                Revision(u64::from_be_bytes(*revision))
            });
        let mut why = String::new();
        while last <= current {
            let next = history_key(last.next(), 0);
            let read = self.view.check(HISTORY, &next);
            match read.and_then(|mut rows| rows.next().map(|_| ())) {
                Ok(()) => break,
                Err(error) if error.is_damage() => why = error.to_string(),
                Err(error) => return Err(engine_failed(&error)),
            }
            last = last.next();
        }
        self.rise_above(last.min(current), &why)?;
        Ok((last < current).then(|| history_key(last.next(), 0).to_vec()))
    }

    /// Raises the floors above a damaged revision, through the commit thread as ever.
    fn rise_above(&mut self, revision: Revision, why: &str) -> Result<(), StoreError> {
        if revision < self.shared.floors().watchable_from {
            // It went meanwhile.
            return Ok(());
        }
        tracing::error!(%revision, why, "history is damaged: its readers start over above it");
        self.count_failure();
        self.report.damaged_history.push(revision.0);
        let floor = revision.next();
        let wanted = Floors {
            listable_from: floor,
            watchable_from: floor,
        };
        let (reply, answer) = oneshot::channel();
        let message = Message::Compact {
            wanted,
            queued: Stopwatch::start(),
            reply,
        };
        let weight = Weight { writes: 1, bytes: 0 };
        if self.shared.queue.push_regardless(message, weight).is_err() {
            return Err(super::closed());
        }
        // A store that is read-only keeps its floors; its readers find the damage themselves.
        if let Ok(Err(error)) = answer.blocking_recv() {
            tracing::warn!(%error, "the floors did not rise above the damage");
        }
        Ok(())
    }
}
