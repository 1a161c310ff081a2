//! Opens a store: everything before the first read.
//!
//! In order: the folder's lock, the file system, the format, the mark, the engine (see [`recover`]), the disk, the threads.
//! A folder without a store gets one; its files are created so that an interruption leaves either a complete store or a
//! folder that counts as empty.

use std::io;
use std::path::Path;
use std::sync::Arc;

use serde::Serialize;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::check::remove_checkpoint;
use super::column_families::{Access, Engine, Meta, Recovery, Step};
use super::commit::CommitThread;
use super::disk_probe::{ballast_path, probe_disk};
use super::error::OpenError;
use super::folder::{engine_folder, is_interrupted, is_unfinished, lock_folder, mark_path};
use super::format::{CURRENT, Format, make_folder, make_private, sync_folder};
use super::handle::RocksStore;
use super::lock::{FolderLock, unfit_file_system};
use super::mark::{CommitMark, Mark, MarkFile};
use super::parts::{Found, Parts};
use super::recover;
use super::threads::Threads;
use crate::clock::Stopwatch;
use crate::options::{Durability, FreeSpace, Options};
use crate::record::Records;
use crate::{Event, Revision};

/// The result of a start.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Opened {
    /// The identity of the store.
    pub store: Uuid,
    /// Whether this start created the store.
    pub is_new: bool,
    /// The newest revision.
    pub revision: u64,
    /// Oldest revision that can be listed.
    pub listable_from: u64,
    /// Oldest revision that can be watched from.
    pub watchable_from: u64,
    /// Keys that hold a value.
    pub objects: u64,
    /// Bytes of all values, uncompressed.
    pub object_bytes: u64,
    /// History records that were checked.
    pub history_records: u64,
    /// The end of the log was torn and was dropped: it was never acknowledged, or in relaxed mode not synced yet.
    pub had_torn_tail: bool,
    /// After a loss of power in relaxed mode: the store continues at its ceiling and every client must list again.
    pub resumed_at_ceiling: bool,
    /// Keys whose value fails its checksum. Reads of them fail until they are removed or restored.
    pub damaged: Vec<String>,
    /// How many values are sealed and did not open. Reads of them fail until they do.
    pub unopened: u64,
    /// Why the first of them did not open.
    pub unopened_because: Option<String>,
    /// Median time of a sync, in microseconds; none if it was not measured.
    pub sync_micros: Option<u64>,
    /// How long the start took, in milliseconds.
    pub took_ms: u64,
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> OpenError + '_ {
    |source| OpenError::io(path, source)
}

impl RocksStore {
    /// Opens the store in a folder, or creates one. Blocks while it loads: seconds for 100,000 objects.
    ///
    /// # Errors
    /// Everything that would make a later result wrong; each message names the remedy.
    pub fn open(options: Options) -> Result<(Self, Opened), OpenError> {
        let since = Stopwatch::start();
        let folder = options.path.clone();
        if !folder.join("format").exists() {
            make_folder(&folder).map_err(io_error(&folder))?;
        }
        make_private(&folder).map_err(io_error(&folder))?;
        let lock = lock_folder(&options)?;
        refuse_unfit(&options)?;
        // It keeps files of dropped history, and may be what fills the disk.
        if let Err(error) = remove_checkpoint(&folder) {
            tracing::warn!(%error, "the files of a check of values were not removed");
        }
        let (format, is_new) = read_or_create_format(&options)?;
        let (mark_file, mark) = open_mark(&folder, &format)?;
        fail::fail_point!("open-before-engine");
        // Measured before the engine takes space of its own.
        let space = (options.measure_disk)(&folder).map_err(io_error(&folder))?;
        let records = Records::new(Arc::clone(&options.seal));
        let loaded = load(&options, &records, &format, mark)?;
        let probed = probe_disk(&options, space)?;
        let recover::Position { revision, floors, .. } = loaded.position;
        let (objects, object_bytes) = loaded.content.index.size();
        let opened = Opened {
            store: format.store,
            is_new,
            revision: revision.0,
            listable_from: floors.listable_from.0,
            watchable_from: floors.watchable_from.0,
            objects,
            object_bytes,
            history_records: loaded.content.history_records,
            had_torn_tail: loaded.had_torn_tail,
            resumed_at_ceiling: loaded.resumed_at_ceiling,
            damaged: loaded.content.index.damaged().map(ToString::to_string).collect(),
            unopened: loaded.content.index.sealed().count() as u64,
            unopened_because: loaded
                .content
                .index
                .sealed()
                .next()
                .map(|(key, reason)| format!("{key}: {reason}")),
            sync_micros: probed.sync_micros,
            took_ms: u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        let store = start(options, records, loaded, lock, (mark_file, mark), space)?;
        if !probed.has_room {
            store.parts.lifecycle.forbid_writes(&format!(
                "the disk is full: free some space, or remove {}",
                ballast_path(&folder).display()
            ));
        }
        Ok((store, opened))
    }
}

/// Reads the format of a store, or creates a store; returns whether it did.
fn read_or_create_format(options: &Options) -> Result<(Format, bool), OpenError> {
    let folder = &options.path;
    if let Some(format) = Format::read(folder)? {
        return Ok((format, false));
    }
    refuse_leftovers(folder)?;
    create(folder, options, Revision::INITIAL)?;
    let format = Format::read(folder)?.ok_or_else(|| OpenError::Missing { path: folder.clone() })?;
    Ok((format, true))
}

fn open_mark(folder: &Path, format: &Format) -> Result<(MarkFile, Mark), OpenError> {
    let path = mark_path(folder);
    let (file, mark) = MarkFile::open(&path).map_err(|error| no_mark(&path, error))?;
    let mark = mark.ok_or_else(|| OpenError::damaged("the commit mark is unreadable"))?;
    check_identity("the commit mark", mark.store, format.store)?;
    Ok((file, mark))
}

pub(crate) fn no_mark(path: &Path, error: io::Error) -> OpenError {
    if error.kind() == io::ErrorKind::NotFound {
        OpenError::damaged("the commit mark is missing: cannot verify that acknowledged writes are present")
    } else {
        OpenError::io(path, error)
    }
}

/// A loaded store that does not run yet.
struct Loaded {
    engine: Engine,
    position: recover::Position,
    content: recover::Loaded,
    /// The newest events.
    recent: Vec<Event>,
    had_torn_tail: bool,
    resumed_at_ceiling: bool,
}

/// Opens the engine and loads everything.
fn load(options: &Options, records: &Records, format: &Format, mark: Mark) -> Result<Loaded, OpenError> {
    let recovered = recover::open_engine(&engine_folder(&options.path), &mark, Access::Existing)?;
    let engine = recovered.engine;
    format.check(recover::levels(&engine.view())?)?;
    let mut position = recover::position(&engine.view())?;
    check_identity("the engine", position.store, format.store)?;
    let mut content = recover::load(&engine.view(), records, &position)?;
    let mut recent = recover::recent(&engine.view(), records, &content, position.revision)?;
    let resumed_at_ceiling = match position.ceiling {
        Some(ceiling) if !mark.is_clean && !mark.is_of_boot(options.boot_id) => {
            position = recover::resume_at_ceiling(&engine, &position, ceiling)?;
            content.index.apply([], ceiling);
            recent.clear();
            true
        }
        _ => false,
    };
    Ok(Loaded {
        engine,
        position,
        content,
        recent,
        had_torn_tail: recovered.had_torn_tail,
        resumed_at_ceiling,
    })
}

/// Starts the parts and threads of a loaded store.
fn start(
    options: Options,
    records: Records,
    loaded: Loaded,
    lock: FolderLock,
    (mark_file, mark): (MarkFile, Mark),
    space: FreeSpace,
) -> Result<RocksStore, OpenError> {
    let Loaded {
        engine,
        position,
        content,
        recent,
        ..
    } = loaded;
    let folder = options.path.clone();
    let (gone, engine_closed) = oneshot::channel();
    let engine = Arc::new(engine.guarded(lock, gone));
    let is_strict = options.durability == Durability::Strict;
    let ceiling = match (is_strict, position.ceiling) {
        // Left over from relaxed mode.
        (true, Some(_)) => {
            engine.write_or_wait(&[Step::PutMeta(Meta::Ceiling, 0)], true)?;
            Revision::default()
        }
        (true, None) => Revision::default(),
        (false, ceiling) => ceiling.unwrap_or_default(),
    };
    let mark = Mark {
        boot: options.boot_id,
        is_clean: false,
        is_relaxed: !is_strict,
        ..mark
    };
    mark_file
        .write(&mark)
        .and_then(|()| mark_file.sync())
        .map_err(io_error(&mark_path(&folder)))?;
    let mark = CommitMark::new(mark_file, mark, Arc::clone(&options.clock));
    let background_work = options.background_work;
    let damaged = content.index.damaged().count();
    let found = Found {
        index: content.index,
        recent,
        timeline: content.timeline,
        floors: position.floors,
        origin: position.origin,
        space,
    };
    let parts = Arc::new(Parts::new(options, records, Arc::clone(&engine), mark, found));
    if loaded.had_torn_tail {
        parts.metrics.recovered_tail.inc();
    }
    parts.metrics.checksum_failures.inc_by(damaged as u64);
    fail::fail_point!("open-before-threads");
    let commit = CommitThread::new(Arc::clone(&parts), engine, content.last_ms, ceiling);
    let threads = Threads::spawn(&parts, commit, background_work, engine_closed);
    Ok(RocksStore {
        parts,
        threads: Arc::new(threads.map_err(io_error(&folder))?),
    })
}

/// Refuses a file system that cannot guarantee durability, unless any is allowed.
pub(crate) fn refuse_unfit(options: &Options) -> Result<(), OpenError> {
    let path = &options.path;
    if options.any_file_system {
        return Ok(());
    }
    match unfit_file_system(path).map_err(io_error(path))? {
        Some(kind) => Err(OpenError::FileSystem {
            path: path.clone(),
            kind,
        }),
        None => Ok(()),
    }
}

pub(crate) fn check_identity(whose: &str, found: Uuid, expected: Uuid) -> Result<(), OpenError> {
    if found == expected {
        return Ok(());
    }
    Err(OpenError::damaged(format!(
        "{whose} belongs to the store {found}, the folder to {expected}"
    )))
}

/// Refuses a folder without a format file that holds a store, or part of one: the format file is written last.
fn refuse_leftovers(folder: &Path) -> Result<(), OpenError> {
    if is_interrupted(folder) {
        return Err(OpenError::damaged("a recovery was interrupted, repeat it"));
    }
    if is_unfinished(folder) {
        return Err(OpenError::damaged(
            "a restore or an import was interrupted, repeat it into a new folder",
        ));
    }
    refuse_lost_format(folder)?;
    // The creation of the store was interrupted: begin again.
    if has_engine(folder) {
        std::fs::remove_dir_all(engine_folder(folder)).map_err(io_error(folder))?;
    }
    Ok(())
}

fn has_engine(folder: &Path) -> bool {
    engine_folder(folder).join("CURRENT").exists()
}

/// Refuses a folder without a format file that holds a store, but not one whose creation was interrupted.
pub(crate) fn refuse_lost_format(folder: &Path) -> Result<(), OpenError> {
    let mark = match MarkFile::read(&mark_path(folder)) {
        Ok(mark) => mark,
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(io_error(folder)(error)),
    };
    let has_writes = mark.is_some_and(|mark| mark.synced > Revision::INITIAL || mark.is_clean);
    if has_writes || (has_engine(folder) && mark.is_none()) {
        return Err(OpenError::damaged("the file format of the store is missing"));
    }
    Ok(())
}

/// Creates a store whose history begins at `origin`. The folder's lock is held.
fn create(folder: &Path, options: &Options, origin: Revision) -> Result<Uuid, OpenError> {
    let store = Uuid::new_v4();
    let mark = Mark {
        store,
        boot: options.boot_id,
        synced: Revision::INITIAL,
        at_ms: options.clock.now_ms(),
        is_clean: false,
        is_relaxed: false,
    };
    MarkFile::create(&mark_path(folder), &mark).map_err(io_error(folder))?;
    sync_folder(folder).map_err(io_error(folder))?;
    fail::fail_point!("create-before-engine");
    let engine = create_engine(folder)?;
    engine.write_or_wait(
        &[
            Step::PutMeta(Meta::Format, u64::from(CURRENT)),
            Step::PutMeta(Meta::FeatureLevel, u64::from(CURRENT)),
            Step::PutStore(store),
            Step::PutMeta(Meta::Revision, origin.0),
            Step::PutMeta(Meta::ListableFrom, origin.0),
            Step::PutMeta(Meta::WatchableFrom, origin.0),
            Step::PutMeta(Meta::Origin, origin.0),
            Step::PutMeta(Meta::Ceiling, 0),
        ],
        true,
    )?;
    drop(engine);
    fail::fail_point!("create-before-format");
    Format::new(store).write(folder).map_err(io_error(folder))?;
    Ok(store)
}

/// Creates the engine of a new store.
pub(crate) fn create_engine(folder: &Path) -> Result<Engine, OpenError> {
    Engine::open(&engine_folder(folder), Access::Create, Recovery::Strict)
}
