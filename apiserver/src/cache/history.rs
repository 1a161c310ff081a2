//! The event history: recent events, for watches that are behind and for lists of past states.
//!
//! A log of events addressed by position, in the order of revisions. It is bounded in bytes and in time; the oldest
//! events are dropped first. The store keeps them longer.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use drydock_storage::Revision;
use tokio::time::Instant;

use super::encode_once::{EncodeError, Encodings, EventEncoder, WatchKind};
use super::object::CachedObject;
use super::selection::Selection;

/// The size of an event without payloads: the event, its log entries, the attributes of its old object.
const EVENT_BYTES: u64 = 384;

/// One change of one object.
#[derive(Debug)]
pub(super) struct CacheEvent {
    pub(super) position: u64,
    pub(super) revision: Revision,
    pub(super) old: Option<Arc<CachedObject>>,
    pub(super) new: Option<Arc<CachedObject>>,
    /// When it entered the cache.
    pub(super) at: Instant,
    encodings: Encodings,
}

impl CacheEvent {
    /// The object after the change, or before if it was deleted.
    pub(super) fn object(&self) -> Option<&Arc<CachedObject>> {
        self.new.as_ref().or(self.old.as_ref())
    }

    /// The kind of the event as seen through `selection`; none when it does not concern it.
    pub(super) fn kind_for(&self, selection: &Selection) -> Option<WatchKind> {
        kind_for(selection, self.old.as_deref(), self.new.as_deref())
    }

    /// The object to send: for a deletion its last state.
    fn shown(&self, kind: WatchKind) -> Option<&CachedObject> {
        match kind {
            WatchKind::Added | WatchKind::Modified => self.new.as_deref(),
            WatchKind::Deleted => self.old.as_deref(),
        }
    }

    /// The frame for `encoder`, and whether it was encoded before. A deletion shows the revision of the event.
    pub(super) fn frame(
        &self,
        kind: WatchKind,
        encoder: &dyn EventEncoder,
    ) -> (Result<Bytes, EncodeError>, bool) {
        self.encodings.get(encoder.id(), kind, || {
            let mut out = BytesMut::new();
            if let Some(object) = self.shown(kind) {
                encoder.event(kind, object, self.revision, &mut out)?;
            }
            Ok(out.freeze())
        })
    }

    fn bytes(&self) -> u64 {
        EVENT_BYTES + self.old.as_ref().map_or(0, |old| old.payload_bytes())
    }
}

/// The kind of a change as seen through a selection: by whether the old and the new state match.
pub(super) fn kind_for(
    selection: &Selection,
    old: Option<&CachedObject>,
    new: Option<&CachedObject>,
) -> Option<WatchKind> {
    let matches = |object: Option<&CachedObject>| object.is_some_and(|object| selection.matches(object));
    match (matches(old), matches(new)) {
        (false, true) => Some(WatchKind::Added),
        (true, true) => Some(WatchKind::Modified),
        (true, false) => Some(WatchKind::Deleted),
        (false, false) => None,
    }
}

/// For some frames: when their first event of each kind entered the cache.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Entered([Option<Instant>; 3]);

impl Entered {
    pub(super) fn note(&mut self, kind: WatchKind, at: Instant) {
        let [added, modified, deleted] = &mut self.0;
        let of_kind = match kind {
            WatchKind::Added => added,
            WatchKind::Modified => modified,
            WatchKind::Deleted => deleted,
        };
        of_kind.get_or_insert(at);
    }

    /// The kinds that occur, and when the first event of each entered.
    pub(super) fn iter(&self) -> impl Iterator<Item = (WatchKind, Instant)> {
        let kinds = [WatchKind::Added, WatchKind::Modified, WatchKind::Deleted];
        kinds
            .into_iter()
            .zip(self.0)
            .filter_map(|(kind, at)| Some((kind, at?)))
    }
}

/// The event log of a resource. See the module.
#[derive(Debug)]
pub(super) struct History {
    log: RwLock<Log>,
    /// Bytes of the encoded frames of all events in memory.
    encoded: Arc<AtomicU64>,
    budget: u64,
    window: Duration,
}

#[derive(Debug)]
struct Log {
    /// The position of the first event held.
    first: u64,
    events: VecDeque<Arc<CacheEvent>>,
    bytes: u64,
    /// Every event after this revision is held.
    floor: Revision,
    /// When `floor` was the newest revision: a client that was up to date then, or later, can resume.
    floor_at: Instant,
}

impl Log {
    fn end(&self) -> u64 {
        self.first + u64::try_from(self.events.len()).unwrap_or(u64::MAX)
    }

    fn between(&self, after: Revision, through: Revision) -> Option<Range<usize>> {
        let index = |revision| self.events.partition_point(|event| event.revision <= revision);
        (after >= self.floor && through >= after).then(|| index(after)..index(through))
    }

    fn index(&self, position: u64) -> Option<usize> {
        usize::try_from(position.checked_sub(self.first)?).ok()
    }
}

impl History {
    pub(super) fn new(budget: u64, window: Duration) -> Self {
        Self {
            log: RwLock::new(Log {
                first: 0,
                events: VecDeque::new(),
                bytes: 0,
                floor: Revision(0),
                floor_at: Instant::now(),
            }),
            encoded: Arc::default(),
            budget,
            window,
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Log> {
        self.log.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts over after a gap: no event up to `floor` is held. Returns the position of the next event, which no
    /// event had before.
    pub(super) fn restart(&self, floor: Revision) -> u64 {
        let mut log = self.log.write().unwrap_or_else(PoisonError::into_inner);
        let next = log.end() + 1;
        *log = Log {
            first: next,
            events: VecDeque::new(),
            bytes: 0,
            floor,
            floor_at: Instant::now(),
        };
        next
    }

    /// An event to be appended next at `position`.
    pub(super) fn event(
        &self,
        position: u64,
        revision: Revision,
        old: Option<Arc<CachedObject>>,
        new: Option<Arc<CachedObject>>,
        at: Instant,
    ) -> Arc<CacheEvent> {
        Arc::new(CacheEvent {
            position,
            revision,
            old,
            new,
            at,
            encodings: Encodings::new(Arc::clone(&self.encoded)),
        })
    }

    /// Appends events in order, and drops the oldest ones while the log is over its budget.
    pub(super) fn append(&self, events: &[Arc<CacheEvent>]) {
        let gone = {
            let mut log = self.log.write().unwrap_or_else(PoisonError::into_inner);
            log.bytes += events.iter().map(|event| event.bytes()).sum::<u64>();
            log.events.extend(events.iter().cloned());
            self.shrink(&mut log, None)
        };
        // Freed without the lock: it takes a while.
        drop(gone);
    }

    /// Drops events that are older than the window, and the oldest ones while the log is over its budget.
    pub(super) fn trim(&self, now: Instant) {
        let gone = {
            let mut log = self.log.write().unwrap_or_else(PoisonError::into_inner);
            self.shrink(&mut log, Some(now))
        };
        drop(gone);
    }

    fn shrink(&self, log: &mut Log, now: Option<Instant>) -> Vec<Arc<CacheEvent>> {
        let mut gone = Vec::new();
        let mut encoded = self.encoded.load(Ordering::Relaxed);
        while let Some(oldest) = log.events.front() {
            let is_old = now.is_some_and(|now| now.duration_since(oldest.at) >= self.window);
            if !is_old && log.bytes + encoded <= self.budget {
                break;
            }
            let Some(event) = log.events.pop_front() else {
                break;
            };
            log.first += 1;
            log.bytes -= event.bytes();
            encoded = encoded.saturating_sub(event.encodings.bytes());
            log.floor = event.revision;
            log.floor_at = event.at;
            gone.push(event);
        }
        gone
    }

    /// Up to `max` events from `position` on, but before `end`; none when the first of them is gone.
    pub(super) fn range(&self, position: u64, end: u64, max: usize) -> Option<Vec<Arc<CacheEvent>>> {
        let log = self.read();
        let start = log.index(position)?;
        let end = log.index(end.min(log.end()))?.max(start);
        Some(
            log.events
                .range(start..end.min(start.saturating_add(max)))
                .cloned()
                .collect(),
        )
    }

    /// The events at `positions`, ascending, up to the first that is not held.
    pub(super) fn at(&self, positions: impl Iterator<Item = u64>) -> Vec<Arc<CacheEvent>> {
        let log = self.read();
        positions
            .map_while(|position| log.events.get(log.index(position)?).cloned())
            .collect()
    }

    /// The position of the first event after `revision`; none when some of those are gone.
    pub(super) fn position_after(&self, revision: Revision) -> Option<u64> {
        let log = self.read();
        if revision < log.floor {
            return None;
        }
        let index = log.events.partition_point(|event| event.revision <= revision);
        Some(log.first + u64::try_from(index).unwrap_or(u64::MAX))
    }

    /// The events after one revision and up to another; none when some of them are gone.
    pub(super) fn between(&self, after: Revision, through: Revision) -> Option<Vec<Arc<CacheEvent>>> {
        let log = self.read();
        Some(log.events.range(log.between(after, through)?).cloned().collect())
    }

    /// How many events [`History::between`] would return.
    pub(super) fn count_between(&self, after: Revision, through: Revision) -> Option<usize> {
        self.read().between(after, through).map(|range| range.len())
    }

    /// The position of the oldest event held.
    pub(super) fn first(&self) -> u64 {
        self.read().first
    }

    /// Every event after this revision is held.
    pub(super) fn floor(&self) -> Revision {
        self.read().floor
    }

    /// The size of the log, with encoded frames.
    pub(super) fn bytes(&self) -> u64 {
        self.read().bytes + self.encoded.load(Ordering::Relaxed)
    }

    /// How far back a watch can be resumed from memory. Grows as long as no event is dropped, even if none is added.
    pub(super) fn window(&self, now: Instant) -> Duration {
        now.duration_since(self.read().floor_at)
    }
}
