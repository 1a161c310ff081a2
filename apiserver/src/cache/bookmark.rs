//! When may a watch promise "everything up to here has been sent", and when should it?
//!
//! About once a minute, two seconds before its end, and only for a revision past its start. The promise is made
//! of a revision that was applied *before* the watcher was found to be at the head of its log, and not while
//! something newer has already been sent; both are checked here and nowhere else.

use std::time::Duration;

use drydock_storage::Revision;
use tokio::time::Instant;

/// How far bookmarks lie apart, give or take [`JITTER`].
const PERIOD: Duration = Duration::from_mins(1);

/// The largest part of the period that is added or taken at random, so that watches begun together do not all
/// speak at once.
const JITTER: f64 = 0.02;

/// How long before the end of a watch its last bookmark is sent.
const FAREWELL: Duration = Duration::from_secs(2);

/// When a promise could not be made because something newer was already sent, how long until it can.
const SOON: Duration = Duration::from_millis(50);

/// The bookmarks of one watch.
#[derive(Debug)]
pub(super) struct Bookmarks {
    /// Nothing up to here is worth a promise: the client knows it.
    after: Revision,
    due: Instant,
    farewell: Option<Instant>,
    random: fastrand::Rng,
}

impl Bookmarks {
    /// Bookmarks of a watch that starts behind `after` and ends at `deadline`.
    pub(super) fn new(after: Revision, deadline: Instant, random: fastrand::Rng) -> Self {
        let now = Instant::now();
        let mut bookmarks = Self {
            after,
            due: now,
            farewell: deadline.checked_sub(FAREWELL).filter(|farewell| *farewell > now),
            random,
        };
        bookmarks.schedule(now);
        bookmarks
    }

    fn schedule(&mut self, now: Instant) {
        let jitter = 1.0 + JITTER * (2.0 * self.random.f64() - 1.0);
        self.due = now + PERIOD.mul_f64(jitter);
        self.farewell = self.farewell.filter(|farewell| *farewell > now);
    }

    /// When the next one is due.
    pub(super) fn next_at(&self) -> Instant {
        self.farewell.map_or(self.due, |farewell| farewell.min(self.due))
    }

    /// The revision to promise now that the watcher is at the head of its log. `applied` was read before that was
    /// found, `sent` is the revision of the last event that was sent.
    pub(super) fn promise(&mut self, now: Instant, applied: Revision, sent: Revision) -> Option<Revision> {
        if applied < sent {
            self.due = now + SOON;
            self.farewell = self.farewell.filter(|farewell| *farewell > now);
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
                .promise(Instant::now(), Revision(9), Revision(0))
                .unwrap();
            times.push((start.elapsed() + Duration::from_millis(500)).as_secs());
        }
        times
    }

    #[tokio::test(start_paused = true)]
    async fn they_come_each_minute_and_before_the_end() {
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
    async fn nothing_is_promised_at_the_start_nor_below_what_was_sent() {
        let now = Instant::now();
        let mut bookmarks = bookmarks(5, 600);
        assert_eq!(bookmarks.promise(now, Revision(5), Revision(5)), None);
        assert_eq!(bookmarks.promise(now, Revision(6), Revision(7)), None);
        assert!(bookmarks.next_at() <= now + SOON, "it is made up for soon");
        assert_eq!(
            bookmarks.promise(now, Revision(7), Revision(7)),
            Some(Revision(7))
        );
    }
}
