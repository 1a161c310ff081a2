//! CBOR (RFC 8949) in the profile of Kubernetes: documents begin with the tag of self-described CBOR, and strings are
//! written as byte strings. Read are byte and text strings, items of indefinite length, times, and byte strings with an
//! expected text encoding; what JSON cannot represent is refused.
//!
//! Decoding is linear and bounded: at most [`MAX_DEPTH`] levels and [`MAX_ITEMS`] items.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ciborium_ll::{Decoder, Encoder, Error, Header, simple};
use jiff::Timestamp;
use serde_json::{Map, Number, Value};

/// The content type of a document.
pub const MEDIA_TYPE: &str = "application/cbor";
/// How deep arrays, maps and tags may be nested.
pub const MAX_DEPTH: usize = 128;
/// How many items a document may have.
pub const MAX_ITEMS: usize = 1 << 20;

/// The longest header: a byte, and a number of 64 bits.
const HEADER_BYTES: usize = 9;
/// The tag of self-described CBOR.
const SELF_DESCRIBED: u64 = 55_799;
const TIME_TEXT: u64 = 0;
const TIME_NUMBER: u64 = 1;
const POSITIVE_BIGNUM: u64 = 2;
const NEGATIVE_BIGNUM: u64 = 3;
const AS_BASE64_URL: u64 = 21;
const AS_BASE64: u64 = 22;
const AS_HEX: u64 = 23;

/// Bytes that are not a document, or one that JSON cannot represent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CborError {
    /// There are no bytes.
    #[error("EOF")]
    Empty,
    /// The document ends within an item.
    #[error("unexpected EOF")]
    Truncated,
    /// An item is malformed.
    #[error("cbor: invalid item")]
    Syntax,
    /// Bytes follow the document.
    #[error("cbor: {0} bytes of extraneous data")]
    Trailing(usize),
    /// Items are nested too deeply.
    #[error("cbor: exceeded max nested level {MAX_DEPTH}")]
    TooDeep,
    /// There are too many items.
    #[error("cbor: exceeded max number of items {MAX_ITEMS}")]
    TooLarge,
    /// A text string is not UTF-8.
    #[error("cbor: invalid UTF-8 string")]
    NotUtf8,
    /// A key occurs twice in a map.
    #[error("cbor: found duplicate map key {0:?}")]
    DuplicateKey(String),
    /// JSON cannot represent the item.
    #[error("cbor: cannot decode {0}")]
    Unsupported(&'static str),
}

/// Encodes a document.
#[must_use]
pub fn encode(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    write_start(&mut out);
    write(value, &mut out);
    out
}

/// Appends the tag that a document begins with.
pub fn write_start(out: &mut Vec<u8>) {
    header(Header::Tag(SELF_DESCRIBED), out);
}

/// Appends the start of a map; `length` pairs of keys and values must follow.
pub fn write_map(length: usize, out: &mut Vec<u8>) {
    header(Header::Map(Some(length)), out);
}

/// Appends the start of an array; `length` items must follow.
pub fn write_array(length: usize, out: &mut Vec<u8>) {
    header(Header::Array(Some(length)), out);
}

/// Appends a string.
pub fn write_text(text: &str, out: &mut Vec<u8>) {
    header(Header::Bytes(Some(text.len())), out);
    out.extend_from_slice(text.as_bytes());
}

/// Appends a value.
pub fn write(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => header(Header::Simple(simple::NULL), out),
        Value::Bool(true) => header(Header::Simple(simple::TRUE), out),
        Value::Bool(false) => header(Header::Simple(simple::FALSE), out),
        Value::Number(number) => header(number_header(number), out),
        Value::String(text) => write_text(text, out),
        Value::Array(items) => {
            write_array(items.len(), out);
            for item in items {
                write(item, out);
            }
        }
        Value::Object(members) => {
            write_map(members.len(), out);
            for (key, value) in members {
                write_text(key, out);
                write(value, out);
            }
        }
    }
}

fn number_header(number: &Number) -> Header {
    match (number.as_u64(), number.as_i64()) {
        (Some(value), _) => Header::Positive(value),
        (None, Some(value)) => Header::Negative((!value).cast_unsigned()),
        (None, None) => Header::Float(number.as_f64().unwrap_or_default()),
    }
}

fn header(header: Header, out: &mut Vec<u8>) {
    let mut buffer = [0; HEADER_BYTES];
    let mut rest = buffer.as_mut_slice();
    // The buffer has room for every header, so this cannot fail.
    let _written = Encoder::from(&mut rest).push(header).is_ok();
    let length = HEADER_BYTES - rest.len();
    out.extend_from_slice(buffer.get(..length).unwrap_or_default());
}

/// Decodes a document, which may begin with the tag of self-described CBOR.
///
/// # Errors
/// [`CborError`].
pub fn decode(bytes: &[u8]) -> Result<Value, CborError> {
    if bytes.is_empty() {
        return Err(CborError::Empty);
    }
    let mut items = Items {
        rest: bytes,
        left: MAX_ITEMS,
    };
    let value = items.value(0)?;
    if items.rest.is_empty() {
        Ok(value)
    } else {
        Err(CborError::Trailing(items.rest.len()))
    }
}

/// The length in bytes of the first document of a sequence, as [`encode`] writes documents. `None` for malformed bytes.
#[must_use]
pub fn first_length(sequence: &[u8]) -> Option<usize> {
    let mut items = Items {
        rest: sequence,
        left: usize::MAX,
    };
    items.value(0).ok()?;
    Some(sequence.len() - items.rest.len())
}

/// The items of a document that were not read yet.
struct Items<'a> {
    rest: &'a [u8],
    /// How many more there may be.
    left: usize,
}

impl<'a> Items<'a> {
    fn header(&mut self) -> Result<Header, CborError> {
        self.left = self.left.checked_sub(1).ok_or(CborError::TooLarge)?;
        Decoder::from(&mut self.rest).pull().map_err(|error| match error {
            Error::Io(_) => CborError::Truncated,
            Error::Syntax(_) => CborError::Syntax,
        })
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], CborError> {
        let (taken, rest) = self.rest.split_at_checked(length).ok_or(CborError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// Whether the next byte ends an item of indefinite length, which is then read.
    fn ends(&mut self) -> bool {
        let end = self.rest.strip_prefix(b"\xff");
        self.rest = end.unwrap_or(self.rest);
        end.is_some()
    }

    fn value(&mut self, depth: usize) -> Result<Value, CborError> {
        let header = self.header()?;
        self.value_of(header, depth)
    }

    fn value_of(&mut self, header: Header, depth: usize) -> Result<Value, CborError> {
        let is_nested = matches!(header, Header::Array(_) | Header::Map(_) | Header::Tag(_));
        if is_nested && depth == MAX_DEPTH {
            return Err(CborError::TooDeep);
        }
        Ok(match header {
            Header::Positive(value) => i64::try_from(value)
                .map_err(|_| CborError::Unsupported("an integer beyond 64 bits"))?
                .into(),
            Header::Negative(value) => {
                let value =
                    i64::try_from(value).map_err(|_| CborError::Unsupported("an integer beyond 64 bits"))?;
                (!value).into()
            }
            Header::Float(value) => Number::from_f64(value)
                .map(Value::Number)
                .ok_or(CborError::Unsupported("a float that is not a number"))?,
            Header::Simple(simple::FALSE) => false.into(),
            Header::Simple(simple::TRUE) => true.into(),
            Header::Simple(simple::NULL) => Value::Null,
            Header::Simple(_) => return Err(CborError::Unsupported("a simple value")),
            Header::Break => return Err(CborError::Syntax),
            Header::Bytes(_) | Header::Text(_) => self.text(header)?.into(),
            Header::Tag(tag) => self.tagged(tag, depth + 1)?,
            Header::Array(length) => Value::Array(self.array(length, depth + 1)?),
            Header::Map(length) => Value::Object(self.map(length, depth + 1)?),
        })
    }

    fn array(&mut self, length: Option<usize>, depth: usize) -> Result<Vec<Value>, CborError> {
        let mut items = Vec::new();
        while length.map_or_else(|| !self.ends(), |length| items.len() < length) {
            items.push(self.value(depth)?);
        }
        Ok(items)
    }

    fn map(&mut self, length: Option<usize>, depth: usize) -> Result<Map<String, Value>, CborError> {
        let mut members = Map::new();
        while length.map_or_else(|| !self.ends(), |length| members.len() < length) {
            let header = self.header()?;
            if !matches!(header, Header::Bytes(_) | Header::Text(_)) {
                return Err(CborError::Unsupported("a map key that is not a string"));
            }
            let key = self.text(header)?;
            if members.contains_key(&key) {
                return Err(CborError::DuplicateKey(key));
            }
            let value = self.value(depth)?;
            members.insert(key, value);
        }
        Ok(members)
    }

    fn tagged(&mut self, tag: u64, depth: usize) -> Result<Value, CborError> {
        match tag {
            TIME_TEXT => match self.value(depth)? {
                text @ Value::String(_) => Ok(text),
                _ => Err(CborError::Unsupported("a time that is not a string")),
            },
            TIME_NUMBER => self.epoch_time(depth),
            POSITIVE_BIGNUM | NEGATIVE_BIGNUM => Err(CborError::Unsupported("an integer beyond 64 bits")),
            AS_BASE64_URL | AS_BASE64 | AS_HEX => match self.header()? {
                Header::Bytes(length) => Ok(as_text(tag, &self.bytes(length)?).into()),
                other => self.value_of(other, depth),
            },
            _ => self.value(depth),
        }
    }

    fn epoch_time(&mut self, depth: usize) -> Result<Value, CborError> {
        let Value::Number(number) = self.value(depth)? else {
            return Err(CborError::Unsupported("a time that is not a number"));
        };
        let time = match number.as_i64() {
            Some(seconds) => Timestamp::from_second(seconds).ok(),
            None => number
                .as_f64()
                .and_then(|seconds| jiff::SignedDuration::try_from_secs_f64(seconds).ok())
                .and_then(|since| Timestamp::from_duration(since).ok()),
        };
        let time = time.ok_or(CborError::Unsupported("a time out of range"))?;
        Ok(time.to_string().into())
    }

    /// A byte or text string. Bytes that are not UTF-8 are replaced, as when Go writes them as JSON.
    fn text(&mut self, header: Header) -> Result<String, CborError> {
        match header {
            Header::Bytes(length) => Ok(String::from_utf8_lossy(&self.bytes(length)?).into_owned()),
            Header::Text(Some(length)) => {
                let text = std::str::from_utf8(self.take(length)?).map_err(|_| CborError::NotUtf8)?;
                Ok(text.to_owned())
            }
            _ => {
                let mut text = String::new();
                while !self.ends() {
                    let Header::Text(Some(length)) = self.header()? else {
                        return Err(CborError::Syntax);
                    };
                    let part = self.take(length)?;
                    text.push_str(std::str::from_utf8(part).map_err(|_| CborError::NotUtf8)?);
                }
                Ok(text)
            }
        }
    }

    fn bytes(&mut self, length: Option<usize>) -> Result<Vec<u8>, CborError> {
        if let Some(length) = length {
            return Ok(self.take(length)?.to_vec());
        }
        let mut bytes = Vec::new();
        while !self.ends() {
            let Header::Bytes(Some(length)) = self.header()? else {
                return Err(CborError::Syntax);
            };
            bytes.extend_from_slice(self.take(length)?);
        }
        Ok(bytes)
    }
}

/// The text that a byte string is in JSON.
fn as_text(tag: u64, bytes: &[u8]) -> String {
    match tag {
        AS_BASE64_URL => URL_SAFE_NO_PAD.encode(bytes),
        AS_BASE64 => STANDARD.encode(bytes),
        _ => {
            let digit = |nibble: u8| char::from_digit(u32::from(nibble), 16).unwrap_or('0');
            let pairs = bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]);
            pairs.collect()
        }
    }
}

/// Fuzz target: decoding must not panic, and a decoded value must survive a round trip.
///
/// # Panics
/// If a value changes in a round trip, which is a bug.
pub fn fuzz_decode(bytes: &[u8]) {
    if let Ok(value) = decode(bytes) {
        let encoded = encode(&value);
        assert_eq!(first_length(&encoded), Some(encoded.len()));
        assert_eq!(decode(&encoded), Ok(value));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::codec::json::tests::any_json;

    #[test]
    fn documents_are_tagged_and_strings_are_byte_strings() {
        assert_eq!(
            encode(&json!({"a": [1, -2, true, null, 1.5]})),
            b"\xd9\xd9\xf7\xa1\x41a\x85\x01\x21\xf5\xf6\xf9\x3e\x00"
        );
    }

    #[test]
    fn every_form_of_a_value_is_read() {
        for (bytes, expected) in [
            (&b"\x63abc"[..], json!("abc")),
            (b"\x43abc", json!("abc")),
            (b"\x7f\x61a\x62bc\xff", json!("abc")),
            (b"\x5f\x41a\x42bc\xff", json!("abc")),
            (b"\x42\xff\x61", json!("\u{fffd}a")),
            (b"\x9f\x01\x02\xff", json!([1, 2])),
            (b"\xbf\x61a\x01\xff", json!({"a": 1})),
            (b"\xa1\x41a\xa1\x61b\x80", json!({"a": {"b": []}})),
            (b"\xc0\x741970-01-01T00:00:00Z", json!("1970-01-01T00:00:00Z")),
            (b"\xc1\x3a\x00\x01\x51\x7f", json!("1969-12-31T00:00:00Z")),
            (b"\xc1\xf9\x38\x00", json!("1970-01-01T00:00:00.5Z")),
            (b"\xd6\x43abc", json!("YWJj")),
            (b"\xd5\x42\xff\xff", json!("__8")),
            (b"\xd7\x42\xff\x01", json!("ff01")),
            (b"\xd9\xd9\xf7\xd8\x64\x01", json!(1)),
            (b"\x3b\x7f\xff\xff\xff\xff\xff\xff\xff", json!(i64::MIN)),
        ] {
            assert_eq!(decode(bytes), Ok(expected), "{bytes:x?}");
        }
    }

    #[test]
    fn what_json_cannot_represent_is_refused() {
        let deep = [vec![0x81; MAX_DEPTH + 1], vec![0x01]].concat();
        let tags = [vec![0xc6; MAX_DEPTH + 1], vec![0x01]].concat();
        for (bytes, expected) in [
            (&b""[..], CborError::Empty),
            (b"\xa1\x41a", CborError::Truncated),
            (b"\x5b\xff\xff\xff\xff\xff\xff\xff\xff", CborError::Truncated),
            (b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff\x01", CborError::Truncated),
            (b"\x01\x02", CborError::Trailing(1)),
            (b"\xff", CborError::Syntax),
            (b"\x1c", CborError::Syntax),
            (b"\x7f\x41a\xff", CborError::Syntax),
            (b"\x61\xff", CborError::NotUtf8),
            (b"\xa2\x41a\x01\x61a\x02", CborError::DuplicateKey("a".to_owned())),
            (
                b"\xa1\x01\x02",
                CborError::Unsupported("a map key that is not a string"),
            ),
            (b"\xf7", CborError::Unsupported("a simple value")),
            (
                b"\xf9\x7e\x00",
                CborError::Unsupported("a float that is not a number"),
            ),
            (
                b"\x1b\xff\xff\xff\xff\xff\xff\xff\xff",
                CborError::Unsupported("an integer beyond 64 bits"),
            ),
            (
                b"\xc2\x41\x01",
                CborError::Unsupported("an integer beyond 64 bits"),
            ),
            (&deep, CborError::TooDeep),
            (&tags, CborError::TooDeep),
        ] {
            assert_eq!(decode(bytes), Err(expected), "{bytes:x?}");
        }
        let many = [&[0x9a, 0, 0x20, 0, 0][..], &vec![0xf6; 1 << 21]].concat();
        assert_eq!(decode(&many), Err(CborError::TooLarge));
    }

    #[test]
    fn documents_of_a_sequence_are_told_apart() {
        let sequence = [encode(&json!({"type": "ADDED"})), encode(&json!([1]))].concat();
        let first = first_length(&sequence).unwrap();
        assert_eq!(decode(&sequence[..first]), Ok(json!({"type": "ADDED"})));
        assert_eq!(decode(&sequence[first..]), Ok(json!([1])));
        assert_eq!(first_length(b"\xa1"), None);
    }

    /// Numbers beyond 64 signed bits are written but, as by Kubernetes, not read.
    fn is_readable(value: &Value) -> bool {
        match value {
            Value::Number(number) => number.is_i64() || number.is_f64(),
            Value::Array(items) => items.iter().all(is_readable),
            Value::Object(members) => members.values().all(is_readable),
            _ => true,
        }
    }

    proptest! {
        #[test]
        fn values_survive_a_round_trip(value in any_json().prop_filter("signed", is_readable)) {
            prop_assert_eq!(decode(&encode(&value)), Ok(value));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            fuzz_decode(&bytes);
        }
    }
}
