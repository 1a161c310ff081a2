//! Mirrors: copies of the host's namespaces and nodes, metadata only, kept current by watches.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures_util::{Stream, StreamExt};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{
    Api,
    core::PartialObjectMeta,
    runtime::{
        WatchStreamExt,
        watcher::{self, Event},
    },
};

use crate::{
    health::Mark,
    host::{Namespace, NodeMetadata},
};

/// Time limit of a watch, in seconds, which the host enforces. The client takes a connection without any event for
/// longer than that for dead.
pub(super) const WATCH_SECONDS: u32 = 290;

/// A copy of some objects of the host, by name.
pub(super) struct Mirror<T> {
    objects: Mutex<HashMap<String, Arc<T>>>,
    synced: Mark,
}

impl<T> Default for Mirror<T> {
    fn default() -> Self {
        Self {
            objects: Mutex::default(),
            synced: Mark::default(),
        }
    }
}

impl<T> Mirror<T> {
    /// Whether the first list is complete.
    pub(super) fn is_synced(&self) -> bool {
        self.synced.is_set()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<T>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn get(&self, name: &str) -> Option<Arc<T>> {
        self.lock().get(name).cloned()
    }
}

#[derive(Debug)]
pub(super) struct MirroredNamespace {
    terminating: bool,
    labels: Arc<BTreeMap<String, String>>,
}

impl MirroredNamespace {
    pub(super) fn state(&self) -> Namespace {
        let labels = Arc::clone(&self.labels);
        if self.terminating {
            Namespace::Terminating(labels)
        } else {
            Namespace::Active(labels)
        }
    }
}

pub(super) fn mirrored_namespace(metadata: ObjectMeta) -> MirroredNamespace {
    MirroredNamespace {
        terminating: metadata.deletion_timestamp.is_some(),
        labels: Arc::new(metadata.labels.unwrap_or_default()),
    }
}

pub(super) fn mirrored_node(metadata: ObjectMeta) -> NodeMetadata {
    NodeMetadata {
        name: metadata.name.unwrap_or_default(),
        labels: metadata.labels.unwrap_or_default(),
    }
}

pub(super) type Events<K> =
    std::pin::Pin<Box<dyn Stream<Item = watcher::Result<Event<PartialObjectMeta<K>>>> + Send>>;

pub(super) fn watch_all<K>(api: Api<PartialObjectMeta<K>>) -> Events<K>
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + fmt::Debug
        + Send
        + Sync
        + serde::de::DeserializeOwned
        + 'static,
{
    watcher::watcher(api, watcher::Config::default().timeout(WATCH_SECONDS))
        .default_backoff()
        .boxed()
}

/// Keeps a mirror current. A list fills a separate copy that replaces the old one when complete, so readers never see a
/// partial list.
pub(super) async fn mirror<K, T>(
    mut events: Events<K>,
    mirror: Arc<Mirror<T>>,
    what: &'static str,
    convert: fn(ObjectMeta) -> T,
) {
    let mut listing = HashMap::new();
    let entry = |object: PartialObjectMeta<K>| {
        let name = object.metadata.name.clone().unwrap_or_default();
        (name, Arc::new(convert(object.metadata)))
    };
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => listing.clear(),
            Ok(Event::InitApply(object)) => {
                let (name, object) = entry(object);
                listing.insert(name, object);
            }
            Ok(Event::InitDone) => {
                *mirror.lock() = std::mem::take(&mut listing);
                mirror.synced.set();
                tracing::debug!(what, "mirror complete");
            }
            Ok(Event::Apply(object)) => {
                let (name, object) = entry(object);
                mirror.lock().insert(name, object);
            }
            Ok(Event::Delete(object)) => {
                mirror
                    .lock()
                    .remove(object.metadata.name.as_deref().unwrap_or_default());
            }
            Err(error) => tracing::warn!(what, %error, "watching the host failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Namespace as KubeNamespace;

    use super::*;

    fn object(name: &str, labels: &[(&str, &str)], deleted: bool) -> PartialObjectMeta<KubeNamespace> {
        let labels = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let metadata = ObjectMeta {
            name: Some(name.to_owned()),
            labels: Some(labels),
            deletion_timestamp: deleted
                .then(|| k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(crate::fixtures::noon())),
            ..ObjectMeta::default()
        };
        PartialObjectMeta {
            metadata,
            ..PartialObjectMeta::default()
        }
    }

    #[tokio::test]
    async fn readers_never_see_a_partial_list() {
        let copy: Arc<Mirror<MirroredNamespace>> = Arc::default();
        let (events, received) = tokio::sync::mpsc::channel::<Event<PartialObjectMeta<KubeNamespace>>>(8);
        let stream = futures_util::stream::unfold(received, |mut received| async move {
            received.recv().await.map(|event| (Ok(event), received))
        });
        let task = tokio::spawn(mirror(
            stream.boxed(),
            Arc::clone(&copy),
            "namespaces",
            mirrored_namespace,
        ));
        let settled = async || {
            while events.capacity() < 8 {
                tokio::task::yield_now().await;
            }
        };

        events.send(Event::Init).await.unwrap();
        events
            .send(Event::InitApply(object("a", &[("k", "v")], false)))
            .await
            .unwrap();
        settled().await;
        assert!(copy.get("a").is_none() && !copy.synced.is_set());
        events.send(Event::InitDone).await.unwrap();
        settled().await;
        tokio::task::yield_now().await;
        let labels = Arc::new(BTreeMap::from([("k".to_owned(), "v".to_owned())]));
        assert_eq!(copy.get("a").unwrap().state(), Namespace::Active(labels));

        events.send(Event::Apply(object("a", &[], true))).await.unwrap();
        events.send(Event::Delete(object("b", &[], false))).await.unwrap();
        settled().await;
        tokio::task::yield_now().await;
        assert!(matches!(
            copy.get("a").unwrap().state(),
            Namespace::Terminating(_)
        ));
        drop(events);
        task.await.unwrap();
    }
}
