//! Target, active and processed interceptors.

use super::*;

#[test]
fn target_interceptors_are_set_once() {
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
fn the_first_target_interceptor_is_activated_first() {
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
fn the_next_interceptor_follows_one_that_completed_or_missed_its_deadline() {
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
        "Forbidden: \"a.example.com\" must stay active: its completionTime is not set and its heartbeat deadline of 1200 seconds has not passed",
    );
    // Without a heartbeat for exactly the deadline of 20 minutes, and for a second more.
    let silent = json!({"activationTime": at("11:40:00")});
    check(old(&silent), b_follows(silent.clone()), &[stay]);
    let silent = json!({"activationTime": at("11:39:59")});
    check(old(&silent), b_follows(silent.clone()), &[]);
    let alive = json!({"activationTime": at("11:00:00"), "startTime": at("11:00:30"), "heartbeatTime": at("11:40:00")});
    check(old(&alive), b_follows(alive.clone()), &[stay]);
    let late = json!({"activationTime": at("11:00:00"), "startTime": at("11:00:30"), "heartbeatTime": at("11:39:59")});
    check(old(&late), b_follows(late.clone()), &[]);
    check(old(&json!({})), b_follows(json!({})), &[stay]);

    // The update that sets completionTime and a message may also deactivate the interceptor.
    let mut finished = completed.clone();
    finished["completionTime"] = at("12:00:00");
    finished["message"] = json!("moved on");
    check(
        old(&json!({"activationTime": at("11:50:00")})),
        b_follows(finished),
        &[],
    );

    // There may be an update in between after which no interceptor is active.
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
fn only_deactivated_interceptors_are_appended_to_the_processed() {
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
fn no_interceptor_is_activated_once_the_request_is_final() {
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
