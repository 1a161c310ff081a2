//! How do bytes become objects, and objects bytes?
//!
//! ```text
//! bytes ── json::decode / yaml::decode ──► Decoded { value, duplicates }
//!                                             │ schema::Structural::conform, default
//! bytes ◄── encode / encode_pretty / encode_stored ── Value
//! ```
//!
//! Decoding reports what a strict client wants to know (duplicate keys) beside the value; texts are those of the
//! reference decoder, since clients see them. Start at [`json::decode`].

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
pub(crate) use strict::MOST_ERRORS;
pub use strict::{
    FieldValidation, StrictError, cannot_be_handled, strict_decoding_error, strict_errors, strict_errors_in,
    strict_yaml_error,
};

/// What a body said: the value, and the keys it said twice.
#[derive(Debug, Clone, PartialEq)]
pub struct Decoded {
    /// The value; of a repeated key, the last one counts.
    pub value: Value,
    /// Repeated keys, in the order in which they were found.
    pub duplicates: Vec<StrictError>,
}

/// Why a body is no object of the expected shape. `Display` is the text of the reference decoder.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The text is not JSON.
    #[error("{0}")]
    Syntax(String),
    /// Objects or lists are nested too deeply.
    #[error("exceeded max depth")]
    TooDeep,
    /// The text is not YAML that can be written as JSON.
    #[error("error converting YAML to JSON: yaml: {0}")]
    Yaml(String),
    /// The aliases or the size of a YAML document go beyond the budget.
    #[error("error converting YAML to JSON: yaml: document contains excessive aliasing")]
    ExcessiveAliasing,
    /// A field holds a value of another JSON type, or a number out of range.
    #[error("json: cannot unmarshal {found} into Go {place} of type {expected}")]
    Type {
        /// What was found: `string`, `number`, `number 1.5`, `bool`, `object` or `array`.
        found: String,
        /// Where: `value`, or `struct field Type.path.of.fields`.
        place: String,
        /// The type the field has.
        expected: String,
    },
    /// A time is not written as RFC 3339 has it.
    #[error("parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {rest:?} as {part:?}")]
    TimeSyntax {
        /// The text that was found.
        text: String,
        /// Where it stops to fit.
        rest: String,
        /// The part of the layout that should follow.
        part: &'static str,
    },
    /// A part of a time is too small or too large.
    #[error("parsing time {text:?}: {what} out of range")]
    TimeRange {
        /// The text that was found.
        text: String,
        /// The part.
        what: &'static str,
    },
    /// A time has something behind it.
    #[error("parsing time {text:?}: extra text: {rest:?}")]
    TimeTrailing {
        /// The text that was found.
        text: String,
        /// What follows the time.
        rest: String,
    },
}
