//! When revisions were committed, and how far back history is kept.
//!
//! Exact lists reach back for the window. Watches reach back further, to a number of newest revisions, so that clients can
//! resume after a quiet night. If history has too many bytes both are shortened, but not below the minimum window; if
//! nothing is as old as that, size alone decides, so that disk usage is bounded whatever the clock says.
//!
//! Ages are measured in steady time, not by commit times: those never go back, so after a wall clock was ahead for a while,
//! commits look new until it has caught up.

use std::collections::VecDeque;
use std::time::Duration;

use crate::{Floors, Revision};

/// Commit times closer than this share one sample.
const SAMPLE_MS: u64 = 1000;
/// A sample holds no more bytes than this, or one batch: floors rise from sample to sample.
const SAMPLE_BYTES: u64 = 16 << 20;

/// The newest revision at a time, and the bytes of history written by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Sample {
    at_ms: u64,
    revision: Revision,
    /// Of all samples through this one.
    bytes: u64,
    /// Of those before it.
    bytes_before: u64,
}

/// When revisions were committed and how large they are, about once a second.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    samples: VecDeque<Sample>,
    bytes: u64,
    /// Bytes below the oldest sample that is kept.
    dropped: u64,
}

/// How much history is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Keep {
    pub(crate) window: Duration,
    pub(crate) minimum_window: Duration,
    pub(crate) watchable_revisions: u64,
    pub(crate) history_bytes: u64,
}

impl Timeline {
    /// Notes that history up to `revision` grew by `bytes` at a time.
    pub(crate) fn note(&mut self, at_ms: u64, revision: Revision, bytes: u64) {
        let sample = Sample {
            at_ms,
            revision,
            bytes: self.bytes + bytes,
            bytes_before: self.bytes,
        };
        self.bytes += bytes;
        let fits = |last: &Sample| {
            at_ms < last.at_ms.saturating_add(SAMPLE_MS) && self.bytes - last.bytes_before <= SAMPLE_BYTES
        };
        match self.samples.back_mut() {
            Some(last) if fits(last) => {
                last.revision = revision;
                last.bytes = self.bytes;
            }
            _ => self.samples.push_back(sample),
        }
    }

    /// Converts the commit times noted so far into steady time, which begins at `now_ms`: nothing is younger than now,
    /// whatever the clock said when it was written.
    pub(crate) fn begin(&mut self, now_ms: u64) {
        for sample in &mut self.samples {
            sample.at_ms = sample.at_ms.min(now_ms);
        }
    }

    /// The newest revision that was current when the window began.
    fn start_of_window(&self, now_ms: u64, window: Duration) -> Option<Sample> {
        let window_ms = u64::try_from(window.as_millis()).unwrap_or(u64::MAX);
        let begin = now_ms.saturating_sub(window_ms);
        // A sample holds what was committed in the second after its time.
        let is_before = |sample: &&Sample| sample.at_ms.saturating_add(SAMPLE_MS) <= begin;
        self.samples.iter().rev().find(is_before).copied()
    }

    /// The floors that history should have.
    pub(crate) fn floors(&self, now_ms: u64, current: Revision, floors: Floors, keep: Keep) -> Floors {
        let mut wanted = floors;
        if let Some(start) = self.start_of_window(now_ms, keep.window) {
            let newest = Revision(
                current
                    .0
                    .saturating_sub(keep.watchable_revisions)
                    .saturating_add(1),
            );
            wanted.listable_from = floors.listable_from.max(start.revision);
            wanted.watchable_from = floors.watchable_from.max(newest.min(wanted.listable_from));
        }
        if let Some(fits) = self.first_to_fit(keep.history_bytes) {
            let limit = self.start_of_window(now_ms, keep.minimum_window);
            let floor = limit.map_or(fits, |limit| fits.min(limit.revision));
            wanted.listable_from = wanted.listable_from.max(floor);
            wanted.watchable_from = wanted.watchable_from.max(floor);
        }
        wanted
    }

    /// The revision from which on history has at most `bytes`; none if all of it fits.
    fn first_to_fit(&self, bytes: u64) -> Option<Revision> {
        let excess = self.bytes.saturating_sub(self.dropped).saturating_sub(bytes);
        if excess == 0 {
            return None;
        }
        let fits = |sample: &&Sample| sample.bytes.saturating_sub(self.dropped) >= excess;
        self.samples.iter().find(fits).map(|sample| sample.revision)
    }

    /// Forgets samples below the floor.
    pub(crate) fn trim(&mut self, floors: Floors) {
        while let Some(sample) = self.samples.front()
            && sample.revision < floors.watchable_from
        {
            self.dropped = sample.bytes;
            self.samples.pop_front();
        }
    }

    /// How far back exact lists reach, in seconds.
    pub(crate) fn window_seconds(&self, now_ms: u64, floors: Floors) -> u64 {
        let mut samples = self.samples.iter();
        let oldest = samples.find(|sample| sample.revision >= floors.listable_from);
        oldest.map_or(0, |sample| now_ms.saturating_sub(sample.at_ms) / 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Keep = Keep {
        window: Duration::from_mins(5),
        minimum_window: Duration::from_secs(75),
        watchable_revisions: 100,
        history_bytes: 1_000_000,
    };

    fn floors(listable: u64, watchable: u64) -> Floors {
        Floors {
            listable_from: Revision(listable),
            watchable_from: Revision(watchable),
        }
    }

    /// One revision a second from second 2 through `last`, each of `bytes`.
    fn seconds(last: u64, bytes: u64) -> Timeline {
        let mut timeline = Timeline::default();
        for second in 2..=last {
            timeline.note(second * 1000, Revision(second), bytes);
        }
        timeline
    }

    fn check(timeline: &Timeline, now: u64, current: u64, before: Floors, expected: Floors) {
        assert_eq!(
            timeline.floors(now * 1000, Revision(current), before, KEEP),
            expected
        );
    }

    #[test]
    fn lists_reach_back_for_the_window_and_watches_for_a_number_of_revisions() {
        let timeline = seconds(1000, 1);
        check(&timeline, 1000, 1000, floors(1, 1), floors(699, 699));
        check(&timeline, 1250, 1000, floors(1, 1), floors(949, 901));
    }

    #[test]
    fn a_quiet_night_keeps_the_newest_state_listable_and_watches_resumable() {
        let timeline = seconds(50, 1);
        check(&timeline, 90_000, 50, floors(1, 1), floors(50, 1));
    }

    #[test]
    fn a_young_store_keeps_everything() {
        check(&seconds(200, 1), 200, 200, floors(1, 1), floors(1, 1));
    }

    #[test]
    fn floors_never_fall() {
        check(&seconds(1000, 1), 1000, 1000, floors(800, 800), floors(800, 800));
    }

    #[test]
    fn too_many_bytes_shorten_the_window_but_not_below_the_minimum() {
        // 10,000 B a second: 100 s fit.
        check(&seconds(250, 10_000), 250, 250, floors(1, 1), floors(150, 150));
        // 50,000 B a second: 20 s would fit, 75 s are kept.
        check(&seconds(250, 50_000), 250, 250, floors(1, 1), floors(174, 174));
    }

    #[test]
    fn size_alone_decides_where_nothing_is_as_old_as_the_minimum_window() {
        check(&seconds(10, 200_000), 10, 10, floors(1, 1), floors(5, 5));
        check(&seconds(5, 200_000), 5, 5, floors(1, 1), floors(1, 1));
    }

    #[test]
    fn a_second_with_many_bytes_is_dropped_in_parts() {
        let mut timeline = Timeline::default();
        for revision in 2..=9 {
            timeline.note(2000, Revision(revision), SAMPLE_BYTES / 2);
        }
        let keep = Keep {
            history_bytes: SAMPLE_BYTES,
            ..KEEP
        };
        let wanted = timeline.floors(2000, Revision(9), floors(1, 1), keep);
        assert_eq!(wanted, floors(7, 7));
    }

    #[test]
    fn commits_with_future_times_age_from_the_start_on() {
        let mut timeline = Timeline::default();
        for revision in 2..=9 {
            timeline.note(9_000_000, Revision(revision), 1);
        }
        timeline.begin(1_000_000);
        timeline.note(1_001_000, Revision(10), 1);
        check(&timeline, 1300, 10, floors(1, 1), floors(1, 1));
        check(&timeline, 1301, 10, floors(1, 1), floors(9, 1));
    }

    #[test]
    fn trimming_counts_what_was_dropped() {
        let mut timeline = seconds(250, 10_000);
        timeline.trim(floors(150, 150));
        check(&timeline, 250, 250, floors(150, 150), floors(150, 150));
        assert_eq!(timeline.window_seconds(250_000, floors(150, 150)), 100);
    }

    #[test]
    fn a_clock_that_goes_back_raises_no_floor() {
        let timeline = seconds(1000, 1);
        check(&timeline, 10, 1000, floors(1, 1), floors(1, 1));
    }
}
