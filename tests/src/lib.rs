//! How do the whole-system suites get a real cluster, the project's own processes, and clients?
//!
//! ```text
//! cluster::ControlPlane   etcd, kube-apiserver, controller manager, scheduler, kwok (nodes and pods)
//! cluster::SampleApiServer  an aggregated server in Go, to be compared with
//! cluster::Drydock        drydock-apiserver and drydock-controller registered with that control plane
//! clients                 kubectl, a raw HTTPS client for requests no well-behaved client sends,
//!                         and `eventually`, the one way in which a suite waits
//! calls                   one JSON call and its answer, one watch and its events
//! conformance             the rules of a Kubernetes API server, for every road to ours
//! standalone              the server without a cluster, and the controller beside it
//! ledger                  what was written, and whether each watch is told just that
//! lines                   the body of a watch, event by event
//! soak                    hours of load, judged while it runs
//! environment             numbers that are chosen for a long run
//! load                    many clients and watchers over few connections, for the benchmarks
//! ```
//!
//! Start at [`cluster::shared`] in a suite, and at [`cluster::ControlPlane::start`] where a test needs a
//! control plane of its own. Everything listens on loopback, on ports from the operating system, and
//! ends with the process that started it, however that process ends.

pub mod calls;
pub mod clients;
pub mod cluster;
pub mod conformance;
pub mod environment;
pub mod ledger;
pub mod lines;
pub mod load;
pub mod soak;
pub mod standalone;
