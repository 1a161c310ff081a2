//! A served version of a resource, and its conversion to and from the stored form (the hub).

use std::sync::Arc;

use drydock_machinery::schema::Structural;
use drydock_machinery::table::{Cell, Column};
use drydock_proto::kinds::{Conversion, ConversionError};
use drydock_proto::protobuf::Message;
use jiff::Timestamp;
use serde_json::Value;

/// What `kubectl get` prints for objects of a version.
#[derive(Debug, Clone, Copy)]
pub struct Table {
    /// The columns, in order.
    pub columns: &'static [Column],
    /// The cells of an object in this version, one for each column. Ages are computed from the given time.
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
    /// The protobuf message of objects; if `None`, they are not served as protobuf, and a body in protobuf is rejected with 415.
    pub message: Option<&'static Message>,
    /// The columns of `kubectl get`.
    pub table: Table,
    /// How objects convert between this version and the hub.
    pub conversion: Conversion,
}

impl Face {
    /// Whether this version has the shape of the hub.
    #[must_use]
    pub const fn is_hub(&self) -> bool {
        matches!(self.conversion, Conversion::Identity)
    }

    /// Converts an object of this version to the hub. `apiVersion` becomes that of `storage`, the stored version.
    pub(super) fn convert_to_hub(&self, mut object: Value, storage: &Self) -> Result<Value, ConversionError> {
        if let Conversion::Functions { to_hub, .. } = self.conversion {
            to_hub(&mut object)?;
        }
        set_api_version(&mut object, &storage.api_version);
        Ok(object)
    }

    /// Converts a hub to an object of this version.
    pub(super) fn convert_from_hub(&self, mut hub: Value) -> Result<Value, ConversionError> {
        if let Conversion::Functions { from_hub, .. } = self.conversion {
            from_hub(&mut hub)?;
        }
        set_api_version(&mut hub, &self.api_version);
        Ok(hub)
    }
}

/// Sets `apiVersion`, unless it has that value already: the common case allocates nothing.
fn set_api_version(object: &mut Value, api_version: &str) {
    if let Some(members) = object.as_object_mut()
        && members.get("apiVersion").and_then(Value::as_str) != Some(api_version)
    {
        members.insert("apiVersion".to_owned(), api_version.into());
    }
}
