//! Tests of standalone mode: the main use cases in seconds, without a cluster and without Go.

mod conformance;
mod drain;
mod folders;
mod full;
mod large;
mod restart;
mod soak;
mod watches;
