//! The pods with a request that the watch has reported as gone. It saves the look at the API that a pod which is not in
//! the store needs otherwise: such a pod may also be one that the watch has not delivered yet.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use crate::pod::Pod;
use crate::sync::lock;

/// How many pods are remembered, the last ones. A request whose pod was forgotten costs a call.
const MAX_PODS: usize = 10_000;

/// The UIDs of pods that are gone. A UID is never used again.
#[derive(Debug, Default)]
pub struct GonePods(Mutex<Uids>);

#[derive(Debug, Default)]
struct Uids {
    known: HashSet<Arc<str>>,
    /// In the order in which they were remembered.
    order: VecDeque<Arc<str>>,
}

impl GonePods {
    /// The watch reported the deletion of a pod that has a request. That a list lacks a pod is no such report: a server may
    /// answer with an old list, and what is told to be gone cannot be taken back.
    pub fn deleted(&self, pod: &Pod) {
        if !pod.uid().is_empty() {
            lock(&self.0).insert(pod.uid().into());
        }
    }

    /// The pod exists. One that comes back was in a backup from which the cluster was restored.
    pub fn exists(&self, pod: &Pod) {
        lock(&self.0).known.remove(pod.uid());
    }

    /// Whether the pod with this UID is known to be gone.
    #[must_use]
    pub fn contains(&self, uid: &str) -> bool {
        lock(&self.0).known.contains(uid)
    }
}

impl Uids {
    fn insert(&mut self, uid: Arc<str>) {
        if !self.known.insert(Arc::clone(&uid)) {
            return;
        }
        self.order.push_back(uid);
        while self.order.len() > MAX_PODS {
            if let Some(oldest) = self.order.pop_front() {
                self.known.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::pod;
    use serde_json::json;

    fn named(uid: &str) -> Pod {
        pod(&json!({"metadata": {"uid": uid}}))
    }

    #[test]
    fn deleted_pods_are_gone_until_they_come_back() {
        let gone = GonePods::default();
        gone.exists(&named("1"));
        assert!(!gone.contains("1"));
        gone.deleted(&named("1"));
        gone.deleted(&named(""));
        gone.exists(&named("2"));
        assert!(gone.contains("1") && !gone.contains("2") && !gone.contains(""));
        gone.exists(&named("1"));
        assert!(!gone.contains("1"));
    }

    #[test]
    fn the_last_pods_are_remembered() {
        let gone = GonePods::default();
        for number in 0..=MAX_PODS {
            gone.deleted(&named(&number.to_string()));
        }
        assert!(!gone.contains("0") && gone.contains("1") && gone.contains(&MAX_PODS.to_string()));
        let uids = lock(&gone.0);
        assert_eq!((uids.known.len(), uids.order.len()), (MAX_PODS, MAX_PODS));
    }
}
