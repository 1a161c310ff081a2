//! Updates of the status: the old status, the new one, and the expected causes. The server's time is 12:00:00.

mod activation;
mod outcome;
mod reports;

use super::*;

const A: &str = "a.example.com";
const B: &str = "b.example.com";
const LAST: &str = "imperative-eviction.k8s.io";

/// A status with three target interceptors and empty reports, changed by `changes`: members of the status, and members of
/// reports by the name of the interceptor.
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

fn check(old: Value, new: Value, expected: &[Cause<'_>]) {
    let strategy = EvictionRequestStrategy::default();
    let (old, new) = (
        request_with(&json!({"/status": old})),
        request_with(&json!({"/status": new})),
    );
    let errors = strategy.validate_status_update(&new, &old, &context());
    assert_causes(&errors, expected, &json!([old["status"], new["status"]]));
    let unchanged = strategy.validate_status_update(&old, &old, &context());
    assert_causes(&unchanged, &[], &old["status"]);
}

fn at(time: &str) -> Value {
    json!(format!("2026-01-01T{time}Z"))
}

/// The first interceptor is active since 11:50 and sent its last heartbeat at 11:55.
fn a_is_active() -> Value {
    declared(json!({
        "activeInterceptors": [A],
        A: {"activationTime": at("11:50:00"), "startTime": at("11:51:00"), "heartbeatTime": at("11:55:00")},
    }))
}

/// As [`a_is_active`], with other members in the report of the first interceptor.
fn a_reports(report: Value) -> Value {
    with_report(a_is_active(), report)
}

/// Changes members of the first report.
fn with_report(mut status: Value, report: Value) -> Value {
    status["interceptors"][0]
        .as_object_mut()
        .unwrap()
        .extend(report.as_object().unwrap().clone());
    status
}
