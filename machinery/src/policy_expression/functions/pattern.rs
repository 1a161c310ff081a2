//! Regular expressions. Patterns have the syntax of RE2, in which classes such as `\d` are ASCII.

use regex::{Regex, RegexBuilder};

use super::{Function, Style, no_overload};
use crate::policy_expression::meter::{Meter, Outcome};
use crate::policy_expression::value::Value;

pub(super) const FUNCTIONS: &[Function] = &[
    ("find", Style::Member, 1, 1),
    ("findAll", Style::Member, 1, 2),
    ("matches", Style::Member, 1, 1),
    ("matches", Style::Global, 2, 2),
];

/// The longest pattern, in bytes.
const MAX_BYTES: usize = 4 * 1024;
/// The memory of a compiled pattern, and of its states during a search, in bytes.
const MAX_COMPILED_BYTES: usize = 1024 * 1024;

pub(super) fn call(name: &str, arguments: &[Value], meter: &mut Meter<'_>) -> Outcome {
    let [Value::String(text), Value::String(pattern), rest @ ..] = arguments else {
        return Err(no_overload(name, arguments));
    };
    let regex = meter.pattern(pattern)?;
    match (name, rest) {
        ("matches", []) => Ok(regex.is_match(text).into()),
        ("find", []) => Ok(Value::from(regex.find(text).map_or("", |found| found.as_str()))),
        ("findAll", []) => Ok(find_all(&regex, text, usize::MAX)),
        ("findAll", [Value::Int(limit)]) => Ok(find_all(
            &regex,
            text,
            usize::try_from(*limit).unwrap_or(usize::MAX),
        )),
        _ => Err(no_overload(name, arguments)),
    }
}

fn find_all(regex: &Regex, text: &str, limit: usize) -> Value {
    let found: Vec<Value> = regex
        .find_iter(text)
        .take(limit)
        .map(|found| found.as_str().into())
        .collect();
    found.into()
}

/// Compiles a pattern.
pub(in crate::policy_expression) fn compile(pattern: &str) -> Result<Regex, String> {
    if pattern.len() > MAX_BYTES {
        return Err(format!("a pattern may not be more than {MAX_BYTES} bytes"));
    }
    RegexBuilder::new(&translate(pattern))
        .size_limit(MAX_COMPILED_BYTES)
        .dfa_size_limit(MAX_COMPILED_BYTES)
        .build()
        .map_err(|_| format!("error parsing regexp: `{pattern}`"))
}

/// The pattern in the syntax of the regex library: classes are written out, and characters that only that library gives a
/// meaning within brackets are escaped.
fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut characters = pattern.chars().peekable();
    let mut in_brackets = false;
    while let Some(character) = characters.next() {
        match (character, in_brackets) {
            ('\\', _) => escape(&mut out, &mut characters, in_brackets),
            ('[', false) => {
                out.push('[');
                if characters.next_if_eq(&'^').is_some() {
                    out.push('^');
                }
                // A bracket that comes first stands for itself.
                if characters.next_if_eq(&']').is_some() {
                    out.push_str("\\]");
                }
                in_brackets = true;
            }
            ('[', true) if characters.peek() == Some(&':') => {
                // A named class, such as `[:alpha:]`.
                out.push('[');
                for character in characters.by_ref() {
                    out.push(character);
                    if character == ']' {
                        break;
                    }
                }
            }
            ('[' | '&' | '~', true) => {
                out.push('\\');
                out.push(character);
            }
            (']', true) => {
                out.push(']');
                in_brackets = false;
            }
            (other, _) => out.push(other),
        }
    }
    out
}

/// Writes the escape that begins with the next character.
fn escape(out: &mut String, rest: &mut std::iter::Peekable<std::str::Chars<'_>>, in_brackets: bool) {
    match rest.next() {
        Some('d') => out.push_str("[0-9]"),
        Some('D') => out.push_str("[^0-9]"),
        Some('w') => out.push_str("[0-9A-Za-z_]"),
        Some('W') => out.push_str("[^0-9A-Za-z_]"),
        Some('s') => out.push_str(r"[\t\n\f\r ]"),
        Some('S') => out.push_str(r"[^\t\n\f\r ]"),
        Some('b') if !in_brackets => out.push_str(r"(?-u:\b)"),
        Some('Q') => {
            // Everything up to \E is taken literally.
            let mut literal = String::new();
            while let Some(character) = rest.next() {
                if character == '\\' && rest.next_if_eq(&'E').is_some() {
                    break;
                }
                literal.push(character);
            }
            out.push_str(&regex::escape(&literal));
        }
        Some(other) => {
            out.push('\\');
            out.push(other);
        }
        None => out.push('\\'),
    }
}
