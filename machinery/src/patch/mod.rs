//! JSON patch (RFC 6902), JSON merge patch (RFC 7386) and strategic merge patch, as the reference server applies them.
//!
//! A patch is applied to the object in the version of the request, metadata included. The caller decodes, defaults and
//! validates the result like an update. Start at [`json::apply`], [`merge::apply`] and [`strategic::apply`].

pub mod json;
pub mod merge;
pub mod strategic;

use serde_json::Value;

use crate::codec::{DecodeError, StrictError};

/// A patched document.
#[derive(Debug, Clone, PartialEq)]
pub struct Patched {
    /// The document after the patch.
    pub value: Value,
    /// Strict errors of the patch itself.
    pub strict: Vec<StrictError>,
}

/// Why a patch cannot be applied. The documentation of each variant names the HTTP status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    /// The patch is not JSON: 400.
    #[error("invalid JSON patch")]
    NotJson,
    /// The merge patch is null or a scalar: 400.
    #[error("Invalid JSON Patch")]
    NotAnObject,
    /// The patch does not have the structure of its media type: 400.
    #[error("error decoding patch: {0}")]
    Decode(DecodeError),
    /// The patch has too many operations: 413.
    #[error(
        "Request entity too large: The allowed maximum operations in a JSON patch is {}, got {count}",
        json::MAX_OPERATIONS
    )]
    TooManyOperations {
        /// The number of operations.
        count: usize,
    },
    /// An operation failed: 422, reason Invalid, empty details.
    #[error("the server rejected our request due to an error in our request")]
    Operation {
        /// The position of the operation.
        index: usize,
        /// The cause.
        source: OperationError,
    },
}

/// Why an operation of a JSON patch failed. Not sent to clients.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OperationError {
    /// The operation is not one of the six of RFC 6902.
    #[error("unexpected kind: {0}")]
    UnknownOperation(String),
    /// A required member of the operation is missing.
    #[error("missing {0}")]
    MissingMember(&'static str),
    /// The path or one of its parents does not exist.
    #[error("doc is missing path: {0:?}")]
    MissingPath(String),
    /// An index is not a number, or out of bounds.
    #[error("invalid index: {0:?}")]
    Index(String),
    /// The value differs from the tested one.
    #[error("testing value {0} failed: test failed")]
    Test(String),
    /// The operation is not possible on the whole document.
    #[error("operation on the whole document")]
    WholeDocument,
    /// The document would be nested more than 100 levels deep.
    #[error("document nested too deeply")]
    TooDeep,
    /// Too many list items were shifted, or too many bytes moved.
    #[error("too many items or bytes moved")]
    TooMuchWork,
    /// Copied values exceed 3 MiB in total.
    #[error("unable to complete the copy, the accumulated size increase of copy is {0}, exceeding the limit")]
    CopyTooLarge(usize),
}

/// The document that the fuzz targets patch.
fn fuzz_document() -> Value {
    serde_json::json!({"a": {"b": [1, {"c": null}]}, "d": "e"})
}
