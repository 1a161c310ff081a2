//! The trend of the server's resident memory.

use std::fmt;
use std::time::Duration;

use anyhow::{Result, bail};

/// Memory varies by the larger of these two at any time: blocks being written, lists in progress, pages that the
/// allocator keeps.
const SWING_BYTES: f64 = 64.0 * MIB;
/// As a fraction of all memory.
const SWING: f64 = 0.05;
const MIB: f64 = 1024.0 * 1024.0;

/// Resident memory over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    /// Seconds and bytes, after the warm-up.
    samples: Vec<(f64, f64)>,
}

impl Memory {
    #[expect(clippy::cast_precision_loss, reason = "bytes of memory fit a float exactly")]
    pub(super) fn record(&mut self, at: Duration, bytes: u64) {
        self.samples.push((at.as_secs_f64(), bytes as f64));
    }

    /// Fits a straight line by least squares.
    pub(super) fn trend(&self) -> Trend {
        let count = f64::from(u32::try_from(self.samples.len().max(1)).unwrap_or(u32::MAX));
        let mean = |of: fn(&(f64, f64)) -> f64| self.samples.iter().map(of).sum::<f64>() / count;
        let (middle, level) = (mean(|sample| sample.0), mean(|sample| sample.1));
        let (mut spread, mut together) = (0.0, 0.0);
        for (at, bytes) in &self.samples {
            spread += (at - middle).powi(2);
            together += (at - middle) * (bytes - level);
        }
        let slope = if spread > 0.0 { together / spread } else { 0.0 };
        let ends = self.samples.first().zip(self.samples.last());
        let (first, last) = ends.map_or((0.0, 0.0), |(first, last)| (first.0, last.0));
        Trend {
            start: level + slope * (first - middle),
            end: level + slope * (last - middle),
            hours: (last - first) / 3600.0,
        }
    }
}

/// The straight line through the samples.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Trend {
    /// Bytes after the warm-up.
    start: f64,
    /// Bytes at the end.
    end: f64,
    hours: f64,
}

impl Trend {
    /// Checks the growth.
    ///
    /// # Errors
    /// Memory grew by more than so many bytes an hour, beyond the variation.
    #[expect(clippy::cast_precision_loss, reason = "bytes of memory fit a float exactly")]
    pub(super) fn check(self, growth_per_hour: u64) -> Result<()> {
        let swing = SWING_BYTES.max(self.start * SWING);
        let allowed = swing + growth_per_hour as f64 * self.hours;
        if self.end - self.start <= allowed {
            return Ok(());
        }
        bail!("memory grew: {self}; allowed were {:.0} MiB", allowed / MIB)
    }
}

impl fmt::Display for Trend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.0} MiB after the warm-up, {:.0} MiB at the end, {:+.1} MiB in {:.2} h",
            self.start / MIB,
            self.end / MIB,
            (self.end - self.start) / MIB,
            self.hours
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples of an hour at `start` MiB which grow by `growth` MiB, with swings of `swing` MiB.
    fn hour(start: u64, growth: u64, swing: u64) -> Memory {
        let mut memory = Memory::default();
        for minute in 0..=60 {
            let mib = start + growth * minute / 60 + swing * (minute % 2);
            memory.record(Duration::from_mins(minute), mib << 20);
        }
        memory
    }

    #[test]
    fn growth_beyond_the_slope_and_the_variation_is_found() {
        for (start, growth, swing, is_flat) in [
            (1000, 0, 0, true),
            (1000, 0, 300, true),
            (1000, 70, 0, true),
            (1000, 70, 100, true),
            (1000, 90, 0, false),
            (1000, 90, 100, false),
            (1000, 1000, 0, false),
            (4000, 210, 0, true),
            (4000, 220, 0, false),
        ] {
            let found = hour(start, growth, swing).trend().check(16 << 20);
            assert_eq!(found.is_ok(), is_flat, "{start} {growth} {swing}: {found:?}");
        }
    }

    #[test]
    fn shrinking_memory_and_few_samples_pass() {
        let mut shrinking = Memory::default();
        shrinking.record(Duration::ZERO, 2 << 30);
        assert!(shrinking.trend().check(0).is_ok());
        shrinking.record(Duration::from_mins(1), 1 << 30);
        assert!(shrinking.trend().check(0).is_ok());
        assert!(Memory::default().trend().check(0).is_ok());
        assert_eq!(
            hour(1000, 60, 0).trend().to_string(),
            "1000 MiB after the warm-up, 1060 MiB at the end, +60.0 MiB in 1.00 h"
        );
    }
}
