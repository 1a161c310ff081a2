//! What happened lately?
//!
//! The newest changes, in memory, bounded by revisions and bytes. The commit thread appends and never waits;
//! readers are cursors that take what they have not seen, and go to the disk when it is not here any more.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use crate::{Entry, Event, Revision};

/// How many revisions are kept at most.
pub(crate) const MAX_REVISIONS: usize = 8192;
/// How many bytes of values are kept at most.
pub(crate) const MAX_BYTES: usize = 32 << 20;
/// How many revisions, and about how many bytes, a reader takes at once.
const READ_REVISIONS: usize = 256;
const READ_BYTES: usize = 1 << 20;

/// All changes of one revision.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) revision: Revision,
    pub(crate) events: Vec<Event>,
}

impl Change {
    fn bytes(&self) -> usize {
        let size = |entry: &Option<Entry>| entry.as_ref().map_or(0, |entry| entry.value.bytes.len());
        self.events
            .iter()
            .map(|event| size_of::<Event>() + size(&event.new) + size(&event.old))
            .sum()
    }
}

/// What a reader finds.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// The changes that follow, as many as fit; none when the reader has seen all up to the given revision.
    Next(Vec<Arc<Change>>, Revision),
    /// They are not in memory any more; everything up to the given revision is on disk.
    Behind(Revision),
    /// The store is closed.
    Closed,
}

#[derive(Debug)]
struct Ring {
    /// Dense: each revision follows the one before.
    changes: VecDeque<Arc<Change>>,
    bytes: usize,
    /// The newest published revision.
    current: Revision,
    is_closed: bool,
}

/// The newest changes and the signal that there are more.
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
                changes: VecDeque::new(),
                bytes: 0,
                current,
                is_closed: false,
            }),
            pulse: watch::Sender::new(0),
            progress_requests: AtomicU64::new(0),
        }
    }

    /// A tail that begins with what was published before this process.
    pub(crate) fn with(changes: Vec<Change>, current: Revision) -> Self {
        let tail = Self::at(current);
        tail.publish(changes, current);
        tail
    }

    fn lock(&self) -> MutexGuard<'_, Ring> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a batch's changes, which must follow the newest one, and wakes readers.
    pub(crate) fn publish(&self, changes: Vec<Change>, current: Revision) {
        let mut ring = self.lock();
        for change in changes {
            ring.bytes += change.bytes();
            ring.changes.push_back(Arc::new(change));
        }
        ring.current = current;
        while ring.changes.len() > MAX_REVISIONS || ring.bytes > MAX_BYTES {
            let Some(oldest) = ring.changes.pop_front() else {
                break;
            };
            ring.bytes -= oldest.bytes();
        }
        drop(ring);
        self.tick();
    }

    /// Ends all readers.
    pub(crate) fn close(&self) {
        let mut ring = self.lock();
        ring.is_closed = true;
        ring.changes.clear();
        drop(ring);
        self.tick();
    }

    /// Wakes readers to look again.
    pub(crate) fn tick(&self) {
        self.pulse.send_modify(|tick| *tick = tick.wrapping_add(1));
    }

    /// Changes whenever there may be something new.
    pub(crate) fn pulse(&self) -> watch::Receiver<u64> {
        self.pulse.subscribe()
    }

    /// Asks every reader to tell how far it is.
    pub(crate) fn request_progress(&self) {
        self.progress_requests.fetch_add(1, Ordering::Relaxed);
        self.tick();
    }

    /// How often progress was asked for.
    pub(crate) fn progress_requests(&self) -> u64 {
        self.progress_requests.load(Ordering::Relaxed)
    }

    /// What follows `seen`.
    pub(crate) fn read(&self, seen: Revision) -> Read {
        let ring = self.lock();
        if ring.is_closed {
            return Read::Closed;
        }
        if seen >= ring.current {
            return Read::Next(Vec::new(), ring.current);
        }
        let oldest = ring.changes.front().map(|change| change.revision);
        let skipped = oldest.and_then(|oldest| (seen.next() >= oldest).then(|| seen.next().0 - oldest.0));
        let Some(skipped) = skipped.and_then(|skipped| usize::try_from(skipped).ok()) else {
            return Read::Behind(ring.current);
        };
        let mut taken = Vec::new();
        let mut bytes = 0;
        for change in ring.changes.iter().skip(skipped).take(READ_REVISIONS) {
            bytes += change.bytes();
            taken.push(Arc::clone(change));
            if bytes >= READ_BYTES {
                break;
            }
        }
        Read::Next(taken, ring.current)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::{EventKind, Key, Value};

    fn change(revision: u64, bytes: usize) -> Change {
        let entry = Entry {
            value: Value {
                bytes: Bytes::from(vec![0; bytes]),
                form: "v1".into(),
                splice_offset: 0,
            },
            created: Revision(revision),
            modified: Revision(revision),
        };
        let event = Event {
            key: Key::new("g", "r", "", "n").unwrap(),
            kind: EventKind::Created,
            new: Some(entry),
            old: None,
        };
        Change {
            revision: Revision(revision),
            events: vec![event],
        }
    }

    fn revisions(read: Read) -> Vec<u64> {
        match read {
            Read::Next(changes, _) => changes.iter().map(|change| change.revision.0).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_reader_takes_what_it_has_not_seen() {
        let tail = Tail::at(Revision(5));
        assert_eq!(tail.read(Revision(4)), Read::Behind(Revision(5)));
        assert_eq!(revisions(tail.read(Revision(5))), [0_u64; 0]);
        tail.publish((6..9).map(|at| change(at, 1)).collect(), Revision(8));
        assert_eq!(revisions(tail.read(Revision(5))), [6, 7, 8]);
        assert_eq!(revisions(tail.read(Revision(7))), [8]);
        assert_eq!(tail.read(Revision(4)), Read::Behind(Revision(8)));
        tail.close();
        assert_eq!(tail.read(Revision(8)), Read::Closed);
    }

    #[test]
    fn the_ring_is_bounded_in_revisions_and_bytes() {
        let tail = Tail::at(Revision(1));
        let last = MAX_REVISIONS as u64 + 2;
        tail.publish((2..=last).map(|at| change(at, 1)).collect(), Revision(last));
        assert_eq!(tail.read(Revision(1)), Read::Behind(Revision(last)));
        assert_eq!(revisions(tail.read(Revision(2)))[0], 3);
        tail.publish(vec![change(last + 1, MAX_BYTES)], Revision(last + 1));
        assert_eq!(tail.read(Revision(last)), Read::Behind(Revision(last + 1)));
    }

    #[test]
    fn a_reader_takes_a_bounded_amount() {
        let tail = Tail::at(Revision(1));
        tail.publish(
            (2..12).map(|at| change(at, READ_BYTES / 2)).collect(),
            Revision(11),
        );
        assert_eq!(revisions(tail.read(Revision(1))), [2, 3]);
    }
}
