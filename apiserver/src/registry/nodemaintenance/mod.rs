//! The rules of NodeMaintenance. Start at [`NodeMaintenanceStrategy`].

mod columns;
mod drain_plan;
mod strategy;
mod transitions;
mod validation;
mod warnings;

pub use strategy::NodeMaintenanceStrategy;

#[cfg(test)]
mod tests;
