//! How do events come to be seen, and when are they forgotten?
//!
//! Kubernetes keeps one event and shows it in two groups. Here recorders' events.k8s.io/v1 objects are shown as core/v1
//! objects of the same name, which is what `kubectl get events` and `kubectl describe` read. Both go after an hour.

use std::sync::Arc;

use drydock_apiserver::error::{ApiError, Reason};
use drydock_apiserver::host::HostEvent;
use drydock_apiserver::registry::metadata::time_text;
use drydock_apiserver::registry::resource::Part;
use drydock_storage::Store;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::objects::{Kind, NAME, Objects, Place};
use crate::pod::{member_mut, set, text, time};
use crate::reconcile::Reconcile;

/// How long an event is kept.
const KEPT: SignedDuration = SignedDuration::from_hours(1);

/// When an event happened last.
pub(crate) fn last_seen(event: &Value) -> Option<Timestamp> {
    [
        "/series/lastObservedTime",
        "/lastTimestamp",
        "/deprecatedLastTimestamp",
        "/eventTime",
        "/metadata/creationTimestamp",
    ]
    .iter()
    .find_map(|pointer| time(event, pointer))
}

/// The core/v1 form of an events.k8s.io/v1 event, without metadata.
fn shown(event: &Value) -> Value {
    let mut core = json!({});
    for (from, to) in [
        ("regarding", "involvedObject"),
        ("related", "related"),
        ("note", "message"),
        ("reason", "reason"),
        ("type", "type"),
        ("action", "action"),
        ("eventTime", "eventTime"),
        ("series", "series"),
        ("reportingController", "reportingComponent"),
        ("reportingInstance", "reportingInstance"),
        ("deprecatedSource", "source"),
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
        ("deprecatedCount", "count"),
    ] {
        if let Some(value) = event.get(from).filter(|value| !value.is_null()) {
            set(&mut core, to, value.clone());
        }
    }
    core
}

/// Shows recorders' events as core events, and forgets old ones.
pub(crate) struct EventMirror<S: Store> {
    pub(crate) objects: Arc<Objects<S>>,
}

impl<S: Store> EventMirror<S> {
    async fn show(&self, event: &Value, core: Option<&Value>) -> Result<(), ApiError> {
        let wanted = shown(event);
        let namespace = text(event, "/metadata/namespace");
        let name = text(event, "/metadata/name");
        let Some(core) = core else {
            let mut object = wanted;
            set(&mut object, "metadata", json!({ "name": name }));
            return self.objects.create(Kind::EVENTS, namespace, object).await;
        };
        let members = || wanted.as_object().into_iter().flatten();
        if members().all(|(member, value)| core.get(member) == Some(value)) {
            return Ok(());
        }
        let edit = |object: &mut Value| {
            members().for_each(|(member, value)| set(object, member, value.clone()));
            Ok(())
        };
        self.objects
            .edit(
                Place {
                    kind: Kind::EVENTS,
                    namespace,
                    name,
                },
                Part::Main,
                edit,
            )
            .await
            .map(drop)
    }

    /// Removes an event that is too old; otherwise says when it will be.
    async fn forget(&self, kind: Kind, event: &Value) -> Result<Option<Timestamp>, ApiError> {
        let now = self.objects.now();
        let due = last_seen(event)
            .and_then(|seen| seen.saturating_add(KEPT).ok())
            .unwrap_or(now);
        if due > now {
            return Ok(Some(due));
        }
        let place = Place {
            kind,
            namespace: text(event, "/metadata/namespace"),
            name: text(event, "/metadata/name"),
        };
        settled(
            self.objects
                .delete(place, text(event, "/metadata/uid"), None)
                .await,
        )?;
        Ok(None)
    }
}

/// Lost races are no failures: the next look sees what is there.
fn settled(result: Result<(), ApiError>) -> Result<(), ApiError> {
    match result {
        Err(error)
            if error.is(Reason::NotFound)
                || error.is(Reason::Conflict)
                || error.is(Reason::AlreadyExists)
                // Its namespace is on its way out.
                || error.is(Reason::Forbidden) =>
        {
            Ok(())
        }
        other => other,
    }
}

impl<S: Store> Reconcile for EventMirror<S> {
    const NAME: &'static str = "events";

    fn follows(&self) -> &[Kind] {
        &[Kind::EVENTS, Kind::RECORDED_EVENTS]
    }

    async fn look(&self) -> Result<Option<Timestamp>, ApiError> {
        let mut again: Option<Timestamp> = None;
        let mut wait_for = |at: Option<Timestamp>| {
            if let Some(at) = at {
                again = Some(again.map_or(at, |before| before.min(at)));
            }
        };
        let core = self.objects.list(Kind::EVENTS, None).await?;
        for event in self.objects.list(Kind::RECORDED_EVENTS, None).await? {
            let due = self.forget(Kind::RECORDED_EVENTS, &event).await?;
            wait_for(due);
            if due.is_some() {
                let is_it = |other: &&Value| {
                    ["/metadata/namespace", "/metadata/name"]
                        .iter()
                        .all(|part| text(other, part) == text(&event, part))
                };
                settled(self.show(&event, core.iter().find(is_it)).await)?;
            }
        }
        for event in &core {
            wait_for(self.forget(Kind::EVENTS, event).await?);
        }
        Ok(again)
    }
}

/// Stores what the server reports about its own objects, until cancelled.
pub(crate) async fn record<S: Store>(
    objects: Arc<Objects<S>>,
    mut waiting: mpsc::Receiver<HostEvent>,
    cancel: CancellationToken,
) {
    loop {
        let event = tokio::select! {
            () = cancel.cancelled() => return,
            event = waiting.recv() => event,
        };
        let Some(event) = event else { return };
        let namespace = if event.namespace.is_empty() {
            "default"
        } else {
            event.namespace.as_str()
        };
        let object = recorded(&event, namespace, objects.now());
        if let Err(error) = objects.create(Kind::EVENTS, namespace, object).await {
            tracing::debug!(%error, "an event was not stored");
        }
    }
}

fn recorded(event: &HostEvent, namespace: &str, now: Timestamp) -> Value {
    let mut object = json!({
        "metadata": { "generateName": format!("{}.", event.name) },
        "involvedObject": {
            "apiVersion": event.api_version,
            "kind": event.kind,
            "namespace": namespace,
            "name": event.name,
        },
        "type": if event.warning { "Warning" } else { "Normal" },
        "reason": event.reason,
        "action": event.action,
        "message": event.note,
        "reportingComponent": NAME,
        "firstTimestamp": time_text(now),
        "lastTimestamp": time_text(now),
        "count": 1,
    });
    if !event.uid.is_empty() {
        set(member_mut(&mut object, "involvedObject"), "uid", json!(event.uid));
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_event_is_shown_with_the_names_of_core() {
        let event = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
            "regarding": {"kind": "Pod", "name": "p"}, "note": "gone", "reason": "Evicted", "type": "Normal",
            "reportingController": "c", "series": null
        });
        assert_eq!(
            shown(&event),
            json!({"involvedObject": {"kind": "Pod", "name": "p"}, "message": "gone", "reason": "Evicted",
                "type": "Normal", "reportingComponent": "c"})
        );
    }

    #[test]
    fn an_event_was_seen_when_its_series_was() {
        let seen = |event: &Value| last_seen(event).map(Timestamp::as_second);
        let mut event = json!({"metadata": {"creationTimestamp": "1970-01-01T00:00:01Z"}});
        assert_eq!(seen(&event), Some(1));
        event["eventTime"] = json!("1970-01-01T00:00:02.5Z");
        assert_eq!(seen(&event), Some(2));
        event["series"] = json!({"lastObservedTime": "1970-01-01T00:00:03Z"});
        assert_eq!(seen(&event), Some(3));
        assert_eq!(seen(&json!({})), None);
    }
}
