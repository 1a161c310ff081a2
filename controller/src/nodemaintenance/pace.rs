//! The pace of writes: an item whose write failed, or was undone by somebody, waits alone, with a growing delay, and a
//! status is written at most once a second. Losing this state changes no decision.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::backoff::backoff;

/// The delay after a first failure, and after every write conflict: the next change of the object is on its way.
const FIRST_RETRY: Duration = Duration::from_millis(500);
/// The longest delay after many failures.
const LONGEST_RETRY: Duration = Duration::from_mins(2);
/// The longest delay before what somebody undid again and again is written once more.
const LONGEST_REPAIR: Duration = Duration::from_mins(1);
/// For how long an item that is not tried again is remembered.
const FORGOTTEN_AFTER: Duration = Duration::from_mins(10);
/// The shortest interval between two writes of a status that differ in counts and messages only.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// What is written.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Item {
    /// The node of this name.
    Node(String),
    /// The node of this name, after somebody undid what was written.
    Repair(String),
    /// The request of the pod with this UID.
    Request(String),
    /// The maintenance of this name.
    Maintenance(String),
    /// The end of the maintenance of this name.
    Completion(String),
}

/// Why an item waits.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    /// Consecutive failures other than conflicts; of a repair, how often it was written.
    failures: u32,
    until: Timestamp,
}

/// The items that wait.
#[derive(Debug, Default)]
pub struct Pace {
    waiting: HashMap<Item, Waiting>,
    /// When the status of each maintenance was last written.
    statuses: HashMap<String, Timestamp>,
    /// When the first of the statuses that were put off is due.
    next_status: Option<Timestamp>,
}

impl Pace {
    /// Begins a round: forgets what is over.
    pub fn begin(&mut self, now: Timestamp) {
        let oldest = now.checked_sub(FORGOTTEN_AFTER).unwrap_or(Timestamp::MIN);
        self.waiting.retain(|_, waiting| waiting.until > oldest);
        let recent = now.checked_sub(STATUS_INTERVAL).unwrap_or(Timestamp::MIN);
        self.statuses.retain(|_, written| *written > recent);
        self.next_status = None;
    }

    /// Whether the item may be written now.
    #[must_use]
    pub fn is_due(&self, item: &Item, now: Timestamp) -> bool {
        self.waiting.get(item).is_none_or(|waiting| waiting.until <= now)
    }

    /// The item was written.
    pub fn succeeded(&mut self, item: &Item) {
        self.waiting.remove(item);
    }

    /// What somebody undid was written once more. Returns how often that has happened; it begins anew after
    /// some minutes without. `jitter` is a random number from 0 to 1.
    pub fn repaired(&mut self, item: Item, now: Timestamp, jitter: f64) -> u32 {
        let before = self.waiting.get(&item).map_or(0, |waiting| waiting.failures);
        let failures = before.saturating_add(1);
        let delay = backoff(failures, FIRST_RETRY, LONGEST_REPAIR, jitter);
        let until = now.checked_add(delay).unwrap_or(now);
        self.waiting.insert(item, Waiting { failures, until });
        failures
    }

    /// Writing the item failed, because somebody else wrote it (`is_conflict`) or for another reason. `jitter` is a
    /// random number from 0 to 1.
    pub fn failed(&mut self, item: Item, is_conflict: bool, now: Timestamp, jitter: f64) {
        let before = self.waiting.get(&item).map_or(0, |waiting| waiting.failures);
        let failures = before.saturating_add(u32::from(!is_conflict));
        let delay = if is_conflict {
            FIRST_RETRY
        } else {
            backoff(failures, FIRST_RETRY, LONGEST_RETRY, jitter)
        };
        let until = now.checked_add(delay).unwrap_or(now);
        self.waiting.insert(item, Waiting { failures, until });
    }

    /// Whether a status with new counts or messages may be written now. If not, [`Pace::next`] says when.
    pub fn may_write_status(&mut self, maintenance: &str, now: Timestamp) -> bool {
        let due = self
            .statuses
            .get(maintenance)
            .and_then(|written| written.checked_add(STATUS_INTERVAL).ok())
            .filter(|due| *due > now);
        if let Some(due) = due {
            self.next_status = Some(self.next_status.map_or(due, |next| next.min(due)));
        }
        due.is_none()
    }

    /// The status was written.
    pub fn wrote_status(&mut self, maintenance: &str, now: Timestamp) {
        self.statuses.insert(maintenance.to_owned(), now);
    }

    /// When the first item is due that waits now.
    #[must_use]
    pub fn next(&self, now: Timestamp) -> Option<Timestamp> {
        let waiting = self.waiting.values().map(|waiting| waiting.until);
        waiting.chain(self.next_status).filter(|until| *until > now).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: i64) -> Timestamp {
        Timestamp::from_millisecond(milliseconds).unwrap()
    }

    #[test]
    fn failing_items_wait_alone_and_longer_each_time() {
        let mut pace = Pace::default();
        let (failing, other) = (Item::Node("a".to_owned()), Item::Node("b".to_owned()));
        pace.failed(failing.clone(), false, at(0), 0.0);
        assert!(!pace.is_due(&failing, at(499)) && pace.is_due(&failing, at(500)));
        assert!(pace.is_due(&other, at(0)));
        assert_eq!(pace.next(at(0)), Some(at(500)));
        pace.failed(failing.clone(), false, at(500), 0.0);
        assert_eq!(pace.next(at(500)), Some(at(1500)));
        // A conflict neither shortens the next delay nor lengthens it.
        pace.failed(failing.clone(), true, at(1500), 0.0);
        assert_eq!(pace.next(at(1500)), Some(at(2000)));
        pace.failed(failing.clone(), false, at(2000), 0.0);
        assert_eq!(pace.next(at(2000)), Some(at(4000)));
        pace.succeeded(&failing);
        assert_eq!(pace.next(at(2000)), None);
    }

    #[test]
    fn repairs_of_one_node_are_written_at_growing_intervals_up_to_a_minute() {
        let mut pace = Pace::default();
        let repair = Item::Repair("a".to_owned());
        let mut written = Vec::new();
        for half_second in 0..600 {
            let now = at(half_second * 500);
            pace.begin(now);
            if pace.is_due(&repair, now) {
                assert_eq!(
                    pace.repaired(repair.clone(), now, 0.0),
                    u32::try_from(written.len()).unwrap() + 1
                );
                written.push(half_second / 2);
            }
        }
        assert_eq!(written, [0, 0, 1, 3, 7, 15, 31, 63, 123, 183, 243]);
        assert!(
            pace.is_due(&Item::Node("a".to_owned()), at(243_500)),
            "releases do not wait"
        );
        pace.begin(at(1_000_000));
        assert_eq!(pace.repaired(repair, at(1_000_000), 0.0), 1, "it begins anew");
    }

    #[test]
    fn statuses_are_written_once_a_second() {
        let mut pace = Pace::default();
        assert!(pace.may_write_status("m", at(0)));
        pace.wrote_status("m", at(0));
        pace.begin(at(400));
        assert!(!pace.may_write_status("m", at(400)) && pace.may_write_status("other", at(400)));
        assert_eq!(pace.next(at(400)), Some(at(1000)));
        pace.begin(at(1000));
        assert!(pace.may_write_status("m", at(1000)));
        assert_eq!(pace.next(at(1000)), None);
    }

    #[test]
    fn items_that_are_not_tried_again_are_forgotten() {
        let mut pace = Pace::default();
        pace.failed(Item::Request("uid".to_owned()), false, at(0), 0.0);
        pace.begin(at(700_000));
        assert!(pace.waiting.is_empty());
    }
}
