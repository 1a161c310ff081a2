//! The time of drydock-apiserver, learned from the `Date` header of its responses. It accepts only times close to its
//! own, so all times in objects are taken from here.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use drydock_machinery::clock::Clock;
use jiff::{SignedDuration, Timestamp};

/// A difference between the two clocks that is reported.
const REPORTED_SKEW: SignedDuration = SignedDuration::from_secs(10);
/// The precision of the `Date` header.
const DATE_PRECISION: SignedDuration = SignedDuration::from_secs(1);

/// A clock that shows the server's time.
#[derive(Debug)]
pub struct ServerClock {
    local: Arc<dyn Clock>,
    /// The server's time minus the local time, in microseconds.
    offset: AtomicI64,
}

impl ServerClock {
    /// A clock that shows the local time until the server's is learned.
    #[must_use]
    pub fn new(local: Arc<dyn Clock>) -> Self {
        Self {
            local,
            offset: AtomicI64::new(0),
        }
    }

    /// The local time, for [`Self::learn`].
    #[must_use]
    pub fn local(&self) -> Timestamp {
        self.local.now()
    }

    /// The server's time minus the local time.
    #[must_use]
    pub fn offset(&self) -> SignedDuration {
        SignedDuration::from_micros(self.offset.load(Ordering::Relaxed))
    }

    /// Learns from the `Date` header of a response to a request that was sent and answered at these local times. The
    /// header was written between the two, so a slow response does not look like a skew. Headers that are not a date
    /// are ignored.
    pub fn learn(&self, date: &str, sent: Timestamp, received: Timestamp) {
        let Ok(date) = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(date) else {
            return;
        };
        let least = date.duration_since(received);
        let most = date.duration_since(sent).saturating_add(DATE_PRECISION);
        let before = self.offset();
        // A local clock that was set back meanwhile makes the bounds contradict each other.
        if least > most || (least..=most).contains(&before) {
            return;
        }
        let after = if before < least { least } else { most };
        let micros = i64::try_from(after.as_micros()).unwrap_or_default();
        self.offset.store(micros, Ordering::Relaxed);
        report(before, after);
    }
}

/// Logs when the skew begins or ends.
fn report(before: SignedDuration, after: SignedDuration) {
    let seconds = after.as_secs();
    match (before.abs() > REPORTED_SKEW, after.abs() > REPORTED_SKEW) {
        (false, true) => tracing::warn!(
            seconds,
            "ClockSkew: the clock of drydock-apiserver differs from this machine's; times in objects follow the server"
        ),
        (true, false) => tracing::info!(
            seconds,
            "the clocks of drydock-apiserver and this machine agree again"
        ),
        _ => {}
    }
}

impl Clock for ServerClock {
    fn now(&self) -> Timestamp {
        let local = self.local.now();
        let offset = self.offset();
        let magnitude = Duration::try_from(offset.abs()).unwrap_or_default();
        let shifted = if offset.is_negative() {
            local.checked_sub(magnitude)
        } else {
            local.checked_add(magnitude)
        };
        shifted.unwrap_or(local)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::clock_at;

    /// The `Date` header of a second of 1970-01-01.
    fn date(second: i64) -> String {
        let time = Timestamp::from_second(second).unwrap();
        jiff::fmt::rfc2822::DateTimePrinter::new()
            .timestamp_to_rfc9110_string(&time)
            .unwrap()
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millisecond(millis).unwrap()
    }

    #[test]
    fn clock_follows_the_server_in_both_directions() {
        let local = clock_at(1_000);
        let clock = ServerClock::new(Arc::clone(&local) as Arc<dyn Clock>);
        clock.learn(&date(1_030), at(1_000_000), at(1_000_000));
        assert_eq!(clock.now().as_second(), 1_030);
        clock.learn(&date(970), at(1_000_000), at(1_000_000));
        assert_eq!(clock.now().as_second(), 971, "the header has whole seconds");
        local.advance(Duration::from_secs(5));
        assert_eq!(clock.now().as_second(), 976);
    }

    #[test]
    fn neither_slow_responses_nor_the_precision_of_the_header_look_like_a_skew() {
        let local = clock_at(1_000);
        let clock = ServerClock::new(local);
        for (date_at, sent, received) in [
            (1_000, 999_500, 1_000_999),
            (1_012, 1_000_000, 1_012_000),
            (1_000, 1_000_000, 1_012_000),
            (1_000, 1_000_999, 1_000_999),
        ] {
            clock.learn(&date(date_at), at(sent), at(received));
            assert_eq!(
                clock.offset(),
                SignedDuration::ZERO,
                "{date_at} {sent} {received}"
            );
        }
        clock.learn("soon", at(0), at(0));
        clock.learn(&date(1_000_000), at(5_000), at(1_000));
        assert_eq!(clock.offset(), SignedDuration::ZERO);
    }
}
