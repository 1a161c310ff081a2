//! Clocks.
//!
//! Time is an argument: tests advance it. Wall time may be set forward and back, so it only labels what is written; ages are
//! measured with [`Clock::uptime`]. Durations for metrics come from [`Stopwatch`].

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Wall time, and monotonic time.
pub trait Clock: Send + Sync + 'static {
    /// Wall time: milliseconds since 1970.
    fn now_ms(&self) -> u64;

    /// Monotonic time since some moment of this process. By default wall time.
    fn uptime(&self) -> Duration {
        Duration::from_millis(self.now_ms())
    }
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
            reason = "the only place where the storage reads the wall clock"
        )]
        let now = SystemTime::now();
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
    }

    fn uptime(&self) -> Duration {
        static START: OnceLock<Stopwatch> = OnceLock::new();
        START.get_or_init(Stopwatch::start).elapsed()
    }
}

/// Monotonic milliseconds that begin as wall time and advance with [`Clock::uptime`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Steady {
    began_ms: u64,
    began: Duration,
}

impl Steady {
    /// Starts at the current wall time.
    pub(crate) fn start(clock: &dyn Clock) -> Self {
        Self {
            began_ms: clock.now_ms(),
            began: clock.uptime(),
        }
    }

    /// The current time.
    pub(crate) fn now_ms(&self, clock: &dyn Clock) -> u64 {
        let passed = clock.uptime().saturating_sub(self.began).as_millis();
        self.began_ms
            .saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
    }
}

/// Measures how long something takes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts now.
    pub(crate) fn start() -> Self {
        #[expect(
            clippy::disallowed_methods,
            reason = "measures real durations, for metrics and the rate of background work"
        )]
        let now = Instant::now();
        Self(now)
    }

    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }
}
