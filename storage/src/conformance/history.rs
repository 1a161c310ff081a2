//! Checks that a recorded history of concurrent operations is strictly serializable.
//!
//! Each write returns its revision, so the check needs no search. Calls and returns are timed. The rules:
//! - *replay*: revisions are dense, each write's condition held at the revision before its own, and the event shows
//!   what was written;
//! - *real time*: in the order of revisions (a read after the write of its revision), no operation that returned before
//!   another one was called comes after it;
//! - *reads* and conflicts equal the state at the revision they return;
//! - an unknown outcome is resolved by the events, since values are unique.
//!
//! Start at [`Recorder`], then [`check`]. It only sorts, so a million operations are no problem.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sync::lock;
use crate::{
    At, Entry, Event, EventKind, Found, Key, KeyRange, Outcome, Page, Revision, Scan, Store, StoreError,
    Transaction,
};

/// A rule that a history violates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The rule, in a few words.
    pub rule: &'static str,
    /// The evidence.
    pub detail: String,
}

pub(crate) fn violation<T>(rule: &'static str, detail: String) -> Result<T, Violation> {
    Err(Violation { rule, detail })
}

/// A call and its result.
#[derive(Debug, Clone)]
pub enum Call {
    /// A transaction; none if its outcome is unknown.
    Transact(Transaction, Option<Outcome>),
    /// A get.
    Get(Key, Found),
    /// A scan of the newest state.
    Scan(KeyRange, Scan),
}

/// A timed call.
#[derive(Debug, Clone)]
pub struct Operation {
    /// When it was called.
    pub called: u64,
    /// When it returned; `u64::MAX` for an unknown outcome.
    pub returned: u64,
    /// The call and its result.
    pub call: Call,
}

/// Runs, times and records the operations of all clients.
#[derive(Debug, Default)]
pub struct Recorder {
    ticks: AtomicU64,
    operations: Mutex<Vec<Operation>>,
}

impl Recorder {
    fn tick(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::SeqCst)
    }

    fn record(&self, called: u64, returned: u64, call: Call) {
        lock(&self.operations).push(Operation {
            called,
            returned,
            call,
        });
    }

    /// Runs a transaction. Errors that change nothing are not recorded.
    ///
    /// # Errors
    /// The store's.
    pub async fn transact<S: Store>(
        &self,
        store: &S,
        transaction: Transaction,
    ) -> Result<Outcome, StoreError> {
        let called = self.tick();
        let result = store.transact(transaction.clone()).await;
        match &result {
            Ok(outcome) => {
                let call = Call::Transact(transaction, Some(outcome.clone()));
                self.record(called, self.tick(), call);
            }
            Err(StoreError::Unknown { .. }) => {
                self.record(called, u64::MAX, Call::Transact(transaction, None));
            }
            Err(_) => {}
        }
        result
    }

    /// Reads a key.
    ///
    /// # Errors
    /// The store's.
    pub async fn get<S: Store>(&self, store: &S, key: &Key) -> Result<Found, StoreError> {
        let called = self.tick();
        let found = store.get(key).await?;
        self.record(called, self.tick(), Call::Get(key.clone(), found.clone()));
        Ok(found)
    }

    /// Reads a whole range.
    ///
    /// # Errors
    /// The store's.
    pub async fn scan<S: Store>(&self, store: &S, range: &KeyRange) -> Result<(), StoreError> {
        let called = self.tick();
        let scan = store.scan(range, At::Latest, Page::default()).await?;
        self.record(called, self.tick(), Call::Scan(range.clone(), scan));
        Ok(())
    }

    /// All recorded operations.
    pub fn operations(&self) -> Vec<Operation> {
        lock(&self.operations).clone()
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

    /// Whether the condition of a transaction holds.
    fn holds(&self, transaction: &Transaction, revision: Revision) -> bool {
        let found = self.at(&transaction.key, revision).map(|entry| entry.modified);
        found == transaction.write.base()
    }

    fn range(&self, range: &KeyRange, revision: Revision) -> Vec<(Key, Entry)> {
        let keys = self.0.keys().filter(|key| range.contains(key.as_str()));
        keys.filter_map(|key| Some((key.clone(), self.at(key, revision)?.clone())))
            .collect()
    }
}

/// An operation with its position in the serial order: a write comes before the reads of its revision.
#[derive(Debug, Clone, Copy)]
struct Placed {
    revision: Revision,
    is_read: bool,
    called: u64,
    returned: u64,
}

/// Checks operations against the events of a watch from the start.
///
/// # Errors
/// The first violated rule.
pub fn check(operations: &[Operation], events: &[Event]) -> Result<(), Violation> {
    let (versions, mut placed) = replay(operations, events)?;
    placed.extend(operations.iter().filter_map(read));
    check_real_time(placed)?;
    check_reads(operations, &versions, events.len())
}

/// A key and its new bytes; none for a delete.
type Effect<'a> = (&'a Key, Option<&'a [u8]>);

fn requested(transaction: &Transaction) -> Effect<'_> {
    let new = transaction.write.value();
    (&transaction.key, new.map(|value| value.bytes.as_ref()))
}

fn shown(event: &Event) -> Effect<'_> {
    let new = event.new.as_ref();
    (&event.key, new.map(|entry| entry.value.bytes.as_ref()))
}

/// The requested writes.
#[derive(Default)]
struct Requested<'a> {
    /// Acknowledged writes.
    known: BTreeMap<Revision, (&'a Operation, &'a Transaction)>,
    /// Writes of unknown outcome, by effect, in the order they were called.
    unknown: HashMap<Effect<'a>, Vec<(&'a Operation, &'a Transaction)>>,
}

impl<'a> Requested<'a> {
    fn collect(operations: &'a [Operation]) -> Result<Self, Violation> {
        let mut found = Self::default();
        for operation in operations {
            let Call::Transact(transaction, outcome) = &operation.call else {
                continue;
            };
            match outcome {
                Some(Outcome::Committed { revision }) => {
                    let before = found.known.insert(*revision, (operation, transaction));
                    if before.is_some() {
                        return violation("unique revisions", format!("{revision} was assigned twice"));
                    }
                }
                Some(Outcome::Conflict { .. }) => {}
                None => {
                    let alike = found.unknown.entry(requested(transaction)).or_default();
                    alike.push((operation, transaction));
                }
            }
        }
        for alike in found.unknown.values_mut() {
            alike.sort_by_key(|(operation, _)| operation.called);
        }
        Ok(found)
    }

    /// The transaction that caused an event. Values are unique, but two deletes of unknown outcome may have the same
    /// effect: then it was the first one whose condition held.
    fn cause_of(
        &mut self,
        event: &'a Event,
        versions: &Versions,
    ) -> Result<(&'a Operation, &'a Transaction), Violation> {
        let revision = event.revision;
        if let Some(known) = self.known.remove(&revision) {
            return Ok(known);
        }
        let unrequested = || Violation {
            rule: "every event was requested",
            detail: format!("no transaction explains revision {revision}"),
        };
        let alike = self.unknown.get_mut(&shown(event)).ok_or_else(unrequested)?;
        let before = revision.previous();
        let holds = |(_, transaction): &(_, &Transaction)| versions.holds(transaction, before);
        let first = alike.iter().position(holds).unwrap_or_default();
        if alike.is_empty() {
            return Err(unrequested());
        }
        Ok(alike.remove(first))
    }
}

/// Replays the events: each must be what one write did to the state before it.
fn replay(operations: &[Operation], events: &[Event]) -> Result<(Versions, Vec<Placed>), Violation> {
    let mut writes = Requested::collect(operations)?;
    let mut versions = Versions::default();
    let mut placed = Vec::with_capacity(operations.len());
    let mut before = Revision::INITIAL;
    for event in events {
        let (due, Event { revision, key, .. }) = (before.next(), event);
        if *revision != due {
            let rule = if writes.known.contains_key(&due) {
                "every write is shown"
            } else {
                "dense revisions"
            };
            return violation(rule, format!("{revision} came instead of {due}"));
        }
        let (operation, transaction) = writes.cause_of(event, &versions)?;
        if !versions.holds(transaction, before) {
            return violation("conditions hold", format!("{key} at {revision}"));
        }
        if shown(event) != requested(transaction) {
            return violation("events are what was written", format!("revision {revision}"));
        }
        if versions.at(key, before) != event.old.as_ref() {
            return violation("events hold the value before", format!("{key} at {revision}"));
        }
        if !is_consistent(event) {
            return violation("events are consistent", format!("{key} at {revision}"));
        }
        let kept = versions.0.entry(key.clone()).or_default();
        kept.push((*revision, event.new.clone()));
        placed.push(Placed {
            revision: *revision,
            is_read: false,
            called: operation.called,
            returned: operation.returned,
        });
        before = *revision;
    }
    if let Some(lost) = writes.known.keys().next() {
        return violation("every write is shown", format!("revision {lost} is missing"));
    }
    Ok((versions, placed))
}

/// Whether kind, revisions and entries of an event agree.
fn is_consistent(event: &Event) -> bool {
    let revision = event.revision;
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

/// The position of a read; a conflict is a read too.
fn read(operation: &Operation) -> Option<Placed> {
    let revision = match &operation.call {
        Call::Transact(_, Some(Outcome::Conflict { revision, .. })) => *revision,
        Call::Transact(..) => return None,
        Call::Get(_, found) => found.revision,
        Call::Scan(_, scan) => scan.revision,
    };
    Some(Placed {
        revision,
        is_read: true,
        called: operation.called,
        returned: operation.returned,
    })
}

/// An operation that returned before another was called comes no later in the serial order.
fn check_real_time(mut placed: Vec<Placed>) -> Result<(), Violation> {
    placed.sort_unstable_by_key(|one| (one.revision, one.is_read));
    // The earliest return of a write, and of a read, among the later ones.
    let mut earliest = (u64::MAX, u64::MAX);
    let alike = |a: &Placed, b: &Placed| (a.revision, a.is_read) == (b.revision, b.is_read);
    for group in placed.chunk_by(alike).rev() {
        for one in group {
            let rule = match one {
                one if one.called <= earliest.0.min(earliest.1) => continue,
                Placed { is_read: true, .. } => "no stale reads",
                one if one.called > earliest.0 => "real time",
                _ => "no reads from the future",
            };
            let detail = format!("{one:?} was called after a later operation had returned");
            return violation(rule, detail);
        }
        for one in group {
            let earliest = if one.is_read {
                &mut earliest.1
            } else {
                &mut earliest.0
            };
            *earliest = one.returned.min(*earliest);
        }
    }
    Ok(())
}

/// Each read shows the state at the revision it returned.
fn check_reads(operations: &[Operation], versions: &Versions, writes: usize) -> Result<(), Violation> {
    let last = Revision(Revision::INITIAL.0 + writes as u64);
    for operation in operations {
        let Some(Placed { revision, .. }) = read(operation) else {
            continue;
        };
        if revision < Revision::INITIAL || revision > last {
            return violation("no other revisions", format!("{revision} does not exist"));
        }
        match &operation.call {
            Call::Transact(transaction, Some(Outcome::Conflict { current, .. })) => {
                if versions.holds(transaction, revision) {
                    return violation("conflicts are real", format!("at {revision}"));
                }
                if versions.at(&transaction.key, revision) != current.as_ref() {
                    return violation("conflicts show the state", format!("at {revision}"));
                }
            }
            Call::Transact(..) => {}
            Call::Get(key, found) => {
                if versions.at(key, revision) != found.entry.as_ref() {
                    return violation("gets show the state", format!("{key} at {revision}"));
                }
            }
            Call::Scan(range, scan) => {
                if versions.range(range, revision) != scan.entries {
                    return violation("scans show the state", format!("at {revision}"));
                }
            }
        }
    }
    Ok(())
}
