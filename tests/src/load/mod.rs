//! Load on a server, its latencies and its cost.
//!
//! ```text
//! Pool        a few HTTP/2 connections over TLS, shared by many clients
//! drive       N clients that send one request after the other, bounded in count and in time
//! pace        requests at a steady rate, however long each takes
//! Watchers    many watches at once: events, bytes, lag, ends
//! Histogram   latencies, accurate to 1/64
//! Usage       CPU time and memory of the server's processes, from /proc
//! Report      the table that a benchmark prints
//! ```
//!
//! Start at [`drive`].

mod histogram;
mod pool;
mod report;
mod requests;
mod usage;
mod watchers;

pub use self::histogram::Histogram;
pub use self::pool::{Call, Pool, Response, Sender};
pub use self::report::{Goal, Report, Unit, show};
pub use self::requests::{Bound, Measured, drive, pace};
pub use self::usage::{Usage, forget_peak, peak_bytes, resident_bytes};
pub use self::watchers::{SENT, Seen, Watchers};
