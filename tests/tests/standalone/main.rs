//! Does the project work without a cluster? The core stories, in seconds and without Go.

mod conformance;
mod drain;
mod folders;
mod full;
mod large;
mod restart;
mod soak;
mod watches;
