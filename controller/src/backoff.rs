//! Exponential backoff with jitter, as a pure function.

use std::time::Duration;

/// `base` doubled for every failure after the first, at most `longest`, minus up to a quarter. `jitter` is a random
/// number from 0 (the full delay) to 1 (three quarters of it).
#[must_use]
pub fn backoff(failures: u32, base: Duration, longest: Duration, jitter: f64) -> Duration {
    let doubled = base.saturating_mul(2_u32.saturating_pow(failures.saturating_sub(1).min(20)));
    doubled.min(longest).mul_f64(1.0 - 0.25 * jitter.clamp(0.0, 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delay_doubles_up_to_the_limit_and_jitter_takes_at_most_a_quarter() {
        let (base, longest) = (Duration::from_secs(1), Duration::from_mins(15));
        assert_eq!(backoff(1, base, longest, 0.0), base);
        assert_eq!(backoff(4, base, longest, 0.0), Duration::from_secs(8));
        assert_eq!(backoff(40, base, longest, 0.0), longest);
        assert_eq!(backoff(40, base, longest, 1.0), Duration::from_secs(675));
    }
}
