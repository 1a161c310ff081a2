//! The rules of EvictionInterceptor. Start at [`EvictionInterceptorStrategy`].

mod columns;
mod strategy;
mod validation;

pub use strategy::EvictionInterceptorStrategy;

#[cfg(test)]
mod tests;
