//! Moving objects into a new store: restore, export and import, recovery.
//!
//! Every object is written in key order at a new revision, above every revision the old store can have assigned, and both
//! floors are at the last of them. A client that resumes must list again, and sees only revisions above those it knew.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use uuid::Uuid;

use super::checkpoint::{open_engine, verify_backup};
use super::column_families::{Engine, Meta, Step};
use super::error::OpenError;
use super::folder::{UNFINISHED, lock_folder, mark_path};
use super::format::{CURRENT, Format, make_folder, sync_folder};
use super::handle::RocksStore;
use super::incremental;
use super::mark::{Mark, MarkFile};
use super::open::{create_engine, refuse_unfit};
use super::progress::{MaintenanceError, Progress, REPORT_EVERY, at, sealed};
use super::read::scan;
use super::source::Source;
use crate::export::{ExportReader, ExportReport, ExportWriter, Exported, jump};
use crate::options::Options;
use crate::record::{Place, Records, StoredState, finish_state};
use crate::{At, Key, KeyRange, Page, Revision, Value};

/// The approximate size of a batch of writes.
const BATCH_BYTES: usize = 4 << 20;
/// The result of filling a new store.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ImportReport {
    /// The identity of the new store.
    pub store: Uuid,
    /// The identity of the store the objects come from.
    pub source: Uuid,
    /// The revision of the source.
    pub source_revision: u64,
    /// The revision of the new store.
    pub revision: u64,
    /// How many objects were written.
    pub objects: u64,
    /// Keys whose value is damaged in the source: they are not in the new store.
    pub skipped: Vec<String>,
    /// Consequences that cannot be avoided, for people.
    pub notes: Vec<&'static str>,
}

fn begin_filling(folder: &Path) -> Result<(), MaintenanceError> {
    File::create(folder.join(UNFINISHED)).map_err(at(folder))?;
    sync_folder(folder).map_err(at(folder))
}

/// The consequences of every restore.
const NOTES: &[&str] = &[
    "every watch must list again and every known resourceVersion conflicts once",
    "generation and status of an object may be older than controllers remember",
];

fn age(now_ms: u64, then_ms: u64) -> Duration {
    Duration::from_millis(now_ms.saturating_sub(then_ms))
}

/// Writes a new store object by object.
pub(crate) struct Importer {
    engine: Engine,
    records: Records,
    folder: PathBuf,
    options: Options,
    store: Uuid,
    revision: Revision,
    steps: Vec<Step>,
    bytes: usize,
    objects: u64,
}

impl Importer {
    /// Begins a store in an empty folder; the first object takes the revision after `base`.
    pub(crate) fn begin(options: &Options, base: Revision) -> Result<Self, MaintenanceError> {
        let folder = options.path.clone();
        let store = Uuid::new_v4();
        begin_filling(&folder)?;
        fail::fail_point!("restore-begin");
        let engine = create_engine(&folder)?;
        Ok(Self {
            engine,
            records: Records::new(options.seal.clone()),
            folder,
            options: options.clone(),
            store,
            revision: base,
            steps: Vec::new(),
            bytes: 0,
            objects: 0,
        })
    }

    /// Writes one object.
    pub(crate) fn put(&mut self, key: &Key, value: &Value) -> Result<(), MaintenanceError> {
        self.revision = self.revision.next();
        let place = Place {
            created: self.revision,
            modified: self.revision,
        };
        let body = self
            .records
            .state_body(key, value)
            .map_err(|error| MaintenanceError::Damaged {
                path: self.folder.clone(),
                what: format!("{key} cannot be written: {error}"),
            })?;
        let record = finish_state(body, key, place);
        self.bytes += record.len();
        self.objects += 1;
        self.steps.push(Step::PutState(key.clone(), record));
        if self.bytes >= BATCH_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), MaintenanceError> {
        fail::fail_point!("restore-batch");
        self.engine.write_or_wait(&self.steps, false)?;
        self.steps.clear();
        self.bytes = 0;
        Ok(())
    }

    /// Reads every object back and compares it with the export.
    fn compare(&mut self, path: &Path, progress: &dyn Fn(Progress)) -> Result<(), MaintenanceError> {
        self.flush()?;
        let mut expected = ExportReader::open(path, self.records.seal())?;
        let (step, total) = ("verify", Some(expected.count));
        let view = self.engine.view();
        let mut rows = view.state("", "")?;
        let mut done: u64 = 0;
        loop {
            let found = rows.next()?;
            let Some((key, value)) = expected.next()? else {
                return match found {
                    None => Ok(()),
                    Some((key, _)) => Err(MaintenanceError::Differs {
                        key: String::from_utf8_lossy(key).into_owned(),
                    }),
                };
            };
            let is_same = found.is_some_and(|(found, record)| {
                let stored = StoredState::decode(&key, record).ok();
                let read = stored.and_then(|stored| self.records.value(&key, stored).ok());
                found == key.as_str().as_bytes() && read.as_ref() == Some(&value)
            });
            if !is_same {
                return Err(MaintenanceError::Differs { key: key.to_string() });
            }
            done += 1;
            if done.is_multiple_of(REPORT_EVERY) {
                progress(Progress { step, done, total });
            }
        }
    }

    /// Completes the store. Before this its folder does not count as one.
    pub(crate) fn finish(mut self) -> Result<(Uuid, Revision, u64), MaintenanceError> {
        fail::fail_point!("restore-before-finish");
        let last = self.revision.max(Revision::INITIAL);
        self.steps.extend([
            Step::PutMeta(Meta::Format, u64::from(CURRENT)),
            Step::PutMeta(Meta::FeatureLevel, u64::from(CURRENT)),
            Step::PutStore(self.store),
            Step::PutMeta(Meta::Revision, last.0),
            Step::PutMeta(Meta::ListableFrom, last.0),
            Step::PutMeta(Meta::WatchableFrom, last.0),
            Step::PutMeta(Meta::Origin, last.0),
            Step::PutMeta(Meta::Ceiling, 0),
        ]);
        self.engine.write_or_wait(&self.steps, true)?;
        self.engine.flush()?;
        drop(self.engine);
        fail::fail_point!("restore-before-mark");
        let mark = Mark {
            store: self.store,
            boot: self.options.boot_id,
            synced: last,
            at_ms: self.options.clock.now_ms(),
            is_clean: true,
            is_relaxed: false,
        };
        MarkFile::create(&mark_path(&self.folder), &mark).map_err(at(&self.folder))?;
        std::fs::remove_file(self.folder.join(UNFINISHED)).map_err(at(&self.folder))?;
        fail::fail_point!("restore-before-format");
        Format::new(self.store)
            .write(&self.folder)
            .map_err(at(&self.folder))?;
        Ok((self.store, last, self.objects))
    }
}

/// Creates a store from a backup, full or incremental, in the empty or missing folder of `options`. Values that are damaged
/// in the backup are left out and named in the report. Of a folder of incremental backups the newest is restored, of
/// a manifest its own.
///
/// # Errors
/// A damaged backup, a folder that is not empty, the disk.
pub fn restore(
    backup: &Path,
    options: &Options,
    progress: &dyn Fn(Progress),
) -> Result<ImportReport, MaintenanceError> {
    if let Some(copy) = incremental::find(backup)? {
        let _lock = claim_empty(options)?;
        begin_filling(&options.path)?;
        // In the new folder, which needs the space anyway.
        let whole = options.path.join(RESTORING);
        let source = copy.unpack(&whole)?;
        let filled = fill(&source, &whole, options, progress)?;
        drop(source);
        std::fs::remove_dir_all(&whole).map_err(at(&whole))?;
        return filled.finish();
    }
    let manifest = verify_backup(backup, &options.seal, progress)?;
    let _lock = claim_empty(options)?;
    let source = Source {
        engine: open_engine(backup)?,
        store: manifest.store,
        revision: Revision(manifest.revision),
        taken_ms: manifest.taken_ms,
    };
    fill(&source, backup, options, progress)?.finish()
}

/// Where the files of an incremental backup are restored before they are read.
const RESTORING: &str = "restoring";

/// A new store with every object of a source, not completed yet.
struct Filled {
    importer: Importer,
    source: Uuid,
    source_revision: Revision,
    skipped: Vec<String>,
}

impl Filled {
    fn finish(self) -> Result<ImportReport, MaintenanceError> {
        let (store, revision, objects) = self.importer.finish()?;
        Ok(ImportReport {
            store,
            source: self.source,
            source_revision: self.source_revision.0,
            revision: revision.0,
            objects,
            skipped: self.skipped,
            notes: NOTES.to_vec(),
        })
    }
}

/// Writes every object of a source into a new store.
fn fill(
    source: &Source,
    path: &Path,
    options: &Options,
    progress: &dyn Fn(Progress),
) -> Result<Filled, MaintenanceError> {
    let view = source.engine.view();
    let base = jump(source.revision, age(options.clock.now_ms(), source.taken_ms));
    let mut importer = Importer::begin(options, base)?;
    let records = Records::new(options.seal.clone());
    let mut skipped = Vec::new();
    let mut rows = view.state("", "")?;
    while let Some((key, record)) = rows.next()? {
        let text = String::from_utf8_lossy(key).into_owned();
        let damaged = |what: String| MaintenanceError::Damaged {
            path: path.to_owned(),
            what: format!("the record of {text}: {what}"),
        };
        let key = Key::parse(&text).map_err(|error| damaged(error.to_string()))?;
        let stored = StoredState::decode(&key, record).map_err(|error| damaged(error.to_string()))?;
        match records.value(&key, stored) {
            Ok(value) => importer.put(&key, &value)?,
            Err(error) if error.is_damage() => {
                tracing::error!(%key, %error, "a value is damaged in the backup and is left out");
                skipped.push(text);
            }
            Err(error) => return Err(sealed(&text, &error)),
        }
        report(progress, importer.objects, None);
    }
    Ok(Filled {
        importer,
        source: source.store,
        source_revision: source.revision,
        skipped,
    })
}

fn report(progress: &dyn Fn(Progress), done: u64, total: Option<u64>) {
    if done.is_multiple_of(REPORT_EVERY) {
        let step = "write";
        progress(Progress { step, done, total });
    }
}

/// Locks a folder that must be empty. The check is done under the lock: its last holder may have filled the folder.
fn claim_empty(options: &Options) -> Result<super::lock::FolderLock, MaintenanceError> {
    let folder = &options.path;
    make_folder(folder).map_err(at(folder))?;
    let lock = lock_folder(options)?;
    refuse_unfit(options)?;
    for found in std::fs::read_dir(folder).map_err(at(folder))? {
        if found.map_err(at(folder))?.file_name() != "lock" {
            return Err(OpenError::NotEmpty { path: folder.clone() }.into());
        }
    }
    sync_folder(folder).map_err(at(folder))?;
    Ok(lock)
}

impl RocksStore {
    /// Writes the newest state into one file. Blocks; writes go on. The values are those that the store has in memory anyway.
    ///
    /// # Errors
    /// The disk, or a damaged value.
    pub fn export(&self, path: &Path, progress: &dyn Fn(Progress)) -> Result<ExportReport, MaintenanceError> {
        let engine = self.parts.lifecycle.engine()?;
        let page = Page::default();
        let scan = scan(&self.parts, &engine, &KeyRange::all(), At::Latest, &page)?;
        drop(engine);
        let total = scan.entries.len() as u64;
        let exported = Exported {
            store: self.uuid(),
            revision: scan.revision,
            count: total,
            now_ms: self.parts.settings.clock.now_ms(),
            records: &self.parts.records,
        };
        let mut writer = ExportWriter::begin(path, exported)?;
        for (key, entry) in &scan.entries {
            writer.put(key, entry)?;
            report(progress, writer.written(), Some(total));
        }
        Ok(writer.finish()?)
    }
}

/// Creates a store from an export, in the empty or missing folder of `options`.
///
/// # Errors
/// A damaged export, a folder that is not empty, the disk, a value that is read back with another content than it was written
/// with. A failed import leaves a folder that does not open as a store.
pub fn import(
    path: &Path,
    options: &Options,
    progress: &dyn Fn(Progress),
) -> Result<ImportReport, MaintenanceError> {
    let mut objects = ExportReader::open(path, &options.seal)?;
    let _lock = claim_empty(options)?;
    let mut importer = Importer::begin(options, objects.above(options.clock.now_ms()))?;
    while let Some((key, value)) = objects.next()? {
        importer.put(&key, &value)?;
        report(progress, importer.objects, Some(objects.count));
    }
    importer.compare(path, progress)?;
    let filled = Filled {
        importer,
        source: objects.source,
        source_revision: objects.revision,
        skipped: Vec::new(),
    };
    filled.finish()
}
