//! Validation of an eviction interceptor, field by field.

use std::collections::BTreeSet;

use drydock_machinery::expression::Expression;
use drydock_machinery::field_error::{ErrorList, FieldError, FieldPath, quoted};
use drydock_machinery::names::{AllowedNames, dns_subdomain_errors, label_key_errors};
use drydock_machinery::selector::label::validate_label_selector;
use drydock_proto::kinds::evictioninterceptor::{
    CONTROLLER_PRIORITY, EvictionInterceptorSpec, InterceptorRole, MAX_MATCH_CONDITIONS, MatchCondition,
    PRIORITIES,
};
use drydock_proto::kinds::evictionrequest::HEARTBEAT_DEADLINE_SECONDS;

use crate::registry::numbers::range_error;

/// All errors of the interceptor's name and of the object's name, which must be the same with `/` replaced by `.`.
pub(super) fn validate_names(name: &str, spec: &EvictionInterceptorSpec, names: &AllowedNames) -> ErrorList {
    let mut errors = names.validate(
        &FieldPath::new("spec").child("interceptorName"),
        &spec.interceptor_name,
    );
    let expected = spec.interceptor_name.replace('/', ".");
    // The rules of metadata reject what is not a name.
    if errors.is_empty() && name != expected && dns_subdomain_errors(name).is_empty() {
        let detail = format!(
            "must be spec.interceptorName with \"/\" written as \".\": {}",
            quoted(&expected)
        );
        errors.push(FieldError::invalid(
            &FieldPath::new("metadata").child("name"),
            name,
            &detail,
        ));
    }
    errors
}

/// All errors of a change of the spec.
pub(super) fn validate_change(new: &EvictionInterceptorSpec, old: &EvictionInterceptorSpec) -> ErrorList {
    let mut errors = ErrorList::new();
    if new.interceptor_name != old.interceptor_name {
        let path = FieldPath::new("spec").child("interceptorName");
        errors.push(FieldError::invalid(
            &path,
            new.interceptor_name.as_str(),
            "field is immutable",
        ));
    }
    errors.extend(validate_rule(new, Some(old)));
    errors
}

/// All errors of the spec except those of the name. Expressions that `old` has are not compiled again: another release may
/// have accepted what this one rejects.
pub(super) fn validate_rule(
    spec: &EvictionInterceptorSpec,
    old: Option<&EvictionInterceptorSpec>,
) -> ErrorList {
    let path = FieldPath::new("spec");
    let mut errors = ErrorList::new();
    for (field, selector) in [
        ("namespaceSelector", &spec.namespace_selector),
        ("podSelector", &spec.pod_selector),
    ] {
        if let Some(selector) = selector {
            errors.extend(validate_label_selector(selector, &path.child(field)));
        }
    }
    let known = old.map_or(&[][..], |old| &old.match_conditions);
    errors.extend(condition_errors(
        &spec.match_conditions,
        known,
        &path.child("matchConditions"),
    ));
    errors.extend(priority_error(spec, &path.child("priority")));
    if let Some(InterceptorRole::Other(other)) = &spec.role {
        errors.push(FieldError::not_supported(
            &path.child("role"),
            other.as_str(),
            InterceptorRole::KNOWN,
        ));
    }
    if let Some(seconds) = spec.heartbeat_deadline_seconds {
        errors.extend(range_error(
            &path.child("heartbeatDeadlineSeconds"),
            seconds,
            &HEARTBEAT_DEADLINE_SECONDS,
        ));
    }
    errors
}

fn priority_error(spec: &EvictionInterceptorSpec, path: &FieldPath) -> Option<FieldError> {
    let priority = spec.priority?;
    let is_controller = spec.role == Some(InterceptorRole::Controller);
    let detail = match (is_controller, priority == CONTROLLER_PRIORITY) {
        (true, false) => "must be 10000, the priority of the role controller",
        (false, true) => "10000 is reserved for the role controller",
        _ => return range_error(path, priority, &PRIORITIES),
    };
    Some(FieldError::invalid(path, priority, detail))
}

fn condition_errors(conditions: &[MatchCondition], known: &[MatchCondition], path: &FieldPath) -> ErrorList {
    if conditions.len() > MAX_MATCH_CONDITIONS {
        return FieldError::too_many(path, conditions.len(), MAX_MATCH_CONDITIONS).into();
    }
    let mut errors = ErrorList::new();
    let mut names = BTreeSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        let path = path.index(index);
        errors.extend(condition_name_errors(
            &condition.name,
            &mut names,
            &path.child("name"),
        ));
        let path = path.child("expression");
        let expression = condition.expression.as_str();
        if expression.trim().is_empty() {
            errors.push(FieldError::required(&path, ""));
        } else if !known.iter().any(|known| known.expression == expression)
            && let Err(error) = Expression::compile(expression)
        {
            errors.push(FieldError::invalid(&path, expression, &error.to_string()));
        }
    }
    errors
}

fn condition_name_errors<'a>(name: &'a str, seen: &mut BTreeSet<&'a str>, path: &FieldPath) -> ErrorList {
    if name.is_empty() {
        return FieldError::required(path, "").into();
    }
    if !seen.insert(name) {
        return FieldError::duplicate(path, name).into();
    }
    label_key_errors(name)
        .iter()
        .map(|detail| FieldError::invalid(path, name, detail))
        .collect()
}
