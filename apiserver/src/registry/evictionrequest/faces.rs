//! The rules that only the older versions have. The objects are in those versions; all other rules hold for the hub.

use drydock_machinery::field_error::{ErrorList, FieldError, FieldPath, quoted};
use drydock_proto::kinds::evictionrequest::evacuation::{
    DEFAULT_PROGRESS_DEADLINE_SECONDS, INSTIGATOR_PREFIX, PROGRESS_DEADLINE_SECONDS, name_of_pod,
    requester_of,
};
use drydock_proto::kinds::evictionrequest::v1alpha1::COMPLETE;
use drydock_proto::kinds::evictionrequest::{CANCELED, EVICTED};
use serde_json::{Value, json};

use crate::registry::face::Face;
use crate::registry::metadata::strings;
use crate::registry::numbers::range_error;
use crate::registry::part::Part;
use crate::registry::view::text;

/// The longest name of a finalizer after its prefix, in bytes.
const MAX_FINALIZER_NAME: usize = 63;

/// All errors of an object in a version that does not have the shape of the hub.
pub(super) fn validate(face: &Face, part: Part, new: &Value, old: Option<&Value>) -> ErrorList {
    let mut errors = ErrorList::new();
    let names = if face.alias.is_some() {
        &EVACUATION
    } else {
        &V1ALPHA1
    };
    match part {
        Part::Main => {
            errors.extend(interceptors_error(new, old, names.interceptors));
            if face.alias.is_some() {
                errors.extend(evacuation_errors(new, old));
            }
        }
        Part::Status => {
            errors.extend(inactive_errors(new, old, names));
            if face.alias.is_none() {
                errors.extend(complete_error(new, old));
            }
        }
    }
    errors
}

/// What fields are called in a version.
struct Names {
    interceptors: &'static str,
    active: &'static str,
    reports: [&'static str; 3],
}

const V1ALPHA1: Names = Names {
    interceptors: "interceptors",
    active: "activeInterceptorName",
    reports: [
        "activeInterceptorCompleted",
        "expectedInterceptorFinishTime",
        "heartbeatTime",
    ],
};

const EVACUATION: Names = Names {
    interceptors: "evacuators",
    active: "activeEvacuatorClass",
    reports: [
        "activeEvacuatorCompleted",
        "expectedEvacuationFinishTime",
        "evacuationProgressTimestamp",
    ],
};

/// The controller determines the interceptors from the pod, so that all requesters get the same ones.
fn interceptors_error(new: &Value, old: Option<&Value>, field: &str) -> Option<FieldError> {
    let list = |object: &Value| {
        let list = object.get("spec").and_then(|spec| spec.get(field));
        list.cloned().filter(|list| *list != json!([]))
    };
    let path = FieldPath::new("spec").child(field);
    let sent = list(new)?;
    match old {
        None => Some(FieldError::forbidden(
            &path,
            "may not be set: it is determined from the pod",
        )),
        Some(old) if list(old).as_ref() == Some(&sent) => None,
        Some(_) => Some(FieldError::invalid(&path, sent, "field is immutable")),
    }
}

/// Without an interceptor that is or was active there is nobody whose report could change.
fn inactive_errors(new: &Value, old: Option<&Value>, names: &Names) -> ErrorList {
    let mut errors = ErrorList::new();
    let status = |object: Option<&Value>, field: &str| {
        let status = object.and_then(|object| object.get("status"));
        let value = status.and_then(|status| status.get(field)).cloned();
        value.filter(|value| *value != json!("") && *value != json!(false))
    };
    let was_active =
        status(old, names.active).is_some() || names.reports.iter().any(|field| status(old, field).is_some());
    if status(Some(new), names.active).is_some() {
        if is_final(new) {
            let path = FieldPath::new("status").child(names.active);
            errors.push(FieldError::forbidden(
                &path,
                "may not be set: the request is final",
            ));
        }
        return errors;
    }
    if was_active {
        return errors;
    }
    for field in names.reports.iter().chain(&["message"]) {
        if status(Some(new), field) != status(old, field) {
            let path = FieldPath::new("status").child(field);
            errors.push(FieldError::forbidden(
                &path,
                "may change only while an interceptor is active",
            ));
        }
    }
    errors
}

/// Whether Evicted or Canceled is True.
fn is_final(object: &Value) -> bool {
    let conditions = object.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|condition| {
        [EVICTED, CANCELED].contains(&text(condition, "/type")) && text(condition, "/status") == "True"
    })
}

/// Complete follows from Evicted and Canceled.
fn complete_error(new: &Value, old: Option<&Value>) -> Option<FieldError> {
    let find = |object: &Value| {
        let conditions = object.pointer("/status/conditions").and_then(Value::as_array)?;
        let found = conditions.iter().enumerate();
        let mut found = found.filter(|(_, condition)| text(condition, "/type") == COMPLETE);
        found.next().map(|(index, condition)| (index, condition.clone()))
    };
    let (index, sent) = find(new)?;
    if old.and_then(find).is_some_and(|(_, known)| known == sent) {
        return None;
    }
    let path = FieldPath::new("status").child("conditions").index(index);
    let detail = "Complete is set when Evicted or Canceled is True, and may not be changed";
    Some(FieldError::forbidden(&path, detail))
}

fn evacuation_errors(new: &Value, old: Option<&Value>) -> ErrorList {
    let mut errors = ErrorList::new();
    let metadata = FieldPath::new("metadata");
    let known = old.map(|old| strings(old, "finalizers")).unwrap_or_default();
    for finalizer in strings(new, "finalizers") {
        if known.contains(&finalizer) || requester_of(&finalizer).is_none() {
            continue;
        }
        // The part after the only slash.
        let name = finalizer.rsplit('/').next().unwrap_or_default();
        if name.len() > MAX_FINALIZER_NAME {
            let detail = format!("name part must be no more than {MAX_FINALIZER_NAME} bytes");
            errors.push(FieldError::invalid(
                &metadata.child("finalizers"),
                finalizer,
                &detail,
            ));
        }
    }
    if old.is_some() {
        return errors;
    }
    if strings(new, "finalizers")
        .iter()
        .all(|finalizer| requester_of(finalizer).is_none())
    {
        let detail = format!("must have at least one instigator: a finalizer {INSTIGATOR_PREFIX}NAME");
        errors.push(FieldError::required(&metadata.child("finalizers"), &detail));
    }
    let (uid, pod) = (text(new, "/spec/podRef/uid"), text(new, "/spec/podRef/name"));
    let (name, expected) = (text(new, "/metadata/name"), name_of_pod(uid, pod));
    let is_generated = !text(new, "/metadata/generateName").is_empty();
    if is_generated {
        let detail = "may not be set: the name of an Evacuation follows from its pod";
        errors.push(FieldError::forbidden(&metadata.child("generateName"), detail));
    } else if !uid.is_empty() && !pod.is_empty() && name != expected {
        let detail = format!("must be the UID and the name of the pod: {}", quoted(&expected));
        errors.push(FieldError::invalid(&metadata.child("name"), name, &detail));
    }
    let deadline = new
        .pointer("/spec/progressDeadlineSeconds")
        .and_then(Value::as_i64);
    let deadline = deadline.map_or(DEFAULT_PROGRESS_DEADLINE_SECONDS, |seconds| {
        i32::try_from(seconds).unwrap_or(i32::MAX)
    });
    errors.extend(range_error(
        &FieldPath::new("spec").child("progressDeadlineSeconds"),
        deadline,
        &PROGRESS_DEADLINE_SECONDS,
    ));
    errors
}
