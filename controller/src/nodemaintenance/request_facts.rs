//! Eviction requests as the planner sees them. Pure functions.

use drydock_proto::kinds::evictionrequest::{
    BLOCKED, CANCELED, EVICTED, EvictionRequest, NODE_MAINTENANCE_REQUESTER,
};
use jiff::Timestamp;

use super::model::{Deletion, Obstacle, RequestFacts, RequestState};
use super::replacement::REPLACED_ANNOTATION;

/// Whether node maintenances are among the requesters.
#[must_use]
pub fn has_maintenance_requester(request: &EvictionRequest) -> bool {
    request
        .spec
        .requesters
        .iter()
        .any(|requester| requester.name == NODE_MAINTENANCE_REQUESTER)
}

/// What keeps the request from ending its pod: its condition says so, or it was canceled.
fn obstacle(object: &EvictionRequest) -> Option<Obstacle> {
    let status = object.status.as_ref()?;
    let condition = |wanted: &str| {
        let mut conditions = status.conditions.iter();
        conditions.find(|condition| condition.type_ == wanted && condition.status == "True")
    };
    if object.is_finished() {
        let canceled = condition(CANCELED)?;
        return Some(Obstacle {
            since: canceled.last_transition_time.0,
            reason: "RequestObstructed".to_owned(),
            message: format!("{}: {}", canceled.reason, canceled.message),
        });
    }
    let blocked = condition(BLOCKED)?;
    Some(Obstacle {
        since: blocked.last_transition_time.0,
        reason: blocked.reason.clone(),
        message: blocked.message.clone(),
    })
}

/// The request as the planner sees it. `pod` is the name of the pod whose UID it has.
#[must_use]
pub fn request_facts(object: &EvictionRequest, pod: &str) -> RequestFacts {
    let conditions = object.status.iter().flat_map(|status| &status.conditions);
    let ended = conditions
        .filter(|condition| condition.status == "True")
        .find(|condition| condition.type_ == CANCELED || condition.type_ == EVICTED);
    let metadata = &object.metadata;
    let annotation = |key: &str| metadata.annotations.as_ref().and_then(|all| all.get(key));
    let target = object.spec.target.pod.as_ref();
    RequestFacts {
        uid: metadata.uid.clone().unwrap_or_default(),
        created: metadata
            .creation_timestamp
            .as_ref()
            .map_or(Timestamp::UNIX_EPOCH, |time| time.0),
        obstacle: obstacle(object),
        has_maintenance_requester: has_maintenance_requester(object),
        is_cancellation_forbidden: object.is_cancellation_forbidden(),
        state: match ended {
            None => RequestState::Active,
            Some(condition) if condition.type_ == CANCELED => RequestState::Canceled,
            Some(_) => RequestState::Evicted,
        },
        ended: ended.map(|condition| condition.last_transition_time.0),
        replaced: annotation(REPLACED_ANNOTATION)
            .and_then(|count| count.parse().ok())
            .unwrap_or_default(),
        deletion: metadata.deletion_timestamp.as_ref().map(|since| Deletion {
            since: since.0,
            finalizers: metadata.finalizers.clone().unwrap_or_default(),
        }),
        other_pod: target
            .map(|target| target.name.clone())
            .filter(|name| name != pod),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::typed;
    use serde_json::{Value, json};

    fn obstacle_of(status: &Value) -> Option<(i64, String, String)> {
        let object: EvictionRequest = typed(json!({"metadata": {"name": "uid-1"}, "status": status}));
        let obstacle = obstacle(&object)?;
        Some((obstacle.since.as_second(), obstacle.reason, obstacle.message))
    }

    #[test]
    fn cancellation_is_an_obstacle() {
        let canceled = |reason: &str| {
            json!({"conditions": [{
                "type": "Canceled", "status": "True", "reason": reason, "message": "m",
                "lastTransitionTime": "1970-01-01T00:00:05Z",
            }]})
        };
        assert_eq!(
            obstacle_of(&canceled("ValidationFailed")),
            Some((
                5,
                "RequestObstructed".to_owned(),
                "ValidationFailed: m".to_owned()
            ))
        );
        assert_eq!(obstacle_of(&json!({})), None);
    }

    #[test]
    fn condition_of_the_request_says_what_its_pod_waits_for() {
        let blocked = |status: &str| {
            json!({"conditions": [{
                "type": "Blocked", "status": status, "reason": "NodeUnreachable", "message": "node one is not ready",
                "lastTransitionTime": "1970-01-01T00:00:05Z",
            }]})
        };
        assert_eq!(
            obstacle_of(&blocked("True")),
            Some((
                5,
                "NodeUnreachable".to_owned(),
                "node one is not ready".to_owned()
            ))
        );
        assert_eq!(obstacle_of(&blocked("False")), None);
    }

    #[test]
    fn request_facts_tell_what_stands_in_the_way() {
        let object: EvictionRequest = typed(json!({
            "metadata": {
                "name": "uid-1", "uid": "er-1", "deletionTimestamp": "1970-01-01T00:00:07Z",
                "finalizers": ["a.example.com/f"], "annotations": {REPLACED_ANNOTATION: "3"},
            },
            "spec": {"target": {"pod": {"name": "other", "uid": "uid-1"}}},
        }));
        let facts = request_facts(&object, "web");
        assert_eq!(facts.other_pod.as_deref(), Some("other"));
        assert_eq!(request_facts(&object, "other").other_pod, None);
        let deletion = facts.deletion.unwrap();
        assert_eq!(
            (deletion.since.as_second(), deletion.finalizers),
            (7, vec!["a.example.com/f".to_owned()])
        );
        assert_eq!((facts.replaced, facts.uid.as_str()), (3, "er-1"));
    }
}
