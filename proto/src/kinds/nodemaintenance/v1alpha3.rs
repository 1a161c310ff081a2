//! The v1alpha3 face: the hub itself, so conversion is the identity.

pub use super::hub::{NodeMaintenance, NodeMaintenanceSpec, NodeMaintenanceStatus};

/// The JSON schema of `spec`.
#[must_use]
pub fn spec_schema() -> serde_json::Value {
    crate::schema::inlined::<NodeMaintenanceSpec>()
}

/// The JSON schema of `status`.
#[must_use]
pub fn status_schema() -> serde_json::Value {
    crate::schema::inlined::<NodeMaintenanceStatus>()
}
