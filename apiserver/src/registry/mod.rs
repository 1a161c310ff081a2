//! The registry creates, updates and deletes objects by the rules of their kind. It knows storage and kinds, but not HTTP.
//! Start at [`store`].
//!
//! - [`resource`], [`face`], [`endpoint`], [`catalog`]: what is served: names, versions with their schemas, and the
//!   conversion between a version and the stored form.
//! - [`kinds`]: the list of our kinds, each with a [`registration`]. [`evictionrequest`], [`nodemaintenance`] and
//!   [`evictioninterceptor`] have the same files: `strategy` (which rules run in which hook), `validation` (field by
//!   field), `transitions` (which changes are allowed), `columns` (what `kubectl get` prints).
//! - [`strategy`]: the hooks that a kind implements. [`part`]: whether a write changes the object or its status.
//! - [`admission`]: what the registry requires of admission control, which is in `crate::admission`.
//! - [`store`]: create, update and delete, the same for every kind. `backoff` spaces retries after write conflicts.
//! - [`metadata`], [`deletion`]: system metadata, finalizers and graceful deletion. Pure.
//! - `conditions`, `numbers`, `view`: validation of conditions and numbers, and typed access to parts of an object. Pure.
//! - [`attributes`]: the labels and fields by which an object can be selected. Pure.
//! - `storage_errors`: the API error for each error of the storage and the cache.

pub mod admission;
pub mod attributes;
mod backoff;
pub mod caller;
pub mod catalog;
mod conditions;
pub mod deletion;
pub mod endpoint;
pub mod evictioninterceptor;
pub mod evictionrequest;
pub mod face;
pub mod kinds;
pub mod metadata;
pub mod nodemaintenance;
mod numbers;
pub mod part;
pub mod registration;
pub mod resource;
mod storage_errors;
pub mod store;
pub mod strategy;
mod view;

#[cfg(test)]
mod tests;
