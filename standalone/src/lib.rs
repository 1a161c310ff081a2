//! Standalone mode: the server without a cluster.
//!
//! An embedded host takes the place of the cluster: the few built-in kinds that kubectl, clients and drydock-controller
//! need for a drain, kept in the same storage and served by the same handlers, and controllers that move pods through
//! their life cycle. No container runs, and there is no RBAC: it is for first looks, demos and fast tests, never for a
//! cluster.
//!
//! Missing in comparison with a real cluster: controllers of workloads, garbage collection, service accounts, quotas,
//! server-side apply of built-in kinds, and protobuf bodies of built-in kinds, which `kubectl create deployment` and typed
//! Go clients send (only namespaces, options, evictions and reviews are read from protobuf): use `kubectl apply -f`.
//!
//! ```text
//! Certificates ─► StandaloneHost (authentication, namespaces, pods, nodes) ─► filters, admission
//! kinds        ─► catalog ─► ResourceStore each ─► EmbeddedHost ─┬─ extensions: pods/eviction, reviews
//!                                                                └─ controllers: pods, budgets, namespaces, events
//! ```
//!
//! Start at [`serve`]; the life cycle of pods is in [`pod_life_cycle`], their eviction in [`eviction`].

mod body;
mod budgets;
mod certificates;
mod embedded;
mod events;
mod eviction;
mod flags;
mod host;
mod kinds;
mod kubeconfig;
mod namespaces;
mod object;
mod objects;
mod pod;
mod pod_life_cycle;
mod reconcile;
mod reviews;
mod scheduler;
mod serve;
mod strategic_merge;
#[cfg(test)]
mod tests;

pub use crate::certificates::CertificateError;
pub use crate::flags::{StandaloneConfig, StandaloneFlags};
pub use crate::serve::{RunError, serve};
