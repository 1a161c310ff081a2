//! The reports of interceptors.

use super::*;

#[test]
fn each_target_interceptor_has_one_report() {
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
fn activation_time_is_the_current_time_and_immutable() {
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
        a_reports(json!({"activationTime": at("12:00:00")})),
        &[(
            "status.interceptors[0].activationTime",
            "FieldValueInvalid",
            "Invalid value: \"2026-01-01T12:00:00Z\": field is immutable",
        )],
    );
}

#[test]
fn only_the_report_of_the_active_interceptor_may_change() {
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
        a_reports(json!({"message": "working", "heartbeatTime": at("12:00:00")})),
        &[],
    );
    check(
        a_is_active(),
        a_reports(json!({"message": "x".repeat(32_769)})),
        &[(
            "status.interceptors[0].message",
            "FieldValueTooLong",
            "Too long: may not be more than 32768 bytes",
        )],
    );
    check(
        a_is_active(),
        a_reports(json!({"message": "x".repeat(32_768)})),
        &[],
    );
}

#[test]
fn heartbeats_increase_by_at_least_60_seconds() {
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
            a_reports(json!({"heartbeatTime": at(time)})),
            &expected,
        );
    };
    beats("11:56:00", None);
    beats("12:00:10", None);
    beats("12:00:11", Some("must not be more than 10 seconds in the future"));
    beats(
        "11:55:59",
        Some("must be at least 60 seconds after the previous heartbeat"),
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
        a_reports(json!({"heartbeatTime": "2026-01-01T12:55:00+01:00"})),
        &[],
    );
}

#[test]
fn start_time_is_set_with_the_first_heartbeat() {
    let silent = declared(json!({"activeInterceptors": [A], A: {"activationTime": at("11:50:00")}}));
    let first_report = |report: Value| with_report(silent.clone(), report);
    check(
        silent.clone(),
        first_report(json!({"startTime": at("12:00:05"), "heartbeatTime": at("12:00:05")})),
        &[],
    );
    check(
        silent.clone(),
        first_report(json!({"startTime": at("12:00:00")})),
        &[(
            "status.interceptors[0].heartbeatTime",
            "FieldValueRequired",
            "Required value: must be set together with startTime",
        )],
    );
    check(
        silent.clone(),
        first_report(json!({"heartbeatTime": at("12:00:00")})),
        &[(
            "status.interceptors[0].startTime",
            "FieldValueRequired",
            "Required value: must be set together with the first heartbeatTime",
        )],
    );
    check(
        silent.clone(),
        first_report(json!({"startTime": at("11:59:49"), "heartbeatTime": at("12:00:00")})),
        &[(
            "status.interceptors[0].startTime",
            "FieldValueInvalid",
            "Invalid value: \"2026-01-01T11:59:49Z\": must be within 10 seconds of the server's time",
        )],
    );
    check(
        a_is_active(),
        a_reports(json!({"startTime": at("12:00:00")})),
        &[(
            "status.interceptors[0].startTime",
            "FieldValueInvalid",
            "Invalid value: \"2026-01-01T12:00:00Z\": field is immutable",
        )],
    );
    // An interceptor that declines need not set startTime.
    check(
        silent.clone(),
        first_report(json!({"completionTime": at("12:00:00"), "message": "not mine"})),
        &[],
    );
}

#[test]
fn expected_finish_time_is_not_past_and_completion_time_is_current() {
    let finish = "status.interceptors[0].expectedFinishTime";
    check(
        a_is_active(),
        a_reports(json!({"expectedFinishTime": at("12:00:00")})),
        &[],
    );
    check(
        a_is_active(),
        a_reports(json!({"expectedFinishTime": at("11:59:59")})),
        &[(
            finish,
            "FieldValueInvalid",
            "Invalid value: \"2026-01-01T11:59:59Z\": must not be in the past",
        )],
    );
    let overdue = a_reports(json!({"expectedFinishTime": at("11:58:00")}));
    let mut working = overdue.clone();
    working["interceptors"][0]["message"] = json!("still at it");
    check(overdue.clone(), working, &[]);
    check(overdue, a_is_active(), &[]);

    let completion = "status.interceptors[0].completionTime";
    check(
        a_is_active(),
        a_reports(json!({"completionTime": at("12:00:10")})),
        &[],
    );
    check(
        a_is_active(),
        a_reports(json!({"completionTime": at("11:59:00")})),
        &[(
            completion,
            "FieldValueInvalid",
            "Invalid value: \"2026-01-01T11:59:00Z\": must be within 10 seconds of the server's time",
        )],
    );
    let done = a_reports(json!({"completionTime": at("11:59:00")}));
    check(
        done.clone(),
        a_reports(json!({"completionTime": at("12:00:00")})),
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
