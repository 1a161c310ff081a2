//! What the cache promises, over the in-memory store and under virtual time.

mod checker;
mod damage;
mod faulty;
mod fixture;
mod model;
mod reads;
mod reloads;
mod scale;
mod threads;
mod watches;
