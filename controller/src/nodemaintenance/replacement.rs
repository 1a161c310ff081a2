//! Requests that ended without their pod stand in the way of a drain. They are replaced a bounded number of times.

use std::time::Duration;

use crate::backoff::backoff;

/// The annotation with the number of requests that this one replaced, one after the other.
pub const REPLACED_ANNOTATION: &str = "nodemaintenance.coordination.k8s.io/replaced-requests";
/// How many requests are replaced one after the other, for one pod during one drain.
pub const MAX_REPLACEMENTS: u32 = 5;
/// For how long a request that is being deleted may wait for finalizers of others before it is reported.
pub const LONGEST_DELETION: Duration = Duration::from_mins(1);
/// The pause before the second replacement.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_mins(5);

/// How long after its end a request is replaced that has itself replaced `count` ones.
#[must_use]
pub fn pause(count: u32) -> Duration {
    if count == 0 {
        return Duration::ZERO;
    }
    backoff(count, FIRST_PAUSE, LONGEST_PAUSE, 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_replacement_is_immediate_and_pauses_grow() {
        let pauses: Vec<u64> = (0..MAX_REPLACEMENTS)
            .map(|count| pause(count).as_secs())
            .collect();
        assert_eq!(pauses, [0, 5, 10, 20, 40]);
    }
}
