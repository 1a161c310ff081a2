//! Which part of an object a response shows.

use super::negotiate::{MetaVersion, Representation, Transform};
use super::query::Query;
use crate::error::ApiError;

/// The part of an object that a table row carries besides its cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IncludeObject {
    /// Nothing.
    None,
    /// Its metadata.
    Metadata,
    /// The whole object.
    Object,
}

impl IncludeObject {
    /// Parses `includeObject`, which applies to tables only.
    ///
    /// # Errors
    /// 400 for any other value.
    pub fn parse(query: &Query, representation: Representation) -> Result<Self, ApiError> {
        if !matches!(representation.transform, Transform::Table(_)) {
            return Ok(Self::Metadata);
        }
        match query.first("includeObject").unwrap_or_default() {
            "" | "Metadata" => Ok(Self::Metadata),
            "None" => Ok(Self::None),
            "Object" => Ok(Self::Object),
            other => Err(ApiError::bad_request(format!(
                "Unable to convert to Table as requested: includeObject: Invalid value: {other:?}: must be 'Metadata', \
                 'Object', 'None', or empty"
            ))),
        }
    }
}

/// What a watch event shows of its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Projection {
    /// The whole object.
    Object,
    /// Its metadata, as `PartialObjectMetadata`.
    Metadata(MetaVersion),
    /// A table with one row.
    Table {
        /// The version of `Table`.
        version: MetaVersion,
        /// What the row carries.
        include: IncludeObject,
        /// Whether the table has column definitions, as in the first event of a stream.
        with_columns: bool,
    },
}
