//! Decodes the small protobuf messages that clients built with Go types send instead of JSON: options, reviews, and
//! namespaces. Since Kubernetes 1.33 their typed clients write protobuf by default. A [`Message`] lists the fields that
//! are read; they become the JSON they stand for, and other fields are skipped.

use serde_json::{Map, Value, json};

/// The content type of the envelope.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// The first bytes of every envelope.
const MAGIC: &[u8] = b"k8s\0";

/// A field of a message: its number, its name in JSON, and its type.
pub type Field = (u64, &'static str, FieldType);

/// The fields of a message that are read.
pub type Message = &'static [Field];

/// The type of a field.
#[derive(Debug, Clone, Copy)]
pub enum FieldType {
    /// `string`.
    Text,
    /// `repeated string`.
    Texts,
    /// `int32` or `int64`.
    Integer,
    /// `bool`.
    Boolean,
    /// `map<string, string>`.
    Map,
    /// Another message.
    Message(Message),
}

/// `DeleteOptions` of meta.k8s.io/v1.
pub const DELETE_OPTIONS: Message = &[
    (1, "gracePeriodSeconds", FieldType::Integer),
    (
        2,
        "preconditions",
        FieldType::Message(&[
            (1, "uid", FieldType::Text),
            (2, "resourceVersion", FieldType::Text),
        ]),
    ),
    (3, "orphanDependents", FieldType::Boolean),
    (4, "propagationPolicy", FieldType::Text),
    (5, "dryRun", FieldType::Texts),
    (
        6,
        "ignoreStoreReadErrorWithClusterBreakingPotential",
        FieldType::Boolean,
    ),
];

/// The fields of `ObjectMeta` that options and reviews carry.
pub const NAMES: Message = &[(1, "name", FieldType::Text), (3, "namespace", FieldType::Text)];

/// The fields of an entry of a map.
const ENTRY: Message = &[(1, "key", FieldType::Text), (2, "value", FieldType::Text)];

/// The fields of the envelope, and of the type it names.
const ENVELOPE_TYPE: u64 = 1;
const ENVELOPE_RAW: u64 = 2;
const TYPE: Message = &[(1, "apiVersion", FieldType::Text), (2, "kind", FieldType::Text)];

/// Bytes that are not the expected message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the body is not a protobuf message of the expected kind")]
pub struct Malformed;

/// Decodes a message and its envelope. `apiVersion` and `kind` are those of the envelope.
///
/// # Errors
/// Bytes that are not such a message.
pub fn decode(bytes: &[u8], message: Message) -> Result<Value, Malformed> {
    let envelope = bytes.strip_prefix(MAGIC).ok_or(Malformed)?;
    let mut object = Map::new();
    let mut raw: &[u8] = &[];
    let mut reader = Reader(envelope);
    while let Some((number, part)) = reader.next()? {
        match (number, part) {
            (ENVELOPE_TYPE, Part::Bytes(type_)) => read_into(&mut object, type_, TYPE)?,
            (ENVELOPE_RAW, Part::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    read_into(&mut object, raw, message)?;
    Ok(Value::Object(object))
}

fn read_into(object: &mut Map<String, Value>, bytes: &[u8], message: Message) -> Result<(), Malformed> {
    let mut reader = Reader(bytes);
    while let Some((number, part)) = reader.next()? {
        let Some((_, name, type_)) = message.iter().find(|(own, _, _)| *own == number) else {
            continue;
        };
        let value = match (type_, part) {
            (FieldType::Text, Part::Bytes(text)) => json!(std::str::from_utf8(text).map_err(|_| Malformed)?),
            (FieldType::Texts, Part::Bytes(text)) => {
                let mut texts = object
                    .get(*name)
                    .and_then(Value::as_array)
                    .cloned()
                    .unwrap_or_default();
                texts.push(json!(std::str::from_utf8(text).map_err(|_| Malformed)?));
                Value::Array(texts)
            }
            (FieldType::Integer, Part::Varint(number)) => json!(number.cast_signed()),
            (FieldType::Boolean, Part::Varint(number)) => json!(number != 0),
            (FieldType::Map, Part::Bytes(bytes)) => {
                let mut entry = Map::new();
                read_into(&mut entry, bytes, ENTRY)?;
                let text = |member: &str| {
                    entry
                        .get(member)
                        .and_then(Value::as_str)
                        .unwrap_or_default()
                        .to_owned()
                };
                let mut members = object
                    .get(*name)
                    .and_then(Value::as_object)
                    .cloned()
                    .unwrap_or_default();
                members.insert(text("key"), json!(text("value")));
                Value::Object(members)
            }
            (FieldType::Message(inner), Part::Bytes(bytes)) => {
                let mut members = object
                    .get(*name)
                    .and_then(Value::as_object)
                    .cloned()
                    .unwrap_or_default();
                read_into(&mut members, bytes, inner)?;
                Value::Object(members)
            }
            _ => return Err(Malformed),
        };
        object.insert((*name).to_owned(), value);
    }
    Ok(())
}

/// The fields of a message one by one.
struct Reader<'a>(&'a [u8]);

/// The encoded value of a field.
enum Part<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// Of a width that none of the messages uses.
    Fixed,
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<Option<(u64, Part<'a>)>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let part = match key & 7 {
            0 => Part::Varint(self.varint()?),
            1 => self.take(8).map(|_| Part::Fixed)?,
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
                Part::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Part::Fixed)?,
            _ => return Err(Malformed),
        };
        Ok(Some((key >> 3, part)))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first().ok_or(Malformed)?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A length-delimited field.
    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        let mut out = vec![number << 3 | 2, u8::try_from(bytes.len()).unwrap()];
        out.extend_from_slice(bytes);
        out
    }

    fn envelope(raw: &[u8]) -> Vec<u8> {
        let type_ = [field(1, b"v1"), field(2, b"DeleteOptions")].concat();
        [
            MAGIC.to_vec(),
            field(1, &type_),
            field(2, raw),
            field(3, b""),
            field(4, b""),
        ]
        .concat()
    }

    #[test]
    fn delete_options_are_read() {
        let raw = [
            vec![1 << 3, 0xac, 0x02],
            field(2, &field(1, b"u")),
            field(4, b"Background"),
            field(5, b"All"),
            vec![6 << 3, 0],
            field(15, b"unknown"),
            vec![14 << 3 | 5, 0, 0, 0, 0],
        ];
        assert_eq!(
            decode(&envelope(&raw.concat()), DELETE_OPTIONS),
            Ok(
                json!({"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 300,
                "preconditions": {"uid": "u"}, "propagationPolicy": "Background", "dryRun": ["All"],
                "ignoreStoreReadErrorWithClusterBreakingPotential": false})
            )
        );
    }

    #[test]
    fn maps_are_read_entry_by_entry() {
        const METADATA: Message = &[(1, "name", FieldType::Text), (11, "labels", FieldType::Map)];
        const OBJECT: Message = &[(1, "metadata", FieldType::Message(METADATA))];
        let label = |key: &[u8], value: &[u8]| field(11, &[field(1, key), field(2, value)].concat());
        let metadata = [field(1, b"ns"), label(b"a", b"1"), label(b"b", b"")].concat();
        let object = decode(&envelope(&[field(1, &metadata), field(2, b"")].concat()), OBJECT).unwrap();
        assert_eq!(
            object["metadata"],
            json!({"name": "ns", "labels": {"a": "1", "b": ""}})
        );
    }

    #[test]
    fn negative_numbers_take_ten_bytes() {
        let raw = [&[1 << 3][..], &[0xff; 9], &[1]].concat();
        assert_eq!(
            decode(&envelope(&raw), DELETE_OPTIONS).unwrap()["gracePeriodSeconds"],
            -1
        );
    }

    #[test]
    fn malformed_messages_are_refused() {
        for bytes in [
            b"{}".to_vec(),
            envelope(&[1 << 3]),
            envelope(&[2 << 3 | 2, 9, 0]),
            envelope(&field(1, b"text for a number")),
            envelope(&[7]),
            envelope(&[&[1 << 3][..], &[0xff; 11]].concat()),
        ] {
            assert_eq!(decode(&bytes, DELETE_OPTIONS), Err(Malformed), "{bytes:?}");
        }
    }
}
