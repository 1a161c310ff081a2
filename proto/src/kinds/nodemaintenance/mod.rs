//! NodeMaintenance: declares that nodes go out of service, with a plan for the order in which their pods are drained.

mod hub;
pub mod v1alpha1;
pub mod v1alpha3;

pub use hub::*;

use super::{Face, Kind, Scope};

/// The names, scope and faces of the kind.
pub const KIND: Kind = Kind {
    kind: "NodeMaintenance",
    plural: "nodemaintenances",
    singular: "nodemaintenance",
    short_names: &["nm"],
    categories: &["drydock"],
    scope: Scope::Cluster,
    description: "NodeMaintenance declares that nodes are to be taken out of service: it cordons them and asks their \
                  pods to leave in the order of a drain plan.",
    faces: &[
        Face::stored("v1alpha3", v1alpha3::spec_schema, v1alpha3::status_schema),
        v1alpha1::FACE,
    ],
};
