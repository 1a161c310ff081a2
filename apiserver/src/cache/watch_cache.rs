//! How is a resource read and watched without asking the store each time?
//!
//! ```text
//! store.scan, store.watch ──► Feeder ──► tree ──► root ──► lists (Snapshot)
//!                               │                   └────► initial events ─┐
//!                               ├──► event history ──────► replays ────────┤
//!                               └──► class logs ─────────► cursors ────────┴──► Watcher
//! ```
//!
//! One [`Feeder`] applies what happens, revision by revision; everybody else reads what it published. Start at
//! [`WatchCache::new`].

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use drydock_storage::{At, Damaged, Key, KeyRange, Page as ScanPage, Revision, Scan, Store, StoreError};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::Instant;

use super::class::Classes;
use super::error::ReadError;
use super::feed::Feeder;
use super::freshness::{Freshness, ListState};
use super::history::History;
use super::metrics::{CacheMetrics, CheckResult, ResourceMetrics};
use super::object::{CachedObject, Extract};
use super::past::Past;
use super::snapshot::{IndexedLabels, Page, Query, Root, Snapshot};
use super::tree::Builder;
use super::watcher::{Cursor, Parked, WatchRequest, Watcher};

/// How many entries are read from the store at a time. Each page of a past state undoes all that happened since, so
/// they are large.
pub(super) const SCAN_PAGE: usize = 25_000;

/// How often the store is asked for news while a read waits for it.
const PROGRESS_PERIOD: Duration = Duration::from_millis(100);

/// What a cache holds and how.
#[derive(Clone)]
pub struct CacheConfig {
    /// The API group of the stored objects.
    pub group: String,
    /// Their plural resource.
    pub resource: String,
    /// Reads labels and fields off a payload.
    pub extract: Arc<Extract>,
    /// Which labels get a secondary index.
    pub indexed_labels: IndexedLabels,
    /// Bounds in memory and time.
    pub limits: CacheLimits,
    /// Where to count; shared by all caches.
    pub metrics: CacheMetrics,
    /// The seed of jitter.
    pub seed: u64,
}

/// Bounds of a cache in memory and time.
#[derive(Debug, Clone)]
pub struct CacheLimits {
    /// The most the event history may hold, in bytes, with encodings and old values, and what is noted and packed
    /// for watches.
    pub history_bytes: u64,
    /// How long events and past states are kept at most.
    pub window: Duration,
    /// How long a read waits for a revision.
    pub read_wait: Duration,
    /// How many watches may read the store's history at the same time, each for one buffer; so many streams are
    /// also kept open for watches whose peers are slow.
    pub replays: usize,
    /// How many states of the past may be read from the store at the same time. Each holds all its objects.
    pub past_reads: usize,
    /// Over how long watches are ended when all must end at once.
    pub stagger: Duration,
    /// How far apart comparisons with the store lie, plus up to half of it at random.
    pub check_period: Duration,
    /// Whether the process ends when the cache is found to be wrong, instead of reading it anew: for tests.
    pub abort_on_difference: bool,
}

impl Default for CacheLimits {
    fn default() -> Self {
        Self {
            history_bytes: 256 << 20,
            window: Duration::from_mins(5),
            read_wait: Duration::from_secs(3),
            replays: 8,
            past_reads: 2,
            stagger: Duration::from_secs(10),
            check_period: Duration::from_mins(5),
            abort_on_difference: false,
        }
    }
}

/// The cache of one resource. Clones share it.
pub struct WatchCache<S: Store> {
    pub(super) shared: Arc<Shared<S>>,
}

impl<S: Store> Clone for WatchCache<S> {
    fn clone(&self) -> Self {
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

/// What the feeder publishes and readers use.
pub(super) struct Shared<S: Store> {
    pub(super) store: S,
    pub(super) config: CacheConfig,
    pub(super) range: KeyRange,
    pub(super) indexed: Arc<IndexedLabels>,
    /// The newest state; none until the first load.
    pub(super) newest: ArcSwapOption<Root>,
    /// The newest revision that readers can see.
    pub(super) applied: watch::Sender<Revision>,
    pub(super) past: Arc<Mutex<Past>>,
    pub(super) history: History,
    pub(super) classes: Mutex<Classes>,
    /// Where each open watch is.
    pub(super) cursors: Mutex<HashMap<u64, Arc<Cursor>>>,
    /// One permit a read of the store's history for a watch.
    pub(super) replays: Arc<Semaphore>,
    /// Streams of the store's history whose watches wait for their peers.
    pub(super) parked: Mutex<Parked<S::Events>>,
    /// One permit a state of the past that is being read from the store.
    past_reads: Semaphore,
    pub(super) watches_begun: AtomicU64,
    /// Asks the feeder to read everything anew.
    pub(super) rebuild: Notify,
    /// Keys whose value may be damaged, until the feeder has looked at them.
    pub(super) suspects: Mutex<BTreeSet<Key>>,
    pub(super) suspected: Notify,
    /// From when on, and over how long, watches end because the server does.
    pub(super) ending: OnceLock<(Instant, Duration)>,
    /// When the cache was last read anew behind a gap.
    pub(super) restarted: Mutex<Option<Instant>>,
    /// How often the cache was found to be wrong. Watches that were begun before must not go on.
    pub(super) faults: AtomicU64,
    pub(super) random: Mutex<fastrand::Rng>,
    pub(super) metrics: ResourceMetrics,
    started: Instant,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: Store> WatchCache<S> {
    /// A cache over `store`, empty until its feeder runs.
    #[must_use]
    pub fn new(store: S, config: CacheConfig) -> (Self, Feeder<S>) {
        let limits = &config.limits;
        // An eighth for where events stand in class logs, an eighth for frames packed for many.
        let of_classes = limits.history_bytes / 8;
        let shared = Arc::new(Shared {
            range: KeyRange::resource(&config.group, &config.resource),
            indexed: Arc::new(config.indexed_labels.clone()),
            newest: ArcSwapOption::empty(),
            applied: watch::Sender::new(Revision(0)),
            past: Arc::new(Mutex::new(Past::new(limits.window))),
            history: History::new(limits.history_bytes - 2 * of_classes, limits.window),
            classes: Mutex::new(Classes::new(of_classes)),
            cursors: Mutex::default(),
            replays: Arc::new(Semaphore::new(limits.replays)),
            parked: Mutex::new(Parked::new(limits.replays)),
            past_reads: Semaphore::new(limits.past_reads),
            watches_begun: AtomicU64::new(0),
            rebuild: Notify::new(),
            suspects: Mutex::default(),
            suspected: Notify::new(),
            ending: OnceLock::new(),
            restarted: Mutex::default(),
            faults: AtomicU64::new(0),
            random: Mutex::new(fastrand::Rng::with_seed(config.seed)),
            metrics: config.metrics.of(&config.resource),
            started: Instant::now(),
            store,
            config,
        });
        let feeder = Feeder::new(Arc::clone(&shared));
        (Self { shared }, feeder)
    }

    /// The store below.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// Whether the cache has been filled.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.shared.newest.load().is_some()
    }

    /// Waits until the cache has been filled.
    pub async fn ready(&self) {
        let mut applied = self.shared.applied.subscribe();
        // The sender lives as long as the cache.
        let _closed = applied.wait_for(|revision| revision.0 > 0).await.is_err();
    }

    /// The newest revision readers can see, once there is one.
    #[must_use]
    pub fn revision(&self) -> Option<Revision> {
        self.shared.newest.load().as_ref().map(|root| root.revision)
    }

    /// The object under `key`. While the cache has not been filled, the store answers.
    ///
    /// # Errors
    /// [`ReadError::Store`] with [`StoreError::Corrupt`] when its value is damaged, else as
    /// [`WatchCache::list`].
    pub async fn get(&self, key: &Key, freshness: Freshness) -> Result<Option<Arc<CachedObject>>, ReadError> {
        if self.is_ready() {
            Ok(self.shared.current(freshness).await?.get(key)?)
        } else {
            self.shared.get_directly(key, freshness).await
        }
    }

    /// A page of a list; all of it for [`Freshness::Any`], as with kube-apiserver's cache. When another page follows,
    /// the state is kept for it for a while, so that it will be of the same revision. While the cache has not been
    /// filled, the store answers limited lists without selectors.
    ///
    /// # Errors
    /// [`ReadError::Store`] with [`StoreError::Corrupt`] when the value of a key that may match is damaged;
    /// [`ReadError::NotReady`] for all other lists meanwhile; what the moment may bring:
    /// [`ReadError::TooLargeResourceVersion`] when it is not reached in time, [`ReadError::Expired`] when it is not
    /// kept any more, [`ReadError::Busy`] when the cache does not catch up or too much of the past is being read.
    pub async fn list(&self, query: &Query, state: ListState) -> Result<Page, ReadError> {
        if !self.is_ready() {
            return self.shared.list_directly(query, state).await;
        }
        let snapshot = match state {
            ListState::Newest(freshness) => self.shared.current(freshness).await?,
            ListState::Exactly(revision) => self.exactly(revision).await?,
            ListState::Continued(revision) => self.continued(revision).await?,
        };
        snapshot.check_readable(&query.selection)?;
        let is_any = state == ListState::Newest(Freshness::Any);
        let limit = if is_any { 0 } else { query.limit };
        Ok(snapshot.select(&Query {
            limit,
            ..query.clone()
        }))
    }

    /// Says that the store could not read the value of this key: it is looked at, and set apart if that is so.
    pub fn suspect(&self, key: &str) {
        if let Ok(key) = Key::parse(key)
            && self.shared.range.contains(key.as_str())
        {
            self.shared.suspect([key]);
        }
    }

    /// The newest state, as it is: for lists with resourceVersion 0.
    ///
    /// # Errors
    /// [`ReadError::NotReady`].
    pub(super) fn newest(&self) -> Result<Snapshot, ReadError> {
        self.shared.newest()
    }

    /// A state that holds every write answered before this call: for lists without resourceVersion.
    ///
    /// # Errors
    /// [`ReadError::NotReady`]; [`ReadError::Busy`] when the cache does not catch up in time; the store's errors.
    pub(super) async fn fresh(&self) -> Result<Snapshot, ReadError> {
        self.shared.fresh().await
    }

    /// A state of `revision` or later.
    ///
    /// # Errors
    /// [`ReadError::NotReady`]; [`ReadError::TooLargeResourceVersion`] when it is not reached in time.
    pub(super) async fn not_older_than(&self, revision: Revision) -> Result<Snapshot, ReadError> {
        self.shared.not_older_than(revision).await
    }

    /// The state right after `revision`.
    ///
    /// # Errors
    /// As [`WatchCache::not_older_than`]; [`ReadError::Expired`] when it is not kept any more;
    /// [`ReadError::Busy`] when too many old states are being read from the store.
    pub(super) async fn exactly(&self, revision: Revision) -> Result<Snapshot, ReadError> {
        self.shared.exactly(revision).await
    }

    /// The state that the first page of a list was read from, at `revision`. It may be kept a little longer than
    /// [`WatchCache::exactly`] allows.
    ///
    /// # Errors
    /// As [`WatchCache::exactly`].
    pub(super) async fn continued(&self, revision: Revision) -> Result<Snapshot, ReadError> {
        if let Some(root) = lock(&self.shared.past).pinned(revision) {
            return Ok(self.shared.snapshot(root));
        }
        self.shared.exactly(revision).await
    }

    /// Begins a watch.
    ///
    /// # Errors
    /// Only what must be answered instead of a stream: [`ReadError::NotReady`], [`ReadError::Busy`] and the
    /// store's errors. Whatever a client must learn inside the stream is the watcher's first answer.
    pub async fn subscribe(&self, request: WatchRequest) -> Result<Watcher<S>, ReadError> {
        Watcher::begin(Arc::clone(&self.shared), request).await
    }

    /// Ends all watches, spread over `over`, each with a last bookmark. Watches begun later end too.
    pub fn end_watches(&self, over: Duration) {
        self.shared.end_watches(over);
    }

    /// Counts payload bytes that a list has read.
    pub fn count_list_bytes(&self, bytes: u64) {
        self.shared.metrics.list_bytes.inc_by(bytes);
    }
}

impl<S: Store> Shared<S> {
    pub(super) fn snapshot(&self, root: Arc<Root>) -> Snapshot {
        Snapshot::new(root, Arc::clone(&self.past))
    }

    pub(super) fn newest(&self) -> Result<Snapshot, ReadError> {
        match self.newest.load_full() {
            Some(root) => Ok(self.snapshot(root)),
            None => Err(self.not_ready()),
        }
    }

    /// The newest state, once it is as recent as required.
    pub(super) async fn current(&self, freshness: Freshness) -> Result<Snapshot, ReadError> {
        match freshness {
            Freshness::MostRecent => self.fresh().await,
            Freshness::Any => self.newest(),
            Freshness::NotOlderThan(revision) => self.not_older_than(revision).await,
        }
    }

    /// The time to wait grows from 1 to 30 s with the time it takes to become ready.
    pub(super) fn not_ready(&self) -> ReadError {
        let waited = self.started.elapsed().as_secs();
        ReadError::NotReady {
            retry_after: Duration::from_secs(waited.clamp(1, 30)),
        }
    }

    /// Counts that the cache was found to be wrong.
    ///
    /// # Aborts
    /// Where the limits ask for it.
    pub(super) fn found_wrong(&self) {
        self.metrics.checked(CheckResult::Different);
        if self.config.limits.abort_on_difference {
            tracing::error!(
                resource = self.config.resource,
                "the cache is wrong: the process ends"
            );
            std::process::abort();
        }
    }

    pub(super) fn expired(&self, requested: Revision, oldest: Revision) -> ReadError {
        self.metrics.expired.inc();
        ReadError::Expired { requested, oldest }
    }

    pub(super) fn suspect(&self, keys: impl IntoIterator<Item = Key>) {
        lock(&self.suspects).extend(keys);
        self.suspected.notify_one();
    }

    pub(super) async fn fresh(&self) -> Result<Snapshot, ReadError> {
        self.newest()?;
        let current = self.store.current_revision().await?;
        if self.reach(current).await {
            self.newest()
        } else {
            Err(ReadError::Busy {
                retry_after: Duration::from_secs(1),
            })
        }
    }

    pub(super) async fn not_older_than(&self, revision: Revision) -> Result<Snapshot, ReadError> {
        self.newest()?;
        if self.reach(revision).await {
            return self.newest();
        }
        Err(ReadError::TooLargeResourceVersion {
            requested: revision,
            current: self.newest()?.revision(),
        })
    }

    /// Waits until `revision` can be read; says whether it can.
    async fn reach(&self, revision: Revision) -> bool {
        if *self.applied.borrow() >= revision {
            return true;
        }
        let since = Instant::now();
        let mut applied = self.applied.subscribe();
        let reached = tokio::time::timeout(self.config.limits.read_wait, async {
            loop {
                tokio::select! {
                    _ = applied.wait_for(|applied| *applied >= revision) => break,
                    () = tokio::time::sleep(PROGRESS_PERIOD) => self.store.request_progress(),
                }
            }
        });
        let reached = reached.await.is_ok();
        self.metrics
            .read_wait_seconds
            .observe(since.elapsed().as_secs_f64());
        reached
    }

    pub(super) async fn exactly(&self, revision: Revision) -> Result<Snapshot, ReadError> {
        let newest = self.not_older_than(revision).await?;
        let oldest = self.store.floors().listable_from;
        if revision < oldest {
            return Err(self.expired(revision, oldest));
        }
        if newest.revision() == revision {
            return Ok(newest);
        }
        match self.recall(revision) {
            Some(root) => Ok(self.snapshot(Arc::new(root))),
            None => self.load_exactly(revision).await,
        }
    }

    /// The state at `revision`, from the nearest root that is kept and the events between.
    fn recall(&self, revision: Revision) -> Option<Root> {
        let (before, after) = lock(&self.past).around(revision);
        // Read after the past: what is newest now may not be kept there yet.
        let newest = self.newest.load_full()?;
        let after = after.unwrap_or(newest);
        let history = &self.history;
        let forward = before.and_then(|root| Some((history.count_between(root.revision, revision)?, root)));
        match (forward, history.count_between(revision, after.revision)) {
            (Some((forth, root)), back) if back.is_none_or(|back| forth <= back) => {
                let events = history.between(root.revision, revision)?;
                let changes = events.iter().map(|event| (event.object(), &event.new));
                Some(changed(&root, revision, changes))
            }
            (_, Some(_)) => {
                let events = history.between(revision, after.revision)?;
                let changes = events.iter().rev().map(|event| (event.object(), &event.old));
                Some(changed(&after, revision, changes))
            }
            _ => None,
        }
    }

    /// The state at `revision`, from the store.
    async fn load_exactly(&self, revision: Revision) -> Result<Snapshot, ReadError> {
        let permit = tokio::time::timeout(self.config.limits.read_wait, self.past_reads.acquire());
        let _permit = permit.await.ok().and_then(Result::ok).ok_or(ReadError::Busy {
            retry_after: Duration::from_secs(1),
        })?;
        // Another request may have read it meanwhile.
        if let Some(root) = lock(&self.past).pinned(revision) {
            return Ok(self.snapshot(root));
        }
        let extract = Arc::clone(&self.config.extract);
        let mut builder = Builder::default();
        let scanned = self
            .scan(At::Exactly(revision), |key, entry| {
                builder.push(Arc::new(CachedObject::new(key, entry, &*extract)));
            })
            .await;
        let (_, damaged) = scanned.map_err(|error| match error {
            StoreError::Compacted { requested, floor } => self.expired(requested, floor),
            error => error.into(),
        })?;
        let mut root = Root::build(revision, 0, builder.finish(), Arc::clone(&self.indexed));
        root.damaged = Arc::new(damaged);
        let root = Arc::new(root);
        lock(&self.past).keep_loaded(&root);
        Ok(self.snapshot(root))
    }

    /// Reads all entries of the resource at one revision, in key order, and the keys that cannot be read. The newest state is read in pages, one of
    /// the past at once.
    pub(super) async fn scan(
        &self,
        at: At,
        mut each: impl FnMut(Key, drydock_storage::Entry),
    ) -> Result<(Revision, BTreeSet<Key>), StoreError> {
        let limit = match at {
            At::Latest => SCAN_PAGE,
            At::Exactly(_) => 0,
        };
        let page = |after: String| ScanPage {
            after,
            limit,
            damaged: Damaged::SetApart,
        };
        let mut damaged = BTreeSet::new();
        let mut scan: Scan = self.store.scan(&self.range, at, page(String::new())).await?;
        loop {
            let last = scan.entries.last().map(|(key, _)| key.as_str().to_owned());
            for (key, entry) in scan.entries {
                each(key, entry);
            }
            damaged.extend(scan.damaged);
            let Some(last) = last.filter(|_| scan.more) else {
                return Ok((scan.revision, damaged));
            };
            scan = self.next_page(at, scan.revision, page(last)).await?;
        }
    }

    /// A further page of a scan that was begun at `at` and found `revision`.
    async fn next_page(&self, at: At, revision: Revision, page: ScanPage) -> Result<Scan, StoreError> {
        let exactly = At::Exactly(revision);
        match self.store.scan(&self.range, exactly, page.clone()).await {
            // Everything but the newest state may have been let go of; that still is the one, if nothing happened.
            Err(StoreError::Compacted { requested, floor }) if at == At::Latest => {
                let scan = self.store.scan(&self.range, At::Latest, page).await?;
                if scan.revision == revision {
                    Ok(scan)
                } else {
                    Err(StoreError::Compacted { requested, floor })
                }
            }
            scan => scan,
        }
    }

    pub(super) fn end_watches(&self, over: Duration) {
        // Whoever says it first decides.
        let _later = self.ending.set((Instant::now(), over)).is_err();
        lock(&self.classes).poke_all();
    }
}

/// A root with some objects made what they were at `revision`.
fn changed<'a>(
    root: &Root,
    revision: Revision,
    changes: impl Iterator<Item = (Option<&'a Arc<CachedObject>>, &'a Option<Arc<CachedObject>>)>,
) -> Root {
    let mut root = root.clone();
    for (object, state) in changes {
        if let Some(object) = object {
            root.set(object.key(), state.as_ref());
            // The event has the value, whatever became of it on disk.
            if root.damaged.contains(object.key()) {
                Arc::make_mut(&mut root.damaged).remove(object.key());
            }
        }
    }
    root.revision = revision;
    root
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use drydock_storage::{Entry, Value};

    use super::super::object::Attributes;
    use super::*;

    /// The present's damage made states unreadable in which the object was not, or was whole.
    #[test]
    fn what_an_event_knows_of_a_state_is_readable_whatever_is_damaged_now() {
        let key = Key::new("g", "things", "n", "one").unwrap();
        let entry = Entry {
            value: Value {
                bytes: Bytes::from_static(b"{}"),
                form: "g/v1".into(),
                splice_offset: 1,
            },
            created: Revision(3),
            modified: Revision(3),
        };
        let object = CachedObject::new(key.clone(), entry, &|_, _| Attributes::default());
        let object = Arc::new(object);
        let mut root = Root::build(Revision(5), 1, Builder::default().finish(), Arc::default());
        root.damaged = Arc::new([key].into());
        for state in [None, Some(Arc::clone(&object))] {
            let past = changed(&root, Revision(2), [(Some(&object), &state)].into_iter());
            assert!(past.damaged.is_empty());
            assert_eq!(past.objects.count(), u64::from(state.is_some()));
        }
    }
}
