//! Validation of numbers.

use std::ops::RangeInclusive;

use drydock_machinery::field_error::{FieldError, FieldPath};

/// The error of a number outside a range.
pub(super) fn range_error(path: &FieldPath, value: i32, range: &RangeInclusive<i32>) -> Option<FieldError> {
    let detail = if value < *range.start() {
        format!("must be greater than or equal to {}", range.start())
    } else if value > *range.end() {
        format!("must be less than or equal to {}", range.end())
    } else {
        return None;
    };
    Some(FieldError::invalid(path, value, &detail))
}

/// The error of a negative number.
pub(super) fn negative_error(path: &FieldPath, value: impl Into<i64>) -> Option<FieldError> {
    let value = value.into();
    (value < 0).then(|| FieldError::invalid(path, value, "must be greater than or equal to 0"))
}

/// The error of a counter that is negative or less than before.
pub(super) fn counter_error(path: &FieldPath, new: i64, old: i64) -> Option<FieldError> {
    negative_error(path, new)
        .or_else(|| (new < old).then(|| FieldError::invalid(path, new, "must not be decremented")))
}
