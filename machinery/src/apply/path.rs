//! Paths of fields in an object, as used by field ownership: by field name, by key fields, by value, by position.

use std::cmp::Ordering;
use std::fmt::{self, Display, Formatter};

use serde_json::{Number, Value};

/// One step of a path.
///
/// Elements are sorted as in `FieldsV1`: fields, then keys, then values, then positions. Numbers are compared
/// numerically: key 80 equals key 80.0.
#[derive(Debug, Clone)]
pub enum PathElement {
    /// A field of a struct or a key of a map.
    Field(String),
    /// The item of a list map with these key fields, sorted by name.
    Key(Vec<(String, Value)>),
    /// The item of a set with this value.
    Value(Value),
    /// The item at a position. May be decoded, but is never produced.
    Index(i64),
}

/// Why a key of a `FieldsV1` object is not a path element.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ElementError {
    /// It has fewer than two bytes.
    #[error("key must be 2 characters long: {0}")]
    TooShort(String),
    /// The second byte is not a colon.
    #[error("missing colon: {0}")]
    NoColon(String),
    /// The text after the prefix does not parse.
    #[error("{0}: not a valid path element")]
    Content(String),
}

impl PathElement {
    /// A field or a map key.
    pub(super) fn field(name: &str) -> Self {
        Self::Field(name.to_owned())
    }

    /// Parses a key of a `FieldsV1` object: `f:name`, `k:{"name":"a"}`, `v:"a"`, `i:0`. `None` for an unknown prefix;
    /// such keys are skipped with everything below them.
    ///
    /// # Errors
    ///
    /// [`ElementError`] if the text has no prefix, or its content does not parse.
    pub(super) fn parse(text: &str) -> Result<Option<Self>, ElementError> {
        if text.len() < 2 {
            return Err(ElementError::TooShort(text.to_owned()));
        }
        if text.as_bytes().get(1) != Some(&b':') {
            return Err(ElementError::NoColon(text.to_owned()));
        }
        let content = || ElementError::Content(text.to_owned());
        let (prefix, rest) = text.split_at(2);
        Ok(Some(match prefix {
            "f:" => Self::Field(rest.to_owned()),
            "v:" => Self::Value(serde_json::from_str(rest).map_err(|_| content())?),
            "k:" => {
                let Ok(Value::Object(fields)) = serde_json::from_str(rest) else {
                    return Err(content());
                };
                Self::Key(fields.into_iter().collect())
            }
            "i:" => Self::Index(rest.parse().map_err(|_| content())?),
            _ => return Ok(None),
        }))
    }

    /// The element as a key of a `FieldsV1` object.
    pub(super) fn encoded(&self) -> String {
        let mut text;
        match self {
            Self::Field(name) => {
                text = String::with_capacity(2 + name.len());
                text.push_str("f:");
                text.push_str(name);
            }
            Self::Key(fields) => {
                text = "k:{".to_owned();
                for (index, (name, value)) in fields.iter().enumerate() {
                    if index > 0 {
                        text.push(',');
                    }
                    push_quoted(&mut text, name);
                    text.push(':');
                    push_json(&mut text, value);
                }
                text.push('}');
            }
            Self::Value(value) => {
                text = "v:".to_owned();
                push_json(&mut text, value);
            }
            Self::Index(index) => text = format!("i:{index}"),
        }
        text
    }

    const fn rank(&self) -> u8 {
        match self {
            Self::Field(_) => 0,
            Self::Key(_) => 1,
            Self::Value(_) => 2,
            Self::Index(_) => 3,
        }
    }
}

fn push_json(text: &mut String, value: &Value) {
    match value {
        Value::String(inner) => push_quoted(text, inner),
        other => push_escaped(text, &other.to_string()),
    }
}

fn push_quoted(text: &mut String, inner: &str) {
    let plain = |byte: u8| byte >= 0x20 && !matches!(byte, b'"' | b'\\' | b'<' | b'>' | b'&' | 0x7f..);
    if inner.bytes().all(plain) {
        text.push('"');
        text.push_str(inner);
        text.push('"');
    } else {
        push_escaped(text, &Value::from(inner).to_string());
    }
}

/// Appends JSON with `<`, `>`, `&`, U+2028 and U+2029 escaped, as Go's encoder does.
fn push_escaped(text: &mut String, json: &str) {
    for char in json.chars() {
        match char {
            '<' => text.push_str("\\u003c"),
            '>' => text.push_str("\\u003e"),
            '&' => text.push_str("\\u0026"),
            '\u{2028}' => text.push_str("\\u2028"),
            '\u{2029}' => text.push_str("\\u2029"),
            _ => text.push(char),
        }
    }
}

impl Display for PathElement {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Key(fields) => {
                f.write_str("[")?;
                for (index, (name, value)) in fields.iter().enumerate() {
                    let comma = if index == 0 { "" } else { "," };
                    write!(f, "{comma}{name}={value}")?;
                }
                f.write_str("]")
            }
            Self::Value(value) => write!(f, "[={value}]"),
            Self::Index(index) => write!(f, "[{index}]"),
        }
    }
}

impl Ord for PathElement {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Field(left), Self::Field(right)) => left.cmp(right),
            (Self::Key(left), Self::Key(right)) => compare_each(
                left.iter(),
                right.iter(),
                |(left_name, left), (right_name, right)| {
                    left_name
                        .cmp(right_name)
                        .then_with(|| compare_values(left, right))
                },
            ),
            (Self::Value(left), Self::Value(right)) => compare_values(left, right),
            (Self::Index(left), Self::Index(right)) => left.cmp(right),
            _ => self.rank().cmp(&other.rank()),
        }
    }
}

impl PartialOrd for PathElement {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for PathElement {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for PathElement {}

/// A path from the root of an object. `Display` prints the form of conflict messages: `.spec.requesters[name="a"]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path(pub Vec<PathElement>);

impl Path {
    /// A path of fields: `["spec", "type"]`.
    pub(super) fn fields(names: &[&str]) -> Self {
        Self(names.iter().map(|name| PathElement::field(name)).collect())
    }
}

impl Display for Path {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|element| element.fmt(f))
    }
}

/// The order of values in field sets: numbers, strings, booleans, lists, maps, null.
pub(super) fn compare_values(left: &Value, right: &Value) -> Ordering {
    const fn rank(value: &Value) -> u8 {
        match value {
            Value::Number(_) => 0,
            Value::String(_) => 1,
            Value::Bool(_) => 2,
            Value::Array(_) => 3,
            Value::Object(_) => 4,
            Value::Null => 5,
        }
    }
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => compare_numbers(left, right),
        (Value::String(left), Value::String(right)) => left.cmp(right),
        (Value::Bool(left), Value::Bool(right)) => left.cmp(right),
        (Value::Array(left), Value::Array(right)) => compare_each(left.iter(), right.iter(), compare_values),
        (Value::Object(left), Value::Object(right)) => compare_each(
            left.iter(),
            right.iter(),
            |(left_key, left), (right_key, right)| {
                left_key.cmp(right_key).then_with(|| compare_values(left, right))
            },
        ),
        _ => rank(left).cmp(&rank(right)),
    }
}

fn compare_each<T>(
    mut left: impl Iterator<Item = T>,
    mut right: impl Iterator<Item = T>,
    compare: impl Fn(T, T) -> Ordering,
) -> Ordering {
    loop {
        match (left.next(), right.next()) {
            (None, None) => return Ordering::Equal,
            (None, Some(_)) => return Ordering::Less,
            (Some(_), None) => return Ordering::Greater,
            (Some(left), Some(right)) => match compare(left, right) {
                Ordering::Equal => {}
                unequal => return unequal,
            },
        }
    }
}

fn compare_numbers(left: &Number, right: &Number) -> Ordering {
    let integer = |number: &Number| {
        number
            .as_i64()
            .map(i128::from)
            .or_else(|| number.as_u64().map(i128::from))
    };
    if let (Some(left), Some(right)) = (integer(left), integer(right)) {
        return left.cmp(&right);
    }
    // Adding zero maps -0.0 to 0.0.
    let float = |number: &Number| number.as_f64().unwrap_or_default() + 0.0;
    float(left).total_cmp(&float(right))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn elements_survive_encoding_and_parsing() {
        for (element, encoded, shown) in [
            (
                PathElement::field("kubectl.kubernetes.io/x"),
                "f:kubectl.kubernetes.io/x",
                ".kubectl.kubernetes.io/x",
            ),
            (
                PathElement::Key(vec![
                    ("port".to_owned(), json!(80)),
                    ("protocol".to_owned(), json!("TCP")),
                ]),
                r#"k:{"port":80,"protocol":"TCP"}"#,
                r#"[port=80,protocol="TCP"]"#,
            ),
            (
                PathElement::Value(json!("a.io/f")),
                r#"v:"a.io/f""#,
                r#"[="a.io/f"]"#,
            ),
            (PathElement::Value(json!(8080)), "v:8080", "[=8080]"),
            (PathElement::Value(json!(true)), "v:true", "[=true]"),
            (
                PathElement::Value(json!("<a>&\u{2028}é\n")),
                "v:\"\\u003ca\\u003e\\u0026\\u2028é\\n\"",
                "[=\"<a>&\u{2028}é\\n\"]",
            ),
            (PathElement::Index(3), "i:3", "[3]"),
        ] {
            assert_eq!(element.encoded(), encoded);
            assert_eq!(PathElement::parse(encoded).unwrap().unwrap(), element);
            assert_eq!(element.to_string(), shown);
        }
    }

    #[test]
    fn spellings_of_one_element_are_equal() {
        let parse = |text: &str| PathElement::parse(text).unwrap().unwrap();
        assert_eq!(parse("v:\"<\""), parse("v:\"\\u003c\""));
        assert_eq!(parse(r#"k:{"b":1,"a":80}"#), parse(r#"k:{ "a": 80.0, "b": 1 }"#));
        assert_eq!(parse("v:-0.0"), parse("v:0"));
    }

    #[test]
    fn unknown_prefixes_are_skipped_and_malformed_keys_rejected() {
        assert_eq!(PathElement::parse("x:anything"), Ok(None));
        for text in ["", "f", "spec", "v:", "k:[]", "k:{", "i:x"] {
            assert!(PathElement::parse(text).is_err(), "{text}");
        }
        assert_eq!(PathElement::parse("f:").unwrap(), Some(PathElement::field("")));
        assert!(PathElement::parse("é").is_err());
    }

    #[test]
    fn elements_are_sorted_as_in_fields_v1() {
        let texts = [
            "f:a",
            "f:b",
            r#"k:{"name":"a"}"#,
            r#"k:{"name":"a","port":1}"#,
            r#"k:{"port":9}"#,
            r#"k:{"port":80}"#,
            "v:-1",
            "v:1.5",
            "v:2",
            "v:10",
            r#"v:"1""#,
            "v:false",
            "v:true",
            "v:[]",
            "v:{}",
            "v:null",
            "i:0",
        ];
        let elements: Vec<_> = texts
            .iter()
            .map(|text| PathElement::parse(text).unwrap().unwrap())
            .collect();
        assert!(elements.is_sorted());
        for pair in elements.windows(2) {
            assert_ne!(pair[0], pair[1]);
        }
    }
}
