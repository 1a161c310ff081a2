//! What can be seen of a store from outside?
//!
//! Handles that the engine moves and [`Metrics::register`] hands to the server's registry, under the prefix
//! `drydock_storage`.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// The label of a step of a commit: `queue`, `prepare`, `sync`, `publish`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Stage {
    /// The step.
    pub stage: &'static str,
}

/// The label of how transactions ended: `committed`, `checked`, `conflict`, `refused`, `unknown`, `busy`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct EndedAs {
    /// The end.
    pub outcome: &'static str,
}

/// The label of a measure: `writes`, `bytes`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Unit {
    /// The measure.
    pub unit: &'static str,
}

/// The metrics of one store.
#[derive(Debug, Clone)]
pub struct Metrics {
    /// Newest committed revision.
    pub revision: Gauge,
    /// Oldest revision that can be listed.
    pub listable_from: Gauge,
    /// Oldest revision that can be watched from.
    pub watchable_from: Gauge,
    /// How far back exact lists really reach, in seconds.
    pub window_seconds: Gauge,
    /// Keys that hold a value.
    pub objects: Gauge,
    /// Bytes of all values, uncompressed.
    pub object_bytes: Gauge,
    /// Writes per synced batch.
    pub commit_batch_size: Histogram,
    /// Where a commit's time goes, in seconds.
    pub commit_seconds: Family<Stage, Histogram, fn() -> Histogram>,
    /// What waits for the commit thread.
    pub commit_queue: Family<Unit, Gauge>,
    /// Transactions by how they ended.
    pub commits: Family<EndedAs, Counter>,
    /// Transactions whose conditions did not hold.
    pub conflicts: Counter,
    /// Time of one write and sync of the log, in seconds.
    pub sync_seconds: Histogram,
    /// Time spent waiting for the engine to take writes again, in seconds.
    pub stalls_seconds: Counter<f64, AtomicU64>,
    /// Bytes written to the log.
    pub wal_bytes: Counter,
    /// Starts that found a torn, unacknowledged end of the log.
    pub recovered_tail: Counter,
    /// Records that failed their checksum.
    pub checksum_failures: Counter,
    /// Time to let go of history, in seconds.
    pub compaction_seconds: Histogram,
    /// Free bytes of the file system.
    pub disk_free_bytes: Gauge,
    /// 0 = ready, 1 = read-only, 2 = failed.
    pub health: Gauge,
    /// 0 = strict, 1 = relaxed.
    pub durability: Gauge,
    /// Watches that are open.
    pub watches: Gauge,
    /// Reads of history from disk for watches that fell behind.
    pub replays: Counter,
}

/// 10 us to 10 s.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.000_01, 2.0, 20))
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            revision: Gauge::default(),
            listable_from: Gauge::default(),
            watchable_from: Gauge::default(),
            window_seconds: Gauge::default(),
            objects: Gauge::default(),
            object_bytes: Gauge::default(),
            commit_batch_size: Histogram::new(exponential_buckets(1.0, 2.0, 11)),
            commit_seconds: Family::new_with_constructor(seconds),
            commit_queue: Family::default(),
            commits: Family::default(),
            conflicts: Counter::default(),
            sync_seconds: seconds(),
            stalls_seconds: Counter::default(),
            wal_bytes: Counter::default(),
            recovered_tail: Counter::default(),
            checksum_failures: Counter::default(),
            compaction_seconds: seconds(),
            disk_free_bytes: Gauge::default(),
            health: Gauge::default(),
            durability: Gauge::default(),
            watches: Gauge::default(),
            replays: Counter::default(),
        }
    }
}

impl Metrics {
    /// Makes the metrics readable under `drydock_storage_`.
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("drydock_storage");
        let gauges = [
            ("revision", "Newest committed revision", &self.revision),
            (
                "listable_from",
                "Oldest revision that can be listed",
                &self.listable_from,
            ),
            (
                "watchable_from",
                "Oldest revision that can be watched from",
                &self.watchable_from,
            ),
            (
                "window_seconds",
                "How far back exact lists reach",
                &self.window_seconds,
            ),
            ("objects", "Keys that hold a value", &self.objects),
            (
                "object_bytes",
                "Bytes of all values, uncompressed",
                &self.object_bytes,
            ),
            (
                "disk_free_bytes",
                "Free bytes of the file system",
                &self.disk_free_bytes,
            ),
            ("health", "0 ready, 1 read-only, 2 failed", &self.health),
            ("durability", "0 strict, 1 relaxed", &self.durability),
            ("watches", "Open watches", &self.watches),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        let counters = [
            (
                "conflicts",
                "Transactions whose conditions did not hold",
                &self.conflicts,
            ),
            ("wal_bytes", "Bytes written to the log", &self.wal_bytes),
            (
                "recovered_tail",
                "Starts that found a torn end of the log",
                &self.recovered_tail,
            ),
            (
                "checksum_failures",
                "Records that failed their checksum",
                &self.checksum_failures,
            ),
            ("replays", "Reads of history from disk for watches", &self.replays),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        let histograms = [
            (
                "commit_batch_size",
                "Writes per synced batch",
                &self.commit_batch_size,
            ),
            (
                "sync_seconds",
                "Time of one write and sync of the log",
                &self.sync_seconds,
            ),
            (
                "compaction_seconds",
                "Time to let go of history",
                &self.compaction_seconds,
            ),
        ];
        for (name, help, histogram) in histograms {
            registry.register(name, help, histogram.clone());
        }
        registry.register(
            "stalls_seconds",
            "Time spent waiting for the engine",
            self.stalls_seconds.clone(),
        );
        registry.register(
            "commit_seconds",
            "Where a commit's time goes",
            self.commit_seconds.clone(),
        );
        registry.register(
            "commit_queue",
            "What waits for the commit thread",
            self.commit_queue.clone(),
        );
        registry.register("commits", "Transactions by how they ended", self.commits.clone());
    }
}

/// A gauge's form of a count; counts stay far below its limit.
pub(crate) fn gauge_value(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
