//! Retention of history: the floors, and how far they may rise.
//!
//! The *published* floors tell readers what they can still list and watch. They rise before history is dropped, so that no
//! reader starts below them. The *durable* floor follows once they are on disk; only files below it are removed, since a
//! start after a crash may find the floors as they were.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use prometheus_client::metrics::gauge::Gauge;

use super::timeline::{Keep, Timeline};
use crate::clock::{Clock, Steady};
use crate::metrics::{Metrics, gauge_value};
use crate::sync::lock;
use crate::{Floors, Options, Revision};

/// The floors of a store and the times of its revisions.
pub(crate) struct Retention {
    keep: Keep,
    /// Where history begins: no record belongs to this revision.
    origin: Revision,
    listable_from: AtomicU64,
    watchable_from: AtomicU64,
    durable_floor: AtomicU64,
    timeline: Mutex<Timeline>,
    clock: Arc<dyn Clock>,
    steady: Steady,
    gauges: Gauges,
}

struct Gauges {
    listable_from: Gauge,
    watchable_from: Gauge,
    window_seconds: Gauge,
}

impl Retention {
    /// Begins with the floors that a start found on disk.
    pub(crate) fn new(
        options: &Options,
        origin: Revision,
        floors: Floors,
        mut timeline: Timeline,
        metrics: &Metrics,
    ) -> Self {
        let steady = Steady::start(&*options.clock);
        timeline.begin(steady.now_ms(&*options.clock));
        let retention = Self {
            keep: Keep {
                window: options.window,
                minimum_window: options.minimum_window,
                watchable_revisions: options.watchable_revisions,
                history_bytes: options.history_bytes,
            },
            origin,
            listable_from: AtomicU64::new(floors.listable_from.0),
            watchable_from: AtomicU64::new(floors.watchable_from.0),
            durable_floor: AtomicU64::new(floors.watchable_from.0),
            timeline: Mutex::new(timeline),
            clock: Arc::clone(&options.clock),
            steady,
            gauges: Gauges {
                listable_from: metrics.listable_from.clone(),
                watchable_from: metrics.watchable_from.clone(),
                window_seconds: metrics.window_seconds.clone(),
            },
        };
        retention.observe_floors();
        retention.observe_window();
        retention
    }

    /// Milliseconds that never go back.
    pub(crate) fn now_ms(&self) -> u64 {
        self.steady.now_ms(&*self.clock)
    }

    /// Where history begins: no record belongs to this revision.
    pub(crate) fn origin(&self) -> Revision {
        self.origin
    }

    /// The published floors.
    pub(crate) fn floors(&self) -> Floors {
        Floors {
            listable_from: Revision(self.listable_from.load(Ordering::Acquire)),
            watchable_from: Revision(self.watchable_from.load(Ordering::Acquire)),
        }
    }

    /// Raises the published floors, and returns them. Called by the commit thread.
    pub(crate) fn raise(&self, wanted: Floors) -> Floors {
        self.listable_from
            .fetch_max(wanted.listable_from.0, Ordering::AcqRel);
        self.watchable_from
            .fetch_max(wanted.watchable_from.0, Ordering::AcqRel);
        self.observe_floors();
        self.floors()
    }

    /// The watchable floor that no crash reverts: history below it may be removed.
    pub(crate) fn durable_floor(&self) -> Revision {
        Revision(self.durable_floor.load(Ordering::Acquire))
    }

    /// Called by the commit thread when raised floors are on disk.
    pub(crate) fn set_durable_floor(&self, floor: Revision) {
        self.durable_floor.fetch_max(floor.0, Ordering::AcqRel);
    }

    /// Notes that history up to `revision` grew by `bytes` just now.
    pub(crate) fn note(&self, revision: Revision, bytes: u64) {
        let now_ms = self.now_ms();
        lock(&self.timeline).note(now_ms, revision, bytes);
    }

    /// The floors that history should have now; none if it has them. Where room is short only the minimum window is kept.
    pub(crate) fn due(&self, current: Revision, room_is_short: bool) -> Option<Floors> {
        let mut keep = self.keep;
        if room_is_short {
            keep.window = keep.window.min(keep.minimum_window);
            keep.watchable_revisions = 0;
        }
        let floors = self.floors();
        let wanted = lock(&self.timeline).floors(self.now_ms(), current, floors, keep);
        if wanted == floors {
            self.trim();
            return None;
        }
        Some(wanted)
    }

    /// Forgets the times of revisions below the floors.
    pub(crate) fn trim(&self) {
        lock(&self.timeline).trim(self.floors());
    }

    /// Sets the metric of how far back exact lists reach.
    pub(crate) fn observe_window(&self) {
        let window = lock(&self.timeline).window_seconds(self.now_ms(), self.floors());
        self.gauges.window_seconds.set(gauge_value(window));
    }

    fn observe_floors(&self) {
        let floors = self.floors();
        self.gauges.listable_from.set(gauge_value(floors.listable_from.0));
        self.gauges
            .watchable_from
            .set(gauge_value(floors.watchable_from.0));
    }
}
