//! Operators, and access to members.

use std::sync::Arc;

use cel::common::ast::operators;
use jiff::{SignedDuration, Timestamp};

use super::meter::{Failure, Meter, Outcome};
use super::value::{Value, entry, whole};

/// The member of a list, map, message or optional.
pub(super) fn select(operand: &Value, key: &Value) -> Outcome {
    if let Value::Optional(_) = operand {
        return Ok(Value::Optional(find(operand, key)?.map(Arc::new)));
    }
    match (find(operand, key)?, operand) {
        (Some(value), _) => Ok(value),
        (None, Value::List(_)) => Err(Failure::Error(format!("index out of bounds: {key}"))),
        (None, _) => Err(Failure::Error(format!("no such key: {key}"))),
    }
}

/// The member, if there is one.
pub(super) fn find(operand: &Value, key: &Value) -> Result<Option<Value>, Failure> {
    match operand {
        Value::Map(map) => Ok(entry(map, key).cloned()),
        Value::List(items) => {
            let index = index(key)?;
            Ok(usize::try_from(index)
                .ok()
                .and_then(|index| items.get(index))
                .cloned())
        }
        Value::Struct(message) => match key {
            Value::String(name) => Ok(message.fields.get(name.as_ref()).cloned()),
            _ => Err(Failure::error("no such overload")),
        },
        Value::Optional(Some(value)) => find(value, key),
        _ => Ok(None),
    }
}

fn index(key: &Value) -> Result<i64, Failure> {
    let index = match key {
        Value::Int(int) => Some(*int),
        Value::Uint(uint) => i64::try_from(*uint).ok(),
        Value::Double(double) => whole(*double),
        other => {
            return Err(Failure::Error(format!(
                "unsupported index type '{}' in list",
                other.type_name()
            )));
        }
    };
    index.ok_or_else(|| Failure::Error(format!("unsupported index value {key} in list")))
}

/// Applies an operator; `None` if the name is not one.
pub(super) fn apply(name: &str, arguments: &[Value], meter: &mut Meter<'_>) -> Option<Outcome> {
    Some(match (name, arguments) {
        (operators::EQUALS, [a, b]) => compared(a, b, meter).map(|()| a.equals(b).into()),
        (operators::NOT_EQUALS, [a, b]) => compared(a, b, meter).map(|()| (!a.equals(b)).into()),
        (operators::LESS, [a, b]) => order(name, a, b).map(|order| order.is_lt().into()),
        (operators::LESS_EQUALS, [a, b]) => order(name, a, b).map(|order| order.is_le().into()),
        (operators::GREATER, [a, b]) => order(name, a, b).map(|order| order.is_gt().into()),
        (operators::GREATER_EQUALS, [a, b]) => order(name, a, b).map(|order| order.is_ge().into()),
        (operators::IN, [item, container]) => contains(container, item, meter),
        (operators::ADD, [a, b]) => add(a, b, meter),
        (operators::SUBSTRACT, [a, b]) => subtract(a, b),
        (operators::MULTIPLY | operators::DIVIDE | operators::MODULO, [a, b]) => multiply(name, a, b),
        (operators::NEGATE, [Value::Int(int)]) => overflow(int.checked_neg().map(Value::Int)),
        (operators::NEGATE, [Value::Double(double)]) => Ok(Value::Double(-double)),
        (operators::NEGATE, [Value::Duration(duration)]) => Ok(Value::Duration(-*duration)),
        (operators::LOGICAL_NOT, [Value::Bool(bool)]) => Ok((!bool).into()),
        (operators::NEGATE | operators::LOGICAL_NOT, _) => Err(no_overload(name)),
        _ => return None,
    })
}

fn no_overload(operator: &str) -> Failure {
    Failure::Error(format!("no such overload: {operator}"))
}

fn overflow(value: Option<Value>) -> Outcome {
    value.ok_or_else(|| Failure::error("integer overflow"))
}

fn unsigned_overflow(value: Option<u64>) -> Outcome {
    value
        .map(Value::Uint)
        .ok_or_else(|| Failure::error("unsigned integer overflow"))
}

/// Counts what comparing two values reads beyond their first level.
fn compared(a: &Value, b: &Value, meter: &mut Meter<'_>) -> Result<(), Failure> {
    if matches!(
        (a, b),
        (Value::List(_), Value::List(_)) | (Value::Map(_), Value::Map(_))
    ) {
        return meter.work(parts(a).min(parts(b)));
    }
    Ok(())
}

/// The number of values within a value.
pub(super) fn parts(value: &Value) -> u64 {
    match value {
        Value::List(items) => items.iter().map(parts).sum::<u64>().saturating_add(1),
        Value::Map(map) => map.values().map(parts).sum::<u64>().saturating_add(1),
        other => other.size(),
    }
}

fn order(operator: &str, a: &Value, b: &Value) -> Result<std::cmp::Ordering, Failure> {
    if let Some(order) = a.compare(b) {
        return Ok(order);
    }
    let not_a_number = |value: &Value| matches!(value, Value::Double(double) if double.is_nan());
    Err(if not_a_number(a) || not_a_number(b) {
        Failure::error("NaN values cannot be ordered")
    } else if a.compare(a).is_some() {
        Failure::error("no such overload")
    } else {
        no_overload(operator)
    })
}

fn contains(container: &Value, item: &Value, meter: &mut Meter<'_>) -> Outcome {
    match container {
        Value::List(items) => {
            for candidate in items.iter() {
                compared(candidate, item, meter)?;
                if candidate.equals(item) {
                    return Ok(true.into());
                }
            }
            Ok(false.into())
        }
        Value::Map(map) => Ok(entry(map, item).is_some().into()),
        _ => Err(no_overload(operators::IN)),
    }
}

pub(super) fn add(a: &Value, b: &Value, meter: &mut Meter<'_>) -> Outcome {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => overflow(a.checked_add(*b).map(Value::Int)),
        (Value::Uint(a), Value::Uint(b)) => unsigned_overflow(a.checked_add(*b)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a + b)),
        (Value::String(a), Value::String(b)) => Ok(Value::from(format!("{a}{b}"))),
        (Value::Bytes(a), Value::Bytes(b)) => Ok(Value::Bytes([a.as_ref(), b.as_ref()].concat().into())),
        (Value::List(a), Value::List(b)) => {
            meter.work((a.len() + b.len()) as u64)?;
            Ok(a.iter().chain(b.iter()).cloned().collect::<Vec<_>>().into())
        }
        (Value::Duration(a), Value::Duration(b)) => duration(a.checked_add(*b)),
        (Value::Timestamp(time), Value::Duration(span)) | (Value::Duration(span), Value::Timestamp(time)) => {
            timestamp(time.checked_add(*span))
        }
        (Value::Null | Value::Bool(_) | Value::Map(_), _) => Err(no_overload(operators::ADD)),
        _ => Err(Failure::error("no such overload")),
    }
}

fn subtract(a: &Value, b: &Value) -> Outcome {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => overflow(a.checked_sub(*b).map(Value::Int)),
        (Value::Uint(a), Value::Uint(b)) => unsigned_overflow(a.checked_sub(*b)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a - b)),
        (Value::Duration(a), Value::Duration(b)) => duration(a.checked_sub(*b)),
        (Value::Timestamp(a), Value::Timestamp(b)) => Ok(Value::Duration(a.duration_since(*b))),
        (Value::Timestamp(time), Value::Duration(span)) => timestamp(time.checked_sub(*span)),
        (Value::Int(_) | Value::Uint(_) | Value::Double(_) | Value::Duration(_) | Value::Timestamp(_), _) => {
            Err(Failure::error("no such overload"))
        }
        _ => Err(no_overload(operators::SUBSTRACT)),
    }
}

fn duration(result: Option<SignedDuration>) -> Outcome {
    result
        .map(Value::Duration)
        .ok_or_else(|| Failure::error("duration overflow"))
}

fn timestamp(result: Result<Timestamp, jiff::Error>) -> Outcome {
    result
        .map(Value::Timestamp)
        .map_err(|_| Failure::error("timestamp overflow"))
}

fn multiply(operator: &str, a: &Value, b: &Value) -> Outcome {
    match (operator, a, b) {
        (operators::DIVIDE, Value::Int(_), Value::Int(0))
        | (operators::DIVIDE, Value::Uint(_), Value::Uint(0)) => Err(Failure::error("division by zero")),
        (operators::MODULO, Value::Int(_), Value::Int(0))
        | (operators::MODULO, Value::Uint(_), Value::Uint(0)) => Err(Failure::error("modulus by zero")),
        (operators::MULTIPLY, Value::Int(a), Value::Int(b)) => overflow(a.checked_mul(*b).map(Value::Int)),
        (operators::DIVIDE, Value::Int(a), Value::Int(b)) => overflow(a.checked_div(*b).map(Value::Int)),
        (operators::MODULO, Value::Int(a), Value::Int(b)) => overflow(a.checked_rem(*b).map(Value::Int)),
        (operators::MULTIPLY, Value::Uint(a), Value::Uint(b)) => unsigned_overflow(a.checked_mul(*b)),
        (operators::DIVIDE, Value::Uint(a), Value::Uint(b)) => unsigned_overflow(a.checked_div(*b)),
        (operators::MODULO, Value::Uint(a), Value::Uint(b)) => unsigned_overflow(a.checked_rem(*b)),
        (operators::MULTIPLY, Value::Double(a), Value::Double(b)) => Ok(Value::Double(a * b)),
        (operators::DIVIDE, Value::Double(a), Value::Double(b)) => Ok(Value::Double(a / b)),
        (_, Value::Int(_) | Value::Uint(_), _)
        | (operators::MULTIPLY | operators::DIVIDE, Value::Double(_), _) => {
            Err(Failure::error("no such overload"))
        }
        _ => Err(no_overload(operator)),
    }
}

/// The name of the type in messages of the reference that name types of its implementation.
pub(super) fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "types.Null",
        Value::Bool(_) => "types.Bool",
        Value::Int(_) => "types.Int",
        Value::Uint(_) => "types.Uint",
        Value::Double(_) => "types.Double",
        Value::String(_) => "types.String",
        Value::Bytes(_) => "types.Bytes",
        Value::Duration(_) => "types.Duration",
        Value::Timestamp(_) => "types.Timestamp",
        Value::Optional(_) => "*types.Optional",
        _ => "ref.Val",
    }
}
