//! Validation of an eviction request, field by field.

use std::collections::BTreeSet;

use drydock_machinery::field_error::{ErrorList, FieldError, FieldPath, quoted};
use drydock_machinery::names::{AllowedNames, dns_subdomain_errors};
use drydock_proto::kinds::evictionrequest::{
    DEFAULT_HEARTBEAT_DEADLINE_SECONDS, EvictionRequestSpec, EvictionTarget, EvictionType,
    HEARTBEAT_DEADLINE_SECONDS, MAX_REQUESTERS, Requester,
};
use serde_json::Value;

use crate::registry::numbers::{negative_error, range_error};
use crate::registry::view::text;

/// The name must be the UID of the target, so that a pod has at most one request.
pub(super) fn validate_name(object: &Value, spec: &EvictionRequestSpec) -> ErrorList {
    let path = FieldPath::new("metadata");
    let mut errors = ErrorList::new();
    if !text(object, "/metadata/generateName").is_empty() {
        let detail = "may not be set: the name of a request is the UID of its target";
        errors.push(FieldError::forbidden(&path.child("generateName"), detail));
    }
    let name = text(object, "/metadata/name");
    let uid = spec.target.pod.as_ref().map_or("", |pod| &pod.uid);
    if !uid.is_empty() && name != uid {
        let detail = format!("must be the UID of the target: {}", quoted(uid));
        errors.push(FieldError::invalid(&path.child("name"), name, &detail));
    }
    errors
}

/// All errors of the spec of a new request.
pub(super) fn validate_spec(spec: &EvictionRequestSpec, names: &AllowedNames) -> ErrorList {
    let path = FieldPath::new("spec");
    let mut errors = ErrorList::new();
    if let EvictionType::Other(other) = &spec.type_ {
        errors.push(FieldError::not_supported(
            &path.child("type"),
            other.as_str(),
            EvictionType::KNOWN,
        ));
    }
    errors.extend(validate_target(&spec.target, &path.child("target")));
    if spec.requesters.is_empty() {
        errors.push(FieldError::required(
            &path.child("requesters"),
            "must have at least one requester",
        ));
    }
    errors.extend(validate_requesters(&spec.requesters, &BTreeSet::new(), names));
    errors.extend(range_error(
        &path.child("heartbeatDeadlineSeconds"),
        heartbeat_deadline_seconds(spec),
        &HEARTBEAT_DEADLINE_SECONDS,
    ));
    errors.extend(validate_ttl(spec));
    errors
}

fn validate_target(target: &EvictionTarget, path: &FieldPath) -> ErrorList {
    let Some(pod) = &target.pod else {
        return FieldError::required(path, "must specify one of: `pod`").into();
    };
    let path = path.child("pod");
    let mut errors = ErrorList::new();
    if pod.name.is_empty() {
        errors.push(FieldError::required(&path.child("name"), ""));
    } else {
        let path = path.child("name");
        errors.extend(
            dns_subdomain_errors(&pod.name)
                .iter()
                .map(|detail| FieldError::invalid(&path, pod.name.as_str(), detail)),
        );
    }
    if pod.uid.is_empty() {
        errors.push(FieldError::required(&path.child("uid"), ""));
    }
    errors
}

/// All errors of a list of requesters. The names in `known`, those of the stored object, are not validated again: a flag of
/// the server decides which reserved names are allowed, so a stored name may no longer be.
pub(super) fn validate_requesters(
    requesters: &[Requester],
    known: &BTreeSet<&str>,
    names: &AllowedNames,
) -> ErrorList {
    let path = FieldPath::new("spec").child("requesters");
    if requesters.len() > MAX_REQUESTERS {
        return FieldError::too_many(&path, requesters.len(), MAX_REQUESTERS).into();
    }
    let all = requesters.iter().map(|requester| requester.name.as_str());
    validate_names(all, known, names, |index| path.index(index).child("name"))
}

/// All errors of names that must be unique and, unless they are in `known`, allowed.
pub(super) fn validate_names<'a>(
    all: impl Iterator<Item = &'a str>,
    known: &BTreeSet<&str>,
    allowed: &AllowedNames,
    path: impl Fn(usize) -> FieldPath,
) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut seen = BTreeSet::new();
    for (index, name) in all.enumerate() {
        if !seen.insert(name) {
            errors.push(FieldError::duplicate(&path(index), name));
        } else if !known.contains(name) {
            errors.extend(allowed.validate(&path(index), name));
        }
    }
    errors
}

/// The error of ttlSecondsAfterFinished.
pub(super) fn validate_ttl(spec: &EvictionRequestSpec) -> Option<FieldError> {
    let path = FieldPath::new("spec").child("ttlSecondsAfterFinished");
    negative_error(&path, spec.ttl_seconds_after_finished?)
}

/// The effective heartbeat deadline, in seconds.
pub(super) fn heartbeat_deadline_seconds(spec: &EvictionRequestSpec) -> i32 {
    spec.heartbeat_deadline_seconds
        .unwrap_or(DEFAULT_HEARTBEAT_DEADLINE_SECONDS)
}
