//! A served version of a resource.

use std::sync::Arc;

use drydock_machinery::schema::Structural;
use drydock_machinery::table::{Cell, Column};
use drydock_proto::kinds::Conversion;
use jiff::Timestamp;
use serde_json::Value;

/// How `kubectl get` prints objects of a version.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    /// The columns, in order.
    pub columns: &'static [Column],
    /// The cells of an object in this version, one for each column. The time is the one ages are computed from.
    pub cells: fn(&Value, Timestamp) -> Vec<Cell>,
}

/// A served version of a resource: its schema, its columns, and its conversion to and from the stored form.
#[derive(Debug)]
pub struct Face {
    /// The version, as in URLs.
    pub version: &'static str,
    /// `group/version`, as in `apiVersion`.
    pub api_version: Arc<str>,
    /// The fields an object may have, with their defaults.
    pub schema: Arc<Structural>,
    /// The columns of `kubectl get`.
    pub table: Table,
    /// How objects convert between this version and the hub.
    pub conversion: Conversion,
}

impl Face {
    /// Whether objects of this version have the shape of the hub.
    #[must_use]
    pub const fn is_hub(&self) -> bool {
        matches!(self.conversion, Conversion::Identity)
    }
}
