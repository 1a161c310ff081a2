//! nodemaintenance
pub mod plan;
pub mod taints;
