//! Texts: the standard functions and the extended library of strings. Positions count characters.

use std::sync::Arc;

use super::{Function, Style, no_overload, text_format};
use crate::policy_expression::meter::{Failure, Meter, Outcome};
use crate::policy_expression::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    ("charAt", Style::Member, 1, 1),
    ("contains", Style::Member, 1, 1),
    ("endsWith", Style::Member, 1, 1),
    ("format", Style::Member, 1, 1),
    ("indexOf", Style::Member, 1, 2),
    ("join", Style::Member, 0, 1),
    ("jsonpatch.escapeKey", Style::Member, 1, 1),
    ("lastIndexOf", Style::Member, 1, 2),
    ("lowerAscii", Style::Member, 0, 0),
    ("replace", Style::Member, 2, 3),
    ("split", Style::Member, 1, 2),
    ("startsWith", Style::Member, 1, 1),
    ("strings.quote", Style::Member, 1, 1),
    ("substring", Style::Member, 1, 2),
    ("trim", Style::Member, 0, 0),
    ("upperAscii", Style::Member, 0, 0),
];

/// The largest text that a function may make, in bytes.
pub(super) const MAX_BYTES: usize = 8 * 1024 * 1024;

pub(super) fn call(name: &str, arguments: &[Value], meter: &mut Meter<'_>) -> Outcome {
    if name == "join" {
        return join(arguments, meter);
    }
    let [Value::String(text), rest @ ..] = arguments else {
        return Err(no_overload(name, arguments));
    };
    match (name, rest) {
        ("contains", [Value::String(other)]) => Ok(text.contains(other.as_ref()).into()),
        ("startsWith", [Value::String(other)]) => Ok(text.starts_with(other.as_ref()).into()),
        ("endsWith", [Value::String(other)]) => Ok(text.ends_with(other.as_ref()).into()),
        ("lowerAscii", []) => Ok(text.to_ascii_lowercase().into()),
        ("upperAscii", []) => Ok(text.to_ascii_uppercase().into()),
        ("trim", []) => Ok(text.trim().into()),
        ("charAt", [Value::Int(at)]) => char_at(text, *at),
        ("indexOf", [Value::String(other)]) => index_of(text, other, 0),
        ("indexOf", [Value::String(other), Value::Int(from)]) => index_of(text, other, *from),
        ("lastIndexOf", [Value::String(other)]) => last_index_of(text, other, None),
        ("lastIndexOf", [Value::String(other), Value::Int(from)]) => last_index_of(text, other, Some(*from)),
        ("replace", [Value::String(old), Value::String(new)]) => replace(text, old, new, -1),
        ("replace", [Value::String(old), Value::String(new), Value::Int(count)]) => {
            replace(text, old, new, *count)
        }
        ("split", [Value::String(separator)]) => split(text, separator, -1, meter),
        ("split", [Value::String(separator), Value::Int(count)]) => split(text, separator, *count, meter),
        ("substring", [Value::Int(start)]) => {
            let start = position(text, *start)?;
            Ok(text.chars().skip(start).collect::<String>().into())
        }
        ("substring", [Value::Int(start), Value::Int(end)]) => substring(text, *start, *end),
        ("format", [Value::List(values)]) => text_format::format(text, values, meter),
        ("strings.quote", []) => Ok(quoted(text).into()),
        ("jsonpatch.escapeKey", []) => Ok(text.replace('~', "~0").replace('/', "~1").into()),
        _ => Err(no_overload(name, arguments)),
    }
}

fn out_of_range(index: i64) -> Failure {
    Failure::Error(format!("index out of range: {index}"))
}

/// A position in characters, which may be the end of the text.
fn position(text: &str, index: i64) -> Result<usize, Failure> {
    let length = text.chars().count();
    usize::try_from(index)
        .ok()
        .filter(|index| *index <= length)
        .ok_or_else(|| out_of_range(index))
}

fn char_at(text: &str, at: i64) -> Outcome {
    let at = position(text, at)?;
    Ok(text.chars().skip(at).take(1).collect::<String>().into())
}

/// The position in characters of a byte position.
fn characters(text: &str, bytes: usize) -> i64 {
    let count = text.get(..bytes).map_or(0, |before| before.chars().count());
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn byte_position(text: &str, characters: usize) -> usize {
    text.char_indices()
        .nth(characters)
        .map_or(text.len(), |(at, _)| at)
}

/// The position of the first occurrence from a position on, or -1.
fn index_of(text: &str, other: &str, from: i64) -> Outcome {
    let start = usize::try_from(from).map_err(|_| out_of_range(from))?;
    let length = text.chars().count();
    if other.is_empty() {
        return Ok(start.min(length).into());
    }
    let start = byte_position(text, start);
    let found = text.get(start..).and_then(|rest| rest.find(other));
    Ok(Value::Int(found.map_or(-1, |at| characters(text, start + at))))
}

/// The position of the last occurrence that does not begin after a position, or -1.
fn last_index_of(text: &str, other: &str, from: Option<i64>) -> Outcome {
    let length = text.chars().count();
    let from = match from {
        None => length,
        Some(from) => match usize::try_from(from).map_err(|_| out_of_range(from))? {
            from if other.is_empty() => return Ok(from.min(length).into()),
            from if from >= length => return Ok(Value::Int(-1)),
            from => from,
        },
    };
    let end = byte_position(text, from)
        .saturating_add(other.len())
        .min(text.len());
    // Cut within a character, `other` cannot end there.
    let end = (0..=end)
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or_default();
    let found = text.get(..end).and_then(|before| before.rfind(other));
    Ok(Value::Int(found.map_or(-1, |at| characters(text, at))))
}

fn replace(text: &str, old: &str, new: &str, count: i64) -> Outcome {
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let matches = text.matches(old).take(count).count();
    let grown = text.len().saturating_add(matches.saturating_mul(new.len()));
    if grown > MAX_BYTES {
        return Err(Failure::CostLimit);
    }
    Ok(text.replacen(old, new, count).into())
}

fn split(text: &str, separator: &str, count: i64, meter: &mut Meter<'_>) -> Outcome {
    let parts: Vec<Value> = match (usize::try_from(count), separator) {
        (Ok(0), _) => Vec::new(),
        (Ok(count), "") => {
            let mut rest = text;
            let mut parts = Vec::new();
            while let Some(first) = rest.chars().next().filter(|_| parts.len() + 1 < count) {
                let (head, tail) = rest.split_at_checked(first.len_utf8()).unwrap_or((rest, ""));
                parts.push(Value::from(head));
                rest = tail;
            }
            if !rest.is_empty() {
                parts.push(rest.into());
            }
            parts
        }
        (Err(_), "") => text
            .chars()
            .map(|character| character.to_string().into())
            .collect(),
        (Ok(count), separator) => text.splitn(count, separator).map(Value::from).collect(),
        (Err(_), separator) => text.split(separator).map(Value::from).collect(),
    };
    meter.work(parts.len() as u64)?;
    Ok(parts.into())
}

fn substring(text: &str, start: i64, end: i64) -> Outcome {
    if start > end {
        return Err(Failure::Error(format!(
            "invalid substring range. start: {start}, end: {end}"
        )));
    }
    let (from, to) = (position(text, start)?, position(text, end)?);
    Ok(text.chars().skip(from).take(to - from).collect::<String>().into())
}

fn join(arguments: &[Value], meter: &mut Meter<'_>) -> Outcome {
    let (items, separator): (&Arc<Vec<Value>>, &str) = match arguments {
        [Value::List(items)] => (items, ""),
        [Value::List(items), Value::String(separator)] => (items, separator),
        _ => return Err(no_overload("join", arguments)),
    };
    let mut out = String::new();
    for (index, item) in items.iter().enumerate() {
        let Value::String(item) = item else {
            return Err(Failure::Error(format!("join: invalid input: {item}")));
        };
        meter.work((item.len() + separator.len()) as u64)?;
        if index > 0 {
            out.push_str(separator);
        }
        out.push_str(item);
        if out.len() > MAX_BYTES {
            return Err(Failure::CostLimit);
        }
    }
    Ok(out.into())
}

/// The text in quotes, with escapes for what would not print.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            other => out.push(other),
        }
    }
    out.push('"');
    out
}
