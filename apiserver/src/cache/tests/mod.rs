//! Tests of the whole cache, most of them over the in-memory store and in virtual time.

mod checker;
mod damage;
mod ends;
mod faulty;
mod fixture;
mod frames;
mod measures;
mod model;
mod reads;
mod reloads;
mod replays;
mod scale;
mod threads;
mod unfilled;
mod watches;
