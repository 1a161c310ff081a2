use super::super::blocked::Blocked;
use super::super::snapshot::EvictionExemption;
use super::*;
use serde_json::{Value, json};

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn request(status: &Value) -> EvictionRequest {
    serde_json::from_value(json!({
        "metadata": {"name": "uid-1", "namespace": "shop", "generation": 3},
        "spec": {"target": {"pod": {"name": "web", "uid": "uid-1"}}, "requesters": [{"name": "a.example.com"}]},
        "status": status,
    }))
    .unwrap()
}

/// The status after the step, as JSON. Checks that the step wrote `observedGeneration`.
fn status_after(status: &Value, step: &Step) -> Value {
    let status = after_step(&request(status), step, at(1_000)).unwrap();
    assert_eq!(status.observed_generation, Some(3));
    serde_json::to_value(status).unwrap()
}

const NAMES: [&str; 2] = ["a.example.com", IMPERATIVE_EVICTION];
const NOW: &str = "1970-01-01T00:16:40Z";

/// An initialized status with an active interceptor.
fn initialized(active: &str) -> Value {
    json!({
        "targetInterceptors": NAMES.map(|name| json!({"name": name})),
        "interceptors": NAMES.map(|name| json!({"name": name})),
        "activeInterceptors": [active],
    })
}

fn refusal() -> Refusal {
    Refusal {
        reason: Reason::Budget,
        message: "m".to_owned(),
        cause: "blocked by budget \"b\"".to_owned(),
        result: "budget",
        retry_after: None,
    }
}

#[test]
fn initialization_activates_the_first_and_contains_the_intent_to_evict() {
    let initialize = |names: &[&str], evict| {
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        status_after(&json!({}), &Step::Initialize { names, evict })
    };
    let status = initialize(&NAMES, false);
    assert_eq!(
        status["interceptors"],
        json!([{"name": NAMES[0], "activationTime": NOW}, {"name": NAMES[1]}])
    );
    assert_eq!(status["activeInterceptors"], json!([NAMES[0]]));
    assert_eq!(status.get("podEvictionStatus"), None);
    let blocked = &status["conditions"][0];
    assert_eq!(
        (&blocked["type"], &blocked["status"], &blocked["reason"]),
        (&json!("Blocked"), &json!("False"), &json!("Progressing"))
    );
    let status = initialize(&NAMES[1..], true);
    assert_eq!(
        status["podEvictionStatus"],
        json!({"failedAPIEvictionCounter": 0, "lastAttemptTime": NOW})
    );
    assert_eq!(status["interceptors"][0]["heartbeatTime"], NOW);
}

#[test]
fn the_first_activation_gives_what_initialization_gives_where_the_server_set_the_interceptors() {
    let names: Vec<String> = NAMES.map(str::to_owned).to_vec();
    let initialized = status_after(&json!({}), &Step::Initialize { names, evict: false });
    let declared = json!({
        "targetInterceptors": NAMES.map(|name| json!({"name": name})),
        "interceptors": NAMES.map(|name| json!({"name": name})),
    });
    let activate = Step::Activate {
        index: 0,
        reason: None,
        evict: false,
    };
    assert_eq!(status_after(&declared, &activate), initialized);
}

#[test]
fn activation_moves_the_previous_interceptor_to_processed() {
    let step = |index, evict| Step::Activate {
        index,
        reason: Some(ActivationReason::PreviousCompleted),
        evict,
    };
    let mut before = initialized(NAMES[0]);
    before["activeInterceptors"] = json!([]);
    let first = status_after(&before, &step(0, false));
    assert_eq!(first["activeInterceptors"], json!([NAMES[0]]));
    assert_eq!(first.get("processedInterceptors"), None);
    assert_eq!(first["interceptors"][0]["activationTime"], NOW);
    let second = status_after(&first, &step(1, true));
    assert_eq!(second["activeInterceptors"], json!([NAMES[1]]));
    assert_eq!(second["processedInterceptors"], json!([NAMES[0]]));
    assert_eq!(
        second["interceptors"][0], first["interceptors"][0],
        "only the entry of the new interceptor changes"
    );
    assert_eq!(second["podEvictionStatus"]["lastAttemptTime"], NOW);
}

#[test]
fn passed_over_interceptor_gets_its_message_in_the_write_that_activates_the_next() {
    let silent = json!([{"type": "Blocked", "status": "True", "reason": "InterceptorSilent", "message": "m",
        "lastTransitionTime": "1970-01-01T00:00:00Z"}]);
    for (complete, completion) in [(false, Value::Null), (true, json!(NOW))] {
        let mut before = initialized(NAMES[0]);
        before["conditions"] = silent.clone();
        let step = Step::Activate {
            index: 1,
            reason: Some(ActivationReason::PreviousPassedOver {
                message: "Passed over.".to_owned(),
                complete,
            }),
            evict: false,
        };
        let status = status_after(&before, &step);
        assert_eq!(status["interceptors"][0]["message"], "Passed over.");
        assert_eq!(status["interceptors"][0]["completionTime"], completion);
        assert_eq!(status["activeInterceptors"], json!([NAMES[1]]));
        assert_eq!(status["conditions"][0]["status"], "False");
    }
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
    assert_eq!(ours["interceptors"][1]["completionTime"], NOW);
    assert_eq!(ours["conditions"][0]["reason"], "PodTerminal");
    let again: EvictionRequestStatus = serde_json::from_value(ours).unwrap();
    let again = EvictionRequest {
        status: Some(again),
        ..request(&json!({}))
    };
    assert_eq!(model(&again, &HashMap::new()).finished_at, Some(at(1_000)));
}

#[test]
fn refusals_are_counted_and_heartbeats_keep_the_minimum_interval() {
    let mut request = request(&initialized(NAMES[1]));
    for (second, heartbeat, retries) in [(1_000, 1_000, 1), (1_059, 1_000, 2), (1_060, 1_060, 3)] {
        let step = Step::RecordRefusal {
            refusal: refusal(),
            delay: Duration::from_millis(1_500),
        };
        let status = after_step(&request, &step, at(second)).unwrap();
        let entry = &status.interceptors[1];
        assert_eq!(time(entry.heartbeat_time.as_ref()), Some(at(heartbeat)));
        assert_eq!(time(entry.start_time.as_ref()), Some(at(1_000)));
        assert_eq!(
            entry.message,
            format!("Could not evict the pod: blocked by budget \"b\", number of retries: {retries}.")
        );
        request.status = Some(status);
        let model = model(&request, &HashMap::new());
        assert_eq!(model.failed_evictions, retries);
        assert_eq!(model.next_attempt_at, Some(at(second + 2)), "rounded up");
        let blocked = model.blocked.unwrap();
        assert_eq!((blocked.reason.as_str(), blocked.since), ("Budget", at(1_000)));
    }
}

#[test]
fn blocked_begins_when_its_cause_did_and_keeps_that_while_the_reason_changes() {
    let hold = |reason, since| {
        Step::RecordHold(Hold::By(Blocked {
            reason,
            message: "m".to_owned(),
            since: at(since),
        }))
    };
    let silent = status_after(&initialized(NAMES[0]), &hold(Reason::InterceptorSilent, 880));
    let since = "1970-01-01T00:14:40Z";
    assert_eq!(silent["conditions"][0]["lastTransitionTime"], since);
    let other = status_after(&silent, &hold(Reason::Finalizers, 990));
    assert_eq!(other["conditions"][0]["reason"], "Finalizers");
    assert_eq!(other["conditions"][0]["lastTransitionTime"], since);
    let ended = status_after(&other, &Step::RecordHold(Hold::Nothing));
    assert_eq!(ended["conditions"][0]["status"], "False");
    assert_eq!(ended["conditions"][0]["lastTransitionTime"], NOW);
}

#[test]
fn exemption_is_also_the_message_of_the_built_in_interceptor() {
    let message = EvictionExemption::StaticPod.message();
    let hold = |active| {
        let step = Step::RecordHold(Hold::By(Blocked {
            reason: Reason::StaticPod,
            message: message.to_owned(),
            since: at(1),
        }));
        status_after(&initialized(active), &step)
    };
    let exempt = hold(NAMES[1]);
    assert_eq!(exempt["interceptors"][1]["message"], "blocked: static pod");
    assert_eq!(exempt["interceptors"][0], json!({"name": NAMES[0]}));
    assert_eq!(hold(NAMES[0])["interceptors"][0], json!({"name": NAMES[0]}));
}

#[test]
fn model_contains_what_is_stored() {
    let mut status = initialized(NAMES[1]);
    status["processedInterceptors"] = json!([NAMES[0]]);
    status["interceptors"][1]["activationTime"] = json!("1970-01-01T00:01:00Z");
    status["podEvictionStatus"] =
        json!({"failedAPIEvictionCounter": 2, "lastAttemptTime": "1970-01-01T00:01:10Z"});
    let rule_deadlines = HashMap::from([(NAMES[0].to_owned(), Duration::from_secs(9))]);
    let model = model(&request(&status), &rule_deadlines);
    assert_eq!((model.active, model.processed, model.generation), (Some(1), 1, 3));
    assert_eq!(model.interceptors[1].activated_at, Some(at(60)));
    assert_eq!(model.interceptors[0].rule_deadline, Some(Duration::from_secs(9)));
    assert_eq!(model.heartbeat_deadline, Duration::from_mins(20));
    assert_eq!(
        (model.last_attempt_at, model.next_attempt_at),
        (Some(at(70)), None)
    );
    assert!(model.has_requesters && model.finished_at.is_none() && model.blocked.is_none());
}
