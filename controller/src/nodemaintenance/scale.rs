//! The time of a planning round in a large cluster: `cargo test -p drydock-controller scale -- --ignored --nocapture`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use drydock_proto::kinds::evictionrequest::EvictionRequest;
use drydock_proto::kinds::nodemaintenance::{NodeMaintenance, STATUS_ANNOTATION};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use super::index::ClusterIndex;
use super::model::StaticPods;
use super::node_state::NodeAction;
use super::observe::Observer;
use super::plan::plan;
use crate::fixtures::{empty_stores, pod, typed};
use crate::informer::Store;
use crate::pod::Pod;
use crate::stores::Stores;

const NODES: usize = 250;
const PODS_PER_NODE: usize = 20;
const ROUNDS: u32 = 10;

fn maintenance() -> NodeMaintenance {
    let plan: Vec<_> = ["Default", "DaemonSet", "Static"]
        .iter()
        .flat_map(|pod_type| {
            [1_000_000_000, 2_000_000_000, 2_000_001_000, i32::MAX]
                .map(|priority| json!({"podType": pod_type, "podPriority": priority}))
        })
        .collect();
    typed(json!({
        "metadata": {
            "name": "m", "uid": "m-uid", "generation": 2,
            "finalizers": ["nodemaintenance.k8s.io/maintenance-completion"],
        },
        "spec": {
            "stage": "Drain", "drainPlan": plan,
            "nodeSelector": {"nodeSelectorTerms": [{
                "matchExpressions": [{"key": "pool", "operator": "In", "values": ["a"]}],
            }]},
        },
    }))
}

fn node(index: usize) -> Node {
    typed(json!({
        "metadata": {"name": format!("node-{index:04}"), "labels": {"pool": "a"}, "annotations": {}},
        "spec": {},
    }))
}

fn pod_of(node: usize, index: usize) -> Pod {
    pod(&json!({
        "metadata": {
            "name": format!("web-{node}-{index}"), "uid": format!("uid-{node}-{index}"),
            "labels": {"app": "web", "pod-template-hash": "abc", "tier": "front"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": true}],
        },
        "spec": {"nodeName": format!("node-{node:04}"), "priority": 0},
    }))
}

fn request_of(node: usize, index: usize) -> EvictionRequest {
    typed(json!({
        "metadata": {
            "name": format!("uid-{node}-{index}"), "namespace": "shop", "uid": format!("er-{node}-{index}"),
            "labels": {"app": "web"}, "creationTimestamp": "1970-01-01T00:00:01Z",
        },
        "spec": {
            "target": {"pod": {"name": format!("web-{node}-{index}"), "uid": format!("uid-{node}-{index}")}},
            "requesters": [{"name": "nodemaintenance.k8s.io"}],
        },
    }))
}

fn observer(stores: &Stores) -> Observer {
    let index = ClusterIndex::of(stores);
    Observer::new(stores.clone(), Arc::new(index), StaticPods::Reported)
}

/// 250 nodes with 20 pods each, all requested to leave, in mid-drain.
fn cluster() -> Stores {
    let now = Timestamp::from_second(1000).unwrap();
    let all = || (0..NODES).flat_map(|node| (0..PODS_PER_NODE).map(move |index| (node, index)));
    let mut stores = empty_stores();
    stores.pods = Store::synced_with(all().map(|(node, index)| pod_of(node, index)).collect());
    stores.requests = Store::synced_with(all().map(|(node, index)| request_of(node, index)).collect());
    stores.maintenances = Store::synced_with(vec![maintenance()]);
    stores.nodes = Store::synced_with((0..NODES).map(node).collect());
    // The first plan holds the nodes.
    let observed = observer(&stores).observe(now).cluster;
    let planned = plan(&observed.state, now);
    let mut nodes: Vec<Node> = observed.nodes.iter().map(|node| (**node).clone()).collect();
    for (index, action) in &planned.nodes {
        if let NodeAction::Hold { record, .. } = action {
            let node = &mut nodes[*index];
            let text = serde_json::to_string(record).unwrap();
            let annotations = node.metadata.annotations.get_or_insert_default();
            annotations.insert(STATUS_ANNOTATION.to_owned(), text);
            node.spec.get_or_insert_default().unschedulable = Some(true);
        }
    }
    assert_eq!(planned.nodes.len(), NODES);
    stores.nodes = Store::synced_with(nodes);
    stores
}

#[test]
#[ignore = "a measurement"]
#[expect(clippy::disallowed_methods, reason = "it measures real time")]
fn planning_round_of_a_large_cluster() {
    let stores = cluster();
    let now = Timestamp::from_second(1001).unwrap();
    let source = observer(&stores);
    // The first round fills the caches.
    let _first = source.observe(now).cluster;
    let mut took = [Duration::ZERO; 2];
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let observed = source.observe(now).cluster;
        let between = Instant::now();
        let planned = plan(&observed.state, now);
        took[0] += between.duration_since(begun);
        took[1] += between.elapsed();
        // The status is not written here, so that each round plans everything again.
        assert!(planned.requests.is_empty() && planned.nodes.is_empty());
        assert_eq!(planned.maintenances.len(), 1);
    }
    let [observing, planning] = took.map(|sum| sum / ROUNDS);
    println!(
        "{NODES} nodes, {} pods: observing {observing:?}, planning {planning:?}",
        NODES * PODS_PER_NODE
    );
}
