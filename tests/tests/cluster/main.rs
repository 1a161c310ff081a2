//! Does the project work on a real control plane? One binary with a module per topic, so that the
//! control plane is started once.
//!
//! `DRYDOCK_TEST_CLUSTER=skip` skips the suite; `DRYDOCK_KUBERNETES_VERSION` chooses the release.

#![expect(
    clippy::indexing_slicing,
    clippy::similar_names,
    clippy::too_many_lines,
    reason = "a story is told in one go and fails by panicking, also where JSON has another shape"
)]

mod clients;
mod conformance;
mod control_plane;
mod drain;
mod durability;
mod harm;
mod host_away;
mod informers;
mod invalid;
mod kubectl;
mod manifests;
mod python;
mod requests;
mod security;
mod stage;
mod watchers;
