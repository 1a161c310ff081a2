//! Tests the history checker: for small histories it must agree with a search that tries every order of operations.

use std::collections::BTreeMap;

use drydock_storage::conformance::history::{Call, Operation, check};
use drydock_storage::{
    Entry, Event, EventKind, Found, Key, KeyRange, Outcome, Revision, Scan, Transaction, Write,
};

use crate::value;

const KEYS: usize = 3;
const OPERATIONS: usize = 8;
const HISTORIES: u64 = 6000;

type Truth = Vec<Event>;

fn key(number: usize) -> Key {
    Key::new("g.example", "things", "n", &format!("k{number}")).unwrap()
}

/// The simplest store.
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

    /// The outcome of a transaction, and its event if it commits.
    fn transact(&mut self, transaction: &Transaction) -> (Outcome, Option<Event>) {
        let Transaction { key, write, .. } = transaction;
        let old = self.entries.get(key).cloned();
        if old.as_ref().map(|entry| entry.modified) != write.base() {
            let conflict = Outcome::Conflict {
                revision: self.revision,
                current: old,
            };
            return (conflict, None);
        }
        let revision = self.revision.next();
        self.revision = revision;
        let new = write.value().map(|value| Entry {
            value: value.clone(),
            created: old.as_ref().map_or(revision, |entry| entry.created),
            modified: revision,
        });
        let kind = match (&old, &new) {
            (_, None) => EventKind::Deleted,
            (None, Some(_)) => EventKind::Created,
            (Some(_), Some(_)) => EventKind::Updated,
        };
        match &new {
            Some(entry) => self.entries.insert(key.clone(), entry.clone()),
            None => self.entries.remove(key),
        };
        let event = Event {
            revision,
            key: key.clone(),
            kind,
            new,
            old,
        };
        (Outcome::Committed { revision }, Some(event))
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

    /// Runs the operation next; returns whether its result and its event match.
    fn follow(&mut self, operation: &Operation, truth: &Truth) -> bool {
        match &operation.call {
            Call::Get(key, found) => self.get(key) == *found,
            Call::Scan(range, scan) => self.scan(range) == *scan,
            Call::Transact(transaction, known) => {
                let (outcome, event) = self.transact(transaction);
                let is_shown = event.is_none_or(|event| truth.contains(&event));
                is_shown && known.as_ref().is_none_or(|known| *known == outcome)
            }
        }
    }
}

/// Whether some order of the operations, consistent with real time, gives every result and exactly these events.
fn is_possible(operations: &[Operation], truth: &Truth) -> bool {
    let in_order = truth
        .iter()
        .zip(2..)
        .all(|(event, expected)| event.revision.0 == expected);
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
    // An operation that never returned may never have happened.
    let is_done = left.iter().all(|one| operations[*one].returned == u64::MAX);
    if is_done && model.revision.0 == truth.len() as u64 + 1 {
        return true;
    }
    let first_return = left.iter().map(|one| operations[*one].returned).min();
    for one in left {
        if first_return.is_some_and(|returned| operations[one].called > returned) {
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

/// A history of operations that happened at points in time, between their call and their return.
fn happen(random: &mut fastrand::Rng) -> (Vec<Operation>, Truth) {
    let mut model = Model::new();
    let mut truth = Truth::new();
    let mut operations = Vec::new();
    let spread = random.u64(1..60);
    for unique in 0..OPERATIONS as u64 {
        // Distinct times: each operation has its own last digit.
        let called = 1000 + unique * 11 - random.u64(..spread) / 10 * 10;
        let returned = 1010 + unique * 11 + random.u64(..spread) / 10 * 10;
        let call = match random.u8(..6) {
            0 => {
                let key = key(random.usize(..KEYS));
                let found = model.get(&key);
                Call::Get(key, found)
            }
            1 => {
                let range = KeyRange::namespace("g.example", "things", "n");
                let scan = model.scan(&range);
                Call::Scan(range, scan)
            }
            _ => {
                let transaction = transaction(&model, unique, random);
                let is_known = random.u8(..4) != 0;
                let mut outcome = None;
                // One of unknown outcome happened or did not.
                if is_known || random.bool() {
                    let (found, event) = model.transact(&transaction);
                    truth.extend(event);
                    outcome = Some(found);
                }
                Call::Transact(transaction, outcome.filter(|_| is_known))
            }
        };
        let is_unknown = matches!(call, Call::Transact(_, None));
        operations.push(Operation {
            called,
            returned: if is_unknown { u64::MAX } else { returned },
            call,
        });
    }
    (operations, truth)
}

fn transaction(model: &Model, unique: u64, random: &mut fastrand::Rng) -> Transaction {
    let key = key(random.usize(..KEYS));
    let base = match random.u8(..6) {
        0 => None,
        1 => Some(Revision(random.u64(2..6))),
        _ => model.entries.get(&key).map(|entry| entry.modified),
    };
    match base {
        None => Transaction::create(key, value(unique)),
        Some(base) if random.u8(..3) == 0 => Transaction::delete(key, base),
        Some(base) => Transaction::update(key, base, value(unique)),
    }
}

/// Changes the history, which may violate a rule.
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
            let length = moved.returned - moved.called;
            moved.called = 1000 + random.u64(..8) * 10 + 9;
            if moved.returned != u64::MAX {
                moved.returned = moved.called + length;
            }
            "an operation is at another time"
        }
        2 => {
            if !truth.is_empty() {
                drop(truth.remove(random.usize(..truth.len())));
            }
            "a change is not shown"
        }
        3 => {
            if let Some(new) = truth.last_mut().and_then(|event| event.new.as_mut()) {
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
                truth.swap(last, last - 1);
                let (a, b) = (truth[last].revision, truth[last - 1].revision);
                (truth[last].revision, truth[last - 1].revision) = (b, a);
            }
            "two changes are swapped"
        }
        _ => {
            match &mut operations[chosen].call {
                Call::Get(_, found) if random.bool() => found.entry = None,
                Call::Get(_, found) => shift(&mut found.revision, random),
                Call::Scan(_, scan) if random.bool() => drop(scan.entries.pop()),
                Call::Scan(_, scan) => shift(&mut scan.revision, random),
                Call::Transact(_, Some(Outcome::Committed { revision })) => shift(revision, random),
                Call::Transact(_, Some(Outcome::Conflict { revision, current })) => {
                    if random.bool() {
                        shift(revision, random);
                    } else {
                        *current = None;
                    }
                }
                Call::Transact(transaction, None) => {
                    if let Write::Update { base, .. } | Write::Delete { base } = &mut transaction.write {
                        shift(base, random);
                    }
                }
            }
            "a result differs"
        }
    }
}

#[test]
fn the_checker_agrees_with_trying_every_order() {
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
