//! The standard library without texts and times: conversions, `size`, `type`, `dyn`.

use super::time::{self, duration_text};
use super::{Function, Style, no_overload};
use crate::policy_expression::meter::{Failure, Meter, Outcome};
use crate::policy_expression::value::{Value, whole};

pub(super) const FUNCTIONS: &[Function] = &[
    ("bool", Style::Global, 1, 1),
    ("bytes", Style::Global, 1, 1),
    ("double", Style::Global, 1, 1),
    ("duration", Style::Global, 1, 1),
    ("dyn", Style::Global, 1, 1),
    ("int", Style::Global, 1, 1),
    ("size", Style::Global, 1, 1),
    ("size", Style::Member, 0, 0),
    ("string", Style::Global, 1, 1),
    ("timestamp", Style::Global, 1, 1),
    ("type", Style::Global, 1, 1),
    ("uint", Style::Global, 1, 1),
];

pub(super) fn call(name: &str, arguments: &[Value], _: &mut Meter<'_>) -> Outcome {
    let [value] = arguments else {
        return Err(no_overload(name, arguments));
    };
    match name {
        "dyn" => Ok(value.clone()),
        "type" => Ok(Value::Type(value.type_name().into())),
        "size" => match value {
            Value::String(_) | Value::Bytes(_) | Value::List(_) | Value::Map(_) => {
                Ok(Value::Int(i64::try_from(value.size()).unwrap_or(i64::MAX)))
            }
            _ => Err(no_overload(name, arguments)),
        },
        "int" => int(value),
        "uint" => uint(value),
        "double" => double(value),
        "bool" => bool(value),
        "string" => string(value),
        "bytes" => match value {
            Value::Bytes(_) => Ok(value.clone()),
            Value::String(text) => Ok(Value::Bytes(text.as_bytes().into())),
            _ => Err(no_overload(name, arguments)),
        },
        "duration" => match value {
            Value::Duration(_) => Ok(value.clone()),
            Value::Int(int) => Ok(Value::Duration(jiff::SignedDuration::from_nanos(*int))),
            Value::String(text) => time::parse_duration(text)
                .map(Value::Duration)
                .ok_or_else(|| conversion(value, "google.protobuf.Duration")),
            _ => Err(no_overload(name, arguments)),
        },
        "timestamp" => match value {
            Value::Timestamp(_) => Ok(value.clone()),
            Value::Int(int) => jiff::Timestamp::from_second(*int)
                .map(Value::Timestamp)
                .map_err(|_| Failure::error("timestamp overflow")),
            Value::String(text) => time::parse_timestamp(text)
                .map(Value::Timestamp)
                .ok_or_else(|| conversion(value, "google.protobuf.Timestamp")),
            _ => Err(no_overload(name, arguments)),
        },
        _ => Err(no_overload(name, arguments)),
    }
}

fn conversion(value: &Value, to: &str) -> Failure {
    Failure::Error(format!(
        "type conversion error from '{}' to '{to}'",
        value.type_name()
    ))
}

fn int(value: &Value) -> Outcome {
    let int = match value {
        Value::Int(int) => Some(*int),
        Value::Uint(uint) => i64::try_from(*uint).ok(),
        Value::Double(double) => whole(double.trunc()).filter(|int| *int != i64::MIN),
        Value::Timestamp(timestamp) => Some(timestamp.as_second()),
        Value::Duration(duration) => i64::try_from(duration.as_nanos()).ok(),
        Value::String(text) => return text.parse().map(Value::Int).map_err(|_| conversion(value, "int")),
        _ => return Err(no_overload("int", std::slice::from_ref(value))),
    };
    int.map(Value::Int)
        .ok_or_else(|| Failure::error("integer overflow"))
}

fn uint(value: &Value) -> Outcome {
    let uint = match value {
        Value::Uint(uint) => Some(*uint),
        Value::Int(int) => u64::try_from(*int).ok(),
        Value::Double(double) => unsigned(*double),
        Value::String(text) => {
            return text
                .parse()
                .map(Value::Uint)
                .map_err(|_| conversion(value, "uint"));
        }
        _ => return Err(no_overload("uint", std::slice::from_ref(value))),
    };
    uint.map(Value::Uint)
        .ok_or_else(|| Failure::error("unsigned integer overflow"))
}

fn unsigned(double: f64) -> Option<u64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "within the range"
    )]
    (0.0..18_446_744_073_709_551_616.0)
        .contains(&double)
        .then_some(double as u64)
}

fn double(value: &Value) -> Outcome {
    #[expect(clippy::cast_precision_loss, reason = "as the conversion of CEL does")]
    match value {
        Value::Double(_) => Ok(value.clone()),
        Value::Int(int) => Ok(Value::Double(*int as f64)),
        Value::Uint(uint) => Ok(Value::Double(*uint as f64)),
        Value::String(text) => text
            .parse()
            .map(Value::Double)
            .map_err(|_| conversion(value, "double")),
        _ => Err(no_overload("double", std::slice::from_ref(value))),
    }
}

fn bool(value: &Value) -> Outcome {
    match value {
        Value::Bool(_) => Ok(value.clone()),
        Value::String(text) => match text.as_ref() {
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true.into()),
            "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false.into()),
            _ => Err(conversion(value, "bool")),
        },
        _ => Err(no_overload("bool", std::slice::from_ref(value))),
    }
}

fn string(value: &Value) -> Outcome {
    match value {
        Value::String(_) => Ok(value.clone()),
        Value::Bytes(bytes) => std::str::from_utf8(bytes)
            .map(Value::from)
            .map_err(|_| Failure::error("invalid UTF-8 in bytes, cannot convert to string")),
        Value::Duration(duration) => Ok(duration_text(*duration).into()),
        Value::Bool(_)
        | Value::Int(_)
        | Value::Uint(_)
        | Value::Double(_)
        | Value::Timestamp(_)
        | Value::Ip(_)
        | Value::Cidr(_) => Ok(value.to_string().into()),
        _ => Err(no_overload("string", std::slice::from_ref(value))),
    }
}

/// A floating point number as the Go format `%g` shows it: an exponent for very large and very small numbers.
pub(in crate::policy_expression) fn double_text(double: f64) -> String {
    if double.is_nan() {
        return "NaN".to_owned();
    }
    if double.is_infinite() {
        return if double > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{double:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..21).contains(&exponent) {
        return format!("{double}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}
