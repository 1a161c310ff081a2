//! An endpoint is a resource in one served version. Only here does an object in that version become the stored form
//! (the hub), and the stored form an object in that version.
//!
//! ```text
//! body ── conform ── into_hub ──► hub ── Resource::encode ──► stored value
//! stored value ── Resource::decode ──► hub ── from_hub ──► object in the endpoint's version
//!             └── write_served: bytes are copied if they are stored in the endpoint's version
//! ```

use std::fmt::Write as _;
use std::sync::Arc;

use bytes::BytesMut;
use drydock_machinery::apply::managed_fields::Versions;
use drydock_machinery::codec::{self, DecodeError, StrictError};
use drydock_machinery::schema::Structural;
use drydock_storage::Revision;
use serde_json::Value;

use super::face::Face;
use super::metadata::metadata_mut;
use super::resource::Resource;
use crate::error::ApiError;

/// A resource in one of its served versions. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Endpoint {
    resource: Arc<Resource>,
    face: Arc<Face>,
}

impl Endpoint {
    /// The endpoint of a version; `None` if the resource is not served in it.
    #[must_use]
    pub fn of(resource: &Arc<Resource>, version: &str) -> Option<Self> {
        let face = resource.face(version)?;
        Some(Self {
            resource: Arc::clone(resource),
            face: Arc::clone(face),
        })
    }

    /// The endpoint of the stored version.
    #[must_use]
    pub fn stored(resource: &Arc<Resource>) -> Self {
        Self {
            resource: Arc::clone(resource),
            face: Arc::clone(resource.storage_face()),
        }
    }

    /// The resource.
    #[must_use]
    pub const fn resource(&self) -> &Arc<Resource> {
        &self.resource
    }

    /// The version.
    #[must_use]
    pub fn face(&self) -> &Face {
        &self.face
    }

    /// Drops the fields that the schema does not have, and sets defaults. Returns the dropped fields.
    ///
    /// # Errors
    /// A member whose type differs from the schema.
    pub fn conform(&self, object: &mut Value) -> Result<Vec<StrictError>, DecodeError> {
        let unknown = self.face.schema.conform(object)?;
        self.face.schema.default(object);
        Ok(unknown)
    }

    /// Converts an object of this version to the hub.
    ///
    /// # Errors
    /// 400 for an object that the hub cannot represent.
    pub fn into_hub(&self, object: Value) -> Result<Value, ApiError> {
        self.face
            .convert_to_hub(object, self.resource.storage_face())
            .map_err(|error| {
                ApiError::bad_request(codec::cannot_be_handled(
                    self.resource.kind,
                    self.face.version,
                    &error,
                ))
            })
    }

    /// Converts a hub to an object of this version.
    ///
    /// # Errors
    /// 500 for a bug in the conversion: every stored object can be represented in every version.
    pub fn from_hub(&self, hub: Value) -> Result<Value, ApiError> {
        self.face.convert_from_hub(hub).map_err(|error| {
            ApiError::internal(format!(
                "a stored {} cannot be converted to {}",
                self.resource.kind, self.face.version
            ))
            .because(error)
        })
    }

    /// Decodes a stored value to an object of this version, with its resourceVersion if it has one.
    ///
    /// # Errors
    /// 500 for a stored value that cannot be decoded or converted.
    pub fn served(
        &self,
        value: &drydock_storage::Value,
        revision: Option<Revision>,
    ) -> Result<Value, ApiError> {
        let mut object = self.from_hub(self.resource.decode(value)?)?;
        if let Some(revision) = revision {
            metadata_mut(&mut object).insert("resourceVersion".to_owned(), revision.to_string().into());
        }
        Ok(object)
    }

    /// Appends the JSON of a stored value in this version, with its resourceVersion if it has one. Bytes that are stored
    /// in this version are copied without being decoded.
    ///
    /// # Errors
    /// 500 for a stored value that cannot be decoded or converted.
    pub fn write_served(
        &self,
        value: &drydock_storage::Value,
        revision: Option<Revision>,
        out: &mut BytesMut,
    ) -> Result<(), ApiError> {
        if value.form == self.face.api_version {
            write_with_revision(value, revision, out);
        } else {
            out.extend_from_slice(&codec::encode(&self.served(value, revision)?));
        }
        Ok(())
    }
}

impl Versions for Endpoint {
    fn schema(&self, api_version: &str) -> Option<&Structural> {
        self.resource.face_of(api_version).map(|face| &*face.schema)
    }

    fn convert(&self, object: &Value, api_version: &str) -> Option<Value> {
        let other = self.resource.face_of(api_version)?;
        let hub = self
            .face
            .convert_to_hub(object.clone(), self.resource.storage_face())
            .ok()?;
        other.convert_from_hub(hub).ok()
    }

    fn revert(&self, object: &Value, api_version: &str) -> Option<Value> {
        let other = self.resource.face_of(api_version)?;
        let hub = other
            .convert_to_hub(object.clone(), self.resource.storage_face())
            .ok()?;
        self.face.convert_from_hub(hub).ok()
    }
}

/// Room for `"resourceVersion":"<20 digits>",`.
const RESOURCE_VERSION_BYTES: usize = 42;

/// Appends stored bytes with the resourceVersion inserted at the value's splice offset.
fn write_with_revision(value: &drydock_storage::Value, revision: Option<Revision>, out: &mut BytesMut) {
    let at = usize::try_from(value.splice_offset)
        .unwrap_or(usize::MAX)
        .min(value.bytes.len());
    let (head, tail) = value.bytes.split_at(at);
    out.reserve(value.bytes.len() + RESOURCE_VERSION_BYTES);
    out.extend_from_slice(head);
    if let Some(revision) = revision {
        // Writing to a growing buffer cannot fail.
        let _ok = write!(out, "\"resourceVersion\":\"{revision}\",");
    }
    out.extend_from_slice(tail);
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn written(payload: &'static str, splice_offset: u32, revision: Option<Revision>) -> String {
        let value = drydock_storage::Value {
            bytes: Bytes::from_static(payload.as_bytes()),
            form: "v1".into(),
            splice_offset,
        };
        let mut out = BytesMut::new();
        write_with_revision(&value, revision, &mut out);
        String::from_utf8(out.to_vec()).unwrap()
    }

    #[test]
    fn the_resource_version_is_inserted_at_the_splice_offset() {
        let payload = r#"{"metadata":{"name":"n","uid":"u"}}"#;
        assert_eq!(
            written(payload, 24, Some(Revision(7))),
            r#"{"metadata":{"name":"n","resourceVersion":"7","uid":"u"}}"#
        );
        assert_eq!(written(payload, 24, None), payload);
    }

    #[test]
    fn a_splice_offset_beyond_the_payload_does_not_panic() {
        assert!(written("{}", 99, Some(Revision(7))).starts_with("{}"));
    }
}
