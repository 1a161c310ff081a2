//! What happened, from the disk?
//!
//! History is dense: from the oldest kept revision to the newest each one has its records, each record with both
//! sides of its change. A hole, or a record out of place, is damage.

use std::sync::Arc;

use super::column_families::{Engine, View, parse_history_key};
use super::error::EngineError;
use super::tail::Change;
use crate::record::{RecordError, Records, StoredChange};
use crate::{Event, Revision};

/// How many revisions, and about how many bytes of values, one read brings.
const READ_REVISIONS: usize = 1024;
const READ_BYTES: usize = 4 << 20;

/// Why history cannot be read.
#[derive(Debug)]
pub(crate) enum HistoryError {
    /// The engine failed.
    Engine(EngineError),
    /// A record is damaged or missing.
    Damaged {
        /// Where.
        revision: Revision,
        /// What was found.
        reason: String,
    },
    /// A record is whole, but sealed with a key that cannot be had at the moment.
    Closed {
        /// Where.
        revision: Revision,
        /// Why.
        reason: String,
    },
}

impl From<EngineError> for HistoryError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl HistoryError {
    pub(crate) fn record(revision: Revision, error: &RecordError) -> Self {
        let reason = error.to_string();
        if error.is_damage() {
            Self::Damaged { revision, reason }
        } else {
            Self::Closed { revision, reason }
        }
    }

    fn missing(revision: Revision) -> Self {
        Self::Damaged {
            revision,
            reason: "it is missing".to_owned(),
        }
    }
}

/// Calls `each` with every record from one revision through another, in order, with its size in bytes, until
/// `each` answers false. Checks places, not values.
pub(crate) fn walk(
    view: &View<'_>,
    from: Revision,
    through: Revision,
    mut each: impl FnMut(StoredChange, usize) -> Result<bool, HistoryError>,
) -> Result<(), HistoryError> {
    let mut rows = view.history(from, through)?;
    while let Some((key, bytes)) = rows.next()? {
        let size = key.len() + bytes.len();
        let Some(place) = parse_history_key(key) else {
            return Err(HistoryError::Damaged {
                revision: from,
                reason: "the key of a record is malformed".to_owned(),
            });
        };
        let stored =
            StoredChange::decode(place, bytes).map_err(|error| HistoryError::record(place.0, &error))?;
        if !each(stored, size)? {
            break;
        }
    }
    Ok(())
}

/// Follows the places of records and tells a hole.
#[derive(Debug)]
pub(crate) struct Density {
    last: Revision,
    next_index: u16,
}

impl Density {
    /// The next record must be the first of the revision after `last`.
    pub(crate) fn after(last: Revision) -> Self {
        Self { last, next_index: 0 }
    }

    /// Takes a record's place.
    pub(crate) fn follow(&mut self, stored: &StoredChange) -> Result<(), HistoryError> {
        let place = stored.committed;
        let is_next_write = place.revision == self.last && place.index == self.next_index && place.index > 0;
        let is_next_revision = place.revision == self.last.next() && place.index == 0;
        if !is_next_write && !is_next_revision {
            return Err(HistoryError::missing(self.last.next()));
        }
        self.last = place.revision;
        self.next_index = place.index.saturating_add(1);
        Ok(())
    }

    /// The revision seen last must be `newest`.
    pub(crate) fn end(&self, newest: Revision) -> Result<(), HistoryError> {
        if self.last < newest {
            return Err(HistoryError::missing(self.last.next()));
        }
        Ok(())
    }
}

/// Reads the changes that follow `seen`, no further than `through`, as many as one read brings.
pub(crate) fn read_after(
    engine: &Engine,
    records: &Records,
    seen: Revision,
    through: Revision,
) -> Result<Vec<Arc<Change>>, HistoryError> {
    fail::fail_point!("history-read");
    let view = engine.view();
    let mut density = Density::after(seen);
    let mut changes: Vec<Change> = Vec::new();
    let mut bytes = 0;
    walk(&view, seen.next(), through, |stored, _| {
        let revision = stored.committed.revision;
        let is_new_revision = changes.last().is_none_or(|change| change.revision != revision);
        if is_new_revision && (changes.len() >= READ_REVISIONS || bytes >= READ_BYTES) {
            return Ok(false);
        }
        density.follow(&stored)?;
        // What it takes in memory; on disk it may be a hundredth of that.
        bytes += stored.plain_bytes();
        let event: Event = records
            .event(stored)
            .map_err(|error| HistoryError::record(revision, &error))?;
        match changes.last_mut() {
            Some(change) if !is_new_revision => change.events.push(event),
            _ => changes.push(Change {
                revision,
                events: vec![event],
            }),
        }
        Ok(true)
    })?;
    if changes.is_empty() && seen < through {
        return Err(HistoryError::missing(seen.next()));
    }
    Ok(changes.into_iter().map(Arc::new).collect())
}
