//! Who may hand work to the commit thread, and how much may wait?
//!
//! A queue bounded by writes and by bytes. Producers never wait: a full queue, or one that would take too long,
//! refuses with the time after which another try makes sense.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A write that would wait longer than this is refused.
const LONGEST_WAIT: Duration = Duration::from_secs(5);
/// The least time a refused writer is told to wait.
const LEAST_RETRY: Duration = Duration::from_secs(1);

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

#[derive(Debug)]
struct Waiting<T> {
    messages: VecDeque<(T, Weight)>,
    weight: Weight,
    is_closed: bool,
    /// What one batch has taken lately, from queue to disk.
    time_per_batch: Duration,
}

/// Messages for one consumer, in order.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    ready: Condvar,
    limit: Weight,
    /// The most that is taken at once.
    batch: Weight,
}

impl<T> Queue<T> {
    pub(crate) fn new(limit: Weight, batch: Weight) -> Self {
        Self {
            waiting: Mutex::new(Waiting {
                messages: VecDeque::new(),
                weight: Weight::default(),
                is_closed: false,
                time_per_batch: Duration::ZERO,
            }),
            ready: Condvar::new(),
            limit,
            batch,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most that may wait.
    pub(crate) fn limit(&self) -> Weight {
        self.limit
    }

    /// What waits now.
    pub(crate) fn weight(&self) -> Weight {
        self.lock().weight
    }

    /// Appends a message, or says why not.
    pub(crate) fn push(&self, message: T, weight: Weight) -> Result<(), Refused> {
        let mut waiting = self.lock();
        if waiting.is_closed {
            return Err(Refused::Closed);
        }
        let after = waiting.weight.plus(weight);
        let wait = waiting
            .time_per_batch
            .saturating_mul(waiting.weight.batches(self.batch));
        if !after.fits(self.limit) || wait > LONGEST_WAIT {
            return Err(Refused::Full {
                retry_after: wait.max(LEAST_RETRY),
            });
        }
        waiting.weight = after;
        waiting.messages.push_back((message, weight));
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
        Some(taken)
    }

    /// Tells how long a batch took, for the estimate of waiting times. Recent batches count more.
    pub(crate) fn observe(&self, elapsed: Duration) {
        let mut waiting = self.lock();
        waiting.time_per_batch = (waiting.time_per_batch * 7 + elapsed) / 8;
    }

    /// Takes nothing any more; what waits is still handed out.
    pub(crate) fn close(&self) {
        self.lock().is_closed = true;
        self.ready.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn weight(writes: usize, bytes: usize) -> Weight {
        Weight { writes, bytes }
    }

    #[test]
    fn takes_in_order_and_no_more_than_a_batch() {
        let queue = Queue::new(weight(100, 1000), weight(2, 100));
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
        let queue = Queue::new(weight(2, 100), weight(10, 10));
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
        let queue = Queue::new(weight(1000, 1000), weight(10, 10));
        // Counts for an eighth: 1 s a batch.
        queue.observe(Duration::from_secs(8));
        for _ in 0..50 {
            queue.push('a', weight(1, 1)).unwrap();
        }
        let retry_after = Duration::from_secs(6);
        assert_eq!(queue.push('b', weight(1, 1)), Err(Refused::Full { retry_after }));
    }

    #[test]
    fn a_closed_queue_is_emptied_first() {
        let queue = Queue::new(weight(10, 10), weight(10, 10));
        queue.push('a', weight(1, 1)).unwrap();
        queue.close();
        assert_eq!(queue.push('b', weight(1, 1)), Err(Refused::Closed));
        assert_eq!(queue.take(), Some(vec!['a']));
        assert_eq!(queue.take(), None);
    }
}
