//! The fields of a pod that decide about its life cycle.

use serde_json::Value;

use crate::object::{integer, text};

/// The default of `spec.terminationGracePeriodSeconds`.
const DEFAULT_GRACE_SECONDS: i64 = 30;

/// The node a pod is bound to; empty if it is not bound.
pub(crate) fn node_name(pod: &Value) -> &str {
    text(pod, "/spec/nodeName")
}

/// The phase of a pod; a pod without one is pending.
pub(crate) fn phase(pod: &Value) -> &str {
    match text(pod, "/status/phase") {
        "" => "Pending",
        phase => phase,
    }
}

/// Whether all containers of a pod have terminated.
pub(crate) fn is_terminal(pod: &Value) -> bool {
    matches!(phase(pod), "Succeeded" | "Failed")
}

/// The grace period of a deletion in seconds, when the client asks for `requested`.
///
/// 0 for a pod that is not bound to a node or has terminated.
pub(crate) fn grace_period(pod: &Value, requested: Option<i64>) -> i64 {
    if node_name(pod).is_empty() || is_terminal(pod) {
        return 0;
    }
    let period = requested
        .or_else(|| integer(pod, "/spec/terminationGracePeriodSeconds"))
        .unwrap_or(DEFAULT_GRACE_SECONDS);
    if period < 0 { 1 } else { period }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check_grace(pod: &Value, requested: Option<i64>, expected: i64) {
        assert_eq!(grace_period(pod, requested), expected, "{pod} {requested:?}");
    }

    #[test]
    fn grace_period_is_the_requested_one_or_that_of_the_pod() {
        let running = json!({"spec": {"nodeName": "a", "terminationGracePeriodSeconds": 7}});
        check_grace(&running, None, 7);
        check_grace(&running, Some(2), 2);
        check_grace(&running, Some(0), 0);
        check_grace(&running, Some(-5), 1);
        check_grace(&json!({"spec": {"nodeName": "a"}}), None, 30);
    }

    #[test]
    fn a_pod_that_does_not_run_has_no_grace_period() {
        check_grace(&json!({"spec": {}}), Some(9), 0);
        check_grace(
            &json!({"spec": {"nodeName": "a"}, "status": {"phase": "Succeeded"}}),
            None,
            0,
        );
    }
}
