//! Tests of standalone mode: the main use cases in seconds, without a cluster and without Go.

#![expect(
    clippy::indexing_slicing,
    reason = "tests fail by panicking, also where JSON has another shape"
)]

mod abuse;
mod conformance;
mod drain;
mod encryption;
mod etcd;
mod folders;
mod full;
mod large;
mod probes;
mod restart;
mod soak;
mod watches;
