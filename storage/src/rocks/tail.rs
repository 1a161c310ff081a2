//! The newest events in memory, bounded by count and bytes.
//!
//! The commit thread appends and never waits. Readers are cursors; a reader whose next event has been dropped from here
//! reads history from disk.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::watch;

use crate::sync::lock;
use crate::{Entry, Event, Revision};

/// How many revisions are kept at most.
pub(crate) const MAX_REVISIONS: usize = 8192;
/// How many bytes of values are kept at most.
pub(crate) const MAX_BYTES: usize = 32 << 20;
/// How many revisions, and about how many bytes, a reader takes at once.
const READ_REVISIONS: usize = 256;
const READ_BYTES: usize = 1 << 20;

/// What an event takes in memory.
fn size(event: &Event) -> usize {
    let bytes = |entry: &Option<Entry>| entry.as_ref().map_or(0, |entry| entry.value.bytes.len());
    size_of::<Event>() + bytes(&event.new) + bytes(&event.old)
}

/// What follows a reader's position.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Following {
    /// The next events, as many as one read returns; none if the reader is at the given revision, the newest.
    Events(Vec<Arc<Event>>, Revision),
    /// The next event is no longer in memory; everything up to the given revision is on disk.
    OnDisk(Revision),
    /// The store is closed.
    Closed,
}

#[derive(Debug)]
struct Ring {
    /// One event per revision, without gaps.
    events: VecDeque<Arc<Event>>,
    bytes: usize,
    /// The newest published revision.
    current: Revision,
    is_closed: bool,
}

/// The newest events, and a signal that there are more.
#[derive(Debug)]
pub(crate) struct Tail {
    ring: Mutex<Ring>,
    pulse: watch::Sender<u64>,
    progress_requests: AtomicU64,
}

impl Tail {
    pub(crate) fn at(current: Revision) -> Self {
        Self {
            ring: Mutex::new(Ring {
                events: VecDeque::new(),
                bytes: 0,
                current,
                is_closed: false,
            }),
            pulse: watch::Sender::new(0),
            progress_requests: AtomicU64::new(0),
        }
    }

    /// A tail that begins with events from before this process.
    pub(crate) fn with(events: Vec<Event>, current: Revision) -> Self {
        let tail = Self::at(current);
        tail.publish(events, current);
        tail
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        lock(&self.ring)
    }

    /// Appends the events of a batch, which must follow the newest one, and wakes readers.
    pub(crate) fn publish(&self, events: Vec<Event>, current: Revision) {
        let mut ring = self.lock();
        for event in events {
            ring.bytes += size(&event);
            ring.events.push_back(Arc::new(event));
        }
        ring.current = current;
        while ring.events.len() > MAX_REVISIONS || ring.bytes > MAX_BYTES {
            let Some(oldest) = ring.events.pop_front() else {
                break;
            };
            ring.bytes -= size(&oldest);
        }
        drop(ring);
        self.tick();
    }

    /// Ends all readers.
    pub(crate) fn close(&self) {
        let mut ring = self.lock();
        ring.is_closed = true;
        ring.events.clear();
        drop(ring);
        self.tick();
    }

    /// Wakes readers.
    pub(crate) fn tick(&self) {
        self.pulse.send_modify(|tick| *tick = tick.wrapping_add(1));
    }

    /// Changes whenever a reader may find something new.
    pub(crate) fn pulse(&self) -> watch::Receiver<u64> {
        self.pulse.subscribe()
    }

    /// Asks every reader to report its progress.
    pub(crate) fn request_progress(&self) {
        self.progress_requests.fetch_add(1, Ordering::Relaxed);
        self.tick();
    }

    /// How often progress was requested.
    pub(crate) fn progress_requests(&self) -> u64 {
        self.progress_requests.load(Ordering::Relaxed)
    }

    /// The events after `seen`.
    pub(crate) fn read(&self, seen: Revision) -> Following {
        let ring = self.lock();
        if ring.is_closed {
            return Following::Closed;
        }
        if seen >= ring.current {
            return Following::Events(Vec::new(), ring.current);
        }
        let oldest = ring.events.front().map(|event| event.revision);
        let skipped = oldest.and_then(|oldest| (seen.next() >= oldest).then(|| seen.next().0 - oldest.0));
        let Some(skipped) = skipped.and_then(|skipped| usize::try_from(skipped).ok()) else {
            return Following::OnDisk(ring.current);
        };
        let mut taken = Vec::new();
        let mut bytes = 0;
        for event in ring.events.iter().skip(skipped).take(READ_REVISIONS) {
            bytes += size(event);
            taken.push(Arc::clone(event));
            if bytes >= READ_BYTES {
                break;
            }
        }
        Following::Events(taken, ring.current)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{EventKind, Key, Value};

    fn event(revision: u64, bytes: usize) -> Event {
        let entry = Entry {
            value: Value {
                bytes: Bytes::from(vec![0; bytes]),
                form: "v1".into(),
                splice_offset: 0,
            },
            created: Revision(revision),
            modified: Revision(revision),
        };
        Event {
            revision: Revision(revision),
            key: Key::new("g", "r", "", "n").unwrap(),
            kind: EventKind::Created,
            new: Some(entry),
            old: None,
        }
    }

    fn revisions(following: Following) -> Vec<u64> {
        match following {
            Following::Events(events, _) => events.iter().map(|event| event.revision.0).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_reader_receives_the_events_after_its_position() {
        let tail = Tail::at(Revision(5));
        assert_eq!(tail.read(Revision(4)), Following::OnDisk(Revision(5)));
        assert_eq!(revisions(tail.read(Revision(5))), [0_u64; 0]);
        tail.publish((6..9).map(|at| event(at, 1)).collect(), Revision(8));
        assert_eq!(revisions(tail.read(Revision(5))), [6, 7, 8]);
        assert_eq!(revisions(tail.read(Revision(7))), [8]);
        assert_eq!(tail.read(Revision(4)), Following::OnDisk(Revision(8)));
        tail.close();
        assert_eq!(tail.read(Revision(8)), Following::Closed);
    }

    #[test]
    fn the_ring_is_bounded_in_revisions_and_bytes() {
        let tail = Tail::at(Revision(1));
        let last = MAX_REVISIONS as u64 + 2;
        tail.publish((2..=last).map(|at| event(at, 1)).collect(), Revision(last));
        assert_eq!(tail.read(Revision(1)), Following::OnDisk(Revision(last)));
        assert_eq!(revisions(tail.read(Revision(2)))[0], 3);
        tail.publish(vec![event(last + 1, MAX_BYTES)], Revision(last + 1));
        assert_eq!(tail.read(Revision(last)), Following::OnDisk(Revision(last + 1)));
    }

    #[test]
    fn one_read_is_bounded() {
        let tail = Tail::at(Revision(1));
        tail.publish(
            (2..12).map(|at| event(at, READ_BYTES / 2)).collect(),
            Revision(11),
        );
        assert_eq!(revisions(tail.read(Revision(1))), [2, 3]);
    }
}
