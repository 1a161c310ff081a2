//! Which changes of an eviction request are allowed, given the old and the new object.
//!
//! Updates of the main resource may change the requesters and little else. Updates of `status` come from the controller
//! and from every interceptor, so the server checks the parts separately: [`activation`] which interceptor may be
//! declared, active and processed, [`reports`] what an interceptor may report, [`attempts`] the calls of the eviction API.

mod activation;
mod attempts;
mod reports;
mod status_rules;

use std::collections::BTreeSet;

use drydock_machinery::field_error::{ErrorList, FieldError, FieldPath};
use drydock_machinery::names::AllowedNames;
use drydock_proto::kinds::evictionrequest::{
    CANCELED, CancellationPolicy, EVICTED, EvictionRequestSpec, EvictionRequestStatus, Requester,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use serde_json::json;

use self::status_rules::IMMUTABLE;
pub(super) use self::status_rules::StatusRules;
use super::validation::{heartbeat_deadline_seconds, validate_requesters, validate_ttl};
use crate::registry::conditions::{is_true, validate_conditions};
use crate::registry::numbers::counter_error;

/// All errors of a change of the spec. `status` is the stored one.
pub(super) fn validate_spec_change(
    new: &EvictionRequestSpec,
    old: &EvictionRequestSpec,
    status: &EvictionRequestStatus,
    names: &AllowedNames,
) -> ErrorList {
    let path = FieldPath::new("spec");
    let mut errors = ErrorList::new();
    if new.type_ != old.type_ {
        errors.push(FieldError::invalid(
            &path.child("type"),
            new.type_.as_str(),
            IMMUTABLE,
        ));
    }
    if new.target != old.target {
        errors.push(FieldError::invalid(
            &path.child("target"),
            json!(new.target),
            IMMUTABLE,
        ));
    }
    let deadline = heartbeat_deadline_seconds(new);
    if deadline != heartbeat_deadline_seconds(old) {
        errors.push(FieldError::invalid(
            &path.child("heartbeatDeadlineSeconds"),
            deadline,
            IMMUTABLE,
        ));
    }
    errors.extend(validate_requesters_change(
        &new.requesters,
        &old.requesters,
        status,
        names,
    ));
    if new.ttl_seconds_after_finished != old.ttl_seconds_after_finished {
        errors.extend(validate_ttl(new));
    }
    errors
}

fn validate_requesters_change(
    new: &[Requester],
    old: &[Requester],
    status: &EvictionRequestStatus,
    names: &AllowedNames,
) -> ErrorList {
    let path = FieldPath::new("spec").child("requesters");
    let before: BTreeSet<&str> = old.iter().map(|requester| requester.name.as_str()).collect();
    let after: BTreeSet<&str> = new.iter().map(|requester| requester.name.as_str()).collect();
    let mut errors = validate_requesters(new, &before, names);
    if forbids_cancellation(status) && !is_true(&status.conditions, EVICTED) {
        if before != after {
            let detail = "may not change while status.evictionRequestCancellationPolicy is Forbid and the target is not \
                          evicted";
            errors.push(FieldError::forbidden(&path, detail));
        }
        return errors;
    }
    let Some(end) = [EVICTED, CANCELED]
        .into_iter()
        .find(|end| is_true(&status.conditions, end))
    else {
        return errors;
    };
    for (index, requester) in new.iter().enumerate() {
        if errors.is_full() {
            break;
        }
        if !before.contains(requester.name.as_str()) {
            let detail = format!("may not be added: the request is final, its condition {end} is True");
            errors.push(FieldError::forbidden(&path.index(index), &detail));
        }
    }
    errors
}

/// Whether the cancellation policy forbids removing requesters.
pub(super) fn forbids_cancellation(status: &EvictionRequestStatus) -> bool {
    status.eviction_request_cancellation_policy == Some(CancellationPolicy::Forbid)
}

/// All errors of a change of the status.
pub(super) fn validate_status_change(
    new: &EvictionRequestStatus,
    old: &EvictionRequestStatus,
    rules: &StatusRules<'_>,
) -> ErrorList {
    let mut errors = ErrorList::new();
    errors.extend(counter_error(
        &FieldPath::new("status").child("observedGeneration"),
        new.observed_generation.unwrap_or_default(),
        old.observed_generation.unwrap_or_default(),
    ));
    errors.extend(validate_conditions(
        &new.conditions,
        &FieldPath::new("status").child("conditions"),
    ));
    errors.extend(final_condition_errors(&new.conditions, &old.conditions));
    errors.extend(activation::validate(new, old, rules));
    errors.extend(reports::validate(new, old, rules));
    errors.extend(policy_errors(new, old));
    errors.extend(attempts::validate(new, old, rules));
    errors
}

/// Evicted and Canceled stay True once they are, and exclude each other.
fn final_condition_errors(new: &[Condition], old: &[Condition]) -> ErrorList {
    let path = FieldPath::new("status").child("conditions");
    let mut errors = ErrorList::new();
    for end in [EVICTED, CANCELED] {
        if !is_true(old, end) || is_true(new, end) {
            continue;
        }
        let detail = format!("{end} may not go back from True");
        errors.push(match new.iter().position(|condition| condition.type_ == end) {
            None => FieldError::required(&path, &detail),
            Some(index) => {
                let status = new.get(index).map(|condition| condition.status.as_str());
                FieldError::invalid(
                    &path.index(index).child("status"),
                    status.unwrap_or_default(),
                    &detail,
                )
            }
        });
    }
    if is_true(new, EVICTED) && is_true(new, CANCELED) {
        // The error is reported for the condition that was set later.
        let late = if is_true(old, CANCELED) { EVICTED } else { CANCELED };
        let index = new
            .iter()
            .position(|condition| condition.type_ == late)
            .unwrap_or_default();
        let detail = "Evicted and Canceled may not both be True";
        errors.push(FieldError::forbidden(&path.index(index).child("status"), detail));
    }
    errors
}

fn policy_errors(new: &EvictionRequestStatus, old: &EvictionRequestStatus) -> ErrorList {
    let path = FieldPath::new("status").child("evictionRequestCancellationPolicy");
    let policy = |status: &EvictionRequestStatus| {
        status
            .eviction_request_cancellation_policy
            .clone()
            .unwrap_or_default()
    };
    let (new_policy, old_policy) = (policy(new), policy(old));
    let mut errors = ErrorList::new();
    if let CancellationPolicy::Other(other) = &new_policy {
        errors.push(FieldError::not_supported(
            &path,
            other.as_str(),
            CancellationPolicy::KNOWN,
        ));
    }
    if new_policy != old_policy && old.active_interceptors.is_empty() && new.active_interceptors.is_empty() {
        errors.push(FieldError::forbidden(
            &path,
            "may change only while an interceptor is active",
        ));
    }
    errors
}
