//! Reads history from disk.
//!
//! History is dense: every revision from the oldest kept to the newest has one record, with the value before and after
//! its change. A missing record, or one at the wrong key, is damage.

use std::sync::Arc;

use super::column_families::{Engine, View, parse_history_key};
use super::error::EngineError;
use crate::record::{RecordError, Records, StoredChange};
use crate::{Event, Revision};

/// How many revisions, and about how many bytes of values, one read returns.
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
    /// A record is sealed with a key that is not available now.
    Sealed {
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
            Self::Sealed { revision, reason }
        }
    }

    fn missing(revision: Revision) -> Self {
        Self::Damaged {
            revision,
            reason: "it is missing".to_owned(),
        }
    }
}

/// Calls `each` with every record from one revision through another, in order, with its size in bytes, until `each`
/// returns false. Checks revisions and keys, not values.
pub(crate) fn walk(
    view: &View<'_>,
    from: Revision,
    through: Revision,
    mut each: impl FnMut(StoredChange, usize) -> Result<bool, HistoryError>,
) -> Result<(), HistoryError> {
    let mut rows = view.history(from, through)?;
    while let Some((key, bytes)) = rows.next()? {
        let size = key.len() + bytes.len();
        let Some(revision) = parse_history_key(key) else {
            return Err(HistoryError::Damaged {
                revision: from,
                reason: "the key of a record is malformed".to_owned(),
            });
        };
        let stored =
            StoredChange::decode(revision, bytes).map_err(|error| HistoryError::record(revision, &error))?;
        if !each(stored, size)? {
            break;
        }
    }
    Ok(())
}

/// Checks that revisions follow each other without a gap.
#[derive(Debug)]
pub(crate) struct Density {
    last: Revision,
}

impl Density {
    /// The next record must be of the revision after `last`.
    pub(crate) fn after(last: Revision) -> Self {
        Self { last }
    }

    /// Takes the revision of the next record.
    pub(crate) fn follow(&mut self, stored: &StoredChange) -> Result<(), HistoryError> {
        let due = self.last.next();
        if stored.committed.revision != due {
            return Err(HistoryError::missing(due));
        }
        self.last = due;
        Ok(())
    }

    /// The last record must have been of revision `newest`.
    pub(crate) fn end(&self, newest: Revision) -> Result<(), HistoryError> {
        if self.last < newest {
            return Err(HistoryError::missing(self.last.next()));
        }
        Ok(())
    }
}

/// Reads the events after `seen`, through `through` at most, as many as one read returns.
pub(crate) fn read_after(
    engine: &Engine,
    records: &Records,
    seen: Revision,
    through: Revision,
) -> Result<Vec<Arc<Event>>, HistoryError> {
    fail::fail_point!("history-read");
    let view = engine.view();
    let mut density = Density::after(seen);
    let mut events = Vec::new();
    let mut bytes = 0;
    walk(&view, seen.next(), through, |stored, _| {
        if events.len() >= READ_REVISIONS || bytes >= READ_BYTES {
            return Ok(false);
        }
        density.follow(&stored)?;
        // The size in memory; on disk it may be a hundredth of that.
        bytes += stored.plain_bytes();
        let revision = stored.committed.revision;
        let event = records
            .event(stored)
            .map_err(|error| HistoryError::record(revision, &error))?;
        events.push(Arc::new(event));
        Ok(true)
    })?;
    if events.is_empty() && seen < through {
        return Err(HistoryError::missing(seen.next()));
    }
    Ok(events)
}
