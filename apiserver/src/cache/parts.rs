//! The parts of one cache, each with its own state. The feeder, readers and watches share them.

use drydock_storage::{Revision, Store};

use super::config::{CacheConfig, CacheLimits};
use super::error::ReadError;
use super::event_logs::EventLogs;
use super::metrics::{CheckResult, ResourceMetrics};
use super::open_watches::OpenWatches;
use super::published::Published;
use super::repairs::Repairs;
use super::replays::Replays;
use super::source::Source;
use super::termination::Termination;

/// The parts of one cache. See the module.
pub(super) struct CacheParts<S: Store> {
    /// The store below.
    pub(super) source: Source<S>,
    /// What readers see.
    pub(super) published: Published,
    /// What watches read.
    pub(super) logs: EventLogs,
    /// Where watches are.
    pub(super) watches: OpenWatches,
    /// When watches end early.
    pub(super) termination: Termination,
    /// Which watches may read the store's history.
    pub(super) replays: Replays<S::Events>,
    /// Requests to the feeder.
    pub(super) repairs: Repairs,
    pub(super) limits: CacheLimits,
    pub(super) metrics: ResourceMetrics,
}

impl<S: Store> CacheParts<S> {
    pub(super) fn new(store: S, config: CacheConfig, random: fastrand::Rng) -> Self {
        let limits = &config.limits;
        Self {
            source: Source::new(store, &config),
            published: Published::new(limits.window),
            logs: EventLogs::new(limits.history_bytes, limits.window),
            watches: OpenWatches::new(random),
            termination: Termination::new(limits.stagger),
            replays: Replays::new(limits.replays, limits.read_wait),
            repairs: Repairs::default(),
            metrics: config.metrics.of(&config.resource),
            limits: config.limits,
        }
    }

    /// Ends all watches, spread over `window`, each with a last bookmark. Watches that begin later end too.
    pub(super) fn end_watches(&self, window: std::time::Duration) {
        self.termination.shut_down(window);
        self.logs.wake_all();
    }

    /// The error of a read below the oldest revision, which is counted.
    pub(super) fn expired(&self, requested: Revision, oldest: Revision) -> ReadError {
        self.metrics.expired.inc();
        ReadError::Expired { requested, oldest }
    }

    /// Counts that the cache was found to differ from the store.
    ///
    /// # Aborts
    /// With [`CacheLimits::abort_on_difference`].
    pub(super) fn report_difference(&self) {
        self.metrics.checked(CheckResult::Different);
        if self.limits.abort_on_difference {
            tracing::error!(
                resource = self.source.resource,
                "the cache differs from the store: the process aborts"
            );
            std::process::abort();
        }
    }
}
