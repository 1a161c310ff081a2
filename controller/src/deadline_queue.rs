//! Which keys are due now, and when is the next one? One ordered set holds every deadline of a controller, so
//! that 150,000 requests cost one timer.
//!
//! The queue is a value without a clock of its own: whoever owns it asks with the time it knows and sleeps until
//! [`DeadlineQueue::next`].

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use jiff::Timestamp;

/// Deadlines by key, at most one per key.
#[derive(Debug)]
pub struct DeadlineQueue<K> {
    by_time: BTreeSet<(Timestamp, K)>,
    by_key: HashMap<K, Timestamp>,
}

impl<K> Default for DeadlineQueue<K> {
    fn default() -> Self {
        Self {
            by_time: BTreeSet::new(),
            by_key: HashMap::new(),
        }
    }
}

impl<K: Ord + Hash + Clone> DeadlineQueue<K> {
    /// Replaces the deadline of the key.
    pub fn set(&mut self, key: K, at: Timestamp) {
        self.clear(&key);
        self.by_key.insert(key.clone(), at);
        self.by_time.insert((at, key));
    }

    /// Forgets the deadline of the key.
    pub fn clear(&mut self, key: &K) {
        if let Some((key, at)) = self.by_key.remove_entry(key) {
            self.by_time.remove(&(at, key));
        }
    }

    /// The first deadline.
    #[must_use]
    pub fn next(&self) -> Option<Timestamp> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Takes a key whose deadline has come, the earliest first.
    pub fn pop_due(&mut self, now: Timestamp) -> Option<K> {
        if self.next()? > now {
            return None;
        }
        let (_, key) = self.by_time.pop_first()?;
        self.by_key.remove(&key);
        Some(key)
    }

    /// How many keys have a deadline.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether no key has a deadline.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn keys_come_out_when_due_and_in_order() {
        let mut queue = DeadlineQueue::default();
        queue.set("late", at(30));
        queue.set("early", at(10));
        queue.set("middle", at(20));
        assert_eq!(queue.next(), Some(at(10)));
        assert_eq!(queue.pop_due(at(9)), None);
        assert_eq!(queue.pop_due(at(20)), Some("early"));
        assert_eq!(queue.pop_due(at(20)), Some("middle"));
        assert_eq!(queue.pop_due(at(20)), None);
        assert_eq!(queue.len(), 1);
    }

    #[test]
    fn a_key_has_one_deadline_and_the_last_one_counts() {
        let mut queue = DeadlineQueue::default();
        queue.set("a", at(10));
        queue.set("a", at(50));
        assert_eq!(queue.pop_due(at(49)), None);
        assert_eq!(queue.pop_due(at(50)), Some("a"));
        queue.set("a", at(60));
        queue.clear(&"a");
        assert!(queue.is_empty() && queue.next().is_none());
    }
}
