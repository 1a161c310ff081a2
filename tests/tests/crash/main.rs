//! Kills, power cuts and damage: after any of them the store shows everything it acknowledged, or refuses.
//!
//! - [`rounds`]: a child writes and is killed, at random and at failpoints; the parent kept its acknowledgements.
//! - [`power`]: what was not synced is cut off, zeroed or scrambled.
//! - [`durable`]: of every file and folder only what was synced is there.
//! - [`damage`]: every kind of file, damaged in every way.
//! - [`commands`]: restore, import and recovery, killed and repeated.
//! - [`full`]: files that cannot grow, for real.
//! - [`regressions`]: what other stores lost.
//! - [`faults`]: failures of a write or of the mark, without a crash.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stdout,
    reason = "tests"
)]

mod backups;
mod child;
mod commands;
mod damage;
mod durable;
mod faults;
mod full;
mod journal;
mod orders;
mod power;
mod regressions;
mod rounds;
mod truth;
