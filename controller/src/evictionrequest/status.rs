//! Pure translations between the API object and the model of [`super::decide`]: [`model`] reads an object, the other
//! functions return the status to write. Every write is a status transition that the server accepts.

use std::collections::HashMap;
use std::time::Duration;

use drydock_proto::kinds::evictionrequest::{
    CANCELED, DAEMON_SET_INTERCEPTOR, DEFAULT_HEARTBEAT_DEADLINE_SECONDS, EVICTED, EvictionRequest,
    EvictionRequestStatus, IMPERATIVE_EVICTION, InterceptorStatus, MAX_MESSAGE_BYTES, PodEvictionStatus,
    TargetInterceptor,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::decide::{FinishReason, InterceptorState, Request, Step};
use crate::conditions::{set_condition, whole_seconds};
use crate::rejection;

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
                message: entry.map(|entry| entry.message.clone()).unwrap_or_default(),
                rule_deadline: rule_deadlines.get(&target.name).copied(),
            }
        })
        .collect();
    let active = status
        .active_interceptors
        .first()
        .and_then(|active| interceptors.iter().position(|one| one.name == *active));
    Request {
        is_deleting: request.metadata.deletion_timestamp.is_some(),
        generation: request.metadata.generation.unwrap_or_default(),
        observed_generation: status.observed_generation.unwrap_or_default(),
        labels: request.metadata.labels.clone().unwrap_or_default(),
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
        failed_evictions: status.pod_eviction_status.as_ref().map_or(0, |status| {
            u32::try_from(status.failed_api_eviction_counter).unwrap_or_default()
        }),
        interceptors,
    }
}

/// The status after the step; `None` for steps that do not write it.
#[must_use]
pub fn after_step(request: &EvictionRequest, step: &Step, now: Timestamp) -> Option<EvictionRequestStatus> {
    let mut status = with_observed_generation(request);
    let now = whole_seconds(now);
    match step {
        Step::Finish { reason, message } => finish(&mut status, *reason, message, now),
        Step::InitializeInterceptors(names) => {
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
        }
        Step::Activate { index, .. } => {
            let name = status.target_interceptors.get(*index)?.name.clone();
            let previous = std::mem::replace(&mut status.active_interceptors, vec![name.clone()]);
            status.processed_interceptors.extend(previous);
            entry(&mut status, &name)?.activation_time = Some(now);
        }
        Step::RecordTimeout { message, complete } => {
            let active = active_entry(&mut status)?;
            active.message.clone_from(message);
            if *complete {
                active.completion_time = Some(now);
            }
        }
        Step::RecordExemption(exemption) => {
            exemption
                .message()
                .clone_into(&mut active_entry(&mut status)?.message);
        }
        Step::ObserveGeneration => {}
        Step::Wait | Step::DeleteRequest | Step::CopyLabels(_) | Step::Evict => return None,
    }
    Some(status)
}

/// The status after the eviction API accepted the eviction.
#[must_use]
pub fn after_accepted(request: &EvictionRequest, now: Timestamp) -> Option<EvictionRequestStatus> {
    let mut status = with_observed_generation(request);
    let entry = active_entry(&mut status)?;
    set_heartbeat(entry, now);
    "The pod was evicted and is terminating.".clone_into(&mut entry.message);
    Some(status)
}

/// The status after the eviction API rejected the eviction.
#[must_use]
pub fn after_rejected(request: &EvictionRequest, why: &str, now: Timestamp) -> Option<EvictionRequestStatus> {
    let mut status = with_observed_generation(request);
    let counter = &mut status
        .pod_eviction_status
        .get_or_insert_with(PodEvictionStatus::default)
        .failed_api_eviction_counter;
    *counter = counter.saturating_add(1);
    let retries = *counter;
    let entry = active_entry(&mut status)?;
    set_heartbeat(entry, now);
    entry.message = rejection::message(why, retries, MAX_MESSAGE_BYTES);
    Some(status)
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
        && [IMPERATIVE_EVICTION, DAEMON_SET_INTERCEPTOR].contains(&entry.name.as_str())
        && entry.completion_time.is_none()
    {
        // Other interceptors write their own completion; these two are part of this program.
        entry.completion_time = Some(now.clone());
        entry.expected_finish_time = None;
        message.clone_into(&mut entry.message);
    }
    let condition = Condition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: now,
        observed_generation: status.observed_generation,
    };
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
mod tests {
    use super::super::decide::{ActivationReason, EvictionExemption};
    use super::*;
    use serde_json::json;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn request(status: &serde_json::Value) -> EvictionRequest {
        serde_json::from_value(json!({
            "metadata": {"name": "uid-1", "namespace": "shop", "generation": 3},
            "spec": {"target": {"pod": {"name": "web", "uid": "uid-1"}}, "requesters": [{"name": "a.example.com"}]},
            "status": status,
        }))
        .unwrap()
    }

    /// The status after the step, as JSON. Checks that the step wrote `observedGeneration`.
    fn status_after(status: &serde_json::Value, step: &Step) -> serde_json::Value {
        let status = after_step(&request(status), step, at(1_000)).unwrap();
        assert_eq!(status.observed_generation, Some(3));
        serde_json::to_value(status).unwrap()
    }

    const NAMES: [&str; 2] = ["a.example.com", IMPERATIVE_EVICTION];

    /// An initialized status with an active interceptor.
    fn initialized(active: &str) -> serde_json::Value {
        json!({
            "targetInterceptors": NAMES.map(|name| json!({"name": name})),
            "interceptors": NAMES.map(|name| json!({"name": name})),
            "activeInterceptors": [active],
        })
    }

    #[test]
    fn initialization_writes_names_only() {
        let status = status_after(
            &json!({}),
            &Step::InitializeInterceptors(NAMES.map(str::to_owned).to_vec()),
        );
        assert_eq!(
            status["interceptors"],
            json!([{"name": NAMES[0]}, {"name": NAMES[1]}])
        );
        assert_eq!(status.get("activeInterceptors"), None);
    }

    #[test]
    fn activation_moves_the_previous_interceptor_to_processed() {
        let step = |index| Step::Activate {
            index,
            reason: ActivationReason::PreviousCompleted,
        };
        let mut before = initialized(NAMES[0]);
        before["activeInterceptors"] = json!([]);
        let first = status_after(&before, &step(0));
        assert_eq!(first["activeInterceptors"], json!([NAMES[0]]));
        assert_eq!(first.get("processedInterceptors"), None);
        assert_eq!(first["interceptors"][0]["activationTime"], "1970-01-01T00:16:40Z");
        let second = status_after(&first, &step(1));
        assert_eq!(second["activeInterceptors"], json!([NAMES[1]]));
        assert_eq!(second["processedInterceptors"], json!([NAMES[0]]));
        assert_eq!(
            second["interceptors"][0], first["interceptors"][0],
            "only the entry of the new interceptor changes"
        );
    }

    #[test]
    fn cancellation_clears_the_active_interceptor_and_eviction_does_not() {
        let finish = |reason| Step::Finish {
            reason,
            message: "m".to_owned(),
        };
        let canceled = status_after(&initialized(NAMES[0]), &finish(FinishReason::NoRequesters));
        assert_eq!(canceled.get("activeInterceptors"), None);
        assert_eq!(canceled["processedInterceptors"], json!([NAMES[0]]));
        assert_eq!(canceled["conditions"][0]["type"], "Canceled");
        assert_eq!(canceled["conditions"][0]["reason"], "NoRequesters");

        let evicted = status_after(&initialized(NAMES[0]), &finish(FinishReason::PodDeleted));
        assert_eq!(evicted["activeInterceptors"], json!([NAMES[0]]));
        assert_eq!(evicted["interceptors"][0], json!({"name": NAMES[0]}));
        assert_eq!(evicted["conditions"][0]["type"], "Evicted");

        let ours = status_after(&initialized(NAMES[1]), &finish(FinishReason::PodTerminal));
        assert_eq!(ours["interceptors"][1]["completionTime"], "1970-01-01T00:16:40Z");
        assert_eq!(ours["conditions"][0]["reason"], "PodTerminal");
        let again: EvictionRequestStatus = serde_json::from_value(ours).unwrap();
        let again = EvictionRequest {
            status: Some(again),
            ..request(&json!({}))
        };
        assert_eq!(model(&again, &HashMap::new()).finished_at, Some(at(1_000)));
    }

    #[test]
    fn rejections_are_counted_and_heartbeats_keep_the_minimum_interval() {
        let mut request = request(&initialized(NAMES[1]));
        for (second, heartbeat, retries) in [(1_000, 1_000, 1), (1_059, 1_000, 2), (1_060, 1_060, 3)] {
            let status = after_rejected(&request, "blocked by budget \"b\"", at(second)).unwrap();
            let entry = &status.interceptors[1];
            assert_eq!(time(entry.heartbeat_time.as_ref()), Some(at(heartbeat)));
            assert_eq!(time(entry.start_time.as_ref()), Some(at(1_000)));
            assert_eq!(
                entry.message,
                format!("Could not evict the pod: blocked by budget \"b\", number of retries: {retries}.")
            );
            request.status = Some(status);
            assert_eq!(model(&request, &HashMap::new()).failed_evictions, retries);
        }
        let long = after_rejected(&request, &"ö".repeat(40_000), at(2_000)).unwrap();
        assert!(long.interceptors[1].message.len() <= MAX_MESSAGE_BYTES);
    }

    #[test]
    fn recorded_messages_change_only_the_active_entry() {
        let timed_out = status_after(
            &initialized(NAMES[0]),
            &Step::RecordTimeout {
                message: "m".to_owned(),
                complete: true,
            },
        );
        assert_eq!(timed_out["interceptors"][0]["message"], "m");
        assert_eq!(
            timed_out["interceptors"][0]["completionTime"],
            "1970-01-01T00:16:40Z"
        );
        let exempt = status_after(
            &initialized(NAMES[1]),
            &Step::RecordExemption(EvictionExemption::StaticPod),
        );
        assert_eq!(exempt["interceptors"][1]["message"], "blocked: static pod");
        assert_eq!(exempt["interceptors"][0], json!({"name": NAMES[0]}));
    }

    #[test]
    fn model_contains_what_is_stored() {
        let mut status = initialized(NAMES[1]);
        status["processedInterceptors"] = json!([NAMES[0]]);
        status["interceptors"][1]["activationTime"] = json!("1970-01-01T00:01:00Z");
        let rule_deadlines = HashMap::from([(NAMES[0].to_owned(), Duration::from_secs(9))]);
        let model = model(&request(&status), &rule_deadlines);
        assert_eq!((model.active, model.processed, model.generation), (Some(1), 1, 3));
        assert_eq!(model.interceptors[1].activated_at, Some(at(60)));
        assert_eq!(model.interceptors[0].rule_deadline, Some(Duration::from_secs(9)));
        assert_eq!(model.heartbeat_deadline, Duration::from_mins(20));
        assert!(model.has_requesters && model.finished_at.is_none());
    }
}
