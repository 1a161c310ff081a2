//! The protobuf messages of the kinds and of what surrounds them: tables of fields, generated from the `.proto` files
//! under `proto/proto/k8s.io`, that `drydock_machinery::codec::protobuf` encodes and decodes by.
//!
//! A version of a kind gets its protobuf form by a file `k8s.io/api/<group>/<version>/generated.proto` with a message of the
//! kind's name.

/// A message.
#[derive(Debug, PartialEq, Eq)]
pub struct Message {
    /// Package and name, for example `k8s.io.apimachinery.pkg.apis.meta.v1.ObjectMeta`.
    pub name: &'static str,
    /// The fields, sorted by number.
    pub fields: &'static [Field],
}

/// A field of a message.
#[derive(Debug, PartialEq, Eq)]
pub struct Field {
    /// The number on the wire.
    pub number: u32,
    /// The name, which is that of the member in JSON.
    pub name: &'static str,
    /// Whether it is a list of values.
    pub is_repeated: bool,
    /// The type of a value.
    pub kind: FieldKind,
}

/// The type of a field, and what it is in JSON.
#[derive(Debug, PartialEq, Eq)]
pub enum FieldKind {
    /// `string`: a string.
    Text,
    /// `int32`: a number.
    Int32,
    /// `int64`: a number.
    Int64,
    /// `bool`: a boolean.
    Boolean,
    /// `bytes`. No kind has such a field; only messages around objects do.
    Bytes,
    /// `map<string, string>`: an object with strings.
    Map,
    /// `meta.v1.Time`: a time as a string; absent for the zero time.
    Time,
    /// `meta.v1.FieldsV1`: JSON text, which is an object in JSON.
    FieldSet,
    /// Another message: an object.
    Message(&'static Message),
}

impl Field {
    /// A field with one value.
    #[must_use]
    pub const fn one(number: u32, name: &'static str, kind: FieldKind) -> Self {
        Self {
            number,
            name,
            is_repeated: false,
            kind,
        }
    }

    /// A field with a list of values.
    #[must_use]
    pub const fn list(number: u32, name: &'static str, kind: FieldKind) -> Self {
        Self {
            number,
            name,
            is_repeated: true,
            kind,
        }
    }
}

impl Message {
    /// The field with this number.
    #[must_use]
    pub fn field(&self, number: u64) -> Option<&'static Field> {
        let at = self
            .fields
            .binary_search_by(|field| u64::from(field.number).cmp(&number))
            .ok()?;
        self.fields.get(at)
    }

    /// The name without the package.
    #[must_use]
    pub fn short_name(&self) -> &'static str {
        self.name.rsplit('.').next().unwrap_or(self.name)
    }
}

/// The message of a kind in a version of group `coordination.k8s.io`; none if the version has no protobuf form.
#[must_use]
pub fn message_of_kind(version: &str, kind: &str) -> Option<&'static Message> {
    let name = format!("k8s.io.api.coordination.{version}.{kind}");
    let at = MESSAGES
        .binary_search_by(|message| message.name.cmp(name.as_str()))
        .ok()?;
    MESSAGES.get(at).copied()
}

include!(concat!(env!("OUT_DIR"), "/messages.rs"));

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::kinds::KINDS;

    /// Checks that a message has exactly the fields of a JSON schema, of the same types.
    fn check(message: &Message, schema: &Value, place: &str) {
        let properties = schema["properties"].as_object().expect(place);
        let mut names: Vec<&str> = message.fields.iter().map(|field| field.name).collect();
        names.sort_unstable();
        let expected: Vec<&String> = properties.keys().collect();
        assert_eq!(names, expected, "{place}");
        for field in message.fields {
            let place = format!("{place}.{}", field.name);
            let mut schema = &properties[field.name];
            let is_list = schema["type"] == "array";
            assert_eq!(field.is_repeated, is_list, "{place}");
            if is_list {
                schema = &schema["items"];
            }
            check_type(field, &stripped(schema), &place);
        }
    }

    /// Without the alternative `null`.
    fn stripped(schema: &Value) -> Value {
        let alternatives = schema.get("anyOf").or_else(|| schema.get("oneOf"));
        let alternative = alternatives.and_then(Value::as_array).into_iter().flatten();
        let mut alternative = alternative.filter(|one| one["type"] != "null");
        let mut schema = alternative.next().unwrap_or(schema).clone();
        if let Some(types) = schema["type"].as_array().cloned() {
            schema["type"] = types.into_iter().find(|one| one != "null").unwrap();
        }
        schema
    }

    fn check_type(field: &Field, schema: &Value, place: &str) {
        let (type_, format) = (&schema["type"], &schema["format"]);
        match field.kind {
            FieldKind::Time => assert_eq!(format, "date-time", "{place}"),
            FieldKind::Text => assert!(
                type_ == "string" && format.is_null() || type_.is_null(),
                "{place}: {schema}"
            ),
            FieldKind::Int32 => assert_eq!(
                (type_.as_str(), format.as_str()),
                (Some("integer"), Some("int32")),
                "{place}"
            ),
            FieldKind::Int64 => assert_eq!(
                (type_.as_str(), format.as_str()),
                (Some("integer"), Some("int64")),
                "{place}"
            ),
            FieldKind::Boolean => assert_eq!(type_, "boolean", "{place}"),
            FieldKind::Map => assert_eq!(schema["additionalProperties"]["type"], "string", "{place}"),
            FieldKind::Message(message) => check(message, schema, place),
            FieldKind::Bytes | FieldKind::FieldSet => panic!("{place} has no form in JSON"),
        }
    }

    #[test]
    fn messages_have_the_fields_of_the_schemas() {
        let mut checked = 0;
        for kind in KINDS {
            for face in kind.faces {
                let name = face.alias.map_or(kind.kind, |alias| alias.names.kind);
                let Some(message) = message_of_kind(face.version, name) else {
                    continue;
                };
                let names: Vec<_> = message
                    .fields
                    .iter()
                    .map(|field| (field.number, field.name))
                    .collect();
                assert_eq!(
                    names,
                    [(1, "metadata"), (2, "spec"), (3, "status")],
                    "{}",
                    message.name
                );
                for (field, schema) in [(2, (face.spec)()), (3, (face.status)())] {
                    let Some(FieldKind::Message(part)) = message.field(field).map(|field| &field.kind) else {
                        panic!("{} has no field {field}", message.name);
                    };
                    check(part, &schema, part.name);
                }
                checked += 1;
            }
        }
        assert!(checked >= 6, "our kinds have a protobuf form");
    }

    #[test]
    fn messages_are_found_by_name() {
        for message in MESSAGES {
            let by_name = MESSAGES.binary_search_by(|other| other.name.cmp(message.name));
            assert_eq!(by_name.map(|at| MESSAGES[at]), Ok(*message));
        }
        assert_eq!(message_of_kind("v1", "Lease"), None);
        assert_eq!(META_V1_OBJECT_META.field(17).unwrap().name, "managedFields");
        assert_eq!(META_V1_OBJECT_META.field(15), None);
    }
}
