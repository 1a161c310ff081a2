//! `'%s is %d'.format([a, b])`, as version 2 of the library of strings, which Kubernetes uses, shows values: fractions in
//! English, with groups of three digits.

use super::convert::double_text;
use super::text::{MAX_BYTES, quoted};
use crate::policy_expression::meter::{Failure, Meter, Outcome};
use crate::policy_expression::value::{Key, Value};

/// The digits after the point if the clause has no precision.
const DEFAULT_PRECISION: usize = 6;
/// No number has more digits than that.
const MAX_PRECISION: usize = 1_000;

const SUPERSCRIPTS: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];

pub(super) fn format(text: &str, values: &[Value], meter: &mut Meter<'_>) -> Outcome {
    let mut out = String::new();
    let mut used = 0;
    let mut rest = text;
    while let Some((before, clause)) = rest.split_once('%') {
        out.push_str(before);
        if let Some(after) = clause.strip_prefix('%') {
            out.push('%');
            rest = after;
            continue;
        }
        let value = values
            .get(used)
            .ok_or_else(|| Failure::Error(format!("index {used} out of range")))?;
        used += 1;
        let (precision, clause) = precision(clause)?;
        let mut characters = clause.chars();
        let shown = match characters.next() {
            None => return Err(Failure::error("unexpected end of string")),
            Some('s') => shown(value),
            Some('d') => decimal(value),
            Some('f') => fraction(value, "fixed-point").map(|double| fixed(double, precision)),
            Some('e') => fraction(value, "scientific").map(|double| scientific(double, precision)),
            Some('b') => binary(value),
            Some('o') => octal(value),
            Some('x') => hexadecimal(value, false),
            Some('X') => hexadecimal(value, true),
            Some(other) => {
                return Err(Failure::Error(format!(
                    "could not parse formatting clause: unrecognized formatting clause \"{other}\""
                )));
            }
        };
        let shown = shown.map_err(|error| Failure::Error(format!("error during formatting: {error}")))?;
        meter.work(shown.len() as u64)?;
        out.push_str(&shown);
        if out.len() > MAX_BYTES {
            return Err(Failure::CostLimit);
        }
        rest = characters.as_str();
    }
    out.push_str(rest);
    Ok(out.into())
}

/// The precision that a clause begins with, and what follows.
fn precision(clause: &str) -> Result<(usize, &str), Failure> {
    let Some(digits) = clause.strip_prefix('.') else {
        return Ok((DEFAULT_PRECISION, clause));
    };
    let error = |what: &str| {
        Failure::Error(format!(
            "could not parse formatting clause: error while parsing precision: {what}"
        ))
    };
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .ok_or_else(|| error("could not find end of precision specifier"))?;
    let (digits, rest) = digits.split_at_checked(end).unwrap_or((digits, ""));
    let precision: usize = digits.parse().map_err(|_| {
        error(&format!(
            "error while converting precision to integer: strconv.Atoi: parsing \"{digits}\": invalid syntax"
        ))
    })?;
    if precision > MAX_PRECISION {
        return Err(Failure::CostLimit);
    }
    Ok((precision, rest))
}

/// `%s`
fn shown(value: &Value) -> Result<String, String> {
    Ok(match value {
        Value::String(text) => text.to_string(),
        Value::List(items) => {
            let items: Vec<String> = items.iter().map(literal).collect::<Result<_, _>>()?;
            format!("[{}]", items.join(", "))
        }
        Value::Map(map) => {
            let mut entries = map
                .iter()
                .map(|(key, value)| {
                    let key = match key {
                        Key::String(text) => quoted(text),
                        key => key.value().to_string(),
                    };
                    Ok((key, literal(value)?))
                })
                .collect::<Result<Vec<_>, String>>()?;
            entries.sort();
            let entries: Vec<String> = entries
                .into_iter()
                .map(|(key, value)| format!("{key}:{value}"))
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
        Value::Double(double) => double_text(*double),
        Value::Null
        | Value::Bool(_)
        | Value::Int(_)
        | Value::Uint(_)
        | Value::Bytes(_)
        | Value::Timestamp(_)
        | Value::Duration(_)
        | Value::Type(_) => value.to_string(),
        other => {
            return Err(format!(
                "string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types, \
                 durations, and timestamps, was given {}",
                other.type_name()
            ));
        }
    })
}

/// A value within a list or map.
fn literal(value: &Value) -> Result<String, String> {
    match value {
        Value::String(text) => Ok(quoted(text)),
        Value::Bytes(bytes) => Ok(format!("b{}", quoted(&String::from_utf8_lossy(bytes)))),
        Value::Timestamp(_) => Ok(format!("timestamp({})", quoted(&value.to_string()))),
        Value::Duration(_) => Ok(format!("duration({})", quoted(&value.to_string()))),
        Value::Double(double) if double.is_finite() => Ok(format!("{double:.6}")),
        Value::Double(double) => Ok(quoted(&double_text(*double))),
        Value::Null
        | Value::Bool(_)
        | Value::Int(_)
        | Value::Uint(_)
        | Value::List(_)
        | Value::Map(_)
        | Value::Type(_) => shown(value),
        other => Err(format!("no formatting function for {}", other.type_name())),
    }
}

fn decimal(value: &Value) -> Result<String, String> {
    match value {
        Value::Int(_) | Value::Uint(_) => Ok(value.to_string()),
        other => Err(format!(
            "decimal clause can only be used on integers, was given {}",
            other.type_name()
        )),
    }
}

/// The number of a clause that shows fractions.
fn fraction(value: &Value, clause: &str) -> Result<f64, String> {
    match value {
        Value::Double(double) => Ok(*double),
        Value::String(text) => match text.as_ref() {
            "NaN" => Ok(f64::NAN),
            "Infinity" => Ok(f64::INFINITY),
            "-Infinity" => Ok(f64::NEG_INFINITY),
            _ => Err(format!(
                "{clause} clause can only be used on doubles, was given string"
            )),
        },
        other => Err(format!(
            "{clause} clause can only be used on doubles, was given {}",
            other.type_name()
        )),
    }
}

fn infinite(double: f64) -> Option<&'static str> {
    if double.is_nan() {
        return Some("NaN");
    }
    match double {
        f64::INFINITY => Some("∞"),
        f64::NEG_INFINITY => Some("-∞"),
        _ => None,
    }
}

fn fixed(double: f64, precision: usize) -> String {
    if let Some(text) = infinite(double) {
        return text.to_owned();
    }
    let plain = format!("{:.precision$}", double.abs());
    let (whole, rest) = plain
        .split_at_checked(plain.find('.').unwrap_or(plain.len()))
        .unwrap_or((&plain, ""));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    let sign = if double.is_sign_negative() { "-" } else { "" };
    format!("{sign}{grouped}{rest}")
}

fn scientific(double: f64, precision: usize) -> String {
    if let Some(text) = infinite(double) {
        return text.to_owned();
    }
    let text = format!("{double:.precision$e}");
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let sign = if exponent.starts_with('-') { "⁻" } else { "" };
    let exponent: String = format!("{:0>2}", exponent.trim_start_matches('-'))
        .chars()
        .filter_map(|digit| SUPERSCRIPTS.get(digit.to_digit(10)? as usize))
        .collect();
    format!("{digits}\u{202f}×\u{202f}10{sign}{exponent}")
}

fn signed(int: i64, digits: impl Fn(u64) -> String) -> String {
    let sign = if int < 0 { "-" } else { "" };
    format!("{sign}{}", digits(int.unsigned_abs()))
}

fn binary(value: &Value) -> Result<String, String> {
    match value {
        Value::Bool(bool) => Ok(i32::from(*bool).to_string()),
        Value::Int(int) => Ok(signed(*int, |digits| format!("{digits:b}"))),
        Value::Uint(uint) => Ok(format!("{uint:b}")),
        other => Err(format!(
            "only integers and bools can be formatted as binary, was given {}",
            other.type_name()
        )),
    }
}

fn octal(value: &Value) -> Result<String, String> {
    match value {
        Value::Int(int) => Ok(signed(*int, |digits| format!("{digits:o}"))),
        Value::Uint(uint) => Ok(format!("{uint:o}")),
        other => Err(format!(
            "octal clause can only be used on integers, was given {}",
            other.type_name()
        )),
    }
}

fn hexadecimal(value: &Value, upper: bool) -> Result<String, String> {
    let bytes = |bytes: &[u8]| {
        let digits = |byte: u8| [byte >> 4, byte & 15].map(|digit| char::from_digit(digit.into(), 16));
        bytes
            .iter()
            .flat_map(|byte| digits(*byte))
            .flatten()
            .collect::<String>()
    };
    let lower = match value {
        Value::Int(int) => signed(*int, |digits| format!("{digits:x}")),
        Value::Uint(uint) => format!("{uint:x}"),
        Value::String(text) => bytes(text.as_bytes()),
        Value::Bytes(content) => bytes(content),
        other => {
            return Err(format!(
                "only integers, byte buffers, and strings can be formatted as hex, was given {}",
                other.type_name()
            ));
        }
    };
    Ok(if upper { lower.to_uppercase() } else { lower })
}
