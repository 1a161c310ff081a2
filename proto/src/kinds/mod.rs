//! The kinds Drydock serves, and the one list of them: [`for_each_kind`].
//!
//! A kind has one stored form, the *hub*, and one or more served versions, its *faces*. The hub has the shape of the
//! first face, so that face needs no conversion. Every other face has a pair of functions that convert a whole object to
//! the hub and back without loss ([`Conversion`]).

pub mod evictioninterceptor;
pub mod evictionrequest;
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

/// Converts a whole object in place: `spec`, `status` and, where the shapes differ, `metadata`. `kind` and `apiVersion`
/// are set by the caller.
pub type Convert = fn(&mut Value) -> Result<(), ConversionError>;

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
    /// The face has another shape. `from_hub` after `to_hub` yields the same object, and so does `to_hub` after `from_hub`:
    /// what one shape cannot represent is kept in an annotation.
    Functions {
        /// From the face to the hub. The input fits the schema of the face, with defaults applied.
        to_hub: Convert,
        /// From the hub to the face.
        from_hub: Convert,
    },
}

/// A served version of a kind.
#[derive(Debug, Clone, Copy)]
pub struct Face {
    /// The version, as in URLs and `apiVersion`.
    pub version: &'static str,
    /// The JSON schema of `spec` with its defaults, inlined.
    pub spec: fn() -> Value,
    /// The JSON schema of `status` with its defaults, inlined.
    pub status: fn() -> Value,
    /// The conversion between this version and the stored form.
    pub conversion: Conversion,
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

    /// The face of a version.
    #[must_use]
    pub fn face(&self, version: &str) -> Option<&'static Face> {
        self.faces.iter().find(|face| face.version == version)
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
            for name in kind.short_names.iter().chain([&kind.plural, &kind.singular]) {
                assert!(names.insert(*name), "{name} is used twice");
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
