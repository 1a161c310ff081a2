//! An endpoint is a resource in one served version. Only here does an object in that version become the stored form
//! (the hub), and the stored form an object in that version.
//!
//! ```text
//! body ── conform ── into_hub ──► hub ── Resource::encode ──► stored value
//! stored value ── Resource::decode ──► hub ── from_hub ──► object in the endpoint's version
//!             └── write_served: bytes are copied if they are stored in the endpoint's version
//! ```

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use bytes::BytesMut;
use drydock_machinery::apply::managed_fields::{Versions, sort_entries};
use drydock_machinery::codec::{self, DecodeError, StrictError};
use drydock_machinery::field_error::ErrorList;
use drydock_machinery::schema::Structural;
use drydock_proto::kinds::Context;
use drydock_storage::{Key, Revision};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::face::Face;
use super::metadata::{metadata_mut, time_text};
use super::resource::{Resource, metadata_text};
use crate::error::{ApiError, GroupResource};

/// A resource in one of its served versions. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct Endpoint {
    resource: Arc<Resource>,
    face: Arc<Face>,
}

/// The annotation in which a converted object carries the hub it was shown from, while ownership is compared in several
/// versions. It is never stored and never sent.
const SHOWN_FROM: &str = "conversion.coordination.k8s.io/shown-from";

impl Endpoint {
    /// The endpoint of a version under one of the plurals of the resource; `None` if it is not served.
    #[must_use]
    pub fn of(resource: &Arc<Resource>, plural: &str, version: &str) -> Option<Self> {
        let face = resource.face(plural, version)?;
        Some(Self {
            resource: Arc::clone(resource),
            face: Arc::clone(face),
        })
    }

    /// Every endpoint of a resource.
    pub fn all(resource: &Arc<Resource>) -> impl Iterator<Item = Self> {
        resource.faces.iter().map(|face| Self {
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

    /// The kind, in CamelCase.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.face.names.kind
    }

    /// The plural with its group, as messages name it.
    #[must_use]
    pub fn group_resource(&self) -> GroupResource<'static> {
        GroupResource {
            group: self.resource.group,
            resource: self.face.names.plural,
        }
    }

    /// The kind with its group, as messages about invalid objects name it.
    #[must_use]
    pub fn group_kind(&self) -> GroupResource<'static> {
        GroupResource {
            group: self.resource.group,
            resource: self.face.names.kind,
        }
    }

    /// The key of the object with a name. A name that no object can have names none.
    ///
    /// # Errors
    /// 404.
    pub fn key(&self, namespace: &str, name: &str) -> Result<Key, ApiError> {
        let stored = match self.face.alias {
            None => Some(name),
            Some(alias) => (alias.stored_name)(name),
        };
        let stored = stored.ok_or_else(|| self.not_found(name))?;
        self.resource
            .key(namespace, stored)
            .map_err(|error| self.not_found(name).because(error))
    }

    /// The error for an object that does not exist.
    #[must_use]
    pub fn not_found(&self, name: &str) -> ApiError {
        ApiError::not_found(self.group_resource(), name)
    }

    /// The name of a hub in this version.
    #[must_use]
    pub fn name_of<'a>(&self, hub: &'a Value) -> Cow<'a, str> {
        match self.face.alias {
            None => Cow::Borrowed(metadata_text(hub, "name")),
            Some(alias) => Cow::Owned((alias.name_of)(hub)),
        }
    }

    /// The uid in this version of an object with a stored uid. The stored one, given that of this version.
    #[must_use]
    pub fn other_uid<'a>(&self, uid: &'a str) -> Cow<'a, str> {
        match self.face.alias {
            Some(alias) if !uid.is_empty() => Cow::Owned((alias.other_uid)(uid)),
            _ => Cow::Borrowed(uid),
        }
    }

    /// Checks that the object found under the key of a name has that name in this version.
    ///
    /// # Errors
    /// 404; 500 for a stored value that cannot be decoded.
    pub fn check_name(&self, value: &drydock_storage::Value, name: &str) -> Result<(), ApiError> {
        if self.face.alias.is_none() || self.name_of(&self.resource.decode(value)?) == name {
            return Ok(());
        }
        Err(self.not_found(name))
    }

    /// Errors of a hub, with the paths that its fields have in this version.
    #[must_use]
    pub fn shown_errors(&self, errors: ErrorList) -> ErrorList {
        if self.face.paths.is_empty() {
            return errors;
        }
        let mut shown = ErrorList::new();
        for error in &errors {
            let path = self.face.path(error.field()).into_owned();
            shown.push(error.clone().at(path));
        }
        shown
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

    /// Converts an object of this version to the hub. `stored` is the hub that it replaces; `None` for a new object.
    ///
    /// # Errors
    /// 400 for an object that the hub cannot represent.
    pub fn into_hub(
        &self,
        mut object: Value,
        stored: Option<&Value>,
        now: Timestamp,
    ) -> Result<Value, ApiError> {
        if self.face.is_hub() {
            return Ok(object);
        }
        take_shown_from(&mut object);
        self.convert_owners(&mut object, Self::stored_owner);
        let storage = self.resource.storage_face();
        let context = Context {
            stored,
            now: &time_text(now),
        };
        let converted = self.face.convert_to_hub(object, storage, &context);
        let mut hub = converted.map_err(|error| {
            ApiError::bad_request(codec::cannot_be_handled(self.kind(), self.face.version, &error))
        })?;
        storage.schema.default(&mut hub);
        Ok(hub)
    }

    /// Converts a hub to an object of this version.
    ///
    /// # Errors
    /// 500 for a bug in the conversion: every stored object can be represented in every version.
    pub fn from_hub(&self, hub: Value) -> Result<Value, ApiError> {
        let mut object = self.face.convert_from_hub(hub).map_err(|error| {
            ApiError::internal(format!(
                "a stored {} cannot be converted to {}",
                self.resource.kind, self.face.version
            ))
            .because(error)
        })?;
        self.convert_owners(&mut object, Self::shown_owner);
        Ok(object)
    }

    /// The version of managed fields as it is stored. `coordination.k8s.io/v1alpha1` alone would be ambiguous where two
    /// resources of a version show the same objects: that of a resource of its own has its plural before the group.
    fn stored_owner(&self, version: &str) -> Option<String> {
        let alias = self.face.alias?;
        if *version == *self.face.api_version {
            return Some(format!("{}.{version}", alias.names.plural));
        }
        let own = version.strip_prefix(self.resource.plural)?.strip_prefix('.')?;
        (*own == *self.face.api_version).then(|| own.to_owned())
    }

    /// The version of managed fields as this version shows it: the reverse of [`Self::stored_owner`].
    fn shown_owner(&self, version: &str) -> Option<String> {
        let alias = self.face.alias?;
        if *version == *self.face.api_version {
            return Some(format!("{}.{version}", self.resource.plural));
        }
        let own = version.strip_prefix(alias.names.plural)?.strip_prefix('.')?;
        (*own == *self.face.api_version).then(|| own.to_owned())
    }

    fn convert_owners(&self, object: &mut Value, convert: fn(&Self, &str) -> Option<String>) {
        if self.face.alias.is_none() {
            return;
        }
        if let Some(entries) = object.pointer_mut("/metadata/managedFields") {
            self.convert_versions(entries, convert);
        }
    }

    fn convert_versions(&self, entries: &mut Value, convert: fn(&Self, &str) -> Option<String>) {
        let Some(entries) = entries.as_array_mut() else {
            return;
        };
        for entry in entries.iter_mut() {
            let version = entry.get("apiVersion").and_then(Value::as_str);
            if let Some(converted) = version.and_then(|version| convert(self, version))
                && let Some(members) = entry.as_object_mut()
            {
                members.insert("apiVersion".to_owned(), converted.into());
            }
        }
        sort_entries(entries);
    }

    /// Managed fields of an object in this version as they are stored.
    #[must_use]
    pub fn stored_owners(&self, mut entries: Option<Value>) -> Option<Value> {
        if self.face.alias.is_some()
            && let Some(entries) = &mut entries
        {
            self.convert_versions(entries, Self::stored_owner);
        }
        entries
    }

    /// The face with this version in managed fields as this version shows them.
    fn owner_face(&self, version: &str) -> Option<&Arc<Face>> {
        let stored = self.stored_owner(version);
        let stored = stored.as_deref().unwrap_or(version);
        let mut faces = self.resource.faces.iter();
        faces.find(|face| match face.alias {
            None => *face.api_version == *stored,
            Some(alias) => stored
                .strip_prefix(alias.names.plural)
                .and_then(|rest| rest.strip_prefix('.'))
                .is_some_and(|version| *version == *face.api_version),
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

/// The versions of a resource while the ownership of fields is compared, relative to that of an endpoint.
#[derive(Debug)]
pub struct OwnerVersions<'a> {
    endpoint: &'a Endpoint,
    now: String,
}

impl<'a> OwnerVersions<'a> {
    /// Those of a write at this time.
    #[must_use]
    pub fn new(endpoint: &'a Endpoint, now: Timestamp) -> Self {
        Self {
            endpoint,
            now: time_text(now),
        }
    }

    /// Converts an object between two faces. If it carries the hub that it was shown from, that hub is the stored one.
    fn between(&self, mut object: Value, from: &Face, to: &Face) -> Option<Value> {
        let storage = self.endpoint.resource.storage_face();
        let shown_from = take_shown_from(&mut object);
        let context = Context {
            stored: shown_from.as_ref(),
            now: &self.now,
        };
        let hub = from.convert_to_hub(object, storage, &context).ok()?;
        if to.is_hub() {
            return Some(hub);
        }
        let carried = hub.get("metadata").is_some().then(|| hub.to_string());
        let mut converted = to.convert_from_hub(hub).ok()?;
        if let Some(carried) = carried {
            let metadata = metadata_mut(&mut converted);
            let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
            if let Some(annotations) = annotations.as_object_mut() {
                annotations.insert(SHOWN_FROM.to_owned(), carried.into());
            }
        }
        Some(converted)
    }
}

/// Removes the hub that an object was shown from, and returns it.
fn take_shown_from(object: &mut Value) -> Option<Value> {
    let metadata = object.get_mut("metadata")?.as_object_mut()?;
    let annotations = metadata.get_mut("annotations")?.as_object_mut()?;
    let carried = annotations.remove(SHOWN_FROM)?;
    if annotations.is_empty() {
        metadata.remove("annotations");
    }
    serde_json::from_str(carried.as_str()?).ok()
}

impl Versions for OwnerVersions<'_> {
    fn schema(&self, api_version: &str) -> Option<&Structural> {
        self.endpoint.owner_face(api_version).map(|face| &*face.schema)
    }

    fn convert(&self, object: &Value, api_version: &str) -> Option<Value> {
        let to = self.endpoint.owner_face(api_version)?;
        self.between(object.clone(), &self.endpoint.face, to)
    }

    fn revert(&self, object: &Value, api_version: &str) -> Option<Value> {
        let from = self.endpoint.owner_face(api_version)?;
        let mut reverted = self.between(object.clone(), from, &self.endpoint.face)?;
        take_shown_from(&mut reverted);
        Some(reverted)
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
