//! Does the project work on a real control plane? One binary with a module per topic, so that the
//! control plane is started once.
//!
//! `DRYDOCK_TEST_CLUSTER=skip` skips the suite; `DRYDOCK_KUBERNETES_VERSION` chooses the release.

mod clients;
mod control_plane;
mod manifests;
