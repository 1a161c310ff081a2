//! When does a change that others keep overtaking try again?

use std::time::Duration;

/// Tries that follow at once: the newer object came with the conflict, so nothing is to be waited for.
const AT_ONCE: u32 = 2;
/// What the first pause is at most.
const FIRST: Duration = Duration::from_millis(2);
/// How often the limit of pauses doubles: 128 ms is the longest.
const DOUBLINGS: u32 = 6;

/// The tries of one change. They are bounded by the request's deadline, not by their number.
#[derive(Debug, Default)]
pub(super) struct Contention {
    overtaken: u32,
}

impl Contention {
    /// Waits until it is time for the next try. From the third on writers of one object spread out, at random, so
    /// that they stop meeting.
    pub(super) async fn pause(&mut self) {
        self.overtaken = self.overtaken.saturating_add(1);
        let limit = self.limit();
        if !limit.is_zero() {
            tokio::time::sleep(limit.mul_f64(fastrand::f64())).await;
        }
    }

    /// What the next pause is at most.
    fn limit(&self) -> Duration {
        match self.overtaken.checked_sub(AT_ONCE) {
            None | Some(0) => Duration::ZERO,
            Some(paused) => FIRST * (1 << (paused - 1).min(DOUBLINGS)),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn two_tries_follow_at_once_and_then_pauses_grow_to_a_limit() {
        let mut contention = Contention::default();
        let mut limits = Vec::new();
        for _ in 0..12 {
            let before = Instant::now();
            contention.pause().await;
            // The clock of the runtime counts whole milliseconds.
            assert!(before.elapsed() <= contention.limit() + Duration::from_millis(1));
            limits.push(contention.limit().as_millis());
        }
        assert_eq!(limits, [0, 0, 2, 4, 8, 16, 32, 64, 128, 128, 128, 128]);
    }
}
