//! What time is it, for records and windows?
//!
//! Wall time is an argument: tests advance it. Durations that only feed metrics come from [`Stopwatch`].

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Wall time.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since 1970.
    fn now_ms(&self) -> u64;
}

impl<F: Fn() -> u64 + Send + Sync + 'static> Clock for F {
    fn now_ms(&self) -> u64 {
        self()
    }
}

/// The clock of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now_ms(&self) -> u64 {
        #[expect(
            clippy::disallowed_methods,
            reason = "this is the one place where wall time enters storage"
        )]
        let now = SystemTime::now();
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }
}

/// Measures how long something takes. Never decides anything.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    pub(crate) fn start() -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "measures real durations for metrics, decides nothing"
        )]
        let now = Instant::now();
        Self(now)
    }

    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
