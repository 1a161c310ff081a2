//! What is out there? One watch per kind fills a store that everybody may read; whoever wants to know of changes
//! is told after the store holds them.
//!
//! The one writer is [`Informer::run`]. The first list is swapped in whole, so readers never see half of it.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long a server that streams its first list may be silent. One that does not know streaming lists may answer
/// with a plain watch, which never says that the list is complete.
const STREAMED_LIST_SILENCE: Duration = Duration::from_secs(10);

/// Objects of one kind, readable by everybody.
#[derive(Debug)]
pub struct Store<K> {
    objects: Arc<RwLock<Objects<K>>>,
    synced: watch::Receiver<bool>,
}

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self {
            objects: Arc::clone(&self.objects),
            synced: self.synced.clone(),
        }
    }
}

/// By namespace (empty for cluster-scoped kinds), then by name.
type Objects<K> = HashMap<String, HashMap<String, Arc<K>>>;

impl<K> Store<K> {
    /// The object, if it is there. Cluster-scoped objects have an empty namespace.
    #[must_use]
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.read(|objects| objects.get(namespace)?.get(name).cloned())
    }

    /// The objects of a namespace, in no order.
    #[must_use]
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.read(|objects| {
            objects
                .get(namespace)
                .map(|objects| objects.values().cloned().collect())
        })
        .unwrap_or_default()
    }

    /// All objects, in no order.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<K>> {
        self.read(|objects| objects.values().flat_map(HashMap::values).cloned().collect())
    }

    /// Whether the first list is complete.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits until the first list is complete, or for ever if the informer has ended before.
    pub async fn synced(&self) {
        let mut synced = self.synced.clone();
        if synced.wait_for(|synced| *synced).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn read<T>(&self, read: impl FnOnce(&Objects<K>) -> T) -> T {
        read(&self.objects.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// A change of one object: it came, changed, or went.
#[derive(Debug)]
pub struct Change<K> {
    /// The object before.
    pub old: Option<Arc<K>>,
    /// The object now.
    pub new: Option<Arc<K>>,
}

impl<K> Change<K> {
    /// The object now, or as it was last.
    #[must_use]
    pub fn latest(&self) -> Option<&Arc<K>> {
        self.new.as_ref().or(self.old.as_ref())
    }
}

type Listener<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;

/// The one that fills a store.
pub struct Informer<K> {
    objects: Arc<RwLock<Objects<K>>>,
    synced: watch::Sender<bool>,
    listeners: Vec<Listener<K>>,
    trim: fn(&mut K),
    list: Objects<K>,
}

impl<K: Debug> Debug for Informer<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Informer")
            .field("synced", &self.synced)
            .finish_non_exhaustive()
    }
}

/// Why a watch is begun anew in the other way.
enum Ended {
    Cancelled,
    NoStreamedLists,
}

impl<K> Informer<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    /// An informer whose objects are trimmed before they are stored.
    #[must_use]
    pub fn new(trim: fn(&mut K)) -> (Self, Store<K>) {
        let objects = Arc::new(RwLock::new(HashMap::new()));
        let (synced, seen) = watch::channel(false);
        let store = Store {
            objects: Arc::clone(&objects),
            synced: seen,
        };
        let informer = Self {
            objects,
            synced,
            listeners: Vec::new(),
            trim,
            list: HashMap::new(),
        };
        (informer, store)
    }

    /// Tells of every change. The listener must not wait: it has keys queued, no more.
    pub fn listen(&mut self, listener: impl Fn(&Change<K>) + Send + Sync + 'static) {
        self.listeners.push(Box::new(listener));
    }

    /// Watches until cancelled. Asks for a streamed first list, and for pages where the server has none.
    pub async fn run(mut self, api: Api<K>, cancel: CancellationToken) {
        let streaming = watcher::Config::default().streaming_lists();
        match self.watch(&api, streaming, &cancel, true).await {
            Ended::Cancelled => return,
            Ended::NoStreamedLists => {
                tracing::info!(kind = %K::kind(&()), "the server streams no lists: listing in pages");
            }
        }
        self.watch(&api, watcher::Config::default(), &cancel, false).await;
    }

    async fn watch(
        &mut self,
        api: &Api<K>,
        config: watcher::Config,
        cancel: &CancellationToken,
        is_streaming: bool,
    ) -> Ended {
        let mut events = watcher(api.clone(), config).default_backoff().boxed();
        let mut is_listed = !is_streaming;
        // From when the server has begun to answer until its list is complete.
        let mut is_listing = false;
        loop {
            let event = tokio::select! {
                () = cancel.cancelled() => return Ended::Cancelled,
                () = tokio::time::sleep(STREAMED_LIST_SILENCE), if is_listing => return Ended::NoStreamedLists,
                event = events.next() => event,
            };
            match event {
                Some(Ok(event)) => {
                    is_listed |= matches!(event, Event::InitDone);
                    is_listing = !is_listed;
                    self.apply(event.modify(self.trim));
                }
                Some(Err(error)) => {
                    is_listing = false;
                    if !is_listed && is_unsupported(&error) {
                        return Ended::NoStreamedLists;
                    }
                    let error = in_words(&error);
                    tracing::warn!(kind = %K::kind(&()), error, "a watch was interrupted");
                }
                None => return Ended::Cancelled,
            }
        }
    }

    fn apply(&mut self, event: Event<K>) {
        match event {
            Event::Init => self.list = HashMap::new(),
            Event::InitApply(object) => {
                insert(&mut self.list, Arc::new(object));
            }
            Event::InitDone => self.swap(),
            Event::Apply(object) => {
                let new = Arc::new(object);
                let old = self.write(|objects| insert(objects, Arc::clone(&new)));
                self.tell(&Change { old, new: Some(new) });
            }
            Event::Delete(object) => {
                let (namespace, name) = key(&object);
                let old = self.write(|objects| {
                    let in_namespace = objects.get_mut(&namespace)?;
                    let old = in_namespace.remove(&name);
                    if in_namespace.is_empty() {
                        objects.remove(&namespace);
                    }
                    old
                });
                self.tell(&Change {
                    old: Some(old.unwrap_or_else(|| Arc::new(object))),
                    new: None,
                });
            }
        }
    }

    /// Puts a complete list in the place of what was there, and tells what came of it.
    fn swap(&mut self) {
        let list = std::mem::take(&mut self.list);
        let mut before = self.write(|objects| std::mem::replace(objects, list.clone()));
        self.synced.send_replace(true);
        for (namespace, objects) in list {
            let mut before = before.remove(&namespace).unwrap_or_default();
            for (name, new) in objects {
                let old = before.remove(&name);
                self.tell(&Change { old, new: Some(new) });
            }
            self.tell_gone(before);
        }
        for gone in before.into_values() {
            self.tell_gone(gone);
        }
    }

    fn tell_gone(&self, gone: HashMap<String, Arc<K>>) {
        for old in gone.into_values() {
            self.tell(&Change {
                old: Some(old),
                new: None,
            });
        }
    }

    fn tell(&self, change: &Change<K>) {
        for listener in &self.listeners {
            listener(change);
        }
    }

    fn write<T>(&self, write: impl FnOnce(&mut Objects<K>) -> T) -> T {
        write(&mut self.objects.write().unwrap_or_else(PoisonError::into_inner))
    }
}

fn insert<K: Resource>(objects: &mut Objects<K>, object: Arc<K>) -> Option<Arc<K>> {
    let (namespace, name) = key(&*object);
    objects.entry(namespace).or_default().insert(name, object)
}

fn key<K: Resource>(object: &K) -> (String, String) {
    let meta = object.meta();
    (
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}

/// What the server said, without the form it said it in.
fn in_words(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => format!("{} ({})", status.message, status.code),
        error => error.to_string(),
    }
}

/// Whether the server refused the parameters of a streamed list.
fn is_unsupported(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) => matches!(status.code, 400 | 405 | 422),
        watcher::Error::WatchError(status) => matches!(status.code, 400 | 405 | 422),
        _ => false,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::api::tests::{Seen, double, failure};
    use crate::pod::Pod;
    use crate::pod::tests::pod;
    use serde_json::json;
    use std::sync::Mutex;

    /// A store that holds these objects.
    pub(crate) fn store<K>(objects: Vec<K>) -> Store<K>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
    {
        let (mut informer, store) = Informer::new(|_| {});
        informer.apply(Event::Init);
        for object in objects {
            informer.apply(Event::InitApply(object));
        }
        informer.apply(Event::InitDone);
        store
    }

    #[test]
    fn lists_are_swapped_in_whole_and_differences_told() {
        let (mut informer, store) = Informer::<Pod>::new(Pod::trim);
        let told = Arc::new(Mutex::new(Vec::new()));
        informer.listen({
            let told = Arc::clone(&told);
            move |change: &Change<Pod>| {
                let name = change.latest().unwrap().name().to_owned();
                told.lock()
                    .unwrap()
                    .push((name, change.old.is_some(), change.new.is_some()));
            }
        });
        let named = |name: &str| pod(&json!({"metadata": {"name": name}}));
        informer.apply(Event::Init);
        informer.apply(Event::InitApply(named("a")));
        assert!(!store.is_synced() && store.all().is_empty());
        informer.apply(Event::InitDone);
        assert!(store.is_synced() && store.get("shop", "a").is_some());
        informer.apply(Event::Apply(named("b")));
        informer.apply(Event::Apply(named("b")));
        informer.apply(Event::Delete(named("b")));
        informer.apply(Event::Init);
        informer.apply(Event::InitApply(named("c")));
        informer.apply(Event::InitDone);
        let told = std::mem::take(&mut *told.lock().unwrap());
        let expected = [
            ("a", false, true),
            ("b", false, true),
            ("b", true, true),
            ("b", true, false),
            ("c", false, true),
            ("a", true, false),
        ];
        assert_eq!(told, expected.map(|(name, old, new)| (name.to_owned(), old, new)));
        assert_eq!(store.in_namespace("shop").len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_without_streamed_lists_is_listed() {
        let (client, seen) = double(|seen: &Seen| {
            if seen.query.contains("sendInitialEvents") {
                return failure(422, "Invalid", "sendInitialEvents: Forbidden", json!({}));
            }
            let page = json!({
                "apiVersion": "v1", "kind": "PodList",
                "metadata": {"resourceVersion": "5"},
                "items": [{"metadata": {"name": "a", "namespace": "shop"}}],
            });
            // A watch that ends at once: it is begun again after a pause.
            (
                200,
                if seen.query.contains("watch=true") {
                    json!({})
                } else {
                    page
                },
            )
        });
        let (informer, store) = Informer::<Pod>::new(Pod::trim);
        let cancel = CancellationToken::new();
        let running = tokio::spawn(informer.run(Api::all(client), cancel.clone()));
        store.synced().await;
        assert!(store.get("shop", "a").is_some());
        cancel.cancel();
        running.await.unwrap();
        let seen = seen.lock().unwrap();
        assert!(
            seen[0].query.contains("sendInitialEvents"),
            "streaming is tried first"
        );
    }
}
