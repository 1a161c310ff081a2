//! Kubernetes Events about requests, maintenances, pods and nodes. They are written in the background; an Event that
//! equals an earlier one is published once an hour at most, so that heartbeats and retries do not flood the API. An
//! Event that could not be written does not count as published.
//!
//! The course of a drain is told in the status of requests and maintenances. Events about the usual course of pods and
//! requests are published at a limited rate, so that a large drain does not cost the host more Events than evictions.
//! Warnings, and what concerns nodes and maintenances, are not limited.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use drydock_machinery::clock::Clock;
use futures_util::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use tokio::sync::mpsc::{self, error::TrySendError};
use tokio_util::sync::CancellationToken;

use crate::sync::lock;

/// `reportingController` of every Event.
const REPORTER: &str = "drydock-controller";
/// How long an equal Event about the same object is not published again.
const DEDUPLICATION_PERIOD: Duration = Duration::from_hours(1);
/// How many Events may wait to be written. More are dropped: Events are best effort.
const QUEUE_CAPACITY: usize = 1024;
/// How many published Events are remembered for deduplication.
const MAX_REMEMBERED: usize = 50_000;
/// How many bytes of the object's name begin the name of its Events. The limit of a name is 253.
const MAX_NAME_PREFIX: usize = 200;
/// The longest note that the API accepts, in bytes.
const MAX_NOTE: usize = 1024;
/// How many Events about the usual course of pods and requests are published at once.
const USUAL_BURST: f64 = 100.0;
/// How many of them are published a second after that.
const USUAL_RATE: f64 = 2.0;
/// How many Events are written at a time: each takes until the next wakeup.
const CONCURRENT_WRITES: usize = 8;
/// The deadline of one write.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);

/// The type of an Event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    /// Information.
    Normal,
    /// A condition that may need attention.
    Warning,
}

/// The content of an Event, without the object it is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventContent {
    /// The type.
    pub event_type: EventType,
    /// The reason, in `CamelCase`.
    pub reason: &'static str,
    /// The action taken, in `CamelCase`.
    pub action: &'static str,
    /// The text for people.
    pub note: String,
}

impl EventContent {
    /// A Normal Event.
    #[must_use]
    pub fn normal(reason: &'static str, action: &'static str, note: impl Into<String>) -> Self {
        Self {
            event_type: EventType::Normal,
            reason,
            action,
            note: note.into(),
        }
    }

    /// A Warning Event.
    #[must_use]
    pub fn warning(reason: &'static str, action: &'static str, note: impl Into<String>) -> Self {
        Self {
            event_type: EventType::Warning,
            ..Self::normal(reason, action, note)
        }
    }
}

/// A reference to an object, for [`EventRecorder::publish`].
#[must_use]
pub fn object_reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    let meta = object.meta();
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        ..ObjectReference::default()
    }
}

/// A reference to a node. Its UID is the name of the node, as in the kubelet's Events.
#[must_use]
pub fn node_reference(name: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(name.to_owned()),
        uid: Some(name.to_owned()),
        ..ObjectReference::default()
    }
}

/// The hash of what makes two Events equal: UID and name of the object, reason, note. Two Events of the same hash cost
/// one of them.
type EventKey = u64;

/// When Events were last published.
type Published = Arc<Mutex<HashMap<EventKey, Timestamp>>>;

/// How many Events about the usual course may be published now: a bucket of tokens.
#[derive(Debug, Default)]
struct UsualRate {
    used: f64,
    at: Option<Timestamp>,
}

impl UsualRate {
    /// Takes a token; `false` when there is none.
    fn take(&mut self, now: Timestamp) -> bool {
        let passed = self
            .at
            .replace(now)
            .map_or(0.0, |at| now.duration_since(at).as_secs_f64());
        self.used = (self.used - passed.max(0.0) * USUAL_RATE).max(0.0);
        let is_free = self.used + 1.0 <= USUAL_BURST;
        if is_free {
            self.used += 1.0;
        }
        is_free
    }
}

/// An Event that waits to be written.
#[derive(Debug)]
pub struct QueuedEvent {
    event: Event,
    key: EventKey,
    /// Where it counts as published until its write fails.
    published: Published,
}

impl QueuedEvent {
    /// Lets an equal Event be published again.
    fn forget(self) {
        lock(&self.published).remove(&self.key);
    }
}

/// Accepts Events and queues them for [`write_queued`]. Clones share the queue.
#[derive(Debug, Clone)]
pub struct EventRecorder {
    clock: Arc<dyn Clock>,
    queue: mpsc::Sender<QueuedEvent>,
    published: Published,
    hasher: RandomState,
    usual: Arc<Mutex<UsualRate>>,
    instance: Arc<str>,
    serial: Arc<AtomicU64>,
}

impl EventRecorder {
    /// A recorder of this controller instance, and the queue for [`write_queued`].
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, instance: &str) -> (Self, mpsc::Receiver<QueuedEvent>) {
        let (queue, queued) = mpsc::channel(QUEUE_CAPACITY);
        let recorder = Self {
            clock,
            queue,
            published: Arc::default(),
            hasher: RandomState::new(),
            usual: Arc::default(),
            instance: instance.into(),
            serial: Arc::default(),
        };
        (recorder, queued)
    }

    /// Queues an Event about an object, unless an equal one was published within the last hour, or it tells the usual
    /// course of a pod or request and too many have. Never blocks.
    pub fn publish(&self, regarding: &ObjectReference, content: EventContent) {
        let now = self.clock.now();
        let key = self.hasher.hash_one((
            regarding.uid.as_deref(),
            regarding.name.as_deref(),
            content.reason,
            &content.note,
        ));
        let is_usual = content.event_type == EventType::Normal && regarding.namespace.is_some();
        if self.is_published(key, now) || (is_usual && !lock(&self.usual).take(now)) {
            return;
        }
        self.remember(key, now);
        let queued = QueuedEvent {
            event: self.event(regarding, content, now),
            key,
            published: Arc::clone(&self.published),
        };
        if let Err(error) = self.queue.try_send(queued) {
            tracing::debug!("event dropped: the queue is full");
            match error {
                TrySendError::Full(queued) | TrySendError::Closed(queued) => queued.forget(),
            }
        }
    }

    /// Whether an equal Event was published within the last hour.
    fn is_published(&self, key: EventKey, now: Timestamp) -> bool {
        let published = lock(&self.published);
        published.get(&key).is_some_and(|at| *at > oldest(now))
    }

    fn remember(&self, key: EventKey, now: Timestamp) {
        let mut published = lock(&self.published);
        if published.len() >= MAX_REMEMBERED {
            published.retain(|_, at| *at > oldest(now));
        }
        if published.len() >= MAX_REMEMBERED {
            published.clear();
        }
        published.insert(key, now);
    }

    fn event(&self, regarding: &ObjectReference, content: EventContent, now: Timestamp) -> Event {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let name = regarding.name.as_deref().unwrap_or(REPORTER);
        let prefix = name
            .get(..MAX_NAME_PREFIX.min(name.len()))
            .unwrap_or(REPORTER)
            .trim_end_matches(['.', '-']);
        let mut note = content.note;
        note.truncate(note.floor_char_boundary(MAX_NOTE));
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{prefix}.{:x}{serial:x}", now.as_microsecond())),
                // The API requires Events about cluster-scoped objects in this namespace.
                namespace: Some(
                    regarding
                        .namespace
                        .clone()
                        .unwrap_or_else(|| "default".to_owned()),
                ),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(now)),
            action: Some(content.action.to_owned()),
            reason: Some(content.reason.to_owned()),
            note: Some(note),
            type_: Some(match content.event_type {
                EventType::Normal => "Normal".to_owned(),
                EventType::Warning => "Warning".to_owned(),
            }),
            regarding: Some(regarding.clone()),
            reporting_controller: Some(REPORTER.to_owned()),
            reporting_instance: Some(self.instance.to_string()),
            ..Event::default()
        }
    }
}

/// Events that were published before do not count any more.
fn oldest(now: Timestamp) -> Timestamp {
    now.checked_sub(DEDUPLICATION_PERIOD).unwrap_or(Timestamp::MIN)
}

/// Writes queued Events to the host cluster. After cancellation it writes what is still queued; the caller bounds how
/// long that may take.
pub async fn write_queued(client: Client, queued: mpsc::Receiver<QueuedEvent>, cancel: CancellationToken) {
    let events = stream::unfold((queued, cancel), |(mut queued, cancel)| async {
        let next = tokio::select! {
            next = queued.recv() => next,
            () = cancel.cancelled() => queued.try_recv().ok(),
        };
        Some((next?, (queued, cancel)))
    });
    events
        .for_each_concurrent(CONCURRENT_WRITES, |event| write(&client, event))
        .await;
}

async fn write(client: &Client, queued: QueuedEvent) {
    let namespace = queued.event.metadata.namespace.clone().unwrap_or_default();
    let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
    match tokio::time::timeout(
        WRITE_DEADLINE,
        events.create(&PostParams::default(), &queued.event),
    )
    .await
    {
        Ok(Ok(_)) => {}
        Ok(Err(error)) => {
            tracing::debug!(%error, "writing an event failed");
            queued.forget();
        }
        Err(_) => {
            tracing::debug!("writing an event timed out");
            queued.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{api_double, clock_at, failure, silent_api};
    use serde_json::json;
    use tokio::time::Instant;

    fn content(note: &str) -> EventContent {
        EventContent::warning("CordonConflict", "Cordon", note)
    }

    #[test]
    fn equal_events_are_published_once_an_hour_and_notes_are_cut() {
        let clock = clock_at(0);
        let (recorder, mut queued) = EventRecorder::new(Arc::clone(&clock) as Arc<dyn Clock>, "me");
        let node = node_reference("one");
        let publish = || {
            let content = EventContent::warning("CordonConflict", "Cordon", "uncordoned again");
            recorder.publish(&node, content);
        };
        publish();
        publish();
        let event = queued.try_recv().unwrap();
        assert_eq!(event.event.metadata.namespace.as_deref(), Some("default"));
        assert!(queued.try_recv().is_err());
        clock.advance(DEDUPLICATION_PERIOD);
        publish();
        assert!(queued.try_recv().is_ok());
        let long = EventContent::normal("CordonConflict", "Cordon", "x".repeat(3000));
        recorder.publish(&node, long);
        assert_eq!(queued.try_recv().unwrap().event.note.unwrap().len(), MAX_NOTE);
    }

    #[test]
    fn event_that_does_not_fit_into_the_queue_is_published_later() {
        let (recorder, mut queued) = EventRecorder::new(clock_at(0), "me");
        let node = node_reference("one");
        for serial in 0..QUEUE_CAPACITY {
            recorder.publish(&node, content(&serial.to_string()));
        }
        recorder.publish(&node, content("late"));
        while queued.try_recv().is_ok() {}
        recorder.publish(&node, content("late"));
        assert_eq!(queued.try_recv().unwrap().event.note.unwrap(), "late");
    }

    #[test]
    fn usual_course_of_pods_is_published_at_a_limited_rate_and_all_else_at_once() {
        let clock = clock_at(0);
        let (recorder, mut queued) = EventRecorder::new(Arc::clone(&clock) as Arc<dyn Clock>, "me");
        let mut serial = 0;
        let mut publish = |event_type: EventType, namespace: Option<&str>, count: usize| {
            let regarding = ObjectReference {
                namespace: namespace.map(str::to_owned),
                ..node_reference("one")
            };
            for _ in 0..count {
                serial += 1;
                let content = EventContent {
                    event_type,
                    ..content(&serial.to_string())
                };
                recorder.publish(&regarding, content);
            }
            std::iter::from_fn(|| queued.try_recv().ok()).count()
        };
        assert_eq!(publish(EventType::Normal, Some("shop"), 300), 100);
        assert_eq!(publish(EventType::Warning, Some("shop"), 300), 300);
        assert_eq!(publish(EventType::Normal, None, 300), 300);
        clock.advance(Duration::from_secs(10));
        assert_eq!(publish(EventType::Normal, Some("shop"), 300), 20);
        clock.advance(Duration::from_hours(1));
        assert_eq!(publish(EventType::Normal, Some("shop"), 300), 100);
    }

    #[tokio::test]
    async fn event_whose_write_failed_is_published_again() {
        let (recorder, queued) = EventRecorder::new(clock_at(0), "me");
        let (clients, received) = api_double(|_| failure(503, "ServiceUnavailable", "not now", json!({})));
        let cancel = CancellationToken::new();
        let writing = tokio::spawn(write_queued(clients.host, queued, cancel.clone()));
        let node = node_reference("one");
        recorder.publish(&node, content("again"));
        while !lock(&recorder.published).is_empty() {
            tokio::task::yield_now().await;
        }
        recorder.publish(&node, content("again"));
        drop(recorder);
        writing.await.unwrap();
        assert_eq!(received.lock().unwrap().len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn write_that_hangs_holds_up_no_other_also_after_cancellation() {
        let (recorder, queued) = EventRecorder::new(clock_at(0), "me");
        let (client, begun) = silent_api();
        let node = node_reference("one");
        for note in ["a", "b", "c"] {
            recorder.publish(&node, content(note));
        }
        let cancel = CancellationToken::new();
        cancel.cancel();
        let started = Instant::now();
        write_queued(client, queued, cancel).await;
        assert_eq!(*lock(&begun), [started; 3]);
        assert_eq!(started.elapsed(), WRITE_DEADLINE);
    }
}
