//! Where objects are created, changed and removed by the rules of their kind.
//!
//! - [`resource`]: what is served: names, versions, schemas.
//! - [`strategy`]: what a kind supplies. [`evictionrequest`], [`nodemaintenance`] and [`evictioninterceptor`] supply it
//!   on one floor plan: `strategy` (shape and order), `validation` (what a valid object is, field by field),
//!   `transitions` (what may follow what), `columns` (what `kubectl get` shows).
//! - [`store`]: what is done for every kind. Start there.

mod conditions;
pub mod evictioninterceptor;
pub mod evictionrequest;
pub mod nodemaintenance;
pub mod resource;
pub mod store;
pub mod strategy;
mod view;
