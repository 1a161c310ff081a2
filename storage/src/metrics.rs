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

/// Label: the stage of a commit, `queue`, `prepare`, `sync` or `publish`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Stage {
    /// The stage.
    pub stage: &'static str,
}

/// Label: the outcome of a transaction, `committed`, `conflict`, `refused`, `unknown`, `busy`, `full`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct EndedAs {
    /// The outcome.
    pub outcome: &'static str,
}

/// Label: a unit, `writes` or `bytes`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct Unit {
    /// The unit.
    pub unit: &'static str,
}

/// 10 us to 10 s.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.000_01, 2.0, 20))
}

/// Declares the metrics, one row each: field, type, initial value, name and help text.
macro_rules! metrics {
    ($($field:ident: $type:ty = $new:expr, $name:literal, $help:literal;)+) => {
        /// The metrics of one store.
        #[derive(Debug, Clone)]
        pub struct Metrics {
            $(#[doc = $help] pub $field: $type,)+
        }

        impl Default for Metrics {
            fn default() -> Self {
                Self { $($field: $new,)+ }
            }
        }

        impl Metrics {
            /// Registers the metrics with the prefix `drydock_storage_`.
            pub fn register(&self, registry: &mut Registry) {
                let registry = registry.sub_registry_with_prefix("drydock_storage");
                $(registry.register($name, $help, self.$field.clone());)+
            }
        }
    };
}

metrics! {
    revision: Gauge = Gauge::default(), "revision", "Newest committed revision";
    listable_from: Gauge = Gauge::default(), "listable_from", "Oldest revision that can be listed";
    watchable_from: Gauge = Gauge::default(), "watchable_from", "Oldest revision that can be watched from";
    window_seconds: Gauge = Gauge::default(), "window_seconds", "How far back exact lists reach";
    objects: Gauge = Gauge::default(), "objects", "Keys that hold a value";
    object_bytes: Gauge = Gauge::default(), "object_bytes", "Bytes of all values, uncompressed";
    object_bytes_limit: Gauge = Gauge::default(), "object_bytes_limit",
        "Limit for the bytes of all values, 0 if there is none";
    disk_free_bytes: Gauge = Gauge::default(), "disk_free_bytes", "Free bytes of the file system";
    pending_compaction_bytes: Gauge = Gauge::default(), "pending_compaction_bytes",
        "Bytes that wait for compaction of the engine";
    delayed_write_rate: Gauge = Gauge::default(), "delayed_write_rate",
        "Bytes per second to which the engine slows writes down, 0 if it does not";
    write_stopped: Gauge = Gauge::default(), "write_stopped", "1 while the engine accepts no writes";
    health: Gauge = Gauge::default(), "health", "0 ready, 1 read-only, 2 failed";
    durability: Gauge = Gauge::default(), "durability", "0 strict, 1 relaxed";
    watches: Gauge = Gauge::default(), "watches", "Open watches";
    values_checked_seconds: Gauge = Gauge::default(), "values_checked_timestamp_seconds",
        "When all values were last checked, 0 if not since the start";
    commit_queue: Family<Unit, Gauge> = Family::default(), "commit_queue", "What is queued for the commit thread";
    conflicts: Counter = Counter::default(), "conflicts", "Transactions whose condition did not hold";
    wal_bytes: Counter = Counter::default(), "wal_bytes", "Bytes written to the log";
    recovered_tail: Counter = Counter::default(), "recovered_tail", "Starts that found a torn end of the log";
    checksum_failures: Counter = Counter::default(), "checksum_failures", "Records that failed their checksum";
    value_check_failures: Counter = Counter::default(), "value_check_failures",
        "Records that failed their checksum in the check of all values";
    replays: Counter = Counter::default(), "replays", "Reads of history from disk by watches";
    compactions_skipped: Counter = Counter::default(), "compactions_skipped",
        "Compactions of history that were due and failed";
    stalls_seconds: Counter<f64, AtomicU64> = Counter::default(), "stalls_seconds",
        "Time spent waiting for a stalled engine";
    commits: Family<EndedAs, Counter> = Family::default(), "commits", "Transactions by outcome";
    commit_batch_size: Histogram = Histogram::new(exponential_buckets(1.0, 2.0, 11)), "commit_batch_size",
        "Writes per synced batch";
    sync_seconds: Histogram = seconds(), "sync_seconds",
        "Duration of a sync of the log, with the write it covers";
    compaction_seconds: Histogram = seconds(), "compaction_seconds",
        "Duration of a compaction that dropped history";
    commit_seconds: Family<Stage, Histogram, fn() -> Histogram> = Family::new_with_constructor(seconds),
        "commit_seconds", "Durations of the stages of a commit";
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
    fn metrics_keep_their_names() {
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
