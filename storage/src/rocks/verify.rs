//! Verification of a stopped store: reads everything, as a start would, and changes nothing.

use std::sync::Arc;

use serde::Serialize;

use super::column_families::Access;
use super::error::OpenError;
use super::folder::{engine_folder, is_unfinished, lock_folder, mark_path};
use super::format::Format;
use super::history::walk;
use super::mark::MarkFile;
use super::open::{check_identity, no_mark, refuse_lost_format};
use super::progress::{MaintenanceError, Progress};
use super::recover::{levels, load, open_engine, position};
use crate::options::Options;
use crate::record::Records;

/// The result of verifying a store that opens.
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
    /// The end of the log is torn; a start drops it: it was never acknowledged, or in relaxed mode not synced yet.
    pub had_torn_tail: bool,
    /// Keys whose value fails its checksum.
    pub damaged: Vec<String>,
    /// Values and history records that are sealed and did not open, for lack of their key: of them only the checksum of what
    /// is stored was compared, and it was right.
    pub unopened: u64,
    /// Revisions whose history record has a value that fails its checksum: watches and past lists across them must start
    /// over.
    pub damaged_history: Vec<u64>,
}

/// Reads a whole store without changing a byte. It must not be open.
///
/// # Errors
/// Everything that a start would refuse.
pub fn verify(options: &Options, progress: &dyn Fn(Progress)) -> Result<VerifyReport, MaintenanceError> {
    let folder = &options.path;
    let missing = || OpenError::Missing { path: folder.clone() };
    if !folder.exists() {
        return Err(missing().into());
    }
    let _lock = lock_folder(options)?;
    verify_locked(options, progress)
}

/// Verifies a store whose lock is held.
pub(crate) fn verify_locked(
    options: &Options,
    progress: &dyn Fn(Progress),
) -> Result<VerifyReport, MaintenanceError> {
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
    let mut unopened = loaded.index.sealed().count() as u64;
    let first = position.origin.next().max(position.floors.watchable_from);
    let values = walk(&view, first, position.revision, |stored, _| {
        let revision = stored.committed.revision;
        match records.event(stored) {
            Ok(_) => {}
            Err(error) if error.is_damage() => damaged_history.push(revision.0),
            Err(_) => unopened += 1,
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
        unopened,
        damaged_history,
    })
}
