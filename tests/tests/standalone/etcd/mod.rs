//! Servers that store their objects in etcd: the conformance suite, and several servers over one etcd.

mod conformance;
mod faults;
mod replicas;
mod runbooks;
mod starts;

use anyhow::Result;
use drydock_tests::cluster::Etcd;
use drydock_tests::standalone::Standalone;

/// A server on this etcd.
async fn server(etcd: &Etcd) -> Result<Standalone> {
    let [backend, servers] = etcd.server_flags();
    Standalone::start_with(&[&backend, &servers]).await
}
