//! The parts of an open store, each with its own state and interface.

use std::path::PathBuf;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use super::capacity::Capacity;
use super::column_families::{Engine, Pressure};
use super::index::Index;
use super::lifecycle::Lifecycle;
use super::mark::CommitMark;
use super::message::Message;
use super::past_reads::PastReads;
use super::published::Published;
use super::queue::{BATCH, Queue, Weight};
use super::replays::Replays;
use super::retention::Retention;
use super::timeline::Timeline;
use crate::clock::Clock;
use crate::metrics::{CommitCounters, Metrics, gauge_value};
use crate::options::{Durability, FreeSpace, Options};
use crate::record::Records;
use crate::sync::lock;
use crate::{Event, Floors, Revision};

/// The parts of an open store. Shared by its threads, its handles and its watches.
pub(crate) struct Parts {
    pub(crate) settings: Settings,
    pub(crate) records: Records,
    /// Handoff to the commit thread.
    pub(crate) queue: Queue<Message>,
    /// Index, newest revision and recent events.
    pub(crate) published: Published,
    /// Floors and times of history.
    pub(crate) retention: Retention,
    /// Health and the engine.
    pub(crate) lifecycle: Lifecycle,
    /// Free disk space and the limit for objects.
    pub(crate) capacity: Capacity,
    pub(crate) mark: CommitMark,
    pub(crate) past_reads: PastReads,
    pub(crate) replays: Replays,
    pub(crate) exclusive: Exclusive,
    pub(crate) reopening: Reopening,
    pub(crate) metrics: Metrics,
    pub(crate) counters: CommitCounters,
}

/// What is known about values that did not open.
#[derive(Debug, Default)]
pub(crate) struct Reopening {
    /// The generation of the encryption at the last attempt, plus one; 0 before the first.
    pub(crate) tried: AtomicU64,
    /// Rounds of housekeeping since the last attempt.
    pub(crate) rounds: AtomicU64,
    /// Rounds from the last attempt to the next one.
    pub(crate) pause: AtomicU64,
}

/// What does not change while a store is open.
pub(crate) struct Settings {
    pub(crate) folder: PathBuf,
    pub(crate) durability: Durability,
    pub(crate) check_every: Duration,
    pub(crate) clock: Arc<dyn Clock>,
}

/// What a start found on disk.
pub(crate) struct Found {
    pub(crate) index: Index,
    /// The newest events.
    pub(crate) recent: Vec<Event>,
    pub(crate) timeline: Timeline,
    pub(crate) floors: Floors,
    pub(crate) origin: Revision,
    pub(crate) space: FreeSpace,
}

impl Parts {
    pub(crate) fn new(
        options: Options,
        records: Records,
        engine: Arc<Engine>,
        mark: CommitMark,
        found: Found,
    ) -> Self {
        let metrics = Metrics::default();
        metrics
            .durability
            .set(i64::from(options.durability != Durability::Strict));
        let limit = Weight {
            writes: options.queue_writes,
            bytes: options.queue_bytes,
        };
        Self {
            records,
            queue: Queue::new(limit, BATCH, Arc::clone(&options.clock), &metrics),
            published: Published::new(found.index, found.recent, &metrics),
            retention: Retention::new(&options, found.origin, found.floors, found.timeline, &metrics),
            lifecycle: Lifecycle::new(Some(engine), metrics.health.clone()),
            capacity: Capacity::new(&options, found.space, &metrics),
            mark,
            past_reads: PastReads::new(),
            replays: Replays::new(),
            exclusive: Exclusive::default(),
            reopening: Reopening::default(),
            counters: CommitCounters::new(&metrics),
            metrics,
            settings: Settings {
                folder: options.path,
                durability: options.durability,
                check_every: options.check_every,
                clock: options.clock,
            },
        }
    }

    /// Sets the metrics of compaction pressure, and returns it; none if the engine does not report it.
    pub(crate) fn observe_pressure(&self, engine: &Engine) -> Option<Pressure> {
        let pressure = engine
            .pressure()
            .inspect_err(|error| tracing::warn!(%error, "the engine does not report its compaction pressure"))
            .ok()?;
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
}

/// Operations of which one may run at a time.
#[derive(Default)]
pub(crate) struct Exclusive {
    check: Mutex<()>,
    backup: Mutex<()>,
}

impl Exclusive {
    /// Begins a check of values, whose checkpoint has one place; none if another one runs.
    pub(crate) fn try_check(&self) -> Option<MutexGuard<'_, ()>> {
        match self.check.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Waits for a running backup: two in one folder would remove each other's files.
    pub(crate) fn backup(&self) -> MutexGuard<'_, ()> {
        lock(&self.backup)
    }
}
