//! How does what happens in the store reach those who read and watch?
//!
//! One task per resource. It reads everything once, then applies the store's events in batches: tree, event
//! history, class logs; publishes the new root; wakes who is concerned. Events are in all logs before the root is
//! published, so whoever sees a revision can find all of its events.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use drydock_storage::{
    At, Damaged, Event, EventKind, Events as _, Key, Page as ScanPage, Revision, Signal, Store, StoreError,
};
use futures_util::FutureExt as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::class::Class;
use super::history::CacheEvent;
use super::metrics::CheckResult;
use super::object::{CachedObject, Interner};
use super::snapshot::Root;
use super::tree::Builder;
use super::watch_cache::{SCAN_PAGE, Shared};

/// The most events applied before they are published.
const BATCH: usize = 512;

/// How often old things are let go of.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// The first and the longest wait after the store failed.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The task that feeds a cache. It must be run for the cache to become ready.
pub struct Feeder<S: Store> {
    shared: Arc<Shared<S>>,
    interner: Interner,
    /// Classes that have news and were woken too recently.
    paced: Vec<Arc<Class>>,
    pace: Option<Instant>,
    /// The cache was found to be wrong and has not been read anew since.
    is_wrong: bool,
}

/// Why following the store ended.
enum Unfollowed {
    /// The stream ended; what comes next may still be had.
    Resume,
    /// Something was missed, or the cache is wrong.
    Reload,
}

/// An event that does not go on from what the cache has.
struct Contradiction;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: Store> Feeder<S> {
    pub(super) fn new(shared: Arc<Shared<S>>) -> Self {
        Self {
            shared,
            interner: Interner::default(),
            paced: Vec::new(),
            pace: None,
            is_wrong: false,
        }
    }

    /// Feeds the cache until `shutdown`; then ends all watches that are still open.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let shared = Arc::clone(&self.shared);
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.feed() => {}
            () = check_consistency(&shared) => {}
        }
        shared.end_watches(Duration::ZERO);
    }

    async fn feed(&mut self) {
        let mut back_off = BACK_OFF.0;
        loop {
            match self.load().await {
                Ok(root) => {
                    back_off = BACK_OFF.0;
                    self.follow(root).await;
                    self.shared.metrics.rebuilds.inc();
                }
                Err(error) => {
                    tracing::warn!(
                        resource = self.shared.config.resource,
                        error = &error as &dyn std::error::Error,
                        "the cache cannot be filled from the store"
                    );
                    tokio::time::sleep(back_off).await;
                    back_off = (back_off * 2).min(BACK_OFF.1);
                }
            }
        }
    }

    /// Reads everything, and publishes it as a new beginning.
    async fn load(&mut self) -> Result<Root, StoreError> {
        let shared = Arc::clone(&self.shared);
        let interner = &mut self.interner;
        let mut builder = Builder::default();
        let (revision, damaged) = shared
            .scan(At::Latest, |key, entry| {
                let object = CachedObject::interned(key, entry, &*shared.config.extract, None, interner);
                builder.push(Arc::new(object));
            })
            .await?;
        let position = shared.history.restart(revision);
        let mut root = Root::build(revision, position, builder.finish(), Arc::clone(&shared.indexed));
        for key in &damaged {
            tracing::error!(
                resource = shared.config.resource,
                %key,
                "a stored value cannot be read; the unsafe delete removes it"
            );
        }
        root.damaged = Arc::new(damaged);
        let was_wrong = std::mem::take(&mut self.is_wrong);
        self.begin_anew(&root, was_wrong);
        Ok(root)
    }

    /// Publishes a root that does not go on from the one before: whoever followed that has missed something, and where
    /// it was wrong must not even resume.
    fn begin_anew(&self, root: &Root, was_wrong: bool) {
        let shared = &self.shared;
        lock(&shared.past).clear();
        let is_first = shared.newest.load().is_none();
        *lock(&shared.restarted) = (!is_first).then(Instant::now);
        let count_fault = || {
            if was_wrong {
                shared.faults.fetch_add(1, Ordering::SeqCst);
            }
        };
        // Before, so that no watch of the old root takes the new one for its own; and after, for watches that begin with
        // the old root in between.
        count_fault();
        // Class logs before the root: whoever sees the new position finds that its old cursor lies before a gap.
        lock(&shared.classes).restart(root.position);
        self.publish(root);
        count_fault();
        lock(&shared.classes).poke_all();
    }

    /// Whether an event says that an object is gone which nobody could read.
    fn is_loss(event: &Event, root: &Root) -> bool {
        event.kind == EventKind::Deleted
            && root.damaged.contains(&event.key)
            && root.objects.get(event.key.as_str()).is_none()
    }

    /// Goes on without an object that nobody could read. Nobody can be told what was removed, so all watches end, and
    /// their clients list anew.
    fn forget(&self, key: &Key, revision: Revision, root: &mut Root) {
        let resource = self.shared.config.resource.as_str();
        tracing::warn!(resource, %key, "a value that could not be read is gone");
        Arc::make_mut(&mut root.damaged).remove(key);
        root.revision = revision;
        root.position = self.shared.history.restart(revision);
        self.begin_anew(root, true);
    }

    /// Lets everybody know of events that were applied.
    fn tell(&mut self, batch: &[Arc<CacheEvent>], root: &Root) {
        self.shared.history.append(batch);
        let touched = lock(&self.shared.classes).dispatch(batch);
        self.publish(root);
        self.wake(touched);
    }

    /// Applies what happens after `root` until that is no longer possible.
    async fn follow(&mut self, mut root: Root) {
        let mut back_off = BACK_OFF.0;
        loop {
            let first = root.revision.next();
            match self.shared.store.watch(&self.shared.range, first).await {
                Ok(events) => {
                    let before = root.revision;
                    if let Unfollowed::Reload = self.drain(events, &mut root).await {
                        return;
                    }
                    if root.revision > before {
                        back_off = BACK_OFF.0;
                    }
                }
                Err(StoreError::Compacted { .. }) => return,
                Err(error) => tracing::warn!(
                    resource = self.shared.config.resource,
                    error = &error as &dyn std::error::Error,
                    "the store cannot be watched"
                ),
            }
            tokio::time::sleep(back_off).await;
            back_off = (back_off * 2).min(BACK_OFF.1);
        }
    }

    async fn drain(&mut self, mut events: S::Events, root: &mut Root) -> Unfollowed {
        let shared = Arc::clone(&self.shared);
        let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
        housekeeping.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let pace = self.pace;
            tokio::select! {
                signal = events.next() => {
                    if let ControlFlow::Break(end) = self.apply_batch(signal, &mut events, root) {
                        return end;
                    }
                }
                () = tokio::time::sleep_until(pace.unwrap_or_else(Instant::now)), if pace.is_some() => {
                    self.pace = None;
                    let paced = std::mem::take(&mut self.paced);
                    self.wake(paced);
                }
                _ = housekeeping.tick() => self.keep_house(),
                () = shared.suspected.notified() => self.set_apart(root).await,
                () = shared.rebuild.notified() => {
                    self.is_wrong = true;
                    return Unfollowed::Reload;
                }
            }
        }
    }

    /// Applies a signal and those that are there already, then publishes.
    fn apply_batch(
        &mut self,
        first: Option<Signal>,
        stream: &mut S::Events,
        root: &mut Root,
    ) -> ControlFlow<Unfollowed> {
        let mut batch = Vec::new();
        let mut flow = ControlFlow::Continue(());
        let mut before = root.revision;
        let mut signal = Some(first);
        while let Some(next) = signal {
            match next {
                Some(Signal::Change(event)) if event.revision > root.revision => {
                    let revision = event.revision;
                    if Self::is_loss(&event, root) {
                        if root.revision > before {
                            self.tell(&std::mem::take(&mut batch), root);
                        }
                        self.forget(&event.key, revision, root);
                        before = revision;
                        signal = stream.next().now_or_never();
                        continue;
                    }
                    root.revision = revision;
                    let Ok(event) = self.apply(event, root) else {
                        // Not even what came before is published: it may have been told of a wrong state.
                        self.is_wrong = true;
                        return ControlFlow::Break(Unfollowed::Reload);
                    };
                    batch.push(event);
                }
                // Told before: a resumed stream may overlap.
                Some(Signal::Change(_)) => {}
                Some(Signal::Progress(revision)) => root.revision = root.revision.max(revision),
                Some(Signal::Compacted(_)) => flow = ControlFlow::Break(Unfollowed::Reload),
                None => flow = ControlFlow::Break(Unfollowed::Resume),
            }
            let is_full = batch.len() >= BATCH || flow.is_break();
            signal = if is_full {
                None
            } else {
                stream.next().now_or_never()
            };
        }
        if root.revision > before {
            self.tell(&batch, root);
        }
        flow
    }

    fn apply(&mut self, event: Event, root: &mut Root) -> Result<Arc<CacheEvent>, Contradiction> {
        self.check(&event, root)?;
        let Event { key, new, .. } = event;
        if root.damaged.contains(&key) {
            Arc::make_mut(&mut root.damaged).remove(&key);
        }
        let metrics = &self.shared.metrics;
        let new = new.map(|entry| {
            let before = root.objects.get(key.as_str());
            let before = before.map(AsRef::as_ref);
            let extract = &*self.shared.config.extract;
            let object = CachedObject::interned(key.clone(), entry, extract, before, &mut self.interner);
            Arc::new(object)
        });
        let old = root.set(&key, new.as_ref());
        match (&old, &new) {
            (None, _) => metrics.created.inc(),
            (Some(_), Some(_)) => metrics.updated.inc(),
            (Some(_), None) => metrics.deleted.inc(),
        };
        let history = &self.shared.history;
        let event = history.event(root.position, root.revision, old, new, Instant::now());
        root.position += 1;
        Ok(event)
    }

    /// Whether an event goes on from what the cache has.
    fn check(&self, event: &Event, root: &Root) -> Result<(), Contradiction> {
        let cached = root.objects.get(event.key.as_str());
        let cached = cached.map(|object| object.modified());
        // A backend may have lost what the value was before, but not that there was one.
        let goes_on = match (event.kind, &event.old) {
            (EventKind::Created, _) => cached.is_none(),
            (_, Some(old)) => cached == Some(old.modified),
            (_, None) => cached.is_some(),
        };
        if goes_on {
            return Ok(());
        }
        let resource = self.shared.config.resource.as_str();
        tracing::error!(
            resource,
            key = %event.key,
            kind = ?event.kind,
            ?cached,
            told = ?event.old.as_ref().map(|old| old.modified),
            "an event does not go on from what is cached: the cache is read anew"
        );
        self.shared.found_wrong();
        Err(Contradiction)
    }

    /// Looks at the keys whose value may be damaged, and publishes those that are.
    async fn set_apart(&self, root: &mut Root) {
        let suspects = std::mem::take(&mut *lock(&self.shared.suspects));
        let before = root.damaged.len();
        for key in suspects {
            let is_damaged = matches!(self.shared.store.get(&key).await, Err(StoreError::Corrupt { .. }));
            if is_damaged && !root.damaged.contains(&key) {
                tracing::error!(
                    resource = self.shared.config.resource,
                    %key,
                    "a stored value cannot be read; the unsafe delete removes it"
                );
                Arc::make_mut(&mut root.damaged).insert(key);
            }
        }
        if root.damaged.len() > before {
            self.publish(root);
        }
    }

    fn publish(&self, root: &Root) {
        let root = Arc::new(root.clone());
        lock(&self.shared.past).retain(&root, Instant::now());
        let revision = root.revision;
        self.shared.newest.store(Some(root));
        self.shared.applied.send_replace(revision);
    }

    fn wake(&mut self, classes: Vec<Arc<Class>>) {
        let now = Instant::now();
        for class in classes {
            if let Some(due) = class.wake(now) {
                self.pace = Some(self.pace.map_or(due, |pace| pace.min(due)));
                self.paced.push(class);
            }
        }
    }

    /// Says how far behind watches are, also those whose peer takes nothing.
    fn look_at_cursors(&self, now: Instant) {
        let shared = &self.shared;
        let applied = *shared.applied.borrow();
        let cursors: Vec<_> = lock(&shared.cursors).values().cloned().collect();
        let mut lagging = 0_i64;
        for cursor in cursors {
            let behind = cursor.behind(&shared.history, applied, now);
            lagging += i64::from(behind > 0);
            #[expect(clippy::cast_precision_loss, reason = "a measurement, far below 2^52")]
            shared.metrics.watcher_lag_revisions.observe(behind as f64);
        }
        shared.metrics.watchers_lagging.set(lagging);
    }

    fn keep_house(&self) {
        let shared = &self.shared;
        let now = Instant::now();
        shared.history.trim(now);
        lock(&shared.past).thin(now, shared.history.floor());
        let first = shared.history.first();
        let mut classes = lock(&shared.classes);
        classes.sweep(first, now);
        let metrics = &shared.metrics;
        metrics.classes.set(as_gauge(classes.count()));
        let of_classes = classes.bytes();
        drop(classes);
        self.look_at_cursors(now);
        metrics.roots.set(as_gauge(lock(&shared.past).count()));
        metrics
            .history_bytes
            .set(as_gauge(shared.history.bytes() + of_classes));
        metrics
            .history_seconds
            .set(as_gauge(shared.history.window(now).as_secs()));
        if let Some(root) = &*shared.newest.load() {
            metrics.objects.set(as_gauge(root.objects.count()));
            metrics.object_bytes.set(as_gauge(root.objects.bytes()));
            metrics.damaged.set(as_gauge(root.damaged.len()));
        }
    }
}

fn as_gauge(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// Compares the cache with the store from time to time, for ever, and asks for a rebuild when they differ.
async fn check_consistency<S: Store>(shared: &Shared<S>) {
    loop {
        let random = lock(&shared.random).f64();
        let period = shared.config.limits.check_period;
        tokio::time::sleep(period.mul_f64(1.0 + random / 2.0)).await;
        let Some(root) = shared.newest.load_full() else {
            continue;
        };
        match first_difference(shared, &root).await {
            Ok(None) => shared.metrics.checked(CheckResult::Equal),
            Ok(Some(difference)) => {
                tracing::error!(
                    resource = shared.config.resource,
                    revision = %root.revision,
                    key = %difference.key,
                    cached = ?difference.cached,
                    stored = ?difference.stored,
                    "the cache differs from the store and is read anew"
                );
                shared.found_wrong();
                shared.rebuild.notify_one();
            }
            Err(error) => {
                shared.metrics.checked(CheckResult::Skipped);
                tracing::info!(
                    resource = shared.config.resource,
                    error = &error as &dyn std::error::Error,
                    "the cache could not be compared with the store"
                );
            }
        }
    }
}

/// A key and when it was last written, according to both sides.
#[derive(Debug)]
struct Difference {
    key: Key,
    cached: Option<Revision>,
    stored: Option<Revision>,
}

async fn first_difference<S: Store>(
    shared: &Shared<S>,
    root: &Root,
) -> Result<Option<Difference>, StoreError> {
    let mut cached = root.objects.cursor().peekable();
    let mut after = String::new();
    let mut damaged = BTreeSet::new();
    loop {
        let page = ScanPage {
            after: after.clone(),
            limit: SCAN_PAGE,
            damaged: Damaged::SetApart,
        };
        let scan = shared
            .store
            .scan(&shared.range, At::Exactly(root.revision), page)
            .await?;
        damaged.extend(scan.damaged);
        // What the cache has of a value that has become damaged since cannot be compared.
        let mut next = |until: Option<&Key>| loop {
            let object = cached.next_if(|object| until.is_none_or(|key| object.key() <= key))?;
            if !damaged.contains(object.key()) {
                return Some(object);
            }
        };
        for (key, entry) in &scan.entries {
            let stored = Some(entry.modified);
            let (key, cached, stored) = match next(Some(key)) {
                Some(object) if object.key() == key && Some(object.modified()) == stored => continue,
                Some(object) if object.key() == key => (key.clone(), Some(object.modified()), stored),
                Some(object) => (object.key().clone(), Some(object.modified()), None),
                None => (key.clone(), None, stored),
            };
            return Ok(Some(Difference { key, cached, stored }));
        }
        match scan.entries.last() {
            Some((key, _)) if scan.more => key.as_str().clone_into(&mut after),
            _ => {
                if let Some(object) = next(None) {
                    return Ok(Some(Difference {
                        key: object.key().clone(),
                        cached: Some(object.modified()),
                        stored: None,
                    }));
                }
                break;
            }
        }
    }
    let gone = root.damaged.difference(&damaged).next();
    if gone.is_none() && root.damaged.len() < damaged.len() {
        shared.suspect(damaged);
        return Ok(None);
    }
    Ok(gone.map(|key| Difference {
        key: key.clone(),
        cached: None,
        stored: None,
    }))
}
