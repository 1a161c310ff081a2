//! Messages to JSON text, without a tree of values between.

use std::borrow::Cow;
use std::collections::BTreeMap;

use drydock_proto::protobuf::{Field, FieldKind, Message};
use serde::ser::{Error as _, SerializeMap};
use serde::{Serialize, Serializer};
use serde_json::Value;

use super::Malformed;
use super::decode::{entry, value};
use super::wire::{Part, Reader};

/// A message that serializes to what [`decode_message`](super::decode_message) reads without a schema, except that fields
/// with an empty text are left out: Go writes them for what is absent. Empty texts in maps and lists are kept.
///
/// A malformed field is an error of the serializer.
#[derive(Debug)]
pub struct MessageView<'a> {
    message: &'static Message,
    parts: Vec<(u64, Part<'a>)>,
}

impl<'a> MessageView<'a> {
    /// The message in these bytes. Fields that the message does not have are skipped.
    ///
    /// # Errors
    /// Bytes that are no message.
    pub fn new(bytes: &'a [u8], message: &'static Message) -> Result<Self, Malformed> {
        let parts = Vec::new();
        let mut view = Self { message, parts };
        view.extend(bytes)?;
        Ok(view)
    }

    fn extend(&mut self, bytes: &'a [u8]) -> Result<(), Malformed> {
        let mut reader = Reader::new(bytes);
        while let Some((number, part)) = reader.next()? {
            if self.message.field(number).is_some() {
                self.parts.push((number, part));
            }
        }
        Ok(())
    }

    /// Serializes the fields into an object that has other members too.
    ///
    /// # Errors
    /// Those of the serializer, and malformed fields.
    pub fn serialize_into<M: SerializeMap>(&self, object: &mut M) -> Result<(), M::Error> {
        for field in self.message.fields {
            let mut parts = self
                .parts
                .iter()
                .filter(|(number, _)| *number == u64::from(field.number))
                .map(|(_, part)| *part)
                .peekable();
            if parts.peek().is_none() {
                continue;
            }
            match field.kind {
                _ if field.is_repeated => {
                    let items = parts.filter_map(|part| Item::of(field, part).transpose());
                    let items: Result<Vec<_>, _> = items.collect();
                    object.serialize_entry(field.name, &items.map_err(M::Error::custom)?)?;
                }
                FieldKind::Map => {
                    let entries = parts.map(|part| entry(part.bytes(field.name)?));
                    let entries: Result<BTreeMap<_, _>, _> = entries.collect();
                    object.serialize_entry(field.name, &entries.map_err(M::Error::custom)?)?;
                }
                FieldKind::Message(message) => {
                    // A message that is repeated although the field is not a list is merged.
                    let mut view = MessageView {
                        message,
                        parts: Vec::new(),
                    };
                    for part in parts {
                        let bytes = part.bytes(field.name).map_err(M::Error::custom)?;
                        view.extend(bytes).map_err(M::Error::custom)?;
                    }
                    object.serialize_entry(field.name, &view)?;
                }
                _ => {
                    let item = parts.last().map(|part| Item::of(field, part));
                    match item.transpose().map_err(M::Error::custom)?.flatten() {
                        None => {}
                        Some(Item::Text(text)) if text.is_empty() => {}
                        Some(item) => object.serialize_entry(field.name, &item)?,
                    }
                }
            }
        }
        Ok(())
    }
}

impl Serialize for MessageView<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut object = serializer.serialize_map(None)?;
        self.serialize_into(&mut object)?;
        object.end()
    }
}

/// One value of a field.
#[derive(Serialize)]
#[serde(untagged)]
enum Item<'a> {
    Text(Cow<'a, str>),
    Message(MessageView<'a>),
    Other(Value),
}

impl<'a> Item<'a> {
    /// `None` for what is absent in JSON.
    fn of(field: &Field, part: Part<'a>) -> Result<Option<Self>, Malformed> {
        Ok(match field.kind {
            FieldKind::Text | FieldKind::Bytes => Some(Self::Text(part.text(field.name)?)),
            FieldKind::Message(message) => {
                Some(Self::Message(MessageView::new(part.bytes(field.name)?, message)?))
            }
            _ => value(field, part, None)?.map(Self::Other),
        })
    }
}
