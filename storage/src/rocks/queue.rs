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
    /// What one write has taken lately, from queue to disk.
    time_per_write: Duration,
}

/// Messages for one consumer, in order.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    waiting: Mutex<Waiting<T>>,
    ready: Condvar,
    limit: Weight,
}

impl<T> Queue<T> {
    pub(crate) fn new(limit: Weight) -> Self {
        Self {
            waiting: Mutex::new(Waiting {
                messages: VecDeque::new(),
                weight: Weight::default(),
                is_closed: false,
                time_per_write: Duration::ZERO,
            }),
            ready: Condvar::new(),
            limit,
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
        let queued = u32::try_from(waiting.weight.writes).unwrap_or(u32::MAX);
        let wait = waiting.time_per_write.saturating_mul(queued);
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

    /// Waits for a message, then takes what is there in order, one message at least and no more than `most`.
    /// None when the queue is closed and empty.
    pub(crate) fn take(&self, most: Weight) -> Option<Vec<T>> {
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
            if !taken.is_empty() && !after.fits(most) {
                break;
            }
            weight = after;
            taken.extend(waiting.messages.pop_front().map(|(message, _)| message));
        }
        waiting.weight = waiting.weight.minus(weight);
        Some(taken)
    }

    /// Tells how long a batch took, for the estimate of waiting times. Recent batches count more.
    pub(crate) fn observe(&self, writes: usize, elapsed: Duration) {
        let Ok(writes @ 1..) = u32::try_from(writes) else {
            return;
        };
        let mut waiting = self.lock();
        waiting.time_per_write = (waiting.time_per_write * 7 + elapsed / writes) / 8;
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
    fn takes_in_order_and_no_more_than_asked() {
        let queue = Queue::new(weight(100, 100));
        for number in 0..5 {
            queue.push(number, weight(1, 10)).unwrap();
        }
        assert_eq!(queue.take(weight(2, 100)), Some(vec![0, 1]));
        assert_eq!(queue.take(weight(100, 5)), Some(vec![2]));
        assert_eq!(queue.weight(), weight(2, 20));
        assert_eq!(queue.take(weight(100, 100)), Some(vec![3, 4]));
        assert_eq!(queue.weight(), Weight::default());
    }

    #[test]
    fn refuses_what_does_not_fit() {
        let queue = Queue::new(weight(2, 100));
        queue.push('a', weight(2, 0)).unwrap();
        let retry_after = LEAST_RETRY;
        assert_eq!(queue.push('b', weight(1, 0)), Err(Refused::Full { retry_after }));
        queue.take(weight(10, 10));
        assert_eq!(
            queue.push('b', weight(1, 101)),
            Err(Refused::Full { retry_after })
        );
        queue.push('b', weight(1, 100)).unwrap();
    }

    #[test]
    fn refuses_what_would_wait_too_long() {
        let queue = Queue::new(weight(1000, 1000));
        queue.observe(1, Duration::from_secs(8));
        for _ in 0..6 {
            queue.push('a', weight(1, 1)).unwrap();
        }
        let retry_after = Duration::from_secs(6);
        assert_eq!(queue.push('b', weight(1, 1)), Err(Refused::Full { retry_after }));
    }

    #[test]
    fn a_closed_queue_is_emptied_first() {
        let queue = Queue::new(weight(10, 10));
        queue.push('a', weight(1, 1)).unwrap();
        queue.close();
        assert_eq!(queue.push('b', weight(1, 1)), Err(Refused::Closed));
        assert_eq!(queue.take(weight(10, 10)), Some(vec!['a']));
        assert_eq!(queue.take(weight(10, 10)), None);
    }
}
