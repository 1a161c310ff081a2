//! Why a pod is still there: whose turn it is, since when, what blocks, who asked, and what a person can do.
//!
//! ```text
//! Facts (objects and the time) ──▶ explain ──▶ Explanation ──▶ text::render
//! ```
//!
//! Everything here is pure: objects in, text out.

mod advice;
mod blocked;
pub mod text;

use drydock_proto::kinds::evictionrequest::{
    CANCELED, DEFAULT_HEARTBEAT_DEADLINE_SECONDS, EVICTED, EVICTION_BRIDGE_ANNOTATION,
    EVICTION_BRIDGE_REQUESTER, EvictionRequest, EvictionRequestStatus, IMPERATIVE_EVICTION,
    InterceptorStatus, NODE_MAINTENANCE_REQUESTER,
};
use drydock_proto::kinds::nodemaintenance::{Blocker, NodeMaintenance, Stage};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde::Serialize;
use serde_json::Value;

pub use self::advice::Advice;
pub use self::blocked::Blocked;
use crate::pods;
use crate::times::timestamp;

/// What is known about a pod. At least one of pod and request is there.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// The pod; `None` when it is gone.
    pub pod: Option<&'a Pod>,
    /// Its eviction request.
    pub request: Option<&'a EvictionRequest>,
    /// The node that it runs on.
    pub node: Option<&'a Node>,
    /// The budgets of its namespace.
    pub budgets: &'a [PodDisruptionBudget],
    /// The maintenances that select its node.
    pub maintenances: &'a [NodeMaintenance],
    /// The current time.
    pub now: Timestamp,
}

/// Where a pod is on its way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum State {
    /// Nobody has asked for its eviction.
    NotRequested,
    /// Asked for; no interceptor has a turn yet.
    Pending,
    /// An interceptor has its turn.
    Intercepted,
    /// The eviction API is called.
    Evicting,
    /// It is being deleted.
    Terminating,
    /// It is gone, or has ended.
    Evicted,
    /// Its request was canceled.
    Canceled,
    /// Drains leave it alone.
    LeftAlone,
}

/// A party that asked for the eviction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Asker {
    /// The name of the requester.
    pub name: String,
    /// For node maintenances: their names and reasons.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub maintenances: Vec<String>,
    /// For the eviction bridge: the user who asked last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// The state of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum TurnState {
    /// It comes later.
    Waiting,
    /// It is now.
    Active,
    /// It has completed.
    Done,
    /// It was passed over, since it had not reported in time.
    PassedOver,
}

/// The turn of an interceptor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Turn {
    /// The name of the interceptor.
    pub name: String,
    /// Where it is.
    pub state: TurnState,
    /// When it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended: Option<Timestamp>,
    /// The last heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heartbeat: Option<Timestamp>,
    /// When it expects to be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expected_finish: Option<Timestamp>,
    /// Without a heartbeat until then, the next one has its turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// What it says.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Why a pod is still there.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    /// The namespace of the pod.
    pub namespace: String,
    /// The name of the pod.
    pub pod: String,
    /// The node that it runs on.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// What created it, such as `deployment/web`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Where it is on its way out.
    pub state: State,
    /// The name of its request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// Since when its eviction is requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requested_at: Option<Timestamp>,
    /// Who asked.
    pub asked_by: Vec<Asker>,
    /// The turns of its interceptors, in order.
    pub turns: Vec<Turn>,
    /// What blocks it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub blocked: Option<Blocked>,
    /// How often the eviction API has refused.
    pub failed_attempts: i32,
    /// When the eviction API is called again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt: Option<Timestamp>,
    /// The outcome of a request that is final.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<String>,
    /// What its budgets say, as sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub budgets: Vec<String>,
    /// Annotations by which other programs are told to leave it alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub habits: Vec<String>,
    /// What a person can do.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub advice: Vec<Advice>,
}

/// Explains a pod.
#[must_use]
pub fn explain(facts: &Facts<'_>) -> Explanation {
    let reference = facts.request.and_then(|request| request.spec.target.pod.as_ref());
    let pod_name = facts.pod.map_or_else(
        || reference.map(|pod| pod.name.clone()).unwrap_or_default(),
        |pod| pods::name(pod).to_owned(),
    );
    let namespace = facts.pod.map_or_else(
        || {
            let metadata = facts.request.map(|request| &request.metadata);
            metadata
                .and_then(|metadata| metadata.namespace.clone())
                .unwrap_or_default()
        },
        |pod| pods::namespace(pod).to_owned(),
    );
    let state = state(facts);
    let empty = EvictionRequestStatus::default();
    let status = facts
        .request
        .and_then(|request| request.status.as_ref())
        .unwrap_or(&empty);
    let is_final = matches!(state, State::Evicted | State::Canceled);
    let eviction = status.pod_eviction_status.clone().unwrap_or_default();
    let budgets = facts
        .pod
        .map_or_else(Vec::new, |pod| crate::budgets::of_pod(pod, facts.budgets));
    let mut explanation = Explanation {
        namespace,
        pod: pod_name,
        node: facts.pod.map(pods::node).unwrap_or_default().to_owned(),
        workload: facts.pod.and_then(pods::workload),
        state,
        request: facts.request.and_then(|request| request.metadata.name.clone()),
        requested_at: facts
            .request
            .and_then(|request| timestamp(request.metadata.creation_timestamp.as_ref())),
        asked_by: facts
            .request
            .map_or_else(Vec::new, |request| askers(request, facts)),
        turns: facts
            .request
            .map_or_else(Vec::new, |request| turns(request, status)),
        blocked: blocked::blocked(facts, state),
        failed_attempts: eviction.failed_api_eviction_counter,
        next_attempt: timestamp(eviction.next_attempt_time.as_ref()).filter(|_| !is_final),
        outcome: outcome(status),
        budgets: budgets.into_iter().map(crate::budgets::describe).collect(),
        habits: facts.pod.map_or_else(Vec::new, pods::habits),
        advice: Vec::new(),
    };
    explanation.advice = advice::advice(facts, &explanation);
    explanation
}

/// The blocker that a maintenance reports for the pod.
fn blocker<'a>(facts: &Facts<'a>) -> Option<&'a Blocker> {
    let pod = facts.pod?;
    facts
        .maintenances
        .iter()
        .filter_map(|maintenance| maintenance.status.as_ref())
        .flat_map(|status| &status.blockers)
        .find(|blocker| blocker.namespace == pods::namespace(pod) && blocker.pod == pods::name(pod))
}

fn state(facts: &Facts<'_>) -> State {
    let status = facts.request.and_then(|request| request.status.as_ref());
    let is = |type_: &str| {
        status.is_some_and(|status| {
            status
                .conditions
                .iter()
                .any(|condition| condition.type_ == type_ && condition.status == "True")
        })
    };
    if is(EVICTED) || facts.pod.is_none_or(pods::is_terminal) {
        return State::Evicted;
    }
    if is(CANCELED) {
        return State::Canceled;
    }
    if facts
        .pod
        .is_some_and(|pod| pod.metadata.deletion_timestamp.is_some())
    {
        return State::Terminating;
    }
    let active = status.and_then(|status| status.active_interceptors.first());
    match (facts.request, active) {
        (None, _) if facts.pod.is_some_and(|pod| !pods::has_to_leave(pod)) => State::LeftAlone,
        (None, _) => State::NotRequested,
        (Some(_), None) => State::Pending,
        (Some(_), Some(active)) if active == IMPERATIVE_EVICTION => State::Evicting,
        (Some(_), Some(_)) => State::Intercepted,
    }
}

fn askers(request: &EvictionRequest, facts: &Facts<'_>) -> Vec<Asker> {
    let requesters = request.spec.requesters.iter();
    requesters
        .map(|requester| {
            let mut maintenances = Vec::new();
            if requester.name == NODE_MAINTENANCE_REQUESTER {
                for maintenance in facts.maintenances {
                    if maintenance.spec.stage != Stage::Drain {
                        continue;
                    }
                    let name = maintenance.metadata.name.clone().unwrap_or_default();
                    let reason = &maintenance.spec.reason;
                    maintenances.push(if reason.is_empty() {
                        name
                    } else {
                        format!("{name}: {reason}")
                    });
                }
            }
            let is_bridge = requester.name == EVICTION_BRIDGE_REQUESTER;
            Asker {
                name: requester.name.clone(),
                maintenances,
                user: is_bridge.then(|| asked_by_user(request)).flatten(),
            }
        })
        .collect()
}

/// The user who asked the eviction bridge last.
fn asked_by_user(request: &EvictionRequest) -> Option<String> {
    let annotations = request.metadata.annotations.as_ref()?;
    let asked: Value = serde_json::from_str(annotations.get(EVICTION_BRIDGE_ANNOTATION)?).ok()?;
    asked.get("by")?.as_str().map(str::to_owned)
}

fn turns(request: &EvictionRequest, status: &EvictionRequestStatus) -> Vec<Turn> {
    let window = request
        .spec
        .heartbeat_deadline_seconds
        .unwrap_or(DEFAULT_HEARTBEAT_DEADLINE_SECONDS);
    let none = InterceptorStatus::default();
    let targets = status.target_interceptors.iter();
    targets
        .map(|target| {
            let report = status
                .interceptors
                .iter()
                .find(|report| report.name == target.name);
            let report = report.unwrap_or(&none);
            let is_active = status.active_interceptors.contains(&target.name);
            let ended = timestamp(report.completion_time.as_ref());
            let state = if status.processed_interceptors.contains(&target.name) {
                if ended.is_some() {
                    TurnState::Done
                } else {
                    TurnState::PassedOver
                }
            } else if is_active {
                TurnState::Active
            } else {
                TurnState::Waiting
            };
            let since =
                timestamp(report.activation_time.as_ref()).or_else(|| timestamp(report.start_time.as_ref()));
            let heartbeat = timestamp(report.heartbeat_time.as_ref());
            // The last one has no deadline: nobody comes after it.
            let deadline = since
                .max(heartbeat)
                .filter(|_| is_active && target.name != IMPERATIVE_EVICTION && ended.is_none())
                .and_then(|from| {
                    from.checked_add(SignedDuration::from_secs(i64::from(window)))
                        .ok()
                });
            Turn {
                name: target.name.clone(),
                state,
                since,
                ended,
                heartbeat,
                expected_finish: timestamp(report.expected_finish_time.as_ref()).filter(|_| is_active),
                deadline,
                message: report.message.clone(),
            }
        })
        .collect()
}

fn outcome(status: &EvictionRequestStatus) -> Option<String> {
    let condition = status.conditions.iter().find(|condition| {
        condition.status == "True" && [EVICTED, CANCELED].contains(&condition.type_.as_str())
    })?;
    Some(format!(
        "{} ({}): {}",
        condition.type_, condition.reason, condition.message
    ))
}

#[cfg(test)]
mod tests;
