//! What may be written about calls of the eviction API: the number of failures only grows, and the time of the last call
//! only advances, to the server's time.

use drydock_machinery::field_error::{ErrorList, FieldError, FieldPath};
use drydock_proto::kinds::evictionrequest::{EvictionRequestStatus, PodEvictionStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::status_rules::{CLOCK_SKEW, StatusRules};
use crate::registry::numbers::counter_error;

/// All errors of status.podEvictionStatus.
pub(super) fn validate(
    new: &EvictionRequestStatus,
    old: &EvictionRequestStatus,
    rules: &StatusRules<'_>,
) -> ErrorList {
    let path = FieldPath::new("status").child("podEvictionStatus");
    let none = PodEvictionStatus::default();
    let (new, old) = (
        new.pod_eviction_status.as_ref().unwrap_or(&none),
        old.pod_eviction_status.as_ref().unwrap_or(&none),
    );
    let mut errors = ErrorList::new();
    errors.extend(counter_error(
        &path.child("failedAPIEvictionCounter"),
        new.failed_api_eviction_counter.into(),
        old.failed_api_eviction_counter.into(),
    ));
    errors.extend(last_attempt_error(
        new.last_attempt_time.as_ref(),
        old.last_attempt_time.as_ref(),
        rules,
        &path.child("lastAttemptTime"),
    ));
    if new.next_attempt_time != old.next_attempt_time {
        errors.extend(next_attempt_error(new, &path.child("nextAttemptTime")));
    }
    errors
}

fn last_attempt_error(
    new: Option<&Time>,
    old: Option<&Time>,
    rules: &StatusRules<'_>,
    path: &FieldPath,
) -> Option<FieldError> {
    if new == old {
        return None;
    }
    let Some(new) = new else {
        return Some(FieldError::required(path, "may not be removed"));
    };
    let detail = if rules.now.duration_since(new.0).abs() > CLOCK_SKEW {
        "must be within 10 seconds of the server's time"
    } else if old.is_some_and(|old| new.0 < old.0) {
        "must not go back"
    } else {
        return None;
    };
    Some(FieldError::invalid(path, new.0.to_string(), detail))
}

/// The next call comes after the last one.
fn next_attempt_error(new: &PodEvictionStatus, path: &FieldPath) -> Option<FieldError> {
    let next = new.next_attempt_time.as_ref()?;
    let is_after = new
        .last_attempt_time
        .as_ref()
        .is_some_and(|last| last.0 <= next.0);
    (!is_after).then(|| FieldError::invalid(path, next.0.to_string(), "must not be before lastAttemptTime"))
}
