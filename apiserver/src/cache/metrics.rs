//! The metrics of the caches, named `drydock_storage_…`.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Metric, Registry};

use super::encode_once::WatchKind;

type Gauges = Family<ResourceLabel, Gauge>;
type Counters<L = ResourceLabel> = Family<L, Counter>;
type Histograms<L = ResourceLabel> = Family<L, Histogram, fn() -> Histogram>;

/// The metrics of all caches of the process; one set of series per resource.
#[derive(Debug, Clone)]
pub struct CacheMetrics {
    events: Counters<EventLabels>,
    history_bytes: Gauges,
    history_seconds: Gauges,
    objects: Gauges,
    object_bytes: Gauges,
    damaged: Gauges,
    roots: Gauges,
    watchers: Gauges,
    watchers_lagging: Gauges,
    watcher_lag_revisions: Histograms,
    classes: Gauges,
    encodings: Counters<EncodingLabels>,
    expired: Counters,
    initial_events: Counters,
    read_wait_seconds: Histograms,
    consistency_checks: Counters<CheckLabels>,
    rebuilds: Counters,
    publish_to_socket_seconds: Histograms<WatchLabels>,
}

/// Which resource a cache holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResourceLabel {
    resource: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabels {
    resource: String,
    kind: EventLabel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
enum EventLabel {
    Created,
    Updated,
    Deleted,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EncodingLabels {
    resource: String,
    hit: bool,
}

/// The `type` of a watch event, as in its frame.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WatchLabels {
    resource: String,
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct CheckLabels {
    resource: String,
    result: CheckResult,
}

/// The result of a comparison of the cache with the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(super) enum CheckResult {
    /// Cache and store agree.
    Equal,
    /// They do not.
    Different,
    /// The store could not be read at the cache's revision.
    Skipped,
}

/// Makes a metric and registers it.
fn register<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// The same for histograms, whose buckets `new` chooses.
fn histograms<L>(registry: &mut Registry, name: &str, help: &str, new: fn() -> Histogram) -> Histograms<L>
where
    Histograms<L>: Metric,
    L: Clone + std::hash::Hash + Eq,
{
    let family = Family::new_with_constructor(new);
    registry.register(name, help, family.clone());
    family
}

/// From 250 µs to 8 s.
fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.000_25, 2.0, 16))
}

/// From 1 to 262,144.
fn revisions() -> Histogram {
    Histogram::new(exponential_buckets(1.0, 4.0, 10))
}

impl CacheMetrics {
    /// The metrics, registered.
    #[must_use]
    pub fn new(registry: &mut Registry) -> Self {
        let r = registry.sub_registry_with_prefix("drydock_storage");
        Self {
            events: register(r, "events", "Events applied to the cache"),
            history_bytes: register(
                r,
                "history_bytes",
                "Bytes held by the event history of the cache, with class logs and shared buffers of watches",
            ),
            history_seconds: register(
                r,
                "history_seconds",
                "How far back a watch can be resumed from memory",
            ),
            objects: register(r, "cache_objects", "Objects in the cache"),
            object_bytes: register(r, "cache_object_bytes", "Payload bytes in the cache"),
            damaged: register(r, "cache_damaged", "Objects whose stored value cannot be read"),
            roots: register(r, "roots", "Past states held in memory"),
            watchers: register(r, "watchers", "Open watches"),
            watchers_lagging: register(
                r,
                "watchers_lagging",
                "Watches that have not taken an event for a second or more, looked at each second",
            ),
            watcher_lag_revisions: histograms(
                r,
                "watcher_lag_revisions",
                "Revisions each open watch is behind, looked at each second; 0 for one that is not lagging",
                revisions,
            ),
            classes: register(r, "classes", "Distinct selections being watched"),
            encodings: register(
                r,
                "encodings",
                "Frames requested, by whether they were encoded before",
            ),
            expired: register(
                r,
                "expired",
                "Watches and lists whose revision was not kept any more",
            ),
            initial_events: register(r, "initial_events", "Objects sent as initial events"),
            read_wait_seconds: histograms(
                r,
                "read_wait_seconds",
                "Time reads waited for the cache to reach a revision",
                seconds,
            ),
            consistency_checks: register(r, "consistency_checks", "Comparisons of the cache with the store"),
            rebuilds: register(r, "cache_rebuilds", "Reloads of the cache from the store"),
            publish_to_socket_seconds: histograms(
                r,
                "publish_to_socket_seconds",
                "Time from an event entering the cache until the connection of a watch had taken it and asked for \
                 more: the first event of each kind in a buffer. Initial events, and events read from the store, are \
                 not measured",
                seconds,
            ),
        }
    }

    /// The series of one resource, looked up once.
    pub(super) fn of(&self, resource: &str) -> ResourceMetrics {
        let resource = resource.to_owned();
        let label = &ResourceLabel {
            resource: resource.clone(),
        };
        let event = |kind| {
            let resource = resource.clone();
            self.events.get_or_create(&EventLabels { resource, kind }).clone()
        };
        let encoding = |hit| {
            let resource = resource.clone();
            self.encodings
                .get_or_create(&EncodingLabels { resource, hit })
                .clone()
        };
        let publish = |kind| {
            let resource = resource.clone();
            let labels = WatchLabels { resource, kind };
            self.publish_to_socket_seconds.get_or_create(&labels).clone()
        };
        ResourceMetrics {
            created: event(EventLabel::Created),
            updated: event(EventLabel::Updated),
            deleted: event(EventLabel::Deleted),
            history_bytes: self.history_bytes.get_or_create(label).clone(),
            history_seconds: self.history_seconds.get_or_create(label).clone(),
            objects: self.objects.get_or_create(label).clone(),
            object_bytes: self.object_bytes.get_or_create(label).clone(),
            damaged: self.damaged.get_or_create(label).clone(),
            roots: self.roots.get_or_create(label).clone(),
            watchers: self.watchers.get_or_create(label).clone(),
            watchers_lagging: self.watchers_lagging.get_or_create(label).clone(),
            watcher_lag_revisions: self.watcher_lag_revisions.get_or_create(label).clone(),
            classes: self.classes.get_or_create(label).clone(),
            encoded: encoding(false),
            encodings_shared: encoding(true),
            expired: self.expired.get_or_create(label).clone(),
            initial_events: self.initial_events.get_or_create(label).clone(),
            read_wait_seconds: self.read_wait_seconds.get_or_create(label).clone(),
            rebuilds: self.rebuilds.get_or_create(label).clone(),
            publish_to_socket: ["ADDED", "MODIFIED", "DELETED"].map(publish),
            checks: self.consistency_checks.clone(),
            resource,
        }
    }
}

impl Default for CacheMetrics {
    /// Metrics that are not exported.
    fn default() -> Self {
        Self::new(&mut Registry::default())
    }
}

/// The series of one resource.
#[derive(Debug)]
pub(super) struct ResourceMetrics {
    pub(super) created: Counter,
    pub(super) updated: Counter,
    pub(super) deleted: Counter,
    pub(super) history_bytes: Gauge,
    pub(super) history_seconds: Gauge,
    pub(super) objects: Gauge,
    pub(super) object_bytes: Gauge,
    pub(super) damaged: Gauge,
    pub(super) roots: Gauge,
    pub(super) watchers: Gauge,
    pub(super) watchers_lagging: Gauge,
    pub(super) watcher_lag_revisions: Histogram,
    pub(super) classes: Gauge,
    encoded: Counter,
    encodings_shared: Counter,
    pub(super) expired: Counter,
    pub(super) initial_events: Counter,
    pub(super) read_wait_seconds: Histogram,
    pub(super) rebuilds: Counter,
    /// By kind: added, modified, deleted.
    publish_to_socket: [Histogram; 3],
    checks: Family<CheckLabels, Counter>,
    resource: String,
}

impl ResourceMetrics {
    /// Counts a frame, which another watch had encoded before or not.
    pub(super) fn frame(&self, was_encoded: bool) {
        let counter = if was_encoded {
            &self.encodings_shared
        } else {
            &self.encoded
        };
        counter.inc();
    }

    pub(super) fn publish_to_socket(&self, kind: WatchKind) -> &Histogram {
        let [added, modified, deleted] = &self.publish_to_socket;
        match kind {
            WatchKind::Added => added,
            WatchKind::Modified => modified,
            WatchKind::Deleted => deleted,
        }
    }

    pub(super) fn checked(&self, result: CheckResult) {
        let resource = self.resource.clone();
        self.checks.get_or_create(&CheckLabels { resource, result }).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exported_names_and_labels_are_stable() {
        let mut registry = Registry::default();
        let metrics = CacheMetrics::new(&mut registry);
        let series = metrics.of("things");
        series.read_wait_seconds.observe(0.1);
        series.watcher_lag_revisions.observe(1.0);
        series.publish_to_socket(WatchKind::Deleted).observe(0.1);
        series.checked(CheckResult::Equal);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "drydock_storage_events_total{resource=\"things\",kind=\"Created\"} 0",
            "drydock_storage_history_bytes{resource=\"things\"} 0",
            "drydock_storage_cache_damaged{resource=\"things\"} 0",
            "drydock_storage_roots{resource=\"things\"} 0",
            "drydock_storage_watchers{resource=\"things\"} 0",
            "drydock_storage_watchers_lagging{resource=\"things\"} 0",
            "drydock_storage_watcher_lag_revisions_count{resource=\"things\"} 1",
            "drydock_storage_classes{resource=\"things\"} 0",
            "drydock_storage_encodings_total{resource=\"things\",hit=\"true\"} 0",
            "drydock_storage_expired_total{resource=\"things\"} 0",
            "drydock_storage_initial_events_total{resource=\"things\"} 0",
            "drydock_storage_read_wait_seconds_count{resource=\"things\"} 1",
            "drydock_storage_consistency_checks_total{resource=\"things\",result=\"Equal\"} 1",
            "drydock_storage_publish_to_socket_seconds_count{resource=\"things\",kind=\"DELETED\"} 1",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
