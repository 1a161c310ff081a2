//! Was what concurrent clients saw possible at all?
//!
//! Each write names its revision, so checking needs no search. With every call and answer timed:
//! - *real time*: if one write was answered before another was called, its revision is lower;
//! - *replay*: each write's conditions held at the revision before its own, and events say what it did;
//! - *reads* and conflicts equal the state at the revision they name, which is no older than any write answered
//!   before the call and no newer than a write called before the answer;
//! - an unknown outcome is settled by the events, since values are unique.
//!
//! Start at [`Recorder`], then [`check`]. Sorting is all it takes, so a million operations are fine.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::{
    At, Condition, Entry, Event, Expect, Found, Key, KeyRange, Outcome, Page, Revision, Scan, Store,
    StoreError, Transaction, Write,
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
        let (_, entry) = versions.iter().rev().find(|(at, _)| *at <= revision)?;
        entry.as_ref()
    }

    fn holds(&self, condition: &Condition, revision: Revision) -> bool {
        let found = self.at(&condition.key, revision).map(|entry| entry.modified);
        match condition.expect {
            Expect::Absent => found.is_none(),
            Expect::Revision(expected) => found == Some(expected),
        }
    }

    fn range(&self, range: &KeyRange, revision: Revision) -> Vec<(Key, Entry)> {
        let keys = self.0.keys().filter(|key| range.contains(key.as_str()));
        keys.filter_map(|key| Some((key.clone(), self.at(key, revision)?.clone())))
            .collect()
    }
}

/// A write that happened.
struct Happened<'a> {
    revision: Revision,
    called: u64,
    answered: u64,
    transaction: &'a Transaction,
}

/// Checks operations against the events of a watch from the start.
///
/// # Errors
/// The first rule found broken.
pub fn check(operations: &[Operation], events: &[(Revision, Vec<Event>)]) -> Result<(), Fault> {
    let happened = happened(operations, events)?;
    check_real_time(&happened)?;
    let versions = replay(&happened, events)?;
    check_reads(operations, &happened, &versions)
}

/// The writes that happened, by revision: one for each revision of the events.
fn happened<'a>(
    operations: &'a [Operation],
    events: &[(Revision, Vec<Event>)],
) -> Result<Vec<Happened<'a>>, Fault> {
    let mut by_revision: BTreeMap<Revision, Happened<'a>> = BTreeMap::new();
    let mut unknown: HashMap<Effects<'_>, &Operation> = HashMap::new();
    for operation in operations {
        let Exchange::Transact(transaction, outcome) = &operation.exchange else {
            continue;
        };
        if transaction.writes.is_empty() {
            continue;
        }
        match outcome {
            Some(Outcome::Committed { revision }) => {
                let one = Happened {
                    revision: *revision,
                    called: operation.called,
                    answered: operation.answered,
                    transaction,
                };
                if by_revision.insert(*revision, one).is_some() {
                    return fault("unique revisions", format!("{revision} was handed out twice"));
                }
            }
            Some(Outcome::Conflict { .. }) => {}
            None => {
                unknown.insert(asked(transaction), operation);
            }
        }
    }
    for (revision, events) in events {
        if by_revision.contains_key(revision) {
            continue;
        }
        let did = events.iter().map(|event| {
            let bytes = event.new.as_ref().map(|entry| entry.value.bytes.as_ref());
            (event.key.clone(), bytes)
        });
        let settled = unknown.remove(&did.collect::<Vec<_>>());
        let Some((operation, Exchange::Transact(transaction, _))) =
            settled.map(|operation| (operation, &operation.exchange))
        else {
            return fault(
                "nothing from nowhere",
                format!("nobody asked for revision {revision}"),
            );
        };
        let one = Happened {
            revision: *revision,
            called: operation.called,
            answered: u64::MAX,
            transaction,
        };
        by_revision.insert(*revision, one);
    }
    Ok(by_revision.into_values().collect())
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

fn check_real_time(happened: &[Happened<'_>]) -> Result<(), Fault> {
    let mut earliest_later_answer = u64::MAX;
    for one in happened.iter().rev() {
        if earliest_later_answer < one.called {
            let detail = format!("{} was called after a later revision was answered", one.revision);
            return fault("real time", detail);
        }
        earliest_later_answer = earliest_later_answer.min(one.answered);
    }
    Ok(())
}

fn replay(happened: &[Happened<'_>], events: &[(Revision, Vec<Event>)]) -> Result<Versions, Fault> {
    let mut versions = Versions::default();
    let mut shown = events.iter();
    for one in happened {
        let before = one.revision.previous();
        if let Some(broken) = one
            .transaction
            .conditions
            .iter()
            .find(|one| !versions.holds(one, before))
        {
            return fault(
                "conditions hold",
                format!("{} of revision {}", broken.key, one.revision),
            );
        }
        let Some((revision, events)) = shown.next() else {
            return fault(
                "every write is shown",
                format!("revision {} is missing", one.revision),
            );
        };
        if *revision != one.revision {
            return fault(
                "every write is shown",
                format!("{revision} came for {}", one.revision),
            );
        }
        let did: Vec<_> = events
            .iter()
            .map(|event| {
                (
                    event.key.clone(),
                    event.new.as_ref().map(|entry| entry.value.bytes.as_ref()),
                )
            })
            .collect();
        if did != asked(one.transaction) {
            return fault("events are what was written", format!("revision {revision}"));
        }
        for event in events {
            if versions.at(&event.key, before) != event.old.as_ref() {
                return fault(
                    "events hold the value before",
                    format!("{} at {revision}", event.key),
                );
            }
            let kept = versions.0.entry(event.key.clone()).or_default();
            kept.push((*revision, event.new.clone()));
        }
    }
    Ok(versions)
}

fn check_reads(
    operations: &[Operation],
    happened: &[Happened<'_>],
    versions: &Versions,
) -> Result<(), Fault> {
    // The newest revision answered by a time, and when each revision was called.
    let mut answered: Vec<(u64, Revision)> =
        happened.iter().map(|one| (one.answered, one.revision)).collect();
    answered.sort_unstable();
    let mut newest = Revision::INITIAL;
    for (_, revision) in &mut answered {
        newest = newest.max(*revision);
        *revision = newest;
    }
    let called: HashMap<Revision, u64> = happened.iter().map(|one| (one.revision, one.called)).collect();
    let in_time = |operation: &Operation, revision: Revision, what: &str| {
        let before = answered.partition_point(|(at, _)| *at < operation.called);
        let due = before.checked_sub(1).and_then(|last| answered.get(last));
        if let Some((_, due)) = due
            && revision < *due
        {
            return fault(
                "nothing stale",
                format!("{what} at {revision}, {due} had been answered"),
            );
        }
        if called
            .get(&revision)
            .is_some_and(|called| *called > operation.answered)
        {
            return fault("nothing from the future", format!("{what} at {revision}"));
        }
        Ok(())
    };
    for operation in operations {
        match &operation.exchange {
            Exchange::Transact(transaction, Some(Outcome::Conflict { revision, current })) => {
                in_time(operation, *revision, "a conflict")?;
                let mut conditions = transaction.conditions.iter();
                if conditions
                    .clone()
                    .all(|condition| versions.holds(condition, *revision))
                {
                    return fault("conflicts are real", format!("at {revision}"));
                }
                let truth = conditions
                    .by_ref()
                    .map(|one| versions.at(&one.key, *revision).cloned());
                if truth.collect::<Vec<_>>() != *current {
                    return fault("conflicts show the state", format!("at {revision}"));
                }
            }
            Exchange::Transact(transaction, Some(Outcome::Committed { revision }))
                if transaction.writes.is_empty() =>
            {
                in_time(operation, *revision, "a check")?;
                if !transaction
                    .conditions
                    .iter()
                    .all(|condition| versions.holds(condition, *revision))
                {
                    return fault("checks hold", format!("at {revision}"));
                }
            }
            Exchange::Transact(..) => {}
            Exchange::Get(key, found) => {
                in_time(operation, found.revision, "a get")?;
                if versions.at(key, found.revision) != found.entry.as_ref() {
                    return fault("gets show the state", format!("{key} at {}", found.revision));
                }
            }
            Exchange::Scan(range, scan) => {
                in_time(operation, scan.revision, "a scan")?;
                if versions.range(range, scan.revision) != scan.entries {
                    return fault("scans show the state", format!("at {}", scan.revision));
                }
            }
        }
    }
    Ok(())
}
