//! Decoding of request bodies into JSON values, and encoding of values.
//!
//! ```text
//! bytes ── json::decode / yaml::decode ──► Decoded { value, duplicates }
//!       ── protobuf::decode / cbor::decode ──► Value
//!                                             │ schema::Structural::conform, default
//! bytes ◄── encode / encode_pretty / encode_stored ── Value
//!       ◄── protobuf::encode / cbor::encode ── Value
//! ```
//!
//! Decoders return duplicate keys beside the value, for `fieldValidation`. Error texts are those of the reference
//! server (Go's `encoding/json` and `sigs.k8s.io/yaml`), since clients see them. Start at [`json::decode`].

pub mod cbor;
mod encode;
pub mod json;
mod location;
pub mod protobuf;
mod strict;
mod syntax;
pub mod yaml;

use serde_json::Value;

pub use encode::{Stored, encode, encode_pretty, encode_stored, splice_offset};
pub(crate) use location::{Location, Segment};
pub use strict::{
    FieldValidation, StrictError, cannot_be_handled, strict_errors, strict_errors_in, strict_yaml_error,
};

/// A decoded body: the value, and its duplicate keys.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// The value; of a duplicate key, the last value is used.
    pub value: Value,
    /// Duplicate keys, in the order in which they were found.
    pub duplicates: Vec<StrictError>,
}

/// Why a body does not decode into an object of the expected schema. `Display` prints the text of the reference server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The text is not JSON.
    #[error("{0}")]
    Syntax(String),
    /// Objects or lists are nested too deeply.
    #[error("exceeded max depth")]
    TooDeep,
    /// The text is not YAML, or not representable as JSON.
    #[error("error converting YAML to JSON: yaml: {0}")]
    Yaml(String),
    /// The aliases or the size of a YAML document exceed the budget.
    #[error("error converting YAML to JSON: yaml: document contains excessive aliasing")]
    ExcessiveAliasing,
    /// A value has the wrong JSON type, or a number is out of range.
    #[error("json: cannot unmarshal {found} into Go {place} of type {expected}")]
    Type {
        /// The type that was found: `string`, `number`, `number 1.5`, `bool`, `object` or `array`.
        found: String,
        /// The place: `value`, or `struct field Type.path.of.fields`.
        place: String,
        /// The Go type of the field.
        expected: String,
    },
    /// A time is not in RFC 3339 format.
    #[error("parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {rest:?} as {part:?}")]
    TimeSyntax {
        /// The whole text.
        text: String,
        /// The rest of the text, from the first mismatch.
        rest: String,
        /// The part of the layout that was expected.
        part: &'static str,
    },
    /// A part of a time is out of range.
    #[error("parsing time {text:?}: {what} out of range")]
    TimeRange {
        /// The whole text.
        text: String,
        /// The part.
        what: &'static str,
    },
    /// A time is followed by other text.
    #[error("parsing time {text:?}: extra text: {rest:?}")]
    TimeTrailing {
        /// The whole text.
        text: String,
        /// The text after the time.
        rest: String,
    },
}

impl DecodeError {
    /// The error of a value that does not have the type its place expects; `expected` is a Go type.
    #[must_use]
    pub fn wrong_type(found: &Value, place: &str, expected: &str) -> Self {
        Self::Type {
            found: json_type(found).to_owned(),
            place: place.to_owned(),
            expected: expected.to_owned(),
        }
    }
}

/// The name of a JSON type in the errors of Go's decoder.
pub(crate) const fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}
