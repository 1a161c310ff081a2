//! What does the interceptor of DaemonSet pods do about one request whose turn is its own? A pure function.
//!
//! DaemonSets belong to their node: their pods leave only when a maintenance of the node asks for them, and then
//! by deletion, as the taint on the node keeps them from coming back.

use std::time::Duration;

use jiff::Timestamp;

/// How often a sign of life is given while the pod terminates.
pub const HEARTBEAT_EVERY: Duration = Duration::from_mins(3);

/// What is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Snapshot {
    /// Whether a maintenance of the pod's node asks it to leave.
    pub is_targeted: bool,
    /// Whether the pod is being deleted.
    pub is_terminating: bool,
    /// The last sign of life.
    pub heartbeat: Option<Timestamp>,
    /// The time.
    pub now: Timestamp,
}

/// What to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Nothing, until something changes or the time comes.
    Wait(Option<Timestamp>),
    /// Give a sign of life.
    Report,
    /// Delete the pod.
    Delete,
}

/// The next step.
#[must_use]
pub fn decide(snapshot: &Snapshot) -> Step {
    if !snapshot.is_targeted {
        return Step::Wait(None);
    }
    let Some(heartbeat) = snapshot.heartbeat else {
        return Step::Report;
    };
    if !snapshot.is_terminating {
        return Step::Delete;
    }
    match heartbeat.checked_add(HEARTBEAT_EVERY) {
        Ok(due) if due <= snapshot.now => Step::Report,
        due => Step::Wait(due.ok()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_are_deleted_only_when_targeted_and_after_a_report() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for (is_targeted, is_terminating, heartbeat, step) in [
            (false, false, None, Step::Wait(None)),
            (false, true, Some(0), Step::Wait(None)),
            (true, false, None, Step::Report),
            (true, true, None, Step::Report),
            (true, false, Some(999), Step::Delete),
            (true, true, Some(999), Step::Wait(Some(at(1179)))),
            (true, true, Some(820), Step::Report),
        ] {
            let snapshot = Snapshot {
                is_targeted,
                is_terminating,
                heartbeat: heartbeat.map(at),
                now: at(1000),
            };
            assert_eq!(decide(&snapshot), step, "{snapshot:?}");
        }
    }
}
