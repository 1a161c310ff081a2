//! Events of our own as `events.k8s.io/v1` objects.

use k8s_openapi::{
    api::{core::v1::ObjectReference, events::v1::Event as KubeEvent},
    apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta},
};

use crate::host::HostEvent;

/// Characters of an object's name in the name of its event, which ends in a dot and 16 digits.
const NAME_PREFIX_CHARACTERS: usize = 230;

/// The object's name and the time in hex, as the Go libraries name events. Long names are truncated.
fn event_name(object: &str, now: jiff::Timestamp) -> String {
    let start: String = object.chars().take(NAME_PREFIX_CHARACTERS).collect();
    let start = start.trim_end_matches(|last: char| !last.is_ascii_alphanumeric());
    format!("{start}.{:x}", now.as_nanosecond())
}

pub(super) fn kube_event(event: &HostEvent, namespace: &str, now: jiff::Timestamp) -> KubeEvent {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    KubeEvent {
        metadata: ObjectMeta {
            name: Some(event_name(&event.name, now)),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        event_time: Some(MicroTime(now)),
        reporting_controller: Some("drydock.dev/apiserver".to_owned()),
        reporting_instance: Some("drydock-apiserver".to_owned()),
        action: text(&event.action),
        reason: text(&event.reason),
        note: text(&event.note),
        type_: Some(if event.warning { "Warning" } else { "Normal" }.to_owned()),
        regarding: Some(ObjectReference {
            api_version: text(&event.api_version),
            kind: text(&event.kind),
            namespace: text(&event.namespace),
            name: text(&event.name),
            uid: text(&event.uid),
            ..ObjectReference::default()
        }),
        ..KubeEvent::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_names_are_valid_for_any_object() {
        let now = crate::fixtures::noon();
        assert_eq!(
            event_name("web-0", now),
            format!("web-0.{:x}", now.as_nanosecond())
        );
        let long = format!("{}-{}", "x".repeat(229), "y".repeat(23));
        let name = event_name(&long, now);
        assert!(
            name.len() <= 253 && name.starts_with(&format!("{}.", "x".repeat(229))),
            "{name}"
        );
    }
}
