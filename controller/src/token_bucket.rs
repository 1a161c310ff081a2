//! A limit of a rate: so many at once, and so many a second.

use std::sync::Mutex;

use jiff::Timestamp;

use crate::sync::lock;

/// What is left at a time.
#[derive(Debug)]
pub struct TokenBucket {
    per_second: f64,
    at_once: f64,
    state: Mutex<(f64, Timestamp)>,
}

impl TokenBucket {
    /// A full bucket.
    #[must_use]
    pub fn new(per_second: f64, at_once: f64, now: Timestamp) -> Self {
        Self {
            per_second,
            at_once,
            state: Mutex::new((at_once, now)),
        }
    }

    /// Takes one, if there is one.
    #[must_use]
    pub fn take(&self, now: Timestamp) -> bool {
        let mut state = lock(&self.state);
        let (left, since) = *state;
        let gained = now.duration_since(since).as_secs_f64().max(0.0) * self.per_second;
        let left = (left + gained).min(self.at_once);
        let is_enough = left >= 1.0;
        *state = (if is_enough { left - 1.0 } else { left }, now.max(since));
        is_enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_burst_are_limited() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let bucket = TokenBucket::new(2.0, 3.0, at(0));
        let taken = |second| (0..10).filter(|_| bucket.take(at(second))).count();
        assert_eq!([taken(0), taken(1), taken(1), taken(100)], [3, 2, 0, 3]);
        assert!(!bucket.take(at(50)), "a clock that goes back gains nothing");
        assert!(!bucket.take(at(100)), "nor when it has caught up");
    }
}
