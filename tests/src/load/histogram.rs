//! A histogram of latencies: the width of buckets doubles every 64 buckets, so quantiles are accurate to 1/64.

use std::time::Duration;

/// The buckets of one doubling, as a power of two.
const STEPS_LOG2: u32 = 6;
/// Enough for every `u64` of nanoseconds.
const BUCKETS: usize = 64 << STEPS_LOG2;

/// Counts of durations by bucket.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    largest: Duration,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: vec![0; BUCKETS],
            total: 0,
            largest: Duration::ZERO,
        }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&mut self, duration: Duration) {
        let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        if let Some(count) = self.counts.get_mut(bucket_of(nanos)) {
            *count += 1;
        }
        self.total += 1;
        self.largest = self.largest.max(duration);
    }

    /// Adds the counts of another.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
        self.total += other.total;
        self.largest = self.largest.max(other.largest);
    }

    /// The number of counted durations.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The duration that `per_thousand` of 1000 do not exceed; zero without counts.
    #[must_use]
    pub fn quantile(&self, per_thousand: u64) -> Duration {
        let rank = self.total.saturating_mul(per_thousand).div_ceil(1000).max(1);
        let mut seen = 0;
        for (bucket, count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Duration::from_nanos(start_of(bucket)).min(self.largest);
            }
        }
        self.largest
    }

    /// The median.
    #[must_use]
    pub fn median(&self) -> Duration {
        self.quantile(500)
    }
}

fn bucket_of(nanos: u64) -> usize {
    let bits = u64::BITS - nanos.leading_zeros();
    let shift = bits.saturating_sub(STEPS_LOG2 + 1);
    let bucket = (u64::from(shift) << STEPS_LOG2) + (nanos >> shift);
    usize::try_from(bucket).unwrap_or(usize::MAX)
}

fn start_of(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let shift = (bucket >> STEPS_LOG2).saturating_sub(1);
    (bucket - (shift << STEPS_LOG2)) << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_contiguous() {
        for bucket in 1..58 << STEPS_LOG2 {
            let start = start_of(bucket);
            assert_eq!(bucket_of(start), bucket, "{start}");
            assert_eq!(bucket_of(start - 1), bucket - 1, "{start}");
        }
        assert!(bucket_of(u64::MAX) < BUCKETS);
    }

    #[test]
    fn quantiles_are_exact_to_a_sixty_fourth() {
        let mut histogram = Histogram::default();
        for micros in 1..=1000 {
            histogram.record(Duration::from_micros(micros));
        }
        for (per_thousand, micros) in [(500, 500), (990, 990), (1000, 1000), (0, 1)] {
            let expected = Duration::from_micros(micros);
            let found = histogram.quantile(per_thousand);
            assert!(
                found <= expected && found + expected / 64 >= expected,
                "{found:?}"
            );
        }
        assert_eq!(Histogram::default().median(), Duration::ZERO);
    }

    #[test]
    fn merging_adds_counts() {
        let (mut one, mut other) = (Histogram::default(), Histogram::default());
        one.record(Duration::from_micros(1));
        other.record(Duration::from_micros(100));
        one.merge(&other);
        assert_eq!(one.total(), 2);
        assert_eq!(one.quantile(1000), other.quantile(1000));
        assert_eq!(one.median(), Duration::from_micros(1));
    }
}
