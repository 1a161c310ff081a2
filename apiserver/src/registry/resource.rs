//! A served resource: its names, its served versions, its rules, and how its objects are stored.

use std::sync::Arc;

use bytes::Bytes;
use drydock_machinery::apply::field_set::FieldSet;
use drydock_machinery::apply::managed_fields::{reset_by_object, reset_by_status};
use drydock_machinery::codec::encode_stored;
use drydock_machinery::patch::{PatchError, Patched};
use drydock_proto::kinds::{Context, Scope};
use drydock_proto::protobuf::Message;
use drydock_storage::{Key, KeyError, KeyRange};
use serde_json::Value;

use super::face::Face;
use super::part::Part;
use super::strategy::Strategy;
use crate::error::{ApiError, GroupResource};

/// The group segment of the keys of core resources, whose API group is empty.
pub const CORE_KEY_GROUP: &str = "core";

static NO_FIELDS: FieldSet = FieldSet::new();

/// The grace period of a delete, in seconds, given the requested one. `None`: the object is removed at once. Used by kinds
/// such as pods, where the kubelet deletes the object with a grace period of 0 once it has stopped.
pub type GracePeriod = fn(object: &Value, requested: Option<i64>) -> Option<i64>;

/// Applies a strategic merge patch to an object of a kind.
pub type StrategicMerge = fn(document: &Value, patch: &[u8]) -> Result<Patched, PatchError>;

/// The optional features of a resource.
#[derive(Debug, Clone, Copy)]
pub struct Capabilities {
    /// The fields that field selectors may use besides `metadata.name` and `metadata.namespace`: paths of scalars in the hub.
    pub selectable_fields: &'static [&'static str],
    /// Subresources besides `status`.
    pub more_subresources: &'static [Subresource],
    /// Whether an update without a resourceVersion overwrites whatever is stored. Otherwise it is rejected with 422.
    pub unconditional_update: bool,
    /// Graceful deletion.
    pub grace_period: Option<GracePeriod>,
    /// How strategic merge patches are applied; if `None`, by the schema of the version.
    pub strategic_merge: Option<StrategicMerge>,
    /// The fields of protobuf bodies that are read, for a kind without a complete message in its versions.
    pub body_message: Option<&'static Message>,
}

impl Capabilities {
    /// The features of a custom resource.
    pub const NONE: Self = Self {
        selectable_fields: &[],
        more_subresources: &[],
        unconditional_update: false,
        grace_period: None,
        strategic_merge: None,
        body_message: None,
    };
}

/// A subresource as discovery shows it.
#[derive(Debug, Clone, Copy)]
pub struct Subresource {
    /// Its name in the URL.
    pub name: &'static str,
    /// The kind it is read and written as.
    pub kind: &'static str,
    /// Group and version of that kind, if they differ from the resource's.
    pub foreign_kind: Option<(&'static str, &'static str)>,
    /// Its verbs, sorted.
    pub verbs: &'static [&'static str],
}

/// A served resource.
pub struct Resource {
    /// API group; empty for core.
    pub group: &'static str,
    /// Plural, as in URLs.
    pub plural: &'static str,
    /// Singular.
    pub singular: &'static str,
    /// The kind, in CamelCase.
    pub kind: &'static str,
    /// Short names for the command line.
    pub short_names: &'static [&'static str],
    /// Categories, for commands such as `kubectl get drydock`.
    pub categories: &'static [&'static str],
    /// Where objects live.
    pub scope: Scope,
    /// Served versions: the stored one first, which is also the preferred one. Never empty.
    pub faces: Vec<Arc<Face>>,
    /// Whether `status` is a subresource of its own.
    pub has_status: bool,
    /// The rules of the kind.
    pub strategy: Box<dyn Strategy>,
    /// The optional features.
    pub capabilities: Capabilities,
}

impl std::fmt::Debug for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resource")
            .field("group", &self.group)
            .field("plural", &self.plural)
            .finish_non_exhaustive()
    }
}

impl Resource {
    /// The subresources in a version, `status` first.
    #[must_use]
    pub fn subresources(&self, face: &Face) -> Vec<Subresource> {
        let status = self.has_status.then_some(Subresource {
            name: "status",
            kind: face.names.kind,
            foreign_kind: None,
            verbs: &["get", "patch", "update"],
        });
        status
            .into_iter()
            .chain(self.capabilities.more_subresources.iter().copied())
            .collect()
    }

    /// Whether objects live in namespaces.
    #[must_use]
    pub const fn is_namespaced(&self) -> bool {
        matches!(self.scope, Scope::Namespaced)
    }

    /// The served version with this name, under one of the plurals of the resource.
    #[must_use]
    pub fn face(&self, plural: &str, version: &str) -> Option<&Arc<Face>> {
        let mut faces = self.faces.iter().filter(|face| face.version == version);
        faces.find(|face| face.names.plural == plural)
    }

    /// The served version with this `apiVersion`, under the names of the kind.
    #[must_use]
    pub fn face_of(&self, api_version: &str) -> Option<&Arc<Face>> {
        let mut faces = self.faces.iter().filter(|face| face.alias.is_none());
        faces.find(|face| *face.api_version == *api_version)
    }

    /// The version objects are stored in: the hub.
    ///
    /// # Panics
    /// Never: a resource is made with at least one version.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a resource is made with at least one version")]
    pub fn storage_face(&self) -> &Arc<Face> {
        self.faces.first().expect("a resource has a version")
    }

    /// Decodes a stored value to the hub. A value stored in another served version is converted.
    ///
    /// # Errors
    /// 500 for bytes that are not JSON, for a stored version that is not served, and for a value that cannot be converted.
    pub fn decode(&self, value: &drydock_storage::Value) -> Result<Value, ApiError> {
        let storage = self.storage_face();
        let undecodable = || ApiError::storage_read("a stored object cannot be decoded");
        let object: Value =
            serde_json::from_slice(&value.bytes).map_err(|error| undecodable().because(error))?;
        if value.form == storage.api_version {
            return Ok(object);
        }
        let face = self.face_of(&value.form).ok_or_else(|| {
            undecodable().because(UnknownForm {
                form: value.form.to_string(),
                kind: self.kind,
            })
        })?;
        let context = Context {
            stored: None,
            now: "1970-01-01T00:00:00Z",
        };
        face.convert_to_hub(object, storage, &context)
            .map_err(|error| undecodable().because(error))
    }

    /// Encodes a hub as a stored value.
    ///
    /// # Errors
    /// 500 for an object without a uid, 413 for one of 4 GiB or more.
    pub fn encode(&self, hub: &Value) -> Result<drydock_storage::Value, ApiError> {
        let stored = encode_stored(hub)
            .ok_or_else(|| ApiError::internal("an object without a uid cannot be stored"))?;
        Ok(drydock_storage::Value {
            bytes: Bytes::from(stored.bytes),
            form: Arc::clone(&self.storage_face().api_version),
            splice_offset: u32::try_from(stored.resource_version_at)
                .map_err(|error| ApiError::too_large("the object is too large").because(error))?,
        })
    }

    /// The plural with its group, as messages name it.
    #[must_use]
    pub const fn group_resource(&self) -> GroupResource<'static> {
        GroupResource {
            group: self.group,
            resource: self.plural,
        }
    }

    /// The kind with its group, as messages about invalid objects name it.
    #[must_use]
    pub const fn group_kind(&self) -> GroupResource<'static> {
        GroupResource {
            group: self.group,
            resource: self.kind,
        }
    }

    const fn key_group(&self) -> &'static str {
        if self.group.is_empty() {
            CORE_KEY_GROUP
        } else {
            self.group
        }
    }

    /// The fields that a write through this part cannot change. Managed fields never list them for such a write.
    #[must_use]
    pub fn reset_fields(&self, part: Part) -> &'static FieldSet {
        match part {
            Part::Main if self.has_status => reset_by_object(),
            Part::Main => &NO_FIELDS,
            Part::Status => reset_by_status(),
        }
    }

    /// The storage key of an object.
    ///
    /// # Errors
    /// A name or namespace that is not valid in a key.
    pub fn key(&self, namespace: &str, name: &str) -> Result<Key, KeyError> {
        Key::new(self.key_group(), self.plural, namespace, name)
    }

    /// The keys of all objects, or of those in one namespace.
    #[must_use]
    pub fn range(&self, namespace: Option<&str>) -> KeyRange {
        match namespace {
            None => KeyRange::resource(self.key_group(), self.plural),
            Some(namespace) => KeyRange::namespace(self.key_group(), self.plural, namespace),
        }
    }

    /// The group and the plural as they are spelled in keys.
    #[must_use]
    pub const fn key_prefix(&self) -> (&'static str, &'static str) {
        (self.key_group(), self.plural)
    }
}

/// A stored value in a version that this server does not serve, for example one written by a newer release.
#[derive(Debug, thiserror::Error)]
#[error("it is stored as {form}, which is not a served version of {kind}")]
struct UnknownForm {
    form: String,
    kind: &'static str,
}

/// `group/version`, or the version alone for core.
#[must_use]
pub fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

/// A string member of `metadata`; empty when absent.
#[must_use]
pub fn metadata_text<'a>(object: &'a Value, member: &str) -> &'a str {
    object
        .get("metadata")
        .and_then(|metadata| metadata.get(member))
        .and_then(Value::as_str)
        .unwrap_or_default()
}
