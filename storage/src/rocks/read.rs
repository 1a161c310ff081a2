//! What did a range hold, exactly, at a revision?
//!
//! A snapshot of `state`, undone by the `history` records between the wanted revision and the snapshot's: the first
//! record of a key says what the key held before. The newest state is read in the same way at the published
//! revision, so that nothing is shown before its writer is answered. Bytes that the index holds already are shared,
//! not read twice.

use std::collections::BTreeMap;
use std::ops::Bound;

use super::Shared;
use super::column_families::{Engine, Meta, View};
use super::error::EngineError;
use super::history::{Density, HistoryError, walk};
use super::index::{Slot, damaged};
use crate::record::{Place, StoredState};
use crate::{At, Damaged, Entry, Key, KeyRange, Page, Revision, Scan, StoreError};

/// The most history records one read undoes, and the most bytes of values that it holds for it.
const MAX_UNDONE: usize = 200_000;
const MAX_UNDONE_BYTES: usize = 128 << 20;
/// How long what a page undid is kept for the next one.
const KEPT_MS: u64 = 30_000;

/// Keys of a range that changed after a revision, and what they held at it.
#[derive(Debug)]
pub(crate) struct Undone {
    range: KeyRange,
    revision: Revision,
    /// Changes up to here are undone.
    newest: Revision,
    walked: usize,
    bytes: usize,
    /// When it was put aside for the next page, on the steady clock.
    kept_at_ms: u64,
    past: BTreeMap<Key, Option<Entry>>,
}

impl Undone {
    fn nothing(range: &KeyRange, revision: Revision) -> Self {
        Self {
            range: range.clone(),
            revision,
            newest: revision,
            walked: 0,
            bytes: 0,
            kept_at_ms: 0,
            past: BTreeMap::new(),
        }
    }

    fn is_of(&self, range: &KeyRange, revision: Revision) -> bool {
        self.range == *range && self.revision == revision
    }

    /// Whether nobody can ask for its next page, or nobody has for long.
    fn is_stale(&self, floor: Revision, now_ms: u64) -> bool {
        self.revision < floor || now_ms.saturating_sub(self.kept_at_ms) >= KEPT_MS
    }

    /// How many history records were read for it.
    #[cfg(test)]
    pub(crate) fn walked(&self) -> usize {
        self.walked
    }

    fn is_too_much(&self) -> bool {
        self.walked > MAX_UNDONE || self.bytes > MAX_UNDONE_BYTES
    }

    /// What the keys after a text held.
    fn after(&self, text: &str) -> impl Iterator<Item = (&Key, &Option<Entry>)> {
        let from = if text.is_empty() {
            Bound::Unbounded
        } else {
            Bound::Excluded(text)
        };
        self.past.range::<str, _>((from, Bound::Unbounded))
    }
}

/// How an attempt to read ended.
#[derive(Debug)]
pub(crate) enum Attempt {
    Done(Scan),
    /// History below was let go of while the newest state was read.
    Overtaken,
}

/// Reads a page. Blocks on the disk.
pub(crate) fn scan(
    shared: &Shared,
    engine: &Engine,
    range: &KeyRange,
    at: At,
    page: &Page,
) -> Result<Scan, StoreError> {
    if page.damaged == Damaged::Refuse
        && let Some(key) = shared.index().first_damaged(range)
    {
        return Err(damaged(key));
    }
    loop {
        let revision = match at {
            At::Latest => shared.current(),
            At::Exactly(revision) => revision,
        };
        let view = engine.view();
        if at != At::Latest {
            // After the snapshot: floors rise before history goes, so what passes here is in the snapshot.
            shared.floors().check_listable(revision, shared.current())?;
        }
        match attempt(shared, &view, range, revision, page)? {
            Attempt::Done(scan) => return Ok(scan),
            Attempt::Overtaken if at == At::Latest => {}
            Attempt::Overtaken => {
                return Err(StoreError::Compacted {
                    requested: revision,
                    floor: shared.floors().listable_from,
                });
            }
        }
    }
}

/// Reads a page from a view.
pub(crate) fn attempt(
    shared: &Shared,
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
    // What the page before undid need not be undone again, only what has happened since.
    let kept = shared.undone().take_if(|kept| kept.is_of(range, revision));
    let mut undone = kept.unwrap_or_else(|| Undone::nothing(range, revision));
    match undo(shared, view, &mut undone, newest) {
        Ok(()) => {}
        // Whole files of history go whatever snapshots there are: what is missing need not be damaged.
        Err(_) if shared.floors().watchable_from > revision.next() => return Ok(Attempt::Overtaken),
        Err(UndoError::TooMuch) => {
            return Err(StoreError::Compacted {
                requested: revision,
                floor: newest,
            });
        }
        Err(UndoError::History(error)) => return Err(history_failed(shared, &error)),
    }
    let scan = collect(shared, view, range, revision, page, &undone)?;
    if scan.more && !undone.past.is_empty() {
        undone.kept_at_ms = shared.steady_ms();
        // Freed after the lock is let go of: it may be large.
        let before = shared.undone().replace(undone);
        drop(before);
    }
    Ok(Attempt::Done(scan))
}

/// Lets go of what a page undid if its next page will not come. Never on the commit thread: freeing it takes time.
pub(crate) fn forget_stale(shared: &Shared) {
    let (floor, now_ms) = (shared.floors().listable_from, shared.steady_ms());
    let stale = shared.undone().take_if(|kept| kept.is_stale(floor, now_ms));
    drop(stale);
}

/// Why a past state is not shown.
enum UndoError {
    /// It lies further back than a read may undo.
    TooMuch,
    /// History cannot be read.
    History(HistoryError),
}

impl From<HistoryError> for UndoError {
    fn from(error: HistoryError) -> Self {
        Self::History(error)
    }
}

/// Adds what the keys of the range that changed up to `newest` held before.
fn undo(shared: &Shared, view: &View<'_>, undone: &mut Undone, newest: Revision) -> Result<(), UndoError> {
    let seen = undone.newest;
    if newest <= seen {
        return Ok(());
    }
    if newest.0 - undone.revision.0 > MAX_UNDONE as u64 {
        return Err(UndoError::TooMuch);
    }
    let mut density = Density::after(seen);
    walk(view, seen.next(), newest, |stored, _| {
        density.follow(&stored)?;
        undone.walked += 1;
        let text = stored.key.as_str();
        if undone.range.contains(text) && !undone.past.contains_key(text) {
            undone.bytes = undone.bytes.saturating_add(stored.plain_bytes());
            if undone.is_too_much() {
                return Ok(false);
            }
            let revision = stored.committed.revision;
            let event = shared
                .records
                .event(stored)
                .map_err(|error| HistoryError::record(revision, &error))?;
            undone.past.insert(event.key, event.old);
        }
        Ok(!undone.is_too_much())
    })?;
    if undone.is_too_much() {
        return Err(UndoError::TooMuch);
    }
    density.end(newest)?;
    undone.newest = newest;
    Ok(())
}

/// A page in the making.
struct Collected<'a> {
    scan: Scan,
    page: &'a Page,
}

impl Collected<'_> {
    /// Takes the next key with what it holds; whether the page was full before.
    fn take(&mut self, key: Key, entry: Result<Entry, StoreError>) -> Result<bool, StoreError> {
        let entry = match entry {
            Ok(entry) if entry.value.is_unreadable() => Err(damaged(&key)),
            entry => entry,
        };
        match entry {
            // Where a page ends does not depend on what is damaged behind it.
            Ok(_) if self.page.limit != 0 && self.scan.entries.len() == self.page.limit => {
                self.scan.more = true;
                // What is damaged behind the last entry belongs to the next page, which begins there.
                if let Some((last, _)) = self.scan.entries.last() {
                    let part = self.scan.damaged.partition_point(|key| key < last);
                    self.scan.damaged.truncate(part);
                }
                return Ok(true);
            }
            Ok(entry) => self.scan.entries.push((key, entry)),
            Err(StoreError::Corrupt { .. }) if self.page.damaged == Damaged::SetApart => {
                self.scan.damaged.push(key);
            }
            Err(error) => return Err(error),
        }
        Ok(false)
    }
}

/// Merges the rows of `state` with what was undone, in key order.
fn collect(
    shared: &Shared,
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
                && collected.take(past_key.clone(), Ok(entry.clone()))?
            {
                return Ok(collected.scan);
            }
        }
        let (key, entry) = match undone.next_if(|(past_key, _)| past_key.as_str() == text) {
            Some((_, None)) => continue,
            Some((key, Some(entry))) => (key.clone(), Ok(entry.clone())),
            None => row(shared, text, record, revision)?,
        };
        if collected.take(key, entry)? {
            return Ok(collected.scan);
        }
    }
    for (key, past) in undone {
        if let Some(entry) = past
            && collected.take(key.clone(), Ok(entry.clone()))?
        {
            break;
        }
    }
    Ok(collected.scan)
}

/// Key and entry of a row whose key did not change between `revision` and the snapshot; inside, the damage of its value.
///
/// If the index knows it as of that revision or before, it is the same one: its bytes are shared and the row need
/// not be decoded.
fn row(
    shared: &Shared,
    text: &str,
    record: &[u8],
    revision: Revision,
) -> Result<(Key, Result<Entry, StoreError>), StoreError> {
    match shared.index().find(text) {
        Some((key, Slot::Whole(entry))) if entry.modified <= revision => {
            return Ok((key.clone(), Ok(entry.clone())));
        }
        // Counted when it was found.
        Some((key, Slot::Damaged(place))) if place.modified <= revision => {
            return Ok((key.clone(), Err(damaged(key))));
        }
        _ => {}
    }
    let key = Key::parse(text)?;
    let decoded = StoredState::decode(&key, record).and_then(|stored| {
        let Place { created, modified } = stored.place();
        let value = shared.records.value(&key, stored)?;
        Ok(Entry {
            value,
            created,
            modified,
        })
    });
    let entry = decoded.map_err(|error| {
        if !error.is_damage() {
            return StoreError::Unavailable {
                reason: error.to_string(),
            };
        }
        shared.metrics.checksum_failures.inc();
        StoreError::Corrupt {
            key: key.to_string(),
            reason: error.to_string(),
        }
    });
    Ok((key, entry))
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

pub(crate) fn history_failed(shared: &Shared, error: &HistoryError) -> StoreError {
    match error {
        HistoryError::Engine(error) => engine_failed(error),
        HistoryError::Sealed { reason, .. } => StoreError::Unavailable {
            reason: reason.clone(),
        },
        HistoryError::Damaged { revision, reason } => {
            shared.metrics.checksum_failures.inc();
            StoreError::Corrupt {
                key: format!("history of revision {revision}"),
                reason: reason.clone(),
            }
        }
    }
}
