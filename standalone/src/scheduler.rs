//! Scheduling: the node for a pod, by readiness, taints, node selector and node affinity, then by the fewest pods.

use std::collections::BTreeMap;

use drydock_machinery::selector::node::NodeMatcher;
use drydock_proto::kinds::nodemaintenance::NodeSelector;
use serde_json::Value;

use crate::object::{is_ready, is_terminating, items, labels, text};
use crate::pod::{is_terminal, node_name};

/// The taint that `spec.unschedulable` stands for.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// The properties of a node that scheduling depends on.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) name: String,
    labels: BTreeMap<String, String>,
    /// Key, value and effect.
    taints: Vec<(String, String, String)>,
    ready: bool,
    pub(crate) pods: usize,
}

impl Node {
    /// Reads a node; `pods` are all pods.
    pub(crate) fn read(node: &Value, pods: &[Value]) -> Self {
        let name = text(node, "/metadata/name").to_owned();
        let mut taints: Vec<_> = items(node, "/spec/taints")
            .iter()
            .map(|taint| {
                (
                    text(taint, "/key").to_owned(),
                    text(taint, "/value").to_owned(),
                    text(taint, "/effect").to_owned(),
                )
            })
            .filter(|(_, _, effect)| effect != "PreferNoSchedule")
            .collect();
        if node.pointer("/spec/unschedulable").and_then(Value::as_bool) == Some(true) {
            taints.push((UNSCHEDULABLE.to_owned(), String::new(), "NoSchedule".to_owned()));
        }
        Self {
            labels: labels(node),
            taints,
            ready: is_ready(node) && !is_terminating(node),
            pods: pods
                .iter()
                .filter(|pod| node_name(pod) == name && !is_terminal(pod))
                .count(),
            name,
        }
    }

    fn fits(&self, pod: &Value) -> bool {
        self.ready && self.is_selected_by(pod) && self.taints.iter().all(|taint| is_tolerated(pod, taint))
    }

    /// Whether the node selector and the required node affinity of a pod select the node.
    fn is_selected_by(&self, pod: &Value) -> bool {
        let labels = pod
            .pointer("/spec/nodeSelector")
            .and_then(Value::as_object)
            .into_iter()
            .flatten();
        let affinity = "/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution";
        let required = pod.pointer(affinity).filter(|required| !required.is_null());
        labels
            .into_iter()
            .all(|(label, value)| self.labels.get(label).map(String::as_str) == value.as_str())
            && required.is_none_or(|required| {
                let selector = serde_json::from_value::<NodeSelector>(required.clone()).ok();
                let matcher = selector.and_then(|selector| NodeMatcher::try_from(&selector).ok());
                matcher.is_some_and(|matcher| {
                    matcher.matches(&self.name, |label| self.labels.get(label).map(String::as_str))
                })
            })
    }
}

/// The node with the fewest pods among those that fit a pod.
pub(crate) fn choose<'a>(pod: &Value, nodes: &'a [Node]) -> Option<&'a Node> {
    let fitting = nodes.iter().filter(|node| node.fits(pod));
    fitting.min_by_key(|node| (node.pods, &node.name))
}

fn is_tolerated(pod: &Value, (key, value, effect): &(String, String, String)) -> bool {
    items(pod, "/spec/tolerations").iter().any(|toleration| {
        let (own_key, own_effect) = (text(toleration, "/key"), text(toleration, "/effect"));
        let exists = text(toleration, "/operator") == "Exists";
        (own_effect.is_empty() || own_effect == effect)
            && (own_key == key || (own_key.is_empty() && exists))
            && (exists || text(toleration, "/value") == value)
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// Ready nodes by name and spec.
    pub(crate) fn nodes(specs: &[(&str, Value)]) -> Vec<Node> {
        let ready = json!([{"type": "Ready", "status": "True"}]);
        specs
            .iter()
            .map(|(name, spec)| {
                let labels = json!({"kubernetes.io/hostname": name});
                let node = json!({"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"conditions": ready}});
                Node::read(&node, &[])
            })
            .collect()
    }

    #[track_caller]
    fn check(spec: &Value, nodes: &[Node], expected: Option<&str>) {
        let chosen = choose(&json!({ "spec": spec }), nodes);
        assert_eq!(chosen.map(|node| node.name.as_str()), expected, "{spec}");
    }

    #[test]
    fn a_pod_is_bound_to_a_node_that_it_selects_and_tolerates() {
        let tainted = json!({"taints": [{"key": "k", "value": "v", "effect": "NoSchedule"}]});
        let nodes = nodes(&[
            ("cordoned", json!({"unschedulable": true})),
            ("tainted", tainted),
            (
                "soft",
                json!({"taints": [{"key": "k", "effect": "PreferNoSchedule"}]}),
            ),
        ]);
        check(&json!({}), &nodes, Some("soft"));
        let on = |host: &str, tolerations: Value| json!({"nodeSelector": {"kubernetes.io/hostname": host}, "tolerations": tolerations});
        check(&on("tainted", json!([])), &nodes, None);
        let tolerating = |value: &str| json!([{"key": "k", "value": value}]);
        check(&on("tainted", tolerating("v")), &nodes, Some("tainted"));
        check(&on("tainted", tolerating("w")), &nodes, None);
        check(
            &on("cordoned", json!([{"operator": "Exists"}])),
            &nodes,
            Some("cordoned"),
        );
        let expression = json!([{"key": "metadata.name", "operator": "In", "values": ["soft"]}]);
        let terms = json!({"nodeSelectorTerms": [{"matchFields": expression}]});
        let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}});
        check(&json!({ "affinity": affinity }), &nodes, Some("soft"));
    }

    #[test]
    fn the_node_with_the_fewest_pods_is_chosen() {
        let mut nodes = nodes(&[("a", json!({})), ("b", json!({}))]);
        nodes[0].pods = 2;
        check(&json!({}), &nodes, Some("b"));
    }
}
