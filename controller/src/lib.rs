//! The controllers that make EvictionRequests and NodeMaintenances do their work against a cluster, as clients of
//! its API like any other.
//!
//! ```text
//! watches ──▶ stores ──▶ work queues ──▶ observe ──▶ decide, plan (pure) ──▶ act ──▶ API
//! ```
//!
//! - [`config`], [`server`]: how the process is told what to do, and how it is put together. Start at [`server::run`].
//! - [`evictionrequest`], [`nodemaintenance`], [`daemonset`], [`evictioninterceptor`]: the controllers. Each has a
//!   pure middle and tests beside it.
//! - [`informer`], [`stores`], [`work_queue`], [`deadline_queue`]: what is known, and what is looked at next.
//! - [`leader`]: of several processes one acts.
//! - [`api`], [`pod`]: how the API is called, and what of a pod is read.
//! - [`events`], [`metrics`], [`health`]: what people and dashboards see.
//!
//! Invariants: pure code has no clock; nothing is decided before every first list is complete; every decision is
//! made from what is stored, so that a crash between any two steps changes nothing; without the Lease nothing is
//! written.

pub mod api;
pub mod config;
pub mod daemonset;
pub mod deadline_queue;
pub mod events;
pub mod evictioninterceptor;
pub mod evictionrequest;
pub mod health;
pub mod informer;
pub mod leader;
pub mod metrics;
pub mod nodemaintenance;
pub mod pod;
pub mod server;
pub mod stores;
pub mod work_queue;
