//! Indexes that are kept up to date with each change: the pods of each node, the unfinished requests for maintenances,
//! and the lives of successors by node. A round reads what concerns its nodes instead of the whole cluster.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use drydock_proto::kinds::evictionrequest::EvictionRequest;

use super::request_facts::has_maintenance_requester;
use super::successor::Life;
use crate::informer::{Change, ObjectKey, key_of};
use crate::pod::Pod;
use crate::sync::lock;

/// The indexes. The change handlers of the informers write them, rounds read them.
#[derive(Debug, Default)]
pub struct ClusterIndex(Mutex<Indexes>);

#[derive(Debug, Default)]
struct Indexes {
    /// By the name of the node.
    pods: HashMap<String, Vec<Arc<Pod>>>,
    /// Unfinished requests with the requester of maintenances.
    active_requests: HashSet<ObjectKey>,
    /// By the name of the node, then by request.
    lives: HashMap<String, HashMap<ObjectKey, Life>>,
}

impl ClusterIndex {
    /// Applies the change of a pod.
    pub fn pod_changed(&self, change: &Change<Pod>) {
        let mut indexes = lock(&self.0);
        if let Some(old) = &change.old {
            indexes.remove_pod(old);
        }
        if let Some(new) = &change.new
            && let Some(node) = new.spec.node_name.as_ref()
        {
            indexes
                .pods
                .entry(node.clone())
                .or_default()
                .push(Arc::clone(new));
        }
    }

    /// Applies the change of a request.
    pub fn request_changed(&self, change: &Change<EvictionRequest>) {
        let mut indexes = lock(&self.0);
        if let Some(old) = &change.old {
            let key = key_of(&**old);
            indexes.active_requests.remove(&key);
            if let Some(life) = Life::of(old) {
                indexes.remove_life(&life.origin.node, &key);
            }
        }
        if let Some(new) = &change.new {
            let key = key_of(&**new);
            if let Some(life) = Life::of(new) {
                let lives = indexes.lives.entry(life.origin.node.clone()).or_default();
                lives.insert(key.clone(), life);
            }
            if has_maintenance_requester(new) && !new.is_finished() {
                indexes.active_requests.insert(key);
            }
        }
    }

    /// The pods of the node.
    #[must_use]
    pub fn pods_of(&self, node: &str) -> Vec<Arc<Pod>> {
        lock(&self.0).pods.get(node).cloned().unwrap_or_default()
    }

    /// The lives of successors on the node.
    #[must_use]
    pub fn lives_of(&self, node: &str) -> Vec<Life> {
        let indexes = lock(&self.0);
        let lives = indexes.lives.get(node).into_iter().flat_map(HashMap::values);
        lives.cloned().collect()
    }

    /// Calls `visit` with namespace and name of each unfinished request for maintenances.
    pub fn visit_active_requests(&self, mut visit: impl FnMut(&ObjectKey)) {
        lock(&self.0).active_requests.iter().for_each(&mut visit);
    }
}

impl Indexes {
    fn remove_pod(&mut self, pod: &Pod) {
        let Some(node) = pod.spec.node_name.as_deref() else {
            return;
        };
        if let Some(pods) = self.pods.get_mut(node) {
            pods.retain(|one| one.uid() != pod.uid());
            if pods.is_empty() {
                self.pods.remove(node);
            }
        }
    }

    fn remove_life(&mut self, node: &str, request: &ObjectKey) {
        if let Some(lives) = self.lives.get_mut(node) {
            lives.remove(request);
            if lives.is_empty() {
                self.lives.remove(node);
            }
        }
    }
}

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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{pod, typed};
    use crate::nodemaintenance::successor::SUCCESSOR_ANNOTATION;
    use serde_json::{Value, json};

    #[test]
    fn pods_are_found_by_their_node() {
        let index = ClusterIndex::default();
        let on = |uid: &str, node: &Value| {
            let patch = json!({"metadata": {"uid": uid}, "spec": {"nodeName": node}});
            Some(Arc::new(pod(&patch)))
        };
        let uids = |node: &str| -> Vec<String> {
            let pods = index.pods_of(node);
            pods.iter().map(|pod| pod.uid().to_owned()).collect()
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
        assert!(uids("one").is_empty() && lock(&index.0).pods.len() == 1);
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
        let state = || {
            let mut active = 0;
            index.visit_active_requests(|_| active += 1);
            (active, index.lives_of("one").len())
        };
        let ours = || request("nodemaintenance.k8s.io", "False");
        index.request_changed(&Change {
            old: None,
            new: ours(),
        });
        assert_eq!(state(), (1, 1));
        let finished = || request("nodemaintenance.k8s.io", "True");
        index.request_changed(&Change {
            old: ours(),
            new: finished(),
        });
        assert_eq!(state(), (0, 1));
        index.request_changed(&Change {
            old: finished(),
            new: None,
        });
        assert_eq!(state(), (0, 0));
        let of_another = request("a.example.com", "False");
        index.request_changed(&Change {
            old: None,
            new: of_another,
        });
        assert_eq!(state(), (0, 1));
    }
}
