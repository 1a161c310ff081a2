//! Shares the places of disruption budgets among the requests that wait for them. A budget that opens by N lets about N
//! of them try, the longest waiting first, so that one freed place does not cause an attempt of every waiting pod.
//!
//! ```text
//! wait ──▶ waiting ──budget opens──▶ granted ──admit──▶ attempt ──settle──▶ waiting again, or gone
//!             └──────the budget stays closed, back-off over──admit──▶ one attempt for all
//! ```
//!
//! While a budget stays closed its waiting requests share one back-off: each attempt would fail for the same reason, but
//! what this process knows about the budget may be stale. Losing this state costs at most some futile attempts.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use jiff::Timestamp;

use crate::backoff::backoff;
use crate::informer::ObjectKey;
use crate::sync::lock;

/// The first delay between two attempts for a closed budget.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// The longest delay between two attempts for a closed budget.
const LONGEST_DELAY: Duration = Duration::from_mins(15);

/// The answer to a request that wants to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It may try now. [`Broker::settle`] must follow.
    Now,
    /// Not before then, unless the broker wakes it.
    NotBefore(Timestamp),
}

/// How an admitted attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// The eviction was accepted: the place is used.
    Used,
    /// The budget refused: it has no place left until it changes.
    Refused,
    /// The request does not wait any more, or something else refused: the place is free for another request.
    Unused,
}

/// The requests that wait for budgets.
#[derive(Debug, Default)]
pub struct Broker {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    budgets: HashMap<ObjectKey, Waiters>,
    /// The budget that each request waits for or is granted a place of, with its number in the queue.
    requests: HashMap<ObjectKey, (ObjectKey, u64)>,
    /// The next number.
    serial: u64,
}

/// The requests of one budget.
#[derive(Debug, Default)]
struct Waiters {
    /// Those that wait, by their number.
    waiting: BTreeMap<u64, ObjectKey>,
    /// Those that may try, or are trying.
    granted: HashSet<ObjectKey>,
    /// How many pods the budget let go when it was last observed.
    places: u32,
    /// How many of these places are used since.
    used: u32,
    /// How many attempts for the closed budget have failed.
    failures: u32,
    /// When the next one may be made.
    next_try: Option<Timestamp>,
}

impl Waiters {
    /// Grants the free places to the requests that wait longest, and returns these.
    fn grant(&mut self) -> Vec<ObjectKey> {
        let taken = self
            .used
            .saturating_add(u32::try_from(self.granted.len()).unwrap_or(u32::MAX));
        let free = self.places.saturating_sub(taken);
        let mut granted = Vec::new();
        for _ in 0..free {
            let Some((_, request)) = self.waiting.pop_first() else {
                break;
            };
            self.granted.insert(request.clone());
            granted.push(request);
        }
        granted
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.granted.is_empty()
    }
}

impl Broker {
    /// Lets a request wait for a budget, at the end of its queue unless it waits already.
    pub fn wait(&self, budget: &ObjectKey, request: &ObjectKey) {
        lock(&self.state).enqueue(budget, request);
    }

    /// Whether the request may try now; if not, it waits. `places` is how many pods the budget lets go now. Returns also
    /// the other requests to reconcile.
    pub fn admit(
        &self,
        budget: &ObjectKey,
        request: &ObjectKey,
        places: u32,
        now: Timestamp,
    ) -> (Admission, Vec<ObjectKey>) {
        let mut state = lock(&self.state);
        state.enqueue(budget, request);
        let mut others = state.observe(budget, places);
        others.retain(|other| other != request);
        let Some(waiters) = state.budgets.get_mut(budget) else {
            return (Admission::Now, others);
        };
        if waiters.granted.contains(request) {
            return (Admission::Now, others);
        }
        match waiters.next_try {
            Some(at) if at > now => return (Admission::NotBefore(at), others),
            _ => {}
        }
        // The budget is closed, and the shared back-off is over: one attempt for all.
        waiters.failures = waiters.failures.saturating_add(1);
        let delay = backoff(waiters.failures, FIRST_DELAY, LONGEST_DELAY, 0.0);
        waiters.next_try = now.checked_add(delay).ok();
        waiters.granted.insert(request.clone());
        let number = state.requests.get(request).map(|(_, number)| *number);
        if let (Some(number), Some(waiters)) = (number, state.budgets.get_mut(budget)) {
            waiters.waiting.remove(&number);
        }
        (Admission::Now, others)
    }

    /// Ends the turn of a request; does nothing if it has none. Returns the requests to reconcile.
    pub fn settle(&self, request: &ObjectKey, settlement: Settlement) -> Vec<ObjectKey> {
        let mut state = lock(&self.state);
        let state = &mut *state;
        let Some((budget, _)) = state.requests.get(request).cloned() else {
            return Vec::new();
        };
        let Some(waiters) = state.budgets.get_mut(&budget) else {
            return Vec::new();
        };
        if !waiters.granted.remove(request) {
            return Vec::new();
        }
        state.requests.remove(request);
        let woken = match settlement {
            Settlement::Used => {
                waiters.used = waiters.used.saturating_add(1);
                Vec::new()
            }
            Settlement::Refused => {
                waiters.used = waiters.places;
                Vec::new()
            }
            Settlement::Unused => waiters.grant(),
        };
        if waiters.is_idle() {
            state.budgets.remove(&budget);
        }
        woken
    }

    /// Removes a request that does not wait any more. Returns the requests to reconcile.
    pub fn forget(&self, request: &ObjectKey) -> Vec<ObjectKey> {
        let woken = self.settle(request, Settlement::Unused);
        lock(&self.state).leave(request);
        woken
    }

    /// A budget has changed and lets this many pods go now. Returns the requests to reconcile.
    pub fn changed(&self, budget: &ObjectKey, places: u32) -> Vec<ObjectKey> {
        let mut state = lock(&self.state);
        let Some(waiters) = state.budgets.get_mut(budget) else {
            return Vec::new();
        };
        waiters.places = places;
        waiters.used = 0;
        waiters.grant()
    }
}

impl State {
    /// Puts a request into the queue of a budget, and removes it from that of another one.
    fn enqueue(&mut self, budget: &ObjectKey, request: &ObjectKey) {
        match self.requests.get(request) {
            Some((known, _)) if known == budget => return,
            Some(_) => self.leave(request),
            None => {}
        }
        self.serial = self.serial.saturating_add(1);
        self.requests
            .insert(request.clone(), (budget.clone(), self.serial));
        let waiters = self.budgets.entry(budget.clone()).or_default();
        waiters.waiting.insert(self.serial, request.clone());
    }

    /// Takes what a request has observed: more places than known were freed while nobody waited.
    fn observe(&mut self, budget: &ObjectKey, places: u32) -> Vec<ObjectKey> {
        let Some(waiters) = self.budgets.get_mut(budget) else {
            return Vec::new();
        };
        if places != waiters.places {
            waiters.places = places;
            waiters.used = 0;
        }
        waiters.grant()
    }

    fn leave(&mut self, request: &ObjectKey) {
        let Some((budget, number)) = self.requests.remove(request) else {
            return;
        };
        if let Some(waiters) = self.budgets.get_mut(&budget) {
            waiters.waiting.remove(&number);
            waiters.granted.remove(request);
            if waiters.is_idle() {
                self.budgets.remove(&budget);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> ObjectKey {
        ("shop".to_owned(), name.to_owned())
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// A closed budget `db` with these waiting requests.
    fn closed(waiting: &[&str]) -> Broker {
        let broker = Broker::default();
        for name in waiting {
            broker.wait(&key("db"), &key(name));
        }
        broker
    }

    #[test]
    fn budget_that_opens_by_two_wakes_two() {
        let broker = closed(&["a", "b", "c", "d"]);
        assert_eq!(broker.changed(&key("db"), 2), [key("a"), key("b")]);
        for name in ["a", "b"] {
            let (admission, others) = broker.admit(&key("db"), &key(name), 2, at(0));
            assert_eq!((admission, others), (Admission::Now, vec![]));
        }
        broker.settle(&key("a"), Settlement::Used);
        assert_eq!(broker.changed(&key("db"), 1), [], "b uses the place that is left");
        assert_eq!(
            broker.settle(&key("b"), Settlement::Unused),
            [key("c")],
            "a webhook refused b, so that its place is free"
        );
        broker.settle(&key("c"), Settlement::Refused);
        assert_eq!(broker.changed(&key("db"), 0), []);
        assert_eq!(broker.changed(&key("db"), 1), [key("d")]);
    }

    #[test]
    fn open_budget_admits_as_many_as_it_has_places() {
        let broker = Broker::default();
        let admitted = (0..10).filter(|number| {
            let request = key(&number.to_string());
            broker.wait(&key("db"), &request);
            broker.admit(&key("db"), &request, 3, at(0)).0 == Admission::Now
        });
        // Three places, and one attempt after the back-off of the budget.
        assert_eq!(admitted.count(), 4);
    }

    #[test]
    fn request_that_leaves_passes_its_place_on() {
        let broker = closed(&["a", "b"]);
        assert_eq!(broker.changed(&key("db"), 1), [key("a")]);
        assert_eq!(broker.forget(&key("a")), [key("b")]);
        broker.forget(&key("b"));
        let state = lock(&broker.state);
        assert!(state.budgets.is_empty() && state.requests.is_empty());
    }

    #[test]
    fn closed_budget_is_tried_by_one_request_at_a_time_with_a_growing_delay() {
        let broker = closed(&["a", "b", "c"]);
        let mut tries = Vec::new();
        for second in 0..100 {
            for name in ["a", "b", "c"] {
                broker.wait(&key("db"), &key(name));
                if broker.admit(&key("db"), &key(name), 0, at(second)).0 == Admission::Now {
                    tries.push(second);
                    broker.settle(&key(name), Settlement::Refused);
                    broker.wait(&key("db"), &key(name));
                }
            }
        }
        assert_eq!(tries, [0, 1, 3, 7, 15, 31, 63]);
    }

    /// One place is freed after another, each when the pod before has left. Every request asks each second, as if its own
    /// back-off were always over.
    #[test]
    fn thousand_waiting_requests_cause_few_attempts_per_freed_place() {
        let broker = Broker::default();
        let mut waiting: Vec<ObjectKey> = (0..1_000).map(|number| key(&number.to_string())).collect();
        let mut attempts = waiting.len();
        for request in &waiting {
            broker.wait(&key("db"), request);
        }
        let places = waiting.len();
        for second in 0..i64::try_from(places).unwrap() {
            let woken = broker.changed(&key("db"), 1);
            assert!(woken.len() <= 1, "{woken:?}");
            let mut is_free = true;
            for request in woken.iter().chain(&waiting.clone()) {
                if !waiting.contains(request)
                    || broker
                        .admit(&key("db"), request, u32::from(is_free), at(second))
                        .0
                        != Admission::Now
                {
                    continue;
                }
                attempts += 1;
                if std::mem::take(&mut is_free) {
                    broker.settle(request, Settlement::Used);
                    waiting.retain(|other| other != request);
                    broker.changed(&key("db"), 0);
                } else {
                    broker.settle(request, Settlement::Refused);
                    broker.wait(&key("db"), request);
                }
            }
        }
        assert!(waiting.is_empty(), "{} requests are left", waiting.len());
        assert!(attempts <= 3 * places, "{attempts} attempts for {places} places");
    }
}
