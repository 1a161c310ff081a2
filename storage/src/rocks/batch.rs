//! A batch: transactions that were checked and encoded one after the other, and are not durable yet.

use std::collections::HashMap;

use super::column_families::{Meta, Step};
use super::index::{Index, Slot, conflict};
use super::parts::Parts;
use super::prepare::Prepared;
use crate::clock::Stopwatch;
use crate::record::{Committed, Place, finish_change, finish_state};
use crate::{Entry, Event, EventKind, Floors, Key, Outcome, Revision, StoreError, Value};

/// The changes of a batch.
pub(crate) struct Batch {
    pub(crate) changed: HashMap<Key, Option<Slot>>,
    pub(crate) steps: Vec<Step>,
    pub(crate) events: Vec<Event>,
    /// The revision of its last event.
    pub(crate) revision: Revision,
    pub(crate) compaction: Option<Compaction>,
    at_ms: u64,
}

/// What a batch drops of history.
pub(crate) struct Compaction {
    /// Everything below this revision.
    pub(crate) below: Revision,
    /// When it was requested.
    pub(crate) since: Stopwatch,
}

/// The entry before the removal of a damaged value.
fn unreadable(place: Place) -> Entry {
    Entry {
        value: Value::unreadable(),
        created: place.created,
        modified: place.modified,
    }
}

impl Batch {
    /// A batch on top of a published revision.
    pub(crate) fn new(published: Revision, at_ms: u64) -> Self {
        Self {
            changed: HashMap::new(),
            steps: Vec::new(),
            events: Vec::new(),
            revision: published,
            compaction: None,
            at_ms,
        }
    }

    /// What a key holds after the changes so far.
    fn slot<'a>(&'a self, index: &'a Index, key: &Key) -> Option<&'a Slot> {
        match self.changed.get(key) {
            Some(slot) => slot.as_ref(),
            None => index.slot(key),
        }
    }

    /// Checks a transaction and appends its write.
    pub(crate) fn apply(
        &mut self,
        parts: &Parts,
        index: &Index,
        prepared: Prepared,
    ) -> Result<Outcome, StoreError> {
        let found = self.slot(index, &prepared.key);
        if let Some(conflict) = conflict(&prepared.key, prepared.base, found, self.revision)? {
            return Ok(conflict);
        }
        parts.lifecycle.check_writable()?;
        let before = match found {
            None => None,
            Some(Slot::Whole(entry)) => Some(entry.clone()),
            Some(unread) if prepared.may_remove_damaged => Some(unreadable(unread.place())),
            Some(unread) => return Err(unread.unread(&prepared.key)),
        };
        let event = self.append(parts, prepared, before)?;
        let revision = event.revision;
        let slot = event.new.clone().map(Slot::Whole);
        self.changed.insert(event.key.clone(), slot);
        self.events.push(event);
        self.revision = revision;
        Ok(Outcome::Committed { revision })
    }

    /// Appends the records of a write.
    fn append(
        &mut self,
        parts: &Parts,
        prepared: Prepared,
        before: Option<Entry>,
    ) -> Result<Event, StoreError> {
        let Prepared {
            key,
            value,
            state_body,
            mut history_body,
            assumed,
            ..
        } = prepared;
        let committed = Committed {
            revision: self.revision.next(),
            at_ms: self.at_ms,
        };
        let previous = before.as_ref().map(|entry| entry.modified);
        if assumed != previous {
            let old = before.as_ref().map(|entry| &entry.value);
            history_body = parts
                .records
                .history_body(&key, old, value.as_ref())
                .map_err(|error| error.of_write())?;
        }
        let place = Place {
            created: before.as_ref().map_or(committed.revision, |entry| entry.created),
            modified: committed.revision,
        };
        let kind = match (&before, &value) {
            (_, None) => EventKind::Deleted,
            (None, Some(_)) => EventKind::Created,
            (Some(_), Some(_)) => EventKind::Updated,
        };
        self.steps.push(if value.is_some() {
            Step::PutState(key.clone(), finish_state(state_body, &key, place))
        } else {
            Step::DeleteState(key.clone())
        });
        let record = finish_change(history_body, &key, kind, place.created, previous, committed);
        self.steps.push(Step::PutHistory(committed.revision, record));
        Ok(Event {
            revision: committed.revision,
            key,
            kind,
            new: value.map(|value| Entry {
                value,
                created: place.created,
                modified: place.modified,
            }),
            old: before,
        })
    }

    /// Raises the published floors, then appends what makes them durable and drops the history below them.
    pub(crate) fn raise_floors(
        &mut self,
        parts: &Parts,
        wanted: Floors,
        since: Stopwatch,
    ) -> Result<(), StoreError> {
        parts.lifecycle.check_writable()?;
        let current = parts.published.current();
        let highest = current.next();
        if wanted.listable_from > highest || wanted.watchable_from > highest {
            return Err(StoreError::Future {
                requested: wanted.listable_from.max(wanted.watchable_from).previous(),
                current,
            });
        }
        let before = parts.retention.floors();
        let floors = parts.retention.raise(wanted);
        parts.published.wake_watches();
        if floors == before {
            return Ok(());
        }
        fail::fail_point!("compact-after-floors");
        self.steps.extend([
            Step::PutMeta(Meta::ListableFrom, floors.listable_from.0),
            Step::PutMeta(Meta::WatchableFrom, floors.watchable_from.0),
            Step::DropHistory(floors.watchable_from),
        ]);
        self.compaction = Some(Compaction {
            below: floors.watchable_from,
            since,
        });
        Ok(())
    }

    /// Appends the revision, if the batch took any.
    pub(crate) fn finish(&mut self) {
        if !self.events.is_empty() {
            self.steps.push(Step::PutMeta(Meta::Revision, self.revision.0));
        }
    }

    /// The bytes it adds to history.
    pub(crate) fn history_bytes(&self) -> u64 {
        let bytes = self.steps.iter().map(|step| match step {
            Step::PutHistory(_, record) => record.len() as u64,
            _ => 0,
        });
        bytes.sum()
    }
}
