//! Whether writes hang. One that hangs holds a place and most of the time that a review has, so the next ones do not try.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::sync::lock;

/// How long nothing is written after a write that has hung.
const PAUSE: Duration = Duration::from_secs(2);

/// Until when nothing is written.
#[derive(Debug, Default)]
pub struct Stall(Mutex<Option<Instant>>);

impl Stall {
    /// Whether writes are known to hang.
    #[must_use]
    pub fn is_on(&self) -> bool {
        lock(&self.0).is_some_and(|until| Instant::now() < until)
    }

    /// A write had all the time that one may take, and was not answered.
    pub fn begin(&self) {
        *lock(&self.0) = Some(Instant::now() + PAUSE);
    }

    /// A write was answered.
    pub fn end(&self) {
        *lock(&self.0) = None;
    }
}
