//! The controllers that make EvictionRequests and NodeMaintenances do their work against a cluster, as clients of
//! its API like any other.
pub mod deadline_queue;
pub mod evictionrequest;
pub mod events;
pub mod informer;
pub mod metrics;
pub mod nodemaintenance;
pub mod pod;
pub mod work_queue;
