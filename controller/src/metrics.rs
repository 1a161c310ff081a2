//! The metrics of the process, under the names of the designs and of Kubernetes' work queues.
//!
//! Label values are names of interceptors, requesters, stages and queues: they grow with the software of a cluster,
//! not with its pods. Metrics that count objects are in [`crate::object_counts`].

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::SignedDuration;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::{Metric, Registry};

use crate::sync::lock;

/// One label and its value.
type Label = [(&'static str, String); 1];

/// A counter whose name has no `_total` suffix, as the designs name it. It is exposed as an unknown metric, since
/// `OpenMetrics` appends the suffix to counters.
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

/// Every metric of the process. Clones share their values.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
    queues: QueueFamilies,
    evictions: Family<Label, PlainCounter>,
    requests: Counter,
    repairs: Family<Label, Counter>,
    invalid_status_writes: Family<Label, Counter>,
    neighbours: NeighbourMetrics,
    leader: Gauge,
    clock_skew: Gauge<f64, AtomicU64>,
    unfinished: UnfinishedWork,
}

/// The metrics of all work queues, by queue name.
#[derive(Debug, Clone)]
struct QueueFamilies {
    depth: Family<Label, Gauge>,
    adds: Family<Label, Counter>,
    retries: Family<Label, Counter>,
    queue_duration: Family<Label, Histogram, fn() -> Histogram>,
    work_duration: Family<Label, Histogram, fn() -> Histogram>,
}

/// Registers a metric and returns it.
fn registered<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register(name, help, metric.clone());
    metric
}

/// Histograms with the buckets of Kubernetes' work queues, which fit reviews too: powers of ten from a microsecond to ten seconds.
fn durations() -> Family<Label, Histogram, fn() -> Histogram> {
    Family::new_with_constructor(|| Histogram::new((-6..=1).map(|exponent| 10_f64.powi(exponent))))
}

impl QueueFamilies {
    fn new(to: &mut Registry) -> Self {
        Self {
            depth: registered(
                to,
                "workqueue_depth",
                "Keys that wait for a worker",
                Family::default(),
            ),
            adds: registered(to, "workqueue_adds", "Keys added", Family::default()),
            retries: registered(
                to,
                "workqueue_retries",
                "Keys scheduled again after a failure",
                Family::default(),
            ),
            queue_duration: registered(
                to,
                "workqueue_queue_duration_seconds",
                "Time a key waits for a worker",
                durations(),
            ),
            work_duration: registered(
                to,
                "workqueue_work_duration_seconds",
                "Time a reconciliation takes",
                durations(),
            ),
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::default();
        let to = &mut registry;
        Self {
            queues: QueueFamilies::new(to),
            evictions: registered(
                to,
                "evictionrequest_controller_imperative_evictions",
                "Calls of the eviction API by result",
                Family::default(),
            ),
            requests: registered(
                to,
                "nodemaintenance_controller_eviction_requests",
                "Eviction requests created or joined for node maintenances",
                Counter::default(),
            ),
            repairs: registered(
                to,
                "nodemaintenance_controller_repairs",
                "Finalizers and node records that were lost and restored",
                Family::default(),
            ),
            invalid_status_writes: registered(
                to,
                "drydock_controller_invalid_status_writes",
                "Status writes that the API rejected as invalid, by resource",
                Family::default(),
            ),
            neighbours: NeighbourMetrics::registered(to),
            leader: registered(
                to,
                "leader_election_master_status",
                "Whether this process is the leader",
                Gauge::default(),
            ),
            clock_skew: registered(
                to,
                "drydock_controller_clock_skew_seconds",
                "The time of drydock-apiserver minus the time of this machine",
                Gauge::default(),
            ),
            unfinished: UnfinishedWork::registered(to),
            registry: Arc::new(Mutex::new(registry)),
        }
    }
}

/// The metrics of what works with programs that know nothing of EvictionRequests.
#[derive(Debug, Clone)]
struct NeighbourMetrics {
    reviews: Family<Label, Counter>,
    review_duration: Family<Label, Histogram, fn() -> Histogram>,
    bridge_requests: Family<Label, Counter>,
    withdrawals: Family<Label, Counter>,
    evacuations: Family<Label, PlainCounter>,
    nominations: Family<Label, Counter>,
}

impl NeighbourMetrics {
    fn registered(to: &mut Registry) -> Self {
        Self {
            reviews: registered(
                to,
                "eviction_bridge_reviews",
                "Reviews of evictions by outcome",
                Family::default(),
            ),
            review_duration: registered(
                to,
                "eviction_bridge_review_duration_seconds",
                "Time a review of an eviction takes, by outcome",
                durations(),
            ),
            bridge_requests: registered(
                to,
                "eviction_bridge_requests",
                "Writes of eviction requests by the bridge: created, renewed, replaced",
                Family::default(),
            ),
            withdrawals: registered(
                to,
                "drydock_controller_withdrawn_requests",
                "Eviction requests from which a requester was withdrawn because its time was over",
                Family::default(),
            ),
            evacuations: registered(
                to,
                "pod_evacuations",
                "Pods that were requested to leave for programs that move pods, by requester",
                Family::default(),
            ),
            nominations: registered(
                to,
                "descheduling_nominations",
                "Pods that programs have nominated to leave, by outcome",
                Family::default(),
            ),
        }
    }
}

/// How long the keys that workers process have been processed, of all queues. It is read at every scrape.
#[derive(Clone, Default)]
struct UnfinishedWork(Arc<Mutex<Vec<(&'static str, UnfinishedWorkSource)>>>);

/// Returns how long each of the keys that workers process has been processed.
type UnfinishedWorkSource = Box<dyn Fn() -> Vec<SignedDuration> + Send + Sync>;

impl fmt::Debug for UnfinishedWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list()
            .entries(lock(&self.0).iter().map(|(name, _)| name))
            .finish()
    }
}

impl UnfinishedWork {
    fn registered(to: &mut Registry) -> Self {
        let sources = Self::default();
        to.register_collector(Box::new(sources.clone()));
        sources
    }
}

impl Collector for UnfinishedWork {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let seconds: Vec<(&'static str, Vec<f64>)> = lock(&self.0)
            .iter()
            .map(|(name, source)| (*name, source().iter().map(SignedDuration::as_secs_f64).collect()))
            .collect();
        for (name, help, value) in [
            (
                "workqueue_unfinished_work_seconds",
                "How long all keys that are processed have been processed together",
                (|all| all.iter().sum()) as fn(&[f64]) -> f64,
            ),
            (
                "workqueue_longest_running_processor_seconds",
                "How long the key that is processed longest has been processed",
                |all| all.iter().copied().fold(0.0, f64::max),
            ),
        ] {
            let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
            for (queue, all) in &seconds {
                family
                    .encode_family(&[("name", *queue)])?
                    .encode_gauge(&value(all))?;
            }
        }
        Ok(())
    }
}

impl Metrics {
    /// The metrics of one work queue.
    #[must_use]
    pub fn queue(&self, name: &'static str) -> QueueMetrics {
        QueueMetrics::new(&self.queues, name)
    }

    /// Counts a call of the eviction API by its result: `accepted`, `budget`, `refused`, or `failed` when the API
    /// did not decide.
    pub fn count_eviction(&self, result: &'static str) {
        self.evictions
            .get_or_create(&[("result", result.to_owned())])
            .0
            .inc();
    }

    /// Counts an eviction request created or joined for a maintenance.
    pub fn count_request(&self) {
        self.requests.inc();
    }

    /// Counts something that was lost and restored: `finalizer` of a maintenance, or `record` of a node.
    pub fn count_repair(&self, what: &'static str) {
        self.repairs.get_or_create(&[("what", what.to_owned())]).inc();
    }

    /// Counts a status write that the API rejected as invalid.
    pub fn count_invalid_status_write(&self, resource: &'static str) {
        self.invalid_status_writes
            .get_or_create(&[("resource", resource.to_owned())])
            .inc();
    }

    /// Counts a review of an eviction by its outcome, and how long it took.
    pub fn count_review(&self, outcome: &'static str, took: Duration) {
        self.neighbours
            .reviews
            .get_or_create(&[("outcome", outcome.to_owned())])
            .inc();
        self.neighbours
            .review_duration
            .get_or_create(&[("outcome", outcome.to_owned())])
            .observe(took.as_secs_f64());
    }

    /// Counts a write of a request by the bridge: `created`, `renewed` or `replaced`.
    pub fn count_bridge_request(&self, write: &'static str) {
        self.neighbours
            .bridge_requests
            .get_or_create(&[("write", write.to_owned())])
            .inc();
    }

    /// Counts a nominated pod by its outcome.
    pub fn count_nomination(&self, outcome: &'static str) {
        self.neighbours
            .nominations
            .get_or_create(&[("outcome", outcome.to_owned())])
            .inc();
    }

    /// Counts that a requester was withdrawn because its time was over.
    pub fn count_withdrawal(&self, requester: &'static str) {
        self.neighbours
            .withdrawals
            .get_or_create(&[("requester", requester.to_owned())])
            .inc();
    }

    /// Counts a pod that was requested to leave for a program that moves pods.
    pub fn count_evacuation(&self, requester: &'static str) {
        self.neighbours
            .evacuations
            .get_or_create(&[("requester", requester.to_owned())])
            .0
            .inc();
    }

    /// Sets the time of drydock-apiserver minus the local time.
    pub fn set_clock_skew(&self, skew: SignedDuration) {
        self.clock_skew.set(skew.as_secs_f64());
    }

    /// Adds a queue to the metrics of unfinished work. `processing` returns how long each key that is processed has
    /// been processed.
    pub fn add_unfinished_work(
        &self,
        queue: &'static str,
        processing: impl Fn() -> Vec<SignedDuration> + Send + Sync + 'static,
    ) {
        lock(&self.unfinished.0).push((queue, Box::new(processing)));
    }

    /// Sets whether this process is the leader.
    pub fn set_leader(&self, is_leader: bool) {
        self.leader.set(i64::from(is_leader));
    }

    /// Adds a collector that is evaluated at every scrape.
    pub fn register_collector(&self, collector: impl Collector + 'static) {
        lock(&self.registry).register_collector(Box::new(collector));
    }

    /// Everything, as `OpenMetrics` text.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _written: fmt::Result =
            prometheus_client::encoding::text::encode(&mut text, &lock(&self.registry));
        text
    }
}

/// The metrics of one work queue.
#[derive(Debug, Clone)]
pub struct QueueMetrics {
    depth: Gauge,
    adds: Counter,
    retries: Counter,
    queue_duration: Histogram,
    work_duration: Histogram,
}

impl QueueMetrics {
    fn new(queues: &QueueFamilies, name: &'static str) -> Self {
        let label = [("name", name.to_owned())];
        Self {
            depth: queues.depth.get_or_create_owned(&label),
            adds: queues.adds.get_or_create_owned(&label),
            retries: queues.retries.get_or_create_owned(&label),
            queue_duration: queues.queue_duration.get_or_create_owned(&label),
            work_duration: queues.work_duration.get_or_create_owned(&label),
        }
    }

    /// A key was added; `depth` keys wait now.
    pub fn added(&self, depth: usize) {
        self.adds.inc();
        self.depth.set(i64::try_from(depth).unwrap_or(i64::MAX));
    }

    /// A worker took a key that had waited for `waited`; `depth` keys wait now.
    pub fn taken(&self, depth: usize, waited: Option<SignedDuration>) {
        self.depth.set(i64::try_from(depth).unwrap_or(i64::MAX));
        if let Some(waited) = waited {
            self.queue_duration.observe(waited.as_secs_f64());
        }
    }

    /// The reconciliation of a key took that long.
    pub fn worked(&self, took: SignedDuration) {
        self.work_duration.observe(took.as_secs_f64());
    }

    /// A key failed and is scheduled again.
    pub fn retried(&self) {
        self.retries.inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_have_the_names_of_the_designs() {
        let metrics = Metrics::default();
        metrics.queue("evictionrequests").added(3);
        metrics.count_eviction("budget");
        metrics.set_leader(true);
        metrics.add_unfinished_work("evictionrequests", || {
            vec![SignedDuration::from_secs(2), SignedDuration::from_secs(3)]
        });
        metrics.add_unfinished_work("daemonsets", Vec::new);
        let text = metrics.render();
        for line in [
            "workqueue_depth{name=\"evictionrequests\"} 3",
            "workqueue_adds_total{name=\"evictionrequests\"} 1",
            "evictionrequest_controller_imperative_evictions{result=\"budget\"} 1",
            "leader_election_master_status 1",
            "workqueue_unfinished_work_seconds{name=\"evictionrequests\"} 5.0",
            "workqueue_longest_running_processor_seconds{name=\"evictionrequests\"} 3.0",
            "workqueue_longest_running_processor_seconds{name=\"daemonsets\"} 0.0",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
    }
}
