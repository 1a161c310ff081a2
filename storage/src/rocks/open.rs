//! What must hold before the first read?
//!
//! In order: the folder's lock, the file system, the format, the mark, the engine ([`recover`]), the threads. A
//! folder without a store gets one: its files are made so that a crash in between leaves a folder that is taken as
//! empty again, or a whole store.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::accept_loss::is_cut_short;
use super::check::remove_checkpoint;
use super::column_families::{Access, Engine, Meta, Recovery, Step};
use super::commit::CommitThread;
use super::disk::NO_ROOM_BYTES;
use super::error::{OpenError, is_full};
use super::format::{CURRENT, Format, make_folder, sync_folder};
use super::index::Index;
use super::lock::{FolderLock, LockError, unfit_file_system};
use super::mark::{Mark, MarkFile};
use super::recover;
use super::transfer::is_unfinished;
use super::{Owner, RocksStore, Shared, Started};
use crate::clock::Stopwatch;
use crate::options::{Durability, Options};
use crate::record::Records;
use crate::{Floors, Revision};

/// A disk whose syncs take longer than this is called slow.
const SLOW_SYNC: Duration = Duration::from_millis(10);

/// What a start found.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Opened {
    /// The identity of the store.
    pub store: Uuid,
    /// Whether the store was made by this start.
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
    /// After a loss of power in relaxed mode: the store went on at its ceiling, every reader starts over.
    pub resumed_at_ceiling: bool,
    /// Keys whose value fails its checksum. Reads of them fail until they are removed or restored.
    pub damaged: Vec<String>,
    /// What one sync takes, in microseconds (median); none if it was not measured.
    pub sync_micros: Option<u64>,
    /// How long the start took, in milliseconds.
    pub took_ms: u64,
}

/// Where the parts of a store lie in its folder.
pub(crate) fn engine_folder(folder: &Path) -> PathBuf {
    folder.join("db")
}

pub(crate) fn mark_path(folder: &Path) -> PathBuf {
    folder.join("mark")
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> OpenError + '_ {
    |source| OpenError::io(path, source)
}

impl RocksStore {
    /// Opens the store in a folder, or makes one. Blocks while it loads: seconds for 100,000 objects.
    ///
    /// # Errors
    /// Whatever would make an answer wrong later is refused here; each message names the remedy.
    pub fn open(options: Options) -> Result<(Self, Opened), OpenError> {
        let since = Stopwatch::start();
        let folder = options.path.clone();
        if !folder.join("format").exists() {
            make_folder(&folder).map_err(io_error(&folder))?;
        }
        let lock = lock_folder(&options)?;
        refuse_unfit(&options)?;
        // It keeps files that are let go of, and may be all that fills the disk.
        if let Err(error) = remove_checkpoint(&folder) {
            tracing::warn!(%error, "what a check of values left behind was not removed");
        }
        let records = Records::new(Arc::clone(&options.seal));
        let is_new = Format::read(&folder)?.is_none();
        if is_new {
            refuse_leftovers(&folder)?;
            create(&folder, &options, Revision::INITIAL)?;
        }
        let format = Format::read(&folder)?.ok_or_else(|| OpenError::Missing { path: folder.clone() })?;
        let mark_path = mark_path(&folder);
        let (mark_file, mark) = MarkFile::open(&mark_path).map_err(|error| no_mark(&mark_path, error))?;
        let mark = mark.ok_or_else(|| OpenError::damaged("the commit mark is unreadable"))?;
        check_identity("the commit mark", mark.store, format.store)?;
        fail::fail_point!("open-before-engine");
        // Before the engine takes room of its own.
        let space = (options.measure_disk)(&folder).map_err(io_error(&folder))?;
        let recovered = recover::open_engine(&engine_folder(&folder), &mark, Access::Existing)?;
        let engine = recovered.engine;
        format.check(recover::levels(&engine.view())?)?;
        let mut position = recover::position(&engine.view())?;
        check_identity("the engine", position.store, format.store)?;
        let loaded = recover::load(&engine.view(), &records, &position)?;
        let mut recent = recover::recent(&engine.view(), &records, &loaded, position.revision)?;
        let mut index = loaded.index;
        let resumed_at_ceiling = match position.ceiling {
            Some(ceiling) if !mark.is_clean && !mark.is_of_boot(options.boot_id) => {
                position = recover::resume_at_ceiling(&engine, &position, ceiling)?;
                index.apply([], ceiling);
                recent.clear();
                true
            }
            _ => false,
        };
        let mut has_room = space.free >= NO_ROOM_BYTES;
        let sync_micros = if has_room {
            unless_full(probe(&folder, options.probe_syncs), &mut has_room).map_err(io_error(&folder))?
        } else {
            None
        };
        unless_full(
            make_ballast(&folder, options.ballast_bytes, space.free),
            &mut has_room,
        )
        .map_err(io_error(&folder))?;
        let (objects, object_bytes) = index.size();
        let opened = Opened {
            store: format.store,
            is_new,
            revision: position.revision.0,
            listable_from: position.floors.listable_from.0,
            watchable_from: position.floors.watchable_from.0,
            objects,
            object_bytes,
            history_records: loaded.history_records,
            had_torn_tail: recovered.had_torn_tail,
            resumed_at_ceiling,
            damaged: index.damaged().map(ToString::to_string).collect(),
            sync_micros,
            took_ms: u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX),
        };
        let started = Started {
            index,
            recent,
            timeline: loaded.timeline,
            last_ms: loaded.last_ms,
            floors: position.floors,
            origin: position.origin,
            ceiling: position.ceiling,
            space,
            mark: Mark {
                is_clean: false,
                ..mark
            },
        };
        let store = start(options, records, engine, lock, mark_file, started, &opened)?;
        if !has_room {
            store.shared.poison.forbid_writes(&format!(
                "the disk is full: free some room, or remove {}",
                ballast_path(&store.shared.folder).display()
            ));
        }
        Ok((store, opened))
    }
}

pub(crate) fn no_mark(path: &Path, error: io::Error) -> OpenError {
    if error.kind() == io::ErrorKind::NotFound {
        OpenError::damaged("the commit mark is missing, so nobody can tell whether acknowledged writes are")
    } else {
        OpenError::io(path, error)
    }
}

/// Builds the parts that run.
fn start(
    options: Options,
    records: Records,
    engine: Engine,
    lock: FolderLock,
    mark_file: MarkFile,
    started: Started,
    opened: &Opened,
) -> Result<RocksStore, OpenError> {
    let folder = options.path.clone();
    let (gone, is_gone) = oneshot::channel();
    let engine = Arc::new(engine.guarded(lock, gone));
    let is_strict = options.durability == Durability::Strict;
    let ceiling = match (is_strict, started.ceiling) {
        // Left over from relaxed mode.
        (true, Some(_)) => {
            engine.write(&[Step::PutMeta(Meta::Ceiling, 0)], true)?;
            Revision::default()
        }
        (true, None) => Revision::default(),
        (false, ceiling) => ceiling.unwrap_or_default(),
    };
    let mark = Mark {
        boot: options.boot_id,
        is_relaxed: !is_strict,
        ..started.mark
    };
    mark_file
        .write(&mark)
        .and_then(|()| mark_file.sync())
        .map_err(io_error(&mark_path(&folder)))?;
    let last_ms = started.last_ms;
    let with_housekeeping = options.background_work;
    let shared = Arc::new(Shared::new(
        options,
        records,
        Arc::clone(&engine),
        mark_file,
        mark,
        started,
    ));
    if opened.had_torn_tail {
        shared.metrics.recovered_tail.inc();
    }
    shared
        .metrics
        .checksum_failures
        .inc_by(opened.damaged.len() as u64);
    fail::fail_point!("open-before-threads");
    let commit = CommitThread::new(Arc::clone(&shared), engine, last_ms, ceiling);
    let owner = Owner::spawn(&shared, commit, with_housekeeping, is_gone).map_err(io_error(&folder))?;
    Ok(RocksStore {
        shared,
        owner: Arc::new(owner),
    })
}

/// Takes the lock of the folder.
pub(crate) fn lock_folder(options: &Options) -> Result<FolderLock, OpenError> {
    FolderLock::take(&options.path, options.lock_wait, options.boot_id).map_err(|error| match error {
        LockError::Held(holder) => OpenError::Locked { holder },
        LockError::Io(source) => OpenError::io(&options.path, source),
    })
}

/// Refuses a file system that cannot keep the promises of a store, unless the risk is taken.
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

/// Without a format file the folder must not hold a store: the format file is written last.
fn refuse_leftovers(folder: &Path) -> Result<(), OpenError> {
    if is_cut_short(folder) {
        return Err(OpenError::damaged("a recovery was cut short, repeat it"));
    }
    if is_unfinished(folder) {
        return Err(OpenError::damaged(
            "a restore or an import was cut short, repeat it into a new folder",
        ));
    }
    refuse_lost_format(folder)?;
    // A start that was cut short before it was done: begin again.
    if has_engine(folder) {
        std::fs::remove_dir_all(engine_folder(folder)).map_err(io_error(folder))?;
    }
    Ok(())
}

fn has_engine(folder: &Path) -> bool {
    engine_folder(folder).join("CURRENT").exists()
}

/// Refuses a folder without a format file that holds a store nevertheless, and not one whose making was cut short.
pub(crate) fn refuse_lost_format(folder: &Path) -> Result<(), OpenError> {
    let mark = match MarkFile::read(&mark_path(folder)) {
        Ok(mark) => mark,
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(io_error(folder)(error)),
    };
    let has_writes = mark.is_some_and(|mark| mark.synced > Revision::INITIAL || mark.is_clean);
    if has_writes || (has_engine(folder) && mark.is_none()) {
        return Err(OpenError::damaged(
            "the file format is missing, though there is a store",
        ));
    }
    Ok(())
}

/// Makes a store whose history begins at `origin`. The folder's lock is held.
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
    let engine = new_engine(folder)?;
    engine.write(
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

/// Makes the engine of a new store.
pub(crate) fn new_engine(folder: &Path) -> Result<Engine, OpenError> {
    Engine::open(&engine_folder(folder), Access::Create, Recovery::Strict)
}

/// What measuring or precaution gave; nothing where the disk is full, which must not keep the store from being read.
fn unless_full<T: Default>(done: io::Result<T>, has_room: &mut bool) -> io::Result<T> {
    match done {
        Err(error) if is_full(&error) => {
            *has_room = false;
            Ok(T::default())
        }
        done => done,
    }
}

/// Times syncs of 4 KiB; the median in microseconds.
fn probe(folder: &Path, syncs: u32) -> io::Result<Option<u64>> {
    if syncs == 0 {
        return Ok(None);
    }
    let path = folder.join("probe");
    let timed = time_syncs(&path, syncs);
    let removed = std::fs::remove_file(&path);
    let mut micros = timed?;
    removed?;
    micros.sort_unstable();
    let median = micros.get(micros.len() / 2).copied();
    if median.is_some_and(|median| Duration::from_micros(median) > SLOW_SYNC) {
        tracing::warn!(?median, "the disk is slow: a sync takes so many microseconds");
    }
    Ok(median)
}

fn time_syncs(path: &Path, syncs: u32) -> io::Result<Vec<u64>> {
    let file = File::create(path)?;
    let block = [0x5a; 4096];
    let mut micros = Vec::new();
    for position in 0..u64::from(syncs) {
        let since = Stopwatch::start();
        file.write_all_at(&block, position * 4096)?;
        file.sync_data()?;
        micros.push(u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX));
    }
    Ok(micros)
}

fn ballast_path(folder: &Path) -> PathBuf {
    folder.join("ballast")
}

/// Keeps room that people can free by hand when the disk is full. A disk without room for it gets none, and one that
/// was not written whole counts for nothing.
fn make_ballast(folder: &Path, bytes: u64, free: u64) -> io::Result<()> {
    let path = ballast_path(folder);
    if bytes == 0 || path.exists() {
        return Ok(());
    }
    if free < bytes.saturating_mul(20) {
        tracing::warn!(free, "no room for ballast");
        return Ok(());
    }
    let unfinished = path.with_extension("new");
    let written = write_ballast(&unfinished, bytes);
    if written.is_err() {
        // Half of it may never have come to be.
        drop(std::fs::remove_file(&unfinished));
        return written;
    }
    std::fs::rename(&unfinished, &path)?;
    sync_folder(folder)
}

/// Writes what the log must be able to grow by, and removes it.
///
/// # Errors
/// There is no such room, whatever the disk says about itself.
pub(crate) fn try_room(folder: &Path) -> io::Result<()> {
    let path = folder.join("probe");
    let written = write_ballast(&path, NO_ROOM_BYTES);
    let removed = std::fs::remove_file(&path);
    written.and(removed)
}

fn write_ballast(path: &Path, bytes: u64) -> io::Result<()> {
    let mut file = File::create(path)?;
    let block = vec![0; 1 << 20];
    let mut left = bytes;
    while left > 0 {
        let part = block
            .get(..usize::try_from(left).unwrap_or(usize::MAX).min(block.len()))
            .unwrap_or(&block);
        file.write_all(part)?;
        left = left.saturating_sub(part.len() as u64);
    }
    file.sync_all()
}

impl Started {
    /// The revision of the index.
    pub(crate) fn revision(&self) -> Revision {
        Index::revision(&self.index)
    }

    /// The floors as they were found.
    pub(crate) fn floors(&self) -> Floors {
        self.floors
    }
}
