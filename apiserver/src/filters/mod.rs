//! The filters that every request passes before and after its handler.
//!
//! [`chain`] has them all, in order, in one function; each filter has a file. The order has two consequences: a client
//! that is not authenticated learns nothing but 401, and a 403 does not depend on whether an object exists.

mod audit;
mod audit_id;
mod authentication;
mod authorization;
pub mod chain;
mod compression;
mod deadline;
mod flow_control;
mod head;
mod impersonation;
mod own_paths;
mod panic;
mod request_info;
mod request_log;
mod request_metrics;
mod response_headers;
mod routes_installed;
mod shutdown;
mod state;
mod upgrade;

pub use self::{
    authentication::Authenticator,
    chain::{AnonymousAccess, Chain, ChainParts, Handler},
    flow_control::InFlightLimits,
};

#[cfg(test)]
mod tests;
