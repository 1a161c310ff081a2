//! Indexes that are kept up to date with each change: by node its pods, the lives of successors on it and which of its
//! pods have an unfinished request for maintenances. A round reads what has changed instead of the whole cluster: each
//! change that concerns a node gives it a new version.

use std::borrow::Borrow;
use std::collections::{HashMap, HashSet};
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};

use drydock_proto::kinds::evictionrequest::EvictionRequest;
use tokio::sync::Notify;

use super::request_facts::has_maintenance_requester;
use super::successor::Life;
use crate::informer::{Change, ObjectKey, key_of};
use crate::pod::Pod;
use crate::sync::lock;

/// The indexes. The change handlers of the informers write them, rounds read them.
#[derive(Debug, Default)]
pub struct ClusterIndex {
    indexes: Mutex<Indexes>,
    /// Notified when no request is active any more.
    finished: Notify,
}

#[derive(Debug, Default)]
struct Indexes {
    /// By the name of the node.
    nodes: HashMap<String, OnNode>,
    /// The pods that are bound to a node.
    pods: HashSet<ByUid>,
    /// Unfinished requests with the requester of maintenances.
    active_requests: HashSet<ObjectKey>,
    /// The last version of a node. No two changes have the same.
    version: u64,
}

/// What the indexes have for one node.
#[derive(Debug, Default)]
struct OnNode {
    /// By UID.
    pods: Vec<Arc<Pod>>,
    /// By request.
    lives: HashMap<ObjectKey, Life>,
    /// The UIDs of its pods that have an unfinished request for maintenances.
    requested: HashSet<String>,
    version: u64,
}

/// A pod that is found by its UID.
#[derive(Debug)]
struct ByUid(Arc<Pod>);

impl Borrow<str> for ByUid {
    fn borrow(&self) -> &str {
        self.0.uid()
    }
}

impl Hash for ByUid {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.uid().hash(state);
    }
}

impl PartialEq for ByUid {
    fn eq(&self, other: &Self) -> bool {
        self.0.uid() == other.0.uid()
    }
}

impl Eq for ByUid {}

/// What concerns a node, at one version.
#[derive(Debug, Clone, Default)]
pub struct NodeContents {
    /// The version; zero when nothing was ever known of the node.
    pub version: u64,
    /// Its pods.
    pub pods: Vec<Arc<Pod>>,
    /// The lives of successors on it.
    pub lives: Vec<Life>,
}

impl ClusterIndex {
    /// Applies the change of a pod.
    pub fn pod_changed(&self, change: &Change<Pod>) {
        let mut indexes = lock(&self.indexes);
        if let Some(old) = &change.old {
            indexes.remove_pod(old);
        }
        if let Some(new) = &change.new {
            indexes.add_pod(new);
        }
    }

    /// Applies the change of a request.
    pub fn request_changed(&self, change: &Change<EvictionRequest>) {
        let mut indexes = lock(&self.indexes);
        if let Some(old) = &change.old {
            let key = key_of(&**old);
            if let Some(life) = Life::of(old) {
                indexes.change_node(&life.origin.node, |node| drop(node.lives.remove(&key)));
            }
            indexes.active_requests.remove(&key);
            indexes.request_of_pod_changed(&key, false);
        }
        if let Some(new) = &change.new {
            let key = key_of(&**new);
            if let Some(life) = Life::of(new) {
                let name = life.origin.node.clone();
                indexes.change_node(&name, |node| drop(node.lives.insert(key.clone(), life)));
            }
            let is_active = has_maintenance_requester(new) && !new.is_finished();
            indexes.request_of_pod_changed(&key, is_active);
            if is_active {
                indexes.active_requests.insert(key);
            }
        }
        if indexes.active_requests.is_empty() {
            self.finished.notify_waiters();
        }
    }

    /// Waits until no request for maintenances is unfinished.
    pub async fn requests_finished(&self) {
        loop {
            let notified = self.finished.notified();
            if lock(&self.indexes).active_requests.is_empty() {
                return;
            }
            notified.await;
        }
    }

    /// Pods of the namespace are seen differently from now on.
    pub fn namespace_changed(&self, namespace: &str) {
        let mut indexes = lock(&self.indexes);
        let has_pods = |node: &OnNode| node.pods.iter().any(|pod| pod.namespace() == namespace);
        let names: Vec<String> = indexes
            .nodes
            .iter()
            .filter(|(_, node)| has_pods(node))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            indexes.change_node(&name, |_| {});
        }
    }

    /// The version of the node.
    #[must_use]
    pub fn version_of(&self, node: &str) -> u64 {
        lock(&self.indexes).nodes.get(node).map_or(0, |node| node.version)
    }

    /// What concerns the node.
    #[must_use]
    pub fn contents_of(&self, node: &str) -> NodeContents {
        let indexes = lock(&self.indexes);
        let contents = indexes.nodes.get(node).map(|node| NodeContents {
            version: node.version,
            pods: node.pods.clone(),
            lives: node.lives.values().cloned().collect(),
        });
        contents.unwrap_or_default()
    }

    /// Whether a pod of the node has an unfinished request for maintenances.
    #[must_use]
    pub fn has_requested_pods(&self, node: &str) -> bool {
        let indexes = lock(&self.indexes);
        indexes
            .nodes
            .get(node)
            .is_some_and(|node| !node.requested.is_empty())
    }

    /// The name of the node of the pod with this UID, if it is bound.
    #[must_use]
    pub fn node_of(&self, uid: &str) -> Option<String> {
        lock(&self.indexes)
            .pods
            .get(uid)
            .and_then(|pod| pod.0.spec.node_name.clone())
    }
}

impl Indexes {
    /// Applies a change to the node. A node of which nothing is left is forgotten.
    fn change_node(&mut self, name: &str, change: impl FnOnce(&mut OnNode)) {
        self.version += 1;
        let version = self.version;
        let node = match self.nodes.get_mut(name) {
            Some(node) => node,
            None => self.nodes.entry(name.to_owned()).or_default(),
        };
        node.version = version;
        change(node);
        if node.pods.is_empty() && node.lives.is_empty() {
            self.nodes.remove(name);
        }
    }

    fn add_pod(&mut self, pod: &Arc<Pod>) {
        let Some(node) = pod.spec.node_name.as_deref() else {
            return;
        };
        let is_requested = self.is_requested(pod);
        self.change_node(node, |node| {
            node.pods.push(Arc::clone(pod));
            if is_requested {
                node.requested.insert(pod.uid().to_owned());
            }
        });
        self.pods.replace(ByUid(Arc::clone(pod)));
    }

    fn remove_pod(&mut self, pod: &Pod) {
        let Some(node) = pod.spec.node_name.as_deref() else {
            return;
        };
        self.change_node(node, |node| {
            node.pods.retain(|one| one.uid() != pod.uid());
            node.requested.remove(pod.uid());
        });
        self.pods.remove(pod.uid());
    }

    fn is_requested(&self, pod: &Pod) -> bool {
        let key = (pod.namespace().to_owned(), pod.uid().to_owned());
        self.active_requests.contains(&key)
    }

    /// The request of a pod changed: the name of a request is the UID of its pod.
    fn request_of_pod_changed(&mut self, (namespace, uid): &ObjectKey, is_active: bool) {
        let pod = self.pods.get(uid.as_str()).map(|pod| Arc::clone(&pod.0));
        let Some(pod) = pod.filter(|pod| pod.namespace() == namespace) else {
            return;
        };
        self.change_node(pod.spec.node_name.as_deref().unwrap_or_default(), |node| {
            if is_active {
                node.requested.insert(uid.clone());
            } else {
                node.requested.remove(uid.as_str());
            }
        });
    }
}

/// A node with the UIDs of its pods, the UIDs of those that are requested, and the requests of lives.
#[cfg(test)]
pub(crate) type DumpedNode = (String, Vec<String>, Vec<String>, Vec<ObjectKey>);

#[cfg(test)]
impl ClusterIndex {
    /// The indexes of the objects in the stores.
    pub(crate) fn of(stores: &crate::stores::Stores) -> Self {
        let index = Self::default();
        for pod in stores.pods.all() {
            index.pod_changed(&Change {
                old: None,
                new: Some(pod),
            });
        }
        for request in stores.requests.all() {
            index.request_changed(&Change {
                old: None,
                new: Some(request),
            });
        }
        index
    }

    /// Everything but versions, in order.
    pub(crate) fn dump(&self) -> Vec<DumpedNode> {
        fn sorted<T: Ord>(items: impl Iterator<Item = T>) -> Vec<T> {
            let mut items: Vec<T> = items.collect();
            items.sort();
            items
        }
        let indexes = lock(&self.indexes);
        assert_eq!(
            indexes.nodes.values().map(|node| node.pods.len()).sum::<usize>(),
            indexes.pods.len()
        );
        sorted(indexes.nodes.iter().map(|(name, node)| {
            (
                name.clone(),
                sorted(node.pods.iter().map(|pod| pod.uid().to_owned())),
                sorted(node.requested.iter().cloned()),
                sorted(node.lives.keys().cloned()),
            )
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{empty_stores, pod, typed};
    use crate::nodemaintenance::successor::SUCCESSOR_ANNOTATION;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    #[test]
    fn pods_are_found_by_their_node() {
        let index = ClusterIndex::default();
        let on = |uid: &str, node: &Value| {
            let patch = json!({"metadata": {"uid": uid}, "spec": {"nodeName": node}});
            Some(Arc::new(pod(&patch)))
        };
        let uids = |node: &str| -> Vec<String> {
            let contents = index.contents_of(node);
            contents.pods.iter().map(|pod| pod.uid().to_owned()).collect()
        };
        let change = |old, new| index.pod_changed(&Change { old, new });
        change(None, on("a", &Value::Null));
        change(on("a", &Value::Null), on("a", &json!("one")));
        change(None, on("b", &json!("one")));
        change(on("a", &json!("one")), on("a", &json!("one")));
        assert_eq!(uids("one"), ["b", "a"]);
        // Another pod of the name.
        change(on("a", &json!("one")), on("c", &json!("two")));
        assert_eq!(
            (uids("one"), uids("two")),
            (vec!["b".to_owned()], vec!["c".to_owned()])
        );
        change(on("b", &json!("one")), None);
        assert!(uids("one").is_empty() && lock(&index.indexes).nodes.len() == 1);
        assert_eq!(index.node_of("c").as_deref(), Some("two"));
        assert_eq!((index.node_of("b"), index.version_of("one")), (None, 0));
    }

    #[test]
    fn requests_are_indexed_while_they_matter() {
        let request = |requester: &str, evicted: &str| -> Option<Arc<EvictionRequest>> {
            let origin = json!({"node": "one", "kind": "ReplicaSet", "name": "web", "uid": "rs"}).to_string();
            Some(Arc::new(typed(json!({
                "metadata": {
                    "name": "uid-1", "namespace": "shop", "annotations": {SUCCESSOR_ANNOTATION: origin},
                    "creationTimestamp": "1970-01-01T00:00:05Z",
                },
                "spec": {"requesters": [{"name": requester}]},
                "status": {"conditions": [{
                    "type": "Evicted", "status": evicted, "reason": "r", "message": "",
                    "lastTransitionTime": "1970-01-01T00:00:09Z",
                }]},
            }))))
        };
        let index = ClusterIndex::default();
        index.pod_changed(&Change {
            old: None,
            new: Some(Arc::new(pod(&json!({})))),
        });
        let state = || {
            (
                index.has_requested_pods("one"),
                index.contents_of("one").lives.len(),
            )
        };
        let ours = || request("nodemaintenance.k8s.io", "False");
        index.request_changed(&Change {
            old: None,
            new: ours(),
        });
        assert_eq!(state(), (true, 1));
        let finished = || request("nodemaintenance.k8s.io", "True");
        index.request_changed(&Change {
            old: ours(),
            new: finished(),
        });
        assert_eq!(state(), (false, 1));
        index.request_changed(&Change {
            old: finished(),
            new: None,
        });
        assert_eq!(state(), (false, 0));
        let of_another = request("a.example.com", "False");
        index.request_changed(&Change {
            old: None,
            new: of_another,
        });
        assert_eq!(state(), (false, 1));
    }

    /// A change of the cluster: which pod, and what happens.
    #[derive(Debug, Clone, Copy)]
    enum Event {
        /// The pod is bound to a node, moves to another one (which a new pod of the name does), or is deleted.
        Pod(usize, Option<usize>),
        /// Its request is created or changed.
        Request(usize, &'static str, &'static str),
        /// Its request is deleted.
        Deletion(usize),
    }

    fn events() -> impl Strategy<Value = Vec<Event>> {
        let requester = prop_oneof![Just("nodemaintenance.k8s.io"), Just("a.example.com")];
        let condition = prop_oneof![Just("Blocked"), Just("Evicted"), Just("Canceled")];
        let event = prop_oneof![
            (0_usize..6, proptest::option::of(0_usize..3)).prop_map(|(pod, node)| Event::Pod(pod, node)),
            (0_usize..6, requester, condition)
                .prop_map(|(pod, requester, condition)| Event::Request(pod, requester, condition)),
            (0_usize..6).prop_map(Event::Deletion),
        ];
        proptest::collection::vec(event, 0..60)
    }

    fn random_request(pod: usize, requester: &str, condition: &str) -> EvictionRequest {
        let origin = json!({"node": "node-0", "kind": "ReplicaSet", "name": "web", "uid": "rs"}).to_string();
        typed(json!({
            "metadata": {
                "name": format!("uid-{pod}"), "namespace": "shop", "creationTimestamp": "1970-01-01T00:00:05Z",
                "annotations": if pod == 0 { json!({SUCCESSOR_ANNOTATION: origin}) } else { json!({}) },
            },
            "spec": {"requesters": [{"name": requester}]},
            "status": {"conditions": [{
                "type": condition, "status": "True", "reason": "r", "message": "",
                "lastTransitionTime": "1970-01-01T00:00:09Z",
            }]},
        }))
    }

    proptest! {
        /// What was kept up to date with each change equals what is computed from the stores, and every change of a node
        /// has a new version.
        #[test]
        fn index_equals_one_from_scratch_after_any_changes(events in events()) {
            let (stores, index) = (empty_stores(), ClusterIndex::default());
            for event in events {
                let before = index.dump();
                let versions: Vec<u64> = before.iter().map(|(node, ..)| index.version_of(node)).collect();
                match event {
                    Event::Pod(number, node) => {
                        let (name, uid) = (format!("web-{number}"), format!("uid-{number}"));
                        let old = stores.pods.get("shop", &name);
                        let new = node.map(|node| pod(&json!({
                            "metadata": {"name": name, "uid": uid}, "spec": {"nodeName": format!("node-{node}")},
                        })));
                        match &new {
                            Some(new) => drop(stores.pods.put(new.clone())),
                            None => stores.pods.delete("shop", &name),
                        }
                        index.pod_changed(&Change { old, new: new.map(Arc::new) });
                    }
                    Event::Request(number, requester, condition) => {
                        let new = random_request(number, requester, condition);
                        let old = stores.requests.put(new.clone());
                        index.request_changed(&Change { old, new: Some(Arc::new(new)) });
                    }
                    Event::Deletion(number) => {
                        let name = format!("uid-{number}");
                        let old = stores.requests.get("shop", &name);
                        stores.requests.delete("shop", &name);
                        index.request_changed(&Change { old, new: None });
                    }
                }
                let after = index.dump();
                prop_assert_eq!(&after, &ClusterIndex::of(&stores).dump());
                for (node, version) in before.iter().zip(versions) {
                    if !after.contains(node) {
                        prop_assert_ne!(index.version_of(&node.0), version, "{:?}", node);
                    }
                }
            }
        }
    }
}
