//! The queue of the commit thread, bounded by writes and by bytes.
//!
//! Producers never wait: if the queue is full, or a write would wait too long, it is refused with the time after which to
//! retry. The waiting time is estimated from recent batches. A running batch that takes longer counts with its age, so that
//! a stalled engine is noticed before its first batch ends. A stale estimate refuses no writes: if nothing is queued and
//! nothing runs, it is not used, and it decays with time.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;

use crate::clock::Clock;
use crate::metrics::{Metrics, Unit, gauge_value};
use crate::sync::lock;

/// A write that would wait longer is refused.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// The shortest retry time.
const LEAST_RETRY: Duration = Duration::from_secs(1);
/// The longest retry time: a stall may end at any moment.
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// The half-life of an estimate that no batch renews.
const HALVED_EVERY: Duration = Duration::from_secs(10);

/// The most one batch takes.
pub(crate) const BATCH: Weight = Weight {
    writes: 1024,
    bytes: 1 << 20,
};

/// The size of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Weight {
    pub(crate) writes: usize,
    pub(crate) bytes: usize,
}

impl Weight {
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            writes: self.writes.saturating_add(other.writes),
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }

    fn minus(self, other: Self) -> Self {
        Self {
            writes: self.writes.saturating_sub(other.writes),
            bytes: self.bytes.saturating_sub(other.bytes),
        }
    }

    /// How many batches it takes, including the running one.
    fn batches(self, batch: Self) -> u32 {
        let writes = self.writes / batch.writes.max(1);
        let bytes = self.bytes / batch.bytes.max(1);
        u32::try_from(writes.max(bytes))
            .unwrap_or(u32::MAX)
            .saturating_add(1)
    }

    pub(crate) fn fits(self, limit: Self) -> bool {
        self.writes <= limit.writes && self.bytes <= limit.bytes
    }
}

/// Why a message was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The queue is full, or the wait would be too long.
    Full {
        /// When to retry.
        retry_after: Duration,
    },
    /// The queue is closed.
    Closed,
}

struct Waiting<T> {
    messages: VecDeque<(T, Weight)>,
    weight: Weight,
    is_closed: bool,
    /// The average duration of recent batches, from queue to disk.
    time_per_batch: Duration,
    /// When that was last updated.
    observed_at: Duration,
    /// When the consumer took the batch that it works on.
    running_since: Option<Duration>,
}

impl<T> Waiting<T> {
    /// The average duration of recent batches, decayed since the last one.
    fn estimate(&self, now: Duration) -> Duration {
        let halvings = now.saturating_sub(self.observed_at).as_secs() / HALVED_EVERY.as_secs();
        let halvings = u32::try_from(halvings).unwrap_or(u32::MAX);
        self.time_per_batch / 2_u32.saturating_pow(halvings)
    }

    /// The expected duration of a batch.
    fn per_batch(&self, now: Duration) -> Duration {
        let age = self.running_since.map(|since| now.saturating_sub(since));
        self.estimate(now).max(age.unwrap_or_default())
    }

    /// The expected time until a message queued now is committed.
    fn wait(&self, now: Duration, batch: Weight) -> Duration {
        if self.messages.is_empty() && self.running_since.is_none() {
            return Duration::ZERO;
        }
        self.per_batch(now).saturating_mul(self.weight.batches(batch))
    }
}

/// Metrics of the queued messages.
struct Gauges {
    writes: Gauge,
    bytes: Gauge,
}

impl Gauges {
    fn of(metrics: &Metrics) -> Self {
        let gauge = |unit: &'static str| metrics.commit_queue.get_or_create(&Unit { unit }).clone();
        Self {
            writes: gauge("writes"),
            bytes: gauge("bytes"),
        }
    }

    fn set(&self, weight: Weight) {
        self.writes.set(gauge_value(weight.writes as u64));
        self.bytes.set(gauge_value(weight.bytes as u64));
    }
}

/// Messages for one consumer, in order.
pub(crate) struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    ready: Condvar,
    limit: Weight,
    /// The most that one call takes.
    batch: Weight,
    clock: Arc<dyn Clock>,
    gauges: Gauges,
}

impl<T> Queue<T> {
    pub(crate) fn new(limit: Weight, batch: Weight, clock: Arc<dyn Clock>, metrics: &Metrics) -> Self {
        Self {
            waiting: Mutex::new(Waiting {
                messages: VecDeque::new(),
                weight: Weight::default(),
                is_closed: false,
                time_per_batch: Duration::ZERO,
                observed_at: Duration::ZERO,
                running_since: None,
            }),
            ready: Condvar::new(),
            limit,
            batch,
            clock,
            gauges: Gauges::of(metrics),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        lock(&self.waiting)
    }

    /// The most that may be queued.
    pub(crate) fn limit(&self) -> Weight {
        self.limit
    }

    /// Appends a message.
    pub(crate) fn push(&self, message: T, weight: Weight) -> Result<(), Refused> {
        let now = self.clock.uptime();
        let waiting = self.lock();
        let after = waiting.weight.plus(weight);
        let wait = waiting.wait(now, self.batch);
        if !waiting.is_closed && (!after.fits(self.limit) || wait > LONGEST_WAIT) {
            return Err(Refused::Full {
                retry_after: wait.clamp(LEAST_RETRY, LONGEST_RETRY),
            });
        }
        self.append(waiting, message, weight)
    }

    /// Appends a message even if the queue is full: for work that relieves it.
    pub(crate) fn push_regardless(&self, message: T, weight: Weight) -> Result<(), Refused> {
        self.append(self.lock(), message, weight)
    }

    fn append(
        &self,
        mut waiting: MutexGuard<'_, Waiting<T>>,
        message: T,
        weight: Weight,
    ) -> Result<(), Refused> {
        if waiting.is_closed {
            return Err(Refused::Closed);
        }
        waiting.weight = waiting.weight.plus(weight);
        waiting.messages.push_back((message, weight));
        self.gauges.set(waiting.weight);
        drop(waiting);
        self.ready.notify_one();
        Ok(())
    }

    /// Waits for a message, then takes queued messages in order: at least one, at most a batch. None if the queue is closed
    /// and empty.
    pub(crate) fn take(&self) -> Option<Vec<T>> {
        let mut waiting = self.lock();
        while waiting.messages.is_empty() {
            if waiting.is_closed {
                return None;
            }
            waiting = self.ready.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        let mut taken = Vec::new();
        let mut weight = Weight::default();
        while let Some((_, next)) = waiting.messages.front() {
            let after = weight.plus(*next);
            if !taken.is_empty() && !after.fits(self.batch) {
                break;
            }
            weight = after;
            taken.extend(waiting.messages.pop_front().map(|(message, _)| message));
        }
        waiting.weight = waiting.weight.minus(weight);
        waiting.running_since = Some(self.clock.uptime());
        self.gauges.set(waiting.weight);
        Some(taken)
    }

    /// Notes that the consumer has finished its batch. To be called before the replies, since callers may return at once.
    pub(crate) fn rest(&self) {
        self.lock().running_since = None;
    }

    /// Adds the duration of a batch to the estimate. Recent batches count more; a stalled one counts at most the longest
    /// wait, since a stall that has ended says little about the next batch.
    pub(crate) fn observe(&self, elapsed: Duration) {
        let now = self.clock.uptime();
        let mut waiting = self.lock();
        waiting.time_per_batch = (waiting.estimate(now) * 7 + elapsed.min(LONGEST_WAIT)) / 8;
        waiting.observed_at = now;
    }

    /// Refuses messages from now on; queued ones can still be taken.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.ready.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// A queue, and the seconds of its clock.
    fn queue<T>(limit: Weight, batch: Weight) -> (Queue<T>, Arc<AtomicU64>) {
        let seconds = Arc::new(AtomicU64::new(0));
        let hands = Arc::clone(&seconds);
        let clock = Arc::new(move || hands.load(Ordering::Relaxed) * 1000);
        (Queue::new(limit, batch, clock, &Metrics::default()), seconds)
    }

    impl<T> Queue<T> {
        fn weight(&self) -> Weight {
            let gauges = [&self.gauges.writes, &self.gauges.bytes];
            let [writes, bytes] = gauges.map(|gauge| usize::try_from(gauge.get()).unwrap());
            assert_eq!(
                self.lock().weight,
                weight(writes, bytes),
                "the gauges show what is queued"
            );
            weight(writes, bytes)
        }
    }

    const fn weight(writes: usize, bytes: usize) -> Weight {
        Weight { writes, bytes }
    }

    #[test]
    fn takes_in_order_and_no_more_than_a_batch() {
        let (queue, _) = queue(weight(100, 1000), weight(2, 100));
        for (number, bytes) in [10, 10, 10, 95, 200].into_iter().enumerate() {
            queue.push(number, weight(1, bytes)).unwrap();
        }
        assert_eq!(queue.take(), Some(vec![0, 1]));
        assert_eq!(queue.take(), Some(vec![2]));
        assert_eq!(queue.weight(), weight(2, 295));
        assert_eq!(queue.take(), Some(vec![3]));
        assert_eq!(queue.take(), Some(vec![4]));
        assert_eq!(queue.weight(), Weight::default());
    }

    #[test]
    fn refuses_messages_that_do_not_fit() {
        let (queue, _) = queue(weight(2, 100), weight(10, 10));
        queue.push('a', weight(2, 0)).unwrap();
        let retry_after = LEAST_RETRY;
        assert_eq!(queue.push('b', weight(1, 0)), Err(Refused::Full { retry_after }));
        queue.take();
        assert_eq!(
            queue.push('b', weight(1, 101)),
            Err(Refused::Full { retry_after })
        );
        queue.push('b', weight(1, 100)).unwrap();
    }

    #[test]
    fn refuses_messages_that_would_wait_too_long() {
        let (queue, _) = queue(weight(1000, 1000), weight(10, 10));
        // Each counts for an eighth: 1 s a batch, nearly.
        queue.observe(Duration::from_secs(4));
        queue.observe(Duration::from_millis(4500));
        for _ in 0..50 {
            queue.push('a', weight(1, 1)).unwrap();
        }
        let retry_after = Duration::from_secs(6);
        assert_eq!(queue.push('b', weight(1, 1)), Err(Refused::Full { retry_after }));
    }

    #[test]
    fn a_stall_that_has_ended_refuses_no_write() {
        let (queue, seconds) = queue(weight(1000, 1000), weight(10, 10));
        for at in [0, 40, 80, 120] {
            seconds.store(at, Ordering::Relaxed);
            queue.push('a', weight(1, 1)).unwrap();
            queue.take();
            seconds.store(at + 40, Ordering::Relaxed);
            assert!(queue.push('b', weight(1, 1)).is_err(), "it still stalls");
            queue.observe(Duration::from_secs(40));
            queue.rest();
        }
        queue.push('c', weight(1, 1)).unwrap();
        queue.push('d', weight(1, 1)).unwrap();
    }

    #[test]
    fn an_estimate_that_no_batch_renews_decays() {
        let (queue, seconds) = queue(weight(1000, 1000), weight(10, 10));
        for _ in 0..100 {
            queue.observe(Duration::from_mins(10));
        }
        for _ in 0..10 {
            queue.push_regardless('a', weight(1, 1)).unwrap();
        }
        // Nearly 5 s a batch, and two of them.
        assert!(queue.push('b', weight(1, 1)).is_err());
        seconds.store(10, Ordering::Relaxed);
        queue.push('b', weight(1, 1)).unwrap();
        seconds.store(u64::MAX / 1000, Ordering::Relaxed);
        queue.push('c', weight(1, 1)).unwrap();
    }

    #[test]
    fn a_running_batch_that_takes_too_long_refuses_writes() {
        let (queue, seconds) = queue(weight(1000, 1000), weight(10, 10));
        queue.push('a', weight(1, 1)).unwrap();
        queue.take();
        seconds.store(5, Ordering::Relaxed);
        queue.push('b', weight(1, 1)).unwrap();
        seconds.store(6, Ordering::Relaxed);
        let retry_after = Duration::from_secs(6);
        assert_eq!(queue.push('c', weight(1, 1)), Err(Refused::Full { retry_after }));
        seconds.store(600, Ordering::Relaxed);
        let retry_after = LONGEST_RETRY;
        assert_eq!(queue.push('c', weight(1, 1)), Err(Refused::Full { retry_after }));
        queue.push_regardless('d', weight(1, 1)).unwrap();
        queue.rest();
        queue.push('e', weight(1, 1)).unwrap();
        assert_eq!(queue.take(), Some(vec!['b', 'd', 'e']));
    }

    #[test]
    fn urgent_messages_pass_a_full_queue() {
        let (queue, _) = queue(weight(1, 10), weight(10, 10));
        queue.push('a', weight(1, 1)).unwrap();
        assert!(queue.push('b', weight(1, 1)).is_err());
        queue.push_regardless('b', weight(1, 1)).unwrap();
        queue.close();
        assert_eq!(queue.push_regardless('c', weight(1, 1)), Err(Refused::Closed));
    }

    #[test]
    fn a_closed_queue_can_be_emptied() {
        let (queue, _) = queue(weight(10, 10), weight(10, 10));
        queue.push('a', weight(1, 1)).unwrap();
        queue.close();
        assert_eq!(queue.push('b', weight(1, 1)), Err(Refused::Closed));
        assert_eq!(queue.take(), Some(vec!['a']));
        assert_eq!(queue.take(), None);
    }
}
