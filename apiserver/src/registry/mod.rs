//! Where objects are created, changed and removed by the rules of their kind.
//!
//! - [`resource`]: what is served: names, versions, schemas.
//! - [`strategy`]: what a kind supplies. [`evictionrequest`], [`nodemaintenance`] and [`evictioninterceptor`] supply it
//!   on one floor plan: `strategy` (shape and order), `validation` (what a valid object is, field by field),
//!   `transitions` (what may follow what), `columns` (what `kubectl get` shows).
//! - [`store`]: what is done for every kind. Start there.
//! - [`metadata`], [`deletion`]: what becomes of metadata and finalizers. Pure.
//! - [`attributes`]: by what an object can be selected. Pure.
//! - `refusal`: what a client is told when the storage refuses.

pub mod attributes;
mod conditions;
mod contention;
pub mod deletion;
pub mod evictioninterceptor;
pub mod evictionrequest;
pub mod metadata;
pub mod nodemaintenance;
mod refusal;
pub mod resource;
pub mod store;
pub mod strategy;
mod view;
