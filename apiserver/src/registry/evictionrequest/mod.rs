//! EvictionRequest: its [`REGISTRATION`], and its rules in [`EvictionRequestStrategy`].

mod columns;
mod faces;
mod strategy;
mod transitions;
mod validation;

use std::sync::Arc;

use drydock_proto::kinds::evictionrequest::KIND;
use serde_json::json;

use super::registration::{Registration, Sample};
use super::resource::Capabilities;
pub use strategy::EvictionRequestStrategy;

/// The kind as the server serves it.
pub static REGISTRATION: Registration = Registration::new(
    KIND,
    |names| Box::new(EvictionRequestStrategy::new(Arc::clone(names))),
    &[columns::V1ALPHA3, columns::V1ALPHA1, columns::EVACUATION],
    Capabilities::NONE,
    SAMPLE,
);

const SAMPLE: Sample = Sample {
    name: |n| format!("2f0e3f1c-6a0b-4f7e-9d5b-0d6c1f0a7b{n:02}"),
    spec: |n| {
        json!({
            "target": { "pod": { "name": format!("web-{n}"), "uid": (SAMPLE.name)(n) } },
            "requesters": [{ "name": "a.example.com" }],
        })
    },
    change: || json!({ "requesters": [{ "name": "a.example.com" }, { "name": "b.example.com" }] }),
};

#[cfg(test)]
mod tests;
