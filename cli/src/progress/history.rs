//! What a series of snapshots tells: how many pods each node had, how fast they leave, and how long the rest may take.

use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;

use super::Snapshot;

/// Over which time the rate is measured, in seconds.
const WINDOW_SECONDS: i64 = 300;
/// At most this many measurements are kept.
const MAX_MEASUREMENTS: usize = 600;

/// What was seen since the view began.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The most pods that were seen on each node.
    peaks: BTreeMap<String, usize>,
    /// When how many pods were left: the first measurement, and the changes within the window.
    measurements: VecDeque<(Timestamp, usize)>,
    /// When the number of pods last went down, or the view began.
    last_gone: Option<Timestamp>,
    /// How often something was added.
    observations: usize,
}

/// How a drain goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Nothing has been measured.
    Unknown,
    /// At the rate of the last minutes, this many seconds are left.
    SecondsLeft(u64),
    /// No pod has left for this many seconds.
    Standstill(u64),
}

/// Without a pod that leaves for this long, a drain stands still.
const STANDSTILL_SECONDS: i64 = 60;

impl History {
    /// Adds what was seen.
    pub fn add(&mut self, snapshot: &Snapshot, now: Timestamp) {
        self.observations = self.observations.saturating_add(1);
        for node in &snapshot.nodes {
            let peak = self.peaks.entry(node.name.clone()).or_insert(0);
            *peak = (*peak).max(node.left);
        }
        let left = snapshot.left();
        let before = self.measurements.back().map(|(_, left)| *left);
        if self.last_gone.is_none() || before.is_some_and(|before| left < before) {
            self.last_gone = Some(now);
        }
        if before != Some(left) {
            self.measurements.push_back((now, left));
        }
        // The measurement before the window begins tells what it begins with.
        while self.measurements.len() > 2
            && (self.measurements.len() > MAX_MEASUREMENTS
                || self
                    .measurements
                    .get(1)
                    .is_some_and(|(at, _)| now.duration_since(*at).as_secs() > WINDOW_SECONDS))
        {
            self.measurements.pop_front();
        }
    }

    /// Whether there is more than one observation, so that there is progress to show.
    #[must_use]
    pub const fn shows_progress(&self) -> bool {
        self.observations > 1
    }

    /// The most pods that were seen on a node.
    #[must_use]
    pub fn peak(&self, node: &str) -> usize {
        self.peaks.get(node).copied().unwrap_or_default()
    }

    /// How the drain goes on: the pods that have left in the last minutes, and what is left at that rate.
    #[must_use]
    pub fn pace(&self, now: Timestamp) -> Pace {
        let (Some((begin, first)), Some((_, left))) = (self.measurements.front(), self.measurements.back())
        else {
            return Pace::Unknown;
        };
        if *left == 0 {
            return Pace::SecondsLeft(0);
        }
        let stands = self
            .last_gone
            .map_or(0, |last| now.duration_since(last).as_secs());
        if stands >= STANDSTILL_SECONDS {
            return Pace::Standstill(u64::try_from(stands).unwrap_or_default());
        }
        let gone = first.saturating_sub(*left);
        let elapsed = u64::try_from(now.duration_since(*begin).as_secs()).unwrap_or_default();
        if gone == 0 || elapsed == 0 {
            return Pace::Unknown;
        }
        let (gone, left) = (gone as u64, *left as u64);
        Pace::SecondsLeft((elapsed * left).div_ceil(gone))
    }
}
