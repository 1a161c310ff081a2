//! Is a store whole, and if not, what can be taken from it?
//!
//! [`verify`] reads everything, as a start would, and changes nothing. [`recover`] is for the case that a start refuses and there is no
//! backup: it takes what can be read, says what it cannot name, and goes on above every revision the store can have
//! handed out. The damaged files are kept aside.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::column_families::{Access, Engine, Meta, Recovery, View};
use super::error::OpenError;
use super::format::{Format, sync_folder, write_durably};
use super::history::{HistoryError, walk};
use super::mark::MarkFile;
use super::open::{check_identity, engine_folder, lock_folder, mark_path, no_mark, refuse_lost_format};
use super::progress::{LifeError, Progress, TELL_EVERY, at, read_row, sealed};
use super::recover::{levels, load, open_engine, position};
use super::transfer::{Importer, is_unfinished, jump};
use crate::Revision;
use crate::options::Options;
use crate::record::Records;

/// What a verification found in a store that is whole.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct VerifyReport {
    /// The newest revision.
    pub revision: u64,
    /// The newest revision that is known to have been durable.
    pub acknowledged: u64,
    /// Keys that hold a value.
    pub objects: u64,
    /// History records that were checked.
    pub history_records: u64,
    /// The end of the log is torn, and a start drops it: it was never acknowledged, or in relaxed mode not synced yet.
    pub had_torn_tail: bool,
    /// Keys whose value fails its checksum.
    pub damaged: Vec<String>,
    /// Revisions with a history record whose value fails its checksum: watches and lists from before start over.
    pub damaged_history: Vec<u64>,
}

/// What a recovery took and what it left.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecoverReport {
    /// Why the store did not open; none if it did, and nothing was changed.
    pub fault: Option<String>,
    /// The newest revision that could be read.
    pub recovered: u64,
    /// The newest revision that is known to have been durable; none when the mark is lost.
    pub acknowledged: Option<u64>,
    /// How many acknowledged revisions are missing, as far as is known.
    pub missing_revisions: u64,
    /// The revision of the store now.
    pub revision: u64,
    /// Objects that were taken.
    pub objects: u64,
    /// Keys that could not be read.
    pub lost: Vec<String>,
    /// Why reading ended early, if it did: objects beyond the last key are lost, unnamed.
    pub ended_early: Option<String>,
    /// Where the damaged files are kept.
    pub kept_aside: Option<PathBuf>,
}

/// Reads a whole store, without changing a byte. The store must not be open elsewhere.
///
/// # Errors
/// What a start would refuse.
pub fn verify(options: &Options, progress: &dyn Fn(Progress)) -> Result<VerifyReport, LifeError> {
    let folder = &options.path;
    let missing = || OpenError::Missing { path: folder.clone() };
    if !folder.exists() {
        return Err(missing().into());
    }
    let _lock = lock_folder(options)?;
    verify_locked(options, progress)
}

/// Verifies a store whose lock is held.
fn verify_locked(options: &Options, progress: &dyn Fn(Progress)) -> Result<VerifyReport, LifeError> {
    let folder = &options.path;
    let missing = || OpenError::Missing { path: folder.clone() };
    let Some(format) = Format::read(folder)? else {
        if !is_unfinished(folder) {
            refuse_lost_format(folder)?;
        }
        return Err(missing().into());
    };
    let path = mark_path(folder);
    let mark = MarkFile::read(&path).map_err(|error| no_mark(&path, error))?;
    let mark = mark.ok_or_else(|| OpenError::damaged("the commit mark is unreadable"))?;
    check_identity("the commit mark", mark.store, format.store)?;
    progress(Progress {
        step: "read",
        done: 0,
        total: None,
    });
    let recovered = open_engine(&engine_folder(folder), &mark, Access::ReadOnly)?;
    let view = recovered.engine.view();
    format.check(levels(&view)?)?;
    let position = position(&view)?;
    check_identity("the engine", position.store, format.store)?;
    let records = Records::new(Arc::clone(&options.seal));
    let loaded = load(&view, &records, &position)?;
    let mut damaged_history = Vec::new();
    let first = position.origin.next().max(position.floors.watchable_from);
    let values = walk(&view, first, position.revision, |stored, _| {
        let revision = stored.committed.revision;
        match records.event(stored) {
            Ok(_) => {}
            Err(error) if error.is_damage() => damaged_history.push(revision.0),
            Err(error) => return Err(HistoryError::record(revision, &error)),
        }
        Ok(true)
    });
    values.map_err(OpenError::from)?;
    let (objects, _) = loaded.index.size();
    progress(Progress {
        step: "read",
        done: objects,
        total: Some(objects),
    });
    Ok(VerifyReport {
        revision: position.revision.0,
        acknowledged: mark.synced.0,
        objects,
        history_records: loaded.history_records,
        had_torn_tail: recovered.had_torn_tail,
        damaged: loaded.index.damaged().map(ToString::to_string).collect(),
        damaged_history,
    })
}

/// Takes what can be read from a store that does not open, if `accept_loss`; a store that opens is left alone.
///
/// # Errors
/// [`LifeError::LossNotAccepted`] names what would be lost. Where nothing can be read, only a backup helps.
pub fn recover(
    options: &Options,
    accept_loss: bool,
    progress: &dyn Fn(Progress),
) -> Result<RecoverReport, LifeError> {
    let folder = &options.path;
    let fresh = folder.join(RECOVERING);
    if !folder.exists() {
        return Err(OpenError::Missing { path: folder.clone() }.into());
    }
    // One lock for all of it: what was found must still be so when it is acted upon.
    let _lock = lock_folder(options)?;
    if is_cut_short(folder) {
        swap_in(folder, &fresh, &aside(folder, options))?;
    }
    let fault = match verify_locked(options, progress) {
        Ok(report) if report.damaged.is_empty() => {
            return Ok(RecoverReport {
                fault: None,
                recovered: report.revision,
                acknowledged: Some(report.acknowledged),
                missing_revisions: 0,
                revision: report.revision,
                objects: report.objects,
                lost: Vec::new(),
                ended_early: None,
                kept_aside: None,
            });
        }
        Ok(report) => format!("{} values fail their checksum", report.damaged.len()),
        Err(
            error @ (LifeError::Open(OpenError::Damaged { .. } | OpenError::AcknowledgedLost { .. })
            | LifeError::Damaged { .. }),
        ) => error.to_string(),
        // A full disk, a held lock, a newer format, a file that may not be read: nothing is lost by waiting.
        Err(error) => return Err(error),
    };
    if !accept_loss {
        return Err(LifeError::LossNotAccepted { what: fault });
    }
    let mark = MarkFile::read(&mark_path(folder)).unwrap_or_default();
    let engine = Engine::open(&engine_folder(folder), Access::ReadOnly, Recovery::PointInTime)?;
    let view = engine.view();
    let recovered = view.meta(Meta::Revision)?.map_or(Revision::INITIAL, Revision);
    let acknowledged = mark.map(|mark| mark.synced);
    let newest = view
        .meta(Meta::Ceiling)?
        .map_or(recovered, Revision)
        .max(recovered);
    let newest = acknowledged.unwrap_or_default().max(newest);
    let now_ms = options.clock.now_ms();
    // Without a mark nobody knows how long ago the store was written to last: a year is more than enough.
    let age = mark.map_or(Duration::from_hours(24 * 365), |mark| {
        Duration::from_millis(now_ms.saturating_sub(mark.at_ms))
    });
    if fresh.exists() {
        std::fs::remove_dir_all(&fresh).map_err(at(&fresh))?;
    }
    std::fs::create_dir(&fresh).map_err(at(&fresh))?;
    let target = Options {
        path: fresh.clone(),
        ..options.clone()
    };
    let mut importer = Importer::begin(&target, jump(newest, age))?;
    let taken = take_readable(&view, options, &mut importer, progress)?;
    let (_, revision, objects) = importer.finish()?;
    drop(view);
    drop(engine);
    let aside = aside(folder, options);
    swap_in(folder, &fresh, &aside)?;
    Ok(RecoverReport {
        fault: Some(fault),
        recovered: recovered.0,
        acknowledged: acknowledged.map(|revision| revision.0),
        missing_revisions: acknowledged.map_or(0, |revision| revision.0.saturating_sub(recovered.0)),
        revision: revision.0,
        objects,
        lost: taken.lost,
        ended_early: taken.ended_early,
        kept_aside: Some(aside),
    })
}

/// Where the recovered store is made before it takes the damaged one's place.
const RECOVERING: &str = "recovering";

/// Whether a recovery had begun to put its result in place and was cut short.
pub(crate) fn is_cut_short(folder: &Path) -> bool {
    folder.join(RECOVERING).join("format").exists() && !folder.join("format").exists()
}

/// Where damaged files go.
fn aside(folder: &Path, options: &Options) -> PathBuf {
    folder.join(format!("damaged-{}", options.clock.now_ms()))
}

#[derive(Default)]
struct Taken {
    lost: Vec<String>,
    ended_early: Option<String>,
}

fn take_readable(
    view: &View<'_>,
    options: &Options,
    importer: &mut Importer,
    progress: &dyn Fn(Progress),
) -> Result<Taken, LifeError> {
    let records = Records::new(Arc::clone(&options.seal));
    let mut taken = Taken::default();
    let mut rows = view.state("", "")?;
    let mut done = 0;
    loop {
        let (key, record) = match rows.next() {
            Ok(Some(row)) => row,
            Ok(None) => break,
            Err(error) => {
                taken.ended_early = Some(error.to_string());
                break;
            }
        };
        let text = String::from_utf8_lossy(key).into_owned();
        match read_row(&records, &text, record) {
            Ok((key, value)) => importer.put(&key, &value)?,
            Err(error) if error.is_damage() => taken.lost.push(text),
            Err(error) => return Err(sealed(&text, &error)),
        }
        done += 1;
        if done % TELL_EVERY == 0 {
            progress(Progress {
                step: "write",
                done,
                total: None,
            });
        }
    }
    Ok(taken)
}

/// Puts the recovered store in the place of the damaged one. Each part that still lies in `fresh` has not been
/// moved yet, so a swap that was cut short is finished by doing it again.
fn swap_in(folder: &Path, fresh: &Path, aside: &Path) -> Result<(), LifeError> {
    let is_moved = |name: &str| !fresh.join(name).exists();
    let move_aside = |name: &str| -> Result<(), LifeError> {
        let old = folder.join(name);
        if !old.exists() {
            return Ok(());
        }
        std::fs::create_dir_all(aside).map_err(at(aside))?;
        std::fs::rename(&old, aside.join(name)).map_err(at(&old))?;
        sync_folder(aside).map_err(at(aside))
    };
    fail::fail_point!("recover-before-moves");
    // The format goes first and comes last: in between the folder is no store, and a start says so.
    if !(is_moved("db") && is_moved("mark")) {
        move_aside("format")?;
    }
    for name in ["db", "mark"] {
        if !is_moved(name) {
            move_aside(name)?;
            std::fs::rename(fresh.join(name), folder.join(name)).map_err(at(folder))?;
            sync_folder(folder).map_err(at(folder))?;
        }
        fail::fail_point!("recover-between-moves");
    }
    let format = std::fs::read(fresh.join("format")).map_err(at(fresh))?;
    write_durably(&folder.join("format"), &format).map_err(at(folder))?;
    fail::fail_point!("recover-before-removal");
    std::fs::remove_dir_all(fresh).map_err(at(fresh))
}
