//! Metrics of flow control, with the names of Kubernetes.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};
use tokio::time::Instant;

use super::register::{Histograms, histograms, new};

const WAIT_SECONDS: [f64; 10] = [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FlowLabels {
    priority_level: &'static str,
    flow_schema: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RejectedLabels {
    priority_level: &'static str,
    flow_schema: &'static str,
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WaitLabels {
    priority_level: &'static str,
    flow_schema: &'static str,
    execute: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LevelLabels {
    priority_level: &'static str,
}

/// The metrics of flow control. There is one flow schema per priority level, with its name.
#[derive(Clone)]
pub struct FlowMetrics {
    dispatched: Family<FlowLabels, Counter>,
    rejected: Family<RejectedLabels, Counter>,
    in_queue: Family<FlowLabels, Gauge>,
    executing: Family<FlowLabels, Gauge>,
    wait_seconds: Histograms<WaitLabels>,
    seats: Family<LevelLabels, Gauge>,
}

const fn labels(level: &'static str) -> FlowLabels {
    FlowLabels {
        priority_level: level,
        flow_schema: level,
    }
}

impl FlowMetrics {
    #[rustfmt::skip] // A table with a row per metric.
    pub(super) fn register(r: &mut Registry) -> Self {
        Self {
            dispatched: new(r, "apiserver_flowcontrol_dispatched_requests", "Requests that were not rejected"),
            rejected: new(r, "apiserver_flowcontrol_rejected_requests", "Requests that were rejected"),
            in_queue: new(r, "apiserver_flowcontrol_current_inqueue_requests", "Requests that wait"),
            executing: new(r, "apiserver_flowcontrol_current_executing_requests", "Requests that are handled"),
            wait_seconds: histograms(r, "apiserver_flowcontrol_request_wait_duration_seconds", "Time in a queue", WAIT_SECONDS),
            seats: new(r, "apiserver_flowcontrol_nominal_limit_seats", "Requests that a level may handle at a time"),
        }
    }

    /// Sets how many requests a level may handle at a time.
    pub fn set_seats(&self, level: &'static str, seats: usize) {
        let seats = i64::try_from(seats).unwrap_or(i64::MAX);
        let labels = LevelLabels {
            priority_level: level,
        };
        self.seats.get_or_create(&labels).set(seats);
    }

    /// Counts a request that needs no seat.
    pub fn dispatched(&self, level: &'static str) {
        self.dispatched.get_or_create(&labels(level)).inc();
    }

    /// Counts a request as waiting until the returned guard is dropped.
    #[must_use]
    pub fn waiting(&self, level: &'static str) -> FlowWaiting {
        let in_queue = self.in_queue.get_or_create_owned(&labels(level));
        in_queue.inc();
        FlowWaiting {
            metrics: self.clone(),
            level,
            since: Instant::now(),
            in_queue,
        }
    }

    fn waited(&self, level: &'static str, since: Instant, execute: &'static str) {
        let labels = WaitLabels {
            priority_level: level,
            flow_schema: level,
            execute,
        };
        let seconds = since.elapsed().as_secs_f64();
        self.wait_seconds.get_or_create(&labels).observe(seconds);
    }
}

/// See [`FlowMetrics::waiting`].
pub struct FlowWaiting {
    metrics: FlowMetrics,
    level: &'static str,
    since: Instant,
    in_queue: Gauge,
}

impl FlowWaiting {
    /// Counts the request as handled until the returned guard is dropped.
    #[must_use]
    pub fn dispatched(self) -> FlowExecuting {
        self.metrics.waited(self.level, self.since, "true");
        self.metrics.dispatched(self.level);
        let executing = self.metrics.executing.get_or_create_owned(&labels(self.level));
        executing.inc();
        FlowExecuting(executing)
    }

    /// Counts the request as rejected.
    pub fn rejected(self, reason: &'static str) {
        self.metrics.waited(self.level, self.since, "false");
        let labels = RejectedLabels {
            priority_level: self.level,
            flow_schema: self.level,
            reason,
        };
        self.metrics.rejected.get_or_create(&labels).inc();
    }
}

impl Drop for FlowWaiting {
    fn drop(&mut self) {
        self.in_queue.dec();
    }
}

/// See [`FlowWaiting::dispatched`].
pub struct FlowExecuting(Gauge);

impl Drop for FlowExecuting {
    fn drop(&mut self) {
        self.0.dec();
    }
}
