//! Kubernetes' protobuf encoding of objects: messages in an envelope, converted from and to JSON by the tables of
//! [`drydock_proto::protobuf`].
//!
//! ```text
//! body ── Envelope::parse ──► raw ── decode ──► JSON, as a client with Go types would have sent it
//!                               └── MessageView ──► JSON text, for what is only handed on
//! JSON ── encode ──► message ── Envelope::wrap ──► body;  in a watch: frame
//! ```
//!
//! Both directions are linear in the size of the input. Messages are not recursive, so their nesting is that of the tables.

mod decode;
mod encode;
mod view;
mod wire;

use std::borrow::Cow;

use drydock_proto::protobuf::{META_V1_WATCH_EVENT, Message};
use serde_json::{Map, Value};

use crate::schema::Structural;

pub use decode::decode_message;
pub use encode::{EncodeError, encode_message};
pub use view::MessageView;
pub use wire::{key_bytes, write_bytes_key};

/// The content type of the envelope.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// The first bytes of every envelope.
const MAGIC: &[u8] = b"k8s\0";

/// The fields of the envelope, `runtime.Unknown`, and of the type it names.
const TYPE_META: u64 = 1;
const RAW: u64 = 2;
const API_VERSION: u64 = 1;
const KIND: u64 = 2;

/// Bytes that are not the expected message. `Display` prints the text of Go's decoders.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// There are no bytes.
    #[error("empty data")]
    Empty,
    /// The first bytes are not those of an envelope.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NoPrefix,
    /// The envelope is missing.
    #[error("empty body")]
    EmptyBody,
    /// The message ends within a field.
    #[error("unexpected EOF")]
    Truncated,
    /// A number has more than ten bytes.
    #[error("proto: integer overflow")]
    Overflow,
    /// A field has a type that does not exist.
    #[error("proto: illegal wireType {0}")]
    IllegalType(u64),
    /// A field has the number 0.
    #[error("proto: illegal tag 0")]
    IllegalNumber,
    /// A group ends that did not begin.
    #[error("proto: unexpected end of group")]
    EndOfGroup,
    /// Groups are nested too deeply.
    #[error("proto: exceeded max depth")]
    TooDeep,
    /// A field has a type that does not fit its message.
    #[error("proto: wrong wireType = {found} for field {field}")]
    WrongType {
        /// The type that was found.
        found: u64,
        /// The name of the field.
        field: &'static str,
    },
}

/// The parts of an envelope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope<'a> {
    /// `apiVersion`, or empty.
    pub api_version: String,
    /// `kind`, or empty.
    pub kind: String,
    /// The message.
    pub raw: &'a [u8],
}

impl<'a> Envelope<'a> {
    /// Reads an envelope.
    ///
    /// # Errors
    /// Bytes that are not an envelope.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        if bytes.is_empty() {
            return Err(Malformed::Empty);
        }
        let rest = bytes.strip_prefix(MAGIC).ok_or(Malformed::NoPrefix)?;
        if rest.is_empty() {
            return Err(Malformed::EmptyBody);
        }
        let mut envelope = Self {
            api_version: String::new(),
            kind: String::new(),
            raw: &[],
        };
        let mut reader = wire::Reader::new(rest);
        while let Some((number, part)) = reader.next()? {
            match number {
                TYPE_META => {
                    let mut types = wire::Reader::new(part.bytes("typeMeta")?);
                    while let Some((number, part)) = types.next()? {
                        match number {
                            API_VERSION => envelope.api_version = part.text("apiVersion")?.into_owned(),
                            KIND => envelope.kind = part.text("kind")?.into_owned(),
                            _ => {}
                        }
                    }
                }
                RAW => envelope.raw = part.bytes("raw")?,
                _ => {}
            }
        }
        Ok(envelope)
    }

    /// Appends everything of an envelope before its message, which must follow and have this length in bytes.
    pub fn write_start(api_version: &str, kind: &str, length: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(MAGIC);
        let types = [(API_VERSION, api_version), (KIND, kind)];
        let size = types
            .iter()
            .map(|(number, text)| key_bytes(*number, text.len()) + text.len())
            .sum();
        write_bytes_key(TYPE_META, size, out);
        for (number, text) in types {
            write_bytes_key(number, text.len(), out);
            out.extend_from_slice(text.as_bytes());
        }
        write_bytes_key(RAW, length, out);
    }
}

/// Decodes a body: a message in an envelope. `apiVersion` and `kind` are those of the envelope, absent if it has none. See
/// [`decode_message`] for `schema`.
///
/// # Errors
/// Bytes that are not such a message.
pub fn decode(bytes: &[u8], message: &Message, schema: Option<&Structural>) -> Result<Value, Malformed> {
    let envelope = Envelope::parse(bytes)?;
    let mut object = Map::new();
    decode_message(envelope.raw, message, schema, &mut object)?;
    for (member, text) in [("apiVersion", envelope.api_version), ("kind", envelope.kind)] {
        if !text.is_empty() {
            object.insert(member.to_owned(), text.into());
        }
    }
    Ok(Value::Object(object))
}

/// Encodes an object in an envelope with its `apiVersion` and `kind`.
///
/// # Errors
/// A member whose type does not fit the message.
pub fn encode(object: &Value, message: &Message) -> Result<Vec<u8>, EncodeError> {
    let mut raw = Vec::with_capacity(512);
    encode_message(object, message, &mut raw)?;
    let text = |member: &str| object.get(member).and_then(Value::as_str).unwrap_or_default();
    let mut out = Vec::with_capacity(raw.len() + 96);
    Envelope::write_start(text("apiVersion"), text("kind"), raw.len(), &mut out);
    out.extend_from_slice(&raw);
    Ok(out)
}

/// The fields of a message in their order: the number of each, and its bytes if it has a length.
pub fn fields(bytes: &[u8]) -> impl Iterator<Item = Result<(u64, Option<&[u8]>), Malformed>> {
    let mut reader = wire::Reader::new(bytes);
    std::iter::from_fn(move || {
        let field = reader.next().transpose()?;
        Some(field.map(|(number, part)| match part {
            wire::Part::Bytes(bytes) => (number, Some(bytes)),
            wire::Part::Varint(_) | wire::Part::Other(_) => (number, None),
        }))
    })
    .scan(false, |has_failed, field| {
        // What follows a malformed field cannot be read.
        (!std::mem::replace(has_failed, field.is_err())).then_some(field)
    })
}

/// Appends an event of a watch: its length in four bytes, and a `WatchEvent` around the envelope of the object.
pub fn write_event(type_: &str, envelope: &[u8], out: &mut Vec<u8>) {
    debug_assert_eq!(META_V1_WATCH_EVENT.fields.len(), 2);
    let extension = key_bytes(1, envelope.len()) + envelope.len();
    let event = key_bytes(1, type_.len()) + type_.len() + key_bytes(2, extension) + extension;
    // An event has at most the size of an object, a few mebibytes.
    out.extend_from_slice(&u32::try_from(event).unwrap_or(u32::MAX).to_be_bytes());
    write_bytes_key(1, type_.len(), out);
    out.extend_from_slice(type_.as_bytes());
    write_bytes_key(2, extension, out);
    write_bytes_key(1, envelope.len(), out);
    out.extend_from_slice(envelope);
}

/// Reads an event of a watch, without its length: the type, and the envelope of the object. Absent parts are empty.
///
/// # Errors
/// Bytes that are not an event.
pub fn read_event(event: &[u8]) -> Result<(Cow<'_, str>, &[u8]), Malformed> {
    let (mut type_, mut envelope) = (Cow::default(), &[][..]);
    let mut reader = wire::Reader::new(event);
    while let Some((number, part)) = reader.next()? {
        match number {
            1 => type_ = part.text("type")?,
            2 => {
                let mut extension = wire::Reader::new(part.bytes("object")?);
                while let Some((number, part)) = extension.next()? {
                    if number == 1 {
                        envelope = part.bytes("raw")?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok((type_, envelope))
}

/// Fuzz target: decoding must not panic, and a decoded object must survive a round trip.
///
/// # Panics
/// If an object changes in a round trip, which is a bug.
pub fn fuzz_decode(bytes: &[u8]) {
    use drydock_proto::protobuf::MESSAGES;
    let Some((first, rest)) = bytes.split_first() else {
        return;
    };
    let Some(message) = MESSAGES.get(usize::from(*first) % MESSAGES.len()) else {
        return;
    };
    let mut object = Map::new();
    if decode_message(rest, message, None, &mut object).is_ok() {
        let object = Value::Object(object);
        let again = encode(&object, message).map(|encoded| decode(&encoded, message, None));
        assert_eq!(again, Ok(Ok(object)));
    }
    // An error is one of the expected results.
    let _malformed = decode(rest, message, None).is_err();
}

#[cfg(test)]
mod tests;
