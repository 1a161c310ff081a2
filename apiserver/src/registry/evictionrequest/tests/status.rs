//! The table of status transitions: old, new, and the causes. The clock shows 12:00:00.

use super::*;

const A: &str = "a.example.com";
const B: &str = "b.example.com";
const LAST: &str = "imperative-eviction.k8s.io";

/// Three declared interceptors with empty reports, and `changes` to them: top-level members of the status, and members
/// of reports by the names of the interceptors.
fn declared(changes: Value) -> Value {
    let mut status = json!({
        "targetInterceptors": [{"name": A}, {"name": B}, {"name": LAST}],
        "interceptors": [{"name": A}, {"name": B}, {"name": LAST}],
    });
    for (key, value) in changes.as_object().unwrap() {
        let reports = status["interceptors"].as_array_mut().unwrap();
        if let Some(report) = reports.iter_mut().find(|report| report["name"] == *key) {
            report
                .as_object_mut()
                .unwrap()
                .extend(value.as_object().unwrap().clone());
        } else {
            status[key] = value.clone();
        }
    }
    status
}

fn check(old: Value, new: Value, expected: Causes<'_>) {
    let strategy = EvictionRequestStrategy::default();
    let (old, new) = (
        request_with(&json!({"/status": old})),
        request_with(&json!({"/status": new})),
    );
    let errors = strategy.validate_status_update(&new, &old, &context());
    assert_causes(errors, expected, &json!([old["status"], new["status"]]));
    let again = strategy.validate_status_update(&old, &old, &context());
    assert_causes(again, &[], &old["status"]);
}

fn at(time: &str) -> Value {
    json!(format!("2026-01-01T{time}Z"))
}

/// The first interceptor is active since 11:50, its last heartbeat came at 11:55.
fn a_is_active() -> Value {
    declared(json!({
        "activeInterceptors": [A],
        A: {"activationTime": at("11:50:00"), "startTime": at("11:51:00"), "heartbeatTime": at("11:55:00")},
    }))
}

/// The first interceptor is active, and its report changes.
fn a_says(report: Value) -> Value {
    let mut status = a_is_active();
    status["interceptors"][0]
        .as_object_mut()
        .unwrap()
        .extend(report.as_object().unwrap().clone());
    status
}

#[test]
fn interceptors_are_declared_once() {
    check(json!({}), declared(json!({})), &[]);
    check(Value::Null, declared(json!({"observedGeneration": 1})), &[]);
    let swapped = json!({
        "targetInterceptors": [{"name": B}, {"name": A}, {"name": LAST}],
        "interceptors": [{"name": A}, {"name": B}, {"name": LAST}],
    });
    check(
        declared(json!({})),
        swapped,
        &[(
            "status.targetInterceptors",
            "FieldValueInvalid",
            r#"Invalid value: [{"name":"b.example.com"},{"name":"a.example.com"},{"name":"imperative-eviction.k8s.io"}]: field is immutable"#,
        )],
    );
    check(
        declared(json!({})),
        json!({}),
        &[(
            "status.targetInterceptors",
            "FieldValueInvalid",
            "Invalid value: []: field is immutable",
        )],
    );
    let bad = json!({
        "targetInterceptors": [{"name": A}, {"name": A}, {"name": "b"}],
        "interceptors": [{"name": A}, {"name": "b"}],
    });
    check(
        json!({}),
        bad,
        &[
            (
                "status.targetInterceptors[1].name",
                "FieldValueDuplicate",
                "Duplicate value: \"a.example.com\"",
            ),
            (
                "status.targetInterceptors[2].name",
                "FieldValueInvalid",
                "Invalid value: \"b\": should be a domain with at least two segments separated by dots",
            ),
        ],
    );
    let names: Vec<Value> = (0..17)
        .map(|n| json!({"name": format!("i{n}.example.com")}))
        .collect();
    check(
        json!({}),
        json!({"targetInterceptors": names, "interceptors": names}),
        &[
            (
                "status.targetInterceptors",
                "FieldValueTooMany",
                "Too many: 17: must have at most 16 items",
            ),
            (
                "status.interceptors",
                "FieldValueTooMany",
                "Too many: 17: must have at most 16 items",
            ),
        ],
    );
}

#[test]
fn reports_are_those_of_the_declared() {
    let mut fewer = declared(json!({}));
    fewer["interceptors"] = json!([{"name": A}, {"name": LAST}]);
    let text = "must have the same names as status.targetInterceptors";
    let listed = format!(r#"Invalid value: ["a.example.com","imperative-eviction.k8s.io"]: {text}"#);
    for old in [json!({}), declared(json!({}))] {
        check(
            old,
            fewer.clone(),
            &[("status.interceptors", "FieldValueInvalid", &listed)],
        );
    }
    let mut twice = declared(json!({}));
    twice["interceptors"] = json!([{"name": A}, {"name": B}, {"name": LAST}, {"name": B}]);
    check(
        declared(json!({})),
        twice,
        &[(
            "status.interceptors[3].name",
            "FieldValueDuplicate",
            "Duplicate value: \"b.example.com\"",
        )],
    );
    let mut reordered = declared(json!({}));
    reordered["interceptors"] = json!([{"name": LAST}, {"name": A}, {"name": B}]);
    check(declared(json!({})), reordered, &[]);
    check(
        json!({}),
        declared(json!({A: {"message": "early"}})),
        &[(
            "status.interceptors[0]",
            "FieldValueForbidden",
            "Forbidden: may change only while the interceptor is active",
        )],
    );
}

#[test]
fn the_first_turn_is_the_first_interceptors() {
    let activated = |name: &str| {
        declared(json!({"activeInterceptors": [name], name: {"activationTime": at("12:00:00")}}))
    };
    check(declared(json!({})), activated(A), &[]);
    check(json!({}), activated(A), &[]);
    check(
        declared(json!({})),
        activated(B),
        &[(
            "status.activeInterceptors[0]",
            "FieldValueInvalid",
            "Invalid value: \"b.example.com\": must be the next of status.targetInterceptors: \"a.example.com\"",
        )],
    );
    check(
        json!({}),
        json!({"activeInterceptors": [A]}),
        &[(
            "status.activeInterceptors[0]",
            "FieldValueInvalid",
            "Invalid value: \"a.example.com\": must be the next of status.targetInterceptors, and none is left",
        )],
    );
    let mut both = activated(A);
    both["activeInterceptors"] = json!([A, B]);
    both["interceptors"][1]["activationTime"] = at("12:00:00");
    check(
        declared(json!({})),
        both,
        &[(
            "status.activeInterceptors",
            "FieldValueTooMany",
            "Too many: 2: must have at most 1 item",
        )],
    );
}

#[test]
fn activation_is_stamped_once() {
    let activated = |time: Value| declared(json!({"activeInterceptors": [A], A: {"activationTime": time}}));
    check(declared(json!({})), activated(at("11:59:50")), &[]);
    check(declared(json!({})), activated(at("12:00:10")), &[]);
    for time in ["11:59:49", "12:00:11"] {
        check(
            declared(json!({})),
            activated(at(time)),
            &[(
                "status.interceptors[0].activationTime",
                "FieldValueInvalid",
                &format!(
                    "Invalid value: \"2026-01-01T{time}Z\": must be within 10 seconds of the server's time"
                ),
            )],
        );
    }
    check(
        declared(json!({})),
        declared(json!({"activeInterceptors": [A]})),
        &[(
            "status.interceptors[0].activationTime",
            "FieldValueRequired",
            "Required value: must be set when the interceptor becomes active",
        )],
    );
    check(
        a_is_active(),
        a_says(json!({"activationTime": at("12:00:00")})),
        &[(
            "status.interceptors[0].activationTime",
            "FieldValueInvalid",
            "Invalid value: \"2026-01-01T12:00:00Z\": field is immutable",
        )],
    );
}

#[test]
fn the_next_turn_comes_when_the_one_before_is_over() {
    let b_follows = |report: Value| {
        declared(
            json!({"activeInterceptors": [B], "processedInterceptors": [A], A: report,
            B: {"activationTime": at("12:00:00")}}),
        )
    };
    let completed = json!({"activationTime": at("11:50:00"), "completionTime": at("11:59:00")});
    let old = |report: &Value| declared(json!({"activeInterceptors": [A], A: report}));
    check(old(&completed), b_follows(completed.clone()), &[]);

    let stay = (
        "status.activeInterceptors",
        "FieldValueForbidden",
        "Forbidden: \"a.example.com\" must stay: its completionTime is not set, and it is not silent for 1200 seconds yet",
    );
    // Silent since 11:40:00, that is for 20 minutes, and for a second more.
    let silent = json!({"activationTime": at("11:40:00")});
    check(old(&silent), b_follows(silent.clone()), &[stay]);
    let silent = json!({"activationTime": at("11:39:59")});
    check(old(&silent), b_follows(silent.clone()), &[]);
    let alive = json!({"activationTime": at("11:00:00"), "startTime": at("11:00:30"), "heartbeatTime": at("11:40:00")});
    check(old(&alive), b_follows(alive.clone()), &[stay]);
    let late = json!({"activationTime": at("11:00:00"), "startTime": at("11:00:30"), "heartbeatTime": at("11:39:59")});
    check(old(&late), b_follows(late.clone()), &[]);
    check(old(&json!({})), b_follows(json!({})), &[stay]);

    // The turn may end in the write that says so, and the reason may stand in its message.
    let mut over = completed.clone();
    over["completionTime"] = at("12:00:00");
    over["message"] = json!("moved on");
    check(
        old(&json!({"activationTime": at("11:50:00")})),
        b_follows(over),
        &[],
    );

    // Nobody may be active in between, and then the next one follows all the same.
    let mut between = b_follows(completed.clone());
    between["activeInterceptors"] = json!([]);
    between["interceptors"][1] = json!({"name": B});
    check(old(&completed), between.clone(), &[]);
    check(between.clone(), b_follows(completed.clone()), &[]);
    let mut again = old(&completed);
    again["processedInterceptors"] = json!([A]);
    check(
        between,
        again,
        &[(
            "status.activeInterceptors[0]",
            "FieldValueInvalid",
            "Invalid value: \"a.example.com\": must be the next of status.targetInterceptors: \"b.example.com\"",
        )],
    );
    let skipped = declared(
        json!({"activeInterceptors": [LAST], "processedInterceptors": [A], A: completed,
        LAST: {"activationTime": at("12:00:00")}}),
    );
    check(
        old(&completed),
        skipped,
        &[(
            "status.activeInterceptors[0]",
            "FieldValueInvalid",
            "Invalid value: \"imperative-eviction.k8s.io\": must be the next of status.targetInterceptors: \"b.example.com\"",
        )],
    );
}

#[test]
fn processed_interceptors_are_those_whose_turn_is_over() {
    let completed = json!({"activationTime": at("11:50:00"), "completionTime": at("11:59:00")});
    let old = declared(json!({"activeInterceptors": [A], A: completed}));
    let new = |processed: &[&str]| declared(json!({"processedInterceptors": processed, A: completed}));
    check(old.clone(), new(&[A]), &[]);
    check(
        old.clone(),
        new(&[]),
        &[(
            "status.processedInterceptors",
            "FieldValueRequired",
            "Required value: must end with \"a.example.com\", which stops being active",
        )],
    );
    let only = "only an interceptor that stops being active may be appended";
    check(
        old.clone(),
        new(&[A, B]),
        &[(
            "status.processedInterceptors[1]",
            "FieldValueInvalid",
            &format!("Invalid value: \"b.example.com\": {only}"),
        )],
    );
    let mut still_active = new(&[A]);
    still_active["activeInterceptors"] = json!([A]);
    check(
        old,
        still_active,
        &[(
            "status.processedInterceptors[0]",
            "FieldValueInvalid",
            &format!("Invalid value: \"a.example.com\": {only}"),
        )],
    );
    check(
        new(&[A]),
        new(&[]),
        &[(
            "status.processedInterceptors",
            "FieldValueInvalid",
            "Invalid value: []: may only be appended to",
        )],
    );
    check(
        new(&[A]),
        new(&[B, A]),
        &[(
            "status.processedInterceptors",
            "FieldValueInvalid",
            "Invalid value: [\"b.example.com\",\"a.example.com\"]: may only be appended to",
        )],
    );
}

#[test]
fn the_end_clears_the_stage() {
    let canceled = json!({"conditions": [condition("Canceled")], "processedInterceptors": [A],
        A: {"activationTime": at("11:50:00"), "startTime": at("11:51:00"), "heartbeatTime": at("11:55:00")}});
    check(a_is_active(), declared(canceled.clone()), &[]);
    let mut evicted = a_is_active();
    evicted["conditions"] = json!([condition("Evicted")]);
    check(a_is_active(), evicted, &[]);
    let mut more = declared(canceled.clone());
    more["activeInterceptors"] = json!([B]);
    more["interceptors"][1]["activationTime"] = at("12:00:00");
    check(
        declared(canceled),
        more,
        &[(
            "status.activeInterceptors[0]",
            "FieldValueForbidden",
            "Forbidden: no interceptor may become active: the request is final",
        )],
    );
}

#[test]
fn final_conditions_never_go_back_and_exclude_each_other() {
    for end in ["Evicted", "Canceled"] {
        let text = format!("{end} may not go back from True");
        let mut back = condition(end);
        back["status"] = json!("False");
        check(
            json!({"conditions": [condition(end)]}),
            json!({"conditions": [condition("Other"), back]}),
            &[(
                "status.conditions[1].status",
                "FieldValueInvalid",
                &format!("Invalid value: \"False\": {text}"),
            )],
        );
        check(
            json!({"conditions": [condition(end)]}),
            json!({}),
            &[(
                "status.conditions",
                "FieldValueRequired",
                &format!("Required value: {text}"),
            )],
        );
        check(
            json!({"conditions": [back]}),
            json!({"conditions": [condition(end)]}),
            &[],
        );
    }
    let both = json!({"conditions": [condition("Evicted"), condition("Canceled")]});
    let text = "Forbidden: Evicted and Canceled may not both be True";
    for (old, place) in [
        (json!({}), "status.conditions[1].status"),
        (
            json!({"conditions": [condition("Evicted")]}),
            "status.conditions[1].status",
        ),
        (
            json!({"conditions": [condition("Canceled")]}),
            "status.conditions[0].status",
        ),
    ] {
        check(old, both.clone(), &[(place, "FieldValueForbidden", text)]);
    }
    check(
        json!({}),
        json!({"conditions": [{"type": "Ready", "status": "Yes", "reason": "R", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]}),
        &[(
            "status.conditions[0].status",
            "FieldValueNotSupported",
            "Unsupported value: \"Yes\": supported values: \"False\", \"True\", \"Unknown\"",
        )],
    );
}

#[test]
fn only_the_active_one_reports() {
    let text = "Forbidden: may change only while the interceptor is active";
    let mut other = a_is_active();
    other["interceptors"][1]["message"] = json!("me too");
    check(
        a_is_active(),
        other,
        &[("status.interceptors[1]", "FieldValueForbidden", text)],
    );
    check(
        a_is_active(),
        a_says(json!({"message": "working", "heartbeatTime": at("12:00:00")})),
        &[],
    );
    check(
        a_is_active(),
        a_says(json!({"message": "x".repeat(32_769)})),
        &[(
            "status.interceptors[0].message",
            "FieldValueTooLong",
            "Too long: may not be more than 32768 bytes",
        )],
    );
    check(a_is_active(), a_says(json!({"message": "x".repeat(32_768)})), &[]);
}

#[test]
fn heartbeats_move_forward_in_steps() {
    let cause = |time: &str, text: &str| format!("Invalid value: \"2026-01-01T{time}Z\": {text}");
    let beats = |time: &str, text: Option<&str>| {
        let body = text.map(|text| cause(time, text));
        let expected: Vec<_> = body
            .iter()
            .map(|body| {
                (
                    "status.interceptors[0].heartbeatTime",
                    "FieldValueInvalid",
                    body.as_str(),
                )
            })
            .collect();
        check(
            a_is_active(),
            a_says(json!({"heartbeatTime": at(time)})),
            &expected,
        );
    };
    beats("11:56:00", None);
    beats("12:00:10", None);
    beats("12:00:11", Some("must not be more than 10 seconds in the future"));
    beats(
        "11:55:59",
        Some("must be at least 60 seconds after the heartbeat before"),
    );
    beats("11:54:59", Some("must not go back"));
    let mut removed = a_is_active();
    removed["interceptors"][0]
        .as_object_mut()
        .unwrap()
        .remove("heartbeatTime");
    check(
        a_is_active(),
        removed,
        &[(
            "status.interceptors[0].heartbeatTime",
            "FieldValueRequired",
            "Required value: may not be removed",
        )],
    );
    check(
        a_is_active(),
        a_says(json!({"heartbeatTime": "2026-01-01T12:55:00+01:00"})),
        &[],
    );
}

#[test]
fn the_start_comes_with_the_first_heartbeat() {
    let silent = declared(json!({"activeInterceptors": [A], A: {"activationTime": at("11:50:00")}}));
    let says = |report: Value| {
        let mut status = silent.clone();
        status["interceptors"][0]
            .as_object_mut()
            .unwrap()
            .extend(report.as_object().unwrap().clone());
        status
    };
    check(
        silent.clone(),
        says(json!({"startTime": at("12:00:05"), "heartbeatTime": at("12:00:05")})),
        &[],
    );
    check(
        silent.clone(),
        says(json!({"startTime": at("12:00:00")})),
        &[(
            "status.interceptors[0].heartbeatTime",
            "FieldValueRequired",
            "Required value: must be set together with startTime",
        )],
    );
    check(
        silent.clone(),
        says(json!({"heartbeatTime": at("12:00:00")})),
        &[(
            "status.interceptors[0].startTime",
            "FieldValueRequired",
            "Required value: must be set together with the first heartbeatTime",
        )],
    );
    check(
        silent.clone(),
        says(json!({"startTime": at("11:59:49"), "heartbeatTime": at("12:00:00")})),
        &[(
            "status.interceptors[0].startTime",
            "FieldValueInvalid",
            "Invalid value: \"2026-01-01T11:59:49Z\": must be within 10 seconds of the server's time",
        )],
    );
    check(
        a_is_active(),
        a_says(json!({"startTime": at("12:00:00")})),
        &[(
            "status.interceptors[0].startTime",
            "FieldValueInvalid",
            "Invalid value: \"2026-01-01T12:00:00Z\": field is immutable",
        )],
    );
    // Declining needs no start.
    check(
        silent.clone(),
        says(json!({"completionTime": at("12:00:00"), "message": "not mine"})),
        &[],
    );
}

#[test]
fn expectations_lie_ahead_and_completion_is_now() {
    let finish = "status.interceptors[0].expectedFinishTime";
    check(
        a_is_active(),
        a_says(json!({"expectedFinishTime": at("12:00:00")})),
        &[],
    );
    check(
        a_is_active(),
        a_says(json!({"expectedFinishTime": at("11:59:59")})),
        &[(
            finish,
            "FieldValueInvalid",
            "Invalid value: \"2026-01-01T11:59:59Z\": must not be in the past",
        )],
    );
    let overdue = a_says(json!({"expectedFinishTime": at("11:58:00")}));
    let mut working = overdue.clone();
    working["interceptors"][0]["message"] = json!("still at it");
    check(overdue.clone(), working, &[]);
    check(overdue, a_is_active(), &[]);

    let completion = "status.interceptors[0].completionTime";
    check(
        a_is_active(),
        a_says(json!({"completionTime": at("12:00:10")})),
        &[],
    );
    check(
        a_is_active(),
        a_says(json!({"completionTime": at("11:59:00")})),
        &[(
            completion,
            "FieldValueInvalid",
            "Invalid value: \"2026-01-01T11:59:00Z\": must be within 10 seconds of the server's time",
        )],
    );
    let done = a_says(json!({"completionTime": at("11:59:00")}));
    check(
        done.clone(),
        a_says(json!({"completionTime": at("12:00:00")})),
        &[(
            completion,
            "FieldValueInvalid",
            "Invalid value: \"2026-01-01T12:00:00Z\": field is immutable",
        )],
    );
    check(
        done,
        a_is_active(),
        &[(
            completion,
            "FieldValueRequired",
            "Required value: field is immutable",
        )],
    );
}

#[test]
fn counters_only_grow_and_the_policy_is_the_active_ones() {
    let count = |count: i64| json!({"podEvictionStatus": {"failedAPIEvictionCounter": count}});
    let counter = "status.podEvictionStatus.failedAPIEvictionCounter";
    check(json!({}), count(1), &[]);
    check(count(1), count(3), &[]);
    check(
        count(2),
        count(1),
        &[(
            counter,
            "FieldValueInvalid",
            "Invalid value: 1: must not be decremented",
        )],
    );
    check(
        count(2),
        json!({}),
        &[(
            counter,
            "FieldValueInvalid",
            "Invalid value: 0: must not be decremented",
        )],
    );
    check(
        json!({}),
        count(-1),
        &[(
            counter,
            "FieldValueInvalid",
            "Invalid value: -1: must be greater than or equal to 0",
        )],
    );

    let generation = |generation: i64| json!({"observedGeneration": generation});
    let path = "status.observedGeneration";
    check(generation(1), generation(2), &[]);
    check(
        generation(2),
        generation(1),
        &[(
            path,
            "FieldValueInvalid",
            "Invalid value: 1: must not be decremented",
        )],
    );
    check(
        generation(2),
        json!({}),
        &[(
            path,
            "FieldValueInvalid",
            "Invalid value: 0: must not be decremented",
        )],
    );

    let policy = "status.evictionRequestCancellationPolicy";
    let mut forbid = a_is_active();
    forbid["evictionRequestCancellationPolicy"] = json!("Forbid");
    check(a_is_active(), forbid.clone(), &[]);
    check(forbid, a_is_active(), &[]);
    check(
        declared(json!({})),
        declared(json!({"evictionRequestCancellationPolicy": "Allow"})),
        &[],
    );
    check(
        declared(json!({})),
        declared(json!({"evictionRequestCancellationPolicy": "Forbid"})),
        &[(
            policy,
            "FieldValueForbidden",
            "Forbidden: may change only while an interceptor is active",
        )],
    );
    let mut unknown = a_is_active();
    unknown["evictionRequestCancellationPolicy"] = json!("Maybe");
    check(
        a_is_active(),
        unknown,
        &[(
            policy,
            "FieldValueNotSupported",
            "Unsupported value: \"Maybe\": supported values: \"Allow\", \"Forbid\"",
        )],
    );
}
