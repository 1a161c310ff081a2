//! Messages to JSON.

use std::borrow::Cow;

use drydock_proto::protobuf::{Field, FieldKind, Message};
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::Malformed;
use super::wire::{Part, Reader};
use crate::schema::{Shape, Structural};

/// Reads a message into an object. Fields that the message does not have are skipped.
///
/// Go writes every field that is not a pointer, zero values included. By the schema, the zero value of a field that is
/// neither nullable nor required is read as absent, as in JSON of Go types, and the default applies; without a schema every
/// value is kept.
///
/// # Errors
/// Bytes that are not such a message.
pub fn decode_message(
    bytes: &[u8],
    message: &Message,
    schema: Option<&Structural>,
    object: &mut Map<String, Value>,
) -> Result<(), Malformed> {
    let mut reader = Reader::new(bytes);
    while let Some((number, part)) = reader.next()? {
        let Some(field) = message.field(number) else {
            continue;
        };
        let place = Place::of(schema, field.name);
        if field.is_repeated {
            let value = value(field, part, place.schema.and_then(items))?;
            let list = object
                .entry(field.name)
                .or_insert_with(|| Value::Array(Vec::new()));
            if let (Value::Array(items), Some(value)) = (list, value) {
                items.push(value);
            }
            continue;
        }
        match field.kind {
            FieldKind::Message(inner) => {
                // A message that is repeated although the field is not a list is merged.
                let bytes = part.bytes(field.name)?;
                let members = object
                    .entry(field.name)
                    .or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(members) = members {
                    decode_message(bytes, inner, place.schema, members)?;
                }
            }
            FieldKind::Map => {
                let (key, value) = entry(part.bytes(field.name)?)?;
                let members = object
                    .entry(field.name)
                    .or_insert_with(|| Value::Object(Map::new()));
                if let Value::Object(members) = members {
                    members.insert(key.into_owned(), value.into());
                }
            }
            _ => match value(field, part, None)? {
                Some(value) if !(place.drops_zero && is_zero(&value)) => {
                    object.insert(field.name.to_owned(), value);
                }
                _ => {
                    object.remove(field.name);
                }
            },
        }
    }
    Ok(())
}

/// The schema of a field.
#[derive(Clone, Copy)]
struct Place<'a> {
    schema: Option<&'a Structural>,
    /// Whether the zero value means that the field is absent.
    drops_zero: bool,
}

impl<'a> Place<'a> {
    fn of(parent: Option<&'a Structural>, name: &str) -> Self {
        let field = match parent.map(|schema| &schema.shape) {
            Some(Shape::Object(object)) => object.field(name),
            _ => None,
        };
        Self {
            schema: field.map(|field| &field.schema),
            drops_zero: field.is_some_and(|field| !field.is_required && !field.schema.nullable),
        }
    }
}

fn items(schema: &Structural) -> Option<&Structural> {
    match &schema.shape {
        Shape::List(list) => Some(&list.items),
        _ => None,
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_i64() == Some(0),
        Value::Bool(value) => !value,
        _ => false,
    }
}

/// One value of a field; `None` for a zero time, and for a field set that is not JSON.
pub(super) fn value(
    field: &Field,
    part: Part<'_>,
    schema: Option<&Structural>,
) -> Result<Option<Value>, Malformed> {
    let name = field.name;
    Ok(match field.kind {
        FieldKind::Text | FieldKind::Bytes => Some(part.text(name)?.into()),
        // As in Go, the upper bits are dropped.
        FieldKind::Int32 => Some(low_bits(part.varint(name)?).into()),
        FieldKind::Int64 => Some(part.varint(name)?.cast_signed().into()),
        FieldKind::Boolean => Some((part.varint(name)? != 0).into()),
        FieldKind::Time => time(part.bytes(name)?)?,
        FieldKind::FieldSet => {
            let mut raw: &[u8] = &[];
            let mut reader = Reader::new(part.bytes(name)?);
            while let Some((number, part)) = reader.next()? {
                if number == 1 {
                    raw = part.bytes("Raw")?;
                }
            }
            serde_json::from_slice(raw)
                .ok()
                .filter(|set: &Value| !set.is_null())
        }
        FieldKind::Message(inner) => {
            let mut members = Map::new();
            decode_message(part.bytes(name)?, inner, schema, &mut members)?;
            Some(Value::Object(members))
        }
        FieldKind::Map => None,
    })
}

fn low_bits(number: u64) -> i32 {
    let low = u32::try_from(number & u64::from(u32::MAX)).unwrap_or_default();
    low.cast_signed()
}

/// A time in whole seconds; `None` for the zero time, which is an empty message, and for one out of range.
fn time(bytes: &[u8]) -> Result<Option<Value>, Malformed> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut seconds = 0;
    let mut reader = Reader::new(bytes);
    while let Some((number, part)) = reader.next()? {
        if number == 1 {
            seconds = part.varint("seconds")?.cast_signed();
        }
    }
    let time = Timestamp::from_second(seconds).ok();
    Ok(time.map(|time| time.to_string().into()))
}

/// An entry of a map.
pub(super) fn entry(bytes: &[u8]) -> Result<(Cow<'_, str>, Cow<'_, str>), Malformed> {
    let (mut key, mut value) = (Cow::default(), Cow::default());
    let mut reader = Reader::new(bytes);
    while let Some((number, part)) = reader.next()? {
        match number {
            1 => key = part.text("key")?,
            2 => value = part.text("value")?,
            _ => {}
        }
    }
    Ok((key, value))
}
