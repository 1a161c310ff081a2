//! The weekly check: reads every value from disk and compares it with its checksums.
//!
//! All of `state` and `history` is read, at the lowest priority and a bounded rate; the checksums of the engine's blocks
//! and those of our records are compared. The check reads a checkpoint (hard links of the same files) with an engine of its
//! own, since the running engine would answer from its caches. Only the reading thread has the low priority: nothing that
//! holds a lock does.
//!
//! The check reports damage and changes no value. A damaged value of `state` is named in the log, the metrics and the
//! report. The store goes on serving it from memory, so an ordinary write of the object makes it whole again; if there is
//! none, the next start sets it apart. A block that the engine cannot read is reported with the keys in it; the next start
//! refuses the store, and a backup must be restored. Above a damaged record of `history` the floors rise, so that no
//! watch and no list of a past state reads across it.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::column_families::{
    Access, Engine, HISTORY, Meta, Recovery, STATE, View, history_key, parse_history_key,
};
use super::error::OpenError;
use super::format::write_durably;
use super::housekeeping::Stop;
use super::index::Slot;
use super::lifecycle::closed;
use super::parts::Parts;
use super::progress::read_row;
use super::read::engine_failed;
use crate::metrics::gauge_value;
use crate::record::{RecordError, StoredChange};
use crate::{Floors, Key, Revision, StoreError};

/// How often the thread checks whether a pass is due.
const TICK: Duration = Duration::from_mins(1);
/// When a pass that did not finish is retried.
const RETRY_AFTER: Duration = Duration::from_hours(1);
/// How much is read between two pauses.
const SLICE_BYTES: usize = 256 << 10;
/// How much is read per second: 2 GB in about four minutes, a hundredth of what an SSD can do.
const BYTES_A_SECOND: u64 = 8 << 20;
/// The nice value of the reading thread: the lowest priority.
const NICE: i32 = 19;
/// How many keys are copied out of the index at once.
const KEYS_AT_ONCE: usize = 256;

/// The result of a pass over all values.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CheckReport {
    /// Values of `state` that were read.
    pub objects: u64,
    /// Records of `history` that were read.
    pub history_records: u64,
    /// Keys whose value is damaged on disk.
    pub damaged: Vec<String>,
    /// Revisions whose history record is damaged; the floors are above them now.
    pub damaged_history: Vec<u64>,
}

/// Waits for the given time; returns whether to stop.
type Pause<'a> = dyn Fn(Duration) -> bool + 'a;

/// The folder of the checkpoint.
const FOLDER: &str = "check";
/// Where the engine assembles a checkpoint.
const UNFINISHED: &str = "check.tmp";

/// Runs one pass, from taking the checkpoint to removing it.
pub(crate) fn check(parts: &Parts, pause: &Pause<'_>) -> Result<CheckReport, StoreError> {
    let Some(_running) = parts.exclusive.try_check() else {
        return Err(StoreError::Unavailable {
            reason: "another check of values is running".to_owned(),
        });
    };
    let store = &parts.settings.folder;
    let folder = store.join(FOLDER);
    let unavailable = |error: std::io::Error| StoreError::Unavailable {
        reason: format!("{}: {error}", folder.display()),
    };
    remove_checkpoint(store).map_err(unavailable)?;
    let taken = parts.lifecycle.engine()?.checkpoint(&folder);
    let checked = taken.map_err(|error| engine_failed(&error)).and_then(|()| {
        let engine = Engine::open(&folder, Access::ReadOnly, Recovery::Strict)
            .map_err(|error| does_not_open(&error))?;
        let view = engine.view();
        let revision = view.meta(Meta::Revision).map_err(|error| engine_failed(&error))?;
        let check = Check {
            parts,
            pause,
            revision: Revision(revision.unwrap_or_default()),
            view,
            report: CheckReport::default(),
            malformed_row: None,
        };
        check.run()
    });
    if matches!(checked, Err(StoreError::Corrupt { .. })) {
        parts.metrics.value_check_failures.inc();
    }
    remove_checkpoint(store).map_err(unavailable)?;
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

/// Removes the checkpoint of a pass, finished or not, from the folder of a store.
pub(crate) fn remove_checkpoint(store: &Path) -> std::io::Result<()> {
    for name in [FOLDER, UNFINISHED] {
        match std::fs::remove_dir_all(store.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Runs a read at the lowest priority. On Linux that is a property of a thread which it cannot raise again, so the read
/// gets a thread of its own. Where lowering it is refused, only the rate limits the read.
fn at_lowest_priority<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, StoreError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("storage-read".to_owned());
        let running = thread.spawn_scoped(scope, || {
            if let Err(error) = rustix::process::setpriority_process(None, NICE) {
                tracing::debug!(%error, "values are read at normal priority");
            }
            work()
        });
        let running = running.map_err(|error| StoreError::Unavailable {
            reason: format!("the reading thread did not start: {error}"),
        })?;
        Ok(running.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// The thread that runs a pass when one is due.
pub(crate) struct Checker {
    pub(crate) parts: Arc<Parts>,
    pub(crate) stop: Arc<Stop>,
    pub(crate) every: Duration,
}

impl Checker {
    /// Runs until stopped.
    pub(crate) fn run(self) {
        let path = checked_path(&self.parts.settings.folder);
        // The first pass is due one interval after the store was first opened.
        let mut last_ms = read_checked(&path).unwrap_or_else(|| self.note_checked(&path));
        let mut failed_ms = None;
        while !self.stop.wait(TICK.min(self.every)) {
            let now_ms = self.parts.settings.clock.now_ms();
            let is_soon = failed_ms.is_some_and(|failed_ms| !is_due(now_ms, failed_ms, RETRY_AFTER));
            if is_soon || !is_due(now_ms, last_ms, self.every) {
                continue;
            }
            if self.parts.capacity.is_short() {
                // The checkpoint would keep files that compaction removes.
                continue;
            }
            let pass = || check(&self.parts, &|pause| self.stop.wait(pause));
            match catch_unwind(AssertUnwindSafe(pass)) {
                Ok(Ok(report)) => {
                    tracing::info!(?report, "checked every value");
                    last_ms = self.note_checked(&path);
                    failed_ms = None;
                    continue;
                }
                Ok(Err(StoreError::Closed { .. })) => return,
                Ok(Err(error)) => tracing::warn!(%error, "the check of values did not finish"),
                Err(_) => tracing::error!("the check of values panicked"),
            }
            failed_ms = Some(self.parts.settings.clock.now_ms());
        }
    }

    fn note_checked(&self, path: &Path) -> u64 {
        let now_ms = self.parts.settings.clock.now_ms();
        if let Err(error) = write_durably(path, now_ms.to_string().as_bytes()) {
            tracing::warn!(%error, "the time of the last check of values was not written");
        }
        now_ms
    }
}

/// Whether the interval has passed. A time in the future comes from a wrong clock and is ignored.
fn is_due(now_ms: u64, then_ms: u64, every: Duration) -> bool {
    now_ms
        .checked_sub(then_ms)
        .is_none_or(|passed_ms| u128::from(passed_ms) >= every.as_millis())
}

/// The file with the time of the last pass, in milliseconds since 1970.
fn checked_path(folder: &Path) -> PathBuf {
    folder.join("checked")
}

fn read_checked(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// One pass.
struct Check<'a> {
    parts: &'a Parts,
    pause: &'a Pause<'a>,
    view: View<'a>,
    /// The revision of what is read.
    revision: Revision,
    report: CheckReport,
    /// A row with a malformed key; returned when everything else has been read.
    malformed_row: Option<StoreError>,
}

/// How a slice of a pass ended.
enum Slice {
    /// Continue from this key.
    From(Vec<u8>),
    /// A block at or after this key fails the engine's checks.
    Damage(Vec<u8>),
    /// All rows were read.
    End,
}

impl Check<'_> {
    fn run(mut self) -> Result<CheckReport, StoreError> {
        self.check_state()?;
        self.check_history()?;
        if let Some(malformed) = self.malformed_row {
            return Err(malformed);
        }
        let metrics = &self.parts.metrics;
        let now_seconds = self.parts.settings.clock.now_ms() / 1000;
        metrics.values_checked_seconds.set(gauge_value(now_seconds));
        Ok(self.report)
    }

    /// Waits as the rate demands.
    fn pause(&self) -> Result<(), StoreError> {
        let pause =
            Duration::from_secs(SLICE_BYTES as u64) / u32::try_from(BYTES_A_SECOND).unwrap_or(u32::MAX);
        if (self.pause)(pause) {
            return Err(closed());
        }
        if self.parts.capacity.is_short() {
            // The checkpoint keeps files that compaction removes.
            return Err(StoreError::Full {
                reason: "the disk is nearly full, so values are checked later".to_owned(),
            });
        }
        Ok(())
    }

    fn note_malformed_row(&mut self, family: &str, key: &[u8]) {
        let key = format!("{family}: {}", key.escape_ascii());
        let reason = "the key of the row is malformed".to_owned();
        tracing::error!(key, reason, "a row is damaged");
        self.parts.metrics.checksum_failures.inc();
        self.malformed_row = Some(StoreError::Corrupt { key, reason });
    }

    fn check_state(&mut self) -> Result<(), StoreError> {
        let mut from = Vec::new();
        loop {
            let (mut suspects, mut malformed) = (Vec::new(), None);
            let mut seen = 0;
            let (view, records) = (&self.view, &self.parts.records);
            let slice = at_lowest_priority(|| {
                slice(view, STATE, from, |key, record| {
                    seen += 1;
                    match std::str::from_utf8(key).map(|text| (text, read_row(records, text, record))) {
                        Err(_) | Ok((_, Err(RecordError::Key(_)))) => malformed = Some(key.to_vec()),
                        Ok((text, Err(error))) if error.is_damage() => {
                            suspects.push((text.to_owned(), error.to_string()));
                        }
                        Ok(_) => {}
                    }
                })
            })??;
            self.report.objects += seen;
            if let Some(key) = malformed {
                self.note_malformed_row(STATE, &key);
            }
            for (suspect, reason) in suspects {
                if let Some(key) = self.unchanged(&suspect) {
                    self.note_damaged(&key, &reason);
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
            self.pause()?;
        }
    }

    /// Notes the keys from `at` up to the first one from which the engine can read on; returns that one. The engine does
    /// not say which keys the damaged block holds, so each known key is tried.
    fn pass_damaged_state(&mut self, at: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let mut damaged = Vec::new();
        let mut after = at.to_vec();
        let mut reason = String::new();
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
                    Err(error) if error.is_damage() => reason = error.to_string(),
                    Err(error) => return Err(engine_failed(&error)),
                }
                match self.view.state_record(key.as_str()) {
                    // Its newest record is in another file.
                    Ok(_) => {}
                    Err(error) if error.is_damage() => damaged.extend(self.unchanged(key.as_str())),
                    Err(error) => return Err(engine_failed(&error)),
                }
            }
            self.pause()?;
        };
        if damaged.is_empty() {
            // The block holds only rows that were replaced since.
            self.count_failure();
        }
        tracing::error!(
            reason,
            "a file of the engine is damaged: the next start will refuse the store, restore a backup from another volume"
        );
        for key in damaged {
            self.note_damaged(&key, &reason);
        }
        Ok(next)
    }

    /// The next keys in order.
    fn keys_from(&self, from: &[u8]) -> BTreeSet<Key> {
        let mut keys = BTreeSet::new();
        for (key, _) in self.parts.published.index().iter() {
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

    /// The key with this text, unless its value has been replaced since the checkpoint or is known to be damaged.
    fn unchanged(&self, text: &str) -> Option<Key> {
        match self.parts.published.index().find(text) {
            Some((key, Slot::Whole(entry))) if entry.modified <= self.revision => Some(key.clone()),
            _ => None,
        }
    }

    fn note_damaged(&mut self, key: &Key, reason: &str) {
        tracing::error!(
            %key,
            reason,
            "a value is damaged on disk and still served from memory: write the object again, or restore a backup"
        );
        self.count_failure();
        self.report.damaged.push(key.to_string());
    }

    fn count_failure(&self) {
        self.parts.metrics.checksum_failures.inc();
        self.parts.metrics.value_check_failures.inc();
    }

    fn check_history(&mut self) -> Result<(), StoreError> {
        let mut from = history_key(self.parts.retention.floors().watchable_from).to_vec();
        loop {
            let (mut damaged, mut malformed) = (None, None);
            let mut seen = 0;
            let (view, records) = (&self.view, &self.parts.records);
            let slice = at_lowest_priority(|| {
                slice(view, HISTORY, from, |key, record| {
                    seen += 1;
                    let Some(revision) = parse_history_key(key) else {
                        malformed = Some(key.to_vec());
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
            if let Some(key) = malformed {
                self.note_malformed_row(HISTORY, &key);
            }
            self.report.history_records += seen;
            from = match slice {
                Slice::End => {
                    return damaged.map_or(Ok(()), |(revision, reason)| {
                        self.raise_floors_above(revision, &reason)
                    });
                }
                Slice::From(next) => next,
                Slice::Damage(at) => match self.pass_damaged_history(&at)? {
                    None => return Ok(()),
                    Some(next) => next,
                },
            };
            if let Some((revision, reason)) = damaged {
                self.raise_floors_above(revision, &reason)?;
            }
            self.pause()?;
        }
    }

    /// Finds the first revision after `at` that can be read, and raises the floors to it.
    fn pass_damaged_history(&mut self, at: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let current = self.revision;
        let mut last = at
            .first_chunk::<8>()
            .map_or(self.parts.retention.floors().watchable_from, |revision| {
                Revision(u64::from_be_bytes(*revision))
            });
        let mut reason = String::new();
        while last <= current {
            let next = history_key(last.next());
            let read = self.view.check(HISTORY, &next);
            match read.and_then(|mut rows| rows.next().map(|_| ())) {
                Ok(()) => break,
                Err(error) if error.is_damage() => reason = error.to_string(),
                Err(error) => return Err(engine_failed(&error)),
            }
            last = last.next();
        }
        self.raise_floors_above(last.min(current), &reason)?;
        Ok((last < current).then(|| history_key(last.next()).to_vec()))
    }

    /// Has the commit thread raise the floors above a damaged revision.
    fn raise_floors_above(&mut self, revision: Revision, reason: &str) -> Result<(), StoreError> {
        if revision < self.parts.retention.floors().watchable_from {
            // Compacted meanwhile.
            return Ok(());
        }
        tracing::error!(%revision, reason, "history is damaged: watches and past reads must start above it");
        self.count_failure();
        self.report.damaged_history.push(revision.0);
        let floor = revision.next();
        let wanted = Floors {
            listable_from: floor,
            watchable_from: floor,
        };
        let result = self.parts.queue_compaction(wanted, true).map_err(|_| closed())?;
        // A read-only store keeps its floors; a watch that reads the damaged record ends there.
        if let Ok(Err(error)) = result.blocking_recv() {
            tracing::warn!(%error, "the floors were not raised above the damage");
        }
        Ok(())
    }
}

/// Reads a slice of a family from a key on and passes each row to `look`.
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
