//! What does a step look like in the stored status? Pure translations between the stored form and the model of
//! [`super::decide`], made so that every write is a transition the server accepts.

use std::collections::HashMap;
use std::time::Duration;

use drydock_proto::kinds::evictionrequest::{
    CANCELED, DAEMON_SET_INTERCEPTOR, DEFAULT_HEARTBEAT_DEADLINE_SECONDS, EVICTED, EvictionRequest,
    EvictionRequestStatus, IMPERATIVE_EVICTION, InterceptorStatus, MAX_MESSAGE_BYTES, PodEvictionStatus,
    TargetInterceptor,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use super::decide::{End, Request, Step, Turn};

/// Heartbeats move by at least this much.
const HEARTBEAT_STEP: Duration = Duration::from_mins(1);

/// The request as decisions see it. `bounds` are deadlines of interceptors by rule.
#[must_use]
pub fn model<S: std::hash::BuildHasher>(
    request: &EvictionRequest,
    bounds: &HashMap<String, Duration, S>,
) -> Request {
    let empty = EvictionRequestStatus::default();
    let status = request.status.as_ref().unwrap_or(&empty);
    let seconds = |seconds: i32| Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
    let turns: Vec<Turn> = status
        .target_interceptors
        .iter()
        .map(|target| {
            let entry = status.interceptors.iter().find(|entry| entry.name == target.name);
            Turn {
                name: target.name.clone(),
                activated: entry.and_then(|entry| time(entry.activation_time.as_ref())),
                heartbeat: entry.and_then(|entry| time(entry.heartbeat_time.as_ref())),
                completed: entry.and_then(|entry| time(entry.completion_time.as_ref())),
                message: entry.map(|entry| entry.message.clone()).unwrap_or_default(),
                bound: bounds.get(&target.name).copied(),
            }
        })
        .collect();
    let active = status
        .active_interceptors
        .first()
        .and_then(|active| turns.iter().position(|turn| turn.name == *active));
    Request {
        is_deleting: request.metadata.deletion_timestamp.is_some(),
        generation: request.metadata.generation.unwrap_or_default(),
        observed_generation: status.observed_generation.unwrap_or_default(),
        labels: request.metadata.labels.clone().unwrap_or_default(),
        is_wanted: !request.spec.requesters.is_empty(),
        is_cancellation_forbidden: request.is_cancellation_forbidden(),
        deadline: seconds(
            request
                .spec
                .heartbeat_deadline_seconds
                .unwrap_or(DEFAULT_HEARTBEAT_DEADLINE_SECONDS),
        ),
        ttl: request.spec.ttl_seconds_after_finished.map(seconds),
        finished: status
            .conditions
            .iter()
            .find(|condition| {
                (condition.type_ == EVICTED || condition.type_ == CANCELED) && condition.status == "True"
            })
            .map(|condition| condition.last_transition_time.0),
        active,
        processed: status.processed_interceptors.len(),
        failures: status.pod_eviction_status.as_ref().map_or(0, |status| {
            u32::try_from(status.failed_api_eviction_counter).unwrap_or_default()
        }),
        turns,
    }
}

/// The status after the step; `None` for steps that do not write it.
#[must_use]
pub fn after(request: &EvictionRequest, step: &Step, now: Timestamp) -> Option<EvictionRequestStatus> {
    let mut status = observed(request);
    let now = whole_seconds(now);
    match step {
        Step::Finish { end, message } => finish(&mut status, *end, message, now),
        Step::Declare(names) => {
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
            let before = std::mem::replace(&mut status.active_interceptors, vec![name.clone()]);
            status.processed_interceptors.extend(before);
            entry(&mut status, &name)?.activation_time = Some(now);
        }
        Step::NoteSilence { message, complete } => {
            let active = active(&mut status)?;
            active.message.clone_from(message);
            if *complete {
                active.completion_time = Some(now);
            }
        }
        Step::NoteNeverEvict(never) => never.message().clone_into(&mut active(&mut status)?.message),
        Step::Acknowledge => {}
        Step::Wait | Step::Collect | Step::CopyLabels(_) | Step::Evict => return None,
    }
    Some(status)
}

/// The status after the eviction API took the request.
#[must_use]
pub fn after_accepted(request: &EvictionRequest, now: Timestamp) -> Option<EvictionRequestStatus> {
    let mut status = observed(request);
    let entry = active(&mut status)?;
    beat(entry, now);
    "The pod was evicted and is terminating.".clone_into(&mut entry.message);
    Some(status)
}

/// The status after the eviction API refused.
#[must_use]
pub fn after_refused(request: &EvictionRequest, why: &str, now: Timestamp) -> Option<EvictionRequestStatus> {
    let mut status = observed(request);
    let counter = &mut status
        .pod_eviction_status
        .get_or_insert_with(PodEvictionStatus::default)
        .failed_api_eviction_counter;
    *counter = counter.saturating_add(1);
    let retries = *counter;
    let entry = active(&mut status)?;
    beat(entry, now);
    let tail = format!(", number of retries: {retries}.");
    let mut end = why.len().min(MAX_MESSAGE_BYTES.saturating_sub(tail.len() + 64));
    while !why.is_char_boundary(end) {
        end -= 1;
    }
    let why = why.get(..end).unwrap_or_default();
    entry.message = format!("Could not evict the pod: {why}{tail}");
    Some(status)
}

/// A sign of life of the active interceptor, with its message and when it expects to be done.
#[must_use]
pub fn after_heartbeat(
    request: &EvictionRequest,
    message: &str,
    expected_finish: Option<Timestamp>,
    now: Timestamp,
) -> Option<EvictionRequestStatus> {
    let mut status = request.status.clone().unwrap_or_default();
    let entry = active(&mut status)?;
    beat(entry, now);
    message.clone_into(&mut entry.message);
    entry.expected_finish_time = expected_finish.filter(|at| *at > now).map(whole_seconds);
    Some(status)
}

fn finish(status: &mut EvictionRequestStatus, end: End, message: &str, now: Time) {
    let (type_, reason) = match end {
        End::PodDeleted => (EVICTED, "PodDeleted"),
        End::PodTerminal => (EVICTED, "PodTerminal"),
        End::ValidationFailed => (CANCELED, "ValidationFailed"),
        End::NoRequesters => (CANCELED, "NoRequesters"),
    };
    if type_ == CANCELED {
        let active = std::mem::take(&mut status.active_interceptors);
        status.processed_interceptors.extend(active);
    } else if let Some(entry) = active(status)
        && [IMPERATIVE_EVICTION, DAEMON_SET_INTERCEPTOR].contains(&entry.name.as_str())
        && entry.completion_time.is_none()
    {
        // Interceptors report for themselves; these two are ours.
        entry.completion_time = Some(now.clone());
        entry.expected_finish_time = None;
        message.clone_into(&mut entry.message);
    }
    let generation = status.observed_generation;
    status.conditions.retain(|condition| condition.type_ != type_);
    status.conditions.push(Condition {
        type_: type_.to_owned(),
        status: "True".to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: now,
        observed_generation: generation,
    });
}

fn observed(request: &EvictionRequest) -> EvictionRequestStatus {
    let mut status = request.status.clone().unwrap_or_default();
    status.observed_generation = status.observed_generation.max(request.metadata.generation);
    status
}

fn active(status: &mut EvictionRequestStatus) -> Option<&mut InterceptorStatus> {
    let name = status.active_interceptors.first()?.clone();
    entry(status, &name)
}

fn entry<'a>(status: &'a mut EvictionRequestStatus, name: &str) -> Option<&'a mut InterceptorStatus> {
    status.interceptors.iter_mut().find(|entry| entry.name == name)
}

/// Sets the heartbeat to now where the server lets it move.
fn beat(entry: &mut InterceptorStatus, now: Timestamp) {
    let now = whole_seconds(now);
    match &entry.heartbeat_time {
        Some(last)
            if now.0.duration_since(last.0)
                < jiff::SignedDuration::try_from(HEARTBEAT_STEP).unwrap_or_default() => {}
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

/// The time as the wire can carry it.
#[must_use]
pub fn whole_seconds(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

#[cfg(test)]
mod tests {
    use super::super::decide::{NeverEvict, Passing};
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

    /// The status after the step, as JSON, and that the step wrote `observedGeneration`.
    fn stepped(status: &serde_json::Value, step: &Step) -> serde_json::Value {
        let status = after(&request(status), step, at(1_000)).unwrap();
        assert_eq!(status.observed_generation, Some(3));
        serde_json::to_value(status).unwrap()
    }

    const TURNS: [&str; 2] = ["a.example.com", IMPERATIVE_EVICTION];

    fn declared(active: &str) -> serde_json::Value {
        json!({
            "targetInterceptors": TURNS.map(|name| json!({"name": name})),
            "interceptors": TURNS.map(|name| json!({"name": name})),
            "activeInterceptors": [active],
        })
    }

    #[test]
    fn the_first_initialisation_carries_names_only() {
        let status = stepped(&json!({}), &Step::Declare(TURNS.map(str::to_owned).to_vec()));
        assert_eq!(
            status["interceptors"],
            json!([{"name": TURNS[0]}, {"name": TURNS[1]}])
        );
        assert_eq!(status.get("activeInterceptors"), None);
    }

    #[test]
    fn activation_moves_the_one_before_to_processed() {
        let step = |index| Step::Activate {
            index,
            because: Some(Passing::Completed),
        };
        let mut before = declared(TURNS[0]);
        before["activeInterceptors"] = json!([]);
        let first = stepped(&before, &step(0));
        assert_eq!(first["activeInterceptors"], json!([TURNS[0]]));
        assert_eq!(first.get("processedInterceptors"), None);
        assert_eq!(first["interceptors"][0]["activationTime"], "1970-01-01T00:16:40Z");
        let second = stepped(&first, &step(1));
        assert_eq!(second["activeInterceptors"], json!([TURNS[1]]));
        assert_eq!(second["processedInterceptors"], json!([TURNS[0]]));
        assert_eq!(
            second["interceptors"][0], first["interceptors"][0],
            "only the new one's entry changes"
        );
    }

    #[test]
    fn cancellation_clears_the_active_one_and_eviction_does_not() {
        let finish = |end| Step::Finish {
            end,
            message: "m".to_owned(),
        };
        let canceled = stepped(&declared(TURNS[0]), &finish(End::NoRequesters));
        assert_eq!(canceled.get("activeInterceptors"), None);
        assert_eq!(canceled["processedInterceptors"], json!([TURNS[0]]));
        assert_eq!(canceled["conditions"][0]["type"], "Canceled");
        assert_eq!(canceled["conditions"][0]["reason"], "NoRequesters");

        let evicted = stepped(&declared(TURNS[0]), &finish(End::PodDeleted));
        assert_eq!(evicted["activeInterceptors"], json!([TURNS[0]]));
        assert_eq!(evicted["interceptors"][0], json!({"name": TURNS[0]}));
        assert_eq!(evicted["conditions"][0]["type"], "Evicted");

        let ours = stepped(&declared(TURNS[1]), &finish(End::PodTerminal));
        assert_eq!(ours["interceptors"][1]["completionTime"], "1970-01-01T00:16:40Z");
        assert_eq!(ours["conditions"][0]["reason"], "PodTerminal");
        let again: EvictionRequestStatus = serde_json::from_value(ours).unwrap();
        let again = EvictionRequest {
            status: Some(again),
            ..request(&json!({}))
        };
        assert_eq!(model(&again, &HashMap::new()).finished, Some(at(1_000)));
    }

    #[test]
    fn refusals_count_and_heartbeats_keep_their_distance() {
        let mut request = request(&declared(TURNS[1]));
        for (second, heartbeat, retries) in [(1_000, 1_000, 1), (1_059, 1_000, 2), (1_060, 1_060, 3)] {
            let status = after_refused(&request, "blocked by budget \"b\"", at(second)).unwrap();
            let entry = &status.interceptors[1];
            assert_eq!(time(entry.heartbeat_time.as_ref()), Some(at(heartbeat)));
            assert_eq!(time(entry.start_time.as_ref()), Some(at(1_000)));
            assert_eq!(
                entry.message,
                format!("Could not evict the pod: blocked by budget \"b\", number of retries: {retries}.")
            );
            request.status = Some(status);
            assert_eq!(model(&request, &HashMap::new()).failures, retries);
        }
        let long = after_refused(&request, &"ö".repeat(40_000), at(2_000)).unwrap();
        assert!(long.interceptors[1].message.len() <= MAX_MESSAGE_BYTES);
    }

    #[test]
    fn notes_change_only_the_active_entry() {
        let silent = stepped(
            &declared(TURNS[0]),
            &Step::NoteSilence {
                message: "m".to_owned(),
                complete: true,
            },
        );
        assert_eq!(silent["interceptors"][0]["message"], "m");
        assert_eq!(
            silent["interceptors"][0]["completionTime"],
            "1970-01-01T00:16:40Z"
        );
        let never = stepped(&declared(TURNS[1]), &Step::NoteNeverEvict(NeverEvict::Mirror));
        assert_eq!(never["interceptors"][1]["message"], "blocked: static pod");
        assert_eq!(never["interceptors"][0], json!({"name": TURNS[0]}));
    }

    #[test]
    fn the_model_reads_what_is_stored() {
        let mut status = declared(TURNS[1]);
        status["processedInterceptors"] = json!([TURNS[0]]);
        status["interceptors"][1]["activationTime"] = json!("1970-01-01T00:01:00Z");
        let bounds = HashMap::from([(TURNS[0].to_owned(), Duration::from_secs(9))]);
        let model = model(&request(&status), &bounds);
        assert_eq!((model.active, model.processed, model.generation), (Some(1), 1, 3));
        assert_eq!(model.turns[1].activated, Some(at(60)));
        assert_eq!(model.turns[0].bound, Some(Duration::from_secs(9)));
        assert_eq!(model.deadline, Duration::from_mins(20));
        assert!(model.is_wanted && model.finished.is_none());
    }
}
