//! The task that applies the store's events to the cache.
//!
//! One task per resource. It loads the whole resource once, then applies events in batches: to the trees, the event
//! history and the class logs. Then it publishes the new root and wakes the watches concerned.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use drydock_storage::{At, Event, EventKind, Events as _, Key, Revision, Signal, Store, StoreError, Unread};
use futures_util::FutureExt as _;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::class::Class;
use super::consistency;
use super::history::CacheEvent;
use super::object::{CachedObject, Interner};
use super::parts::CacheParts;
use super::root::Root;

/// The most events applied before they are published.
const BATCH: usize = 512;

/// How often old events, states and classes are dropped.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// How many sealed values are tried with each [`HOUSEKEEPING`].
const TRIED_AT_ONCE: usize = 4;

/// The first and the longest wait after the store failed.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The task that feeds a cache. The cache becomes ready only while it runs.
pub struct Feeder<S: Store> {
    cache: Arc<CacheParts<S>>,
    interner: Interner,
    /// Classes with new events whose watches were woken too recently.
    paced: Vec<Arc<Class>>,
    /// When to wake them.
    pace: Option<Instant>,
    /// The cache was found to differ from the store and has not been reloaded since.
    is_wrong: bool,
    /// Finds out whether sealed values open by now. Not in the feed: with etcd it may wait for a key service.
    trial: Option<AbortOnDropHandle<bool>>,
    random: fastrand::Rng,
}

/// Why a stream of the store ended.
enum StreamEnd {
    /// The stream ended; another one may continue.
    Resume,
    /// An event was missed, or the cache differs from the store.
    Reload,
}

/// An event contradicts what the cache has.
struct Contradiction;

impl<S: Store> Feeder<S> {
    pub(super) fn new(cache: Arc<CacheParts<S>>, random: fastrand::Rng) -> Self {
        Self {
            cache,
            interner: Interner::default(),
            paced: Vec::new(),
            pace: None,
            is_wrong: false,
            trial: None,
            random,
        }
    }

    /// Feeds the cache until `shutdown`; then ends all watches that are still open.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let cache = Arc::clone(&self.cache);
        let random = self.random.fork();
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = self.feed() => {}
            () = consistency::run_checks(&cache, random) => {}
        }
        cache.end_watches(Duration::ZERO);
    }

    async fn feed(&mut self) {
        let mut back_off = BACK_OFF.0;
        loop {
            match self.load().await {
                Ok(root) => {
                    back_off = BACK_OFF.0;
                    self.follow(root).await;
                    self.cache.metrics.rebuilds.inc();
                }
                Err(error) => {
                    tracing::warn!(
                        resource = self.cache.source.resource,
                        error = &error as &dyn std::error::Error,
                        "the cache cannot be loaded from the store"
                    );
                    tokio::time::sleep(back_off).await;
                    back_off = (back_off * 2).min(BACK_OFF.1);
                }
            }
        }
    }

    /// Loads the whole resource and publishes it, unconnected to what was published before.
    async fn load(&mut self) -> Result<Root, StoreError> {
        // It was about what was loaded before.
        self.trial = None;
        let cache = Arc::clone(&self.cache);
        let interner = &mut self.interner;
        let extract = &*cache.source.extract;
        let object = |key, entry| CachedObject::interned(key, entry, extract, None, interner);
        let position = |revision| cache.logs.history().restart(revision);
        let root = cache.source.root(At::Latest, object, position).await?;
        self.log_unread(&root);
        let was_wrong = std::mem::take(&mut self.is_wrong);
        self.start_over(&root, was_wrong);
        Ok(root)
    }

    fn log_damage(&self, key: &Key) {
        tracing::error!(
            resource = self.cache.source.resource,
            %key,
            "a stored value cannot be read; the unsafe delete removes it"
        );
    }

    /// Damaged values each, sealed ones in one line: a key that is missing concerns all of them.
    fn log_unread(&self, root: &Root) {
        let mut sealed = 0;
        let mut first = None;
        for (key, unread) in &*root.damaged {
            match unread {
                Unread::Damaged => self.log_damage(key),
                Unread::Sealed(reason) => {
                    sealed += 1;
                    first.get_or_insert((key, reason));
                }
            }
        }
        if let Some((key, reason)) = first {
            tracing::error!(
                resource = self.cache.source.resource,
                sealed,
                %key,
                %reason,
                "stored values do not open: reads of them and lists fail until they do"
            );
        }
    }

    /// Publishes a root that does not continue the one before. Watches of the old root have missed events; where it
    /// was wrong, they must not resume either.
    fn start_over(&self, root: &Root, was_wrong: bool) {
        let cache = &self.cache;
        cache.published.clear_past();
        let is_first = cache.published.head().is_none();
        let reloaded = (!is_first).then(Instant::now);
        cache.termination.note_reload(reloaded);
        let start_generation = || {
            if was_wrong {
                cache.termination.start_generation();
            }
        };
        // Twice. Before the new root, so that no watch of the old root continues with the new one; and after it, for
        // watches that began with the old root in between.
        start_generation();
        // Class logs before the root: a watch that sees the new position then finds that its cursor lies before a gap.
        cache.logs.restart_classes(root.position);
        cache.published.publish(root);
        start_generation();
        cache.logs.wake_all();
    }

    /// Whether an event removes an object that the cache never could read.
    fn removes_unread(event: &Event, root: &Root) -> bool {
        event.kind == EventKind::Deleted
            && root.damaged.contains_key(&event.key)
            && root.objects.get(event.key.as_str()).is_none()
    }

    /// Continues without an object that could not be read. Watches cannot be sent its last state, so all of them end
    /// and their clients list again.
    fn drop_unread(&self, key: &Key, revision: Revision, root: &mut Root) {
        let resource = self.cache.source.resource.as_str();
        tracing::warn!(resource, %key, "a value that could not be read was removed");
        root.clear_damage(key);
        root.revision = revision;
        root.position = self.cache.logs.history().restart(revision);
        self.start_over(root, true);
    }

    /// Makes events that were applied visible to everyone.
    fn publish_batch(&mut self, batch: &[Arc<CacheEvent>], root: &Root) {
        let touched = self.cache.logs.append(batch);
        self.cache.published.publish(root);
        self.wake(touched);
    }

    /// Applies the events after `root` until that is no longer possible.
    async fn follow(&mut self, mut root: Root) {
        let mut back_off = BACK_OFF.0;
        loop {
            let source = &self.cache.source;
            match source.store.watch(&source.range, root.revision.next()).await {
                Ok(events) => {
                    let before = root.revision;
                    if let StreamEnd::Reload = self.drain(events, &mut root).await {
                        return;
                    }
                    if root.revision > before {
                        back_off = BACK_OFF.0;
                    }
                }
                Err(StoreError::Compacted { .. }) => return,
                Err(error) => tracing::warn!(
                    resource = self.cache.source.resource,
                    error = &error as &dyn std::error::Error,
                    "the store cannot be watched"
                ),
            }
            tokio::time::sleep(back_off).await;
            back_off = (back_off * 2).min(BACK_OFF.1);
        }
    }

    async fn drain(&mut self, mut events: S::Events, root: &mut Root) -> StreamEnd {
        let cache = Arc::clone(&self.cache);
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
                _ = housekeeping.tick() => {
                    self.do_housekeeping();
                    self.begin_trial(root);
                }
                has_opened = Self::trial_ended(&mut self.trial) => {
                    if has_opened {
                        tracing::info!(
                            resource = self.cache.source.resource,
                            "sealed values open again: the cache is reloaded"
                        );
                        // Watches that began without these objects must not continue.
                        self.is_wrong = true;
                        return StreamEnd::Reload;
                    }
                }
                () = cache.repairs.suspected() => self.check_suspects(root).await,
                () = cache.repairs.reload_requested() => {
                    self.is_wrong = true;
                    return StreamEnd::Reload;
                }
            }
        }
    }

    /// Applies a signal and those that are available without waiting, then publishes.
    fn apply_batch(
        &mut self,
        first: Option<Signal>,
        stream: &mut S::Events,
        root: &mut Root,
    ) -> ControlFlow<StreamEnd> {
        let mut batch = Vec::new();
        let mut flow = ControlFlow::Continue(());
        let mut before = root.revision;
        let mut signal = Some(first);
        while let Some(next) = signal {
            match next {
                Some(Signal::Change(event)) if event.revision > root.revision => {
                    let revision = event.revision;
                    if Self::removes_unread(&event, root) {
                        if root.revision > before {
                            self.publish_batch(&std::mem::take(&mut batch), root);
                        }
                        self.drop_unread(&event.key, revision, root);
                        before = revision;
                        signal = stream.next().now_or_never();
                        continue;
                    }
                    root.revision = revision;
                    let Ok(event) = self.apply(event, root) else {
                        // The events before it are not published either: they may build on a wrong state.
                        self.is_wrong = true;
                        return ControlFlow::Break(StreamEnd::Reload);
                    };
                    batch.push(event);
                }
                // Applied before: a resumed stream may overlap.
                Some(Signal::Change(_)) => {}
                Some(Signal::Progress(revision)) => root.revision = root.revision.max(revision),
                Some(Signal::Compacted(_)) => flow = ControlFlow::Break(StreamEnd::Reload),
                None => flow = ControlFlow::Break(StreamEnd::Resume),
            }
            let is_full = batch.len() >= BATCH || flow.is_break();
            signal = if is_full {
                None
            } else {
                stream.next().now_or_never()
            };
        }
        if root.revision > before {
            self.publish_batch(&batch, root);
        }
        flow
    }

    fn apply(&mut self, event: Event, root: &mut Root) -> Result<Arc<CacheEvent>, Contradiction> {
        self.check(&event, root)?;
        let Event { key, new, .. } = event;
        root.clear_damage(&key);
        let metrics = &self.cache.metrics;
        let new = new.map(|entry| {
            let before = root.objects.get(key.as_str());
            let before = before.map(AsRef::as_ref);
            let extract = &*self.cache.source.extract;
            let object = CachedObject::interned(key.clone(), entry, extract, before, &mut self.interner);
            Arc::new(object)
        });
        let old = root.set(&key, new.as_ref());
        match (&old, &new) {
            (None, _) => metrics.created.inc(),
            (Some(_), Some(_)) => metrics.updated.inc(),
            (Some(_), None) => metrics.deleted.inc(),
        };
        let history = self.cache.logs.history();
        let event = history.event(root.position, root.revision, old, new, Instant::now());
        root.position += 1;
        Ok(event)
    }

    /// Whether an event continues what the cache has.
    fn check(&self, event: &Event, root: &Root) -> Result<(), Contradiction> {
        let cached = root.objects.get(event.key.as_str());
        let cached = cached.map(|object| object.modified());
        // A backend may have lost the old value, but not the fact that there was one.
        let continues = match (event.kind, &event.old) {
            (EventKind::Created, _) => cached.is_none(),
            (_, Some(old)) => cached == Some(old.modified),
            (_, None) => cached.is_some(),
        };
        if continues {
            return Ok(());
        }
        let resource = self.cache.source.resource.as_str();
        tracing::error!(
            resource,
            key = %event.key,
            kind = ?event.kind,
            ?cached,
            expected = ?event.old.as_ref().map(|old| old.modified),
            "an event contradicts the cache, which is reloaded"
        );
        self.cache.report_difference();
        Err(Contradiction)
    }

    /// Checks the keys whose value may be damaged, and publishes those that are.
    async fn check_suspects(&self, root: &mut Root) {
        let before = root.damaged.len();
        for key in self.cache.repairs.take_suspects() {
            let read = self.cache.source.store.get(&key).await;
            let unread = read.err().as_ref().and_then(Unread::of);
            if let Some(unread) = unread
                && !root.damaged.contains_key(&key)
            {
                match &unread {
                    Unread::Damaged => self.log_damage(&key),
                    Unread::Sealed(reason) => tracing::error!(
                        resource = self.cache.source.resource,
                        %key,
                        %reason,
                        "a stored value does not open any more"
                    ),
                }
                Arc::make_mut(&mut root.damaged).insert(key, unread);
            }
        }
        if root.damaged.len() > before {
            self.cache.published.publish(root);
        }
    }

    /// Begins to find out whether a value opens by now that did not before: the store has been given its key. Tries a few at a
    /// time.
    fn begin_trial(&mut self, root: &Root) {
        if self.trial.is_some() {
            return;
        }
        let sealed: Vec<&Key> = root
            .damaged
            .iter()
            .filter(|(_, unread)| matches!(unread, Unread::Sealed(_)))
            .map(|(key, _)| key)
            .collect();
        if sealed.is_empty() {
            return;
        }
        let from = self.random.usize(..sealed.len());
        let tried = sealed.iter().cycle().skip(from);
        let tried: Vec<Key> = tried
            .take(TRIED_AT_ONCE.min(sealed.len()))
            .map(|key| (*key).clone())
            .collect();
        let cache = Arc::clone(&self.cache);
        self.trial = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            for key in &tried {
                if cache.source.store.get(key).await.is_ok() {
                    return true;
                }
            }
            false
        })));
    }

    /// Waits for the end of a trial, for ever if there is none; whether a value opened. Cancel safe.
    async fn trial_ended(trial: &mut Option<AbortOnDropHandle<bool>>) -> bool {
        let Some(running) = trial else {
            return std::future::pending().await;
        };
        let ended = running.await;
        *trial = None;
        // A trial that panicked found nothing; the next one tries others.
        ended.unwrap_or(false)
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

    /// Drops what is too old, and measures.
    fn do_housekeeping(&self) {
        let cache = &self.cache;
        let metrics = &cache.metrics;
        let now = Instant::now();
        let history = cache.logs.history();
        let sizes = cache.logs.trim(now);
        metrics.classes.set(as_gauge(sizes.classes));
        metrics.history_bytes.set(as_gauge(sizes.bytes));
        metrics
            .history_seconds
            .set(as_gauge(history.window(now).as_secs()));
        let roots = cache.published.thin(now, history.floor());
        metrics.roots.set(as_gauge(roots));
        if let Some(root) = cache.published.newest() {
            metrics.objects.set(as_gauge(root.objects.count()));
            metrics.object_bytes.set(as_gauge(root.objects.bytes()));
            metrics.damaged.set(as_gauge(root.damaged.len()));
        }
        let applied = cache.published.applied();
        let lags = cache.watches.lags(history, applied, now);
        let lagging = lags.iter().filter(|lag| **lag > 0).count();
        metrics.watchers_lagging.set(as_gauge(lagging));
        for lag in lags {
            #[expect(clippy::cast_precision_loss, reason = "a measurement, far below 2^52")]
            metrics.watcher_lag_revisions.observe(lag as f64);
        }
    }
}

fn as_gauge(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
