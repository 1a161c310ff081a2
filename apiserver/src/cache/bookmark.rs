//! When a watch sends a bookmark, which says that everything up to a revision has been sent.
//!
//! About once a minute and two seconds before the watch ends, and only for a revision after its start. The revision
//! must have been applied *before* the watch was found to be at the head of its log, and must not be lower than an
//! event that was sent already.

use std::time::Duration;

use drydock_storage::Revision;
use tokio::time::Instant;

/// The time between two bookmarks, give or take [`JITTER`].
const PERIOD: Duration = Duration::from_mins(1);

/// The largest share of the period that is added or subtracted at random, so that watches that began together do not
/// send bookmarks together.
const JITTER: f64 = 0.02;

/// How long before the timeout of a watch its last bookmark is sent.
const LAST_BEFORE_END: Duration = Duration::from_secs(2);

/// When to try again after a newer event was sent already.
const RETRY: Duration = Duration::from_millis(50);

/// The bookmarks of one watch.
#[derive(Debug)]
pub(super) struct Bookmarks {
    /// The client knows this revision from the start.
    after: Revision,
    due: Instant,
    /// When the last bookmark is due, if that is still to come.
    last: Option<Instant>,
    random: fastrand::Rng,
}

impl Bookmarks {
    /// Bookmarks of a watch that starts after `after` and ends at `deadline`.
    pub(super) fn new(after: Revision, deadline: Instant, random: fastrand::Rng) -> Self {
        let now = Instant::now();
        let mut bookmarks = Self {
            after,
            due: now,
            last: deadline.checked_sub(LAST_BEFORE_END).filter(|last| *last > now),
            random,
        };
        bookmarks.schedule(now);
        bookmarks
    }

    fn schedule(&mut self, now: Instant) {
        let jitter = 1.0 + JITTER * (2.0 * self.random.f64() - 1.0);
        self.set_due(now, PERIOD.mul_f64(jitter));
    }

    fn set_due(&mut self, now: Instant, delay: Duration) {
        self.due = now + delay;
        self.last = self.last.filter(|last| *last > now);
    }

    /// When the next bookmark is due.
    pub(super) fn next_at(&self) -> Instant {
        self.last.map_or(self.due, |last| last.min(self.due))
    }

    /// The revision of a bookmark to send now, if any, at the head of the log. `applied` was read before the head was
    /// reached; every event up to `seen` has been sent.
    pub(super) fn take_due(&mut self, now: Instant, applied: Revision, seen: Revision) -> Option<Revision> {
        if applied < seen {
            self.set_due(now, RETRY);
            return None;
        }
        self.schedule(now);
        (applied > self.after).then_some(applied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bookmarks(after: u64, timeout: u64) -> Bookmarks {
        let deadline = Instant::now() + Duration::from_secs(timeout);
        Bookmarks::new(Revision(after), deadline, fastrand::Rng::with_seed(7))
    }

    /// The seconds at which bookmarks are due, to a second.
    async fn times(mut bookmarks: Bookmarks, timeout: u64) -> Vec<u64> {
        let start = Instant::now();
        let mut times = Vec::new();
        while bookmarks.next_at() < start + Duration::from_secs(timeout) {
            tokio::time::sleep_until(bookmarks.next_at()).await;
            bookmarks
                .take_due(Instant::now(), Revision(9), Revision(0))
                .unwrap();
            times.push((start.elapsed() + Duration::from_millis(500)).as_secs());
        }
        times
    }

    #[tokio::test(start_paused = true)]
    async fn bookmarks_are_due_each_minute_and_two_seconds_before_the_end() {
        let seen = times(bookmarks(1, 135), 135).await;
        let [first, second, last] = seen[..] else {
            panic!("{seen:?}")
        };
        assert!(
            (58..=62).contains(&first) && (117..=123).contains(&second),
            "{seen:?}"
        );
        assert_eq!(last, 133);
        assert_eq!(times(bookmarks(1, 10), 10).await, [8]);
        assert!(times(bookmarks(1, 1), 1).await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn no_bookmark_at_the_start_revision_or_below_a_sent_event() {
        let now = Instant::now();
        let mut bookmarks = bookmarks(5, 600);
        assert_eq!(bookmarks.take_due(now, Revision(5), Revision(5)), None);
        assert_eq!(bookmarks.take_due(now, Revision(6), Revision(7)), None);
        assert!(bookmarks.next_at() <= now + RETRY, "it is retried soon");
        assert_eq!(
            bookmarks.take_due(now, Revision(7), Revision(7)),
            Some(Revision(7))
        );
    }
}
