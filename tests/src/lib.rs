//! The harness of the whole-system suites: a real cluster, the project's own processes, and clients.
//!
//! ```text
//! cluster::ControlPlane   etcd, kube-apiserver, controller manager, scheduler, kwok (nodes and pods)
//! cluster::SampleApiServer  an aggregated server in Go, for comparison in benchmarks
//! cluster::Drydock        drydock-apiserver and drydock-controller registered with that control plane
//! cluster::Etcd           an etcd of one member for servers that store their objects in it
//! cluster::EtcdMembers    an etcd of several members, which can be killed, paused and cut off
//! cluster::balance        a TCP balancer in front of several servers, in place of a Service
//! clients                 kubectl, a raw HTTPS client, and `eventually`, which waits for a condition
//! calls                   JSON calls and their responses, watches and their events
//! objects                 objects of our kinds
//! conformance             the rules of a Kubernetes API server
//! standalone              the server without a cluster, and the controller
//! ledger                  a record of all writes, which checks every list and watch
//! lines                   the lines of a watch's body
//! abuse                   what users can do to each other, and a client that must not notice
//! faults                  several servers over one etcd, checked while parts of both fail
//! soak                    hours of load, checked while it runs
//! pseudo_terminal         commands in a terminal of a given size
//! environment             numbers from environment variables
//! load                    many clients and watchers over few connections
//! ```
//!
//! Start at [`cluster::shared`] in a suite, and at [`cluster::ControlPlane::start`] where a test needs a
//! control plane of its own. Everything listens on loopback, on ports from the operating system, and ends with the
//! process that started it, even if that is killed.

pub mod abuse;
pub mod calls;
pub mod clients;
pub mod cluster;
pub mod conformance;
pub mod environment;
pub mod faults;
pub mod ledger;
pub mod lines;
pub mod load;
pub mod objects;
pub mod pseudo_terminal;
pub mod soak;
pub mod standalone;
pub mod websocket;

/// Locks a mutex, also after a panic of another holder.
pub fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
