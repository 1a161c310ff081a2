//! JSON decoding into sorted maps, with detection of duplicate keys.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value, map::Entry};

use super::{DecodeError, Decoded, Location, Segment, StrictError, syntax};
use crate::field_error::MAX_ERRORS;

/// Decodes one JSON document.
///
/// Of a duplicate key the last value is used, and [`Decoded::duplicates`] contains its path. Invalid UTF-8 is replaced
/// by U+FFFD. Nesting is limited to 128 levels, so that no body can exhaust the stack.
///
/// ```
/// let decoded = drydock_machinery::codec::json::decode(br#"{"spec":{"y":1,"y":2}}"#)?;
/// assert_eq!(decoded.value["spec"]["y"], 2);
/// assert_eq!(decoded.duplicates[0].to_string(), r#"duplicate field "spec.y""#);
/// # Ok::<_, drydock_machinery::codec::DecodeError>(())
/// ```
///
/// # Errors
///
/// [`DecodeError::Syntax`] if `bytes` are not a single JSON document; [`DecodeError::TooDeep`] if nesting exceeds the
/// limit.
pub fn decode(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => String::from_utf8_lossy(bytes),
    };
    match parse(&text) {
        Ok(decoded) => Ok(decoded),
        Err(error) => match syntax::replace_lone_surrogates(&text) {
            Some(mended) => parse(&mended).map_err(|error| explain(&mended, &error)),
            None => Err(explain(&text, &error)),
        },
    }
}

fn parse(text: &str) -> Result<Decoded, serde_json::Error> {
    let mut duplicates = Vec::new();
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let value = Node {
        location: None,
        duplicates: &mut duplicates,
    }
    .deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(Decoded { value, duplicates })
}

fn explain(text: &str, error: &serde_json::Error) -> DecodeError {
    match syntax::first_error(text) {
        Some(error) => DecodeError::Syntax(error),
        // Valid syntax, but rejected: nested too deeply, or a number beyond the range of floats.
        None if error.to_string().starts_with("recursion limit exceeded") => DecodeError::TooDeep,
        None => DecodeError::Syntax(error.to_string()),
    }
}

/// Sorts strict errors of a JSON body by their position in the body.
///
/// Parses the body again, so call it only for requests with errors. Errors that are not found keep their order and come
/// last.
pub(super) fn in_order_of_position(bytes: &[u8], errors: Vec<StrictError>) -> Vec<StrictError> {
    if errors.len() < 2 {
        return errors;
    }
    let mut order = Order::default();
    for (index, error) in errors.iter().enumerate() {
        match error {
            StrictError::UnknownField { path } => {
                order.unknown.entry(Trail::ROOT.then(path)).or_insert(index)
            }
            StrictError::DuplicateField { path } => {
                order.duplicates.entry(Trail::ROOT.then(path)).or_insert(index)
            }
            _ => continue,
        };
    }
    let text = String::from_utf8_lossy(bytes);
    let walk = Walk {
        trail: Trail::ROOT,
        order: &mut order,
    };
    // A body that does not parse has no strict errors, so there is nothing to sort.
    let _parsed = walk.deserialize(&mut serde_json::Deserializer::from_str(&text));
    let mut ranked: Vec<_> = errors
        .into_iter()
        .enumerate()
        .map(|(index, error)| (order.found.get(&index).copied().unwrap_or(usize::MAX), error))
        .collect();
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().map(|(_, error)| error).collect()
}

/// A hash of the current path (FNV-1a over its text), so that extending a long path costs only its last step. A
/// collision only changes the order of messages.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Trail(u64);

impl Trail {
    const ROOT: Self = Self(0xcbf2_9ce4_8422_2325);

    fn then(self, text: &str) -> Self {
        let step = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self(text.bytes().fold(self.0, step))
    }

    fn key(self, key: &str) -> Self {
        if self == Self::ROOT {
            self.then(key)
        } else {
            self.then(".").then(key)
        }
    }
}

/// The errors to find, and the order in which they were found.
#[derive(Default)]
struct Order {
    unknown: HashMap<Trail, usize>,
    duplicates: HashMap<Trail, usize>,
    seen_once: HashSet<Trail>,
    found: HashMap<usize, usize>,
}

impl Order {
    /// Records a key.
    fn visit_key(&mut self, path: Trail) {
        let duplicate = self
            .duplicates
            .get(&path)
            .filter(|_| !self.seen_once.insert(path));
        for index in self.unknown.get(&path).into_iter().chain(duplicate) {
            let rank = self.found.len();
            self.found.entry(*index).or_insert(rank);
        }
    }
}

/// A walk over a body that looks only at keys.
struct Walk<'o> {
    trail: Trail,
    order: &'o mut Order,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        for index in 0.. {
            let trail = self.trail.then(&format!("[{index}]"));
            if seq
                .next_element_seed(Walk {
                    trail,
                    order: self.order,
                })?
                .is_none()
            {
                break;
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<(), A::Error> {
        while let Some(key) = access.next_key::<Cow<'de, str>>()? {
            let trail = self.trail.key(&key);
            self.order.visit_key(trail);
            access.next_value_seed(Walk {
                trail,
                order: self.order,
            })?;
        }
        Ok(())
    }
}

/// The decoder of one value, with its location.
struct Node<'a, 'd> {
    location: Option<&'a Location<'a>>,
    duplicates: &'d mut Vec<StrictError>,
}

impl<'de> DeserializeSeed<'de> for Node<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Node<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value)
            .map(Value::Number)
            .ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        loop {
            let location = Location::below(self.location, Segment::Index(list.len()));
            let node = Node {
                location: Some(&location),
                duplicates: self.duplicates,
            };
            match seq.next_element_seed(node)? {
                Some(item) => list.push(item),
                None => return Ok(Value::Array(list)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            let value = {
                let location = Location::below(self.location, Segment::Key(&key));
                access.next_value_seed(Node {
                    location: Some(&location),
                    duplicates: self.duplicates,
                })?
            };
            match map.entry(key) {
                Entry::Vacant(vacant) => {
                    vacant.insert(value);
                }
                Entry::Occupied(mut occupied) => {
                    // Limits the memory that a body full of duplicate keys can use.
                    if self.duplicates.len() < MAX_ERRORS {
                        let location = Location::below(self.location, Segment::Key(occupied.key()));
                        let path = location.excerpt();
                        self.duplicates.push(StrictError::DuplicateField { path });
                    }
                    occupied.insert(value);
                }
            }
        }
        Ok(Value::Object(map))
    }
}

/// Fuzz target: decoding must not panic, and decoded values must survive a round trip.
///
/// # Panics
///
/// If a decoded value changes in a round trip, which is a bug.
pub fn fuzz_decode(bytes: &[u8]) {
    if let Ok(decoded) = decode(bytes) {
        let again = decode(&super::encode(&decoded.value));
        assert_eq!(again.map(|decoded| decoded.value), Ok(decoded.value));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn check(text: &str, expected: &Value, duplicates: &[&str]) {
        let decoded = decode(text.as_bytes()).expect(text);
        assert_eq!(&decoded.value, expected, "{text}");
        let found: Vec<String> = decoded.duplicates.iter().map(ToString::to_string).collect();
        assert_eq!(found, duplicates, "{text}");
    }

    #[test]
    fn last_of_duplicate_keys_wins_and_is_reported_with_its_path() {
        check(
            r#"{"spec":{"y":1,"x":0,"y":2}}"#,
            &json!({"spec": {"y": 2, "x": 0}}),
            &[r#"duplicate field "spec.y""#],
        );
        check(r#"{"a":1,"a":2}"#, &json!({"a": 2}), &[r#"duplicate field "a""#]);
        check(
            r#"{"l":[{},{"m":{"k":1,"k":1}}]}"#,
            &json!({"l": [{}, {"m": {"k": 1}}]}),
            &[r#"duplicate field "l[1].m.k""#],
        );
        check(
            "[null, true, -1, 1.5, 18446744073709551615]",
            &json!([null, true, -1, 1.5, u64::MAX]),
            &[],
        );
    }

    #[test]
    fn strict_errors_are_sorted_by_position_in_the_body() {
        let unknown = |path: &str| StrictError::UnknownField {
            path: path.to_owned(),
        };
        let duplicate = |path: &str| StrictError::DuplicateField {
            path: path.to_owned(),
        };
        let body = br#"{"z":1,"spec":{"x":{"b":1},"y":1,"l":[0,{"q":1}],"y":2,"a":1}}"#;
        let ordered = in_order_of_position(
            body,
            vec![
                duplicate("spec.y"),
                unknown("lost"),
                unknown("spec.a"),
                unknown("spec.l[1].q"),
                unknown("spec.x"),
                unknown("z"),
            ],
        );
        assert_eq!(
            ordered,
            [
                unknown("z"),
                unknown("spec.x"),
                unknown("spec.l[1].q"),
                duplicate("spec.y"),
                unknown("spec.a"),
                unknown("lost")
            ]
        );
    }

    #[test]
    fn invalid_utf8_becomes_the_replacement_character() {
        assert_eq!(
            decode(b"{\"a\":\"\xff\"}").unwrap().value,
            json!({"a": "\u{fffd}"})
        );
        assert_eq!(
            decode(br#"{"a":"\ud800x\ud83d\ude00"}"#).unwrap().value,
            json!({"a": "\u{fffd}x\u{1f600}"})
        );
    }

    #[test]
    fn syntax_errors_have_the_text_of_go() {
        for (text, expected) in [
            ("", "unexpected end of JSON input"),
            (r#"{"a":"#, "unexpected end of JSON input"),
            (r#"{"a":1} x"#, "invalid character 'x' after top-level value"),
            ("{}{}", "invalid character '{' after top-level value"),
            ("x", "invalid character 'x' looking for beginning of value"),
            (
                "{a:1}",
                "invalid character 'a' looking for beginning of object key string",
            ),
            (
                r#"{"a":1,}"#,
                "invalid character '}' looking for beginning of object key string",
            ),
            (r#"{"a" 1}"#, "invalid character '1' after object key"),
            (
                r#"{"a":1 "b"}"#,
                "invalid character '\"' after object key:value pair",
            ),
            ("[1 2]", "invalid character '2' after array element"),
            ("tru", "unexpected end of JSON input"),
            ("trux", "invalid character 'x' in literal true (expecting 'e')"),
            ("nul ", "invalid character ' ' in literal null (expecting 'l')"),
            ("-x", "invalid character 'x' in numeric literal"),
            (
                "1.x",
                "invalid character 'x' after decimal point in numeric literal",
            ),
            ("1ex", "invalid character 'x' in exponent of numeric literal"),
            ("01", "invalid character '1' after top-level value"),
            ("\"a\nb\"", "invalid character '\\n' in string literal"),
            (r#""\q""#, "invalid character 'q' in string escape code"),
            (
                r#""\u12g4""#,
                "invalid character 'g' in \\u hexadecimal character escape",
            ),
            ("'a'", "invalid character '\\'' looking for beginning of value"),
        ] {
            assert_eq!(
                decode(text.as_bytes()).expect_err(text).to_string(),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn deep_nesting_is_rejected_without_exhausting_the_stack() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert_eq!(decode(deep.as_bytes()), Err(DecodeError::TooDeep));
        let deep = "{\"a\":".repeat(200) + "1" + &"}".repeat(200);
        assert_eq!(
            decode(deep.as_bytes()).unwrap_err().to_string(),
            "exceeded max depth"
        );
    }

    /// Any JSON value, of modest size.
    pub(crate) fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            any::<f64>()
                .prop_filter("finite", |f| f.is_finite())
                .prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 64, 6, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::btree_map(any::<String>(), inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn values_survive_encoding_and_decoding(value in any_json()) {
            let decoded = decode(&crate::codec::encode(&value)).unwrap();
            prop_assert_eq!(&decoded.value, &value);
            prop_assert!(decoded.duplicates.is_empty());
            prop_assert_eq!(decode(&crate::codec::encode_pretty(&value)).unwrap().value, value);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            fuzz_decode(&bytes);
        }

        #[test]
        fn every_rejected_text_has_a_syntax_error(text in r#"[\[\]{}:,"a1\.\-e ]{0,12}"#) {
            let rejected = serde_json::from_str::<Value>(&text).is_err();
            prop_assert_eq!(decode(text.as_bytes()).is_err(), rejected);
            prop_assert_eq!(super::syntax::first_error(&text).is_some(), rejected);
        }
    }
}
