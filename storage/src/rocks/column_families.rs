//! The layout of the store in RocksDB's column families.
//!
//! | family | key | value |
//! | --- | --- | --- |
//! | `state` | object key | `StateRecord`: the newest value |
//! | `history` | revision, big-endian; two zero bytes | `HistoryRecord`: one change, self-contained |
//! | `meta` | short names | numbers, big-endian; the store's uuid |
//! | `default` | | kept empty |
//!
//! The types of RocksDB that commits and opens need are used here only.

use std::io;
use std::panic::resume_unwind;
use std::path::Path;
use std::time::Duration;

use rocksdb::{
    BlockBasedOptions, Cache, ChecksumType, ColumnFamily, DB, DBRawIterator, DBRecoveryMode, Options,
    ReadOptions, Snapshot, WriteBatch, WriteOptions,
};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::error::{EngineError, OpenError};
use super::lock::FolderLock;
use crate::clock::Stopwatch;
use crate::{Key, Revision};

/// Newest value of each key.
pub(crate) const STATE: &str = "state";
/// Changes by revision.
pub(crate) const HISTORY: &str = "history";
/// Facts about the store.
pub(crate) const META: &str = "meta";
/// All families with content.
pub(crate) const FAMILIES: [&str; 3] = [STATE, HISTORY, META];

const MIB: usize = 1 << 20;
/// How much the nice value of flushes and compactions exceeds that of the thread that opens: they get a ninth of its share
/// of a core.
const BACKGROUND_YIELDS: i32 = 10;
/// Options without a setter. A start fails if the engine refuses one.
const OPTIONS_WITHOUT_SETTER: &str =
    "paranoid_file_checks=true;memtable_protection_bytes_per_key=8;max_bgerror_resume_count=0";

/// A number kept in `meta`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Meta {
    /// The newest committed revision, written in every batch that assigns one.
    Revision,
    /// Oldest revision that can be listed.
    ListableFrom,
    /// Oldest revision that can be watched from.
    WatchableFrom,
    /// The revision at which the store was created or restored; no history record belongs to it.
    Origin,
    /// Relaxed mode: no revision above it has been assigned; 0: not in use.
    Ceiling,
    /// The newest format that records may have; never above that of the file `format`.
    Format,
    /// The format that is written; never above [`Meta::Format`].
    FeatureLevel,
}

impl Meta {
    fn name(self) -> &'static str {
        match self {
            Self::Revision => "revision",
            Self::ListableFrom => "listable_from",
            Self::WatchableFrom => "watchable_from",
            Self::Origin => "origin",
            Self::Ceiling => "ceiling",
            Self::Format => "format",
            Self::FeatureLevel => "feature_level",
        }
    }
}

const STORE_UUID: &str = "store";
/// How often a write that a stalled engine did not accept is tried again.
pub(crate) const STALL_PAUSE: Duration = Duration::from_millis(5);

/// How long a write waits for an engine that is stalled: compaction of all that a store may hold takes less.
const STALL_LIMIT: Duration = Duration::from_mins(10);

/// Whether a stall is not waited for any longer. After an error in the background (a full disk, for example) compaction does
/// not go on, and the stall does not end.
fn is_hopeless(background_errors: u64, waited: Duration) -> bool {
    background_errors > 0 || waited >= STALL_LIMIT
}

/// One step of an atomic batch.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    PutState(Key, Vec<u8>),
    DeleteState(Key),
    PutHistory(Revision, Vec<u8>),
    /// Removes history below a revision.
    DropHistory(Revision),
    PutMeta(Meta, u64),
    PutStore(Uuid),
}

/// The key of a history record. Format 1 reserves two bytes after the revision for an index within it, always zero.
pub(crate) fn history_key(revision: Revision) -> [u8; 10] {
    let mut key = [0; 10];
    let (high, _) = key.split_at_mut(8);
    high.copy_from_slice(&revision.0.to_be_bytes());
    key
}

/// Reads a key as written by [`history_key`].
pub(crate) fn parse_history_key(key: &[u8]) -> Option<Revision> {
    let (revision, index) = key.split_first_chunk::<8>()?;
    (index == [0, 0]).then_some(Revision(u64::from_be_bytes(*revision)))
}

/// How the engine treats damage of its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Recovery {
    /// Refuse it, except for an incomplete record at the very end.
    Strict,
    /// Recover everything before it.
    PointInTime,
}

/// The open engine, the lock of its folder, and a signal of its close.
pub(crate) struct Engine {
    // Dropped in this order: the engine first, the signal last.
    db: DB,
    _lock: Option<FolderLock>,
    _gone: Option<oneshot::Sender<()>>,
}

/// Whether opening may create.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Create,
    Existing,
    ReadOnly,
}

impl Engine {
    /// Opens the engine's folder.
    pub(crate) fn open(folder: &Path, access: Access, recovery: Recovery) -> Result<Self, OpenError> {
        fail::fail_point!("engine-open", |_| {
            let text = "IO error: No space left on device: injected by a failpoint";
            Err(EngineError::NoSpace(text.to_owned()).into())
        });
        let options = database_options(recovery, access == Access::Create)?;
        let cache = Cache::new_lru_cache(32 * MIB);
        let mut families = Vec::new();
        for name in FAMILIES {
            families.push((name, family_options(name, &cache)?));
        }
        let open = || {
            if access == Access::ReadOnly {
                DB::open_cf_with_opts_for_read_only(&options, folder, families, false)
            } else {
                DB::open_cf_with_opts(&options, folder, families)
            }
        };
        let db = at_lower_priority(open).map_err(|error| OpenError::io(folder, error))?;
        Ok(Self {
            db: db.map_err(EngineError::from)?,
            _lock: None,
            _gone: None,
        })
    }

    /// Holds the lock while the engine is open; `gone` is dropped after the close.
    pub(crate) fn guarded(self, lock: FolderLock, gone: oneshot::Sender<()>) -> Self {
        Self {
            _lock: Some(lock),
            _gone: Some(gone),
            ..self
        }
    }

    fn family(&self, name: &'static str) -> Result<&ColumnFamily, EngineError> {
        self.db.cf_handle(name).ok_or(EngineError::MissingFamily(name))
    }

    /// Writes all steps or none, to the log and to memory; durably if `sync`. Returns the size of the batch. An engine that cannot
    /// keep up writes nothing ([`EngineError::Stalled`]).
    pub(crate) fn write(&self, steps: &[Step], sync: bool) -> Result<usize, EngineError> {
        fail::fail_point!("engine-write", |reason| {
            Err(match reason.as_deref() {
                Some("stalled") => EngineError::Stalled,
                _ => injected(),
            })
        });
        let state = self.family(STATE)?;
        let history = self.family(HISTORY)?;
        let meta = self.family(META)?;
        let mut batch = WriteBatch::default();
        for step in steps {
            match step {
                Step::PutState(key, record) => batch.put_cf(state, key.as_str(), record),
                Step::DeleteState(key) => batch.delete_cf(state, key.as_str()),
                Step::PutHistory(revision, record) => {
                    batch.put_cf(history, history_key(*revision), record);
                }
                Step::DropHistory(below) => {
                    batch.delete_range_cf(history, history_key(Revision(0)), history_key(*below));
                }
                Step::PutMeta(name, value) => batch.put_cf(meta, name.name(), value.to_be_bytes()),
                Step::PutStore(uuid) => batch.put_cf(meta, STORE_UUID, uuid.as_bytes()),
            }
        }
        let size = batch.size_in_bytes();
        let mut options = WriteOptions::default();
        options.set_sync(sync);
        options.set_no_slowdown(true);
        self.db.write_opt(batch, &options)?;
        fail::fail_point!("engine-written", |_| Err(injected()));
        Ok(size)
    }

    /// As [`Self::write`], and waits while the engine is stalled: not after an error in the background, and for 10 minutes at
    /// most. Only for threads on which nobody waits for another reason.
    pub(crate) fn write_or_wait(&self, steps: &[Step], sync: bool) -> Result<usize, EngineError> {
        let mut stalled: Option<Stopwatch> = None;
        loop {
            match self.write(steps, sync) {
                Err(EngineError::Stalled) => {
                    let since = stalled.get_or_insert_with(|| {
                        tracing::warn!("the engine is stalled: a write waits");
                        Stopwatch::start()
                    });
                    let errors = self.background_errors()?;
                    if is_hopeless(errors, since.elapsed()) {
                        tracing::error!(errors, "the engine is stalled, and a write waits no longer");
                        return Err(EngineError::Stalled);
                    }
                    std::thread::sleep(STALL_PAUSE);
                }
                ended => return ended,
            }
        }
    }

    /// How many errors flushes and compactions had.
    fn background_errors(&self) -> Result<u64, EngineError> {
        fail::fail_point!("engine-background-errors", |_| Ok(1));
        let found = self.db.property_int_value("rocksdb.background-errors")?;
        Ok(found.unwrap_or_default())
    }

    /// Makes everything written so far durable.
    pub(crate) fn sync_log(&self) -> Result<(), EngineError> {
        fail::fail_point!("engine-sync-log", |_| Err(injected()));
        Ok(self.db.flush_wal(true)?)
    }

    /// Flushes the memtables, so that the next start has no log to replay.
    pub(crate) fn flush(&self) -> Result<(), EngineError> {
        for name in FAMILIES {
            fail::fail_point!("engine-flush", |_| Err(injected()));
            self.db.flush_cf(self.family(name)?)?;
        }
        Ok(())
    }

    /// Removes whole files of history below a revision.
    pub(crate) fn drop_history_files(&self, below: Revision) -> Result<(), EngineError> {
        let history = self.family(HISTORY)?;
        // RocksDB includes the end of the range: with the first needed key, a file that ends there would be removed.
        let (from, to) = (history_key(Revision(0)), history_key(below.previous()));
        Ok(self.db.delete_file_in_range_cf(history, from, to)?)
    }

    /// Flushes and compacts a family to the level whose files can be removed whole.
    #[cfg(test)]
    pub(crate) fn settle(&self, family: &'static str) {
        self.flush().unwrap();
        let family = self.family(family).unwrap();
        self.db.compact_range_cf(family, None::<&[u8]>, None::<&[u8]>);
    }

    /// Puts a raw row.
    #[cfg(test)]
    pub(crate) fn put_raw(&self, family: &'static str, key: &[u8], record: &[u8]) {
        self.db.put_cf(self.family(family).unwrap(), key, record).unwrap();
    }

    /// A consistent view of the current content.
    pub(crate) fn view(&self) -> View<'_> {
        View {
            engine: self,
            snapshot: self.db.snapshot(),
        }
    }

    /// Creates a checkpoint of hard links in a new folder.
    pub(crate) fn checkpoint(&self, folder: &Path) -> Result<(), EngineError> {
        let checkpoint = rocksdb::checkpoint::Checkpoint::new(&self.db)?;
        Ok(checkpoint.create_checkpoint(folder)?)
    }

    /// Copies new files into a folder of incremental backups.
    pub(crate) fn copy_into(&self, backups: &mut rocksdb::backup::BackupEngine) -> Result<(), EngineError> {
        Ok(backups.create_new_backup_flush(&self.db, true)?)
    }

    /// How far compaction is behind.
    pub(crate) fn pressure(&self) -> Result<Pressure, EngineError> {
        let of_all = |name: &str| self.db.property_int_value(name);
        let mut pending_bytes: u64 = 0;
        for name in FAMILIES {
            let pending = self
                .db
                .property_int_value_cf(self.family(name)?, "rocksdb.estimate-pending-compaction-bytes")?;
            pending_bytes = pending_bytes.saturating_add(pending.unwrap_or_default());
        }
        Ok(Pressure {
            is_stopped: of_all("rocksdb.is-write-stopped")?.unwrap_or_default() != 0,
            delayed_write_rate: of_all("rocksdb.actual-delayed-write-rate")?.unwrap_or_default(),
            pending_bytes,
        })
    }
}

/// How far compaction is behind, and its effect on writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pressure {
    /// The engine accepts no writes.
    pub(crate) is_stopped: bool,
    /// Bytes per second to which the engine slows writes down; 0: it does not.
    pub(crate) delayed_write_rate: u64,
    /// Bytes that wait for compaction, in all families.
    pub(crate) pending_bytes: u64,
}

/// A consistent view of all families.
pub(crate) struct View<'a> {
    engine: &'a Engine,
    snapshot: Snapshot<'a>,
}

impl View<'_> {
    /// A number of `meta`.
    pub(crate) fn meta(&self, name: Meta) -> Result<Option<u64>, EngineError> {
        let found = self.snapshot.get_cf(self.engine.family(META)?, name.name())?;
        found
            .map(|bytes| {
                let bytes: [u8; 8] = bytes
                    .try_into()
                    .map_err(|_| EngineError::Corruption(format!("meta/{} is not a number", name.name())))?;
                Ok(u64::from_be_bytes(bytes))
            })
            .transpose()
    }

    /// The identity of the store.
    pub(crate) fn store(&self) -> Result<Option<Uuid>, EngineError> {
        let found = self.snapshot.get_cf(self.engine.family(META)?, STORE_UUID)?;
        found
            .map(|bytes| {
                Uuid::from_slice(&bytes)
                    .map_err(|_| EngineError::Corruption("meta/store is not a uuid".to_owned()))
            })
            .transpose()
    }

    /// Iterates over `state` from `start` to `end`, exclusive; an empty `end` is unbounded.
    pub(crate) fn state(&self, start: &str, end: &str) -> Result<Rows<'_>, EngineError> {
        let mut options = ReadOptions::default();
        if !end.is_empty() {
            options.set_iterate_upper_bound(end.as_bytes());
        }
        let rows = self
            .snapshot
            .raw_iterator_cf_opt(self.engine.family(STATE)?, options);
        Ok(Rows::from(rows, start.as_bytes()))
    }

    /// The record of one key of `state`.
    pub(crate) fn state_record(&self, key: &str) -> Result<Option<Vec<u8>>, EngineError> {
        Ok(self.snapshot.get_cf(self.engine.family(STATE)?, key)?)
    }

    /// Iterates over a family from a key on, verifying block checksums and without filling the cache.
    pub(crate) fn check(&self, family: &'static str, from: &[u8]) -> Result<Rows<'_>, EngineError> {
        let mut options = ReadOptions::default();
        options.set_verify_checksums(true);
        options.fill_cache(false);
        let rows = self
            .snapshot
            .raw_iterator_cf_opt(self.engine.family(family)?, options);
        Ok(Rows::from(rows, from))
    }

    /// Iterates over `history` from one revision through another.
    pub(crate) fn history(&self, from: Revision, through: Revision) -> Result<Rows<'_>, EngineError> {
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(history_key(through.next()));
        let rows = self
            .snapshot
            .raw_iterator_cf_opt(self.engine.family(HISTORY)?, options);
        Ok(Rows::from(rows, &history_key(from)))
    }

    /// The newest revision with a history record.
    pub(crate) fn last_history(&self) -> Result<Option<Revision>, EngineError> {
        let mut rows = self.snapshot.raw_iterator_cf(self.engine.family(HISTORY)?);
        rows.seek_to_last();
        let last = rows.key().and_then(parse_history_key);
        rows.status()?;
        Ok(last)
    }
}

/// Key and value.
pub(crate) type Row<'a> = (&'a [u8], &'a [u8]);

/// An iterator over the rows of a family, without copying.
pub(crate) struct Rows<'a> {
    rows: DBRawIterator<'a>,
    is_fresh: bool,
}

impl<'a> Rows<'a> {
    fn from(mut rows: DBRawIterator<'a>, start: &[u8]) -> Self {
        rows.seek(start);
        Self { rows, is_fresh: true }
    }

    /// The next row; none at the end.
    pub(crate) fn next(&mut self) -> Result<Option<Row<'_>>, EngineError> {
        if !self.is_fresh && self.rows.valid() {
            self.rows.next();
        }
        self.is_fresh = false;
        if !self.rows.valid() {
            self.rows.status()?;
            return Ok(None);
        }
        Ok(self.rows.item())
    }
}

/// The error that a failpoint injects.
#[cfg(feature = "failpoints")]
fn injected() -> EngineError {
    EngineError::Failed("injected by a failpoint".to_owned())
}

fn base_options() -> Result<Options, OpenError> {
    let mut plain = Options::default();
    plain
        .get_options_from_string(OPTIONS_WITHOUT_SETTER)
        .map_err(|error| OpenError::Options {
            reason: error.into_string(),
        })
}

fn database_options(recovery: Recovery, create: bool) -> Result<Options, OpenError> {
    let mut options = base_options()?;
    options.create_if_missing(create);
    options.create_missing_column_families(create);
    options.set_wal_recovery_mode(match recovery {
        Recovery::Strict => DBRecoveryMode::TolerateCorruptedTailRecords,
        Recovery::PointInTime => DBRecoveryMode::PointInTime,
    });
    options.set_paranoid_checks(true);
    options.set_track_and_verify_wals_in_manifest(true);
    // Recycled logs are incompatible with strict recovery.
    options.set_recycle_log_file_num(0);
    options.set_manual_wal_flush(false);
    options.set_unordered_write(false);
    options.set_enable_pipelined_write(false);
    // A single writer: nothing to parallelize, and no spinning on two cores.
    options.set_allow_concurrent_memtable_write(false);
    options.set_enable_write_thread_adaptive_yield(false);
    // Limits the replay of the log to about a second.
    options.set_max_total_wal_size(128 << 20);
    options.set_db_write_buffer_size(128 * MIB);
    options.set_max_background_jobs(2);
    options.set_max_subcompactions(1);
    // Opens every file at the start, which checks each footer.
    options.set_max_open_files(-1);
    // Applies to flushes and compactions, not to the log, which they must not starve.
    options.set_auto_tuned_ratelimiter(64 << 20, 100_000, 10);
    options.set_keep_log_file_num(4);
    options.set_max_log_file_size(4 * MIB);
    options.set_stats_dump_period_sec(0);
    Ok(options)
}

/// Runs work whose threads get a lower priority than the caller: they inherit it. The engine's own setting is the lowest
/// priority, at which flushes starve beside busy cores.
fn at_lower_priority<T: Send>(work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("storage-open".to_owned());
        let running = thread.spawn_scoped(scope, || {
            if let Err(error) = rustix::process::nice(BACKGROUND_YIELDS) {
                tracing::warn!(%error, "the engine's background threads have normal priority");
            }
            work()
        })?;
        Ok(running.join().unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

fn family_options(name: &str, cache: &Cache) -> Result<Options, OpenError> {
    let mut options = base_options()?;
    let buffers = match name {
        HISTORY => 4,
        _ => 3,
    };
    options.set_write_buffer_size(if name == META { MIB } else { 32 * MIB });
    options.set_max_write_buffer_number(buffers);
    options.set_level_compaction_dynamic_level_bytes(true);
    // Values are compressed before they are sealed, not by the engine.
    options.set_compression_type(rocksdb::DBCompressionType::None);
    options.set_bottommost_compression_type(rocksdb::DBCompressionType::None);
    options.set_level_zero_slowdown_writes_trigger(20);
    options.set_level_zero_stop_writes_trigger(36);
    options.set_soft_pending_compaction_bytes_limit(2 << 30);
    options.set_hard_pending_compaction_bytes_limit(8 << 30);
    let mut table = BlockBasedOptions::default();
    table.set_block_size(16 << 10);
    table.set_block_cache(cache);
    table.set_checksum_type(ChecksumType::XXH3);
    // Pinned, so that older binaries can read files of newer ones.
    table.set_format_version(6);
    options.set_block_based_table_factory(&table);
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_keys_sort_as_revisions_do() {
        let revisions = [1, 2, 256, u64::MAX].map(Revision);
        let keys = revisions.map(history_key);
        assert!(keys.is_sorted());
        for (revision, key) in revisions.into_iter().zip(keys) {
            assert_eq!(parse_history_key(&key), Some(revision));
        }
        assert_eq!(parse_history_key(b"short"), None);
        assert_eq!(
            parse_history_key(b"\0\0\0\0\0\0\0\x01\0\x01"),
            None,
            "a second record"
        );
        assert_eq!(parse_history_key(b"much too long"), None);
    }

    #[test]
    fn a_stall_that_cannot_end_is_not_waited_for() {
        let moment = STALL_LIMIT.checked_sub(STALL_PAUSE).unwrap();
        assert!(!is_hopeless(0, Duration::ZERO) && !is_hopeless(0, moment));
        assert!(is_hopeless(0, STALL_LIMIT));
        assert!(is_hopeless(1, Duration::ZERO));
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::open(folder.path(), Access::Create, Recovery::Strict).unwrap();
        assert_eq!(
            engine.db.property_int_value("rocksdb.background-errors"),
            Ok(Some(0)),
            "the engine tells it"
        );
    }

    /// A file of history that ends with the record at the floor must not be removed.
    #[test]
    fn a_file_with_the_record_at_the_floor_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::open(folder.path(), Access::Create, Recovery::Strict).unwrap();
        let write = |revisions: std::ops::RangeInclusive<u64>| {
            let ends = [revisions.start(), revisions.end()].map(|revision| history_key(Revision(*revision)));
            let steps: Vec<Step> = revisions
                .map(|revision| Step::PutHistory(Revision(revision), vec![1]))
                .collect();
            engine.write(&steps, false).unwrap();
            engine.flush().unwrap();
            // Only files beyond the first level are removed whole.
            engine
                .db
                .compact_range_cf(engine.family(HISTORY).unwrap(), Some(ends[0]), Some(ends[1]));
        };
        let first_from = |revision: u64| {
            let view = engine.view();
            let mut rows = view.history(Revision(revision), Revision(9)).unwrap();
            rows.next()
                .unwrap()
                .map(|(key, _)| parse_history_key(key).unwrap())
        };
        write(2..=5);
        write(6..=9);
        engine.drop_history_files(Revision(5)).unwrap();
        assert_eq!(
            first_from(2),
            Some(Revision(2)),
            "the file holds a record that is needed"
        );
        // A file that is being compacted, as after the end of a snapshot, is removed the next time.
        let is_removed = || {
            engine.drop_history_files(Revision(6)).unwrap();
            first_from(2) == Some(Revision(6))
        };
        let began = crate::clock::Stopwatch::start();
        while !is_removed() {
            let waited = began.elapsed();
            assert!(
                waited < Duration::from_secs(30),
                "the file holds only records below the floor"
            );
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_engine_accepts_every_option() {
        database_options(Recovery::Strict, true).unwrap();
        assert!(
            Options::default()
                .get_options_from_string("no_such_option=1")
                .is_err()
        );
    }

    /// The settings that RocksDB writes to its OPTIONS file: one that it renames, drops or overrides fails here. The file
    /// does not contain the block cache and the rate limiter.
    #[test]
    fn the_engine_runs_with_the_chosen_settings() {
        const DATABASE: &[(&str, &str)] = &[
            ("manual_wal_flush", "false"),
            ("unordered_write", "false"),
            ("enable_pipelined_write", "false"),
            ("two_write_queues", "false"),
            ("allow_concurrent_memtable_write", "false"),
            ("enable_write_thread_adaptive_yield", "false"),
            ("wal_recovery_mode", "kTolerateCorruptedTailRecords"),
            ("recycle_log_file_num", "0"),
            ("wal_compression", "kNoCompression"),
            ("track_and_verify_wals_in_manifest", "true"),
            ("max_total_wal_size", "134217728"),
            ("db_write_buffer_size", "134217728"),
            ("max_background_jobs", "2"),
            ("max_subcompactions", "1"),
            ("paranoid_checks", "true"),
            ("max_open_files", "-1"),
            ("max_bgerror_resume_count", "0"),
            // What is recovered from the log is flushed before the first write: floors found by a start are durable.
            ("avoid_flush_during_recovery", "false"),
            ("use_fsync", "false"),
        ];
        const FAMILY: &[(&str, &str)] = &[
            ("compaction_style", "kCompactionStyleLevel"),
            ("level_compaction_dynamic_level_bytes", "true"),
            ("compression", "kNoCompression"),
            ("bottommost_compression", "kNoCompression"),
            ("level0_slowdown_writes_trigger", "20"),
            ("level0_stop_writes_trigger", "36"),
            ("soft_pending_compaction_bytes_limit", "2147483648"),
            ("hard_pending_compaction_bytes_limit", "8589934592"),
            ("paranoid_file_checks", "true"),
            ("memtable_protection_bytes_per_key", "8"),
            ("prefix_extractor", "nullptr"),
            ("merge_operator", "nullptr"),
            ("comparator", "leveldb.BytewiseComparator"),
            ("enable_blob_files", "false"),
        ];
        const TABLE: &[(&str, &str)] = &[
            ("block_size", "16384"),
            ("checksum", "kXXH3"),
            ("format_version", "6"),
            ("filter_policy", "nullptr"),
            ("no_block_cache", "false"),
        ];
        let folder = tempfile::tempdir().unwrap();
        drop(Engine::open(folder.path(), Access::Create, Recovery::Strict).unwrap());
        let files = std::fs::read_dir(folder.path()).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        let newest = names.filter(|name| name.starts_with("OPTIONS-")).max().unwrap();
        let text = std::fs::read_to_string(folder.path().join(newest)).unwrap();
        let check = |section: &str, settings: &[(&str, &str)]| {
            let (_, found) = text.split_once(&format!("[{section}]")).unwrap();
            let found = found.split("\n[").next().unwrap();
            for (name, expected) in settings {
                let prefix = format!("{name}=");
                let value = found.lines().find_map(|line| line.trim().strip_prefix(&prefix));
                assert_eq!(value, Some(*expected), "{section}: {name}");
            }
        };
        check("DBOptions", DATABASE);
        for (name, bytes, count) in [
            (STATE, "33554432", "3"),
            (HISTORY, "33554432", "4"),
            (META, "1048576", "3"),
        ] {
            let family = format!("CFOptions \"{name}\"");
            check(&family, FAMILY);
            let buffers = [("write_buffer_size", bytes), ("max_write_buffer_number", count)];
            check(&family, &buffers);
            check(&format!("TableOptions/BlockBasedTable \"{name}\""), TABLE);
        }
    }

    #[test]
    fn pending_compaction_counts_every_family() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::open(folder.path(), Access::Create, Recovery::Strict).unwrap();
        // Twice as many files in the first level as trigger a compaction, and compaction is off.
        let off = [("disable_auto_compactions", "true")];
        let history = engine.family(HISTORY).unwrap();
        engine.db.set_options_cf(history, &off).unwrap();
        for revision in 1..=8 {
            let record = vec![7; 1 << 16];
            let step = Step::PutHistory(Revision(revision), record);
            engine.write(&[step], false).unwrap();
            engine.db.flush_cf(history).unwrap();
        }
        let pressure = engine.pressure().unwrap();
        assert!(!pressure.is_stopped, "{pressure:?}");
        assert_eq!(pressure.delayed_write_rate, 0, "{pressure:?}");
        assert!(pressure.pending_bytes > 0, "{pressure:?}");
    }
}
