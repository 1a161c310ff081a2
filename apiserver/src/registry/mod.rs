//! The registry creates, changes and removes objects by the rules of their kind. It knows storage and kinds, but nothing
//! of HTTP. Start at [`store`].
//!
//! - [`resource`], [`face`], [`endpoint`]: what is served: names, versions with their schemas, and the conversion between
//!   a version and the stored form.
//! - [`kinds`]: the list of our kinds with their rules. [`evictionrequest`], [`nodemaintenance`] and
//!   [`evictioninterceptor`] have the same files: `strategy` (which rules run when), `validation` (what a valid object
//!   is, field by field), `transitions` (which change is allowed), `columns` (what `kubectl get` prints).
//! - [`strategy`]: the hooks a kind implements.
//! - [`admission`]: what the registry asks before it writes; the module `crate::admission` answers.
//! - [`store`]: create, update and delete, the same for every kind.
//! - [`metadata`], [`deletion`]: system metadata, finalizers and graceful deletion. Pure.
//! - [`attributes`]: the labels and fields by which an object can be selected. Pure.
//! - `refusal`: the API error for each error of the storage and the cache.

pub mod admission;
pub mod attributes;
pub mod caller;
mod conditions;
mod contention;
pub mod deletion;
pub mod endpoint;
pub mod evictioninterceptor;
pub mod evictionrequest;
pub mod face;
pub mod kinds;
pub mod metadata;
pub mod nodemaintenance;
mod refusal;
pub mod resource;
pub mod store;
pub mod strategy;
mod view;
