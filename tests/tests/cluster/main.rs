//! Tests on a real control plane: one binary with a module per topic, so that the control plane is started once.
//!
//! `DRYDOCK_TEST_CLUSTER=skip` skips the suite; `DRYDOCK_KUBERNETES_VERSION` chooses the release.

#![expect(
    clippy::indexing_slicing,
    clippy::similar_names,
    reason = "tests fail by panicking, also where JSON has another shape"
)]

mod abuse;
mod actor;
mod admission;
mod audit;
mod bridge;
mod budgets_away;
mod client_certificates;
mod clients;
mod conformance;
mod control_plane;
mod daemonsets;
mod descheduler;
mod direct;
mod drain;
mod durability;
mod encodings;
mod encryption;
mod etcd;
mod evictions;
mod faults;
mod generated;
mod gitops;
mod harm;
mod host_away;
mod informers;
mod invalid;
mod kubectl;
mod leases;
mod least_privilege;
mod manifests;
mod metrics;
mod monitoring;
mod oracle;
mod pages;
mod plugin;
mod plugin_page;
mod plugin_watch;
mod policies;
mod python;
mod requests;
mod rights;
mod security;
mod servers;
mod stage;
mod stories;
mod vanished;
mod versions;
mod watchers;
mod webhook;
