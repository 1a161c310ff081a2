//! The delay before a write is retried after a conflict with a concurrent write.

use std::time::Duration;

/// Retries without a delay: the conflict returned the newer object, so there is nothing to wait for.
const IMMEDIATE_RETRIES: u32 = 2;
/// The upper bound of the first delay.
const FIRST_LIMIT: Duration = Duration::from_millis(2);
/// How often the upper bound doubles, up to 128 ms.
const DOUBLINGS: u32 = 6;

/// The backoff of one write. The request's deadline bounds the retries, not their number.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    conflicts: u32,
}

impl Backoff {
    /// Waits before the next retry. From the third retry on, the delay is random, so that writers of the same object do not
    /// keep conflicting.
    pub(super) async fn wait(&mut self) {
        self.conflicts = self.conflicts.saturating_add(1);
        let limit = self.limit();
        if !limit.is_zero() {
            tokio::time::sleep(limit.mul_f64(fastrand::f64())).await;
        }
    }

    /// The upper bound of the delay.
    fn limit(&self) -> Duration {
        match self.conflicts.checked_sub(IMMEDIATE_RETRIES) {
            None | Some(0) => Duration::ZERO,
            Some(delays) => FIRST_LIMIT * (1 << (delays - 1).min(DOUBLINGS)),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn two_retries_are_immediate_and_later_delays_grow_to_a_limit() {
        let mut backoff = Backoff::default();
        let mut limits = Vec::new();
        for _ in 0..12 {
            let before = Instant::now();
            backoff.wait().await;
            // Tokio's clock has a resolution of one millisecond.
            assert!(before.elapsed() <= backoff.limit() + Duration::from_millis(1));
            limits.push(backoff.limit().as_millis());
        }
        assert_eq!(limits, [0, 0, 2, 4, 8, 16, 32, 64, 128, 128, 128, 128]);
    }
}
