//! What do people read under an object? Events, written in the background, each thing said once in a while and
//! never once per heartbeat.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use drydock_machinery::clock::Clock;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::PostParams;
use kube::{Api, Client, Resource};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Who says it.
const REPORTER: &str = "drydock-controller";
/// How long the same thing about the same object is not said again.
const SAME_AGAIN_AFTER: Duration = Duration::from_hours(1);
/// How many events may wait to be written; more are dropped, events are a courtesy.
const WAITING: usize = 1024;
/// How many said things are remembered.
const REMEMBERED: usize = 50_000;
/// How much of an object's name is in the name of its events, in bytes: names end at 253.
const LONGEST_NAME: usize = 200;
/// The longest note the API takes, in bytes.
const LONGEST_NOTE: usize = 1024;
/// How long one write may take.
const WRITE_DEADLINE: Duration = Duration::from_secs(10);

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Severity {
    /// For the record.
    Normal,
    /// Somebody should look.
    Warning,
}

/// What to say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// How bad it is.
    pub severity: Severity,
    /// Why, in `CamelCase`.
    pub reason: &'static str,
    /// What was done, in `CamelCase`.
    pub action: &'static str,
    /// For people.
    pub note: String,
}

impl Notice {
    /// Something for the record.
    #[must_use]
    pub fn normal(reason: &'static str, action: &'static str, note: impl Into<String>) -> Self {
        Self {
            severity: Severity::Normal,
            reason,
            action,
            note: note.into(),
        }
    }

    /// Something somebody should look at.
    #[must_use]
    pub fn warning(reason: &'static str, action: &'static str, note: impl Into<String>) -> Self {
        Self {
            severity: Severity::Warning,
            ..Self::normal(reason, action, note)
        }
    }
}

/// A reference to an object, for [`Events::say`].
#[must_use]
pub fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
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

/// A reference to a node. Nodes are known by their name in events.
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

/// What was said: uid and name of the object, reason, note.
type Said = (String, String, &'static str, String);

/// Where events are handed in.
#[derive(Debug, Clone)]
pub struct Events {
    clock: Arc<dyn Clock>,
    queue: mpsc::Sender<Event>,
    said: Arc<Mutex<HashMap<Said, Timestamp>>>,
    instance: Arc<str>,
    serial: Arc<AtomicU64>,
}

impl Events {
    /// Events of this instance, and what is to be written, for [`write`].
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>, instance: &str) -> (Self, mpsc::Receiver<Event>) {
        let (queue, waiting) = mpsc::channel(WAITING);
        let events = Self {
            clock,
            queue,
            said: Arc::default(),
            instance: instance.into(),
            serial: Arc::default(),
        };
        (events, waiting)
    }

    /// Says something about an object, unless the same was said within the last hour. Never waits.
    pub fn say(&self, about: &ObjectReference, notice: Notice) {
        let now = self.clock.now();
        let key = (
            about.uid.clone().unwrap_or_default(),
            about.name.clone().unwrap_or_default(),
            notice.reason,
            notice.note.clone(),
        );
        if !self.is_new(key, now) {
            return;
        }
        let event = self.event(about, notice, now);
        if self.queue.try_send(event).is_err() {
            tracing::debug!("an event was dropped: too many wait to be written");
        }
    }

    fn is_new(&self, key: Said, now: Timestamp) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let oldest = now.checked_sub(SAME_AGAIN_AFTER).unwrap_or(Timestamp::MIN);
        if said.len() >= REMEMBERED {
            said.retain(|_, at| *at > oldest);
        }
        if said.len() >= REMEMBERED {
            said.clear();
        }
        match said.get(&key) {
            Some(at) if *at > oldest => false,
            _ => {
                said.insert(key, now);
                true
            }
        }
    }

    fn event(&self, about: &ObjectReference, notice: Notice, now: Timestamp) -> Event {
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let name = about.name.as_deref().unwrap_or(REPORTER);
        let name = name
            .get(..LONGEST_NAME.min(name.len()))
            .unwrap_or(REPORTER)
            .trim_end_matches(['.', '-']);
        let mut note = notice.note;
        let mut end = note.len().min(LONGEST_NOTE);
        while !note.is_char_boundary(end) {
            end -= 1;
        }
        note.truncate(end);
        Event {
            metadata: ObjectMeta {
                name: Some(format!("{name}.{:x}{serial:x}", now.as_microsecond())),
                // The API wants events about cluster-scoped objects in this namespace.
                namespace: Some(about.namespace.clone().unwrap_or_else(|| "default".to_owned())),
                ..ObjectMeta::default()
            },
            event_time: Some(MicroTime(now)),
            action: Some(notice.action.to_owned()),
            reason: Some(notice.reason.to_owned()),
            note: Some(note),
            type_: Some(match notice.severity {
                Severity::Normal => "Normal".to_owned(),
                Severity::Warning => "Warning".to_owned(),
            }),
            regarding: Some(about.clone()),
            reporting_controller: Some(REPORTER.to_owned()),
            reporting_instance: Some(self.instance.to_string()),
            ..Event::default()
        }
    }
}

/// Writes what was said to the host until cancelled, then what is left of it as far as it goes quickly.
pub async fn write(client: Client, mut waiting: mpsc::Receiver<Event>, cancel: CancellationToken) {
    loop {
        let event = tokio::select! {
            event = waiting.recv() => event,
            () = cancel.cancelled() => waiting.try_recv().ok(),
        };
        let Some(event) = event else { return };
        let namespace = event.metadata.namespace.clone().unwrap_or_default();
        let events: Api<Event> = Api::namespaced(client.clone(), &namespace);
        match tokio::time::timeout(WRITE_DEADLINE, events.create(&PostParams::default(), &event)).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => tracing::debug!(%error, "an event was not written"),
            Err(_) => tracing::debug!("an event was not written in time"),
        }
        if cancel.is_cancelled() && waiting.is_empty() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use drydock_machinery::clock::ManualClock;

    #[test]
    fn the_same_thing_is_said_once_an_hour() {
        let clock = Arc::new(ManualClock::new(Timestamp::UNIX_EPOCH));
        let (events, mut waiting) = Events::new(Arc::clone(&clock) as Arc<dyn Clock>, "me");
        let about = node_reference("one");
        let say = || events.say(&about, Notice::warning("Fight", "Cordon", "somebody uncordons"));
        say();
        say();
        let event = waiting.try_recv().unwrap();
        assert_eq!(event.metadata.namespace.as_deref(), Some("default"));
        assert!(waiting.try_recv().is_err());
        clock.advance(SAME_AGAIN_AFTER);
        say();
        assert!(waiting.try_recv().is_ok());
        events.say(&about, Notice::normal("Fight", "Cordon", "x".repeat(3000)));
        assert_eq!(waiting.try_recv().unwrap().note.unwrap().len(), LONGEST_NOTE);
    }
}
