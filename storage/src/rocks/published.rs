//! Published state: what readers see.
//!
//! The index, the newest revision and the tail of events change together, once per batch, by the commit thread. Housekeeping
//! replaces values that did not open before. What is published is durable.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{RwLock, RwLockReadGuard};

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::watch;

use super::index::{Index, Slot};
use super::tail::{Following, Tail};
use crate::metrics::{Metrics, gauge_value};
use crate::{Event, Key, Revision, sync};

/// The published state of a store.
pub(crate) struct Published {
    index: RwLock<Index>,
    /// The revision of `index`; changes while that is held for writing.
    current: AtomicU64,
    tail: Tail,
    gauges: Gauges,
}

struct Gauges {
    revision: Gauge,
    objects: Gauge,
    object_bytes: Gauge,
}

impl Gauges {
    fn set(&self, revision: Revision, (objects, object_bytes): (u64, u64)) {
        self.revision.set(gauge_value(revision.0));
        self.objects.set(gauge_value(objects));
        self.object_bytes.set(gauge_value(object_bytes));
    }
}

impl Published {
    /// Publishes what a start found. `recent` holds the newest events.
    pub(crate) fn new(index: Index, recent: Vec<Event>, metrics: &Metrics) -> Self {
        let gauges = Gauges {
            revision: metrics.revision.clone(),
            objects: metrics.objects.clone(),
            object_bytes: metrics.object_bytes.clone(),
        };
        let revision = index.revision();
        gauges.set(revision, index.size());
        Self {
            current: AtomicU64::new(revision.0),
            tail: Tail::with(recent, revision),
            index: RwLock::new(index),
            gauges,
        }
    }

    /// The newest entries, with their revision. Not to be held for long: the commit thread waits.
    pub(crate) fn index(&self) -> RwLockReadGuard<'_, Index> {
        sync::read(&self.index)
    }

    /// The newest revision.
    pub(crate) fn current(&self) -> Revision {
        Revision(self.current.load(Ordering::Acquire))
    }

    /// Publishes a durable batch. Called by the commit thread.
    pub(crate) fn apply(
        &self,
        changed: impl IntoIterator<Item = (Key, Option<Slot>)>,
        events: Vec<Event>,
        revision: Revision,
    ) {
        let size = {
            let mut index = sync::write(&self.index);
            index.apply(changed, revision);
            self.current.store(revision.0, Ordering::Release);
            index.size()
        };
        self.tail.publish(events, revision);
        self.gauges.set(revision, size);
    }

    /// Replaces values that did not open before by what they turned out to be. A key that was written meanwhile keeps what was
    /// written. Called by housekeeping.
    pub(crate) fn reopen(&self, opened: impl IntoIterator<Item = (Key, Slot)>) {
        let (revision, size) = {
            let mut index = sync::write(&self.index);
            for (key, slot) in opened {
                let is_same =
                    matches!(index.slot(&key), Some(Slot::Sealed(place, _)) if *place == slot.place());
                if is_same {
                    index.set(key, Some(slot));
                }
            }
            (index.revision(), index.size())
        };
        self.gauges.set(revision, size);
    }

    /// The events after `seen`.
    pub(crate) fn following(&self, seen: Revision) -> Following {
        self.tail.read(seen)
    }

    /// Changes whenever a watch may find something new.
    pub(crate) fn pulse(&self) -> watch::Receiver<u64> {
        self.tail.pulse()
    }

    /// Makes every watch look again.
    pub(crate) fn wake_watches(&self) {
        self.tail.tick();
    }

    /// Asks every watch to report its progress.
    pub(crate) fn request_progress(&self) {
        self.tail.request_progress();
    }

    /// How often progress was requested.
    pub(crate) fn progress_requests(&self) -> u64 {
        self.tail.progress_requests()
    }

    /// Ends all watches.
    pub(crate) fn end_watches(&self) {
        self.tail.close();
    }
}
