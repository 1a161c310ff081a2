//! Scans: what a range holds exactly at a revision.
//!
//! A snapshot of `state` with later changes undone (see `past_reads`). The newest state is read in the same way at the
//! published revision, so that nothing is shown before its write is acknowledged. Bytes that the index holds are shared,
//! not read again.

use super::column_families::{Engine, Meta, View};
use super::error::EngineError;
use super::history::HistoryError;
use super::index::{Slot, damaged};
use super::parts::Parts;
use super::past_reads::{UndoError, Undone};
use crate::record::{Place, StoredState};
use crate::{At, Damaged, Entry, Key, KeyRange, Page, Revision, Scan, StoreError, Unread};

/// The result of reading a page from a view.
#[derive(Debug)]
pub(crate) enum Attempt {
    Done(Scan),
    /// The history it needs was dropped while it ran.
    Compacted,
}

/// Reads a page. Blocks on the disk.
pub(crate) fn scan(
    parts: &Parts,
    engine: &Engine,
    range: &KeyRange,
    at: At,
    page: &Page,
) -> Result<Scan, StoreError> {
    let published = &parts.published;
    if page.damaged == Damaged::Refuse
        && let Some((key, slot)) = published.index().first_unread(range)
    {
        return Err(slot.unread(key));
    }
    loop {
        let revision = match at {
            At::Latest => published.current(),
            At::Exactly(revision) => revision,
        };
        let view = engine.view();
        if at != At::Latest {
            // After the snapshot: floors rise before history is dropped, so the snapshot has what is above them now.
            let floors = parts.retention.floors();
            floors.check_listable(revision, published.current())?;
        }
        match attempt(parts, &view, range, revision, page)? {
            Attempt::Done(scan) => return Ok(scan),
            Attempt::Compacted if at == At::Latest => {}
            Attempt::Compacted => {
                return Err(StoreError::Compacted {
                    requested: revision,
                    floor: parts.retention.floors().listable_from,
                });
            }
        }
    }
}

/// Reads a page from a view.
pub(crate) fn attempt(
    parts: &Parts,
    view: &View<'_>,
    range: &KeyRange,
    revision: Revision,
    page: &Page,
) -> Result<Attempt, StoreError> {
    let newest = view.meta(Meta::Revision).map_err(|error| engine_failed(&error))?;
    let newest = newest.map(Revision).ok_or_else(|| StoreError::Corrupt {
        key: "meta/revision".to_owned(),
        reason: "it is missing".to_owned(),
    })?;
    // Only what happened since the page before needs to be undone.
    let mut undone = parts.past_reads.resume(range, revision);
    match undone.extend(view, &parts.records, newest) {
        Ok(()) => {}
        // Files of history are removed whatever snapshots there are: what is missing need not be damaged.
        Err(_) if parts.retention.floors().watchable_from > revision.next() => return Ok(Attempt::Compacted),
        Err(UndoError::TooMuch) => {
            return Err(StoreError::Compacted {
                requested: revision,
                floor: newest,
            });
        }
        Err(UndoError::History(error)) => return Err(history_failed(parts, &error)),
    }
    let scan = collect(parts, view, range, revision, page, &undone)?;
    if scan.more {
        parts.past_reads.keep(undone, parts.retention.now_ms());
    }
    Ok(Attempt::Done(scan))
}

/// A page that is being collected.
struct Collected<'a> {
    scan: Scan,
    page: &'a Page,
}

impl Collected<'_> {
    /// Adds the next key; returns whether the page was full before.
    fn add(&mut self, key: Key, entry: Result<Entry, StoreError>) -> Result<bool, StoreError> {
        let entry = match entry {
            Ok(entry) if entry.value.is_unreadable() => Err(damaged(&key)),
            entry => entry,
        };
        match entry {
            // Where a page ends does not depend on damage after it.
            Ok(_) if self.page.limit != 0 && self.scan.entries.len() == self.page.limit => {
                self.scan.more = true;
                // Damaged keys after the last entry belong to the next page, which begins there.
                if let Some((last, _)) = self.scan.entries.last() {
                    let part = self.scan.damaged.partition_point(|(key, _)| key < last);
                    self.scan.damaged.truncate(part);
                }
                return Ok(true);
            }
            Ok(entry) => self.scan.entries.push((key, entry)),
            Err(error) => match Unread::of(&error) {
                Some(unread) if self.page.damaged == Damaged::SetApart => {
                    self.scan.damaged.push((key, unread));
                }
                _ => return Err(error),
            },
        }
        Ok(false)
    }
}

/// Merges the rows of `state` with the undone changes, in key order.
fn collect(
    parts: &Parts,
    view: &View<'_>,
    range: &KeyRange,
    revision: Revision,
    page: &Page,
    undone: &Undone,
) -> Result<Scan, StoreError> {
    let scan = Scan {
        revision,
        entries: Vec::new(),
        damaged: Vec::new(),
        more: false,
    };
    let mut collected = Collected { scan, page };
    if range.bounds_after(&page.after).is_none() {
        return Ok(collected.scan);
    }
    let start = range.start.as_str().max(page.after.as_str());
    let mut rows = view
        .state(start, &range.end)
        .map_err(|error| engine_failed(&error))?;
    let mut undone = undone.after(&page.after).peekable();
    while let Some((key, record)) = rows.next().map_err(|error| engine_failed(&error))? {
        let text = std::str::from_utf8(key).map_err(|_| StoreError::Corrupt {
            key: String::from_utf8_lossy(key).into_owned(),
            reason: "its key is not text".to_owned(),
        })?;
        if text <= page.after.as_str() && !page.after.is_empty() {
            continue;
        }
        while let Some((past_key, past)) = undone.next_if(|(past_key, _)| past_key.as_str() < text) {
            if let Some(entry) = past
                && collected.add(past_key.clone(), Ok(entry.clone()))?
            {
                return Ok(collected.scan);
            }
        }
        let (key, entry) = match undone.next_if(|(past_key, _)| past_key.as_str() == text) {
            Some((_, None)) => continue,
            Some((key, Some(entry))) => (key.clone(), Ok(entry.clone())),
            None => row(parts, text, record, revision)?,
        };
        if collected.add(key, entry)? {
            return Ok(collected.scan);
        }
    }
    for (key, past) in undone {
        if let Some(entry) = past
            && collected.add(key.clone(), Ok(entry.clone()))?
        {
            break;
        }
    }
    Ok(collected.scan)
}

/// Key and entry of a row whose key did not change between `revision` and the snapshot; the inner error is damage of its
/// value.
///
/// If the index holds the key as of that revision or before, it is the same entry: its bytes are shared and the row is not
/// decoded.
fn row(
    parts: &Parts,
    text: &str,
    record: &[u8],
    revision: Revision,
) -> Result<(Key, Result<Entry, StoreError>), StoreError> {
    match parts.published.index().find(text) {
        Some((key, Slot::Whole(entry))) if entry.modified <= revision => {
            return Ok((key.clone(), Ok(entry.clone())));
        }
        // Counted when the store was opened.
        Some((key, slot @ (Slot::Damaged(place) | Slot::Sealed(place, _)))) if place.modified <= revision => {
            return Ok((key.clone(), Err(slot.unread(key))));
        }
        _ => {}
    }
    let key = Key::parse(text)?;
    let decoded = StoredState::decode(&key, record).and_then(|stored| {
        let Place { created, modified } = stored.place();
        let value = parts.records.value(&key, stored)?;
        Ok(Entry {
            value,
            created,
            modified,
        })
    });
    let entry = decoded.map_err(|error| {
        if error.is_damage() {
            parts.metrics.checksum_failures.inc();
        }
        error.of_read(key.as_str())
    });
    Ok((key, entry))
}

/// Whether the value of a key, last written at `at`, is sealed with a key that nothing is sealed with any more. Blocks on the
/// disk.
pub(crate) fn is_stale(parts: &Parts, engine: &Engine, key: &Key, at: Revision) -> Result<bool, StoreError> {
    let view = engine.view();
    let record = view.state_record(key.as_str());
    let Some(record) = record.map_err(|error| engine_failed(&error))? else {
        return Ok(false);
    };
    let stored = StoredState::decode(key, &record).map_err(|error| error.of_read(key.as_str()))?;
    Ok(stored.place().modified == at && stored.seal().is_stale(&**parts.records.seal(), key))
}

pub(crate) fn engine_failed(error: &EngineError) -> StoreError {
    if !error.is_damage() {
        return StoreError::Unavailable {
            reason: error.to_string(),
        };
    }
    StoreError::Corrupt {
        key: "the engine's files".to_owned(),
        reason: error.to_string(),
    }
}

fn history_failed(parts: &Parts, error: &HistoryError) -> StoreError {
    match error {
        HistoryError::Engine(error) => engine_failed(error),
        HistoryError::Sealed { revision, reason } => StoreError::Sealed {
            key: format!("history of revision {revision}"),
            reason: reason.clone(),
        },
        HistoryError::Damaged { revision, reason } => {
            parts.metrics.checksum_failures.inc();
            StoreError::Corrupt {
                key: format!("history of revision {revision}"),
                reason: reason.clone(),
            }
        }
    }
}
