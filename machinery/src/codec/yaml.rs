//! YAML decoding as in Kubernetes: only the first document, YAML 1.1 scalars, aliases within a budget.

use std::fmt;
use std::io::Cursor;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value, map::Entry};
use serde_saphyr::options::DuplicateKeyPolicy;
use serde_saphyr::{Options, Spanned};

use super::strict::MAX_KEY_BYTES;
use super::{DecodeError, Decoded, StrictError};
use crate::excerpt;
use crate::field_error::MAX_ERRORS;

/// The maximum number of nodes of a document, expanded aliases included.
const MAX_NODES: usize = 20_000;
/// The maximum number of aliases of a document.
const MAX_ALIASES: usize = 100;
/// The maximum nesting.
const MAX_DEPTH: usize = 64;
/// The maximum nesting of brackets in the scanner. Larger than [`MAX_DEPTH`], so that the latter decides.
const MAX_BRACKET_DEPTH: usize = 4_096;

/// Decodes the first document of a YAML text and ignores the rest. JSON is valid YAML.
///
/// Whole floats become integers, keys become strings, and an empty text is `null`. Of a duplicate key the last value is
/// used; [`Decoded::duplicates`] contains its line.
///
/// # Errors
///
/// [`DecodeError::Yaml`] if the text is not YAML, or contains null keys or infinite numbers;
/// [`DecodeError::ExcessiveAliasing`] above 20,000 nodes or 100 aliases; [`DecodeError::TooDeep`] above 64 levels.
pub fn decode(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    match decode_json(bytes) {
        Some(value) => Ok(Decoded {
            value,
            duplicates: Vec::new(),
        }),
        None => decode_document(bytes),
    }
}

/// The value of a text that is JSON and means the same in YAML, which takes many times as long to scan. Clients that apply
/// objects send such texts. `None` for others, and for what may mean something else: escapes, characters that YAML does
/// not allow, numbers that are no 64-bit integers, merge keys, duplicates, and what exceeds the limits.
fn decode_json(bytes: &[u8]) -> Option<Value> {
    let is_plain = |byte: &u8| matches!(byte, b' '..=b'~' | b'\n') && *byte != b'\\';
    if !bytes.trim_ascii_start().starts_with(b"{") || !bytes.iter().all(is_plain) {
        return None;
    }
    let decoded = super::json::decode(bytes).ok()?;
    let mut nodes = MAX_NODES;
    (decoded.duplicates.is_empty() && is_same_in_yaml(&decoded.value, MAX_DEPTH, &mut nodes))
        .then_some(decoded.value)
}

fn is_same_in_yaml(value: &Value, depth: usize, nodes: &mut usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else {
        return false;
    };
    // A member has two nodes: its key is one.
    let count = match value {
        Value::Object(members) => 1 + members.len(),
        _ => 1,
    };
    let Some(left) = nodes.checked_sub(count) else {
        return false;
    };
    *nodes = left;
    match value {
        Value::Number(number) => number.is_i64(),
        Value::Array(items) => items.iter().all(|item| is_same_in_yaml(item, depth, nodes)),
        Value::Object(members) => members.iter().all(|(key, member)| {
            key != "<<" && key.len() < MAX_KEY_BYTES && is_same_in_yaml(member, depth, nodes)
        }),
        Value::Null | Value::Bool(_) | Value::String(_) => true,
    }
}

fn decode_document(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let mut reader = Cursor::new(bytes);
    let mut documents = serde_saphyr::read_with_options::<_, Node>(&mut reader, options());
    match documents.next() {
        Some(Ok(node)) => Ok(Decoded {
            value: node.value,
            duplicates: node.duplicates,
        }),
        Some(Err(error)) => Err(decode_error(&error)),
        None => Ok(Decoded {
            value: Value::Null,
            duplicates: Vec::new(),
        }),
    }
}

fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_nodes: MAX_NODES,
            max_events: 2 * MAX_NODES,
            max_aliases: MAX_ALIASES,
            max_anchors: MAX_ALIASES,
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_BRACKET_DEPTH,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 2 * MAX_NODES },
        duplicate_keys: DuplicateKeyPolicy::PassThrough,
        legacy_octal_numbers: true,
        strict_booleans: false,
        reject_unsupported_tags: true,
        with_snippet: false,
    }
}

fn decode_error(error: &serde_saphyr::Error) -> DecodeError {
    use serde_saphyr::budget::BudgetBreach;
    match error.without_snippet() {
        serde_saphyr::Error::AliasError { error, .. } => decode_error(error),
        serde_saphyr::Error::Budget {
            breach: BudgetBreach::Depth { .. },
            ..
        } => DecodeError::TooDeep,
        serde_saphyr::Error::Budget { .. }
        | serde_saphyr::Error::AliasReplayLimitExceeded { .. }
        | serde_saphyr::Error::AliasExpansionLimitExceeded { .. }
        | serde_saphyr::Error::AliasReplayStackDepthExceeded { .. } => DecodeError::ExcessiveAliasing,
        other => DecodeError::Yaml(other.to_string()),
    }
}

/// A decoded value, with the duplicate keys inside it.
struct Node {
    value: Value,
    duplicates: Vec<StrictError>,
}

impl From<Value> for Node {
    fn from(value: Value) -> Self {
        Self {
            value,
            duplicates: Vec::new(),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value that is representable as JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Value::Bool(value).into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Value::Number(value.into()).into())
    }

    #[expect(clippy::cast_precision_loss, reason = "integers beyond 64 bits become floats")]
    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<Node, E> {
        match i64::try_from(value) {
            Ok(value) => self.visit_i64(value),
            Err(_) => number(value as f64),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "integers beyond 64 bits become floats")]
    fn visit_i128<E: serde::de::Error>(self, value: i128) -> Result<Node, E> {
        number(value as f64)
    }

    #[expect(clippy::cast_precision_loss, reason = "integers beyond 64 bits become floats")]
    fn visit_u128<E: serde::de::Error>(self, value: u128) -> Result<Node, E> {
        number(value as f64)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Node, E> {
        match whole(value) {
            Some(value) => self.visit_i64(value),
            None => number(value),
        }
    }

    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Value::String(value.to_owned()).into())
    }

    fn visit_string<E>(self, value: String) -> Result<Node, E> {
        Ok(Value::String(value).into())
    }

    fn visit_bytes<E>(self, value: &[u8]) -> Result<Node, E> {
        Ok(Value::String(String::from_utf8_lossy(value).into_owned()).into())
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Value::Null.into())
    }

    fn visit_none<E>(self) -> Result<Node, E> {
        Ok(Value::Null.into())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut list = Vec::new();
        let mut duplicates = Vec::new();
        while let Some(mut node) = seq.next_element::<Node>()? {
            duplicates.append(&mut node.duplicates);
            list.push(node.value);
        }
        Ok(Node {
            value: Value::Array(list),
            duplicates,
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Node, A::Error> {
        let mut map = Map::new();
        let mut duplicates = Vec::new();
        while let Some(Key(key)) = access.next_key::<Key>()? {
            let Spanned {
                value: mut node,
                referenced,
                ..
            } = access.next_value::<Spanned<Node>>()?;
            match map.entry(key) {
                Entry::Vacant(vacant) => {
                    vacant.insert(node.value);
                }
                Entry::Occupied(mut occupied) => {
                    // Limits the memory that a body full of duplicate keys can use.
                    if duplicates.len() < MAX_ERRORS {
                        duplicates.push(StrictError::DuplicateKey {
                            line: referenced.line(),
                            key: excerpt::cut(occupied.key(), MAX_KEY_BYTES).into_owned(),
                        });
                    }
                    occupied.insert(node.value);
                }
            }
            duplicates.append(&mut node.duplicates);
        }
        Ok(Node {
            value: Value::Object(map),
            duplicates,
        })
    }
}

fn number<E: serde::de::Error>(value: f64) -> Result<Node, E> {
    Number::from_f64(value)
        .map(|number| Value::Number(number).into())
        .ok_or_else(|| E::custom("json: unsupported value: not a finite number"))
}

/// The integer equal to a float, if it is a 64-bit integer.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "the range is checked, and only exact integers are converted"
)]
fn whole(value: f64) -> Option<i64> {
    (value.fract() == 0.0 && value >= i64::MIN as f64 && value < i64::MAX as f64).then_some(value as i64)
}

/// A mapping key as a string.
struct Key(String);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Node::deserialize(deserializer)?.value {
            Value::String(text) => Ok(Self(text)),
            Value::Bool(value) => Ok(Self(value.to_string())),
            Value::Number(number) => Ok(Self(number.to_string())),
            Value::Null | Value::Array(_) | Value::Object(_) => Err(D::Error::custom(
                "unsupported map key: not a string, number or boolean",
            )),
        }
    }
}

/// Fuzz target: decoding must neither panic nor take long.
pub fn fuzz_decode(bytes: &[u8]) {
    if let Ok(decoded) = decode(bytes) {
        drop(super::encode(&decoded.value));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn check(text: &str, expected: &Value) {
        assert_eq!(&decode(text.as_bytes()).expect(text).value, expected, "{text}");
    }

    #[test]
    fn scalars_are_those_of_yaml_1_1() {
        for (text, expected) in [
            ("yes", json!(true)),
            ("No", json!(false)),
            ("on", json!(true)),
            ("\"yes\"", json!("yes")),
            ("010", json!(8)),
            ("0o10", json!(8)),
            ("0x10", json!(16)),
            ("0b11", json!(3)),
            ("1_000", json!(1000)),
            ("1e3", json!(1000)),
            ("1.0", json!(1)),
            ("1.5", json!(1.5)),
            ("9223372036854775808", json!(9_223_372_036_854_775_808_f64)),
            ("1:30", json!("1:30")),
            ("2026-01-02T03:04:05Z", json!("2026-01-02T03:04:05Z")),
            ("~", Value::Null),
            ("", Value::Null),
            ("!!binary aGk=", json!("hi")),
        ] {
            check(&format!("a: {text}\n"), &json!({ "a": expected }));
        }
    }

    #[test]
    fn keys_become_strings() {
        check(
            "y: 1\n2: b\nplain: c\n",
            &json!({"true": 1, "2": "b", "plain": "c"}),
        );
        assert!(decode(b"~: 1\n").is_err());
    }

    #[test]
    fn only_the_first_document_is_decoded() {
        check("a: 1\n---\nb: 2\n", &json!({"a": 1}));
        check("---\na: 1\n...\n]garbage[\n", &json!({"a": 1}));
        check("\u{feff}a: 1\n", &json!({"a": 1}));
        check("", &Value::Null);
        check("null\n", &Value::Null);
        check(r#"{"a": [1, {"b": null}]}"#, &json!({"a": [1, {"b": null}]}));
    }

    #[test]
    fn duplicate_keys_are_reported_with_the_line_of_the_second_value() {
        let decoded = decode(b"a: 1\na: 2\nb:\n  c: 1\n  d: 2\n  c: 3\n").unwrap();
        assert_eq!(decoded.value, json!({"a": 2, "b": {"c": 3, "d": 2}}));
        let texts: Vec<_> = decoded.duplicates.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "line 2: key \"a\" already set in map",
                "line 6: key \"c\" already set in map"
            ]
        );
        let decoded = decode(br#"{"a":1,"a":2}"#).unwrap();
        assert_eq!(
            decoded.duplicates[0].to_string(),
            "line 1: key \"a\" already set in map"
        );
    }

    #[test]
    fn anchors_and_merges_work() {
        check(
            "a: &a {x: 1, z: 2}\nb: *a\nc:\n  <<: *a\n  x: 3\n",
            &json!({"a": {"x": 1, "z": 2}, "b": {"x": 1, "z": 2}, "c": {"x": 3, "z": 2}}),
        );
    }

    #[test]
    fn alias_bombs_are_rejected() {
        use std::fmt::Write;
        let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let alias = format!("*a{}", level - 1);
            writeln!(bomb, "a{level}: &a{level} [{}]", [alias.as_str(); 10].join(", ")).unwrap();
        }
        assert_eq!(decode(bomb.as_bytes()), Err(DecodeError::ExcessiveAliasing));
    }

    #[test]
    fn deep_nesting_and_invalid_text_are_rejected() {
        assert_eq!(decode("[".repeat(100_000).as_bytes()), Err(DecodeError::TooDeep));
        for text in ["a: .inf\n", "a: .nan\n", "a: [\n", "a: b: c\n", "a: !custom x\n"] {
            let error = decode(text.as_bytes()).expect_err(text);
            assert!(
                error
                    .to_string()
                    .starts_with("error converting YAML to JSON: yaml: "),
                "{error}"
            );
        }
    }

    #[test]
    fn json_that_may_mean_something_else_is_read_as_yaml() {
        for text in [
            r#"{"a": "\u0041"}"#,
            r#"{"a": 1.0}"#,
            r#"{"a": 18446744073709551615}"#,
            r#"{"<<": {"a": 1}}"#,
            r#"{"a": 1, "a": 2}"#,
            "{\"a\":\t1}",
            "{\"a\": \"\u{feff}\"}",
            "[1]",
            "{a: b}",
        ] {
            assert_eq!(decode_json(text.as_bytes()), None, "{text}");
        }
        let deep = format!("{}1{}", r#"{"a":"#.repeat(MAX_DEPTH), "}".repeat(MAX_DEPTH));
        let long = json!({"a": vec![1; MAX_NODES]}).to_string();
        for text in [deep, long] {
            assert_eq!(decode_json(text.as_bytes()), None);
        }
        assert_eq!(decode_json(b" {\n\"a\": [null]}\n"), Some(json!({"a": [null]})));
    }

    proptest! {
        #[test]
        fn json_is_read_as_the_yaml_it_is(value in crate::codec::json::tests::any_json()) {
            let text = crate::codec::encode(&json!({ "a": value }));
            if let Some(value) = decode_json(&text) {
                let decoded = decode_document(&text).unwrap();
                prop_assert_eq!(value, decoded.value);
                prop_assert!(decoded.duplicates.is_empty());
            }
        }

        #[test]
        fn json_decodes_as_yaml(value in crate::codec::json::tests::any_json()) {
            let text = String::from_utf8(crate::codec::encode(&value)).unwrap();
            prop_assume!(!text.contains(is_invalid_in_yaml));
            prop_assert_eq!(decode(text.as_bytes()).unwrap().value, normalized(value));
        }

        #[test]
        fn arbitrary_text_never_panics(text in "[-:,{}\\[\\]&*!|>'\"%@`#?a1~\\n ]{0,60}") {
            fuzz_decode(text.as_bytes());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            fuzz_decode(&bytes);
        }
    }

    /// Characters that are allowed unescaped in JSON, but not in YAML.
    fn is_invalid_in_yaml(character: char) -> bool {
        character.is_control() || matches!(character, '\u{feff}' | '\u{fffe}'..='\u{ffff}')
    }

    /// The expected value: numbers that are not 64-bit integers are converted.
    fn normalized(value: Value) -> Value {
        match value {
            Value::Number(number) if number.as_i64().is_none() => {
                let float = number.as_f64().unwrap();
                whole(float).map_or_else(|| float.into(), Value::from)
            }
            Value::Array(items) => items.into_iter().map(normalized).collect(),
            Value::Object(members) => members
                .into_iter()
                .map(|(key, member)| (key, normalized(member)))
                .collect(),
            other => other,
        }
    }
}
