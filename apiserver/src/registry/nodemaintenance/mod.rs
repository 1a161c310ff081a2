//! NodeMaintenance: its [`REGISTRATION`], and its rules in [`NodeMaintenanceStrategy`].

mod columns;
mod drain_plan;
mod strategy;
mod transitions;
mod validation;
mod warnings;

use drydock_proto::kinds::nodemaintenance::KIND;
use serde_json::json;

use super::registration::{Registration, Sample};
use super::resource::Capabilities;
pub use strategy::NodeMaintenanceStrategy;

/// The kind as the server serves it.
pub static REGISTRATION: Registration = Registration::new(
    KIND,
    |_| Box::new(NodeMaintenanceStrategy),
    &[columns::V1ALPHA3, columns::V1ALPHA1],
    Capabilities::NONE,
    SAMPLE,
);

const SAMPLE: Sample = Sample {
    name: |n| format!("rack-{n}"),
    spec: |n| {
        let requirement = json!({ "key": "rack", "operator": "In", "values": [n.to_string()] });
        json!({ "nodeSelector": { "nodeSelectorTerms": [{ "matchExpressions": [requirement] }] } })
    },
    change: || json!({ "reason": "kernel" }),
};

#[cfg(test)]
mod tests;
