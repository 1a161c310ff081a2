//! Which watches an event concerns.
//!
//! Watches with the same selection text form a class: a thousand identical informers are one class. Each event is
//! matched once per class, through indexes, and noted in the log of every class that it concerns: 16 bytes with its
//! position in the event history and its kind for that class. Watches are cursors in these logs.
//!
//! A class log is complete from `covered_from` on. A watch before that reads the event history instead. Both use the
//! same positions, so changing from one to the other neither skips nor repeats an event.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use drydock_storage::Revision;
use tokio::sync::watch;
use tokio::time::Instant;

use super::encode_once::{EncoderId, WatchKind};
use super::history::{CacheEvent, Entered};
use super::object::{CachedObject, Term};
use super::selection::{Scope, Selection};

/// How long a class without watches is kept, for informers that reconnect.
const IDLE: Duration = Duration::from_secs(10);

/// The least time between two wake-ups of a class, per watch in it: 1 ms for 50 watches. With many watches a wake-up
/// costs more than an event, so events are collected in between.
const PACE_PER_WATCH: Duration = Duration::from_micros(20);

/// The longest time between two wake-ups.
const SLOWEST_PACE: Duration = Duration::from_millis(50);

/// How many packed buffers a class keeps for its watches to share.
const SHARED_CHUNKS: usize = 4;

/// The entries that each class log may hold, however many classes there are.
const MIN_ENTRIES: usize = 32;

/// An event in a class log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) position: u64,
    pub(super) kind: WatchKind,
}

/// Frames packed for one encoder, for other watches of the class at the same position.
#[derive(Debug, Clone)]
pub(super) struct Chunk {
    pub(super) encoder: EncoderId,
    /// The position of its first event.
    pub(super) from: u64,
    /// The position of its last event.
    pub(super) last: u64,
    pub(super) last_revision: Revision,
    /// When its first event of each kind entered the cache.
    pub(super) entered: Entered,
    pub(super) bytes: Bytes,
}

impl Chunk {
    fn weight(&self) -> u64 {
        u64::try_from(size_of::<Self>() + self.bytes.len()).unwrap_or(u64::MAX)
    }
}

/// The packed buffers of a class. Their bytes are counted together with those of all other classes.
#[derive(Debug)]
struct Chunks {
    list: VecDeque<Chunk>,
    held: Arc<AtomicU64>,
    /// The most that all classes together may hold, in bytes.
    budget: u64,
}

impl Chunks {
    fn push(&mut self, chunk: Chunk) {
        let is_same = |other: &Chunk| other.encoder == chunk.encoder && other.from == chunk.from;
        self.remove(is_same);
        if self.list.len() >= SHARED_CHUNKS
            && let Some(oldest) = self.list.pop_front()
        {
            self.held.fetch_sub(oldest.weight(), Ordering::Relaxed);
        }
        // Without room, each watch packs its own buffer.
        let weight = chunk.weight();
        if self.held.fetch_add(weight, Ordering::Relaxed) + weight > self.budget {
            self.held.fetch_sub(weight, Ordering::Relaxed);
        } else {
            self.list.push_back(chunk);
        }
    }

    fn remove(&mut self, is_removed: impl Fn(&Chunk) -> bool) {
        let held = &self.held;
        self.list.retain(|chunk| {
            let is_removed = is_removed(chunk);
            if is_removed {
                held.fetch_sub(chunk.weight(), Ordering::Relaxed);
            }
            !is_removed
        });
    }

    fn clear(&mut self) {
        self.remove(|_| true);
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        self.clear();
    }
}

/// What a class log has for a cursor.
#[derive(Debug)]
pub(super) enum Taken {
    /// Entries at and after the cursor; never empty.
    Entries(Vec<Entry>),
    /// The same, packed by another watch.
    Chunk(Chunk),
    /// The cursor is at the head.
    Nothing,
    /// The log begins after the cursor, at this position.
    CoveredFrom(u64),
}

/// All watches with one selection. See the module.
#[derive(Debug)]
pub(super) struct Class {
    pub(super) selection: Selection,
    log: Mutex<Log>,
    wake: watch::Sender<u64>,
    watchers: AtomicUsize,
}

#[derive(Debug)]
struct Log {
    covered_from: u64,
    entries: VecDeque<Entry>,
    chunks: Chunks,
    /// Entries were added since the watches were last woken.
    is_touched: bool,
    woken_at: Option<Instant>,
    idle_since: Option<Instant>,
}

impl Class {
    fn new(selection: Selection, covered_from: u64, chunks: Chunks) -> Self {
        Self {
            selection,
            log: Mutex::new(Log {
                covered_from,
                entries: VecDeque::new(),
                chunks,
                is_touched: false,
                woken_at: None,
                idle_since: None,
            }),
            wake: watch::Sender::new(0),
            watchers: AtomicUsize::new(0),
        }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the log has for a cursor at `next`; at most `max` entries.
    pub(super) fn take(&self, next: u64, encoder: EncoderId, max: usize) -> Taken {
        let log = self.log();
        if next < log.covered_from {
            return Taken::CoveredFrom(log.covered_from);
        }
        let start = log.entries.partition_point(|entry| entry.position < next);
        let Some(first) = log.entries.get(start) else {
            return Taken::Nothing;
        };
        let mut chunks = log.chunks.list.iter();
        if let Some(chunk) = chunks.find(|chunk| chunk.encoder == encoder && chunk.from == first.position) {
            return Taken::Chunk(chunk.clone());
        }
        Taken::Entries(log.entries.range(start..).take(max).copied().collect())
    }

    /// Keeps a packed buffer for other watches of the class.
    pub(super) fn share(&self, chunk: Chunk) {
        if self.watchers.load(Ordering::Relaxed) < 2 {
            return;
        }
        self.log().chunks.push(chunk);
    }

    /// The position of the first event that a cursor at `next` has not taken; none when it is at the head.
    pub(super) fn pending(&self, next: u64) -> Option<u64> {
        let log = self.log();
        if next < log.covered_from {
            return Some(next);
        }
        let start = log.entries.partition_point(|entry| entry.position < next);
        log.entries.get(start).map(|entry| entry.position)
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.wake.subscribe()
    }

    /// Wakes all watches, whatever the pace.
    fn wake_now(&self) {
        self.wake.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Wakes the watches if the last wake-up is long enough ago; otherwise returns when it will be.
    pub(super) fn wake(&self, now: Instant) -> Option<Instant> {
        let watchers = u32::try_from(self.watchers.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        let pace = PACE_PER_WATCH.saturating_mul(watchers).min(SLOWEST_PACE);
        {
            let mut log = self.log();
            if let Some(due) = log.woken_at.map(|at| at + pace).filter(|due| *due > now) {
                return Some(due);
            }
            log.woken_at = Some(now);
            log.is_touched = false;
        }
        self.wake_now();
        None
    }

    /// Notes an event. Returns whether it is the first one since the watches were woken. When the log has `max`
    /// entries, the oldest are dropped; watches that still need them read the event history.
    fn note(&self, entry: Entry, max: usize) -> bool {
        let mut log = self.log();
        if log.entries.len() >= max {
            let dropped = log.entries.len() - max + max / 4 + 1;
            let dropped = dropped.min(log.entries.len());
            let last = log.entries.drain(..dropped).next_back();
            log.covered_from = last.map_or(log.covered_from, |last| last.position + 1);
        }
        log.entries.push_back(entry);
        !std::mem::replace(&mut log.is_touched, true)
    }

    /// Drops packed buffers, and entries whose events the history has dropped.
    fn trim(&self, history_first: u64) {
        let mut log = self.log();
        while let Some(entry) = log.entries.front()
            && entry.position < history_first
        {
            log.covered_from = entry.position + 1;
            log.entries.pop_front();
        }
        if log.entries.capacity() > 64 && log.entries.len() < log.entries.capacity() / 4 {
            let twice = log.entries.len() * 2;
            log.entries.shrink_to(twice);
        }
        log.chunks.clear();
    }

    fn bytes(&self) -> u64 {
        u64::try_from(self.log().entries.capacity() * size_of::<Entry>()).unwrap_or(u64::MAX)
    }

    fn restart(&self, position: u64) {
        let mut log = self.log();
        log.entries.clear();
        log.chunks.clear();
        log.covered_from = position;
    }

    fn is_abandoned(&self, now: Instant) -> bool {
        let is_idle = self.watchers.load(Ordering::Relaxed) == 0;
        let mut log = self.log();
        if !is_idle {
            log.idle_since = None;
            return false;
        }
        let since = *log.idle_since.get_or_insert(now);
        now.duration_since(since) >= IDLE
    }
}

/// A watch's membership of a class.
#[derive(Debug)]
pub(super) struct Member(Arc<Class>);

impl Member {
    pub(super) fn class(&self) -> &Arc<Class> {
        &self.0
    }
}

impl std::ops::Deref for Member {
    type Target = Class;

    fn deref(&self) -> &Class {
        &self.0
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.0.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// All classes of a resource, indexed by what an event must have to concern them.
#[derive(Debug)]
pub(super) struct Classes {
    /// The entries that all logs together may hold, as long as each may have [`MIN_ENTRIES`].
    max_entries: usize,
    chunk_budget: u64,
    chunk_bytes: Arc<AtomicU64>,
    /// The position of the next event to be matched.
    matched: u64,
    by_identity: HashMap<String, Arc<Class>>,
    by_key: HashMap<String, Vec<Arc<Class>>>,
    /// Classes of one name in all namespaces.
    by_name: HashMap<String, Vec<Arc<Class>>>,
    by_term: HashMap<Term, Vec<Arc<Class>>>,
    by_namespace: HashMap<String, Vec<Arc<Class>>>,
    others: Vec<Arc<Class>>,
}

impl Classes {
    /// No classes yet. All logs together may hold `budget` bytes, and all packed buffers together too.
    pub(super) fn new(budget: u64) -> Self {
        let max = usize::try_from(budget).unwrap_or(usize::MAX);
        Self {
            max_entries: max / size_of::<Entry>(),
            chunk_budget: budget,
            chunk_bytes: Arc::default(),
            matched: 0,
            by_identity: HashMap::new(),
            by_key: HashMap::new(),
            by_name: HashMap::new(),
            by_term: HashMap::new(),
            by_namespace: HashMap::new(),
            others: Vec::new(),
        }
    }

    /// Joins the class of a selection. A new class begins at the next event.
    pub(super) fn join(&mut self, selection: &Selection) -> Member {
        let class = match self.by_identity.get(selection.identity()) {
            Some(class) => Arc::clone(class),
            None => self.add(selection),
        };
        class.watchers.fetch_add(1, Ordering::Relaxed);
        Member(class)
    }

    fn add(&mut self, selection: &Selection) -> Arc<Class> {
        let chunks = Chunks {
            list: VecDeque::new(),
            held: Arc::clone(&self.chunk_bytes),
            budget: self.chunk_budget,
        };
        let class = Arc::new(Class::new(selection.clone(), self.matched, chunks));
        self.by_identity
            .insert(selection.identity().to_owned(), Arc::clone(&class));
        self.place(selection).push(Arc::clone(&class));
        class
    }

    /// The list that holds the class of a selection: that of the rarest thing its events must have.
    fn place(&mut self, selection: &Selection) -> &mut Vec<Arc<Class>> {
        if let Some(name) = selection.name() {
            return self.by_name.entry(name.to_owned()).or_default();
        }
        match (selection.scope(), selection.equalities().first()) {
            (Scope::Name { .. }, _) => {
                let key = selection.range().start.clone();
                self.by_key.entry(key).or_default()
            }
            (_, Some(term)) => self.by_term.entry(term.clone()).or_default(),
            (Scope::Namespace(namespace), None) => self.by_namespace.entry(namespace.clone()).or_default(),
            (Scope::All, None) => &mut self.others,
        }
    }

    /// Notes events, in order, in the logs of all classes they concern. Returns the classes to be woken.
    pub(super) fn dispatch(&mut self, events: &[Arc<CacheEvent>]) -> Vec<Arc<Class>> {
        let mut touched = Vec::new();
        for event in events {
            self.dispatch_one(event, &mut touched);
            self.matched = event.position + 1;
        }
        touched
    }

    fn dispatch_one(&self, event: &CacheEvent, touched: &mut Vec<Arc<Class>>) {
        let Some(object) = event.object() else {
            return;
        };
        let max = (self.max_entries / self.count().max(1)).max(MIN_ENTRIES);
        let mut note = |classes: &[Arc<Class>]| {
            for class in classes {
                if let Some(kind) = event.kind_for(&class.selection) {
                    let position = event.position;
                    if class.note(Entry { position, kind }, max) {
                        touched.push(Arc::clone(class));
                    }
                }
            }
        };
        note(&self.others);
        if let Some(classes) = self.by_namespace.get(object.key().namespace()) {
            note(classes);
        }
        if let Some(classes) = self.by_key.get(object.key().as_str()) {
            note(classes);
        }
        if let Some(classes) = self.by_name.get(object.key().name()) {
            note(classes);
        }
        if self.by_term.is_empty() {
            return;
        }
        // Each class is listed under one term, so it is noted once if each term is looked up once.
        let new = terms(event.new.as_deref());
        let old = terms(event.old.as_deref());
        for term in new.iter().chain(old.iter().filter(|term| !new.contains(term))) {
            if let Some(classes) = self.by_term.get(term) {
                note(classes);
            }
        }
    }

    /// Drops what the history has dropped, and classes that have been without watches for a while.
    pub(super) fn sweep(&mut self, history_first: u64, now: Instant) {
        let mut abandoned = Vec::new();
        for class in self.by_identity.values() {
            class.trim(history_first);
            if class.is_abandoned(now) {
                abandoned.push(Arc::clone(class));
            }
        }
        for class in abandoned {
            self.by_identity.remove(class.selection.identity());
            self.place(&class.selection)
                .retain(|other| !Arc::ptr_eq(other, &class));
        }
        self.by_key.retain(|_, classes| !classes.is_empty());
        self.by_name.retain(|_, classes| !classes.is_empty());
        self.by_term.retain(|_, classes| !classes.is_empty());
        self.by_namespace.retain(|_, classes| !classes.is_empty());
    }

    /// Starts over after a gap: cursors before `position` have missed events. Wakes no watch.
    pub(super) fn restart(&mut self, position: u64) {
        self.matched = position;
        for class in self.by_identity.values() {
            class.restart(position);
        }
    }

    /// Wakes every watch.
    pub(super) fn wake_all(&self) {
        self.by_identity.values().for_each(|class| class.wake_now());
    }

    pub(super) fn count(&self) -> usize {
        self.by_identity.len()
    }

    /// The size of logs and packed buffers, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let logs = self.by_identity.values().map(|class| class.bytes());
        logs.sum::<u64>() + self.chunk_bytes.load(Ordering::Relaxed)
    }
}

fn terms(object: Option<&CachedObject>) -> &[Term] {
    object.map_or(&[], CachedObject::terms)
}
