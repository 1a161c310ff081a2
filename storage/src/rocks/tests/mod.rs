//! Tests that need access to the inside of the embedded engine.

mod capacity;
mod check;
mod damage;
mod fixture;
mod past_reads;
mod restarts;
mod retention;
