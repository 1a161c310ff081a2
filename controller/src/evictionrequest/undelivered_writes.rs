//! The requests that this process has written and that the watch has not delivered yet: decisions are made from them
//! instead of the older ones in the store.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use drydock_proto::kinds::evictionrequest::EvictionRequest;

use crate::informer::ObjectKey;
use crate::sync::lock;

/// Written requests until the watch delivers them.
#[derive(Debug, Default)]
pub struct UndeliveredWrites(Mutex<HashMap<ObjectKey, Written>>);

/// A written request.
#[derive(Debug)]
struct Written {
    /// The resource versions before each write.
    superseded: HashSet<String>,
    latest: Arc<EvictionRequest>,
}

impl Written {
    fn supersedes(&self, request: &EvictionRequest) -> bool {
        let version = request.metadata.resource_version.as_deref();
        self.superseded.contains(version.unwrap_or_default())
    }
}

impl UndeliveredWrites {
    /// The request was written: `before` became `latest`, while the store has `stored`.
    pub fn written(
        &self,
        key: &ObjectKey,
        before: &EvictionRequest,
        latest: &Arc<EvictionRequest>,
        stored: Option<&EvictionRequest>,
    ) {
        if before.metadata.resource_version == latest.metadata.resource_version {
            return;
        }
        let mut writes = lock(&self.0);
        let written = writes.entry(key.clone()).or_insert_with(|| Written {
            superseded: HashSet::new(),
            latest: Arc::clone(latest),
        });
        written
            .superseded
            .extend(before.metadata.resource_version.clone());
        written.latest = Arc::clone(latest);
        // The watch may be faster than the response.
        if !stored.is_some_and(|stored| written.supersedes(stored)) {
            writes.remove(key);
        }
    }

    /// The watch delivered the request. Returns whether it is as this process last wrote it.
    pub fn delivered(&self, key: &ObjectKey, request: &EvictionRequest) -> bool {
        let mut writes = lock(&self.0);
        let Some(written) = writes.get(key).filter(|written| !written.supersedes(request)) else {
            return false;
        };
        let is_latest = written.latest.metadata.resource_version == request.metadata.resource_version;
        writes.remove(key);
        is_latest
    }

    /// The request as it was last written, unless the stored one is newer.
    #[must_use]
    pub fn latest(&self, key: &ObjectKey, stored: Arc<EvictionRequest>) -> Arc<EvictionRequest> {
        match lock(&self.0).get(key) {
            Some(written) if written.supersedes(&stored) => Arc::clone(&written.latest),
            _ => stored,
        }
    }

    /// Forgets what was written: the request is gone, or somebody else has written it too.
    pub fn forget(&self, key: &ObjectKey) {
        lock(&self.0).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::typed;
    use serde_json::json;

    fn key() -> ObjectKey {
        ("shop".to_owned(), "uid".to_owned())
    }

    fn version(version: &str) -> Arc<EvictionRequest> {
        Arc::new(typed(json!({
            "metadata": {"namespace": "shop", "name": "uid", "resourceVersion": version},
            "spec": {"target": {}},
        })))
    }

    fn latest(writes: &UndeliveredWrites, stored: &str) -> String {
        let latest = writes.latest(&key(), version(stored));
        latest.metadata.resource_version.clone().unwrap()
    }

    #[test]
    fn written_requests_count_until_the_watch_delivers_them() {
        let writes = UndeliveredWrites::default();
        writes.written(&key(), &version("1"), &version("2"), Some(&version("1")));
        writes.written(&key(), &version("2"), &version("3"), Some(&version("1")));
        assert_eq!(latest(&writes, "1"), "3");
        assert!(!writes.delivered(&key(), &version("2")));
        assert_eq!(latest(&writes, "2"), "3");
        assert!(writes.delivered(&key(), &version("3")));
        assert_eq!(latest(&writes, "3"), "3");
        assert!(lock(&writes.0).is_empty());
    }

    #[test]
    fn writes_of_others_are_not_those_of_this_process() {
        let writes = UndeliveredWrites::default();
        writes.written(&key(), &version("1"), &version("2"), Some(&version("1")));
        assert!(!writes.delivered(&key(), &version("5")));
        assert!(lock(&writes.0).is_empty());
        assert!(!writes.delivered(&key(), &version("6")), "nothing was written");
    }

    #[test]
    fn nothing_is_kept_that_the_watch_has_delivered_already() {
        let writes = UndeliveredWrites::default();
        writes.written(&key(), &version("1"), &version("2"), Some(&version("2")));
        writes.written(&key(), &version("2"), &version("3"), None);
        writes.written(&key(), &version("3"), &version("3"), Some(&version("3")));
        assert!(lock(&writes.0).is_empty());
    }
}
