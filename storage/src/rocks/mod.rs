//! The embedded engine: RocksDB under one commit thread.
//!
//! Start at [`RocksStore::open`]. The parts, in the order of a write:
//! `prepare` (encode in the task of the request) → `queue` → `commit` (the one writer) → `column_families` (bytes on
//! disk) → `mark` (what was durable once) → `index` and `tail` (what is published). Reads: `read` (scans), `watch`
//! (cursors over `tail` and `history`). Life: `open`, `recover`, `compact`, `housekeeping`, `check`, `checkpoint`, `incremental`,
//! `transfer`.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use self::check::Checker;
use self::column_families::{Engine, Pressure};
use self::commit::{Answers, BATCH, CommitThread, Message};
use self::compact::{Keep, Timeline};
use self::disk::{Room, cramped, judge};
use self::housekeeping::{Housekeeping, Stop};
use self::index::{Index, Slot, conflict};
use self::mark::{Mark, MarkFile};
use self::poison::{Poison, closed};
use self::prepare::{Prepared, prepare};
use self::queue::{Queue, Refused, Weight};
use self::read::Undone;
use self::tail::Tail;
use crate::clock::{Clock, Steady, Stopwatch};
use crate::metrics::{EndedAs, Metrics, gauge_value};
use crate::options::{Durability, FreeSpace, MeasureDisk, Options};
use crate::record::Records;
use crate::{
    At, Event, Floors, Found, Health, Key, KeyRange, Outcome, Page, Revision, Scan, Store, StoreError,
    Transaction,
};

mod accept_loss;
mod check;
mod checkpoint;
mod column_families;
mod commit;
mod compact;
mod disk;
mod error;
mod format;
mod history;
mod housekeeping;
mod incremental;
mod index;
mod lock;
mod mark;
mod open;
mod poison;
mod prepare;
mod progress;
mod queue;
mod read;
mod recover;
mod tail;
mod transfer;
mod watch;

pub use accept_loss::{RecoverReport, VerifyReport, recover, verify};
pub use check::CheckReport;
pub use checkpoint::{BackupFile, BackupReport, Manifest, verify_backup};
pub use error::OpenError;
pub use incremental::IncrementalReport;
pub use open::Opened;
pub use progress::{LifeError, Progress};
pub use transfer::{ExportReport, ImportReport, import, restore};
pub use watch::RocksEvents;

/// How many watches may read history from disk at once.
const MAX_REPLAYS: usize = 4;
/// How many reads of a past state may run at once: each may hold 128 MiB of what it undoes.
const MAX_PAST_READS: usize = 4;
/// How long a read of a past state waits for its turn.
const PAST_READ_WAIT: Duration = Duration::from_secs(5);
/// When a reader whose turn did not come should ask again.
const PAST_READ_RETRY: Duration = Duration::from_secs(1);
/// Transactions larger than this are encoded off the async workers.
const LARGE: Weight = Weight {
    writes: 64,
    bytes: 256 << 10,
};

/// A store in a folder. Clones share it; when the last one is dropped the store is closed.
#[derive(Clone)]
pub struct RocksStore {
    shared: Arc<Shared>,
    owner: Arc<Owner>,
}

/// What all parts share.
pub(crate) struct Shared {
    folder: PathBuf,
    durability: Durability,
    keep: Keep,
    /// How large all values together may grow; 0 = no limit.
    object_bytes: u64,
    measure_disk: Arc<MeasureDisk>,
    check_every: Duration,
    /// Held by the check of values: its checkpoint has one place.
    checking: Mutex<()>,
    /// Held while a backup is taken: two in one folder would remove what the other makes.
    backup: Mutex<()>,
    clock: Arc<dyn Clock>,
    steady: Steady,
    records: Records,
    metrics: Metrics,
    poison: Poison,
    queue: Queue<Message>,
    tail: Tail,
    index: RwLock<Index>,
    /// The newest published revision; changes while `index` is held for writing.
    current: AtomicU64,
    listable_from: AtomicU64,
    watchable_from: AtomicU64,
    /// The floor of watches that no crash takes back: what lies below may be removed for good.
    durable_floor: AtomicU64,
    /// Nobody waits for a stalled engine any more.
    gives_up: AtomicBool,
    /// Where history begins: no record belongs to this revision.
    origin: Revision,
    timeline: Mutex<Timeline>,
    room: AtomicU8,
    /// None once the store is closed.
    engine: Mutex<Option<Arc<Engine>>>,
    replays: Arc<Semaphore>,
    /// Turns of those who read a past state.
    past_reads: Arc<Semaphore>,
    ends: Ends,
    /// What the last page of a past state undid, for the one that follows.
    undone: Mutex<Option<Undone>>,
    mark_file: MarkFile,
    /// What every mark of this process has in common.
    mark: Mark,
}

/// The counts of how most transactions end: handles, so that no write looks them up.
struct Ends {
    committed: Counter,
    conflict: Counter,
}

impl Ends {
    fn of(metrics: &Metrics) -> Self {
        let ended = |outcome: &'static str| metrics.commits.get_or_create(&EndedAs { outcome }).clone();
        Self {
            committed: ended("committed"),
            conflict: ended("conflict"),
        }
    }
}

/// What a start hands to the parts that run.
pub(crate) struct Started {
    index: Index,
    recent: Vec<Event>,
    timeline: Timeline,
    last_ms: u64,
    floors: Floors,
    origin: Revision,
    ceiling: Option<Revision>,
    space: FreeSpace,
    mark: Mark,
}

/// The threads, and how they end.
struct Owner {
    shared: Arc<Shared>,
    stop: Arc<Stop>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    engine_is_gone: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Shared {
    fn new(
        options: Options,
        records: Records,
        engine: Arc<Engine>,
        mark_file: MarkFile,
        mark: Mark,
        mut started: Started,
    ) -> Self {
        let metrics = Metrics::default();
        let steady = Steady::start(&*options.clock);
        started.timeline.begin(steady.now_ms(&*options.clock));
        let revision = started.revision();
        let floors = started.floors();
        let (objects, object_bytes) = started.index.size();
        metrics.revision.set(gauge_value(revision.0));
        metrics.objects.set(gauge_value(objects));
        metrics.object_bytes.set(gauge_value(object_bytes));
        metrics.object_bytes_limit.set(gauge_value(options.object_bytes));
        metrics.listable_from.set(gauge_value(floors.listable_from.0));
        metrics.watchable_from.set(gauge_value(floors.watchable_from.0));
        metrics
            .durability
            .set(i64::from(options.durability != Durability::Strict));
        metrics.disk_free_bytes.set(gauge_value(started.space.free));
        let shared = Self {
            folder: options.path,
            durability: options.durability,
            keep: Keep {
                window: options.window,
                minimum_window: options.minimum_window,
                watchable_revisions: options.watchable_revisions,
                history_bytes: options.history_bytes,
            },
            object_bytes: options.object_bytes,
            measure_disk: options.measure_disk,
            check_every: options.check_every,
            checking: Mutex::new(()),
            backup: Mutex::new(()),
            steady,
            records,
            poison: Poison::new(metrics.health.clone()),
            queue: Queue::new(
                Weight {
                    writes: options.queue_writes,
                    bytes: options.queue_bytes,
                },
                BATCH,
                Arc::clone(&options.clock),
                &metrics,
            ),
            clock: options.clock,
            ends: Ends::of(&metrics),
            metrics,
            tail: Tail::with(started.recent, revision),
            index: RwLock::new(started.index),
            current: AtomicU64::new(revision.0),
            listable_from: AtomicU64::new(floors.listable_from.0),
            watchable_from: AtomicU64::new(floors.watchable_from.0),
            durable_floor: AtomicU64::new(floors.watchable_from.0),
            gives_up: AtomicBool::new(false),
            origin: started.origin,
            timeline: Mutex::new(started.timeline),
            room: AtomicU8::new(judge(started.space) as u8),
            engine: Mutex::new(Some(engine)),
            replays: Arc::new(Semaphore::new(MAX_REPLAYS)),
            past_reads: Arc::new(Semaphore::new(MAX_PAST_READS)),
            undone: Mutex::new(None),
            mark_file,
            mark,
        };
        shared.observe_window();
        shared
    }

    /// Milliseconds that never go back.
    fn steady_ms(&self) -> u64 {
        self.steady.now_ms(&*self.clock)
    }

    /// Notes how far back exact lists reach.
    fn observe_window(&self) {
        let window = self.timeline().window_seconds(self.steady_ms(), self.floors());
        self.metrics.window_seconds.set(gauge_value(window));
    }

    /// Notes how hard compaction presses on writes; none if the engine does not say.
    fn observe_pressure(&self, engine: &Engine) -> Option<Pressure> {
        let pressure = engine.pressure();
        if let Err(error) = &pressure {
            tracing::warn!(%error, "the pressure of the engine is not known");
        }
        let pressure = pressure.ok()?;
        let metrics = &self.metrics;
        metrics.write_stopped.set(i64::from(pressure.is_stopped));
        metrics
            .delayed_write_rate
            .set(gauge_value(pressure.delayed_write_rate));
        metrics
            .pending_compaction_bytes
            .set(gauge_value(pressure.pending_bytes));
        Some(pressure)
    }

    /// Lets the commit thread drop what a stalled engine does not take.
    fn give_up(&self) {
        self.gives_up.store(true, Ordering::Release);
    }

    /// Whether waiting for a stalled engine has no sense any more.
    fn has_given_up(&self) -> bool {
        self.gives_up.load(Ordering::Acquire) || self.poison.is_poisoned()
    }

    /// Why a write that was not tried again did not happen.
    fn refusal(&self) -> StoreError {
        self.poison.check_writable().err().unwrap_or_else(closed)
    }

    fn durable_floor(&self) -> Revision {
        Revision(self.durable_floor.load(Ordering::Acquire))
    }

    /// Called by the commit thread when a raised floor is on disk.
    fn set_durable_floor(&self, floor: Revision) {
        self.durable_floor.fetch_max(floor.0, Ordering::AcqRel);
    }

    fn index(&self) -> RwLockReadGuard<'_, Index> {
        self.index.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn index_mut(&self) -> RwLockWriteGuard<'_, Index> {
        self.index.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn timeline(&self) -> MutexGuard<'_, Timeline> {
        self.timeline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn undone(&self) -> MutexGuard<'_, Option<Undone>> {
        self.undone.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the backup that is being taken.
    fn backing_up(&self) -> MutexGuard<'_, ()> {
        self.backup.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn current(&self) -> Revision {
        Revision(self.current.load(Ordering::Acquire))
    }

    /// Called by the commit thread while it holds the index for writing.
    fn set_current(&self, revision: Revision) {
        self.current.store(revision.0, Ordering::Release);
    }

    fn floors(&self) -> Floors {
        Floors {
            listable_from: Revision(self.listable_from.load(Ordering::Acquire)),
            watchable_from: Revision(self.watchable_from.load(Ordering::Acquire)),
        }
    }

    /// Raises the published floors; what they are then. Called by the commit thread.
    fn raise_floors(&self, wanted: Floors) -> Floors {
        self.listable_from
            .fetch_max(wanted.listable_from.0, Ordering::AcqRel);
        self.watchable_from
            .fetch_max(wanted.watchable_from.0, Ordering::AcqRel);
        let floors = self.floors();
        self.metrics
            .listable_from
            .set(gauge_value(floors.listable_from.0));
        self.metrics
            .watchable_from
            .set(gauge_value(floors.watchable_from.0));
        self.tail.tick();
        floors
    }

    fn room(&self) -> Room {
        match self.room.load(Ordering::Relaxed) {
            0 => Room::Plenty,
            1 => Room::Short,
            _ => Room::Critical,
        }
    }

    /// Notes how much room there is; what was noted before.
    fn set_room(&self, room: Room) -> Room {
        let before = self.room();
        self.room.store(room as u8, Ordering::Relaxed);
        before
    }

    /// The open engine. Callers let go of it soon: closing waits for them.
    fn engine(&self) -> Result<Arc<Engine>, StoreError> {
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        engine.as_ref().map(Arc::clone).ok_or_else(closed)
    }

    /// A mark of this process at a time.
    fn mark_template(&self, at_ms: u64) -> Mark {
        Mark { at_ms, ..self.mark }
    }

    /// Counts a transaction that ended like this.
    fn count(&self, outcome: &'static str) {
        match outcome {
            "committed" => self.ends.committed.inc(),
            "conflict" => self.ends.conflict.inc(),
            _ => self.metrics.commits.get_or_create(&EndedAs { outcome }).inc(),
        };
    }

    /// Waits for the turn of a read at a revision; none where nothing much has to be undone.
    async fn turn_to_read(&self, at: At) -> Result<Option<OwnedSemaphorePermit>, StoreError> {
        match at {
            At::Exactly(revision) if revision < self.current() => {}
            At::Exactly(_) | At::Latest => return Ok(None),
        }
        let turn = Arc::clone(&self.past_reads).acquire_owned();
        match tokio::time::timeout(PAST_READ_WAIT, turn).await {
            Ok(turn) => turn.map(Some).map_err(|_| closed()),
            Err(_) => Err(StoreError::Busy {
                retry_after: PAST_READ_RETRY,
            }),
        }
    }
}

impl Owner {
    fn spawn(
        shared: &Arc<Shared>,
        commit: CommitThread,
        with_housekeeping: bool,
        engine_is_gone: oneshot::Receiver<()>,
    ) -> std::io::Result<Self> {
        let owner = Self {
            shared: Arc::clone(shared),
            stop: Arc::new(Stop::default()),
            threads: Mutex::new(Vec::new()),
            engine_is_gone: Mutex::new(Some(engine_is_gone)),
        };
        owner.thread("storage-commit", move || commit.run())?;
        if with_housekeeping {
            let (syncs, rest) = (owner.housekeeping(), owner.housekeeping());
            owner.thread("storage-sync", move || syncs.run_syncs())?;
            owner.thread("storage-house", move || rest.run())?;
            if !shared.check_every.is_zero() {
                let checker = Checker {
                    shared: Arc::clone(shared),
                    stop: Arc::clone(&owner.stop),
                    every: shared.check_every,
                };
                owner.thread("storage-check", move || checker.run())?;
            }
        }
        Ok(owner)
    }

    fn thread(&self, name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        self.threads().push(thread);
        Ok(())
    }

    fn threads(&self) -> MutexGuard<'_, Vec<JoinHandle<()>>> {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn housekeeping(&self) -> Housekeeping {
        Housekeeping {
            shared: Arc::clone(&self.shared),
            stop: Arc::clone(&self.stop),
        }
    }

    /// Takes no more work; the threads end when they have done what waits.
    fn stop(&self) {
        self.shared.queue.close();
        self.stop.set();
    }

    /// Waits for the threads to end.
    fn join(&self) {
        let threads = std::mem::take(&mut *self.threads());
        let own = std::thread::current().id();
        for thread in threads {
            if thread.thread().id() != own {
                // A panic there has poisoned the store already.
                drop(thread.join());
            }
        }
    }

    /// Lets go of the engine and ends watches.
    fn let_go(&self) -> Option<Arc<Engine>> {
        self.shared.poison.close();
        self.shared.tail.close();
        self.shared
            .engine
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Ends everything in order. Blocks.
    fn close(&self) -> Result<(), StoreError> {
        self.stop();
        self.join();
        let was_poisoned = self.shared.poison.is_poisoned();
        let Some(engine) = self.let_go() else {
            return Ok(());
        };
        let flushed = if was_poisoned { Ok(()) } else { engine.flush() };
        drop(engine);
        flushed.map_err(|error| read::engine_failed(&error))
    }
}

impl Drop for Owner {
    /// Waits for the threads: one that closed the engine while the process ends would meet what RocksDB has torn down.
    /// Nobody is left to wait for a write, so a stall is not waited out.
    fn drop(&mut self) {
        self.shared.give_up();
        self.stop();
        self.join();
        drop(self.let_go());
    }
}

impl RocksStore {
    /// What can be seen of the store from outside.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.shared.metrics
    }

    /// The identity of the store.
    #[must_use]
    pub fn uuid(&self) -> uuid::Uuid {
        self.shared.mark.store
    }

    /// Keys whose value fails its checksum.
    #[must_use]
    pub fn damaged(&self) -> Vec<Key> {
        self.shared.index().damaged().cloned().collect()
    }

    /// Does the periodic work once: syncs the mark, looks at the disk, lets go of old history. Blocks.
    pub fn keep_house(&self) {
        self.owner.housekeeping().once();
    }

    /// Encodes transactions and hands them to the commit thread as one message.
    async fn submit(&self, transactions: Vec<Transaction>) -> Answers {
        let count = transactions.len();
        let mut prepared = Vec::with_capacity(count);
        if weight(&transactions).fits(LARGE) {
            prepared.extend(
                transactions
                    .into_iter()
                    .map(|transaction| self.shared.prepare(transaction)),
            );
        } else {
            let shared = Arc::clone(&self.shared);
            let encode = move || transactions.into_iter().map(|one| shared.prepare(one)).collect();
            match tokio::task::spawn_blocking(encode).await {
                Ok(encoded) => prepared = encoded,
                Err(_) => return (0..count).map(|_| Err(closed())).collect(),
            }
        }
        let mut accepted = Vec::with_capacity(prepared.len());
        let mut answers: Vec<Option<Result<Outcome, StoreError>>> = Vec::with_capacity(prepared.len());
        for prepared in prepared {
            match prepared {
                Ok(prepared) => {
                    accepted.push(prepared);
                    answers.push(None);
                }
                Err(refused) => answers.push(Some(Err(refused))),
            }
        }
        let mut replies = self.shared.commit(accepted).await.into_iter();
        let answers = answers.into_iter();
        let unknown = || Err(StoreError::Unknown { source: None });
        answers
            .map(|answer| answer.or_else(|| replies.next()).unwrap_or_else(unknown))
            .collect()
    }
}

/// How much encoding transactions take.
fn weight(transactions: &[Transaction]) -> Weight {
    let values = transactions.iter().filter_map(|one| one.write.value());
    Weight {
        writes: transactions.len(),
        bytes: values.map(|value| value.bytes.len()).sum(),
    }
}

impl Shared {
    fn prepare(&self, transaction: Transaction) -> Result<Prepared, StoreError> {
        transaction.check_size()?;
        let (before, (_, object_bytes)) = {
            let index = self.index();
            (index.slot(&transaction.key).cloned(), index.size())
        };
        let cramped = cramped(self.room(), object_bytes, self.object_bytes);
        let prepared = prepare(&self.records, transaction, before.as_ref(), cramped);
        if matches!(prepared, Err(StoreError::Full { .. })) {
            self.count("full");
        }
        let prepared = prepared?;
        let (found, limit) = (prepared.weight().bytes, self.queue.limit().bytes);
        if found > limit {
            return Err(StoreError::TooLarge { found, limit });
        }
        Ok(prepared)
    }

    /// The conflict with published state, if there is one: it needs no place in the queue.
    fn published_conflict(&self, transaction: &Transaction) -> Result<Option<Outcome>, StoreError> {
        self.poison.check_readable()?;
        transaction.check_size()?;
        let index = self.index();
        let Transaction { key, write, .. } = transaction;
        let conflict = conflict(key, write.base(), index.slot(key), index.revision())?;
        if conflict.is_some() {
            self.metrics.conflicts.inc();
            self.count("conflict");
            return Ok(conflict);
        }
        self.poison.check_writable()?;
        Ok(None)
    }

    /// Waits for the commit thread's answers, one each.
    async fn commit(&self, prepared: Vec<Prepared>) -> Answers {
        let count = prepared.len();
        if count == 0 {
            return Vec::new();
        }
        let weight = prepared
            .iter()
            .map(Prepared::weight)
            .fold(Weight::default(), Weight::plus);
        let (reply, answers) = oneshot::channel();
        let message = Message::Transactions {
            prepared,
            queued: Stopwatch::start(),
            reply,
        };
        if let Err(refused) = self.queue.push(message, weight) {
            self.count("busy");
            let refusal = || match refused {
                Refused::Full { retry_after } => StoreError::Busy { retry_after },
                Refused::Closed => self.poison.check_writable().err().unwrap_or_else(closed),
            };
            return (0..count).map(|_| Err(refusal())).collect();
        }
        answers.await.unwrap_or_else(|_| {
            // The thread answers all of a message or dies with it: then nobody knows, and nobody may go on writing.
            self.poison.poison("the commit thread died");
            Vec::new()
        })
    }
}

impl Store for RocksStore {
    type Events = RocksEvents;

    async fn transact(&self, transaction: Transaction) -> Result<Outcome, StoreError> {
        if let Some(conflict) = self.shared.published_conflict(&transaction)? {
            return Ok(conflict);
        }
        let mut answers = self.submit(vec![transaction]).await;
        answers
            .pop()
            .unwrap_or_else(|| Err(StoreError::Unknown { source: None }))
    }

    async fn transact_many(&self, transactions: Vec<Transaction>) -> Vec<Result<Outcome, StoreError>> {
        let mut answers = Vec::with_capacity(transactions.len());
        let mut waiting = transactions.into_iter().peekable();
        while waiting.peek().is_some() {
            let mut part = Vec::new();
            let mut size = Weight::default();
            while let Some(next) = waiting.next_if(|next| {
                size = size.plus(weight(std::slice::from_ref(next)));
                part.is_empty() || size.fits(BATCH)
            }) {
                part.push(next);
            }
            answers.extend(self.submit(part).await);
        }
        answers
    }

    async fn get(&self, key: &Key) -> Result<Found, StoreError> {
        self.shared.poison.check_readable()?;
        let index = self.shared.index();
        Ok(Found {
            revision: index.revision(),
            entry: index.entry(key)?.cloned(),
        })
    }

    async fn scan(&self, range: &KeyRange, at: At, page: Page) -> Result<Scan, StoreError> {
        self.shared.poison.check_readable()?;
        let turn = self.shared.turn_to_read(at).await?;
        let engine = self.shared.engine()?;
        let shared = Arc::clone(&self.shared);
        let range = range.clone();
        let read = tokio::task::spawn_blocking(move || {
            // It ends with the read, not with whoever asked.
            let _turn = turn;
            read::scan(&shared, &engine, &range, at, &page)
        });
        read.await.unwrap_or_else(|_| Err(closed()))
    }

    async fn remove_damaged(&self, key: &Key) -> Result<Outcome, StoreError> {
        self.shared.poison.check_writable()?;
        let place = match self.shared.index().slot(key) {
            Some(Slot::Damaged(place)) => *place,
            _ => return Err(StoreError::NotDamaged),
        };
        let mut prepared = self
            .shared
            .prepare(Transaction::delete(key.clone(), place.modified))?;
        prepared.may_remove_damaged = true;
        let mut answers = self.shared.commit(vec![prepared]).await;
        answers
            .pop()
            .unwrap_or_else(|| Err(StoreError::Unknown { source: None }))
    }

    async fn watch(&self, range: &KeyRange, first: Revision) -> Result<RocksEvents, StoreError> {
        self.shared.poison.check_readable()?;
        let events = RocksEvents::new(Arc::clone(&self.shared), range.clone(), first);
        self.shared
            .floors()
            .check_watchable(first, self.shared.current())?;
        Ok(events)
    }

    async fn current_revision(&self) -> Result<Revision, StoreError> {
        self.shared.poison.check_readable()?;
        Ok(self.shared.current())
    }

    fn request_progress(&self) {
        self.shared.tail.request_progress();
    }

    async fn compact(&self, through: Revision) -> Result<(), StoreError> {
        self.shared.poison.check_writable()?;
        let wanted = Floors {
            listable_from: through.next(),
            watchable_from: through.next(),
        };
        let (reply, answer) = oneshot::channel();
        let queued = Stopwatch::start();
        let message = Message::Compact {
            wanted,
            queued,
            reply,
        };
        match self.shared.queue.push(message, Weight { writes: 1, bytes: 0 }) {
            Ok(()) => answer
                .await
                .unwrap_or_else(|_| Err(StoreError::Unknown { source: None })),
            Err(Refused::Full { retry_after }) => Err(StoreError::Busy { retry_after }),
            Err(Refused::Closed) => Err(closed()),
        }
    }

    fn floors(&self) -> Floors {
        self.shared.floors()
    }

    fn health(&self) -> Health {
        self.shared.poison.health()
    }

    async fn close(&self, grace: Duration) -> Result<(), StoreError> {
        let late = || StoreError::Closed {
            reason: "it did not close in time".to_owned(),
        };
        let closing = async {
            let owner = Arc::clone(&self.owner);
            let closed = tokio::task::spawn_blocking(move || owner.close()).await;
            let is_gone = self
                .owner
                .engine_is_gone
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            if let Some(is_gone) = is_gone {
                // The sender is dropped with the engine; nothing is ever sent.
                drop(is_gone.await);
            }
            closed.unwrap_or_else(|_| Err(late()))
        };
        tokio::time::timeout(grace, closing).await.unwrap_or_else(|_| {
            self.shared.give_up();
            Err(late())
        })
    }
}

#[cfg(test)]
mod tests;
