//! What does the cache do, in numbers?

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::{Family, MetricConstructor};
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use super::encode_once::WatchKind;

/// The metrics of all caches of the process; one set of series per resource.
#[derive(Debug, Clone)]
pub struct CacheMetrics {
    events: Family<EventLabels, Counter>,
    history_bytes: Family<ResourceLabel, Gauge>,
    history_seconds: Family<ResourceLabel, Gauge>,
    objects: Family<ResourceLabel, Gauge>,
    object_bytes: Family<ResourceLabel, Gauge>,
    damaged: Family<ResourceLabel, Gauge>,
    roots: Family<ResourceLabel, Gauge>,
    watchers: Family<ResourceLabel, Gauge>,
    watchers_lagging: Family<ResourceLabel, Gauge>,
    watcher_lag_revisions: Family<ResourceLabel, Histogram, Revisions>,
    classes: Family<ResourceLabel, Gauge>,
    encodings: Family<EncodingLabels, Counter>,
    expired: Family<ResourceLabel, Counter>,
    initial_events: Family<ResourceLabel, Counter>,
    read_wait_seconds: Family<ResourceLabel, Histogram, Seconds>,
    list_bytes: Family<ResourceLabel, Counter>,
    consistency_checks: Family<CheckLabels, Counter>,
    rebuilds: Family<ResourceLabel, Counter>,
    publish_to_socket_seconds: Family<WatchLabels, Histogram, Seconds>,
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

/// What a watch tells, in the words of its frames.
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

/// How a comparison of the cache with the store ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(super) enum CheckResult {
    /// Cache and store agree.
    Equal,
    /// They do not.
    Different,
    /// The store could not be read at the cache's revision.
    Skipped,
}

#[derive(Debug, Clone)]
struct Seconds;

impl MetricConstructor<Histogram> for Seconds {
    fn new_metric(&self) -> Histogram {
        Histogram::new(exponential_buckets(0.000_25, 2.0, 16))
    }
}

#[derive(Debug, Clone)]
struct Revisions;

impl MetricConstructor<Histogram> for Revisions {
    fn new_metric(&self) -> Histogram {
        Histogram::new(exponential_buckets(1.0, 4.0, 10))
    }
}

impl Default for CacheMetrics {
    fn default() -> Self {
        Self {
            events: Family::default(),
            history_bytes: Family::default(),
            history_seconds: Family::default(),
            objects: Family::default(),
            object_bytes: Family::default(),
            damaged: Family::default(),
            roots: Family::default(),
            watchers: Family::default(),
            watchers_lagging: Family::default(),
            watcher_lag_revisions: Family::new_with_constructor(Revisions),
            classes: Family::default(),
            encodings: Family::default(),
            expired: Family::default(),
            initial_events: Family::default(),
            read_wait_seconds: Family::new_with_constructor(Seconds),
            list_bytes: Family::default(),
            consistency_checks: Family::default(),
            rebuilds: Family::default(),
            publish_to_socket_seconds: Family::new_with_constructor(Seconds),
        }
    }
}

impl CacheMetrics {
    /// Makes the metrics known to `registry`, under names that begin with `drydock_storage_`.
    pub fn register(&self, registry: &mut Registry) {
        let cache = registry.sub_registry_with_prefix("drydock_storage");
        let mut gauge = |name: &str, help: &str, family: &Family<ResourceLabel, Gauge>| {
            cache.register(name, help, family.clone());
        };
        gauge(
            "history_bytes",
            "Bytes held by the event history of the cache, with what is noted and packed for watches",
            &self.history_bytes,
        );
        gauge(
            "history_seconds",
            "How far back a watch can be resumed from memory",
            &self.history_seconds,
        );
        gauge("cache_objects", "Objects in the cache", &self.objects);
        gauge(
            "cache_object_bytes",
            "Payload bytes in the cache",
            &self.object_bytes,
        );
        gauge(
            "cache_damaged",
            "Objects set apart because their stored value cannot be read",
            &self.damaged,
        );
        gauge("roots", "Past states held in memory", &self.roots);
        gauge("watchers", "Open watches", &self.watchers);
        gauge(
            "watchers_lagging",
            "Watches that have not taken an event for a second or more, looked at each second",
            &self.watchers_lagging,
        );
        gauge("classes", "Distinct selections being watched", &self.classes);
        cache.register("events", "Events applied to the cache", self.events.clone());
        cache.register(
            "encodings",
            "Frames asked for, by whether they had been made",
            self.encodings.clone(),
        );
        cache.register(
            "expired",
            "Watches and lists that came too late",
            self.expired.clone(),
        );
        cache.register(
            "initial_events",
            "Objects sent as initial events",
            self.initial_events.clone(),
        );
        cache.register(
            "list_bytes",
            "Payload bytes read by lists",
            self.list_bytes.clone(),
        );
        cache.register(
            "consistency_checks",
            "Comparisons with the store",
            self.consistency_checks.clone(),
        );
        cache.register(
            "cache_rebuilds",
            "Times the cache was read anew",
            self.rebuilds.clone(),
        );
        cache.register(
            "watcher_lag_revisions",
            "Revisions each open watch is behind, looked at each second; 0 for one that is not lagging",
            self.watcher_lag_revisions.clone(),
        );
        cache.register(
            "read_wait_seconds",
            "Time reads waited for the cache to reach a revision",
            self.read_wait_seconds.clone(),
        );
        cache.register(
            "publish_to_socket_seconds",
            "Time from an event entering the cache until the connection of a watch had taken it and asked for more: the \
             first event of each kind in a buffer. Initial events, and what is read again from the store, do not count",
            self.publish_to_socket_seconds.clone(),
        );
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
            list_bytes: self.list_bytes.get_or_create(label).clone(),
            rebuilds: self.rebuilds.get_or_create(label).clone(),
            publish_to_socket: ["ADDED", "MODIFIED", "DELETED"].map(publish),
            checks: self.consistency_checks.clone(),
            resource,
        }
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
    pub(super) encoded: Counter,
    pub(super) encodings_shared: Counter,
    pub(super) expired: Counter,
    pub(super) initial_events: Counter,
    pub(super) read_wait_seconds: Histogram,
    pub(super) list_bytes: Counter,
    pub(super) rebuilds: Counter,
    /// By kind: added, modified, deleted.
    publish_to_socket: [Histogram; 3],
    checks: Family<CheckLabels, Counter>,
    resource: String,
}

impl ResourceMetrics {
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
    fn dashboards_find_the_names_they_know() {
        let (metrics, mut registry) = (CacheMetrics::default(), Registry::default());
        metrics.register(&mut registry);
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
            "drydock_storage_list_bytes_total{resource=\"things\"} 0",
            "drydock_storage_consistency_checks_total{resource=\"things\",result=\"Equal\"} 1",
            "drydock_storage_publish_to_socket_seconds_count{resource=\"things\",kind=\"DELETED\"} 1",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
