//! Drydock's API server.
//!
//! A request flows `http → filters → handlers → registry → storage`; events flow `storage → cache → handlers`.
//! [`filters`] holds the chain in order; [`request`] is what the chain learns about a request.

pub mod cache;
pub mod error;
pub mod filters;
pub mod http;
pub mod request;
