//! Is what lies on the disk still what was written?
//!
//! Once a week every value of `state` and `history` is read and compared with its checksums, those of the engine's
//! blocks and those of our records, at the least priority and at a bounded rate. What is read is a checkpoint
//! (the same files under a second name), by an engine of its own: the one that runs would answer from its cache, and what
//! it has in memory says nothing about the disk. Only the reading yields to everybody: nothing that holds a lock does.
//!
//! A value of `state` that is damaged on the disk is whole in memory as a rule: it is served on, and written again at its
//! own revision. Of a block that the engine cannot read, every value is written again behind a range that hides it: reads,
//! backups and starts pass it by, but the file keeps it, and compaction of that file fails. Only where memory does not have it, or it cannot be written, it is set apart, as a start would do. Below a
//! damaged record of `history` nothing can be read through any more: the floors rise above it, so that its readers start
//! over.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, TryLockError};
use std::time::Duration;

use serde::Serialize;
use tokio::sync::oneshot;

use super::column_families::{
    Access, Engine, HISTORY, Meta, Recovery, STATE, View, history_key, parse_history_key,
};
use super::commit::{Message, Rewrite};
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
const AGAIN: Duration = Duration::from_hours(1);
/// How much is read between two pauses.
const SLICE_BYTES: usize = 256 << 10;
/// How much is read in a second: two gigabytes in about four minutes, beside disks that do a hundred times that.
const BYTES_A_SECOND: u64 = 8 << 20;
/// The nice value of reading: the least priority there is.
const NICE: i32 = 19;
/// How many keys are copied out of the index at once.
const KEYS_AT_ONCE: usize = 256;
/// How many keys in a row are written again at once: a few damaged blocks, never a table.
const MOST_REWRITTEN: usize = 2048;

/// What a pass over all values found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckReport {
    /// Values of `state` that were read.
    pub objects: u64,
    /// Records of `history` that were read.
    pub history_records: u64,
    /// Keys whose value was found to be damaged, but was whole in memory and was written again.
    pub healed: Vec<String>,
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
    /// The engine cannot be read, or another check is at work, which says nothing about the values; no room on the disk;
    /// rows that belong to no key.
    pub fn check_values(&self) -> Result<CheckReport, StoreError> {
        check(&self.shared, &|_| false)
    }
}

/// Where the files that are read stand under a second name.
const FOLDER: &str = "check";
/// Where the engine puts a checkpoint together.
const UNFINISHED: &str = "check.tmp";

/// One pass, from taking the checkpoint to removing it.
pub(crate) fn check(shared: &Shared, pause: &Pause<'_>) -> Result<CheckReport, StoreError> {
    let _at_work = match shared.checking.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => {
            return Err(StoreError::Unavailable {
                reason: "values are being checked already".to_owned(),
            });
        }
    };
    let folder = shared.folder.join(FOLDER);
    let unavailable = |error: std::io::Error| StoreError::Unavailable {
        reason: format!("{}: {error}", folder.display()),
    };
    remove_checkpoint(&shared.folder).map_err(unavailable)?;
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
            misplaced: None,
        };
        check.run()
    });
    if matches!(checked, Err(StoreError::Corrupt { .. })) {
        shared.metrics.value_check_failures.inc();
    }
    remove_checkpoint(&shared.folder).map_err(unavailable)?;
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

/// Removes what a pass read, or what is left of one that was cut short, from the folder of a store.
pub(crate) fn remove_checkpoint(store: &Path) -> std::io::Result<()> {
    for name in [FOLDER, UNFINISHED] {
        match std::fs::remove_dir_all(store.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Runs what only reads at the least priority there is. Of a thread alone, on Linux, and no way leads back: so it gets
/// one of its own. Where it is refused, the rate is the limit.
fn yielding<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, StoreError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("storage-read".to_owned());
        let running = thread.spawn_scoped(scope, || {
            if let Err(error) = rustix::process::setpriority_process(None, NICE) {
                tracing::debug!(%error, "values are read at the usual priority");
            }
            work()
        });
        let running = running.map_err(|error| StoreError::Unavailable {
            reason: format!("no thread reads: {error}"),
        })?;
        Ok(running.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
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
        let path = checked_path(&self.shared.folder);
        // The first pass is due a while after a store is first seen.
        let mut last_ms = read_checked(&path).unwrap_or_else(|| self.note_checked(&path));
        let mut failed_ms = None;
        while !self.stop.wait(TICK.min(self.every)) {
            let now_ms = self.shared.clock.now_ms();
            let is_soon = failed_ms.is_some_and(|failed_ms| !is_due(now_ms, failed_ms, AGAIN));
            if is_soon || !is_due(now_ms, last_ms, self.every) {
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
                    failed_ms = None;
                    continue;
                }
                Ok(Err(StoreError::Closed { .. })) => return,
                Ok(Err(error)) => tracing::warn!(%error, "values were not checked to the end"),
                Err(_) => tracing::error!("the check of values panicked"),
            }
            failed_ms = Some(self.shared.clock.now_ms());
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

/// Whether so much time has passed. A time in the future was written by a clock that was wrong, and counts for nothing.
fn is_due(now_ms: u64, then_ms: u64, every: Duration) -> bool {
    now_ms
        .checked_sub(then_ms)
        .is_none_or(|passed_ms| u128::from(passed_ms) >= every.as_millis())
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
    /// A row that belongs to no key: it is told when everything else has been read.
    misplaced: Option<StoreError>,
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
        if let Some(misplaced) = self.misplaced {
            return Err(misplaced);
        }
        let metrics = &self.shared.metrics;
        let now_seconds = self.shared.clock.now_ms() / 1000;
        metrics.values_checked_seconds.set(gauge_value(now_seconds));
        Ok(self.report)
    }

    fn rest(&self) -> Result<(), StoreError> {
        let pause =
            Duration::from_secs(SLICE_BYTES as u64) / u32::try_from(BYTES_A_SECOND).unwrap_or(u32::MAX);
        if (self.pause)(pause) {
            return Err(super::closed());
        }
        if self.shared.room() > Room::Plenty {
            // The checkpoint keeps what compaction would remove.
            return Err(StoreError::Full {
                reason: "the disk fills up, so values are checked later".to_owned(),
            });
        }
        Ok(())
    }

    fn misplaced(&mut self, family: &str, key: &[u8]) {
        let key = format!("{family}: {}", key.escape_ascii());
        let reason = "it is no key".to_owned();
        tracing::error!(key, reason, "a row belongs to no key");
        self.shared.metrics.checksum_failures.inc();
        self.misplaced = Some(StoreError::Corrupt { key, reason });
    }

    fn check_state(&mut self) -> Result<(), StoreError> {
        let mut from = Vec::new();
        loop {
            let (mut suspects, mut misplaced) = (Vec::new(), None);
            let mut seen = 0;
            let (view, records) = (&self.view, &self.shared.records);
            let slice = yielding(|| {
                slice(view, STATE, from, |key, record| {
                    seen += 1;
                    match std::str::from_utf8(key).map(|text| (text, read_row(records, text, record))) {
                        Err(_) | Ok((_, Err(RecordError::Key(_)))) => misplaced = Some(key.to_vec()),
                        Ok((text, Err(error))) if error.is_damage() => {
                            suspects.push((text.to_owned(), error.to_string()));
                        }
                        Ok(_) => {}
                    }
                })
            })??;
            self.report.objects += seen;
            if let Some(key) = misplaced {
                self.misplaced(STATE, &key);
            }
            for (suspect, why) in suspects {
                if let Some(key) = self.unchanged(&suspect) {
                    let wanted = Rewrite::One(key.clone());
                    self.heal(wanted, vec![key], &why)?;
                }
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

    /// Writes the values from `at` on again up to the first from which the engine can read on: it does not say which are
    /// damaged.
    fn pass_damaged_state(&mut self, at: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let mut damaged = Vec::new();
        let mut after = at.to_vec();
        let mut why = String::new();
        let next = 'found: loop {
            let keys = self.keys_from(&after);
            let Some(last) = keys.last() else {
                break None;
            };
            after = last.as_str().as_bytes().to_vec();
            after.push(0);
            for key in keys {
                let from = key.as_str().as_bytes();
                let read = self.view.check(STATE, from);
                match read.and_then(|mut rows| rows.next().map(|_| ())) {
                    Ok(()) => break 'found Some(from.to_vec()),
                    Err(error) if error.is_damage() => why = error.to_string(),
                    Err(error) => return Err(engine_failed(&error)),
                }
                damaged.push(key);
            }
            self.rest()?;
        };
        // From the last one that was read: the engine must not step from there into what is damaged.
        let from = at.strip_suffix(&[0]).unwrap_or(at).to_vec();
        let to = next.clone().unwrap_or_else(|| vec![u8::MAX]);
        let mut found = Vec::new();
        for key in &damaged {
            match self.view.state_record(key.as_str()) {
                // Its newest record stands elsewhere.
                Ok(_) => {}
                Err(error) if error.is_damage() => found.extend(self.unchanged(key.as_str())),
                Err(error) => return Err(engine_failed(&error)),
            }
        }
        if found.is_empty() {
            // Nothing that lives, or nothing that is not known.
            self.count_failure();
        }
        tracing::error!(
            why,
            "a file of the engine is damaged, and stays so until it is compacted, which fails: take a backup and restore it"
        );
        if damaged.len() <= MOST_REWRITTEN {
            self.heal(Rewrite::Range { from, to }, found, &why)?;
        } else {
            for key in found {
                self.set_apart(&key, &why);
            }
        }
        Ok(next)
    }

    /// The next keys in order.
    fn keys_from(&self, from: &[u8]) -> BTreeSet<Key> {
        let mut keys = BTreeSet::new();
        for (key, _) in self.shared.index().iter() {
            if key.as_str().as_bytes() < from {
                continue;
            }
            if keys.len() < KEYS_AT_ONCE {
                keys.insert(key.clone());
            } else if keys.last().is_some_and(|last| key < last) {
                keys.pop_last();
                keys.insert(key.clone());
            }
        }
        keys
    }

    /// The key with this text, if its value in memory is whole and what was read has not been replaced since.
    fn unchanged(&self, text: &str) -> Option<Key> {
        match self.shared.index().find(text) {
            Some((key, Slot::Whole(entry))) if entry.modified <= self.revision => Some(key.clone()),
            _ => None,
        }
    }

    /// Has damaged values written again by the commit thread, and sets them apart if it cannot.
    fn heal(&mut self, rewrite: Rewrite, damaged: Vec<Key>, why: &str) -> Result<(), StoreError> {
        let (reply, answer) = oneshot::channel();
        let message = Message::Rewrite { rewrite, reply };
        let weight = Weight { writes: 1, bytes: 0 };
        if self.shared.queue.push_regardless(message, weight).is_err() {
            return Err(super::closed());
        }
        let healed = answer.blocking_recv().unwrap_or_else(|_| Err(super::closed()));
        if let Err(error) = &healed {
            tracing::error!(%error, why, "what is damaged on the disk was not written again");
        }
        for key in damaged {
            match &healed {
                Ok(()) => {
                    tracing::error!(%key, why, "a value is damaged on the disk: it was written again from memory");
                    self.count_failure();
                    self.report.healed.push(key.to_string());
                }
                Err(StoreError::Closed { .. }) => return Err(super::closed()),
                Err(_) => self.set_apart(&key, why),
            }
        }
        Ok(())
    }

    fn set_apart(&mut self, key: &Key, why: &str) {
        let mut index = self.shared.index_mut();
        match index.slot(key) {
            Some(slot @ Slot::Whole(entry)) if entry.modified <= self.revision => {
                let place = slot.place();
                index.set(key.clone(), Some(Slot::Damaged(place)));
            }
            // Known already, or replaced meanwhile.
            _ => return,
        }
        drop(index);
        tracing::error!(%key, why, "a value is damaged and set apart");
        self.count_failure();
        self.report.damaged.push(key.to_string());
    }

    fn count_failure(&self) {
        self.shared.metrics.checksum_failures.inc();
        self.shared.metrics.value_check_failures.inc();
    }

    fn check_history(&mut self) -> Result<(), StoreError> {
        let mut from = history_key(self.shared.floors().watchable_from).to_vec();
        loop {
            let (mut damaged, mut misplaced) = (None, None);
            let mut seen = 0;
            let (view, records) = (&self.view, &self.shared.records);
            let slice = yielding(|| {
                slice(view, HISTORY, from, |key, record| {
                    seen += 1;
                    let Some(revision) = parse_history_key(key) else {
                        misplaced = Some(key.to_vec());
                        return;
                    };
                    let stored = StoredChange::decode(revision, record);
                    if let Err(error) = stored.and_then(|stored| records.event(stored))
                        && error.is_damage()
                    {
                        damaged = Some((revision, error.to_string()));
                    }
                })
            })??;
            if let Some(key) = misplaced {
                self.misplaced(HISTORY, &key);
            }
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
        let mut last = at
            .first_chunk::<8>()
            .map_or(self.shared.floors().watchable_from, |revision| {
                Revision(u64::from_be_bytes(*revision))
            });
        let mut why = String::new();
        while last <= current {
            let next = history_key(last.next());
            let read = self.view.check(HISTORY, &next);
            match read.and_then(|mut rows| rows.next().map(|_| ())) {
                Ok(()) => break,
                Err(error) if error.is_damage() => why = error.to_string(),
                Err(error) => return Err(engine_failed(&error)),
            }
            last = last.next();
        }
        self.rise_above(last.min(current), &why)?;
        Ok((last < current).then(|| history_key(last.next()).to_vec()))
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

/// Reads a slice of a family from a key on and hands each row to `look`.
fn slice(
    view: &View<'_>,
    family: &'static str,
    mut from: Vec<u8>,
    mut look: impl FnMut(&[u8], &[u8]),
) -> Result<Slice, StoreError> {
    let mut bytes = 0;
    let rows = view.check(family, &from);
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
