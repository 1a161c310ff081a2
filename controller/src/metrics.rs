//! What do dashboards see? The metrics of the controllers, under the names of their designs.
//!
//! Labels hold names of interceptors, requesters, stages and queues: values that grow with a cluster's software,
//! not with its pods.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::SignedDuration;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Registry;

/// One label and its value.
type Label = [(&'static str, String); 1];

/// A counter whose name has no `_total`: the designs name it so.
#[derive(Debug, Clone, Default)]
struct PlainCounter(Counter);

impl TypedMetric for PlainCounter {
    const TYPE: MetricType = MetricType::Unknown;
}

impl EncodeMetric for PlainCounter {
    fn encode(&self, mut encoder: MetricEncoder) -> fmt::Result {
        encoder.encode_gauge(&i64::try_from(self.0.get()).unwrap_or(i64::MAX))
    }

    fn metric_type(&self) -> MetricType {
        Self::TYPE
    }
}

/// Numbers by label value, of one metric, computed at a scrape.
pub type Counts = BTreeMap<String, i64>;

/// What is counted over all objects when somebody asks, not when they change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Census {
    /// Requests by the interceptor whose turn it is.
    pub active_interceptors: Counts,
    /// Unfinished requests by interceptors whose turn is over.
    pub processed_interceptors: Counts,
    /// Unfinished requests by who asks.
    pub active_requesters: Counts,
    /// Unfinished requests by the interceptors their pods have.
    pub pod_interceptors: Counts,
    /// Maintenances by stage.
    pub maintenances: Counts,
    /// Nodes under maintenance that are drained, and that are not, by `true` and `false`.
    pub nodes: Counts,
}

type TakeCensus = Box<dyn Fn() -> Census + Send + Sync>;

struct CensusCollector(TakeCensus);

impl fmt::Debug for CensusCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CensusCollector")
    }
}

impl prometheus_client::collector::Collector for CensusCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let census = (self.0)();
        for (name, label, help, counts) in [
            (
                "evictionrequest_controller_active_interceptor",
                "interceptor",
                "Eviction requests by the interceptor whose turn it is",
                &census.active_interceptors,
            ),
            (
                "evictionrequest_controller_processed_interceptor",
                "interceptor",
                "Unfinished eviction requests by interceptors whose turn is over",
                &census.processed_interceptors,
            ),
            (
                "evictionrequest_controller_active_requester",
                "requester",
                "Unfinished eviction requests by who asks",
                &census.active_requesters,
            ),
            (
                "evictionrequest_controller_pod_interceptors",
                "interceptor",
                "Unfinished eviction requests by the interceptors of their pods",
                &census.pod_interceptors,
            ),
            (
                "nodemaintenance_controller_maintenances",
                "stage",
                "Node maintenances by stage",
                &census.maintenances,
            ),
            (
                "nodemaintenance_controller_nodes",
                "drained",
                "Nodes under maintenance by whether they are drained",
                &census.nodes,
            ),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (value, count) in counts {
                family
                    .encode_family(&[(label, value.as_str())])?
                    .encode_gauge(count)?;
            }
        }
        Ok(())
    }
}

/// Every metric of the process.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    queues: Queues,
    evictions: Family<Label, PlainCounter>,
    evictions_requested: Counter,
    leader: Gauge,
}

#[derive(Debug, Clone)]
struct Queues {
    depth: Family<Label, Gauge>,
    adds: Family<Label, Counter>,
    retries: Family<Label, Counter>,
    waited: Family<Label, Histogram, fn() -> Histogram>,
    worked: Family<Label, Histogram, fn() -> Histogram>,
}

/// Powers of ten from a microsecond to ten seconds, as the workqueues of Kubernetes have them.
fn durations() -> Histogram {
    Histogram::new((-6..=1).map(|exponent| 10_f64.powi(exponent)))
}

impl Default for Queues {
    fn default() -> Self {
        Self {
            depth: Family::default(),
            adds: Family::default(),
            retries: Family::default(),
            waited: Family::new_with_constructor(durations),
            worked: Family::new_with_constructor(durations),
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let queues = Queues::default();
        let (evictions, evictions_requested, leader) =
            (Family::default(), Counter::default(), Gauge::default());
        let mut registry = Registry::default();
        registry.register(
            "workqueue_depth",
            "Keys that wait for a worker",
            queues.depth.clone(),
        );
        registry.register("workqueue_adds", "Keys that came to wait", queues.adds.clone());
        registry.register(
            "workqueue_retries",
            "Keys that came back after a failure",
            queues.retries.clone(),
        );
        registry.register(
            "workqueue_queue_duration_seconds",
            "How long keys waited",
            queues.waited.clone(),
        );
        registry.register(
            "workqueue_work_duration_seconds",
            "How long keys were worked on",
            queues.worked.clone(),
        );
        registry.register(
            "evictionrequest_controller_imperative_evictions",
            "Calls of the eviction API by their result",
            evictions.clone(),
        );
        registry.register(
            "nodemaintenance_controller_eviction_requests",
            "Eviction requests made or joined for node maintenances",
            evictions_requested.clone(),
        );
        registry.register(
            "leader_election_master_status",
            "Whether this process leads",
            leader.clone(),
        );
        Self {
            registry: Arc::new(Mutex::new(registry)),
            queues,
            evictions,
            evictions_requested,
            leader,
        }
    }
}

impl Metrics {
    /// The metrics of one work queue.
    #[must_use]
    pub fn queue(&self, name: &'static str) -> QueueMetrics {
        QueueMetrics::of(&self.queues, name)
    }

    /// Counts a call of the eviction API: `accepted`, `budget`, or `refused`.
    pub fn evicted(&self, result: &'static str) {
        self.evictions
            .get_or_create(&[("result", result.to_owned())])
            .0
            .inc();
    }

    /// Counts a request made or joined by a maintenance.
    pub fn requested(&self) {
        self.evictions_requested.inc();
    }

    /// Says whether this process leads.
    pub fn leads(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// Has these numbers computed at every scrape.
    pub fn census(&self, take: impl Fn() -> Census + Send + Sync + 'static) {
        self.registry
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .register_collector(Box::new(CensusCollector(Box::new(take))));
    }

    /// Everything, as `OpenMetrics` text.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        // Writing to a String does not fail.
        let _written: fmt::Result = prometheus_client::encoding::text::encode(&mut text, &registry);
        text
    }
}

/// The metrics of one work queue.
#[derive(Debug, Clone)]
pub struct QueueMetrics {
    depth: Gauge,
    adds: Counter,
    retries: Counter,
    waited: Histogram,
    worked: Histogram,
}

impl QueueMetrics {
    fn of(queues: &Queues, name: &'static str) -> Self {
        let label = [("name", name.to_owned())];
        Self {
            depth: queues.depth.get_or_create_owned(&label),
            adds: queues.adds.get_or_create_owned(&label),
            retries: queues.retries.get_or_create_owned(&label),
            waited: queues.waited.get_or_create_owned(&label),
            worked: queues.worked.get_or_create_owned(&label),
        }
    }

    /// Metrics that nobody sees.
    #[cfg(test)]
    pub(crate) fn unregistered(name: &'static str) -> Self {
        Self::of(&Queues::default(), name)
    }

    /// A key came; so many wait now.
    pub fn added(&self, depth: usize) {
        self.adds.inc();
        self.depth.set(i64::try_from(depth).unwrap_or(i64::MAX));
    }

    /// A key was taken after waiting that long; so many wait now.
    pub fn taken(&self, depth: usize, waited: Option<SignedDuration>) {
        self.depth.set(i64::try_from(depth).unwrap_or(i64::MAX));
        if let Some(waited) = waited {
            self.waited.observe(waited.as_secs_f64());
        }
    }

    /// A key was worked on for that long.
    pub fn worked(&self, took: SignedDuration) {
        self.worked.observe(took.as_secs_f64());
    }

    /// A key failed and will come back.
    pub fn retried(&self) {
        self.retries.inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_designs() {
        let metrics = Metrics::default();
        metrics.queue("evictionrequests").added(3);
        metrics.evicted("budget");
        metrics.census(|| Census {
            active_interceptors: Counts::from([("a.example.com".to_owned(), 2)]),
            ..Census::default()
        });
        let text = metrics.render();
        for line in [
            "workqueue_depth{name=\"evictionrequests\"} 3",
            "workqueue_adds_total{name=\"evictionrequests\"} 1",
            "evictionrequest_controller_imperative_evictions{result=\"budget\"} 1",
            "evictionrequest_controller_active_interceptor{interceptor=\"a.example.com\"} 2",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
    }
}
