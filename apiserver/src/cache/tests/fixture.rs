//! A cache over a memory store, objects with a label and a field, and an encoder whose frames can be parsed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use drydock_storage::memory::MemoryStore;
use drydock_storage::{Key, Outcome, Revision, Store, Transaction, Value};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::super::*;
use crate::request::projection::Projection;

pub(super) const GROUP: &str = "g";
pub(super) const RESOURCE: &str = "things";

/// The content of a test object.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Thing {
    pub(super) app: String,
    pub(super) phase: String,
    pub(super) serial: u64,
}

impl Thing {
    pub(super) fn new(app: &str, phase: &str, serial: u64) -> Self {
        Self {
            app: app.to_owned(),
            phase: phase.to_owned(),
            serial,
        }
    }

    pub(super) fn value(&self) -> Value {
        let text = format!(
            r#"{{"app":"{}","phase":"{}","serial":{}}}"#,
            self.app, self.phase, self.serial
        );
        Value {
            bytes: text.into(),
            form: "v1".into(),
            splice_offset: 1,
        }
    }

    pub(super) fn read(payload: &[u8]) -> Self {
        let text = std::str::from_utf8(payload).unwrap();
        let parts: Vec<&str> = text.split(['"', ':', '}']).collect();
        Self::new(parts[4], parts[9], parts[13].parse().unwrap())
    }
}

pub(super) fn thing(app: &str, serial: u64) -> Thing {
    Thing::new(app, "x", serial)
}

pub(super) fn extract(_: &Key, value: &Value) -> Attributes {
    let thing = Thing::read(&value.bytes);
    Attributes {
        uid: thing.serial.to_string(),
        labels: vec![("app".to_owned(), thing.app)],
        fields: vec![("status.phase".to_owned(), thing.phase)],
    }
}

pub(super) fn key(namespace: &str, name: &str) -> Key {
    Key::new(GROUP, RESOURCE, namespace, name).unwrap()
}

/// A condition on one attribute: `name=value` or `name!=value`.
pub(super) struct Attribute {
    name: String,
    value: String,
    is_equal: bool,
}

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}{}{}",
            self.name,
            if self.is_equal { "=" } else { "!=" },
            self.value
        )
    }
}

impl Predicate for Attribute {
    fn matches<'a>(&self, lookup: &dyn Fn(&str) -> Option<&'a str>) -> bool {
        (lookup(&self.name) == Some(&self.value)) == self.is_equal
    }

    fn equalities(&self) -> Vec<(String, String)> {
        let pair = (self.name.clone(), self.value.clone());
        self.is_equal.then_some(pair).into_iter().collect()
    }

    fn is_empty(&self) -> bool {
        self.name.is_empty()
    }
}

fn predicate(text: &str) -> Box<dyn Predicate> {
    let (name, value, is_equal) = if let Some((name, value)) = text.split_once("!=") {
        (name, value, false)
    } else {
        let (name, value) = text.split_once('=').unwrap_or_default();
        (name, value, true)
    };
    Box::new(Attribute {
        name: name.to_owned(),
        value: value.to_owned(),
        is_equal,
    })
}

pub(super) fn select(scope: Scope, labels: &str, fields: &str) -> Selection {
    let (labels, fields) = (Some(predicate(labels)), Some(predicate(fields)));
    Selection::new(GROUP, RESOURCE, scope, labels, fields)
}

pub(super) fn everything() -> Selection {
    select(Scope::All, "", "")
}

pub(super) fn namespace(name: &str) -> Scope {
    Scope::Namespace(name.to_owned())
}

/// A parsed frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    Event {
        kind: WatchKind,
        key: String,
        revision: Revision,
        thing: Thing,
    },
    Bookmark {
        revision: Revision,
        ends_initial_events: bool,
    },
}

/// Encodes events as lines, and counts how many.
#[derive(Default)]
pub(super) struct Lines {
    /// The version it pretends to encode, which distinguishes encoders.
    pub(super) face: &'static str,
    pub(super) encoded: AtomicUsize,
    /// The key that it fails to encode.
    pub(super) poison: Option<Key>,
    pub(super) padding: usize,
}

impl EventEncoder for Lines {
    fn id(&self) -> EncoderId {
        EncoderId {
            face: self.face,
            projection: Projection::Object,
            media_type: crate::request::negotiate::MediaType::Json,
        }
    }

    fn event(
        &self,
        kind: WatchKind,
        object: &CachedObject,
        revision: Revision,
        out: &mut BytesMut,
    ) -> Result<(), EncodeError> {
        self.encoded.fetch_add(1, Ordering::Relaxed);
        if self.poison.as_ref() == Some(object.key()) {
            out.put_slice(b"half a frame");
            return Err(EncodeError {
                key: object.key().to_string(),
                source: Arc::new(fmt::Error),
            });
        }
        let thing = Thing::read(&object.value().bytes);
        let key = object.key();
        let padding = " ".repeat(self.padding);
        let line = format!(
            "{kind:?}|{key}|{revision}|{}|{}|{}|{padding}\n",
            thing.app, thing.phase, thing.serial
        );
        out.put_slice(line.as_bytes());
        Ok(())
    }

    fn bookmark(&self, revision: Revision, ends_initial_events: bool, out: &mut BytesMut) {
        out.put_slice(format!("Bookmark||{revision}|{ends_initial_events}\n").as_bytes());
    }
}

pub(super) fn frames(buffer: &Bytes) -> Vec<Frame> {
    let text = std::str::from_utf8(buffer).unwrap();
    text.lines().map(frame).collect()
}

fn frame(line: &str) -> Frame {
    let parts: Vec<&str> = line.split('|').collect();
    let revision = Revision(parts[2].parse().unwrap());
    let kind = match parts[0] {
        "Bookmark" => {
            return Frame::Bookmark {
                revision,
                ends_initial_events: parts[3] == "true",
            };
        }
        "Added" => WatchKind::Added,
        "Modified" => WatchKind::Modified,
        "Deleted" => WatchKind::Deleted,
        other => panic!("unknown kind {other}"),
    };
    Frame::Event {
        kind,
        key: parts[1].to_owned(),
        revision,
        thing: Thing::new(parts[3], parts[4], parts[5].parse().unwrap()),
    }
}

pub(super) fn event(kind: WatchKind, key: &Key, revision: u64, thing: Thing) -> Frame {
    Frame::Event {
        kind,
        key: key.to_string(),
        revision: Revision(revision),
        thing,
    }
}

pub(super) fn bookmark(revision: u64, ends_initial_events: bool) -> Frame {
    Frame::Bookmark {
        revision: Revision(revision),
        ends_initial_events,
    }
}

/// A cache over a store, with a running feeder.
pub(super) struct Fixture<S: Store = MemoryStore> {
    pub(super) store: S,
    pub(super) cache: WatchCache<S>,
    _feeder: DropGuard,
}

pub(super) fn config(limits: CacheLimits) -> CacheConfig {
    CacheConfig {
        group: GROUP.to_owned(),
        resource: RESOURCE.to_owned(),
        extract: Arc::new(extract),
        limits,
        metrics: CacheMetrics::default(),
        seed: 1,
    }
}

impl Fixture {
    pub(super) async fn new() -> Self {
        Self::with(CacheLimits::default()).await
    }

    pub(super) async fn with(limits: CacheLimits) -> Self {
        Self::over(MemoryStore::new(), limits).await
    }
}

impl<S: Store> Fixture<S> {
    pub(super) async fn over(store: S, limits: CacheLimits) -> Self {
        let (cache, feeder) = WatchCache::new(store.clone(), config(limits));
        let shutdown = CancellationToken::new();
        tokio::spawn(feeder.run(shutdown.clone()));
        cache.ready().await;
        Self {
            store,
            cache,
            _feeder: shutdown.drop_guard(),
        }
    }

    /// Writes an object and waits until the cache has applied it.
    pub(super) async fn write(&self, key: &Key, thing: Option<Thing>) -> Revision {
        let revision = write(&self.store, key, thing).await;
        self.cache.reads.not_older_than(revision).await.unwrap();
        revision
    }

    pub(super) async fn put(&self, key: &Key, thing: &Thing) -> Revision {
        self.write(key, Some(thing.clone())).await
    }

    pub(super) async fn delete(&self, key: &Key) -> Revision {
        self.write(key, None).await
    }

    pub(super) async fn watch(&self, selection: Selection, start: WatchStart) -> Watcher<S> {
        let request = WatchRequest {
            selection,
            start,
            bookmarks: false,
            timeout: HOUR,
        };
        self.cache.subscribe(request).await.unwrap()
    }
}

pub(super) const HOUR: Duration = Duration::from_hours(1);

pub(super) async fn write(store: &impl Store, key: &Key, thing: Option<Thing>) -> Revision {
    let found = store.get(key).await.unwrap().entry;
    let transaction = match (found, thing) {
        (None, Some(thing)) => Transaction::create(key.clone(), thing.value()),
        (Some(entry), Some(thing)) => Transaction::update(key.clone(), entry.modified, thing.value()),
        (Some(entry), None) => Transaction::delete(key.clone(), entry.modified),
        (None, None) => panic!("{key} is absent"),
    };
    match store.transact(transaction).await.unwrap() {
        Outcome::Committed { revision } => revision,
        conflict @ Outcome::Conflict { .. } => panic!("{conflict:?}"),
    }
}

/// The next frames of a watch; none when none come within 20 ms.
pub(super) async fn next<S: Store>(
    watcher: &mut Watcher<S>,
    encoder: &Lines,
) -> Option<Option<Result<Vec<Frame>, WatchEnd>>> {
    let moment = Duration::from_millis(20);
    let buffer = tokio::time::timeout(moment, watcher.next_buffer(encoder))
        .await
        .ok()?;
    Some(buffer.map(|buffer| buffer.map(|buffer| frames(&buffer))))
}

/// All frames that are available.
pub(super) async fn drain<S: Store>(watcher: &mut Watcher<S>) -> Vec<Frame> {
    let encoder = Lines::default();
    let mut all = Vec::new();
    while let Some(Some(buffer)) = next(watcher, &encoder).await {
        all.extend(buffer.unwrap());
    }
    all
}

/// The things of a list by key.
pub(super) fn things(objects: Objects) -> BTreeMap<String, (Revision, Thing)> {
    objects
        .map(|object| {
            let thing = Thing::read(&object.value().bytes);
            (object.key().to_string(), (object.modified(), thing))
        })
        .collect()
}

pub(super) fn names(objects: Objects) -> Vec<String> {
    objects.map(|object| object.key().name().to_owned()).collect()
}

/// A watch of everything, with bookmarks; `timeout` in seconds.
pub(super) fn request(start: WatchStart, timeout: u64) -> WatchRequest {
    WatchRequest {
        selection: everything(),
        start,
        bookmarks: true,
        timeout: Duration::from_secs(timeout),
    }
}

/// What a watch sends until it ends, with the second at which each frame came.
pub(super) async fn until_end<S: Store>(mut watcher: Watcher<S>) -> Vec<(u64, Frame)> {
    let start = Instant::now();
    let mut all = Vec::new();
    while let Some(buffer) = watcher.next_buffer(&Lines::default()).await {
        let second = start.elapsed().as_secs_f64().round();
        let second = format!("{second}").parse().unwrap();
        all.extend(frames(&buffer.unwrap()).into_iter().map(|frame| (second, frame)));
    }
    all
}

pub(super) fn revision(frame: &Frame) -> u64 {
    match frame {
        Frame::Event { revision, .. } | Frame::Bookmark { revision, .. } => revision.0,
    }
}

pub(super) fn query(selection: Selection, limit: usize) -> Query {
    Query {
        selection,
        start: None,
        limit,
    }
}

/// The names in a list.
pub(super) async fn listed<S: Store>(
    cache: &WatchCache<S>,
    selection: Selection,
    state: impl Into<ListState>,
) -> Vec<String> {
    let page = cache.list(&query(selection, 0), state.into()).await.unwrap();
    names(page.objects)
}

pub(super) const FRESHNESS: [Freshness; 3] = [
    Freshness::MostRecent,
    Freshness::Any,
    Freshness::NotOlderThan(Revision(4)),
];

/// All of [`FRESHNESS`], and exactly the newest revision.
pub(super) fn list_states() -> impl Iterator<Item = ListState> {
    let newest = FRESHNESS.map(ListState::Newest);
    newest.into_iter().chain([ListState::Exactly(Revision(4))])
}
