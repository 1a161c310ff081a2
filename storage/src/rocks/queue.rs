//! Who may hand work to the commit thread, and how much may wait?
//!
//! A queue bounded by writes and by bytes. Producers never wait: a full queue, or one that would take too long,
//! refuses with the time after which another try makes sense. A batch that takes longer than those before it counts
//! with its age, so that a stalled engine is noticed before its first batch ends. Nothing that is over keeps writes out:
//! where nothing waits and nothing is at work, no estimate refuses, and an estimate loses weight with time.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;

use crate::clock::Clock;
use crate::metrics::{Metrics, Unit, gauge_value};

/// A write that would wait longer than this is refused.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// The least time a refused writer is told to wait.
const LEAST_RETRY: Duration = Duration::from_secs(1);
/// The most time a refused writer is told to wait: a stall may end at any moment.
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// An estimate that no batch renews counts half after so long.
const HALVED_EVERY: Duration = Duration::from_secs(10);

/// How much a message weighs.
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

    /// How many batches it takes, the one at work included.
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

/// Why a message was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    /// Too much waits already.
    Full {
        /// When another try makes sense.
        retry_after: Duration,
    },
    /// The queue takes nothing any more.
    Closed,
}

struct Waiting<T> {
    messages: VecDeque<(T, Weight)>,
    weight: Weight,
    is_closed: bool,
    /// What one batch has taken lately, from queue to disk.
    time_per_batch: Duration,
    /// When that was observed.
    observed_at: Duration,
    /// When the consumer took what it works on.
    at_work_since: Option<Duration>,
}

impl<T> Waiting<T> {
    /// What one batch has taken lately, less the longer that is ago.
    fn estimate(&self, now: Duration) -> Duration {
        let halvings = now.saturating_sub(self.observed_at).as_secs() / HALVED_EVERY.as_secs();
        let halvings = u32::try_from(halvings).unwrap_or(u32::MAX);
        self.time_per_batch / 2_u32.saturating_pow(halvings)
    }

    /// How long one batch takes, as far as can be told.
    fn per_batch(&self, now: Duration) -> Duration {
        let age = self.at_work_since.map(|since| now.saturating_sub(since));
        self.estimate(now).max(age.unwrap_or_default())
    }

    /// How long a message that comes now waits until it is done.
    fn wait(&self, now: Duration, batch: Weight) -> Duration {
        if self.messages.is_empty() && self.at_work_since.is_none() {
            return Duration::ZERO;
        }
        self.per_batch(now).saturating_mul(self.weight.batches(batch))
    }
}

/// How much waits, as metrics.
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
    /// The most that is taken at once.
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
                at_work_since: None,
            }),
            ready: Condvar::new(),
            limit,
            batch,
            clock,
            gauges: Gauges::of(metrics),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most that may wait.
    pub(crate) fn limit(&self) -> Weight {
        self.limit
    }

    /// Appends a message, or says why not.
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

    /// Appends a message however much waits: for what must not be kept out by those it would help.
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

    /// Waits for a message, then takes what is there in order, one message at least and no more than a batch.
    /// None when the queue is closed and empty.
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
        waiting.at_work_since = Some(self.clock.uptime());
        self.gauges.set(waiting.weight);
        Some(taken)
    }

    /// Tells that the consumer has done what it took: before those who asked are told, since they may come back at once.
    pub(crate) fn rest(&self) {
        self.lock().at_work_since = None;
    }

    /// Tells how long a batch took, for the estimate of waiting times. Recent batches count more; one that stalled
    /// counts no more than the longest wait, since a stall that is over says little about the next batch.
    pub(crate) fn observe(&self, elapsed: Duration) {
        let now = self.clock.uptime();
        let mut waiting = self.lock();
        waiting.time_per_batch = (waiting.estimate(now) * 7 + elapsed.min(LONGEST_WAIT)) / 8;
        waiting.observed_at = now;
    }

    /// Takes nothing any more; what waits is still handed out.
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
                "the gauges tell what waits"
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
    fn refuses_what_does_not_fit() {
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
    fn refuses_what_would_wait_too_long() {
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
    fn a_stall_that_is_over_keeps_no_write_out() {
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
    fn an_estimate_loses_weight_where_no_batch_renews_it() {
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
    fn a_batch_that_takes_too_long_is_noticed_before_it_ends() {
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
    fn what_must_pass_finds_a_full_queue_open() {
        let (queue, _) = queue(weight(1, 10), weight(10, 10));
        queue.push('a', weight(1, 1)).unwrap();
        assert!(queue.push('b', weight(1, 1)).is_err());
        queue.push_regardless('b', weight(1, 1)).unwrap();
        queue.close();
        assert_eq!(queue.push_regardless('c', weight(1, 1)), Err(Refused::Closed));
    }

    #[test]
    fn a_closed_queue_is_emptied_first() {
        let (queue, _) = queue(weight(10, 10), weight(10, 10));
        queue.push('a', weight(1, 1)).unwrap();
        queue.close();
        assert_eq!(queue.push('b', weight(1, 1)), Err(Refused::Closed));
        assert_eq!(queue.take(), Some(vec!['a']));
        assert_eq!(queue.take(), None);
    }
}
