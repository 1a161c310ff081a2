//! All deadlines of a controller in one ordered set, so that 150,000 requests need only one timer.
//!
//! The queue has no clock: its owner passes the time and sleeps until [`DeadlineQueue::next`].

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
    /// Sets the deadline of a key, replacing its previous one.
    pub fn set(&mut self, key: K, at: Timestamp) {
        self.clear(&key);
        self.by_key.insert(key.clone(), at);
        self.by_time.insert((at, key));
    }

    /// Removes the deadline of a key.
    pub fn clear(&mut self, key: &K) {
        if let Some((key, at)) = self.by_key.remove_entry(key) {
            self.by_time.remove(&(at, key));
        }
    }

    /// The earliest deadline.
    #[must_use]
    pub fn next(&self) -> Option<Timestamp> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Removes and returns a key whose deadline has passed, the earliest first.
    pub fn pop_due(&mut self, now: Timestamp) -> Option<K> {
        if self.next()? > now {
            return None;
        }
        let (_, key) = self.by_time.pop_first()?;
        self.by_key.remove(&key);
        Some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn due_keys_are_popped_in_order_of_their_deadlines() {
        let mut queue = DeadlineQueue::default();
        queue.set("late", at(30));
        queue.set("early", at(10));
        queue.set("middle", at(20));
        assert_eq!(queue.next(), Some(at(10)));
        assert_eq!(queue.pop_due(at(9)), None);
        assert_eq!(queue.pop_due(at(20)), Some("early"));
        assert_eq!(queue.pop_due(at(20)), Some("middle"));
        assert_eq!(queue.pop_due(at(20)), None);
        assert_eq!((queue.by_key.len(), queue.by_time.len()), (1, 1));
    }

    #[test]
    fn setting_a_deadline_replaces_the_previous_one() {
        let mut queue = DeadlineQueue::default();
        queue.set("a", at(10));
        queue.set("a", at(50));
        assert_eq!(queue.pop_due(at(49)), None);
        assert_eq!(queue.pop_due(at(50)), Some("a"));
        queue.set("a", at(60));
        queue.clear(&"a");
        assert!(queue.by_key.is_empty() && queue.next().is_none());
    }
}
