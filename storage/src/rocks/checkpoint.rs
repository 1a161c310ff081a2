//! Backups of a running store on its own volume.
//!
//! A backup is a checkpoint (hard links; memtables are flushed first; writes go on). It is opened and every value read; a
//! manifest with the SHA-256 of every file is written; everything is synced, verified against the manifest, and renamed
//! into place. A value that is damaged in the store is damaged in its backup; the manifest names it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::column_families::{Access, Engine, Recovery};
use super::format::{CURRENT, make_folder, sync_folder, write_durably};
use super::handle::RocksStore;
use super::progress::{ContentHash, MaintenanceError, Progress, REPORT_EVERY, at};
use super::recover::{self, Position};
use crate::Key;
use crate::export::hex;
use crate::record::{Records, StoredState};
use crate::seal::Seal;

const MANIFEST: &str = "manifest.json";
const ENGINE: &str = "db";
/// The name of a backup that is not complete yet, or being removed.
const UNFINISHED: &str = "unfinished";

/// A file of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupFile {
    /// Its size.
    pub bytes: u64,
    /// Its SHA-256, as hexadecimal digits.
    pub sha256: String,
}

/// What a backup holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// The format of the records.
    pub format: u32,
    /// The identity of the store it was taken from.
    pub store: Uuid,
    /// The revision of its state.
    pub revision: u64,
    /// How many keys hold a value, damaged or not.
    pub objects: u64,
    /// Keys whose value fails its checksum: they cannot be restored from here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<String>,
    /// SHA-256 over key and revision of every value, in key order.
    pub content: String,
    /// When it was taken, in milliseconds since 1970.
    pub taken_ms: u64,
    /// Its files by path.
    pub files: BTreeMap<String, BackupFile>,
}

/// The result of taking a backup.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupReport {
    /// Its folder.
    pub path: PathBuf,
    /// Its manifest.
    #[serde(flatten)]
    pub manifest: Manifest,
    /// Older backups that were removed.
    pub removed: Vec<PathBuf>,
}

impl RocksStore {
    /// Takes a backup into a new folder below `folder` and keeps the newest `keep` there (0: all). Blocks, also while
    /// another backup is taken; writes go on. If a value is damaged, the newest older backup without damage is kept too.
    ///
    /// # Errors
    /// The disk, or structural damage found while the backup is read: then there is no backup.
    pub fn backup(
        &self,
        folder: &Path,
        keep: usize,
        progress: &dyn Fn(Progress),
    ) -> Result<BackupReport, MaintenanceError> {
        let _running = self.parts.exclusive.backup();
        make_folder(folder).map_err(at(folder))?;
        let unfinished = folder.join(UNFINISHED);
        if unfinished.exists() {
            std::fs::remove_dir_all(&unfinished).map_err(at(&unfinished))?;
        }
        std::fs::create_dir(&unfinished).map_err(at(&unfinished))?;
        fail::fail_point!("backup-before-checkpoint");
        self.parts
            .lifecycle
            .engine()?
            .checkpoint(&unfinished.join(ENGINE))?;
        fail::fail_point!("backup-after-checkpoint");
        let content = read_content(&unfinished, &self.parts.records, progress)?;
        let manifest = Manifest {
            format: CURRENT,
            store: content.position.store,
            revision: content.position.revision.0,
            objects: content.objects,
            damaged: content.damaged,
            content: content.hash,
            taken_ms: self.parts.settings.clock.now_ms(),
            files: fingerprint_files(&unfinished, progress)?,
        };
        let text = serde_json::to_vec_pretty(&manifest).map_err(|error| at(&unfinished)(error.into()))?;
        fail::fail_point!("backup-before-manifest");
        let manifest_path = unfinished.join(MANIFEST);
        write_durably(&manifest_path, &text).map_err(at(&manifest_path))?;
        let path = folder.join(format!(
            "backup-{:020}-{:013}",
            manifest.revision, manifest.taken_ms
        ));
        // Verified as written, not as intended.
        verify_with(&unfinished, &self.parts.records, progress)?;
        fail::fail_point!("backup-before-rename");
        std::fs::rename(&unfinished, &path).map_err(at(&path))?;
        sync_folder(folder).map_err(at(folder))?;
        fail::fail_point!("backup-before-removal");
        if !manifest.damaged.is_empty() {
            tracing::error!(keys = ?manifest.damaged, "the store and its backup have damaged values");
        }
        // The backup is complete, whether or not older ones can be removed.
        let removed = remove_old(folder, keep, &manifest).unwrap_or_else(|error| {
            tracing::warn!(%error, folder = %folder.display(), "older backups were not removed");
            Vec::new()
        });
        Ok(BackupReport {
            path,
            manifest,
            removed,
        })
    }
}

/// Reads every value of a backup and compares it with its manifest. Keys that the manifest lists as damaged may be.
///
/// # Errors
/// Any difference.
pub fn verify_backup(
    folder: &Path,
    seal: &Arc<dyn Seal>,
    progress: &dyn Fn(Progress),
) -> Result<Manifest, MaintenanceError> {
    verify_with(folder, &Records::new(Arc::clone(seal)), progress)
}

fn verify_with(
    folder: &Path,
    records: &Records,
    progress: &dyn Fn(Progress),
) -> Result<Manifest, MaintenanceError> {
    let damaged = |what: String| MaintenanceError::Damaged {
        path: folder.to_owned(),
        what,
    };
    let manifest = read_manifest(folder)?;
    if manifest.format > CURRENT {
        return Err(damaged(format!(
            "it has format {}, this binary reads {CURRENT}",
            manifest.format
        )));
    }
    let found = fingerprint_files(folder, progress)?;
    for (name, expected) in &manifest.files {
        match found.get(name) {
            None => return Err(damaged(format!("the file {name} is missing"))),
            Some(file) if file != expected => return Err(damaged(format!("the file {name} has changed"))),
            Some(_) => {}
        }
    }
    let content = read_content(folder, records, progress)?;
    if content.damaged != manifest.damaged {
        return Err(damaged(format!(
            "the values of {:?} fail their checksum, the manifest lists {:?}",
            content.damaged, manifest.damaged
        )));
    }
    let is_as_listed = content.hash == manifest.content
        && content.objects == manifest.objects
        && content.position.revision.0 == manifest.revision
        && content.position.store == manifest.store;
    if !is_as_listed {
        return Err(damaged("its content is not what the manifest says".to_owned()));
    }
    Ok(manifest)
}

fn read_manifest(folder: &Path) -> Result<Manifest, MaintenanceError> {
    let path = folder.join(MANIFEST);
    let text = std::fs::read(&path).map_err(at(&path))?;
    serde_json::from_slice(&text).map_err(|error| MaintenanceError::Damaged {
        path: folder.to_owned(),
        what: format!("its manifest does not parse: {error}"),
    })
}

struct Content {
    position: Position,
    objects: u64,
    damaged: Vec<String>,
    hash: String,
}

/// Opens the engine of a backup for reading.
pub(crate) fn open_engine(backup: &Path) -> Result<Engine, MaintenanceError> {
    Ok(Engine::open(
        &backup.join(ENGINE),
        Access::ReadOnly,
        Recovery::Strict,
    )?)
}

fn read_content(
    backup: &Path,
    records: &Records,
    progress: &dyn Fn(Progress),
) -> Result<Content, MaintenanceError> {
    let engine = open_engine(backup)?;
    let view = engine.view();
    let position = recover::position(&view)?;
    let mut hash = ContentHash::default();
    let (mut objects, mut unopened) = (0, 0_u64);
    let mut damaged_values = Vec::new();
    let mut rows = view.state("", "")?;
    while let Some((key, record)) = rows.next()? {
        let text = String::from_utf8_lossy(key).into_owned();
        let damaged = |what: String| MaintenanceError::Damaged {
            path: backup.to_owned(),
            what: format!("the record of {text}: {what}"),
        };
        let key = Key::parse(&text).map_err(|error| damaged(error.to_string()))?;
        let stored = StoredState::decode(&key, record).map_err(|error| damaged(error.to_string()))?;
        hash.add(&text, stored.place().modified.0);
        match records.value(&key, stored) {
            Ok(_) => {}
            Err(error) if error.is_damage() => damaged_values.push(text),
            // Its checksum was right, and the key may be elsewhere.
            Err(_) => unopened += 1,
        }
        objects += 1;
        if objects % REPORT_EVERY == 0 {
            progress(Progress {
                step: "read",
                done: objects,
                total: None,
            });
        }
    }
    if unopened > 0 {
        tracing::warn!(
            unopened,
            "sealed values of a backup were not opened: a restore needs their encryption keys"
        );
    }
    Ok(Content {
        position,
        objects,
        damaged: damaged_values,
        hash: hash.finish(),
    })
}

/// Syncs and hashes the engine's files, without those that opening it for reading writes (its own logs and lock).
fn fingerprint_files(
    backup: &Path,
    progress: &dyn Fn(Progress),
) -> Result<BTreeMap<String, BackupFile>, MaintenanceError> {
    let folder = backup.join(ENGINE);
    let mut files = BTreeMap::new();
    for found in std::fs::read_dir(&folder).map_err(at(&folder))? {
        let found = found.map_err(at(&folder))?;
        let name = found.file_name().to_string_lossy().into_owned();
        if name.starts_with("LOG") || name == "LOCK" {
            continue;
        }
        let path = found.path();
        let mut file = File::open(&path).map_err(at(&path))?;
        file.sync_all().map_err(at(&path))?;
        let (bytes, sha256) = fingerprint(&mut file).map_err(at(&path))?;
        files.insert(format!("{ENGINE}/{name}"), BackupFile { bytes, sha256 });
        progress(Progress {
            step: "verify",
            done: files.len() as u64,
            total: None,
        });
    }
    sync_folder(&folder).map_err(at(&folder))?;
    Ok(files)
}

fn fingerprint(file: &mut File) -> io::Result<(u64, String)> {
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 16];
    let mut bytes = 0;
    loop {
        let read = file.read(&mut block)?;
        if read == 0 {
            return Ok((bytes, hex(&hash.finalize())));
        }
        bytes += read as u64;
        hash.update(block.get(..read).unwrap_or_default());
    }
}

/// Removes older backups of the same store beyond the newest `keep`. Everything else in the folder is left alone.
fn remove_old(folder: &Path, keep: usize, newest: &Manifest) -> Result<Vec<PathBuf>, MaintenanceError> {
    if keep == 0 {
        return Ok(Vec::new());
    }
    let mut backups = Vec::new();
    for found in std::fs::read_dir(folder).map_err(at(folder))? {
        let found = found.map_err(at(folder))?;
        if !found.file_name().to_string_lossy().starts_with("backup-") {
            continue;
        }
        match read_manifest(&found.path()) {
            Ok(manifest) if manifest.store == newest.store => {
                backups.push((found.path(), manifest.damaged.is_empty()));
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "a backup has no readable manifest and is left alone"),
        }
    }
    // Names sort by revision.
    backups.sort_unstable();
    let old = backups.len().saturating_sub(keep);
    let kept = backups.split_off(old);
    if !kept.iter().any(|(_, is_whole)| *is_whole)
        && let Some(whole) = backups.iter().rposition(|(_, is_whole)| *is_whole)
    {
        backups.remove(whole);
    }
    let removed: Vec<PathBuf> = backups.into_iter().map(|(path, _)| path).collect();
    let unfinished = folder.join(UNFINISHED);
    for path in &removed {
        // Renamed first: an interrupted removal must not leave something that looks like a backup.
        std::fs::rename(path, &unfinished).map_err(at(path))?;
        std::fs::remove_dir_all(&unfinished).map_err(at(&unfinished))?;
    }
    Ok(removed)
}
