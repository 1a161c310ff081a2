//! The pods with a request that the watch has reported as gone. It saves the look at the API that a pod which is not in
//! the store needs otherwise: such a pod may also be one that the watch has not delivered yet.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use crate::informer::Change;
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
    /// Learns from a change of a pod that has a request.
    pub fn observe(&self, change: &Change<Pod>) {
        let new = change.new.as_deref().map(Pod::uid);
        let old = change.old.as_deref().map(Pod::uid);
        let mut uids = lock(&self.0);
        // A pod that comes back was in a backup from which the cluster was restored.
        if let Some(uid) = new {
            uids.known.remove(uid);
        }
        if let Some(uid) = old.filter(|&old| !old.is_empty() && new != Some(old)) {
            uids.insert(uid.into());
        }
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

    fn change(old: Option<&str>, new: Option<&str>) -> Change<Pod> {
        let named = |uid: &str| Arc::new(pod(&json!({"metadata": {"uid": uid}})));
        Change {
            old: old.map(named),
            new: new.map(named),
        }
    }

    #[test]
    fn deleted_and_replaced_pods_are_gone_until_they_come_back() {
        let gone = GonePods::default();
        gone.observe(&change(None, Some("1")));
        gone.observe(&change(Some("1"), Some("1")));
        assert!(!gone.contains("1"));
        gone.observe(&change(Some("1"), None));
        gone.observe(&change(Some("2"), Some("3")));
        assert!(gone.contains("1") && gone.contains("2") && !gone.contains("3"));
        gone.observe(&change(None, Some("1")));
        assert!(!gone.contains("1"));
    }

    #[test]
    fn the_last_pods_are_remembered() {
        let gone = GonePods::default();
        for number in 0..=MAX_PODS {
            gone.observe(&change(Some(&number.to_string()), None));
        }
        assert!(!gone.contains("0") && gone.contains("1") && gone.contains(&MAX_PODS.to_string()));
        let uids = lock(&gone.0);
        assert_eq!((uids.known.len(), uids.order.len()), (MAX_PODS, MAX_PODS));
    }
}
