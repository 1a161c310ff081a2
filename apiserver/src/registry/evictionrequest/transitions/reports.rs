//! What interceptors may report, and when. Only the entry of the active interceptor may change, and its times are
//! compared with the server's clock.

use std::collections::BTreeSet;

use drydock_machinery::field_error::{ErrorList, FieldError, FieldPath};
use drydock_proto::kinds::evictionrequest::{
    EvictionRequestStatus, InterceptorStatus, MAX_INTERCEPTORS, MAX_MESSAGE_BYTES,
};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::status_rules::{CLOCK_SKEW, IMMUTABLE, StatusRules};

/// The shortest interval between two heartbeats. Each one is a write.
const HEARTBEAT_INTERVAL: SignedDuration = SignedDuration::from_secs(60);

/// All errors of status.interceptors.
pub(super) fn validate(
    new: &EvictionRequestStatus,
    old: &EvictionRequestStatus,
    rules: &StatusRules<'_>,
) -> ErrorList {
    let path = FieldPath::new("status").child("interceptors");
    if new.interceptors.len() > MAX_INTERCEPTORS {
        return FieldError::too_many(&path, new.interceptors.len(), MAX_INTERCEPTORS).into();
    }
    let mut errors = name_errors(new, &path);
    let none = InterceptorStatus::default();
    for (index, report) in new.interceptors.iter().enumerate() {
        let before = old
            .interceptors
            .iter()
            .find(|before| before.name == report.name)
            .unwrap_or(&none);
        let activity = Activity {
            was_active: old.active_interceptors.contains(&report.name),
            is_active: new.active_interceptors.contains(&report.name),
        };
        errors.extend(report_errors(report, before, activity, rules, &path.index(index)));
    }
    errors
}

/// There is one entry for each declared interceptor, and no other.
fn name_errors(status: &EvictionRequestStatus, path: &FieldPath) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut names = BTreeSet::new();
    for (index, report) in status.interceptors.iter().enumerate() {
        if !names.insert(report.name.as_str()) {
            errors.push(FieldError::duplicate(
                &path.index(index).child("name"),
                report.name.as_str(),
            ));
        }
    }
    let targets: BTreeSet<&str> = status
        .target_interceptors
        .iter()
        .map(|target| target.name.as_str())
        .collect();
    if names != targets {
        let listed: Vec<&str> = status
            .interceptors
            .iter()
            .map(|report| report.name.as_str())
            .collect();
        let detail = "must have the same names as status.targetInterceptors";
        errors.push(FieldError::invalid(path, listed, detail));
    }
    errors
}

/// Whether the interceptor was active before the update, and is after it.
#[derive(Debug, Clone, Copy)]
struct Activity {
    was_active: bool,
    is_active: bool,
}

fn report_errors(
    new: &InterceptorStatus,
    old: &InterceptorStatus,
    activity: Activity,
    rules: &StatusRules<'_>,
    path: &FieldPath,
) -> ErrorList {
    let unchanged = InterceptorStatus {
        name: new.name.clone(),
        ..old.clone()
    };
    let is_activated = activity.is_active && !activity.was_active;
    if *new == unchanged && !is_activated {
        return ErrorList::new();
    }
    if !activity.is_active && !activity.was_active {
        return FieldError::forbidden(path, "may change only while the interceptor is active").into();
    }
    let mut errors = ErrorList::new();
    errors.extend(activation_error(
        new,
        old,
        is_activated,
        rules.now,
        &path.child("activationTime"),
    ));
    errors.extend(stamp_error(
        new.start_time.as_ref(),
        old.start_time.as_ref(),
        rules.now,
        &path.child("startTime"),
    ));
    errors.extend(heartbeat_error(new, old, rules.now, &path.child("heartbeatTime")));
    errors.extend(start_without_heartbeat_error(new, old, path));
    errors.extend(expected_finish_error(
        new,
        old,
        rules.now,
        &path.child("expectedFinishTime"),
    ));
    errors.extend(stamp_error(
        new.completion_time.as_ref(),
        old.completion_time.as_ref(),
        rules.now,
        &path.child("completionTime"),
    ));
    if new.message.len() > MAX_MESSAGE_BYTES {
        errors.push(FieldError::too_long(&path.child("message"), MAX_MESSAGE_BYTES));
    }
    errors
}

/// activationTime is set by the update that activates the interceptor and is immutable: the first heartbeat deadline counts
/// from it.
fn activation_error(
    new: &InterceptorStatus,
    old: &InterceptorStatus,
    is_activated: bool,
    now: Timestamp,
    path: &FieldPath,
) -> Option<FieldError> {
    match &new.activation_time {
        None if is_activated => Some(FieldError::required(
            path,
            "must be set when the interceptor becomes active",
        )),
        _ => stamp_error(
            new.activation_time.as_ref(),
            old.activation_time.as_ref(),
            now,
            path,
        ),
    }
}

/// A time that must be the current time when it is set, and is immutable afterwards.
fn stamp_error(
    new: Option<&Time>,
    old: Option<&Time>,
    now: Timestamp,
    path: &FieldPath,
) -> Option<FieldError> {
    match (new, old) {
        (None, None) => None,
        (Some(new), None) => (now.duration_since(new.0).abs() > CLOCK_SKEW).then(|| {
            FieldError::invalid(
                path,
                new.0.to_string(),
                "must be within 10 seconds of the server's time",
            )
        }),
        (Some(new), Some(old)) if new == old => None,
        (Some(new), Some(_)) => Some(FieldError::invalid(path, new.0.to_string(), IMMUTABLE)),
        (None, Some(_)) => Some(FieldError::required(path, IMMUTABLE)),
    }
}

fn heartbeat_error(
    new: &InterceptorStatus,
    old: &InterceptorStatus,
    now: Timestamp,
    path: &FieldPath,
) -> Option<FieldError> {
    let (time, before) = (&new.heartbeat_time, &old.heartbeat_time);
    if time == before {
        return None;
    }
    let Some(time) = time else {
        return Some(FieldError::required(path, "may not be removed"));
    };
    let step = before.as_ref().map(|before| time.0.duration_since(before.0));
    let detail = if time.0.duration_since(now) > CLOCK_SKEW {
        "must not be more than 10 seconds in the future"
    } else if step.is_some_and(|step| step.is_negative()) {
        "must not go back"
    } else if step.is_some_and(|step| step < HEARTBEAT_INTERVAL) {
        "must be at least 60 seconds after the previous heartbeat"
    } else {
        return None;
    };
    Some(FieldError::invalid(path, time.0.to_string(), detail))
}

/// startTime and the first heartbeatTime are set by the same update.
fn start_without_heartbeat_error(
    new: &InterceptorStatus,
    old: &InterceptorStatus,
    path: &FieldPath,
) -> Option<FieldError> {
    if old.start_time.is_some() || old.heartbeat_time.is_some() {
        return None;
    }
    match (&new.start_time, &new.heartbeat_time) {
        (Some(_), None) => Some(FieldError::required(
            &path.child("heartbeatTime"),
            "must be set together with startTime",
        )),
        (None, Some(_)) => Some(FieldError::required(
            &path.child("startTime"),
            "must be set together with the first heartbeatTime",
        )),
        _ => None,
    }
}

fn expected_finish_error(
    new: &InterceptorStatus,
    old: &InterceptorStatus,
    now: Timestamp,
    path: &FieldPath,
) -> Option<FieldError> {
    let time = new
        .expected_finish_time
        .as_ref()
        .filter(|_| new.expected_finish_time != old.expected_finish_time)?;
    // Times have whole seconds on the wire.
    (time.0.as_second() < now.as_second())
        .then(|| FieldError::invalid(path, time.0.to_string(), "must not be in the past"))
}
