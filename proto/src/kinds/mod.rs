//! The kinds Drydock serves, and the one list of them: [`for_each_kind`].
//!
//! A kind has one stored form, the *hub*, and one or more served versions, its *faces*. The hub has the shape of the
//! first face, so that face needs no conversion. Every other face has a pair of functions that convert a whole object to
//! the hub and back without loss ([`Conversion`]). A face may be another resource, with names of its own ([`Alias`]).

pub mod evictioninterceptor;
pub mod evictionrequest;
mod hidden;
pub mod nodemaintenance;

use serde_json::Value;

/// The API group of every kind.
pub const GROUP: &str = "coordination.k8s.io";

/// Whether objects of a kind are in a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// In a namespace.
    Namespaced,
    /// Cluster-scoped.
    Cluster,
}

/// What the conversion of an object to the hub depends on besides the object.
#[derive(Debug, Clone, Copy)]
pub struct Context<'a> {
    /// The hub that the object was shown from or replaces; `None` for a new object, and for one that is not complete.
    pub stored: Option<&'a Value>,
    /// The current time: RFC 3339 with whole seconds.
    pub now: &'a str,
}

/// Converts a whole object of a face to the hub, in place: `spec`, `status` and, where the shapes differ, `metadata`.
/// `kind`, `apiVersion` and the versions in managed fields are converted by the caller.
///
/// Fields of the hub that the face does not show are taken from [`Context::stored`]. Where several hubs are shown alike,
/// the stored one is kept unless the object differs from what is shown of it. The object may lack `metadata` or `spec`
/// and have null members, as the configurations of an apply.
pub type ToHub = fn(&mut Value, &Context<'_>) -> Result<(), ConversionError>;

/// Converts a hub to an object of a face, in place, as [`ToHub`] does in the other direction.
pub type FromHub = fn(&mut Value) -> Result<(), ConversionError>;

/// An object that has no equivalent in the other shape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct ConversionError {
    /// The path of the field, in the shape the object was converted from: `spec.size`.
    pub field: String,
    /// Why its value cannot be converted.
    pub message: String,
}

/// How a face relates to the hub.
#[derive(Debug, Clone, Copy)]
pub enum Conversion {
    /// The face has the shape of the hub: stored bytes are served as they are.
    Identity,
    /// The face has another shape. `from_hub` after `to_hub` yields the same object. `to_hub` after `from_hub` yields the
    /// same hub, given that hub as the stored one.
    Functions {
        /// From the face to the hub. The input fits the schema of the face, with defaults applied.
        to_hub: ToHub,
        /// From the hub to the face.
        from_hub: FromHub,
    },
}

/// The names of a resource and its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Names {
    /// The kind, in CamelCase.
    pub kind: &'static str,
    /// The resource: plural, lower case.
    pub plural: &'static str,
    /// The singular, lower case.
    pub singular: &'static str,
    /// Short names for the command line.
    pub short_names: &'static [&'static str],
    /// What the kind is, for `kubectl explain`.
    pub description: &'static str,
}

/// A face that is another resource: its objects have other names and uids than the stored ones, so that whoever walks
/// all resources of a cluster takes no object for two, or two for one.
#[derive(Debug, Clone, Copy)]
pub struct Alias {
    /// The names of the resource.
    pub names: Names,
    /// The name of a hub in this face.
    pub name_of: fn(hub: &Value) -> String,
    /// The stored name of the object with a name in this face; `None` if no object can have that name.
    pub stored_name: fn(name: &str) -> Option<&str>,
    /// Converts a stored uid to the one in this face, and back. No uid is converted to itself.
    pub other_uid: fn(uid: &str) -> String,
    /// How this face's `orphan` and `foregroundDeletion` are stored: the garbage collector removes those finalizers once it
    /// has dealt with the dependents of the object in this face, which are not those of the stored one.
    pub collection_finalizers: CollectionFinalizers,
    /// The finalizer that a delete in this face adds while [`Alias::is_held`].
    pub hold: &'static str,
    /// Whether finalizers that only this face shows hold a hub back from removal.
    pub is_held: fn(hub: &Value) -> bool,
}

/// The finalizers of the garbage collector, as they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectionFinalizers {
    /// Dependents are to be orphaned.
    pub orphan: &'static str,
    /// Dependents are to be deleted first.
    pub foreground: &'static str,
}

impl CollectionFinalizers {
    /// Those of objects as they are stored.
    pub const STORED: Self = Self {
        orphan: "orphan",
        foreground: "foregroundDeletion",
    };
}

/// A served version of a kind.
#[derive(Debug, Clone, Copy)]
pub struct Face {
    /// The version, as in URLs and `apiVersion`.
    pub version: &'static str,
    /// The other resource that this face is; `None` for the resource of the kind.
    pub alias: Option<&'static Alias>,
    /// The JSON schema of `spec` with its defaults, inlined.
    pub spec: fn() -> Value,
    /// The JSON schema of `status` with its defaults, inlined.
    pub status: fn() -> Value,
    /// The conversion between this version and the stored form.
    pub conversion: Conversion,
    /// The paths of fields in the hub whose path in this version differs, and that path. Without list indices, longer
    /// paths before their prefixes. Validation names fields by them.
    pub paths: &'static [(&'static str, &'static str)],
}

impl Face {
    /// The stored version: it has the shape of the hub.
    #[must_use]
    pub const fn stored(version: &'static str, spec: fn() -> Value, status: fn() -> Value) -> Self {
        Self {
            version,
            alias: None,
            spec,
            status,
            conversion: Conversion::Identity,
            paths: &[],
        }
    }
}

/// The names, scope and faces of a kind.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// The kind, in CamelCase.
    pub kind: &'static str,
    /// The resource: plural, lower case.
    pub plural: &'static str,
    /// The singular, lower case.
    pub singular: &'static str,
    /// Short names for the command line.
    pub short_names: &'static [&'static str],
    /// Categories, for commands such as `kubectl get drydock`.
    pub categories: &'static [&'static str],
    /// Whether objects are in a namespace.
    pub scope: Scope,
    /// What the kind is, for `kubectl explain`.
    pub description: &'static str,
    /// Served versions: the stored one first, which is also the preferred one. Never empty.
    pub faces: &'static [Face],
}

impl Kind {
    /// Whether objects live in namespaces.
    #[must_use]
    pub const fn is_namespaced(&self) -> bool {
        matches!(self.scope, Scope::Namespaced)
    }

    /// The face of the kind's resource in a version.
    #[must_use]
    pub fn face(&self, version: &str) -> Option<&'static Face> {
        let mut faces = self.faces.iter().filter(|face| face.alias.is_none());
        faces.find(|face| face.version == version)
    }

    /// The names of the kind's resource.
    #[must_use]
    pub const fn names(&self) -> Names {
        Names {
            kind: self.kind,
            plural: self.plural,
            singular: self.singular,
            short_names: self.short_names,
            description: self.description,
        }
    }
}

/// The list of kinds, in the order of discovery. Calls the macro `$table` with the module name of every kind.
///
/// Each crate that has something for every kind builds its table with this macro: [`KINDS`] here, the rules and columns
/// in the server. If the module of a kind is missing there, the crate does not compile.
#[macro_export]
macro_rules! for_each_kind {
    ($table:ident) => {
        $table! { evictionrequest, nodemaintenance, evictioninterceptor }
    };
}

macro_rules! kinds {
    ($($module:ident),*) => {
        /// Every kind Drydock serves, in the order of discovery.
        pub static KINDS: &[Kind] = &[$($module::KIND),*];
    };
}

for_each_kind!(kinds);

/// Makes the Rust type of a kind usable with `kube`'s typed clients, in this version.
macro_rules! kubernetes_resource {
    ($kind:ident, $scope:ident, $info:ident, $version:literal) => {
        impl k8s_openapi::Resource for $kind {
            const API_VERSION: &'static str = concat!("coordination.k8s.io/", $version);
            const GROUP: &'static str = $crate::kinds::GROUP;
            const KIND: &'static str = $info.kind;
            const VERSION: &'static str = $version;
            const URL_PATH_SEGMENT: &'static str = $info.plural;
            type Scope = k8s_openapi::$scope;
        }

        impl k8s_openapi::Metadata for $kind {
            type Ty = k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

            fn metadata(&self) -> &Self::Ty {
                &self.metadata
            }

            fn metadata_mut(&mut self) -> &mut Self::Ty {
                &mut self.metadata
            }
        }

        impl serde::Serialize for $kind {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeMap;
                let mut map = serializer.serialize_map(None)?;
                map.serialize_entry("apiVersion", <Self as k8s_openapi::Resource>::API_VERSION)?;
                map.serialize_entry("kind", <Self as k8s_openapi::Resource>::KIND)?;
                map.serialize_entry("metadata", &self.metadata)?;
                map.serialize_entry("spec", &self.spec)?;
                if let Some(status) = &self.status {
                    map.serialize_entry("status", status)?;
                }
                map.end()
            }
        }
    };
}

pub(crate) use kubernetes_resource;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_unique_names_and_a_first_face_with_the_shape_of_the_hub() {
        let mut names = std::collections::BTreeSet::new();
        for kind in KINDS {
            let first = kind.faces.first().map(|face| face.conversion);
            assert!(matches!(first, Some(Conversion::Identity)), "{}", kind.kind);
            assert_eq!(kind.singular, kind.kind.to_lowercase());
            let aliases = kind.faces.iter().filter_map(|face| face.alias);
            for own in aliases.map(|alias| alias.names).chain([kind.names()]) {
                for name in own.short_names.iter().chain([&own.plural, &own.singular]) {
                    assert!(names.insert(*name), "{name} is used twice");
                }
            }
        }
    }

    /// A custom resource's schema must have them, and generated clients rely on them.
    #[test]
    fn keys_of_list_maps_are_required() {
        fn check(schema: &Value) -> usize {
            let mut checked = 0;
            if let Some(keys) = schema["x-kubernetes-list-map-keys"].as_array() {
                let required = schema["items"]["required"].as_array().expect("required members");
                assert!(keys.iter().all(|key| required.contains(key)), "{schema}");
                checked += 1;
            }
            let parts = schema["properties"].as_object().into_iter().flatten();
            checked + parts.map(|(_, part)| check(part)).sum::<usize>()
        }
        for face in KINDS.iter().flat_map(|kind| kind.faces) {
            assert!(
                check(&(face.spec)()) + check(&(face.status)()) > 0,
                "{}",
                face.version
            );
        }
    }

    #[test]
    fn schemas_are_inlined_and_typed() {
        for face in KINDS.iter().flat_map(|kind| kind.faces) {
            for schema in [(face.spec)(), (face.status)()] {
                assert_eq!(schema["type"], "object");
                let text = schema.to_string();
                assert!(!text.contains("$ref") && !text.contains("definitions"), "{text}");
            }
        }
    }
}
