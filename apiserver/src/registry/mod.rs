//! Where objects are created, changed and removed by the rules of their kind.
//!
//! - [`resource`]: what is served: names, versions, schemas.
//! - [`strategy`]: what a kind supplies.
//! - [`store`]: what is done for every kind. Start there.

pub mod resource;
pub mod store;
pub mod strategy;
