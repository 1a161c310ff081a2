//! Which interceptors may be declared, active and processed. They are declared once and become active one at a time, in
//! order. One that stops being active is processed and never becomes active again.

use std::collections::BTreeSet;

use drydock_machinery::field_error::{ErrorList, FieldError, FieldPath, quoted};
use drydock_proto::kinds::evictionrequest::{EvictionRequestStatus, InterceptorStatus, MAX_INTERCEPTORS};
use serde_json::json;

use super::status_rules::{IMMUTABLE, StatusRules, is_final};
use crate::registry::evictionrequest::validation::validate_names;

/// All errors of targetInterceptors, activeInterceptors and processedInterceptors.
pub(super) fn validate(
    new: &EvictionRequestStatus,
    old: &EvictionRequestStatus,
    rules: &StatusRules<'_>,
) -> ErrorList {
    let mut errors = target_errors(new, old, rules);
    errors.extend(active_errors(new, old, rules));
    errors.extend(processed_errors(new, old));
    errors
}

fn target_errors(
    new: &EvictionRequestStatus,
    old: &EvictionRequestStatus,
    rules: &StatusRules<'_>,
) -> ErrorList {
    let path = FieldPath::new("status").child("targetInterceptors");
    let (new, old) = (&new.target_interceptors, &old.target_interceptors);
    if new == old {
        return ErrorList::new();
    }
    if !old.is_empty() {
        return FieldError::invalid(&path, json!(new), IMMUTABLE).into();
    }
    if new.len() > MAX_INTERCEPTORS {
        return FieldError::too_many(&path, new.len(), MAX_INTERCEPTORS).into();
    }
    let names = new.iter().map(|target| target.name.as_str());
    validate_names(names, &BTreeSet::new(), rules.names, |index| {
        path.index(index).child("name")
    })
}

fn active_errors(
    new: &EvictionRequestStatus,
    old: &EvictionRequestStatus,
    rules: &StatusRules<'_>,
) -> ErrorList {
    let path = FieldPath::new("status").child("activeInterceptors");
    if new.active_interceptors.len() > 1 {
        return FieldError::too_many(&path, new.active_interceptors.len(), 1).into();
    }
    let (activated, deactivated) = (new.active_interceptors.first(), old.active_interceptors.first());
    if activated == deactivated {
        return ErrorList::new();
    }
    let mut errors = ErrorList::new();
    if let Some(deactivated) = deactivated {
        errors.extend(deactivation_error(deactivated, new, rules, &path));
    }
    if let Some(activated) = activated {
        let position = old.processed_interceptors.len() + usize::from(deactivated.is_some());
        errors.extend(activation_errors(activated, position, new, &path));
    }
    errors
}

/// An interceptor may stop being active when it has completed, when it missed the heartbeat deadline, or when the request
/// is final.
fn deactivation_error(
    name: &str,
    status: &EvictionRequestStatus,
    rules: &StatusRules<'_>,
    path: &FieldPath,
) -> Option<FieldError> {
    let report = status.interceptors.iter().find(|report| report.name == name);
    let is_allowed = is_final(status)
        || report.is_some_and(|report| report.completion_time.is_some() || is_overdue(report, rules));
    (!is_allowed).then(|| {
        let detail = format!(
            "{} must stay active: its completionTime is not set and its heartbeat deadline of {} seconds has not passed",
            quoted(name),
            rules.deadline.as_secs()
        );
        FieldError::forbidden(path, &detail)
    })
}

/// Whether more than the deadline has passed since both the activation and the last heartbeat.
fn is_overdue(report: &InterceptorStatus, rules: &StatusRules<'_>) -> bool {
    let since = [&report.activation_time, &report.heartbeat_time]
        .into_iter()
        .flatten()
        .map(|time| time.0)
        .max();
    since.is_some_and(|since| rules.now.duration_since(since) > rules.deadline)
}

/// `position` is the index in targetInterceptors of the interceptor that comes next.
fn activation_errors(
    activated: &str,
    position: usize,
    status: &EvictionRequestStatus,
    path: &FieldPath,
) -> ErrorList {
    let mut errors = ErrorList::new();
    let path = path.index(0);
    if is_final(status) {
        errors.push(FieldError::forbidden(
            &path,
            "no interceptor may become active: the request is final",
        ));
    }
    match status.target_interceptors.get(position) {
        Some(next) if next.name == activated => {}
        Some(next) => {
            let detail = format!(
                "must be the next of status.targetInterceptors: {}",
                quoted(&next.name)
            );
            errors.push(FieldError::invalid(&path, activated, &detail));
        }
        None => {
            let detail = "must be the next of status.targetInterceptors, and none is left";
            errors.push(FieldError::invalid(&path, activated, detail));
        }
    }
    errors
}

fn processed_errors(new: &EvictionRequestStatus, old: &EvictionRequestStatus) -> ErrorList {
    let path = FieldPath::new("status").child("processedInterceptors");
    let (new_names, old_names) = (&new.processed_interceptors, &old.processed_interceptors);
    let Some(added) = new_names.strip_prefix(old_names.as_slice()) else {
        return FieldError::invalid(&path, new_names.clone(), "may only be appended to").into();
    };
    let mut expected = old
        .active_interceptors
        .iter()
        .find(|name| !new.active_interceptors.contains(name));
    let mut errors = ErrorList::new();
    for (index, name) in added.iter().enumerate() {
        if errors.is_full() {
            break;
        }
        if expected.take_if(|expected| *expected == name).is_none() {
            let detail = "only an interceptor that stops being active may be appended";
            errors.push(FieldError::invalid(
                &path.index(old_names.len() + index),
                name.as_str(),
                detail,
            ));
        }
    }
    if let Some(missing) = expected {
        let detail = format!("must end with {}, which stops being active", quoted(missing));
        errors.push(FieldError::required(&path, &detail));
    }
    errors
}
