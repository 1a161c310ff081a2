//! What the cache promises, over the in-memory store and under virtual time.

mod checker;
mod fixture;
mod model;
mod reads;
mod scale;
mod watches;
