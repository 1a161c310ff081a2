//! Drydock's API server.
//!
//! A request flows `http → filters → handlers → registry → storage`; events flow `storage → cache → handlers`.
//! [`filters`] has the filter chain, [`request`] the parsed request, [`host`] the cluster that the server belongs to. Start
//! at [`server`].

pub mod admission;
pub mod audit;
pub mod authorization;
pub mod backend;
mod backups;
pub mod cache;
pub mod config;
pub mod discovery;
pub mod error;
pub mod filters;
pub mod handlers;
pub mod health;
pub mod host;
pub mod http;
mod member_events;
pub mod metrics;
pub mod openapi;
pub mod registry;
pub mod request;
pub mod server;
pub mod storage_command;
pub mod telemetry;
pub mod threads;
pub mod version;

#[cfg(test)]
mod fixtures;
