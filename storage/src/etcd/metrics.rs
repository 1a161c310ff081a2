//! Metrics of the requests to etcd, under the names that dashboards know from kube-apiserver.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

/// Labels: what a request does, and to which resource. Hosts before 1.34 have `type`, later ones `group` and `resource`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfRequest {
    operation: &'static str,
    r#type: String,
    group: String,
    resource: String,
}

/// Labels: a resource.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct OfResource {
    pub(super) group: String,
    pub(super) resource: String,
}

/// Label: the endpoint of a member.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Endpoint {
    endpoint: String,
}

/// Labels of the size of a member's database; kube-apiserver has the first one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Database {
    storage_cluster_id: &'static str,
    endpoint: String,
}

/// The buckets of kube-apiserver.
const BUCKETS: [f64; 20] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0,
];

fn durations() -> Histogram {
    Histogram::new(BUCKETS)
}

/// The metrics of one store in etcd.
#[derive(Debug, Clone, Default)]
pub struct EtcdMetrics {
    request_seconds: RequestSeconds,
    requests: Family<OfRequest, Counter>,
    request_errors: Family<OfRequest, Counter>,
    sizes: Family<Database, Gauge>,
    up: Family<Endpoint, Gauge>,
    full: Family<Endpoint, Gauge>,
    events: Family<OfResource, Counter>,
    progress: Family<OfResource, Counter>,
    progress_gauge: Family<OfResource, Gauge>,
    pub(super) watch_restarts: Counter,
    pub(super) watches: Gauge,
    pub(super) revision: Gauge<i64>,
    pub(super) listable_from: Gauge<i64>,
    pub(super) conflicts: Counter<u64, AtomicU64>,
    pub(super) unknown: Counter,
    pub(super) compactions: Counter,
    pub(super) checksum_failures: Counter,
}

/// Durations by operation.
#[derive(Debug, Clone)]
struct RequestSeconds(Family<OfRequest, Histogram, fn() -> Histogram>);

impl Default for RequestSeconds {
    fn default() -> Self {
        Self(Family::new_with_constructor(durations))
    }
}

impl EtcdMetrics {
    /// Registers the metrics.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "etcd_request_duration_seconds",
            "Duration of requests to etcd",
            self.request_seconds.0.clone(),
        );
        registry.register("etcd_requests", "Requests to etcd", self.requests.clone());
        registry.register(
            "etcd_request_errors",
            "Requests to etcd that failed",
            self.request_errors.clone(),
        );
        registry.register(
            "apiserver_storage_size_bytes",
            "Size of the database of a member of etcd",
            self.sizes.clone(),
        );
        registry.register(
            "apiserver_storage_events_received",
            "Events received from etcd",
            self.events.clone(),
        );
        registry.register(
            "etcd_bookmark",
            "Progress notifications received from etcd",
            self.progress.clone(),
        );
        registry.register(
            "etcd_bookmark_counts",
            "Progress notifications received from etcd, as hosts before 1.36 count them",
            self.progress_gauge.clone(),
        );
        let own = registry.sub_registry_with_prefix("drydock_storage");
        own.register("etcd_member_up", "1 while a member serves", self.up.clone());
        own.register(
            "etcd_no_space",
            "1 while the NOSPACE alarm is raised: deletes only",
            self.full.clone(),
        );
        own.register(
            "etcd_watch_restarts",
            "Watches that continued on a new connection",
            self.watch_restarts.clone(),
        );
        own.register("watches", "Open watches", self.watches.clone());
        own.register("revision", "Newest known revision", self.revision.clone());
        own.register(
            "listable_from",
            "Oldest revision that can be listed",
            self.listable_from.clone(),
        );
        own.register(
            "conflicts",
            "Transactions whose condition did not hold",
            self.conflicts.clone(),
        );
        own.register(
            "unknown_outcomes",
            "Writes whose outcome is unknown",
            self.unknown.clone(),
        );
        own.register(
            "compactions",
            "Compactions of history by this process",
            self.compactions.clone(),
        );
        own.register(
            "checksum_failures",
            "Records that failed their checksum",
            self.checksum_failures.clone(),
        );
    }

    /// Counts a request.
    pub(super) fn observe(
        &self,
        operation: &'static str,
        group: &str,
        resource: &str,
        took: Duration,
        is_ok: bool,
    ) {
        let labels = OfRequest {
            operation,
            r#type: resource.to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
        };
        self.request_seconds
            .0
            .get_or_create(&labels)
            .observe(took.as_secs_f64());
        self.requests.get_or_create(&labels).inc();
        if !is_ok {
            self.request_errors.get_or_create(&labels).inc();
        }
    }

    /// Counts an event.
    pub(super) fn event(&self, of: &OfResource) {
        self.events.get_or_create(of).inc();
    }

    /// Counts a notification of progress.
    pub(super) fn progress(&self, of: &OfResource) {
        self.progress.get_or_create(of).inc();
        self.progress_gauge.get_or_create(of).inc();
    }

    /// Sets whether a member serves.
    pub(super) fn member_up(&self, endpoint: &str, is_up: bool) {
        let labels = Endpoint {
            endpoint: endpoint.to_owned(),
        };
        self.up.get_or_create(&labels).set(i64::from(is_up));
    }

    /// Sets what a member says about its database.
    pub(super) fn member_size(&self, endpoint: &str, bytes: i64, is_full: bool) {
        let labels = Endpoint {
            endpoint: endpoint.to_owned(),
        };
        let database = Database {
            storage_cluster_id: "etcd-0",
            endpoint: endpoint.to_owned(),
        };
        self.sizes.get_or_create(&database).set(bytes);
        self.full.get_or_create(&labels).set(i64::from(is_full));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_the_names_that_dashboards_know() {
        let (metrics, mut registry) = (EtcdMetrics::default(), Registry::default());
        metrics.register(&mut registry);
        metrics.observe("get", "g", "things", Duration::from_millis(3), false);
        let things = OfResource {
            group: "g".to_owned(),
            resource: "things".to_owned(),
        };
        metrics.event(&things);
        metrics.progress(&things);
        metrics.member_up("http://a", true);
        metrics.member_size("http://a", 7, true);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "etcd_request_duration_seconds_bucket{le=\"0.005\",operation=\"get\",type=\"things\",group=\"g\",resource=\"things\"} 1\n",
            "etcd_requests_total{operation=\"get\",type=\"things\",group=\"g\",resource=\"things\"} 1\n",
            "etcd_request_errors_total{operation=\"get\",type=\"things\",group=\"g\",resource=\"things\"} 1\n",
            "apiserver_storage_size_bytes{storage_cluster_id=\"etcd-0\",endpoint=\"http://a\"} 7\n",
            "apiserver_storage_events_received_total{group=\"g\",resource=\"things\"} 1\n",
            "etcd_bookmark_total{group=\"g\",resource=\"things\"} 1\n",
            "etcd_bookmark_counts{group=\"g\",resource=\"things\"} 1\n",
            "drydock_storage_etcd_member_up{endpoint=\"http://a\"} 1\n",
            "drydock_storage_etcd_no_space{endpoint=\"http://a\"} 1\n",
            "drydock_storage_revision 0\n",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
    }
}
