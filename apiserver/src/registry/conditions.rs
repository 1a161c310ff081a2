//! Validation of `metav1.Condition`.

use std::collections::BTreeSet;

use drydock_machinery::field_error::{ErrorList, FieldError, FieldPath};
use drydock_machinery::names::label_key_errors;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

const MAX_REASON_BYTES: usize = 1024;
const MAX_MESSAGE_BYTES: usize = 32 * 1024;

/// Whether the condition of that type is True.
pub(super) fn is_true(conditions: &[Condition], type_: &str) -> bool {
    conditions
        .iter()
        .any(|condition| condition.type_ == type_ && condition.status == "True")
}

/// All errors of a list of conditions. A type may occur once.
pub(super) fn validate_conditions(conditions: &[Condition], path: &FieldPath) -> ErrorList {
    let mut errors = ErrorList::new();
    let mut types = BTreeSet::new();
    for (index, condition) in conditions.iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let path = path.index(index);
        if !types.insert(condition.type_.as_str()) {
            errors.push(FieldError::duplicate(&path, condition.type_.as_str()));
        }
        errors.extend(validate_condition(condition, &path));
    }
    errors
}

fn validate_condition(condition: &Condition, path: &FieldPath) -> ErrorList {
    let mut errors = ErrorList::new();
    let type_ = condition.type_.as_str();
    if type_.is_empty() {
        errors.push(FieldError::required(&path.child("type"), ""));
    } else {
        errors.extend(
            label_key_errors(type_)
                .iter()
                .map(|detail| FieldError::invalid(&path.child("type"), type_, detail)),
        );
    }
    let status = condition.status.as_str();
    if !["True", "False", "Unknown"].contains(&status) {
        errors.push(FieldError::not_supported(
            &path.child("status"),
            status,
            &["False", "True", "Unknown"],
        ));
    }
    if let Some(generation) = condition.observed_generation.filter(|generation| *generation < 0) {
        let detail = "must be greater than or equal to zero";
        errors.push(FieldError::invalid(
            &path.child("observedGeneration"),
            generation,
            detail,
        ));
    }
    errors.extend(reason_error(&condition.reason, &path.child("reason")));
    if condition.message.len() > MAX_MESSAGE_BYTES {
        errors.push(FieldError::too_long(&path.child("message"), MAX_MESSAGE_BYTES));
    }
    errors
}

fn reason_error(reason: &str, path: &FieldPath) -> Option<FieldError> {
    if reason.is_empty() {
        return Some(FieldError::required(path, "must be set"));
    }
    if reason.len() > MAX_REASON_BYTES {
        return Some(FieldError::too_long(path, MAX_REASON_BYTES));
    }
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let bytes = reason.as_bytes();
    let is_valid = bytes.first().is_some_and(u8::is_ascii_alphabetic)
        && bytes.last().is_some_and(|&byte| is_word(byte))
        && bytes
            .iter()
            .all(|&byte| is_word(byte) || matches!(byte, b',' | b':'));
    (!is_valid).then(|| {
        FieldError::invalid(
            path,
            reason,
            "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric \
             characters or '_,:', and must end with an alphanumeric character or '_' (e.g. 'my_name',  or 'MY_NAME',  \
             or 'MyName',  or 'ReasonA,ReasonB',  or 'ReasonA:ReasonB', regex used for validation is \
             '[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?')",
        )
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn check(conditions: &Value, expected: &[(&str, &str)]) {
        let conditions: Vec<Condition> = serde_json::from_value(conditions.clone()).unwrap();
        let errors = validate_conditions(&conditions, &FieldPath::new("c"));
        let found: Vec<_> = errors
            .iter()
            .map(|error| (error.field(), error.reason()))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn conditions_have_all_fields_and_unique_types() {
        let good = json!({"type": "example.com/Ready", "status": "True", "reason": "A_b,c:D", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"});
        check(&json!([good]), &[]);
        check(&json!([good, good]), &[("c[1]", "FieldValueDuplicate")]);
        check(
            &json!([{"lastTransitionTime": "2026-01-01T00:00:00Z"}]),
            &[
                ("c[0].type", "FieldValueRequired"),
                ("c[0].status", "FieldValueNotSupported"),
                ("c[0].reason", "FieldValueRequired"),
            ],
        );
        let bad = json!({"type": "a b", "status": "true", "reason": "1", "message": "x".repeat(32_769),
            "observedGeneration": -1, "lastTransitionTime": "2026-01-01T00:00:00Z"});
        check(
            &json!([bad]),
            &[
                ("c[0].type", "FieldValueInvalid"),
                ("c[0].status", "FieldValueNotSupported"),
                ("c[0].observedGeneration", "FieldValueInvalid"),
                ("c[0].reason", "FieldValueInvalid"),
                ("c[0].message", "FieldValueTooLong"),
            ],
        );
        for reason in ["A-b", "A,", "Ä"] {
            let mut condition = good.clone();
            condition["reason"] = json!(reason);
            check(&json!([condition]), &[("c[0].reason", "FieldValueInvalid")]);
        }
    }
}
