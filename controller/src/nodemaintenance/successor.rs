//! Pods that come back: their controller creates them again on their node although it is under maintenance, because
//! they name the node or tolerate every taint.
//!
//! A *successor* is a pod that was created after the drain of its node began. The eviction request of a successor, and
//! of a first pod that a successor may follow, carries an annotation with its node and controller. Lives are counted from the requests with this
//! annotation, so a restart changes nothing and other drains cost no additional write. Requests of successors are kept
//! for [`KEPT_SECONDS`], whatever the default TTL is: without them the count would start again.

use std::time::Duration;

use drydock_proto::kinds::evictionrequest::{EVICTED, EvictionRequest};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::backoff::backoff;

/// The annotation on the request of a successor: its [`Origin`] as JSON.
pub const SUCCESSOR_ANNOTATION: &str = "nodemaintenance.coordination.k8s.io/successor";
/// How long finished requests of successors are kept, in seconds.
pub const KEPT_SECONDS: i32 = 86_400;
/// From this number of lives on, a controller is reported and its successors are requested with a pause.
pub const LIVES_UNTIL_PAUSE: u32 = 3;
/// The first pause.
const FIRST_PAUSE: Duration = Duration::from_mins(1);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_mins(15);
/// How long a node does not count as drained after the end of a successor: the next one may follow.
pub const SETTLING: Duration = Duration::from_secs(15);

/// Where a successor was created, and by which controller.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Origin {
    /// The name of the node.
    pub node: String,
    /// The kind of the controller.
    pub kind: String,
    /// The name of the controller.
    pub name: String,
    /// The UID of the controller.
    pub uid: String,
    /// Whether the pod was there before the drain began. It is no successor, but one may follow it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_first: bool,
}

/// The life of a successor, or of a first pod, whose eviction was requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// Its node and controller.
    pub origin: Origin,
    /// Its namespace.
    pub namespace: String,
    /// When its eviction was requested.
    pub requested_at: Timestamp,
    /// When it ended; `None` while its request is not finished.
    pub ended_at: Option<Timestamp>,
}

impl Life {
    /// The life that a request records; `None` for requests of other pods and requests that were canceled.
    #[must_use]
    pub fn of(request: &EvictionRequest) -> Option<Self> {
        let text = request.metadata.annotations.as_ref()?.get(SUCCESSOR_ANNOTATION)?;
        let evicted = request
            .status
            .iter()
            .flat_map(|status| &status.conditions)
            .find(|condition| condition.type_ == EVICTED && condition.status == "True");
        if evicted.is_none() && request.is_finished() {
            return None;
        }
        Some(Self {
            origin: serde_json::from_str(text).ok()?,
            namespace: request.metadata.namespace.clone().unwrap_or_default(),
            requested_at: request.metadata.creation_timestamp.as_ref()?.0,
            ended_at: evicted.map(|evicted| evicted.last_transition_time.0),
        })
    }
}

/// How long after the last end of a life the next successor is requested to leave.
#[must_use]
pub fn pause(lives: u32) -> Duration {
    if lives < LIVES_UNTIL_PAUSE {
        return Duration::ZERO;
    }
    let paused = lives.saturating_sub(LIVES_UNTIL_PAUSE).saturating_add(1);
    backoff(paused, FIRST_PAUSE, LONGEST_PAUSE, 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::typed;
    use serde_json::json;

    #[test]
    fn pause_grows_from_a_minute_after_three_lives_to_fifteen() {
        let minutes = [0, 0, 0, 1, 2, 4, 8, 15, 15];
        for (lives, minutes) in (0..).zip(minutes) {
            assert_eq!(pause(lives), Duration::from_mins(minutes), "{lives}");
        }
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
    }

    #[test]
    fn requests_with_the_annotation_record_a_life_unless_they_were_canceled() {
        let request = |annotations: serde_json::Value, condition: &str| -> EvictionRequest {
            typed(json!({
                "metadata": {
                    "name": "uid-1", "namespace": "shop", "annotations": annotations,
                    "creationTimestamp": "1970-01-01T00:00:05Z",
                },
                "status": {"conditions": [{
                    "type": condition, "status": "True", "reason": "r", "message": "",
                    "lastTransitionTime": "1970-01-01T00:00:09Z",
                }]},
            }))
        };
        let origin = Origin {
            node: "one".to_owned(),
            kind: "ReplicaSet".to_owned(),
            name: "web".to_owned(),
            uid: "rs-1".to_owned(),
            is_first: false,
        };
        let annotation = json!({SUCCESSOR_ANNOTATION: serde_json::to_string(&origin).unwrap()});
        let life = Life::of(&request(annotation.clone(), "Evicted")).unwrap();
        assert_eq!((life.origin, life.namespace.as_str()), (origin, "shop"));
        let ended_at = life.ended_at.map(Timestamp::as_second);
        assert_eq!((life.requested_at.as_second(), ended_at), (5, Some(9)));
        let unfinished = Life::of(&request(annotation.clone(), "Blocked")).unwrap();
        assert_eq!(unfinished.ended_at, None);
        assert_eq!(Life::of(&request(annotation, "Canceled")), None);
        assert_eq!(Life::of(&request(json!({}), "Evicted")), None);
        assert_eq!(
            Life::of(&request(json!({SUCCESSOR_ANNOTATION: "{"}), "Evicted")),
            None
        );
    }
}
