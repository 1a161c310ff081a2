//! Incremental backups on another volume.
//!
//! ```text
//! folder/engine/                 the engine's backups, which share files
//! folder/backup-0000000003.json  one manifest per backup: store, revision, time
//! ```
//!
//! The engine copies the files that the folder lacks, with a checksum each, and removes files that no kept backup needs.
//! After each backup the sizes of all files are verified; their checksums are compared, and every value read, when a backup
//! is restored (see `transfer`).

use std::path::{Path, PathBuf};

use rocksdb::Env;
use rocksdb::backup::{BackupEngine, BackupEngineOptions, RestoreOptions};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::column_families::{Access, Engine, Recovery};
use super::error::{EngineError, OpenError};
use super::format::{CURRENT, make_folder, write_durably};
use super::handle::RocksStore;
use super::progress::{MaintenanceError, at};
use super::recover;
use super::source::Source;
use crate::{Revision, StoreError};

const ENGINE: &str = "engine";

/// The manifest of one backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    /// The format of the records.
    format: u32,
    /// The identity of the store it was taken from.
    store: Uuid,
    /// The engine's number for it.
    backup: u32,
    /// It holds the store at this revision or slightly before or after: a batch may be written and not published.
    revision: u64,
    /// When it was taken, in milliseconds since 1970.
    taken_ms: u64,
}

/// The result of taking an incremental backup, which was verified.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IncrementalReport {
    /// Its manifest, which names it for a restore.
    pub path: PathBuf,
    /// The identity of the store.
    pub store: Uuid,
    /// It holds the store at about this revision, and at least at the newest one from before it began.
    pub revision: u64,
    /// How many files it consists of; most are shared with the ones before.
    pub files: u32,
    /// Bytes of its files.
    pub bytes: u64,
    /// How many backups the folder holds.
    pub kept: usize,
    /// Keys whose value is known to be damaged: they cannot be restored from it.
    pub damaged: Vec<String>,
}

impl RocksStore {
    /// Adds a backup to a folder of incremental backups, on any volume, and keeps the newest `keep` (0: all), or all of
    /// them while a value is damaged. Blocks, also while another backup is taken; writes go on.
    ///
    /// # Errors
    /// The disks, also if the store's is nearly full; a folder with backups of another store; backups whose files have
    /// changed.
    pub fn backup_incrementally(
        &self,
        folder: &Path,
        keep: usize,
    ) -> Result<IncrementalReport, MaintenanceError> {
        let _running = self.parts.exclusive.backup();
        if self.parts.capacity.is_short() {
            // No files of dropped history are removed while files are copied.
            let reason = "the disk is nearly full, so no incremental backup is taken".to_owned();
            return Err(StoreError::Full { reason }.into());
        }
        make_folder(folder).map_err(at(folder))?;
        let foreign = |manifest: &Manifest| manifest.store != self.uuid();
        if let Some(other) = manifests(folder)?.iter().find(|manifest| foreign(manifest)) {
            return Err(MaintenanceError::Foreign {
                path: folder.to_owned(),
                store: other.store,
            });
        }
        let mut backups = open(folder)?;
        let engine = self.parts.lifecycle.engine()?;
        engine
            .copy_into(&mut backups)
            .map_err(|error| failed(folder, error))?;
        drop(engine);
        fail::fail_point!("copy-before-manifest");
        // Everything in the backup is published by now, except for a batch that is being published: see `unpack`.
        let revision = self.parts.published.current();
        let newest = backups
            .get_backup_info()
            .pop()
            .ok_or_else(|| MaintenanceError::Damaged {
                path: folder.to_owned(),
                what: "the engine does not list the backup it has just taken".to_owned(),
            })?;
        let manifest = Manifest {
            format: CURRENT,
            store: self.uuid(),
            backup: newest.backup_id,
            revision: revision.0,
            taken_ms: self.parts.settings.clock.now_ms(),
        };
        let path = manifest_path(folder, manifest.backup);
        let text = serde_json::to_vec_pretty(&manifest).map_err(|error| at(&path)(error.into()))?;
        write_durably(&path, &text).map_err(at(&path))?;
        fail::fail_point!("copy-before-purge");
        let damaged = self.damaged();
        // An older one may hold the last good copy of a damaged value.
        if keep > 0 && damaged.is_empty() {
            // The binding truncates it to 32 bits; a large number could become 0.
            let keep = keep.min(u32::MAX as usize);
            backups
                .purge_old_backups(keep)
                .map_err(|error| failed(folder, error.into()))?;
        }
        let kept = backups.get_backup_info();
        for info in &kept {
            let path = manifest_path(folder, info.backup_id);
            backups
                .verify_backup(info.backup_id)
                .map_err(|error| failed(&path, error.into()))?;
        }
        fail::fail_point!("copy-before-removal");
        for manifest in manifests(folder)? {
            if !kept.iter().any(|info| info.backup_id == manifest.backup) {
                let path = manifest_path(folder, manifest.backup);
                std::fs::remove_file(&path).map_err(at(&path))?;
            }
        }
        Ok(IncrementalReport {
            path,
            store: manifest.store,
            revision: manifest.revision,
            files: newest.num_files,
            bytes: newest.size,
            kept: kept.len(),
            damaged: damaged.iter().map(ToString::to_string).collect(),
        })
    }
}

/// One incremental backup.
pub(crate) struct Copy {
    folder: PathBuf,
    manifest: Manifest,
}

/// The backup at `path`: of a manifest, or the newest of a folder. None if there is none.
pub(crate) fn find(path: &Path) -> Result<Option<Copy>, MaintenanceError> {
    let found = if path.is_file() {
        let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
        Some((folder, read(path)?))
    } else {
        let newest = manifests(path)?.pop();
        newest.map(|manifest| (path.to_owned(), manifest))
    };
    let Some((folder, manifest)) = found else {
        return Ok(None);
    };
    if manifest.format > CURRENT {
        return Err(OpenError::TooNew {
            found: manifest.format,
            needed: manifest.format,
            supported: CURRENT,
        }
        .into());
    }
    Ok(Some(Copy { folder, manifest }))
}

impl Copy {
    /// Restores the engine's files of the backup into a new folder, comparing the checksum of each, and opens them for
    /// reading.
    pub(crate) fn unpack(&self, target: &Path) -> Result<Source, MaintenanceError> {
        let path = manifest_path(&self.folder, self.manifest.backup);
        let mut backups = open(&self.folder)?;
        let options = RestoreOptions::default();
        backups
            .restore_from_backup(target, target, &options, self.manifest.backup)
            .map_err(|error| failed(&path, error.into()))?;
        let engine = Engine::open(target, Access::ReadOnly, Recovery::Strict)?;
        let position = recover::position(&engine.view())?;
        if position.store != self.manifest.store {
            let what = "it belongs to another store than its manifest".to_owned();
            return Err(MaintenanceError::Damaged { path, what });
        }
        Ok(Source {
            engine,
            store: position.store,
            // A batch may be in the backup before its revision is published.
            revision: position.revision.max(Revision(self.manifest.revision)),
            taken_ms: self.manifest.taken_ms,
        })
    }
}

fn manifest_path(folder: &Path, backup: u32) -> PathBuf {
    folder.join(format!("backup-{backup:010}.json"))
}

fn read(path: &Path) -> Result<Manifest, MaintenanceError> {
    let text = std::fs::read(path).map_err(at(path))?;
    serde_json::from_slice(&text).map_err(|error| MaintenanceError::Damaged {
        path: path.to_owned(),
        what: format!("it is not a manifest of an incremental backup: {error}"),
    })
}

/// The manifests of a folder, newest last.
fn manifests(folder: &Path) -> Result<Vec<Manifest>, MaintenanceError> {
    let mut manifests = Vec::new();
    for found in std::fs::read_dir(folder).map_err(at(folder))? {
        let path = found.map_err(at(folder))?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name.starts_with("backup-") && path.extension().is_some_and(|end| end == "json") {
            manifests.push(read(&path)?);
        }
    }
    manifests.sort_by_key(|manifest| manifest.backup);
    Ok(manifests)
}

fn open(folder: &Path) -> Result<BackupEngine, MaintenanceError> {
    let opened = || -> Result<BackupEngine, rocksdb::Error> {
        let options = BackupEngineOptions::new(folder.join(ENGINE))?;
        BackupEngine::open(&options, &Env::new()?)
    };
    opened().map_err(|error| failed(folder, error.into()))
}

/// An error of the engine in a backup. Damage there is not damage of the store.
fn failed(path: &Path, error: EngineError) -> MaintenanceError {
    if !error.is_damage() {
        return error.into();
    }
    MaintenanceError::Damaged {
        path: path.to_owned(),
        what: error.to_string(),
    }
}
