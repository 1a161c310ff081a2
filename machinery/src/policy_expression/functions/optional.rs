//! Optional values. `or` and `orValue` evaluate their argument only if it is needed, so they are part of the evaluation.

use super::{Function, Style, no_overload};
use crate::policy_expression::meter::{Failure, Meter, Outcome};
use crate::policy_expression::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    ("hasValue", Style::Member, 0, 0),
    ("optional.none", Style::Member, 0, 0),
    ("optional.of", Style::Member, 1, 1),
    ("optional.ofNonZeroValue", Style::Member, 1, 1),
    ("or", Style::Member, 1, 1),
    ("orValue", Style::Member, 1, 1),
    ("value", Style::Member, 0, 0),
];

pub(super) fn call(name: &str, arguments: &[Value], _: &mut Meter<'_>) -> Outcome {
    match (name, arguments) {
        ("optional.none", []) => Ok(Value::Optional(None)),
        ("optional.ofNonZeroValue", [value]) if value.is_zero() => Ok(Value::Optional(None)),
        ("optional.of" | "optional.ofNonZeroValue", [value]) => Ok(value.clone().some()),
        ("hasValue", [Value::Optional(value)]) => Ok(value.is_some().into()),
        ("value", [Value::Optional(Some(value))]) => Ok(value.as_ref().clone()),
        ("value", [Value::Optional(None)]) => Err(Failure::error("optional.none() dereference")),
        _ => Err(no_overload(name, arguments)),
    }
}
