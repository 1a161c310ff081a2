//! Decides the next action for a DaemonSet pod while its interceptor is active. A pure function.
//!
//! A DaemonSet pod leaves its node only when a maintenance of the node targets it. It is deleted, not evicted: the
//! drain taint on the node keeps the DaemonSet from creating it again.

use std::time::Duration;

use jiff::Timestamp;

/// The interval of heartbeats while the pod terminates.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_mins(3);

/// The input of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DaemonPodState {
    /// Whether the drain targets of the pod's node match it.
    pub is_targeted: bool,
    /// Whether the pod is being deleted.
    pub is_terminating: bool,
    /// The last heartbeat of the interceptor.
    pub heartbeat: Option<Timestamp>,
    /// The time.
    pub now: Timestamp,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DaemonPodAction {
    /// Nothing until the next change, or until this time.
    Wait(Option<Timestamp>),
    /// Write a heartbeat.
    Heartbeat,
    /// Delete the pod.
    Delete,
}

/// The next action.
#[must_use]
pub fn decide(state: &DaemonPodState) -> DaemonPodAction {
    if !state.is_targeted {
        return DaemonPodAction::Wait(None);
    }
    let Some(heartbeat) = state.heartbeat else {
        return DaemonPodAction::Heartbeat;
    };
    if !state.is_terminating {
        return DaemonPodAction::Delete;
    }
    match heartbeat.checked_add(HEARTBEAT_INTERVAL) {
        Ok(due) if due <= state.now => DaemonPodAction::Heartbeat,
        due => DaemonPodAction::Wait(due.ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_deleted_only_when_targeted_and_after_a_heartbeat() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for (is_targeted, is_terminating, heartbeat, action) in [
            (false, false, None, DaemonPodAction::Wait(None)),
            (false, true, Some(0), DaemonPodAction::Wait(None)),
            (true, false, None, DaemonPodAction::Heartbeat),
            (true, true, None, DaemonPodAction::Heartbeat),
            (true, false, Some(999), DaemonPodAction::Delete),
            (true, true, Some(999), DaemonPodAction::Wait(Some(at(1179)))),
            (true, true, Some(820), DaemonPodAction::Heartbeat),
        ] {
            let state = DaemonPodState {
                is_targeted,
                is_terminating,
                heartbeat: heartbeat.map(at),
                now: at(1000),
            };
            assert_eq!(decide(&state), action, "{state:?}");
        }
    }
}
