//! How does a patch change an object? JSON patch (RFC 6902) and JSON merge patch (RFC 7386), as the reference server
//! applies them.
//!
//! A patch works on the object in the version of the request, metadata included. What comes out is decoded, defaulted
//! and validated like an update. Start at [`json::apply`] and [`merge::apply`].

pub mod json;
pub mod merge;

use serde_json::Value;

use crate::codec::{DecodeError, StrictError};

/// A patched document.
#[derive(Debug, Clone, PartialEq)]
pub struct Patched {
    /// The document after the patch.
    pub value: Value,
    /// What a strict client wants to know about the patch itself.
    pub strict: Vec<StrictError>,
}

/// Why a patch cannot be applied. The comment of each variant says how it is answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch is not JSON: 400.
    #[error("invalid JSON patch")]
    NotJson,
    /// A merge patch that is null or a scalar: 400.
    #[error("Invalid JSON Patch")]
    NotAnObject,
    /// The patch has another shape than its type asks for: 400.
    #[error("error decoding patch: {0}")]
    Decode(DecodeError),
    /// More operations than allowed: 413.
    #[error(
        "Request entity too large: The allowed maximum operations in a JSON patch is {}, got {count}",
        json::MOST_OPERATIONS
    )]
    TooManyOperations {
        /// How many there are.
        count: usize,
    },
    /// An operation failed: 422, reason Invalid, empty details.
    #[error("the server rejected our request due to an error in our request")]
    Operation {
        /// The position of the operation.
        index: usize,
        /// What is wrong with it.
        source: OperationError,
    },
}

/// Why an operation of a JSON patch failed. Clients are not told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OperationError {
    /// The operation is none of the six.
    #[error("unexpected kind: {0}")]
    UnknownOperation(String),
    /// A member that the operation needs is missing.
    #[error("missing {0}")]
    MissingMember(&'static str),
    /// The path, or the object it goes through, does not exist.
    #[error("doc is missing path: {0:?}")]
    MissingPath(String),
    /// An index is no number or out of bounds.
    #[error("invalid index: {0:?}")]
    Index(String),
    /// The value is not the one that was tested for.
    #[error("testing value {0} failed: test failed")]
    Test(String),
    /// The whole document cannot be treated so.
    #[error("operation on the whole document")]
    WholeDocument,
    /// The document would be nested more than 100 levels deep.
    #[error("document nested too deeply")]
    TooDeep,
    /// Lists were rearranged too much.
    #[error("too many list items moved")]
    TooMuchWork,
    /// Copies have grown beyond 3 MiB.
    #[error("unable to complete the copy, the accumulated size increase of copy is {0}, exceeding the limit")]
    CopyTooLarge(usize),
}
