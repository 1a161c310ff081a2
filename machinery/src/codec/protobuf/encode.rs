//! JSON to messages.

use drydock_proto::protobuf::{Field, FieldKind, Message};
use jiff::Timestamp;
use serde_json::Value;

use super::wire::{write_bytes_key, write_varint, write_varint_key};
use crate::schema::time;

/// A member of an object does not have the type of its field.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}.{field} cannot be written as protobuf")]
pub struct EncodeError {
    /// The message.
    pub message: &'static str,
    /// The field.
    pub field: &'static str,
}

/// Appends an object as a message, fields in the order of their numbers. Members without a field, such as `kind`, and `null`
/// are skipped.
///
/// # Errors
/// A member whose type does not fit its field.
pub fn encode_message(object: &Value, message: &Message, out: &mut Vec<u8>) -> Result<(), EncodeError> {
    for field in message.fields {
        let Some(value) = object.get(field.name).filter(|value| !value.is_null()) else {
            continue;
        };
        let written = match value {
            Value::Array(items) if field.is_repeated => {
                items.iter().try_for_each(|item| write(item, field, out))
            }
            _ if field.is_repeated => Err(Unfit::Here),
            value => write(value, field, out),
        };
        written.map_err(|unfit| match unfit {
            Unfit::Here => EncodeError {
                message: message.name,
                field: field.name,
            },
            Unfit::Below(error) => error,
        })?;
    }
    Ok(())
}

enum Unfit {
    Here,
    Below(EncodeError),
}

/// Appends one value with its key.
fn write(value: &Value, field: &Field, out: &mut Vec<u8>) -> Result<(), Unfit> {
    let number = u64::from(field.number);
    match (&field.kind, value) {
        (FieldKind::Text | FieldKind::Bytes, Value::String(text)) => write_text(number, text, out),
        (FieldKind::Int32 | FieldKind::Int64, Value::Number(value)) => {
            let value = value.as_i64().ok_or(Unfit::Here)?;
            write_varint_key(number, out);
            write_varint(value.cast_unsigned(), out);
        }
        (FieldKind::Boolean, Value::Bool(value)) => {
            write_varint_key(number, out);
            write_varint(u64::from(*value), out);
        }
        (FieldKind::Map, Value::Object(members)) => {
            for (key, value) in members {
                let value = value.as_str().ok_or(Unfit::Here)?;
                delimited(number, out, |out| {
                    write_text(1, key, out);
                    write_text(2, value, out);
                    Ok(())
                })?;
            }
        }
        (FieldKind::Time, Value::String(text)) => {
            let time = match text.parse::<Timestamp>() {
                Ok(time) => time,
                // A time beyond the range is left out: one object must not make lists of all objects fail.
                Err(_) if time::normalized(text).is_ok() => return Ok(()),
                Err(_) => return Err(Unfit::Here),
            };
            delimited(number, out, |out| {
                write_varint_key(1, out);
                write_varint(time.as_second().cast_unsigned(), out);
                write_varint_key(2, out);
                write_varint(0, out);
                Ok(())
            })?;
        }
        (FieldKind::FieldSet, value) => {
            let json = super::super::encode(value);
            delimited(number, out, |out| {
                write_bytes_key(1, json.len(), out);
                out.extend_from_slice(&json);
                Ok(())
            })?;
        }
        (FieldKind::Message(inner), Value::Object(_)) => {
            delimited(number, out, |out| {
                encode_message(value, inner, out).map_err(Unfit::Below)
            })?;
        }
        _ => return Err(Unfit::Here),
    }
    Ok(())
}

fn write_text(number: u64, text: &str, out: &mut Vec<u8>) {
    write_bytes_key(number, text.len(), out);
    out.extend_from_slice(text.as_bytes());
}

/// Appends a key and what `write` appends. The length comes first, so the content is moved once it is known; messages are
/// nested only a few levels deep.
fn delimited(
    number: u64,
    out: &mut Vec<u8>,
    write: impl FnOnce(&mut Vec<u8>) -> Result<(), Unfit>,
) -> Result<(), Unfit> {
    let start = out.len();
    write(out)?;
    let end = out.len();
    write_bytes_key(number, end - start, out);
    let moved = out.len() - end;
    if let Some(content) = out.get_mut(start..) {
        content.rotate_right(moved);
    }
    Ok(())
}
