//! Version v1alpha3. It is the stored form itself, so no conversion is needed.

pub use super::hub::{EvictionRequest, EvictionRequestSpec, EvictionRequestStatus};

/// The JSON schema of `spec`.
#[must_use]
pub fn spec_schema() -> serde_json::Value {
    crate::schema::inlined::<EvictionRequestSpec>()
}

/// The JSON schema of `status`.
#[must_use]
pub fn status_schema() -> serde_json::Value {
    crate::schema::inlined::<EvictionRequestStatus>()
}
