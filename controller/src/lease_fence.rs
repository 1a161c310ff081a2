//! The fence of the Lease: no write is sent by a process whose last renewal is older than the renew deadline.
//!
//! Time is monotonic and passes while the process is stopped. So a process that continues after SIGSTOP, or whose
//! renewals hang, writes nothing, also before its election notices the loss.

use std::sync::Mutex;

use tokio::time::Instant;

use crate::sync::lock;

/// Until when this process may write.
#[derive(Debug)]
pub struct LeaseFence {
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// There is no election.
    Open,
    /// The Lease is not held.
    Closed,
    /// The Lease is held at least until then.
    Until(Instant),
}

impl LeaseFence {
    /// A fence that is always open, for a process without an election.
    #[must_use]
    pub const fn open() -> Self {
        Self {
            state: Mutex::new(State::Open),
        }
    }

    /// A fence that is closed until the Lease is acquired.
    #[must_use]
    pub const fn closed() -> Self {
        Self {
            state: Mutex::new(State::Closed),
        }
    }

    /// Opens it until this instant.
    pub fn open_until(&self, until: Instant) {
        *lock(&self.state) = State::Until(until);
    }

    /// Closes it.
    pub fn close(&self) {
        *lock(&self.state) = State::Closed;
    }

    /// Whether writes may be sent now.
    #[must_use]
    pub fn is_open(&self) -> bool {
        match *lock(&self.state) {
            State::Open => true,
            State::Closed => false,
            State::Until(until) => Instant::now() < until,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[tokio::test(start_paused = true)]
    async fn fence_closes_by_itself_when_time_passes() {
        let fence = LeaseFence::closed();
        assert!(!fence.is_open());
        fence.open_until(Instant::now() + Duration::from_secs(10));
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(fence.is_open());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!fence.is_open(), "no code ran in between, as after SIGSTOP");
        assert!(LeaseFence::open().is_open());
    }
}
