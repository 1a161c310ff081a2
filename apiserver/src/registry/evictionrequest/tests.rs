#![expect(
    clippy::needless_pass_by_value,
    reason = "tables read better without references"
)]

use drydock_machinery::field_error::FieldError;
use drydock_machinery::names::AllowedNames;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::EvictionRequestStrategy;
use super::columns;
use crate::registry::strategy::{Strategy, WriteContext};
use crate::registry::tests::{Cause, assert_causes, context};

mod status;

const UID: &str = "2f0e3f1c-6a0b-4f7e-9d5b-0d6c1f0a7b11";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";

fn request() -> Value {
    json!({
        "metadata": {"name": UID, "namespace": "shop"},
        "spec": {
            "type": "Soft",
            "target": {"pod": {"name": "web-0", "uid": UID}},
            "requesters": [{"name": "a.example.com"}],
            "heartbeatDeadlineSeconds": 1200,
        },
    })
}

/// A valid request with members replaced: JSON pointers and their values; null removes.
fn request_with(changes: &Value) -> Value {
    let mut object = request();
    for (pointer, value) in changes.as_object().unwrap() {
        let (parent, member) = pointer.rsplit_once('/').unwrap();
        let parent = object.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        if value.is_null() {
            parent.remove(member);
        } else {
            parent.insert(member.to_owned(), value.clone());
        }
    }
    object
}

fn requesters(names: &[&str]) -> Value {
    json!(names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>())
}

fn create(changes: Value, expected: &[Cause<'_>]) {
    let errors = EvictionRequestStrategy::default().validate(&request_with(&changes), &context());
    assert_causes(&errors, expected, &changes);
}

#[test]
fn well_formed_requests_are_valid() {
    create(json!({}), &[]);
    create(
        json!({"/spec/type": null, "/spec/heartbeatDeadlineSeconds": null}),
        &[],
    );
    create(
        json!({"/spec/heartbeatDeadlineSeconds": 600, "/spec/ttlSecondsAfterFinished": 0}),
        &[],
    );
    create(json!({"/spec/heartbeatDeadlineSeconds": 86400}), &[]);
    create(
        json!({"/spec/requesters": requesters(&["nodemaintenance.k8s.io", "acme.io/x"])}),
        &[],
    );
    let hundred: Vec<String> = (0..100).map(|n| format!("r{n}.example.com")).collect();
    create(
        json!({"/spec/requesters": requesters(&hundred.iter().map(String::as_str).collect::<Vec<_>>())}),
        &[],
    );
}

#[test]
fn the_name_is_the_uid_of_the_target() {
    create(
        json!({"/metadata/generateName": "web-"}),
        &[(
            "metadata.generateName",
            "FieldValueForbidden",
            "Forbidden: may not be set: the name of a request is the UID of its target",
        )],
    );
    create(
        json!({"/metadata/name": "web-0"}),
        &[(
            "metadata.name",
            "FieldValueInvalid",
            &format!("Invalid value: \"web-0\": must be the UID of the target: \"{UID}\""),
        )],
    );
}

#[test]
fn the_target_is_one_pod() {
    for target in [json!({}), Value::Null] {
        create(
            json!({"/spec/target": target}),
            &[(
                "spec.target",
                "FieldValueRequired",
                "Required value: must specify one of: `pod`",
            )],
        );
    }
    create(
        json!({"/spec/target": {"pod": {}}}),
        &[
            ("spec.target.pod.name", "FieldValueRequired", "Required value"),
            ("spec.target.pod.uid", "FieldValueRequired", "Required value"),
        ],
    );
    create(
        json!({"/spec/target": {"pod": {"name": "Web_0", "uid": UID}}}),
        &[(
            "spec.target.pod.name",
            "FieldValueInvalid",
            &format!("Invalid value: \"Web_0\": {SUBDOMAIN}"),
        )],
    );
}

#[test]
fn requesters_are_required_unique_and_allowed() {
    for none in [json!([]), Value::Null] {
        create(
            json!({"/spec/requesters": none}),
            &[(
                "spec.requesters",
                "FieldValueRequired",
                "Required value: must have at least one requester",
            )],
        );
    }
    create(
        json!({"/spec/requesters": requesters(&["a.example.com", "b", "a.example.com", "", "x.k8s.io", "B.com"])}),
        &[
            (
                "spec.requesters[1].name",
                "FieldValueInvalid",
                "Invalid value: \"b\": should be a domain with at least two segments separated by dots",
            ),
            (
                "spec.requesters[2].name",
                "FieldValueDuplicate",
                "Duplicate value: \"a.example.com\"",
            ),
            ("spec.requesters[3].name", "FieldValueRequired", "Required value"),
            (
                "spec.requesters[4].name",
                "FieldValueForbidden",
                "Forbidden: names under k8s.io and kubernetes.io are reserved: \"x.k8s.io\" is none of daemonset.apps.k8s.io, deployment.apps.k8s.io, descheduler.k8s.io, horizontalpodautoscaler.autoscaling.k8s.io, imperative-eviction.k8s.io, kubelet.k8s.io, nodemaintenance.k8s.io, replicaset.apps.k8s.io, statefulset.apps.k8s.io",
            ),
            (
                "spec.requesters[5].name",
                "FieldValueInvalid",
                &format!("Invalid value: \"B.com\": {SUBDOMAIN}"),
            ),
        ],
    );
    let many: Vec<String> = (0..101).map(|n| format!("r{n}.example.com")).collect();
    create(
        json!({"/spec/requesters": requesters(&many.iter().map(String::as_str).collect::<Vec<_>>())}),
        &[(
            "spec.requesters",
            "FieldValueTooMany",
            "Too many: 101: must have at most 100 items",
        )],
    );
}

#[test]
fn type_and_numbers_are_validated() {
    create(
        json!({"/spec/type": "Hard"}),
        &[(
            "spec.type",
            "FieldValueNotSupported",
            "Unsupported value: \"Hard\": supported values: \"Soft\"",
        )],
    );
    create(
        json!({"/spec/heartbeatDeadlineSeconds": 599}),
        &[(
            "spec.heartbeatDeadlineSeconds",
            "FieldValueInvalid",
            "Invalid value: 599: must be greater than or equal to 600",
        )],
    );
    create(
        json!({"/spec/heartbeatDeadlineSeconds": 86401}),
        &[(
            "spec.heartbeatDeadlineSeconds",
            "FieldValueInvalid",
            "Invalid value: 86401: must be less than or equal to 86400",
        )],
    );
    create(
        json!({"/spec/ttlSecondsAfterFinished": -1}),
        &[(
            "spec.ttlSecondsAfterFinished",
            "FieldValueInvalid",
            "Invalid value: -1: must be greater than or equal to 0",
        )],
    );
}

#[test]
fn every_error_is_reported() {
    let errors = EvictionRequestStrategy::default().validate(&json!({"metadata": {"name": "n"}}), &context());
    let fields: Vec<_> = errors.iter().map(FieldError::field).collect();
    assert_eq!(fields, ["spec.target", "spec.requesters"]);
}

/// Updates a request with this stored status.
fn update(changes: Value, status: Value, expected: &[Cause<'_>]) {
    let old = request_with(&json!({"/status": status}));
    let mut new = request_with(&changes);
    new["status"] = status;
    let errors = EvictionRequestStrategy::default().validate_update(&new, &old, &context());
    assert_causes(&errors, expected, &changes);
}

fn condition(type_: &str) -> Value {
    json!({"type": type_, "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

#[test]
fn type_target_and_heartbeat_deadline_are_immutable() {
    update(json!({}), json!({}), &[]);
    update(json!({"/spec/ttlSecondsAfterFinished": 60}), json!({}), &[]);
    update(json!({"/spec/heartbeatDeadlineSeconds": null}), json!({}), &[]);
    update(
        json!({
            "/spec/type": "Hard",
            "/spec/target": {"pod": {"name": "web-1", "uid": UID}},
            "/spec/heartbeatDeadlineSeconds": 600,
            "/spec/ttlSecondsAfterFinished": -5,
        }),
        json!({}),
        &[
            (
                "spec.type",
                "FieldValueInvalid",
                "Invalid value: \"Hard\": field is immutable",
            ),
            (
                "spec.target",
                "FieldValueInvalid",
                &format!(
                    "Invalid value: {{\"pod\":{{\"name\":\"web-1\",\"uid\":\"{UID}\"}}}}: field is immutable"
                ),
            ),
            (
                "spec.heartbeatDeadlineSeconds",
                "FieldValueInvalid",
                "Invalid value: 600: field is immutable",
            ),
            (
                "spec.ttlSecondsAfterFinished",
                "FieldValueInvalid",
                "Invalid value: -5: must be greater than or equal to 0",
            ),
        ],
    );
}

#[test]
fn requesters_may_change_until_the_request_is_final() {
    let two = requesters(&["a.example.com", "b.example.com"]);
    let other = requesters(&["b.example.com"]);
    let forbid = json!({"evictionRequestCancellationPolicy": "Forbid"});
    let forbidden = (
        "spec.requesters",
        "FieldValueForbidden",
        "Forbidden: may not change while status.evictionRequestCancellationPolicy is Forbid and the target is not evicted",
    );
    update(json!({"/spec/requesters": two}), json!({}), &[]);
    update(json!({"/spec/requesters": other}), json!({}), &[]);
    update(json!({"/spec/requesters": null}), json!({}), &[]);
    update(
        json!({"/spec/requesters": requesters(&["a.example.com", "b"])}),
        json!({}),
        &[(
            "spec.requesters[1].name",
            "FieldValueInvalid",
            "Invalid value: \"b\": should be a domain with at least two segments separated by dots",
        )],
    );

    update(json!({"/spec/ttlSecondsAfterFinished": 1}), forbid.clone(), &[]);
    update(json!({"/spec/requesters": two}), forbid.clone(), &[forbidden]);
    update(json!({"/spec/requesters": []}), forbid, &[forbidden]);

    for end in ["Evicted", "Canceled"] {
        let text = format!("Forbidden: may not be added: the request is final, its condition {end} is True");
        let status = json!({"conditions": [condition(end)]});
        update(json!({"/spec/requesters": []}), status.clone(), &[]);
        update(
            json!({"/spec/requesters": two}),
            status.clone(),
            &[("spec.requesters[1]", "FieldValueForbidden", &text)],
        );
        update(
            json!({"/spec/requesters": other}),
            status,
            &[("spec.requesters[0]", "FieldValueForbidden", &text)],
        );
    }
    let evicted =
        json!({"conditions": [condition("Evicted")], "evictionRequestCancellationPolicy": "Forbid"});
    update(json!({"/spec/requesters": []}), evicted, &[]);
}

#[test]
fn stored_names_are_not_validated_again() {
    let mut names = AllowedNames::default();
    names.extend(["x.k8s.io".to_owned()]);
    let old = request_with(&json!({"/spec/requesters": requesters(&["x.k8s.io"])}));
    let allowing = EvictionRequestStrategy::new(std::sync::Arc::new(names));
    assert!(allowing.validate(&old, &context()).is_empty());
    let now = EvictionRequestStrategy::default();
    assert!(!now.validate(&old, &context()).is_empty());
    assert!(now.validate_update(&old, &old, &context()).is_empty());
    let more = request_with(&json!({"/spec/requesters": requesters(&["x.k8s.io", "y.k8s.io"])}));
    assert_eq!(now.validate_update(&more, &old, &context()).len(), 1);
}

#[test]
fn delete_is_refused_while_cancellation_is_forbidden() {
    let refusal = |status: Value, namespace_terminating: bool| {
        let object = request_with(&json!({"/status": status}));
        EvictionRequestStrategy::default().refuse_delete(
            &object,
            &WriteContext {
                namespace_terminating,
                ..context()
            },
        )
    };
    let forbid = json!({"evictionRequestCancellationPolicy": "Forbid"});
    assert_eq!(
        refusal(forbid.clone(), false).as_deref(),
        Some(
            "status.evictionRequestCancellationPolicy is Forbid and the eviction of pod \"web-0\" has not finished"
        )
    );
    assert_eq!(refusal(forbid, true), None);
    assert_eq!(refusal(json!({}), false), None);
    assert_eq!(
        refusal(json!({"evictionRequestCancellationPolicy": "Allow"}), false),
        None
    );
    let evicted =
        json!({"evictionRequestCancellationPolicy": "Forbid", "conditions": [condition("Evicted")]});
    assert_eq!(refusal(evicted, false), None);
    let canceled =
        json!({"evictionRequestCancellationPolicy": "Forbid", "conditions": [condition("Canceled")]});
    assert!(refusal(canceled, false).is_some());
}

#[test]
fn columns_show_the_state_of_the_eviction() {
    fn check(status: &Value, state: &str, active: &str, retries: i64, eta: &str, message: &str) {
        let mut object = request_with(&json!({"/status": status}));
        object["metadata"]["creationTimestamp"] = json!("2026-01-01T10:00:00Z");
        let cells = columns::cells(&object, context().now);
        assert_eq!(cells.len(), columns::COLUMNS.len());
        let expected = json!([UID, "web-0", active, state, 1, retries, eta, "120m", UID, message]);
        assert_eq!(json!(cells), expected, "{status}");
    }
    let report = |name: &str, report: Value| {
        let mut report = report;
        report["name"] = json!(name);
        json!({"activeInterceptors": [name], "interceptors": [report]})
    };
    let (ours, theirs) = ("imperative-eviction.k8s.io", "a.example.com");
    check(&Value::Null, "Pending", "", 0, "", "");
    check(
        &json!({"targetInterceptors": [{"name": theirs}]}),
        "Pending",
        "",
        0,
        "",
        "",
    );
    let busy = json!({"activationTime": "2026-01-01T11:00:00Z", "heartbeatTime": "2026-01-01T11:30:00Z",
        "expectedFinishTime": "2026-01-01T12:05:00Z", "message": "moving"});
    check(&report(theirs, busy), "Intercepted", theirs, 0, "5m", "moving");
    let late = json!({"heartbeatTime": "2026-01-01T11:30:00Z", "expectedFinishTime": "2026-01-01T11:59:00Z"});
    check(&report(theirs, late), "Intercepted", theirs, 0, "0s", "");
    check(
        &report(theirs, json!({"activationTime": "2026-01-01T11:58:00Z"})),
        "Intercepted",
        theirs,
        0,
        "",
        "",
    );
    check(
        &report(theirs, json!({"activationTime": "2026-01-01T11:57:59Z"})),
        "Unresponsive",
        theirs,
        0,
        "",
        "",
    );
    let done = json!({"activationTime": "2026-01-01T11:00:00Z", "completionTime": "2026-01-01T11:59:00Z"});
    check(&report(theirs, done), "Intercepted", theirs, 0, "", "");
    check(
        &report(ours, json!({"activationTime": "2026-01-01T11:00:00Z"})),
        "Evicting",
        ours,
        0,
        "",
        "",
    );
    let mut refused = report(ours, json!({"message": "refused"}));
    refused["podEvictionStatus"] = json!({"failedAPIEvictionCounter": 3});
    check(&refused, "Evicting", ours, 3, "", "refused");
    refused["conditions"] = json!([condition("Blocked")]);
    check(&refused, "Blocked", ours, 3, "", "m");
    refused["conditions"][0]["reason"] = json!("InterceptorSilent");
    check(&refused, "Unresponsive", ours, 3, "", "m");
    refused["conditions"] = json!([condition("Evicted")]);
    check(&refused, "Evicted", ours, 3, "", "m");
    let canceled = json!({"conditions": [condition("Canceled")], "processedInterceptors": [theirs],
        "interceptors": [{"name": theirs, "message": "was here"}]});
    check(&canceled, "Canceled", "", 0, "", "m");
    let between =
        json!({"processedInterceptors": [theirs], "interceptors": [{"name": theirs, "message": "was here"}]});
    check(&between, "Pending", "", 0, "", "was here");
}

#[test]
fn a_status_that_does_not_fit_its_type_is_one_error() {
    let strategy = EvictionRequestStrategy::default();
    let mut new = request();
    new["status"] = json!({"interceptors": [{"name": "a.example.com", "startTime": "yesterday"}]});
    let errors = strategy.validate_status_update(&new, &request(), &context());
    assert_eq!(
        errors.iter().map(FieldError::field).collect::<Vec<_>>(),
        ["status"]
    );
    assert_eq!(
        columns::cells(&new, Timestamp::UNIX_EPOCH).len(),
        columns::COLUMNS.len()
    );
}
