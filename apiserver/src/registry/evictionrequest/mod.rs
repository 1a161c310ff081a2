//! The rules of EvictionRequest. Start at [`EvictionRequestStrategy`].

mod columns;
mod strategy;
mod transitions;
mod validation;

pub use strategy::EvictionRequestStrategy;
pub(in crate::registry) use validation::range_error;

#[cfg(test)]
mod tests;
