//! EvictionInterceptor: registers an interceptor for all pods that match a rule, without editing the pods.

mod hub;
pub mod v1alpha3;

pub use hub::*;

use super::{Face, Kind, Scope};

/// The names, scope and faces of the kind.
pub const KIND: Kind = Kind {
    kind: "EvictionInterceptor",
    plural: "evictioninterceptors",
    singular: "evictioninterceptor",
    short_names: &["ei"],
    categories: &["drydock"],
    scope: Scope::Cluster,
    description: "EvictionInterceptor registers an interceptor for all pods that match its rule.",
    faces: &[Face::stored(
        "v1alpha3",
        v1alpha3::spec_schema,
        v1alpha3::status_schema,
    )],
};
