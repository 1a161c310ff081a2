//! Nodes of the cluster.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, NodeStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::api::ObjectMeta;

/// A Node with the given labels, its host name, and room for a thousand pods. kwok makes it Ready and runs its pods.
#[must_use]
pub fn node(name: &str, labels: &[(&str, &str)]) -> Node {
    let capacity: BTreeMap<_, _> = [("cpu", "1000"), ("memory", "1Ti"), ("pods", "1000")]
        .map(|(resource, amount)| (resource.to_owned(), Quantity(amount.to_owned())))
        .into();
    let labels = [("kubernetes.io/hostname", name), ("kubernetes.io/os", "linux")]
        .iter()
        .chain(labels)
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect();
    Node {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        status: Some(NodeStatus {
            allocatable: Some(capacity.clone()),
            capacity: Some(capacity),
            ..NodeStatus::default()
        }),
        ..Node::default()
    }
}
