//! What blocks a pod. The request's condition `Blocked` decides; without it, the maintenance's blockers, then what the
//! objects themselves show.

use drydock_proto::kinds::evictionrequest::{BLOCKED, EvictionRequestStatus, IMPERATIVE_EVICTION};
use jiff::Timestamp;
use serde::Serialize;

use super::{Facts, State, blocker};
use crate::budgets::{self, Verdict};
use crate::pods;
use crate::times::timestamp;

/// What blocks a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Blocked {
    /// One word, such as `Budget`.
    pub reason: String,
    /// Since when, as far as known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// A sentence with names and numbers.
    pub message: String,
}

/// What blocks the pod; `None` when nothing is known to.
pub(super) fn blocked(facts: &Facts<'_>, state: State) -> Option<Blocked> {
    if matches!(state, State::Evicted | State::Canceled) {
        return None;
    }
    let status = facts.request.and_then(|request| request.status.as_ref());
    if let Some(condition) = status.and_then(|status| {
        let mut conditions = status.conditions.iter();
        conditions.find(|condition| condition.type_ == BLOCKED)
    }) {
        return (condition.status == "True").then(|| Blocked {
            reason: condition.reason.clone(),
            since: Some(condition.last_transition_time.0),
            message: condition.message.clone(),
        });
    }
    let pod = facts.pod?;
    if pods::is_static(pod) {
        return Some(found(
            "StaticPod",
            None,
            "Only the kubelet of its node can end a static pod.",
        ));
    }
    if pods::is_tolerant_daemon_set_pod(pod) {
        let message =
            "Its DaemonSet tolerates the drain taint and would create it again. Drains leave it alone.";
        return Some(found("DaemonSetPod", None, message));
    }
    if let Some(blocker) = blocker(facts) {
        return Some(Blocked {
            reason: blocker.reason.clone(),
            since: timestamp(blocker.since.as_ref()),
            message: blocker.message.clone(),
        });
    }
    match state {
        State::Terminating => terminating(facts),
        State::Evicting => refused(facts, status?),
        _ => None,
    }
}

fn found(reason: &str, since: Option<Timestamp>, message: &str) -> Blocked {
    Blocked {
        reason: reason.to_owned(),
        since,
        message: message.to_owned(),
    }
}

/// What keeps a pod that is being deleted, once its grace period is over.
fn terminating(facts: &Facts<'_>) -> Option<Blocked> {
    let pod = facts.pod?;
    // The time until which the pod may take to stop.
    let deadline = timestamp(pod.metadata.deletion_timestamp.as_ref())?;
    if deadline > facts.now {
        return None;
    }
    if let Some(node) = facts.node.filter(|node| !is_ready(node)) {
        let name = node.metadata.name.as_deref().unwrap_or_default();
        let message =
            format!("It is deleted, and its node {name} is not ready: nobody confirms that it has stopped.");
        return Some(found("NodeUnreachable", Some(deadline), &message));
    }
    let finalizers = pod.metadata.finalizers.as_deref().unwrap_or_default();
    (!finalizers.is_empty()).then(|| {
        let message = format!(
            "It is deleted, and finalizers keep it: {}.",
            finalizers.join(", ")
        );
        found("Finalizers", Some(deadline), &message)
    })
}

/// Whether the node is ready.
pub(super) fn is_ready(node: &k8s_openapi::api::core::v1::Node) -> bool {
    let conditions = node
        .status
        .as_ref()
        .and_then(|status| status.conditions.as_deref());
    conditions
        .unwrap_or_default()
        .iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

/// What the eviction API refuses for.
fn refused(facts: &Facts<'_>, status: &EvictionRequestStatus) -> Option<Blocked> {
    let attempts = status.pod_eviction_status.as_ref()?.failed_api_eviction_counter;
    if attempts == 0 {
        return None;
    }
    let mut reports = status.interceptors.iter();
    let report = reports.find(|report| report.name == IMPERATIVE_EVICTION);
    let since = report.and_then(|report| timestamp(report.activation_time.as_ref()));
    let budgets = budgets::of_pod(facts.pod?, facts.budgets);
    let names: Vec<&str> = budgets.iter().map(|budget| budgets::name(budget)).collect();
    Some(match budgets.as_slice() {
        [] => found(
            "EvictionFailed",
            since,
            report.map_or("", |report| &report.message),
        ),
        [one] => {
            let reason = match budgets::verdict(one) {
                Verdict::NotObserved => "BudgetNotObserved",
                Verdict::NotComputable(_) => "BudgetNotComputable",
                Verdict::Allows(_) | Verdict::Exhausted { .. } | Verdict::Never { .. } => "Budget",
            };
            found(reason, since, &budgets::describe(one))
        }
        _ => {
            let message = format!(
                "More than one budget selects it, so it cannot be evicted: {}.",
                names.join(", ")
            );
            found("MultipleBudgets", since, &message)
        }
    })
}
