//! How fast is a server, and what does it cost?
//!
//! ```text
//! Pool        a few HTTP/2 connections over TLS, shared by many clients
//! drive       N clients that send one request after the other, bounded in count and in time
//! pace        writes at a steady rate, however long each takes
//! Watchers    many watches at once: events, bytes, lag, ends
//! Histogram   latencies, to a sixty-fourth
//! Usage       CPU time and memory of the server's processes, as the kernel counts them
//! ```
//!
//! Start at [`drive`].

mod histogram;
mod pool;
mod requests;
mod usage;
mod watchers;

pub use self::histogram::Histogram;
pub use self::pool::{Answer, Call, Pool, Sender};
pub use self::requests::{Bound, Measured, drive, pace};
pub use self::usage::{Usage, forget_peak, peak_bytes, resident_bytes};
pub use self::watchers::{SENT, Seen, Watchers};
