//! One watch per kind fills a shared store. Change handlers run after the store contains the change.
//!
//! [`Informer::run`] is the only writer. A new list replaces the store in one step, so readers never see part of it.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::watch_health::{WatchFailure, WatchHealth, observed_client};

/// The longest pause between two events of a streamed list. A server without streaming lists may respond with a plain
/// watch, which never marks the end of the list.
const STREAMED_LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// Namespace (empty for cluster-scoped kinds) and name of an object.
pub type ObjectKey = (String, String);

/// The key of an object.
#[must_use]
pub fn key_of<K: Resource>(object: &K) -> ObjectKey {
    let meta = object.meta();
    (
        meta.namespace.clone().unwrap_or_default(),
        meta.name.clone().unwrap_or_default(),
    )
}

/// The last known objects of one kind. Clones share them.
#[derive(Debug)]
pub struct Store<K> {
    objects: Arc<RwLock<Objects<K>>>,
    synced: watch::Receiver<bool>,
    health: Arc<WatchHealth>,
}

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self {
            objects: Arc::clone(&self.objects),
            synced: self.synced.clone(),
            health: Arc::clone(&self.health),
        }
    }
}

/// By namespace (empty for cluster-scoped kinds), then by name.
type Objects<K> = HashMap<String, HashMap<String, Arc<K>>>;

impl<K> Store<K> {
    /// The object, if it exists. The namespace of cluster-scoped objects is empty.
    #[must_use]
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<K>> {
        self.read(|objects| objects.get(namespace)?.get(name).cloned())
    }

    /// The objects of a namespace, unordered.
    #[must_use]
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.read(|objects| {
            objects
                .get(namespace)
                .map(|objects| objects.values().cloned().collect())
        })
        .unwrap_or_default()
    }

    /// All objects, unordered.
    #[must_use]
    pub fn all(&self) -> Vec<Arc<K>> {
        self.read(|objects| objects.values().flat_map(HashMap::values).cloned().collect())
    }

    /// Whether there is no object.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.read(|objects| objects.values().all(HashMap::is_empty))
    }

    /// Whether the initial list is complete.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// The failure of the watch that fills the store, unless it works.
    #[must_use]
    pub fn failure(&self) -> Option<WatchFailure> {
        self.health.failure()
    }

    fn read<T>(&self, read: impl FnOnce(&Objects<K>) -> T) -> T {
        read(&self.objects.read().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
impl<K: Resource> Store<K> {
    /// A synced store of these objects.
    pub(crate) fn synced_with(list: Vec<K>) -> Self {
        let mut objects = HashMap::new();
        for object in list {
            insert(&mut objects, Arc::new(object));
        }
        Self {
            objects: Arc::new(RwLock::new(objects)),
            synced: watch::channel(true).1,
            health: Arc::default(),
        }
    }

    /// Waits until the initial list is complete.
    pub(crate) async fn wait_until_synced(&self) {
        let mut synced = self.synced.clone();
        drop(synced.wait_for(|synced| *synced).await.unwrap());
    }

    /// The state of its watch.
    pub(crate) fn health(&self) -> &WatchHealth {
        &self.health
    }

    /// Puts an object into the store, and returns the one before.
    pub(crate) fn put(&self, object: K) -> Option<Arc<K>> {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        insert(&mut objects, Arc::new(object))
    }

    /// Removes an object from the store.
    pub(crate) fn delete(&self, namespace: &str, name: &str) {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        objects
            .get_mut(namespace)
            .and_then(|objects| objects.remove(name));
    }
}

/// The creation, update or deletion of one object.
#[derive(Debug)]
pub struct Change<K> {
    /// The object before; `None` when it was created.
    pub old: Option<Arc<K>>,
    /// The object now; `None` when it was deleted.
    pub new: Option<Arc<K>>,
}

impl<K> Change<K> {
    /// The object now, or its last state when it was deleted.
    #[must_use]
    pub fn latest(&self) -> Option<&Arc<K>> {
        self.new.as_ref().or(self.old.as_ref())
    }

    /// The object before and now, as far as it existed.
    pub fn states(&self) -> impl Iterator<Item = &Arc<K>> {
        [&self.old, &self.new].into_iter().flatten()
    }
}

type ChangeHandler<K> = Box<dyn Fn(&Change<K>) + Send + Sync>;
type DeletionHandler<K> = Box<dyn Fn(&K) + Send + Sync>;

/// The writer of a store.
pub struct Informer<K> {
    objects: Arc<RwLock<Objects<K>>>,
    synced: watch::Sender<bool>,
    health: Arc<WatchHealth>,
    handlers: Vec<ChangeHandler<K>>,
    deletion_handlers: Vec<DeletionHandler<K>>,
    /// Drops fields that no controller reads.
    trim: fn(&mut K),
    /// The list being received, until it is complete.
    list: Objects<K>,
}

impl<K: Debug> Debug for Informer<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Informer")
            .field("synced", &self.synced)
            .finish_non_exhaustive()
    }
}

/// Why a watch ended.
enum WatchEnd {
    Cancelled,
    /// The server does not support streaming lists.
    StreamingUnsupported,
}

impl<K> Informer<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    /// An informer and its store. Objects are trimmed before they are stored.
    #[must_use]
    pub fn new(trim: fn(&mut K)) -> (Self, Store<K>) {
        let objects = Arc::new(RwLock::new(HashMap::new()));
        let (synced, seen) = watch::channel(false);
        let health = Arc::<WatchHealth>::default();
        let store = Store {
            objects: Arc::clone(&objects),
            synced: seen,
            health: Arc::clone(&health),
        };
        let informer = Self {
            objects,
            synced,
            health,
            handlers: Vec::new(),
            deletion_handlers: Vec::new(),
            trim,
            list: HashMap::new(),
        };
        (informer, store)
    }

    /// Adds a handler that is called for every change. It must not block: handlers only queue keys.
    pub fn add_handler(&mut self, handler: impl Fn(&Change<K>) + Send + Sync + 'static) {
        self.handlers.push(Box::new(handler));
    }

    /// Adds a handler for the deletions that the watch reports. Objects that a new list lacks are not among them: a list may
    /// be older than what was known before. It is called before those for changes, and must not block either.
    pub fn add_deletion_handler(&mut self, handler: impl Fn(&K) + Send + Sync + 'static) {
        self.deletion_handlers.push(Box::new(handler));
    }

    /// Watches until cancelled. The initial list is streamed, or paged where the server does not stream lists.
    pub async fn run(mut self, client: Client, cancel: CancellationToken) {
        let api = Api::all(observed_client(client, Arc::clone(&self.health)));
        let streaming = watcher::Config::default().streaming_lists();
        match self.watch(&api, streaming, &cancel, true).await {
            WatchEnd::Cancelled => return,
            WatchEnd::StreamingUnsupported => {
                tracing::info!(kind = %K::kind(&()), "the server does not support streaming lists; listing in pages");
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
    ) -> WatchEnd {
        let mut events = watcher(api.clone(), config).default_backoff().boxed();
        let mut is_listed = !is_streaming;
        // Whether the list has begun and is not complete.
        let mut is_listing = false;
        loop {
            let event = tokio::select! {
                () = cancel.cancelled() => return WatchEnd::Cancelled,
                () = tokio::time::sleep(STREAMED_LIST_TIMEOUT), if is_listing => return WatchEnd::StreamingUnsupported,
                event = events.next() => event,
            };
            match event {
                Some(Ok(event)) => {
                    is_listed |= matches!(event, Event::InitDone);
                    is_listing = !is_listed;
                    if !matches!(event, Event::Init | Event::InitApply(_)) {
                        self.health.delivered();
                    }
                    self.apply(event.modify(self.trim));
                }
                Some(Err(error)) => {
                    is_listing = false;
                    if !is_listed && is_unsupported(&error) {
                        return WatchEnd::StreamingUnsupported;
                    }
                    let error = summary(&error);
                    tracing::warn!(kind = %K::kind(&()), error, "watch interrupted");
                    self.health.failed(error);
                }
                None => return WatchEnd::Cancelled,
            }
        }
    }

    /// What happens when the watch delivers this event.
    #[cfg(test)]
    pub(crate) fn deliver(&mut self, event: Event<K>) {
        self.apply(event);
    }

    fn apply(&mut self, event: Event<K>) {
        match event {
            Event::Init => self.list = HashMap::new(),
            Event::InitApply(object) => {
                insert(&mut self.list, Arc::new(object));
            }
            Event::InitDone => self.replace_all(),
            Event::Apply(object) => {
                let new = Arc::new(object);
                let old = self.write(|objects| insert(objects, Arc::clone(&new)));
                self.notify(&Change { old, new: Some(new) });
            }
            Event::Delete(object) => {
                for handler in &self.deletion_handlers {
                    handler(&object);
                }
                let (namespace, name) = key_of(&object);
                let old = self.write(|objects| {
                    let in_namespace = objects.get_mut(&namespace)?;
                    let old = in_namespace.remove(&name);
                    if in_namespace.is_empty() {
                        objects.remove(&namespace);
                    }
                    old
                });
                self.notify(&Change {
                    old: Some(old.unwrap_or_else(|| Arc::new(object))),
                    new: None,
                });
            }
        }
    }

    /// Replaces the store by the complete list, then calls the handlers with the differences.
    fn replace_all(&mut self) {
        let list = std::mem::take(&mut self.list);
        let mut before = self.write(|objects| std::mem::replace(objects, list.clone()));
        self.synced.send_replace(true);
        for (namespace, objects) in list {
            let mut before = before.remove(&namespace).unwrap_or_default();
            for (name, new) in objects {
                let old = before.remove(&name);
                self.notify(&Change { old, new: Some(new) });
            }
            self.notify_deleted(before);
        }
        for gone in before.into_values() {
            self.notify_deleted(gone);
        }
    }

    fn notify_deleted(&self, gone: HashMap<String, Arc<K>>) {
        for old in gone.into_values() {
            self.notify(&Change {
                old: Some(old),
                new: None,
            });
        }
    }

    fn notify(&self, change: &Change<K>) {
        for handler in &self.handlers {
            handler(change);
        }
    }

    fn write<T>(&self, write: impl FnOnce(&mut Objects<K>) -> T) -> T {
        write(&mut self.objects.write().unwrap_or_else(PoisonError::into_inner))
    }
}

fn insert<K: Resource>(objects: &mut Objects<K>, object: Arc<K>) -> Option<Arc<K>> {
    let (namespace, name) = key_of(&*object);
    objects.entry(namespace).or_default().insert(name, object)
}

/// The server's message and code, where it sent them.
fn summary(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status))
        | watcher::Error::WatchError(status) => format!("{} ({})", status.message, status.code),
        error => error.to_string(),
    }
}

/// Whether the server rejected the parameters of a streaming list.
fn is_unsupported(error: &watcher::Error) -> bool {
    match error {
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) => matches!(status.code, 400 | 405 | 422),
        watcher::Error::WatchError(status) => matches!(status.code, 400 | 405 | 422),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{ReceivedRequest, api_double, failure, pod};
    use crate::pod::Pod;
    use serde_json::json;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn lists_replace_the_store_at_once_and_handlers_get_the_differences() {
        let (mut informer, store) = Informer::<Pod>::new(|_| {});
        let changes = Arc::new(Mutex::new(Vec::new()));
        informer.add_handler({
            let changes = Arc::clone(&changes);
            move |change: &Change<Pod>| {
                let name = change.latest().unwrap().name().to_owned();
                changes
                    .lock()
                    .unwrap()
                    .push((name, change.old.is_some(), change.new.is_some()));
            }
        });
        let deleted = Arc::new(Mutex::new(Vec::new()));
        informer.add_deletion_handler({
            let deleted = Arc::clone(&deleted);
            move |pod: &Pod| deleted.lock().unwrap().push(pod.name().to_owned())
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
        let changes = std::mem::take(&mut *changes.lock().unwrap());
        let expected = [
            ("a", false, true),
            ("b", false, true),
            ("b", true, true),
            ("b", true, false),
            ("c", false, true),
            ("a", true, false),
        ];
        assert_eq!(
            changes,
            expected.map(|(name, old, new)| (name.to_owned(), old, new))
        );
        assert_eq!(store.in_namespace("shop").len(), 1);
        // That the list lacks the first one may mean that the list is old.
        assert_eq!(*deleted.lock().unwrap(), ["b"]);
    }

    #[tokio::test(start_paused = true)]
    async fn servers_without_streaming_lists_are_listed_in_pages() {
        let (clients, received) = api_double(|request: &ReceivedRequest| {
            if request.query.contains("sendInitialEvents") {
                return failure(422, "Invalid", "sendInitialEvents: Forbidden", json!({}));
            }
            let page = json!({
                "apiVersion": "v1", "kind": "PodList",
                "metadata": {"resourceVersion": "5"},
                "items": [{"metadata": {"name": "a", "namespace": "shop"}}],
            });
            // A watch that ends at once: it is restarted after a pause.
            (
                200,
                if request.query.contains("watch=true") {
                    json!({})
                } else {
                    page
                },
            )
        });
        let (informer, store) = Informer::<Pod>::new(|_| {});
        let cancel = CancellationToken::new();
        let running = tokio::spawn(informer.run(clients.host, cancel.clone()));
        store.wait_until_synced().await;
        assert!(store.get("shop", "a").is_some());
        cancel.cancel();
        running.await.unwrap();
        let received = received.lock().unwrap();
        assert!(
            received[0].query.contains("sendInitialEvents"),
            "a streaming list is requested first"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn watch_that_is_refused_for_good_is_told_with_its_cause_until_it_is_allowed_again() {
        let is_refused = Arc::new(AtomicBool::new(true));
        let (clients, _) = api_double({
            let is_refused = Arc::clone(&is_refused);
            move |request: &ReceivedRequest| {
                if is_refused.load(Ordering::SeqCst) {
                    return failure(403, "Forbidden", "pods is forbidden", json!({}));
                }
                if request.query.contains("sendInitialEvents") {
                    return failure(422, "Invalid", "sendInitialEvents: Forbidden", json!({}));
                }
                let page = json!({"apiVersion": "v1", "kind": "PodList", "metadata": {"resourceVersion": "5"}, "items": []});
                (200, page)
            }
        });
        let (informer, store) = Informer::<Pod>::new(|_| {});
        let cancel = CancellationToken::new();
        let running = tokio::spawn(informer.run(clients.host, cancel.clone()));
        tokio::time::sleep(Duration::from_mins(5)).await;
        let failure = store.failure().unwrap();
        assert!(failure.lasting > Duration::from_mins(4), "{failure:?}");
        assert!(failure.cause.contains("pods is forbidden"), "{failure:?}");
        is_refused.store(false, Ordering::SeqCst);
        store.wait_until_synced().await;
        // The double ends each watch with an error, so it fails again: since now.
        let lasting = store.failure().map_or(Duration::ZERO, |failure| failure.lasting);
        assert!(lasting < Duration::from_secs(1), "{lasting:?}");
        cancel.cancel();
        running.await.unwrap();
    }

    /// The server accepts a watch from a version that it has not reached, and would deliver nothing.
    #[tokio::test(start_paused = true)]
    async fn store_that_was_emptied_is_listed_anew() {
        let is_emptied = Arc::new(AtomicBool::new(false));
        let (clients, _) = api_double({
            let is_emptied = Arc::clone(&is_emptied);
            move |request: &ReceivedRequest| {
                if request.query.contains("sendInitialEvents") {
                    return failure(422, "Invalid", "sendInitialEvents: Forbidden", json!({}));
                }
                if request.query.contains("watch=true") {
                    // It ends without an event.
                    return (200, json!(null));
                }
                let (version, items) = if is_emptied.load(Ordering::SeqCst) {
                    ("3", json!([]))
                } else {
                    ("50", json!([{"metadata": {"name": "a", "namespace": "shop"}}]))
                };
                let metadata = json!({"resourceVersion": version});
                (
                    200,
                    json!({"apiVersion": "v1", "kind": "PodList", "metadata": metadata, "items": items}),
                )
            }
        });
        let (informer, store) = Informer::<Pod>::new(|_| {});
        let cancel = CancellationToken::new();
        let running = tokio::spawn(informer.run(clients.host, cancel.clone()));
        store.wait_until_synced().await;
        tokio::time::sleep(Duration::from_mins(1)).await;
        assert!(store.get("shop", "a").is_some());
        is_emptied.store(true, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_mins(2)).await;
        assert!(store.all().is_empty());
        cancel.cancel();
        running.await.unwrap();
    }
}
