//! Recovery of a store that does not open, when there is no backup.
//!
//! It takes what can be read, names what it cannot, and continues above every revision the store can have assigned. The
//! result is a new store; the damaged files are kept.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::column_families::{Access, Engine, Meta, Recovery, View};
use super::error::OpenError;
use super::folder::{RECOVERING, engine_folder, is_interrupted, lock_folder, mark_path};
use super::format::{sync_folder, write_durably};
use super::mark::MarkFile;
use super::progress::{MaintenanceError, Progress, REPORT_EVERY, at, read_row, sealed};
use super::transfer::Importer;
use super::verify::{VerifyReport, verify_locked};
use crate::Revision;
use crate::export::jump;
use crate::options::Options;
use crate::record::Records;

/// The result of a recovery.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RecoverReport {
    /// Why the store did not open; none if it did, and nothing was changed.
    pub fault: Option<String>,
    /// The newest revision that could be read.
    pub recovered: u64,
    /// The newest revision that is known to have been durable; none if the mark is lost.
    pub acknowledged: Option<u64>,
    /// How many acknowledged revisions are missing, as far as is known.
    pub missing_revisions: u64,
    /// The revision of the store now.
    pub revision: u64,
    /// Objects that were recovered.
    pub objects: u64,
    /// Keys that could not be read.
    pub lost: Vec<String>,
    /// Why reading ended early, if it did: objects after the last key are lost without being named.
    pub ended_early: Option<String>,
    /// Where the damaged files are kept.
    pub kept_aside: Option<PathBuf>,
}

impl RecoverReport {
    /// Of a store that opens and was left alone.
    fn unchanged(verified: &VerifyReport) -> Self {
        Self {
            fault: None,
            recovered: verified.revision,
            acknowledged: Some(verified.acknowledged),
            missing_revisions: 0,
            revision: verified.revision,
            objects: verified.objects,
            lost: Vec::new(),
            ended_early: None,
            kept_aside: None,
        }
    }
}

/// Recovers what can be read from a store that does not open, if `accept_loss`. A store that opens is left alone.
///
/// # Errors
/// [`MaintenanceError::LossNotAccepted`] names what would be lost. If nothing can be read, only a backup helps.
pub fn recover(
    options: &Options,
    accept_loss: bool,
    progress: &dyn Fn(Progress),
) -> Result<RecoverReport, MaintenanceError> {
    let folder = &options.path;
    let fresh = folder.join(RECOVERING);
    if !folder.exists() {
        return Err(OpenError::Missing { path: folder.clone() }.into());
    }
    // One lock for all of it: what was found must still hold when it is acted upon.
    let _lock = lock_folder(options)?;
    if is_interrupted(folder) {
        swap_in(folder, &fresh, &aside(folder, options))?;
    }
    let fault = match verify_locked(options, progress) {
        Ok(report) if report.damaged.is_empty() => return Ok(RecoverReport::unchanged(&report)),
        Ok(report) => format!("{} values fail their checksum", report.damaged.len()),
        Err(
            error @ (MaintenanceError::Open(OpenError::Damaged { .. } | OpenError::AcknowledgedLost { .. })
            | MaintenanceError::Damaged { .. }),
        ) => error.to_string(),
        // A full disk, a held lock, a newer format, missing rights: nothing is lost by waiting.
        Err(error) => return Err(error),
    };
    if !accept_loss {
        return Err(MaintenanceError::LossNotAccepted { what: fault });
    }
    let recovered = write_recovered(options, &fresh, progress)?;
    let aside = aside(folder, options);
    swap_in(folder, &fresh, &aside)?;
    Ok(RecoverReport {
        fault: Some(fault),
        kept_aside: Some(aside),
        ..recovered
    })
}

/// Writes what can be read as a new store in `fresh`.
fn write_recovered(
    options: &Options,
    fresh: &Path,
    progress: &dyn Fn(Progress),
) -> Result<RecoverReport, MaintenanceError> {
    let folder = &options.path;
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
    // Without a mark the time of the last write is unknown: a year is more than enough.
    let age = mark.map_or(Duration::from_hours(24 * 365), |mark| {
        Duration::from_millis(now_ms.saturating_sub(mark.at_ms))
    });
    if fresh.exists() {
        std::fs::remove_dir_all(fresh).map_err(at(fresh))?;
    }
    std::fs::create_dir(fresh).map_err(at(fresh))?;
    let target = Options {
        path: fresh.to_owned(),
        ..options.clone()
    };
    let mut importer = Importer::begin(&target, jump(newest, age))?;
    let unreadable = import_readable(&view, options, &mut importer, progress)?;
    let (_, revision, objects) = importer.finish()?;
    Ok(RecoverReport {
        fault: None,
        recovered: recovered.0,
        acknowledged: acknowledged.map(|revision| revision.0),
        missing_revisions: acknowledged.map_or(0, |revision| revision.0.saturating_sub(recovered.0)),
        revision: revision.0,
        objects,
        lost: unreadable.lost,
        ended_early: unreadable.ended_early,
        kept_aside: None,
    })
}

/// Where the damaged files are kept.
fn aside(folder: &Path, options: &Options) -> PathBuf {
    folder.join(format!("damaged-{}", options.clock.now_ms()))
}

/// What could not be read.
#[derive(Default)]
struct Unreadable {
    lost: Vec<String>,
    ended_early: Option<String>,
}

fn import_readable(
    view: &View<'_>,
    options: &Options,
    importer: &mut Importer,
    progress: &dyn Fn(Progress),
) -> Result<Unreadable, MaintenanceError> {
    let records = Records::new(Arc::clone(&options.seal));
    let mut unreadable = Unreadable::default();
    let mut rows = view.state("", "")?;
    let mut done = 0;
    loop {
        let (key, record) = match rows.next() {
            Ok(Some(row)) => row,
            Ok(None) => break,
            Err(error) => {
                unreadable.ended_early = Some(error.to_string());
                break;
            }
        };
        let text = String::from_utf8_lossy(key).into_owned();
        match read_row(&records, &text, record) {
            Ok((key, value)) => importer.put(&key, &value)?,
            Err(error) if error.is_damage() => unreadable.lost.push(text),
            Err(error) => return Err(sealed(&text, &error)),
        }
        done += 1;
        if done % REPORT_EVERY == 0 {
            progress(Progress {
                step: "write",
                done,
                total: None,
            });
        }
    }
    Ok(unreadable)
}

/// Replaces the damaged store by the recovered one. A part that is still in `fresh` has not been moved yet, so an
/// interrupted swap is completed by repeating it.
fn swap_in(folder: &Path, fresh: &Path, aside: &Path) -> Result<(), MaintenanceError> {
    let is_moved = |name: &str| !fresh.join(name).exists();
    let move_aside = |name: &str| -> Result<(), MaintenanceError> {
        let old = folder.join(name);
        if !old.exists() {
            return Ok(());
        }
        std::fs::create_dir_all(aside).map_err(at(aside))?;
        std::fs::rename(&old, aside.join(name)).map_err(at(&old))?;
        sync_folder(aside).map_err(at(aside))
    };
    fail::fail_point!("recover-before-moves");
    // The format is removed first and written last: in between a start recognizes the interrupted recovery.
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
