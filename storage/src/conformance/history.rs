//! Was what concurrent clients saw possible at all?
//!
//! Each write names its revision, so checking needs no search. With every call and answer timed:
//! - *replay*: revisions are dense, each write's conditions held at the revision before its own, and events say what
//!   it did;
//! - *real time*: in the order of revisions, reads after the write of theirs, nothing that was answered before
//!   something else was called comes after it;
//! - *reads* and conflicts equal the state at the revision they name;
//! - an unknown outcome is settled by the events, since values are unique.
//!
//! Start at [`Recorder`], then [`check`]. Sorting is all it takes, so a million operations are fine.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::{
    At, Condition, Entry, Event, EventKind, Expect, Found, Key, KeyRange, Outcome, Page, Revision, Scan,
    Store, StoreError, Transaction, Write,
};

/// A history that no store could have produced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The broken rule, in a word or two.
    pub rule: &'static str,
    /// What shows it.
    pub detail: String,
}

pub(crate) fn fault<T>(rule: &'static str, detail: String) -> Result<T, Fault> {
    Err(Fault { rule, detail })
}

/// What was asked and what was answered.
#[derive(Debug, Clone)]
pub enum Exchange {
    /// A transaction; no outcome when it is unknown.
    Transact(Transaction, Option<Outcome>),
    /// A get.
    Get(Key, Found),
    /// A scan of the newest state.
    Scan(KeyRange, Scan),
}

/// An exchange and its place in time.
#[derive(Debug, Clone)]
pub struct Operation {
    /// When it was called.
    pub called: u64,
    /// When it was answered; never, for an unknown outcome.
    pub answered: u64,
    /// What was said.
    pub exchange: Exchange,
}

/// Times and keeps what clients do. Shared by all of them.
#[derive(Debug, Default)]
pub struct Recorder {
    ticks: AtomicU64,
    operations: Mutex<Vec<Operation>>,
}

impl Recorder {
    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst)
    }

    fn keep(&self, called: u64, answered: u64, exchange: Exchange) {
        let mut operations = self.operations.lock().unwrap_or_else(PoisonError::into_inner);
        operations.push(Operation {
            called,
            answered,
            exchange,
        });
    }

    /// Runs a transaction. Refusals that change nothing are not kept.
    ///
    /// # Errors
    /// The store's.
    pub async fn transact<S: Store>(
        &self,
        store: &S,
        transaction: Transaction,
    ) -> Result<Outcome, StoreError> {
        let called = self.tick();
        let answer = store.transact(transaction.clone()).await;
        match &answer {
            Ok(outcome) => {
                let exchange = Exchange::Transact(transaction, Some(outcome.clone()));
                self.keep(called, self.tick(), exchange);
            }
            Err(StoreError::Unknown { .. }) => {
                self.keep(called, u64::MAX, Exchange::Transact(transaction, None));
            }
            Err(_) => {}
        }
        answer
    }

    /// Reads a key.
    ///
    /// # Errors
    /// The store's.
    pub async fn get<S: Store>(&self, store: &S, key: &Key) -> Result<Found, StoreError> {
        let called = self.tick();
        let found = store.get(key).await?;
        self.keep(called, self.tick(), Exchange::Get(key.clone(), found.clone()));
        Ok(found)
    }

    /// Reads a range, whole.
    ///
    /// # Errors
    /// The store's.
    pub async fn scan<S: Store>(&self, store: &S, range: &KeyRange) -> Result<(), StoreError> {
        let called = self.tick();
        let scan = store.scan(range, At::Latest, Page::default()).await?;
        self.keep(called, self.tick(), Exchange::Scan(range.clone(), scan));
        Ok(())
    }

    /// Everything that was kept.
    pub fn operations(&self) -> Vec<Operation> {
        self.operations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// Every version of every key, by revision.
#[derive(Debug, Default)]
struct Versions(BTreeMap<Key, Vec<(Revision, Option<Entry>)>>);

impl Versions {
    fn at(&self, key: &Key, revision: Revision) -> Option<&Entry> {
        let versions = self.0.get(key)?;
        let later = versions.partition_point(|(at, _)| *at <= revision);
        let (_, entry) = versions.get(later.checked_sub(1)?)?;
        entry.as_ref()
    }

    fn holds(&self, condition: &Condition, revision: Revision) -> bool {
        let found = self.at(&condition.key, revision).map(|entry| entry.modified);
        match condition.expect {
            Expect::Absent => found.is_none(),
            Expect::Revision(expected) => found == Some(expected),
        }
    }

    /// The first condition of a transaction that does not hold.
    fn broken<'a>(&self, transaction: &'a Transaction, revision: Revision) -> Option<&'a Condition> {
        let mut conditions = transaction.conditions.iter();
        conditions.find(|condition| !self.holds(condition, revision))
    }

    fn range(&self, range: &KeyRange, revision: Revision) -> Vec<(Key, Entry)> {
        let keys = self.0.keys().filter(|key| range.contains(key.as_str()));
        keys.filter_map(|key| Some((key.clone(), self.at(key, revision)?.clone())))
            .collect()
    }
}

/// An operation that happened, and its place in the order of all: a write comes before the reads of its revision.
#[derive(Debug, Clone, Copy)]
struct Placed {
    revision: Revision,
    is_read: bool,
    called: u64,
    answered: u64,
}

/// Checks operations against the events of a watch from the start.
///
/// # Errors
/// The first rule found broken.
pub fn check(operations: &[Operation], events: &[(Revision, Vec<Event>)]) -> Result<(), Fault> {
    let (versions, mut placed) = replay(operations, events)?;
    placed.extend(operations.iter().filter_map(read));
    check_real_time(placed)?;
    check_reads(operations, &versions, events.len())
}

/// What a transaction does: each key and its new bytes, none for a delete.
type Effects<'a> = Vec<(Key, Option<&'a [u8]>)>;

fn asked(transaction: &Transaction) -> Effects<'_> {
    let writes = transaction.writes.iter();
    writes
        .map(|write| match write {
            Write::Put(key, value) => (key.clone(), Some(value.bytes.as_ref())),
            Write::Delete(key) => (key.clone(), None),
        })
        .collect()
}

fn shown(events: &[Event]) -> Effects<'_> {
    let events = events.iter();
    events
        .map(|event| {
            let new = event.new.as_ref().map(|entry| entry.value.bytes.as_ref());
            (event.key.clone(), new)
        })
        .collect()
}

/// Writes that were asked for.
#[derive(Default)]
struct Asked<'a> {
    /// Those that were acknowledged.
    known: BTreeMap<Revision, (&'a Operation, &'a Transaction)>,
    /// Those nobody knows of, by what they would do, in the order they were called.
    unknown: HashMap<Effects<'a>, Vec<(&'a Operation, &'a Transaction)>>,
}

impl<'a> Asked<'a> {
    fn collect(operations: &'a [Operation]) -> Result<Self, Fault> {
        let mut asked_for = Self::default();
        for operation in operations {
            let Exchange::Transact(transaction, outcome) = &operation.exchange else {
                continue;
            };
            if transaction.writes.is_empty() {
                continue;
            }
            match outcome {
                Some(Outcome::Committed { revision }) => {
                    let before = asked_for.known.insert(*revision, (operation, transaction));
                    if before.is_some() {
                        return fault("unique revisions", format!("{revision} was handed out twice"));
                    }
                }
                Some(Outcome::Conflict { .. }) => {}
                None => {
                    let alike = asked_for.unknown.entry(asked(transaction)).or_default();
                    alike.push((operation, transaction));
                }
            }
        }
        for alike in asked_for.unknown.values_mut() {
            alike.sort_by_key(|(operation, _)| operation.called);
        }
        Ok(asked_for)
    }

    /// Who asked for what a revision shows. Values are unique, but two in doubt may remove the same key: then it was
    /// the first one whose conditions held.
    fn settle(
        &mut self,
        revision: Revision,
        events: &'a [Event],
        versions: &Versions,
    ) -> Result<(&'a Operation, &'a Transaction), Fault> {
        if let Some(known) = self.known.remove(&revision) {
            return Ok(known);
        }
        let nobody = || Fault {
            rule: "nothing from nowhere",
            detail: format!("nobody asked for revision {revision}"),
        };
        let alike = self.unknown.get_mut(&shown(events)).ok_or_else(nobody)?;
        let before = revision.previous();
        let holds = |(_, transaction): &(_, &Transaction)| versions.broken(transaction, before).is_none();
        let first = alike.iter().position(holds).unwrap_or_default();
        if alike.is_empty() {
            return Err(nobody());
        }
        Ok(alike.remove(first))
    }
}

/// Runs through the events: each is what one write did to the state before it.
fn replay(
    operations: &[Operation],
    events: &[(Revision, Vec<Event>)],
) -> Result<(Versions, Vec<Placed>), Fault> {
    let mut asked_for = Asked::collect(operations)?;
    let mut versions = Versions::default();
    let mut placed = Vec::with_capacity(operations.len());
    let mut before = Revision::INITIAL;
    for (revision, events) in events {
        let due = before.next();
        if *revision != due {
            let rule = if asked_for.known.contains_key(&due) {
                "every write is shown"
            } else {
                "dense revisions"
            };
            return fault(rule, format!("{revision} came for {due}"));
        }
        let (operation, transaction) = asked_for.settle(*revision, events, &versions)?;
        if let Some(broken) = versions.broken(transaction, before) {
            return fault(
                "conditions hold",
                format!("{} of revision {revision}", broken.key),
            );
        }
        if shown(events) != asked(transaction) {
            return fault("events are what was written", format!("revision {revision}"));
        }
        for event in events {
            if versions.at(&event.key, before) != event.old.as_ref() {
                return fault(
                    "events hold the value before",
                    format!("{} at {revision}", event.key),
                );
            }
            if !fits(event, *revision) {
                return fault("events fit", format!("{} at {revision}", event.key));
            }
            let kept = versions.0.entry(event.key.clone()).or_default();
            kept.push((*revision, event.new.clone()));
        }
        placed.push(Placed {
            revision: *revision,
            is_read: false,
            called: operation.called,
            answered: operation.answered,
        });
        before = *revision;
    }
    if let Some(lost) = asked_for.known.keys().next() {
        return fault("every write is shown", format!("revision {lost} is missing"));
    }
    Ok((versions, placed))
}

/// Whether kind, place and values of an event go together.
fn fits(event: &Event, revision: Revision) -> bool {
    let kind = match (&event.old, &event.new) {
        (None, Some(_)) => EventKind::Created,
        (Some(_), Some(_)) => EventKind::Updated,
        (Some(_), None) => EventKind::Deleted,
        (None, None) => return false,
    };
    let created = event.old.as_ref().map_or(revision, |entry| entry.created);
    let is_placed = |entry: &Entry| entry.created == created && entry.modified == revision;
    event.kind == kind && event.new.as_ref().is_none_or(is_placed)
}

/// The place of what only reads; a conflict and a transaction without writes are reads too.
fn read(operation: &Operation) -> Option<Placed> {
    let revision = match &operation.exchange {
        Exchange::Transact(_, Some(Outcome::Conflict { revision, .. })) => *revision,
        Exchange::Transact(transaction, Some(Outcome::Committed { revision }))
            if transaction.writes.is_empty() =>
        {
            *revision
        }
        Exchange::Transact(..) => return None,
        Exchange::Get(_, found) => found.revision,
        Exchange::Scan(_, scan) => scan.revision,
    };
    Some(Placed {
        revision,
        is_read: true,
        called: operation.called,
        answered: operation.answered,
    })
}

/// Whatever was answered before another was called comes no later in the order.
fn check_real_time(mut placed: Vec<Placed>) -> Result<(), Fault> {
    placed.sort_unstable_by_key(|one| (one.revision, one.is_read));
    // The earliest answer to a write, and to a read, among those that come later.
    let mut earliest = (u64::MAX, u64::MAX);
    let alike = |a: &Placed, b: &Placed| (a.revision, a.is_read) == (b.revision, b.is_read);
    for group in placed.chunk_by(alike).rev() {
        for one in group {
            let rule = match one {
                one if one.called <= earliest.0.min(earliest.1) => continue,
                Placed { is_read: true, .. } => "nothing stale",
                one if one.called > earliest.0 => "real time",
                _ => "nothing from the future",
            };
            let detail = format!("{one:?} was called after something later had been answered");
            return fault(rule, detail);
        }
        for one in group {
            let earliest = if one.is_read {
                &mut earliest.1
            } else {
                &mut earliest.0
            };
            *earliest = one.answered.min(*earliest);
        }
    }
    Ok(())
}

/// Each read shows the state at the revision it names.
fn check_reads(operations: &[Operation], versions: &Versions, writes: usize) -> Result<(), Fault> {
    let last = Revision(Revision::INITIAL.0 + writes as u64);
    for operation in operations {
        let Some(Placed { revision, .. }) = read(operation) else {
            continue;
        };
        if revision < Revision::INITIAL || revision > last {
            return fault("no other revisions", format!("{revision} never was"));
        }
        match &operation.exchange {
            Exchange::Transact(transaction, Some(Outcome::Conflict { current, .. })) => {
                if versions.broken(transaction, revision).is_none() {
                    return fault("conflicts are real", format!("at {revision}"));
                }
                let conditions = transaction.conditions.iter();
                let truth = conditions.map(|one| versions.at(&one.key, revision).cloned());
                if truth.collect::<Vec<_>>() != *current {
                    return fault("conflicts show the state", format!("at {revision}"));
                }
            }
            Exchange::Transact(transaction, _) => {
                if versions.broken(transaction, revision).is_some() {
                    return fault("checks hold", format!("at {revision}"));
                }
            }
            Exchange::Get(key, found) => {
                if versions.at(key, revision) != found.entry.as_ref() {
                    return fault("gets show the state", format!("{key} at {revision}"));
                }
            }
            Exchange::Scan(range, scan) => {
                if versions.range(range, revision) != scan.entries {
                    return fault("scans show the state", format!("at {revision}"));
                }
            }
        }
    }
    Ok(())
}
