//! Pure translations between the API object and the model of [`super::decide`]: [`model`] reads an object, the other
//! functions return the status to write. Every write is a status transition that the server accepts.

use std::collections::HashMap;
use std::time::Duration;

use drydock_proto::kinds::evictionrequest::{
    BLOCKED, CANCELED, DAEMON_SET_INTERCEPTOR, DEFAULT_HEARTBEAT_DEADLINE_SECONDS, EVICTED, EvictionRequest,
    EvictionRequestStatus, IMPERATIVE_EVICTION, InterceptorStatus, PodEvictionStatus, TargetInterceptor,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::blocked::Hold;
use super::decide::{ActivationReason, FinishReason, Step};
use super::reason::Reason;
use super::refusal::Refusal;
use super::snapshot::{InterceptorState, Request, StoredBlock};
use crate::conditions::{set_condition, whole_seconds};
use crate::request_labels::{self, LabelChanges};

/// The server rejects heartbeats that are closer together.
const MIN_HEARTBEAT_INTERVAL: SignedDuration = SignedDuration::from_mins(1);

/// The request as decisions see it. `rule_deadlines` are the heartbeat deadlines that rules set, by interceptor.
#[must_use]
pub fn model<S: std::hash::BuildHasher>(
    request: &EvictionRequest,
    rule_deadlines: &HashMap<String, Duration, S>,
) -> Request {
    let empty = EvictionRequestStatus::default();
    let status = request.status.as_ref().unwrap_or(&empty);
    let seconds = |seconds: i32| Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    let interceptors: Vec<InterceptorState> = status
        .target_interceptors
        .iter()
        .map(|target| {
            let entry = status.interceptors.iter().find(|entry| entry.name == target.name);
            InterceptorState {
                name: target.name.clone(),
                activated_at: entry.and_then(|entry| time(entry.activation_time.as_ref())),
                heartbeat_at: entry.and_then(|entry| time(entry.heartbeat_time.as_ref())),
                completed_at: entry.and_then(|entry| time(entry.completion_time.as_ref())),
                rule_deadline: rule_deadlines.get(&target.name).copied(),
            }
        })
        .collect();
    let active = status
        .active_interceptors
        .first()
        .and_then(|active| interceptors.iter().position(|one| one.name == *active));
    let attempts = status.pod_eviction_status.as_ref();
    Request {
        is_deleting: request.metadata.deletion_timestamp.is_some(),
        generation: request.metadata.generation.unwrap_or_default(),
        observed_generation: status.observed_generation.unwrap_or_default(),
        // Known only with the pod.
        label_changes: LabelChanges::new(),
        missing_annotations: request_labels::missing_annotations(request.metadata.annotations.as_ref()),
        has_requesters: !request.spec.requesters.is_empty(),
        is_cancellation_forbidden: request.is_cancellation_forbidden(),
        heartbeat_deadline: seconds(
            request
                .spec
                .heartbeat_deadline_seconds
                .unwrap_or(DEFAULT_HEARTBEAT_DEADLINE_SECONDS),
        ),
        ttl: request.spec.ttl_seconds_after_finished.map(seconds),
        finished_at: status
            .conditions
            .iter()
            .find(|condition| {
                (condition.type_ == EVICTED || condition.type_ == CANCELED) && condition.status == "True"
            })
            .map(|condition| condition.last_transition_time.0),
        active,
        processed: status.processed_interceptors.len(),
        failed_evictions: attempts.map_or(0, |attempts| {
            u32::try_from(attempts.failed_api_eviction_counter).unwrap_or_default()
        }),
        last_attempt_at: attempts.and_then(|attempts| time(attempts.last_attempt_time.as_ref())),
        next_attempt_at: attempts.and_then(|attempts| time(attempts.next_attempt_time.as_ref())),
        blocked: status
            .conditions
            .iter()
            .find(|condition| condition.type_ == BLOCKED && condition.status == "True")
            .map(|condition| StoredBlock {
                reason: condition.reason.clone(),
                message: condition.message.clone(),
                since: condition.last_transition_time.0,
            }),
        interceptors,
    }
}

/// The status after the step; `None` for steps that do not write it. Where an eviction follows, it contains the intent.
#[must_use]
pub fn after_step(request: &EvictionRequest, step: &Step, now: Timestamp) -> Option<EvictionRequestStatus> {
    let mut status = with_observed_generation(request);
    let at = whole_seconds(now);
    match step {
        Step::Finish { reason, message } => finish(&mut status, *reason, message, at),
        Step::Initialize { names, .. } => initialize(&mut status, names, at)?,
        Step::Activate { index, reason, .. } => {
            if let Some(ActivationReason::PreviousPassedOver { message, complete }) = reason {
                let previous = active_entry(&mut status)?;
                previous.message.clone_from(message);
                if *complete {
                    previous.completion_time = Some(at.clone());
                }
            }
            activate(&mut status, *index, at)?;
        }
        Step::RecordRefusal { refusal, delay } => record_refusal(&mut status, refusal, *delay, now)?,
        Step::RecordHold(hold) => set_hold(&mut status, hold, &at),
        Step::Evict { .. } | Step::ObserveGeneration => {}
        Step::Wait | Step::DeleteRequest | Step::CopyLabels { .. } => return None,
    }
    if step.evicts() {
        record_intent(&mut status, now)?;
    }
    Some(status)
}

fn initialize(status: &mut EvictionRequestStatus, names: &[String], now: Time) -> Option<()> {
    status.target_interceptors = names
        .iter()
        .map(|name| TargetInterceptor { name: name.clone() })
        .collect();
    status.interceptors = names
        .iter()
        .map(|name| InterceptorStatus {
            name: name.clone(),
            ..InterceptorStatus::default()
        })
        .collect();
    activate(status, 0, now)
}

fn activate(status: &mut EvictionRequestStatus, index: usize, now: Time) -> Option<()> {
    let name = status.target_interceptors.get(index)?.name.clone();
    let previous = std::mem::replace(&mut status.active_interceptors, vec![name.clone()]);
    status.processed_interceptors.extend(previous);
    // The first activation begins the condition, also where the server has set the interceptors.
    if !status
        .conditions
        .iter()
        .any(|condition| condition.type_ == BLOCKED)
    {
        let progressing = progressing(status, &now);
        status.conditions.push(progressing);
    }
    set_hold(status, &Hold::Nothing, &now);
    entry(status, &name)?.activation_time = Some(now);
    Some(())
}

/// Writes that the eviction API is about to be called. The server accepts it only if the request is unchanged.
fn record_intent(status: &mut EvictionRequestStatus, now: Timestamp) -> Option<()> {
    let attempts = status
        .pod_eviction_status
        .get_or_insert_with(PodEvictionStatus::default);
    attempts.last_attempt_time = Some(whole_seconds(now));
    attempts.next_attempt_time = None;
    set_heartbeat(active_entry(status)?, now);
    Some(())
}

fn record_refusal(
    status: &mut EvictionRequestStatus,
    refusal: &Refusal,
    delay: Duration,
    now: Timestamp,
) -> Option<()> {
    let attempts = status
        .pod_eviction_status
        .get_or_insert_with(PodEvictionStatus::default);
    attempts.failed_api_eviction_counter = attempts.failed_api_eviction_counter.saturating_add(1);
    // Rounded up: an attempt is never made before the delay has passed.
    let next = now
        .checked_add(delay.saturating_add(Duration::from_millis(999)))
        .ok()?;
    attempts.next_attempt_time = Some(whole_seconds(next));
    let retries = attempts.failed_api_eviction_counter;
    let entry = active_entry(status)?;
    set_heartbeat(entry, now);
    entry.message = refusal.interceptor_message(retries);
    let condition = condition(
        BLOCKED,
        true,
        refusal.reason.as_str(),
        &refusal.message,
        status,
        whole_seconds(now),
    );
    set_condition(&mut status.conditions, condition);
    Some(())
}

/// Sets the condition `Blocked`.
fn set_hold(status: &mut EvictionRequestStatus, hold: &Hold, now: &Time) {
    match hold {
        Hold::AsStored => {}
        Hold::Nothing => {
            let is_blocked = |condition: &Condition| condition.type_ == BLOCKED && condition.status == "True";
            if status.conditions.iter().any(is_blocked) {
                let condition = progressing(status, now);
                set_condition(&mut status.conditions, condition);
            }
        }
        Hold::By(blocked) => {
            let since = whole_seconds(blocked.since);
            let reason = blocked.reason.as_str();
            let condition = condition(BLOCKED, true, reason, &blocked.message, status, since);
            set_condition(&mut status.conditions, condition);
            if matches!(blocked.reason, Reason::StaticPod | Reason::DaemonSetPod)
                && let Some(entry) = active_entry(status).filter(|entry| is_built_in(&entry.name))
            {
                entry.message.clone_from(&blocked.message);
            }
        }
    }
}

fn progressing(status: &EvictionRequestStatus, now: &Time) -> Condition {
    condition(
        BLOCKED,
        false,
        "Progressing",
        "Nothing is known to hold the pod.",
        status,
        now.clone(),
    )
}

fn condition(
    type_: &str,
    is_true: bool,
    reason: &str,
    message: &str,
    status: &EvictionRequestStatus,
    since: Time,
) -> Condition {
    Condition {
        type_: type_.to_owned(),
        status: if is_true { "True" } else { "False" }.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: since,
        observed_generation: status.observed_generation,
    }
}

/// Whether the interceptor is part of this program.
fn is_built_in(name: &str) -> bool {
    [IMPERATIVE_EVICTION, DAEMON_SET_INTERCEPTOR].contains(&name)
}

/// The status after a heartbeat of the active interceptor.
#[must_use]
pub fn after_heartbeat(
    request: &EvictionRequest,
    message: &str,
    expected_finish: Option<Timestamp>,
    now: Timestamp,
) -> Option<EvictionRequestStatus> {
    let mut status = request.status.clone().unwrap_or_default();
    let entry = active_entry(&mut status)?;
    set_heartbeat(entry, now);
    message.clone_into(&mut entry.message);
    entry.expected_finish_time = expected_finish.filter(|at| *at > now).map(whole_seconds);
    Some(status)
}

fn finish(status: &mut EvictionRequestStatus, reason: FinishReason, message: &str, now: Time) {
    let (type_, reason) = match reason {
        FinishReason::PodDeleted => (EVICTED, "PodDeleted"),
        FinishReason::PodTerminal => (EVICTED, "PodTerminal"),
        FinishReason::ValidationFailed => (CANCELED, "ValidationFailed"),
        FinishReason::NoRequesters => (CANCELED, "NoRequesters"),
    };
    if type_ == CANCELED {
        let active = std::mem::take(&mut status.active_interceptors);
        status.processed_interceptors.extend(active);
    } else if let Some(entry) = active_entry(status)
        && is_built_in(&entry.name)
        && entry.completion_time.is_none()
    {
        // Other interceptors write their own completion; these two are part of this program.
        entry.completion_time = Some(now.clone());
        entry.expected_finish_time = None;
        message.clone_into(&mut entry.message);
    }
    set_hold(status, &Hold::Nothing, &now);
    let condition = condition(type_, true, reason, message, status, now);
    set_condition(&mut status.conditions, condition);
}

fn with_observed_generation(request: &EvictionRequest) -> EvictionRequestStatus {
    let mut status = request.status.clone().unwrap_or_default();
    status.observed_generation = status.observed_generation.max(request.metadata.generation);
    status
}

fn active_entry(status: &mut EvictionRequestStatus) -> Option<&mut InterceptorStatus> {
    let name = status.active_interceptors.first()?.clone();
    entry(status, &name)
}

fn entry<'a>(status: &'a mut EvictionRequestStatus, name: &str) -> Option<&'a mut InterceptorStatus> {
    status.interceptors.iter_mut().find(|entry| entry.name == name)
}

/// Sets the heartbeat to now, unless the last one is too recent for the server to accept it.
fn set_heartbeat(entry: &mut InterceptorStatus, now: Timestamp) {
    let now = whole_seconds(now);
    match &entry.heartbeat_time {
        Some(last) if now.0.duration_since(last.0) < MIN_HEARTBEAT_INTERVAL => {}
        Some(_) => entry.heartbeat_time = Some(now),
        None => {
            entry.start_time = Some(now.clone());
            entry.heartbeat_time = Some(now);
        }
    }
}

fn time(time: Option<&Time>) -> Option<Timestamp> {
    time.map(|time| time.0)
}

#[cfg(test)]
mod tests;
