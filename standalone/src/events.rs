//! Events: copied from events.k8s.io/v1 to core/v1, and deleted after an hour.
//!
//! Kubernetes stores an event once and serves it in both groups. Here, for each events.k8s.io/v1 object, which recorders
//! write, a core/v1 object of the same name is kept, which `kubectl get events` and `kubectl describe` read.

use std::sync::Arc;

use drydock_apiserver::error::{ApiError, Reason};
use drydock_apiserver::host::HostEvent;
use drydock_apiserver::registry::metadata::time_text;
use drydock_apiserver::registry::part::Part;
use drydock_storage::Store;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::object::{member_mut, set, text, time};
use crate::objects::{Kind, NAME, ObjectRef, Objects};
use crate::reconcile::{Reconcile, earlier, tolerate};

/// How long an event is kept after it last happened.
const EVENT_TTL: SignedDuration = SignedDuration::from_hours(1);

/// When an event last happened.
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
fn core_form(event: &Value) -> Value {
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

/// Keeps the core/v1 copies of events, and deletes old events.
pub(crate) struct EventMirror<S: Store> {
    pub(crate) objects: Arc<Objects<S>>,
}

impl<S: Store> EventMirror<S> {
    async fn mirror(&self, event: &Value, core: Option<&Value>) -> Result<(), ApiError> {
        let wanted = core_form(event);
        let at = ObjectRef::to(Kind::CORE_EVENTS, event);
        let Some(core) = core else {
            let mut object = wanted;
            set(&mut object, "metadata", json!({ "name": at.name }));
            return self.objects.create(at.kind, at.namespace, object).await;
        };
        let members = || wanted.as_object().into_iter().flatten();
        if members().all(|(member, value)| core.get(member) == Some(value)) {
            return Ok(());
        }
        let edit = |object: &mut Value| {
            members().for_each(|(member, value)| set(object, member, value.clone()));
            Ok(())
        };
        self.objects.edit(at, Part::Main, edit).await.map(drop)
    }

    /// Deletes an event that is too old. Returns when a newer one will be.
    async fn expire(&self, kind: Kind, event: &Value) -> Result<Option<Timestamp>, ApiError> {
        let now = self.objects.now();
        let due = last_seen(event)
            .and_then(|seen| seen.saturating_add(EVENT_TTL).ok())
            .unwrap_or(now);
        if due > now {
            return Ok(Some(due));
        }
        settled(self.objects.delete(kind, event, None).await)?;
        Ok(None)
    }
}

/// Tolerates concurrent changes, and namespaces that are being deleted.
fn settled(result: Result<(), ApiError>) -> Result<(), ApiError> {
    let reasons = [
        Reason::NotFound,
        Reason::Conflict,
        Reason::AlreadyExists,
        Reason::Forbidden,
    ];
    tolerate(result, &reasons).map(drop)
}

impl<S: Store> Reconcile for EventMirror<S> {
    const NAME: &'static str = "events";

    fn watched(&self) -> &[Kind] {
        &[Kind::CORE_EVENTS, Kind::EVENTS]
    }

    async fn reconcile(&self) -> Result<Option<Timestamp>, ApiError> {
        let mut again = None;
        let core = self.objects.list(Kind::CORE_EVENTS, None).await?;
        for event in self.objects.list(Kind::EVENTS, None).await? {
            let due = self.expire(Kind::EVENTS, &event).await?;
            again = earlier(again, due);
            if due.is_some() {
                let is_copy = |other: &&Value| {
                    ["/metadata/namespace", "/metadata/name"]
                        .iter()
                        .all(|part| text(other, part) == text(&event, part))
                };
                settled(self.mirror(&event, core.iter().find(is_copy)).await)?;
            }
        }
        for event in &core {
            again = earlier(again, self.expire(Kind::CORE_EVENTS, event).await?);
        }
        Ok(again)
    }
}

/// Stores the events that the server reports to its host, until cancelled.
pub(crate) async fn record<S: Store>(
    objects: Arc<Objects<S>>,
    mut reported: mpsc::Receiver<HostEvent>,
    cancel: CancellationToken,
) {
    loop {
        let event = tokio::select! {
            () = cancel.cancelled() => return,
            event = reported.recv() => event,
        };
        let Some(event) = event else { return };
        let namespace = if event.namespace.is_empty() {
            "default"
        } else {
            event.namespace.as_str()
        };
        let object = stored_form(&event, namespace, objects.now());
        if let Err(error) = objects.create(Kind::CORE_EVENTS, namespace, object).await {
            tracing::debug!(%error, "event not stored");
        }
    }
}

fn stored_form(event: &HostEvent, namespace: &str, now: Timestamp) -> Value {
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
    fn the_core_form_has_the_field_names_of_core() {
        let event = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e"},
            "regarding": {"kind": "Pod", "name": "p"}, "note": "gone", "reason": "Evicted", "type": "Normal",
            "reportingController": "c", "series": null
        });
        assert_eq!(
            core_form(&event),
            json!({"involvedObject": {"kind": "Pod", "name": "p"}, "message": "gone", "reason": "Evicted",
                "type": "Normal", "reportingComponent": "c"})
        );
    }

    #[test]
    fn an_event_last_happened_when_its_series_did() {
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
