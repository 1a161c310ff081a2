//! How is a backup kept on another volume without copying everything each time?
//!
//! ```text
//! folder/engine/                 what the engine's own backups consist of: files are shared between them
//! folder/backup-0000000003.json  one manifest a backup: whose, how far, when
//! ```
//!
//! The engine copies the files that the folder lacks, each with a checksum of its content, and removes what no kept
//! backup needs. After each backup the files of all of them are compared with what the engine knows about their sizes;
//! their checksums are compared when one is restored, and then every value is read (see `transfer`).

use std::path::{Path, PathBuf};

use rocksdb::Env;
use rocksdb::backup::{BackupEngine, BackupEngineOptions, RestoreOptions};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::RocksStore;
use super::column_families::{Access, Engine, Recovery};
use super::disk::Room;
use super::error::{EngineError, OpenError};
use super::format::{CURRENT, make_folder, write_durably};
use super::progress::{LifeError, at};
use super::recover;
use super::transfer::Source;
use crate::{Revision, StoreError};

const ENGINE: &str = "engine";

/// What is known of one backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    /// The format of the records.
    format: u32,
    /// The identity of the store it was taken from.
    store: Uuid,
    /// The engine's number of it.
    backup: u32,
    /// It shows the store at this revision or at one before, or at that of the batch that was at work.
    revision: u64,
    /// When it was taken, in milliseconds since 1970.
    taken_ms: u64,
}

/// An incremental backup that was taken and verified.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct IncrementalReport {
    /// Its manifest, which names it for a restore.
    pub path: PathBuf,
    /// The identity of the store.
    pub store: Uuid,
    /// It shows the store at this revision or at one near it, and at least at the newest one from before it began.
    pub revision: u64,
    /// How many files it consists of; most are shared with the ones before.
    pub files: u32,
    /// Bytes of its files.
    pub bytes: u64,
    /// How many backups the folder holds.
    pub kept: usize,
    /// Keys whose value was known to be damaged: they cannot be restored from here.
    pub damaged: Vec<String>,
}

impl RocksStore {
    /// Brings a folder of incremental backups, on any volume, up to now and keeps the newest `keep` (0 = all), or
    /// all of them while a value is damaged. Blocks, also while another backup is taken; writers do not wait.
    ///
    /// # Errors
    /// The disks, one that fills up among them, a folder with backups of another store, and backups whose files are not
    /// as they were written.
    pub fn backup_incrementally(&self, folder: &Path, keep: usize) -> Result<IncrementalReport, LifeError> {
        let _at_work = self.shared.backing_up();
        if self.shared.room() > Room::Plenty {
            // While files are copied, none that were let go of are removed.
            let reason = "the disk fills up, so no backup is taken of it".to_owned();
            return Err(StoreError::Full { reason }.into());
        }
        make_folder(folder).map_err(at(folder))?;
        let foreign = |manifest: &Manifest| manifest.store != self.uuid();
        if let Some(other) = manifests(folder)?.iter().find(|manifest| foreign(manifest)) {
            return Err(LifeError::Foreign {
                path: folder.to_owned(),
                store: other.store,
            });
        }
        let mut backups = open(folder)?;
        let engine = self.shared.engine()?;
        engine
            .copy_into(&mut backups)
            .map_err(|error| failed(folder, error))?;
        drop(engine);
        fail::fail_point!("copy-before-manifest");
        // What the backup shows was committed by now, but for what is written and not published yet: see `unpack`.
        let revision = self.shared.current();
        let newest = backups
            .get_backup_info()
            .pop()
            .ok_or_else(|| LifeError::Damaged {
                path: folder.to_owned(),
                what: "the engine does not find the backup it has just taken".to_owned(),
            })?;
        let manifest = Manifest {
            format: CURRENT,
            store: self.uuid(),
            backup: newest.backup_id,
            revision: revision.0,
            taken_ms: self.shared.clock.now_ms(),
        };
        let path = manifest_path(folder, manifest.backup);
        let text = serde_json::to_vec_pretty(&manifest).map_err(|error| at(&path)(error.into()))?;
        write_durably(&path, &text).map_err(at(&path))?;
        fail::fail_point!("copy-before-purge");
        let damaged = self.damaged();
        // Older ones may hold the last whole copy of what is damaged now.
        if keep > 0 && damaged.is_empty() {
            // The binding cuts it off at 32 bits, where a large number would keep none.
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

/// The backup that `path` names: by its manifest, or the newest of a folder. None where there are no such backups.
pub(crate) fn find(path: &Path) -> Result<Option<Copy>, LifeError> {
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
    /// Makes the store of the backup whole in a new folder and opens it for reading. The checksum of every file is
    /// compared on the way.
    pub(crate) fn unpack(&self, target: &Path) -> Result<Source, LifeError> {
        let path = manifest_path(&self.folder, self.manifest.backup);
        let mut backups = open(&self.folder)?;
        let options = RestoreOptions::default();
        backups
            .restore_from_backup(target, target, &options, self.manifest.backup)
            .map_err(|error| failed(&path, error.into()))?;
        let engine = Engine::open(target, Access::ReadOnly, Recovery::Strict)?;
        let position = recover::position(&engine.view())?;
        if position.store != self.manifest.store {
            let what = "it is of another store than the manifest says".to_owned();
            return Err(LifeError::Damaged { path, what });
        }
        Ok(Source {
            engine,
            store: position.store,
            // A batch that was at work is in the copy before its revision is published.
            revision: position.revision.max(Revision(self.manifest.revision)),
            taken_ms: self.manifest.taken_ms,
        })
    }
}

fn manifest_path(folder: &Path, backup: u32) -> PathBuf {
    folder.join(format!("backup-{backup:010}.json"))
}

fn read(path: &Path) -> Result<Manifest, LifeError> {
    let text = std::fs::read(path).map_err(at(path))?;
    serde_json::from_slice(&text).map_err(|error| LifeError::Damaged {
        path: path.to_owned(),
        what: format!("it is no manifest of an incremental backup: {error}"),
    })
}

/// The manifests of a folder, the newest last.
fn manifests(folder: &Path) -> Result<Vec<Manifest>, LifeError> {
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

fn open(folder: &Path) -> Result<BackupEngine, LifeError> {
    let opened = || -> Result<BackupEngine, rocksdb::Error> {
        let options = BackupEngineOptions::new(folder.join(ENGINE))?;
        BackupEngine::open(&options, &Env::new()?)
    };
    opened().map_err(|error| failed(folder, error.into()))
}

/// An error of the engine at a backup. Damage there is no damage of the store.
fn failed(path: &Path, error: EngineError) -> LifeError {
    if !error.is_damage() {
        return error.into();
    }
    LifeError::Damaged {
        path: path.to_owned(),
        what: error.to_string(),
    }
}
