//! EvictionInterceptor: its [`REGISTRATION`], and its rules in [`EvictionInterceptorStrategy`].

mod columns;
mod strategy;
mod validation;

use std::sync::Arc;

use drydock_proto::kinds::evictioninterceptor::KIND;
use serde_json::json;

use super::face::Table;
use super::registration::{Registration, Sample};
use super::resource::Capabilities;
pub use strategy::EvictionInterceptorStrategy;

/// The kind as the server serves it.
pub static REGISTRATION: Registration = Registration::new(
    KIND,
    |names| Box::new(EvictionInterceptorStrategy::new(Arc::clone(names))),
    &[Table {
        columns: &columns::COLUMNS,
        cells: columns::cells,
    }],
    Capabilities::NONE,
    SAMPLE,
);

const SAMPLE: Sample = Sample {
    name: |n| format!("i{n}.example.com"),
    spec: |n| json!({ "interceptorName": (SAMPLE.name)(n) }),
    change: || json!({ "priority": 5 }),
};

#[cfg(test)]
mod tests;
