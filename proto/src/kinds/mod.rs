//! The kinds Drydock serves, and the one table of them.
//!
//! A kind has one stored form, the *hub*, and any number of served *faces* (a version each). The hub of every
//! kind is its `v1alpha3` face, so that face converts by doing nothing.

pub mod evictioninterceptor;
pub mod evictionrequest;
pub mod nodemaintenance;

use serde_json::Value;

/// The API group of every kind.
pub const GROUP: &str = "coordination.k8s.io";

/// The version of the hub: what is stored, and what is preferred.
pub const STORAGE_VERSION: &str = "v1alpha3";

/// Where objects of a kind live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// In a namespace.
    Namespaced,
    /// In the cluster.
    Cluster,
}

/// A served version of a kind.
#[derive(Debug, Clone, Copy)]
pub struct Face {
    /// The version, as in URLs and `apiVersion`.
    pub version: &'static str,
    /// The JSON schema of `spec`, inlined.
    pub spec: fn() -> Value,
    /// The JSON schema of `status`, inlined.
    pub status: fn() -> Value,
}

/// What every part of the server needs to know of a kind.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// The kind, in CamelCase.
    pub kind: &'static str,
    /// The resource: plural, lower case.
    pub plural: &'static str,
    /// The singular, lower case.
    pub singular: &'static str,
    /// Names people type.
    pub short_names: &'static [&'static str],
    /// Groups of resources people ask for at once.
    pub categories: &'static [&'static str],
    /// Where objects live.
    pub scope: Scope,
    /// What the kind is, for `kubectl explain`.
    pub description: &'static str,
    /// Served versions, the preferred first.
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

/// Every kind Drydock serves.
pub static KINDS: &[Kind] = &[
    evictionrequest::KIND,
    nodemaintenance::KIND,
    evictioninterceptor::KIND,
];

/// Makes a kind usable with `kube`'s typed clients.
macro_rules! kubernetes_resource {
    ($kind:ident, $scope:ident, $info:ident) => {
        impl k8s_openapi::Resource for $kind {
            const API_VERSION: &'static str = "coordination.k8s.io/v1alpha3";
            const GROUP: &'static str = $crate::kinds::GROUP;
            const KIND: &'static str = $info.kind;
            const VERSION: &'static str = $crate::kinds::STORAGE_VERSION;
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
    fn every_kind_has_a_storage_face_and_names_of_its_own() {
        let mut names = std::collections::BTreeSet::new();
        for kind in KINDS {
            assert!(kind.face(STORAGE_VERSION).is_some(), "{}", kind.kind);
            assert_eq!(kind.singular, kind.kind.to_lowercase());
            for name in kind.short_names.iter().chain([&kind.plural, &kind.singular]) {
                assert!(names.insert(*name), "{name} stands twice");
            }
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
