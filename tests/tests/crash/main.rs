//! Kills, power cuts and damage: afterwards the store has everything that it acknowledged, or does not open.
//!
//! - [`rounds`]: a child writes and is killed, at random or at a failpoint; the parent keeps its acknowledgements.
//! - [`power`]: unsynced bytes of the log are cut off, zeroed or scrambled.
//! - [`durable`]: only synced bytes and names of every file and folder remain.
//! - [`damage`]: every kind of file with every kind of damage.
//! - [`commands`]: restore, import and recovery, killed and repeated.
//! - [`full`]: files that cannot grow.
//! - [`regressions`]: data loss bugs of other stores.
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
mod plan;
mod power;
mod regressions;
mod rounds;
mod truth;
