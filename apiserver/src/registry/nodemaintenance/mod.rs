//! The rules of NodeMaintenance. Start at [`NodeMaintenanceStrategy`].

mod columns;
pub mod drain_plan;
mod strategy;
mod transitions;
mod validation;
pub mod warnings;

pub use strategy::NodeMaintenanceStrategy;

#[cfg(test)]
mod tests;
