//! Semantic versions.

use std::sync::Arc;

use semver::Version;

use super::{Function, Style, no_overload};
use crate::policy_expression::meter::{Failure, Meter, Outcome};
use crate::policy_expression::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    ("compareTo", Style::Member, 1, 1),
    ("isGreaterThan", Style::Member, 1, 1),
    ("isLessThan", Style::Member, 1, 1),
    ("isSemver", Style::Global, 1, 2),
    ("major", Style::Member, 0, 0),
    ("minor", Style::Member, 0, 0),
    ("patch", Style::Member, 0, 0),
    ("semver", Style::Global, 1, 2),
];

pub(super) fn call(name: &str, arguments: &[Value], _: &mut Meter<'_>) -> Outcome {
    match (name, arguments) {
        ("isSemver", [Value::String(text)]) => Ok(Version::parse(text).is_ok().into()),
        ("isSemver", [Value::String(text), Value::Bool(normalize)]) => {
            Ok(parse(text, *normalize).is_ok().into())
        }
        ("semver", [Value::String(text)]) => parse(text, false),
        ("semver", [Value::String(text), Value::Bool(normalize)]) => parse(text, *normalize),
        ("major", [Value::Semver(version)]) => Ok(number(version.major)),
        ("minor", [Value::Semver(version)]) => Ok(number(version.minor)),
        ("patch", [Value::Semver(version)]) => Ok(number(version.patch)),
        ("compareTo", [Value::Semver(a), Value::Semver(b)]) => Ok(Value::Int(a.cmp_precedence(b) as i64)),
        ("isGreaterThan", [Value::Semver(a), Value::Semver(b)]) => Ok(a.cmp_precedence(b).is_gt().into()),
        ("isLessThan", [Value::Semver(a), Value::Semver(b)]) => Ok(a.cmp_precedence(b).is_lt().into()),
        _ => Err(no_overload(name, arguments)),
    }
}

fn number(number: u64) -> Value {
    Value::Int(i64::try_from(number).unwrap_or(i64::MAX))
}

fn parse(text: &str, normalize: bool) -> Outcome {
    let text = if normalize {
        normalized(text)
    } else {
        text.to_owned()
    };
    Version::parse(&text)
        .map(|version| Value::Semver(Arc::new(version)))
        .map_err(|error| Failure::Error(format!("invalid semver: {error}")))
}

/// The text with three numbers without leading zeros, and without the `v` before them.
fn normalized(text: &str) -> String {
    let text = text.strip_prefix('v').unwrap_or(text);
    let end = text.find(['-', '+']).unwrap_or(text.len());
    let (numbers, rest) = text.split_at_checked(end).unwrap_or((text, ""));
    let mut parts: Vec<&str> = numbers
        .split('.')
        .map(|part| {
            let trimmed = part.trim_start_matches('0');
            if trimmed.is_empty() && !part.is_empty() {
                "0"
            } else {
                trimmed
            }
        })
        .collect();
    while parts.len() < 3 {
        parts.push("0");
    }
    format!("{}{rest}", parts.join("."))
}
