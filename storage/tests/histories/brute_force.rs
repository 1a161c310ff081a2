//! Is there any order of the operations that a store could have followed? Tries all of them, so histories are small:
//! the check of the checker.

use std::collections::BTreeMap;

use drydock_storage::conformance::history::{Exchange, Operation, check};
use drydock_storage::{
    Entry, Event, EventKind, Expect, Found, Key, KeyRange, Outcome, Revision, Scan, Transaction, Write,
};

use crate::value;

const KEYS: usize = 3;
const OPERATIONS: usize = 8;
const HISTORIES: u64 = 6000;

type Truth = Vec<(Revision, Vec<Event>)>;

fn key(number: usize) -> Key {
    Key::new("g.example", "things", "n", &format!("k{number}")).unwrap()
}

/// A store as simple as can be.
#[derive(Debug, Clone)]
struct Model {
    revision: Revision,
    entries: BTreeMap<Key, Entry>,
}

impl Model {
    fn new() -> Self {
        Self {
            revision: Revision::INITIAL,
            entries: BTreeMap::new(),
        }
    }

    /// What a transaction is answered, and what it does; nothing for one that no store takes.
    fn transact(&mut self, transaction: &Transaction) -> Option<(Outcome, Vec<Event>)> {
        let found = |key: &Key| self.entries.get(key);
        let holds = transaction.conditions.iter().all(|condition| {
            let modified = found(&condition.key).map(|entry| entry.modified);
            match condition.expect {
                Expect::Absent => modified.is_none(),
                Expect::Revision(expected) => modified == Some(expected),
            }
        });
        if !holds {
            let current = transaction.conditions.iter().map(|one| found(&one.key).cloned());
            let conflict = Outcome::Conflict {
                revision: self.revision,
                current: current.collect(),
            };
            return Some((conflict, Vec::new()));
        }
        if transaction.writes.is_empty() {
            let revision = self.revision;
            return Some((Outcome::Committed { revision }, Vec::new()));
        }
        let revision = self.revision.next();
        let mut events = Vec::new();
        for write in &transaction.writes {
            let key = match write {
                Write::Put(key, _) | Write::Delete(key) => key.clone(),
            };
            let old = self.entries.get(&key).cloned();
            let new = match write {
                Write::Put(_, value) => Some(Entry {
                    value: value.clone(),
                    created: old.as_ref().map_or(revision, |entry| entry.created),
                    modified: revision,
                }),
                Write::Delete(_) => None,
            };
            let kind = match (&old, &new) {
                (None, Some(_)) => EventKind::Created,
                (Some(_), Some(_)) => EventKind::Updated,
                (Some(_), None) => EventKind::Deleted,
                (None, None) => return None,
            };
            events.push(Event { key, kind, new, old });
        }
        self.revision = revision;
        for event in &events {
            match &event.new {
                Some(entry) => self.entries.insert(event.key.clone(), entry.clone()),
                None => self.entries.remove(&event.key),
            };
        }
        Some((Outcome::Committed { revision }, events))
    }

    fn get(&self, key: &Key) -> Found {
        Found {
            revision: self.revision,
            entry: self.entries.get(key).cloned(),
        }
    }

    fn scan(&self, range: &KeyRange) -> Scan {
        let entries = self
            .entries
            .iter()
            .filter(|(key, _)| range.contains(key.as_str()));
        Scan {
            revision: self.revision,
            entries: entries.map(|(key, entry)| (key.clone(), entry.clone())).collect(),
            damaged: Vec::new(),
            more: false,
        }
    }

    /// Whether the next operation can have been this one, with its answer and with what the store showed.
    fn follow(&mut self, operation: &Operation, truth: &Truth) -> bool {
        match &operation.exchange {
            Exchange::Get(key, found) => self.get(key) == *found,
            Exchange::Scan(range, scan) => self.scan(range) == *scan,
            Exchange::Transact(transaction, answer) => {
                let Some((outcome, events)) = self.transact(transaction) else {
                    return false;
                };
                let is_shown = events.is_empty()
                    || truth
                        .iter()
                        .any(|(revision, shown)| *revision == self.revision && *shown == events);
                is_shown && answer.as_ref().is_none_or(|answer| *answer == outcome)
            }
        }
    }
}

/// Whether some order of the operations, true to real time, gives every answer and exactly these events.
fn is_possible(operations: &[Operation], truth: &Truth) -> bool {
    let in_order = truth
        .iter()
        .zip(2..)
        .all(|((revision, _), expected)| revision.0 == expected);
    in_order
        && search(
            operations,
            truth,
            &mut vec![false; operations.len()],
            &Model::new(),
        )
}

fn search(operations: &[Operation], truth: &Truth, placed: &mut Vec<bool>, model: &Model) -> bool {
    let left = || {
        (0..operations.len())
            .filter(|one| !placed[*one])
            .collect::<Vec<_>>()
    };
    let left = left();
    // Whatever never got an answer may never have happened.
    let is_done = left.iter().all(|one| operations[*one].answered == u64::MAX);
    if is_done && model.revision.0 == truth.len() as u64 + 1 {
        return true;
    }
    let first_answer = left.iter().map(|one| operations[*one].answered).min();
    for one in left {
        if first_answer.is_some_and(|answer| operations[one].called > answer) {
            continue;
        }
        let mut next = model.clone();
        if next.follow(&operations[one], truth) {
            placed[one] = true;
            if search(operations, truth, placed, &next) {
                return true;
            }
            placed[one] = false;
        }
    }
    false
}

/// A history that happened: operations at points in time, called before and answered after them.
fn happen(random: &mut fastrand::Rng) -> (Vec<Operation>, Truth) {
    let mut model = Model::new();
    let mut truth = Truth::new();
    let mut operations = Vec::new();
    let spread = random.u64(1..60);
    for unique in 0..OPERATIONS as u64 {
        // Distinct times: each operation has its own last digit.
        let called = 1000 + unique * 11 - random.u64(..spread) / 10 * 10;
        let answered = 1010 + unique * 11 + random.u64(..spread) / 10 * 10;
        let exchange = match random.u8(..6) {
            0 => {
                let key = key(random.usize(..KEYS));
                let found = model.get(&key);
                Exchange::Get(key, found)
            }
            1 => {
                let range = KeyRange::namespace("g.example", "things", "n");
                let scan = model.scan(&range);
                Exchange::Scan(range, scan)
            }
            _ => {
                let transaction = transaction(&model, unique, random);
                let is_known = random.u8(..4) != 0;
                // In doubt it happened or it did not.
                let happened = if is_known || random.bool() {
                    model.transact(&transaction)
                } else {
                    None
                };
                let outcome = happened.map(|(outcome, events)| {
                    if !events.is_empty() {
                        truth.push((model.revision, events));
                    }
                    outcome
                });
                Exchange::Transact(transaction, outcome.filter(|_| is_known))
            }
        };
        let is_unknown = matches!(exchange, Exchange::Transact(_, None));
        operations.push(Operation {
            called,
            answered: if is_unknown { u64::MAX } else { answered },
            exchange,
        });
    }
    (operations, truth)
}

fn transaction(model: &Model, unique: u64, random: &mut fastrand::Rng) -> Transaction {
    let mut transaction = Transaction::default();
    let first = random.usize(..KEYS);
    for number in (first..first + random.usize(1..=2)).map(|number| number % KEYS) {
        let key = key(number);
        let found = model.entries.get(&key).map(|entry| entry.modified);
        let expect = match random.u8(..6) {
            0 => None,
            1 => Some(Expect::Revision(Revision(random.u64(2..6)))),
            _ => Some(found.map_or(Expect::Absent, Expect::Revision)),
        };
        if let Some(expect) = expect {
            transaction.conditions.push(drydock_storage::Condition {
                key: key.clone(),
                expect,
            });
        }
        match random.u8(..8) {
            0 => {}
            1..=2 if found.is_some() => transaction.writes.push(Write::Delete(key)),
            _ => transaction
                .writes
                .push(Write::Put(key, value(unique * 10 + number as u64))),
        }
    }
    transaction
}

/// Plants a fault, or what may be one.
fn spoil(operations: &mut Vec<Operation>, truth: &mut Truth, random: &mut fastrand::Rng) -> &'static str {
    let chosen = random.usize(..operations.len());
    let shift = |revision: &mut Revision, random: &mut fastrand::Rng| {
        revision.0 = if random.bool() {
            revision.0 + 1
        } else {
            revision.0.saturating_sub(1)
        };
    };
    match random.u8(..8) {
        0 => {
            drop(operations.remove(chosen));
            "an operation is not recorded"
        }
        1 => {
            let moved = &mut operations[chosen];
            let length = moved.answered - moved.called;
            moved.called = 1000 + random.u64(..8) * 10 + 9;
            if moved.answered != u64::MAX {
                moved.answered = moved.called + length;
            }
            "an operation lies at another time"
        }
        2 => {
            if !truth.is_empty() {
                drop(truth.remove(random.usize(..truth.len())));
            }
            "a change is not shown"
        }
        3 => {
            let events = truth.last_mut().map(|(_, events)| events);
            let event = events.and_then(|events| events.first_mut());
            if let Some(new) = event.and_then(|event| event.new.as_mut()) {
                if random.bool() {
                    new.value = value(777);
                } else {
                    shift(&mut new.created, random);
                }
            }
            "a change shows another entry"
        }
        4 => {
            if truth.len() > 1 {
                let last = truth.len() - 1;
                let (a, b) = (truth[last].1.clone(), truth[last - 1].1.clone());
                (truth[last].1, truth[last - 1].1) = (b, a);
            }
            "two changes are swapped"
        }
        _ => {
            match &mut operations[chosen].exchange {
                Exchange::Get(_, found) if random.bool() => found.entry = None,
                Exchange::Get(_, found) => shift(&mut found.revision, random),
                Exchange::Scan(_, scan) if random.bool() => drop(scan.entries.pop()),
                Exchange::Scan(_, scan) => shift(&mut scan.revision, random),
                Exchange::Transact(_, Some(Outcome::Committed { revision })) => shift(revision, random),
                Exchange::Transact(_, Some(Outcome::Conflict { revision, current })) => {
                    if random.bool() {
                        shift(revision, random);
                    } else {
                        current.fill(None);
                    }
                }
                Exchange::Transact(transaction, None) => drop(transaction.conditions.pop()),
            }
            "an answer is another one"
        }
    }
}

#[test]
fn the_checker_says_what_trying_every_order_says() {
    let (mut possible, mut impossible) = (0, 0);
    for seed in 0..HISTORIES {
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut operations, mut truth) = happen(&mut random);
        let what = if seed % 3 == 0 {
            "nothing"
        } else {
            spoil(&mut operations, &mut truth, &mut random)
        };
        let expected = is_possible(&operations, &truth);
        let found = check(&operations, &truth);
        assert_eq!(
            found.is_ok(),
            expected,
            "history {seed}, {what}: {found:?}\n{operations:#?}\n{truth:#?}"
        );
        assert!(expected || what != "nothing", "history {seed} happened");
        *(if expected { &mut possible } else { &mut impossible }) += 1;
    }
    assert!(
        possible > 1000 && impossible > 1000,
        "{possible} possible, {impossible} not"
    );
}
