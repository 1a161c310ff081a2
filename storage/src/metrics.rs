//! The metrics of a store.
//!
//! [`Metrics::register`] adds them to the server's registry, with the prefix `drydock_storage`.

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

/// The label of how transactions ended: `committed`, `conflict`, `refused`, `unknown`, `busy`, `full`.
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
    /// Bytes of all values at which nothing larger is taken; 0 = no limit.
    pub object_bytes_limit: Gauge,
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
    /// Time of one sync of the log, with the write it covers, in seconds.
    pub sync_seconds: Histogram,
    /// Time spent waiting for the engine to take writes again, in seconds.
    pub stalls_seconds: Counter<f64, AtomicU64>,
    /// Bytes written to the log.
    pub wal_bytes: Counter,
    /// Starts that found a torn, unacknowledged end of the log.
    pub recovered_tail: Counter,
    /// Records that failed their checksum.
    pub checksum_failures: Counter,
    /// Those of them that the check of all values found.
    pub value_check_failures: Counter,
    /// When all values were last checked by this process, in seconds since 1970; 0 = not yet.
    pub values_checked_seconds: Gauge,
    /// Bytes that wait for compaction of the engine.
    pub pending_compaction_bytes: Gauge,
    /// Bytes a second the engine slows writes down to; 0 = it does not.
    pub delayed_write_rate: Gauge,
    /// 1 while the engine takes no writes.
    pub write_stopped: Gauge,
    /// Time to let go of history, from the wish to its end, in seconds. Rounds that found nothing do not count.
    pub compaction_seconds: Histogram,
    /// Rounds that wanted to let go of history and could not.
    pub compactions_skipped: Counter,
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
            object_bytes_limit: Gauge::default(),
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
            value_check_failures: Counter::default(),
            values_checked_seconds: Gauge::default(),
            pending_compaction_bytes: Gauge::default(),
            delayed_write_rate: Gauge::default(),
            write_stopped: Gauge::default(),
            compaction_seconds: seconds(),
            compactions_skipped: Counter::default(),
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
        self.register_gauges(registry);
        self.register_counters(registry);
        self.register_times(registry);
    }

    fn register_gauges(&self, registry: &mut Registry) {
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
                "object_bytes_limit",
                "Bytes of all values at which nothing larger is taken, 0 if there is no limit",
                &self.object_bytes_limit,
            ),
            (
                "disk_free_bytes",
                "Free bytes of the file system",
                &self.disk_free_bytes,
            ),
            (
                "pending_compaction_bytes",
                "Bytes that wait for compaction of the engine",
                &self.pending_compaction_bytes,
            ),
            (
                "delayed_write_rate",
                "Bytes a second the engine slows writes down to, 0 if it does not",
                &self.delayed_write_rate,
            ),
            (
                "write_stopped",
                "1 while the engine takes no writes",
                &self.write_stopped,
            ),
            ("health", "0 ready, 1 read-only, 2 failed", &self.health),
            ("durability", "0 strict, 1 relaxed", &self.durability),
            ("watches", "Open watches", &self.watches),
            (
                "values_checked_timestamp_seconds",
                "When all values were last checked, 0 if not since the start",
                &self.values_checked_seconds,
            ),
        ];
        for (name, help, gauge) in gauges {
            registry.register(name, help, gauge.clone());
        }
        registry.register(
            "commit_queue",
            "What waits for the commit thread",
            self.commit_queue.clone(),
        );
    }

    fn register_counters(&self, registry: &mut Registry) {
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
            (
                "value_check_failures",
                "Records that the check of all values found to fail their checksum",
                &self.value_check_failures,
            ),
            ("replays", "Reads of history from disk for watches", &self.replays),
            (
                "compactions_skipped",
                "Rounds that wanted to let go of history and could not",
                &self.compactions_skipped,
            ),
        ];
        for (name, help, counter) in counters {
            registry.register(name, help, counter.clone());
        }
        registry.register(
            "stalls_seconds",
            "Time spent waiting for the engine",
            self.stalls_seconds.clone(),
        );
        registry.register("commits", "Transactions by how they ended", self.commits.clone());
    }

    fn register_times(&self, registry: &mut Registry) {
        let histograms = [
            (
                "commit_batch_size",
                "Writes per synced batch",
                &self.commit_batch_size,
            ),
            (
                "sync_seconds",
                "Time of one sync of the log, with the write it covers",
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
            "commit_seconds",
            "Where a commit's time goes",
            self.commit_seconds.clone(),
        );
    }
}

/// Counts how transactions end. Handles for the frequent outcomes, so that no write looks them up.
pub(crate) struct CommitCounters {
    committed: Counter,
    conflict: Counter,
    all: Family<EndedAs, Counter>,
    conflicts: Counter,
}

impl CommitCounters {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let handle = |outcome: &'static str| metrics.commits.get_or_create(&EndedAs { outcome }).clone();
        Self {
            committed: handle("committed"),
            conflict: handle("conflict"),
            all: metrics.commits.clone(),
            conflicts: metrics.conflicts.clone(),
        }
    }

    /// Counts a transaction that ended with this outcome.
    pub(crate) fn count(&self, outcome: &'static str) {
        match outcome {
            "committed" => self.committed.inc(),
            "conflict" => {
                self.conflicts.inc();
                self.conflict.inc()
            }
            _ => self.all.get_or_create(&EndedAs { outcome }).inc(),
        };
    }
}

/// A count as the value of a gauge; counts stay far below its limit.
pub(crate) fn gauge_value(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dashboards_find_the_names_they_know() {
        let (metrics, mut registry) = (Metrics::default(), Registry::default());
        metrics.register(&mut registry);
        drop(metrics.commit_queue.get_or_create(&Unit { unit: "writes" }));
        let outcome = "committed";
        drop(metrics.commits.get_or_create(&EndedAs { outcome }));
        drop(metrics.commit_seconds.get_or_create(&Stage { stage: "queue" }));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let known = [
            "revision 0",
            "listable_from 0",
            "watchable_from 0",
            "window_seconds 0",
            "objects 0",
            "object_bytes 0",
            "object_bytes_limit 0",
            "disk_free_bytes 0",
            "pending_compaction_bytes 0",
            "delayed_write_rate 0",
            "write_stopped 0",
            "health 0",
            "durability 0",
            "watches 0",
            "values_checked_timestamp_seconds 0",
            "commit_queue{unit=\"writes\"} 0",
            "conflicts_total 0",
            "wal_bytes_total 0",
            "recovered_tail_total 0",
            "checksum_failures_total 0",
            "value_check_failures_total 0",
            "replays_total 0",
            "compactions_skipped_total 0",
            "stalls_seconds_total 0.0",
            "commits_total{outcome=\"committed\"} 0",
            "commit_batch_size_count 0",
            "sync_seconds_count 0",
            "compaction_seconds_count 0",
            "commit_seconds_count{stage=\"queue\"} 0",
        ];
        for line in known {
            let line = format!("drydock_storage_{line}\n");
            assert!(text.contains(&line), "{line} is missing in\n{text}");
        }
        let families = text.lines().filter(|line| line.starts_with("# TYPE"));
        assert_eq!(families.count(), known.len(), "a metric is not in the list");
    }
}
