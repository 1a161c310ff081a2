//! Metrics that count objects. They are computed from the stores at each scrape, not updated at each change.

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use crate::bridge;
use crate::descheduling::nominations;
use crate::nodemaintenance::node_state;
use crate::stores::Stores;

/// The samples of one metric, by the value of its label.
type Samples = BTreeMap<String, i64>;

/// Counts the objects of the stores. Register it with [`crate::metrics::Metrics::register_collector`].
#[derive(Debug)]
pub struct ObjectCounts(pub Stores);

/// One gauge with one label.
struct Gauge {
    name: &'static str,
    help: &'static str,
    label: &'static str,
    samples: Samples,
}

impl Gauge {
    const fn new(name: &'static str, label: &'static str, help: &'static str) -> Self {
        Self {
            name,
            help,
            label,
            samples: Samples::new(),
        }
    }

    fn count(&mut self, value: &str) {
        if let Some(count) = self.samples.get_mut(value) {
            *count += 1;
        } else {
            self.samples.insert(value.to_owned(), 1);
        }
    }
}

impl ObjectCounts {
    fn gauges(&self) -> [Gauge; 8] {
        let mut active = Gauge::new(
            "evictionrequest_controller_active_interceptor",
            "interceptor",
            "Unfinished eviction requests by active interceptor",
        );
        let mut processed = Gauge::new(
            "evictionrequest_controller_processed_interceptor",
            "interceptor",
            "Unfinished eviction requests by processed interceptor",
        );
        let mut requesters = Gauge::new(
            "evictionrequest_controller_active_requester",
            "requester",
            "Unfinished eviction requests by requester",
        );
        let mut targets = Gauge::new(
            "evictionrequest_controller_pod_interceptors",
            "interceptor",
            "Unfinished eviction requests by the interceptors of their pods",
        );
        for request in self.0.requests.all() {
            if request.is_finished() {
                continue;
            }
            for requester in &request.spec.requesters {
                requesters.count(&requester.name);
            }
            let Some(status) = &request.status else { continue };
            for name in &status.active_interceptors {
                active.count(name);
            }
            for name in &status.processed_interceptors {
                processed.count(name);
            }
            for target in &status.target_interceptors {
                targets.count(&target.name);
            }
        }
        let mut maintenances = Gauge::new(
            "nodemaintenance_controller_maintenances",
            "stage",
            "Node maintenances by stage",
        );
        for maintenance in self.0.maintenances.all() {
            maintenances.count(maintenance.spec.stage.as_str());
        }
        let mut nodes = Gauge::new(
            "nodemaintenance_controller_nodes",
            "drained",
            "Nodes under maintenance by whether they are drained",
        );
        let mut held = Gauge::new(
            "nodemaintenance_controller_held_nodes",
            "cause",
            "Nodes that stay as they are because their maintenance vanished without having been completed",
        );
        // An alert reads it: it is there before the first such node, too.
        held.samples.insert("vanished".to_owned(), 0);
        for node in self.0.nodes.all() {
            if let Some(record) = node_state::record(&node) {
                if !record.vanished.is_empty() {
                    held.count("vanished");
                }
                nodes.count(if record.is_drained() { "true" } else { "false" });
            }
        }
        [
            active,
            processed,
            requesters,
            targets,
            self.evacuations(),
            maintenances,
            nodes,
            held,
        ]
    }
}

impl ObjectCounts {
    fn evacuations(&self) -> Gauge {
        let mut evacuations = Gauge::new(
            "pod_evacuations_in_progress",
            "requester",
            "Unfinished eviction requests of programs that move pods, by requester",
        );
        for request in self.0.requests.all().iter().filter(|one| !one.is_finished()) {
            for party in [bridge::PARTY, nominations::PARTY] {
                if party.is_requester(request) {
                    evacuations.count(party.requester);
                }
            }
        }
        evacuations
    }
}

impl Collector for ObjectCounts {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        for gauge in self.gauges() {
            let mut family = encoder.encode_descriptor(gauge.name, gauge.help, None, MetricType::Gauge)?;
            for (value, count) in &gauge.samples {
                family
                    .encode_family(&[(gauge.label, value.as_str())])?
                    .encode_gauge(count)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{empty_stores, typed};
    use crate::informer::Store;
    use crate::metrics::Metrics;
    use drydock_proto::kinds::nodemaintenance::STATUS_ANNOTATION;
    use serde_json::{Value, json};

    fn request(conditions: &Value) -> Value {
        json!({
            "metadata": {"name": "uid-1", "namespace": "shop"},
            "spec": {"requesters": [{"name": "r.example.com"}, {"name": "descheduler.k8s.io"}]},
            "status": {
                "targetInterceptors": [{"name": "a.example.com"}, {"name": "b.example.com"}],
                "activeInterceptors": ["b.example.com"],
                "processedInterceptors": ["a.example.com"],
                "conditions": conditions,
            },
        })
    }

    #[test]
    fn objects_are_counted_at_a_scrape_and_finished_requests_are_not() {
        let finished = json!([{
            "type": "Evicted", "status": "True", "reason": "PodDeleted", "message": "",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        }]);
        let mut second = request(&finished);
        second["metadata"]["name"] = json!("uid-2");
        let record = json!({"message": "Drained", "vanished": ["gone"]}).to_string();
        let stores = Stores {
            requests: Store::synced_with(vec![typed(request(&json!([]))), typed(second)]),
            maintenances: Store::synced_with(vec![typed(
                json!({"metadata": {"name": "m"}, "spec": {"stage": "Drain"}}),
            )]),
            nodes: Store::synced_with(vec![
                typed(json!({"metadata": {"name": "one", "annotations": {STATUS_ANNOTATION: record}}})),
                typed(json!({"metadata": {"name": "two"}})),
            ]),
            ..empty_stores()
        };
        let metrics = Metrics::default();
        metrics.register_collector(ObjectCounts(stores));
        let text = metrics.render();
        let samples: Vec<_> = text.lines().filter(|line| line.contains('{')).collect();
        assert_eq!(
            samples,
            [
                "evictionrequest_controller_active_interceptor{interceptor=\"b.example.com\"} 1",
                "evictionrequest_controller_processed_interceptor{interceptor=\"a.example.com\"} 1",
                "evictionrequest_controller_active_requester{requester=\"descheduler.k8s.io\"} 1",
                "evictionrequest_controller_active_requester{requester=\"r.example.com\"} 1",
                "evictionrequest_controller_pod_interceptors{interceptor=\"a.example.com\"} 1",
                "evictionrequest_controller_pod_interceptors{interceptor=\"b.example.com\"} 1",
                "pod_evacuations_in_progress{requester=\"descheduler.k8s.io\"} 1",
                "nodemaintenance_controller_maintenances{stage=\"Drain\"} 1",
                "nodemaintenance_controller_nodes{drained=\"true\"} 1",
                "nodemaintenance_controller_held_nodes{cause=\"vanished\"} 1",
            ]
        );
    }
}
