//! The condition `Blocked`: what holds a pod, since when. Pure functions.
//!
//! Its messages change only when their causes do, so that it costs no writes while nothing happens: numbers are those of
//! the last attempt.

use std::time::Duration;

use jiff::Timestamp;

use super::reason::Reason;
use super::snapshot::{EvictionExemption, InterceptorState, NoOrder, PodDeletion, StoredBlock};
use crate::evictioninterceptor::rules::UnusableRule;

/// How long an active interceptor may take to its first heartbeat.
pub const UNRESPONSIVE_AFTER: Duration = Duration::from_mins(2);
/// How long an accepted eviction may take to delete the pod.
pub const NOT_DELETING_AFTER: Duration = Duration::from_secs(30);
/// How long finalizers may hold a pod after its grace period.
const FINALIZERS_AFTER: Duration = Duration::from_secs(10);
/// How long a maintenance may take to act on a DaemonSet pod.
const DAEMON_SET_POD_AFTER: Duration = Duration::from_secs(30);

/// What holds the pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// The reason.
    pub reason: Reason,
    /// The message.
    pub message: String,
    /// When it began.
    pub since: Timestamp,
}

/// What the condition should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    /// As it is stored: a refusal holds until the next attempt.
    AsStored,
    /// Not True.
    Nothing,
    /// True.
    By(Blocked),
}

impl Hold {
    /// Whether the stored condition differs.
    #[must_use]
    pub fn differs_from(&self, stored: Option<&StoredBlock>) -> bool {
        match (self, stored) {
            (Self::AsStored, _) | (Self::Nothing, None) => false,
            (Self::Nothing, Some(_)) | (Self::By(_), None) => true,
            (Self::By(blocked), Some(stored)) => {
                blocked.reason.as_str() != stored.reason || blocked.message != stored.message
            }
        }
    }
}

/// A hold, and when it may change by itself.
pub type HoldUntil = (Hold, Option<Timestamp>);

/// What holds a pod that is being deleted.
#[must_use]
pub fn by_deletion(deletion: &PodDeletion, now: Timestamp) -> HoldUntil {
    if let Some(node) = &deletion.unready_node {
        let blocked = Blocked {
            reason: Reason::NodeUnreachable,
            message: format!("The pod is deleted, and its node {node} is not ready to end it."),
            since: deletion.ends_at.min(now),
        };
        return (Hold::By(blocked), None);
    }
    if deletion.finalizers.is_empty() {
        return (Hold::Nothing, None);
    }
    match deletion.ends_at.checked_add(FINALIZERS_AFTER) {
        Ok(due) if due > now => (Hold::Nothing, Some(due)),
        _ => {
            let blocked = Blocked {
                reason: Reason::Finalizers,
                message: format!(
                    "The pod is deleted and held by its finalizers: {}.",
                    deletion.finalizers.join(", ")
                ),
                since: deletion.ends_at,
            };
            (Hold::By(blocked), None)
        }
    }
}

/// What holds a pod while this interceptor is active.
#[must_use]
pub fn by_silence(active: &InterceptorState, now: Timestamp) -> HoldUntil {
    let (None, None, Some(activated_at)) = (active.heartbeat_at, active.completed_at, active.activated_at)
    else {
        return (Hold::Nothing, None);
    };
    match activated_at.checked_add(UNRESPONSIVE_AFTER) {
        Ok(due) if due > now => (Hold::Nothing, Some(due)),
        _ => {
            let blocked = Blocked {
                reason: Reason::InterceptorSilent,
                message: format!(
                    "Interceptor {} has sent no heartbeat since its activation at {activated_at}.",
                    active.name
                ),
                since: activated_at,
            };
            (Hold::By(blocked), None)
        }
    }
}

/// What holds a pod that is never evicted, while this interceptor is active. A maintenance of its node ends most pods of
/// DaemonSets soon after.
#[must_use]
pub fn by_exemption(exemption: EvictionExemption, active: &InterceptorState, now: Timestamp) -> HoldUntil {
    let since = active.activated_at.unwrap_or(now);
    if exemption == EvictionExemption::DaemonSetPod {
        if active.heartbeat_at.is_some() {
            return (Hold::Nothing, None);
        }
        if let Ok(due) = since.checked_add(DAEMON_SET_POD_AFTER)
            && due > now
        {
            return (Hold::Nothing, Some(due));
        }
    }
    let reason = match exemption {
        EvictionExemption::StaticPod => Reason::StaticPod,
        EvictionExemption::DaemonSetPod | EvictionExemption::TolerantDaemonSetPod => Reason::DaemonSetPod,
    };
    let blocked = Blocked {
        reason,
        message: exemption.message().to_owned(),
        since,
    };
    (Hold::By(blocked), None)
}

/// What holds a pod whose eviction was accepted, or whose result is unknown, at this time.
#[must_use]
pub fn by_missing_deletion(attempt: Timestamp, stored: Option<&StoredBlock>, now: Timestamp) -> HoldUntil {
    let before = stored.filter(|stored| stored.reason == Reason::NotDeleting.as_str());
    match attempt.checked_add(NOT_DELETING_AFTER) {
        // Before the result of the attempt is known, what held the pod holds it still.
        Ok(due) if due > now => (Hold::AsStored, Some(due)),
        _ => {
            let blocked = Blocked {
                reason: Reason::NotDeleting,
                message: before.map_or_else(
                    || format!("The eviction was posted at {attempt}, and the pod is not being deleted."),
                    |before| before.message.clone(),
                ),
                since: before.map_or(attempt, |before| before.since),
            };
            (Hold::By(blocked), None)
        }
    }
}

/// What holds a pod whose interceptors are unknown.
#[must_use]
pub fn by_rule(rule: &UnusableRule, stored: Option<&StoredBlock>, now: Timestamp) -> Hold {
    Hold::By(Blocked {
        reason: Reason::InterceptorRule,
        message: rule.to_string(),
        since: stored.map_or(now, |stored| stored.since),
    })
}

/// What holds the pod when its interceptors cannot be ordered, if it waits for that.
#[must_use]
pub fn by_no_order(error: &NoOrder, stored: Option<&StoredBlock>, now: Timestamp) -> Option<Hold> {
    match error {
        NoOrder::TooMany(_) => None,
        NoOrder::Unknown(rule) => Some(by_rule(rule, stored, now)),
    }
}
