//! What is a served resource? Its names, its versions with their schemas, and its rules.

use std::sync::Arc;

use drydock_machinery::apply::field_set::FieldSet;
use drydock_machinery::apply::managed_fields::{reset_by_object, reset_by_status};
use drydock_machinery::schema::Structural;
use drydock_proto::kinds::{Kind, Scope};
use drydock_storage::{Key, KeyError, KeyRange};
use serde_json::Value;

use super::strategy::Strategy;
use crate::error::GroupResource;

/// The group segment of the keys of core resources, whose API group is empty.
pub const CORE_KEY_GROUP: &str = "core";

/// Which part of an object a write may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Everything but status.
    Main,
    /// Only status.
    Status,
}

static NOTHING: FieldSet = FieldSet::new();

/// A served version of a resource.
#[derive(Debug, Clone)]
pub struct ServedVersion {
    /// The version, as in URLs.
    pub name: &'static str,
    /// `group/version`, as in `apiVersion`.
    pub api_version: Arc<str>,
    /// The fields an object may have.
    pub schema: Arc<Structural>,
}

/// A subresource as discovery shows it.
#[derive(Debug, Clone, Copy)]
pub struct Subresource {
    /// Its name in the URL.
    pub name: &'static str,
    /// The kind it is read and written as.
    pub kind: &'static str,
    /// Group and version of that kind where they are not the resource's.
    pub foreign_kind: Option<(&'static str, &'static str)>,
    /// Its verbs, sorted.
    pub verbs: &'static [&'static str],
}

/// A served resource. The first version is the one that is stored and preferred.
pub struct Resource {
    /// API group; empty for core.
    pub group: &'static str,
    /// Plural, as in URLs.
    pub plural: &'static str,
    /// Singular.
    pub singular: &'static str,
    /// The kind, in CamelCase.
    pub kind: &'static str,
    /// Names people type.
    pub short_names: &'static [&'static str],
    /// Groups of resources people ask for at once.
    pub categories: &'static [&'static str],
    /// Where objects live.
    pub scope: Scope,
    /// Served versions, the stored and preferred first. Never empty.
    pub versions: Vec<ServedVersion>,
    /// Whether `status` is a subresource of its own.
    pub has_status: bool,
    /// Subresources beside `status`.
    pub more_subresources: &'static [Subresource],
    /// The rules of the kind.
    pub strategy: Box<dyn Strategy>,
}

impl std::fmt::Debug for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resource")
            .field("group", &self.group)
            .field("plural", &self.plural)
            .finish_non_exhaustive()
    }
}

/// A kind whose schema the API machinery cannot read: a fault of this program.
#[derive(Debug, thiserror::Error)]
#[error("the schema of {kind} in {version} is unusable")]
pub struct UnusableSchema {
    kind: &'static str,
    version: &'static str,
    #[source]
    source: drydock_machinery::schema::SchemaError,
}

impl Resource {
    /// The subresources, the status first.
    #[must_use]
    pub fn subresources(&self) -> Vec<Subresource> {
        let status = self.has_status.then_some(Subresource {
            name: "status",
            kind: self.kind,
            foreign_kind: None,
            verbs: &["get", "patch", "update"],
        });
        status
            .into_iter()
            .chain(self.more_subresources.iter().copied())
            .collect()
    }

    /// The resource of a kind of ours.
    ///
    /// # Errors
    /// A schema that cannot be read.
    pub fn of_kind(kind: &'static Kind, strategy: Box<dyn Strategy>) -> Result<Self, UnusableSchema> {
        let group = drydock_proto::kinds::GROUP;
        let versions = kind
            .faces
            .iter()
            .map(|face| {
                let (spec, status) = ((face.spec)(), (face.status)());
                let members = [("spec", &spec), ("status", &status)];
                let schema = Structural::for_kind(kind.kind, face.version, kind.description, &members)
                    .map_err(|source| UnusableSchema {
                        kind: kind.kind,
                        version: face.version,
                        source,
                    })?;
                Ok(ServedVersion {
                    name: face.version,
                    api_version: format!("{group}/{}", face.version).into(),
                    schema: Arc::new(schema),
                })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self {
            group,
            plural: kind.plural,
            singular: kind.singular,
            kind: kind.kind,
            short_names: kind.short_names,
            categories: kind.categories,
            scope: kind.scope,
            versions,
            has_status: true,
            more_subresources: &[],
            strategy,
        })
    }

    /// Whether objects live in namespaces.
    #[must_use]
    pub const fn is_namespaced(&self) -> bool {
        matches!(self.scope, Scope::Namespaced)
    }

    /// The served version of that name.
    #[must_use]
    pub fn version(&self, name: &str) -> Option<&ServedVersion> {
        self.versions.iter().find(|version| version.name == name)
    }

    /// The version objects are stored in.
    ///
    /// # Panics
    /// Never: a resource is made with at least one version.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a resource is made with at least one version")]
    pub fn storage_version(&self) -> &ServedVersion {
        self.versions.first().expect("a resource has a version")
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

    /// What a write through that part resets, whatever it says; nobody comes to own it there.
    #[must_use]
    pub fn reset_fields(&self, part: Part) -> &'static FieldSet {
        match part {
            Part::Main if self.has_status => reset_by_object(),
            Part::Main => &NOTHING,
            Part::Status => reset_by_status(),
        }
    }

    /// The storage key of an object.
    ///
    /// # Errors
    /// A name or namespace that no key can hold.
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

    /// Group and plural as keys spell them.
    #[must_use]
    pub const fn key_prefix(&self) -> (&'static str, &'static str) {
        (self.key_group(), self.plural)
    }
}

/// Every resource a server serves.
#[derive(Debug, Clone, Default)]
pub struct Catalog {
    resources: Vec<Arc<Resource>>,
}

impl Catalog {
    /// A catalog of these resources, in the order of discovery.
    #[must_use]
    pub fn new(resources: Vec<Arc<Resource>>) -> Self {
        Self { resources }
    }

    /// All resources.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.iter()
    }

    /// Group-versions in the order of preference: groups as they first appear, versions as their resources list them.
    #[must_use]
    pub fn group_versions(&self) -> Vec<(&'static str, &'static str)> {
        let mut found: Vec<(&'static str, &'static str)> = Vec::new();
        for resource in &self.resources {
            for version in &resource.versions {
                if !found.contains(&(resource.group, version.name)) {
                    found.push((resource.group, version.name));
                }
            }
        }
        found
    }

    /// The resources of a group-version.
    pub fn of_group_version<'a>(
        &'a self,
        group: &'a str,
        version: &'a str,
    ) -> impl Iterator<Item = (&'a Arc<Resource>, &'a ServedVersion)> {
        self.resources
            .iter()
            .filter(move |resource| resource.group == group)
            .filter_map(move |resource| resource.version(version).map(|served| (resource, served)))
    }
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

/// A member of `metadata` as text; empty when absent.
#[must_use]
pub fn metadata_text<'a>(object: &'a Value, member: &str) -> &'a str {
    object
        .get("metadata")
        .and_then(|metadata| metadata.get(member))
        .and_then(Value::as_str)
        .unwrap_or_default()
}
