//! Moving objects into a new store: restore, export and import, recovery.
//!
//! Every object is written in key order at a new revision, above every revision the old store can have assigned, and both
//! floors are at the last of them. A client that resumes must list again, and sees only revisions above those it knew.
//!
//! An export is one stream: a magic line, a header, the objects in key order, a trailer; each frame is a length-delimited
//! protobuf message.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use drydock_proto::storage::v1::{ExportHeader, ExportRecord, ExportTrailer};
use prost::Message;
use serde::Serialize;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::checkpoint::{open_engine, verify_backup};
use super::column_families::{Engine, Meta, Step};
use super::error::OpenError;
use super::folder::{UNFINISHED, lock_folder, mark_path};
use super::format::{CURRENT, Format, make_folder, sync_folder, sync_name};
use super::handle::RocksStore;
use super::incremental;
use super::mark::{Mark, MarkFile};
use super::open::{create_engine, refuse_unfit};
use super::progress::{MaintenanceError, Progress, REPORT_EVERY, at, sealed};
use super::read::scan;
use super::source::Source;
use crate::options::Options;
use crate::record::{Place, Records, StoredState, finish_state};
use crate::{At, Key, KeyRange, Page, Revision, Value};

/// The least number of revisions that a restored store skips: a week at 1,500 writes per second.
const LEAST_JUMP: u64 = 1_000_000_000;
/// How many it skips for each second since the source was taken: more than any store writes.
const JUMP_A_SECOND: u64 = 20_000;
/// The approximate size of a batch of writes.
const BATCH_BYTES: usize = 4 << 20;
/// First line of an export.
const MAGIC: &[u8] = b"drydock-export 1\n";
/// The largest frame: a value and its metadata.
const MAX_FRAME: usize = Value::MAX_BYTES + (64 << 10);

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

/// The result of an export.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExportReport {
    /// The file.
    pub path: PathBuf,
    /// The identity of the store.
    pub store: Uuid,
    /// The revision of its state.
    pub revision: u64,
    /// How many objects it holds.
    pub objects: u64,
    /// Its size.
    pub bytes: u64,
}

/// A revision above every one a store may have assigned, `age` after `revision` was its newest.
pub(crate) fn jump(revision: Revision, age: Duration) -> Revision {
    let jump = age.as_secs().saturating_mul(JUMP_A_SECOND).max(LEAST_JUMP);
    Revision(revision.0.saturating_add(jump))
}

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
        self.engine.write(&self.steps, false)?;
        self.steps.clear();
        self.bytes = 0;
        Ok(())
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
        self.engine.write(&self.steps, true)?;
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
    /// Writes the newest state into one file. Blocks; writes go on.
    ///
    /// # Errors
    /// The disk, or a damaged value.
    pub fn export(&self, path: &Path, progress: &dyn Fn(Progress)) -> Result<ExportReport, MaintenanceError> {
        let engine = self.parts.lifecycle.engine()?;
        let page = Page::default();
        let scan = scan(&self.parts, &engine, &KeyRange::all(), At::Latest, &page)?;
        drop(engine);
        let header = ExportHeader {
            format: CURRENT,
            store_uuid: self.uuid().to_string(),
            revision: scan.revision.0,
            count: scan.entries.len() as u64,
            exported_ms: self.parts.settings.clock.now_ms(),
        };
        let unfinished = path.with_extension("unfinished");
        let bytes = write_export(&unfinished, &header, &scan.entries, progress).map_err(at(&unfinished))?;
        std::fs::rename(&unfinished, path).map_err(at(path))?;
        sync_name(path).map_err(at(path))?;
        Ok(ExportReport {
            path: path.to_owned(),
            store: self.uuid(),
            revision: scan.revision.0,
            objects: header.count,
            bytes,
        })
    }
}

fn write_export(
    path: &Path,
    header: &ExportHeader,
    entries: &[(Key, crate::Entry)],
    progress: &dyn Fn(Progress),
) -> io::Result<u64> {
    let mut out = Hashing::new(BufWriter::new(File::create(path)?));
    out.write_all(MAGIC)?;
    out.write_all(&header.encode_length_delimited_to_vec())?;
    for (position, (key, entry)) in entries.iter().enumerate() {
        let record = ExportRecord {
            key: key.to_string(),
            created: entry.created.0,
            modified: entry.modified.0,
            form: entry.value.form.as_ref().to_owned(),
            splice_offset: entry.value.splice_offset,
            value: entry.value.bytes.clone(),
        };
        out.write_all(&record.encode_length_delimited_to_vec())?;
        report(progress, position as u64 + 1, Some(header.count));
    }
    let trailer = ExportTrailer {
        count: header.count,
        sha256: Bytes::copy_from_slice(&out.digest()),
    };
    out.write_all(&trailer.encode_length_delimited_to_vec())?;
    out.flush()?;
    out.inner.get_ref().sync_all()?;
    Ok(out.bytes)
}

/// Creates a store from an export, in the empty or missing folder of `options`.
///
/// # Errors
/// A damaged export, a folder that is not empty, the disk. A failed import leaves a folder that does not open as a store.
pub fn import(
    path: &Path,
    options: &Options,
    progress: &dyn Fn(Progress),
) -> Result<ImportReport, MaintenanceError> {
    let damaged = |what: &str| MaintenanceError::Damaged {
        path: path.to_owned(),
        what: what.to_owned(),
    };
    let file = File::open(path).map_err(at(path))?;
    let mut input = Hashing::new(BufReader::new(file));
    let mut magic = vec![0; MAGIC.len()];
    input.read_exact(&mut magic).map_err(at(path))?;
    if magic != MAGIC {
        return Err(damaged("it does not begin like an export"));
    }
    let header: ExportHeader = read_frame(&mut input).map_err(at(path))?;
    if header.format > CURRENT {
        return Err(OpenError::TooNew {
            found: header.format,
            needed: header.format,
            supported: CURRENT,
        }
        .into());
    }
    let source = Uuid::parse_str(&header.store_uuid).map_err(|_| damaged("its header names no store"))?;
    let _lock = claim_empty(options)?;
    let base = jump(
        Revision(header.revision),
        age(options.clock.now_ms(), header.exported_ms),
    );
    let mut importer = Importer::begin(options, base)?;
    let mut last = String::new();
    for _ in 0..header.count {
        let record: ExportRecord = read_frame(&mut input).map_err(at(path))?;
        if record.key <= last {
            return Err(damaged("its objects are not in order"));
        }
        let key = Key::parse(&record.key).map_err(|_| damaged("it holds a malformed key"))?;
        if record.value.len() > Value::MAX_BYTES {
            return Err(damaged("it holds a value that is too large"));
        }
        let value = Value {
            bytes: record.value,
            form: record.form.into(),
            splice_offset: record.splice_offset,
        };
        importer.put(&key, &value)?;
        last = record.key;
        report(progress, importer.objects, Some(header.count));
    }
    let digest = input.digest();
    let trailer: ExportTrailer = read_frame(&mut input).map_err(at(path))?;
    if trailer.count != header.count || trailer.sha256 != digest.as_slice() {
        return Err(damaged("its content does not match its trailer"));
    }
    let filled = Filled {
        importer,
        source,
        source_revision: Revision(header.revision),
        skipped: Vec::new(),
    };
    filled.finish()
}

fn read_frame<M: Message + Default>(input: &mut impl Read) -> io::Result<M> {
    let invalid = |what: &'static str| io::Error::new(io::ErrorKind::InvalidData, what);
    let mut length: usize = 0;
    for shift in (0..35).step_by(7) {
        let mut byte = [0];
        input.read_exact(&mut byte)?;
        let [byte] = byte;
        length |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            if length > MAX_FRAME {
                return Err(invalid("a frame is too large"));
            }
            let mut frame = vec![0; length];
            input.read_exact(&mut frame)?;
            return M::decode(frame.as_slice()).map_err(|_| invalid("a frame is not a protobuf message"));
        }
    }
    Err(invalid("the length of a frame is malformed"))
}

/// Hashes and counts the bytes that pass through.
struct Hashing<T> {
    inner: T,
    hash: Sha256,
    bytes: u64,
}

impl<T> Hashing<T> {
    fn new(inner: T) -> Self {
        Self {
            inner,
            hash: Sha256::new(),
            bytes: 0,
        }
    }

    fn digest(&self) -> Vec<u8> {
        self.hash.clone().finalize().to_vec()
    }

    fn note(&mut self, passed: &[u8]) {
        self.hash.update(passed);
        self.bytes += passed.len() as u64;
    }
}

impl<T: Write> Write for Hashing<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.note(bytes.get(..written).unwrap_or_default());
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: BufRead> Read for Hashing<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        self.note(bytes.get(..read).unwrap_or_default());
        Ok(read)
    }
}
