//! EvictionRequest: asks that one pod leaves its node. Interceptors act one at a time, in order; the last one calls the
//! eviction API.

pub mod evacuation;
mod hub;
mod single;
pub mod v1alpha1;
pub mod v1alpha3;

pub use hub::*;
use serde_json::Value;

use super::{Face, Kind, Scope};

/// Sets the interceptors of a stored request that has none: the first name acts first.
pub fn declare_interceptors(request: &mut Value, names: &[String]) {
    single::declare(request, names);
}

/// The names, scope and faces of the kind.
pub const KIND: Kind = Kind {
    kind: "EvictionRequest",
    plural: "evictionrequests",
    singular: "evictionrequest",
    short_names: &["er"],
    categories: &["drydock"],
    scope: Scope::Namespaced,
    description: "EvictionRequest asks that one pod leaves its node gracefully. Requesters say that they want it, \
                  interceptors act one at a time in order, and the pod's eviction API is the last resort.",
    faces: &[
        Face::stored("v1alpha3", v1alpha3::spec_schema, v1alpha3::status_schema),
        v1alpha1::FACE,
        evacuation::FACE,
    ],
};
