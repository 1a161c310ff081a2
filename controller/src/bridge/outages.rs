//! Since when the requests of pods cannot be written. Each pod has a time of its own, so that what fails for one pod, such as
//! a rule of its namespace, ends the patience with no other.

use std::collections::HashMap;
use std::sync::Mutex;

use jiff::{SignedDuration, Timestamp};

use crate::sync::lock;

/// How many pods are known at most. Further ones share the time of the pod that has waited longest.
const MOST: usize = 4096;

/// How long it is remembered that a pod waits for which nobody asks any more. Some programs ask again after many minutes.
const MEMORY: SignedDuration = SignedDuration::from_hours(1);

/// When the writes for a pod failed first and last.
#[derive(Debug, Clone, Copy)]
struct Outage {
    first: Timestamp,
    last: Timestamp,
}

/// The pods whose requests cannot be written, by UID.
#[derive(Debug)]
pub struct Outages {
    patience: SignedDuration,
    pods: Mutex<HashMap<String, Outage>>,
}

impl Outages {
    /// No outages. `patience` is how long a pod may wait.
    #[must_use]
    pub fn new(patience: SignedDuration) -> Self {
        Self {
            patience,
            pods: Mutex::default(),
        }
    }

    /// The request of the pod is written, or need not be.
    pub fn over(&self, uid: &str) {
        lock(&self.pods).remove(uid);
    }

    /// A write for the pod failed. Whether it is to be waited for. One that nobody asked about for an hour begins anew; where too
    /// many pods are known, one that nobody asked about for as long as the patience lasts makes room.
    #[must_use]
    pub fn is_bearable(&self, uid: &str, now: Timestamp) -> bool {
        let mut pods = lock(&self.pods);
        let is_within = |outage: &Outage, span| now.duration_since(outage.last) < span;
        if !pods.contains_key(uid) && pods.len() >= MOST {
            pods.retain(|_, outage| is_within(outage, self.patience));
        }
        let first = match pods.get(uid).filter(|outage| is_within(outage, MEMORY)) {
            Some(outage) => outage.first,
            None if pods.len() >= MOST && !pods.contains_key(uid) => {
                let longest = pods.values().map(|outage| outage.first).min();
                return longest.is_none_or(|first| now.duration_since(first) < self.patience);
            }
            None => now,
        };
        pods.insert(uid.to_owned(), Outage { first, last: now });
        now.duration_since(first) < self.patience
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn every_pod_has_its_own_minute() {
        let outages = Outages::new(SignedDuration::from_secs(60));
        assert!(outages.is_bearable("a", at(0)) && outages.is_bearable("a", at(30)));
        assert!(outages.is_bearable("b", at(50)));
        assert!(!outages.is_bearable("a", at(60)) && outages.is_bearable("b", at(60)));
        assert!(outages.is_bearable("b", at(109)) && !outages.is_bearable("b", at(110)));
        outages.over("b");
        assert!(outages.is_bearable("b", at(111)), "it was written in between");
        assert!(!outages.is_bearable("a", at(120)));
        assert!(outages.is_bearable("a", at(3720)), "nobody asked for an hour");
    }

    #[test]
    fn who_asks_seldom_is_not_refused_for_ever() {
        for pause in [60, 300, 3599] {
            let outages = Outages::new(SignedDuration::from_secs(60));
            assert!(outages.is_bearable("a", at(0)));
            assert!(
                (1..10).all(|time| !outages.is_bearable("a", at(time * pause))),
                "{pause}"
            );
        }
    }

    #[test]
    fn a_flood_of_pods_is_bounded_and_holds_none_for_ever() {
        let outages = Outages::new(SignedDuration::from_secs(60));
        for number in 0..MOST * 2 {
            assert!(outages.is_bearable(&number.to_string(), at(0)));
        }
        assert_eq!(lock(&outages.pods).len(), MOST);
        for number in 0..MOST {
            assert!(outages.is_bearable(&number.to_string(), at(30)));
        }
        assert!(!outages.is_bearable("another", at(60)));
        // Those that nobody asks about any more make room.
        assert!(outages.is_bearable("another", at(90)));
        assert_eq!(lock(&outages.pods).len(), 1);
    }
}
