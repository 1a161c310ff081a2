//! Reads of past states: what they undo, what is kept of it for the next page, and how many run at once.
//!
//! A past state is the newest snapshot with the later changes undone: the first history record of a key after the revision
//! holds what the key held at it.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::column_families::View;
use super::history::{Density, HistoryError, walk};
use super::lifecycle::closed;
use crate::record::Records;
use crate::sync::lock;
use crate::{Entry, Key, KeyRange, Revision, StoreError};

/// How many reads of past states run at once: each may hold 128 MiB of undone values.
const MAX_READS: usize = 4;
/// How long a read waits for its permit.
const PERMIT_WAIT: Duration = Duration::from_secs(5);
/// When a reader that got no permit should retry.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// The most history records one read undoes, and the most bytes of values that it holds for it.
const MAX_UNDONE: usize = 200_000;
const MAX_UNDONE_BYTES: usize = 128 << 20;
/// How long undone changes are kept for the next page.
const KEPT_MS: u64 = 30_000;

/// Limits reads of past states, and keeps the undone changes of the last page.
pub(crate) struct PastReads {
    permits: Arc<Semaphore>,
    kept: Mutex<Option<Undone>>,
}

impl PastReads {
    pub(crate) fn new() -> Self {
        Self {
            permits: Arc::new(Semaphore::new(MAX_READS)),
            kept: Mutex::new(None),
        }
    }

    /// Waits for the permit of a read.
    pub(crate) async fn permit(&self) -> Result<OwnedSemaphorePermit, StoreError> {
        let permit = Arc::clone(&self.permits).acquire_owned();
        match tokio::time::timeout(PERMIT_WAIT, permit).await {
            Ok(permit) => permit.map_err(|_| closed()),
            Err(_) => Err(StoreError::Busy {
                retry_after: RETRY_AFTER,
            }),
        }
    }

    /// The undone changes of the page before, if they are of this range and revision, else none undone.
    pub(crate) fn resume(&self, range: &KeyRange, revision: Revision) -> Undone {
        let is_same = |kept: &mut Undone| kept.range == *range && kept.revision == revision;
        let kept = lock(&self.kept).take_if(is_same);
        kept.unwrap_or_else(|| Undone::nothing(range, revision))
    }

    /// Keeps the undone changes of a page for the next one.
    pub(crate) fn keep(&self, mut undone: Undone, now_ms: u64) {
        if undone.past.is_empty() {
            return;
        }
        undone.kept_at_ms = now_ms;
        // Dropped after the lock: it may be large.
        let before = lock(&self.kept).replace(undone);
        drop(before);
    }

    /// Drops kept changes whose next page was not read in time or is below the floor. Not to be called by the commit
    /// thread: dropping them takes time.
    pub(crate) fn drop_stale(&self, floor: Revision, now_ms: u64) {
        let stale = lock(&self.kept)
            .take_if(|kept| kept.revision < floor || now_ms.saturating_sub(kept.kept_at_ms) >= KEPT_MS);
        drop(stale);
    }
}

/// Keys of a range that changed after a revision, and what they held at it.
#[derive(Debug)]
pub(crate) struct Undone {
    range: KeyRange,
    revision: Revision,
    /// Changes up to here are undone.
    newest: Revision,
    walked: usize,
    bytes: usize,
    /// When it was kept for the next page, in steady time.
    kept_at_ms: u64,
    past: BTreeMap<Key, Option<Entry>>,
}

/// Why a past state cannot be read.
pub(crate) enum UndoError {
    /// It is further back than a read may undo.
    TooMuch,
    /// History cannot be read.
    History(HistoryError),
}

impl From<HistoryError> for UndoError {
    fn from(error: HistoryError) -> Self {
        Self::History(error)
    }
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

    fn is_too_much(&self) -> bool {
        self.walked > MAX_UNDONE || self.bytes > MAX_UNDONE_BYTES
    }

    /// Undoes the changes up to `newest` that are not undone yet.
    pub(crate) fn extend(
        &mut self,
        view: &View<'_>,
        records: &Records,
        newest: Revision,
    ) -> Result<(), UndoError> {
        let seen = self.newest;
        if newest <= seen {
            return Ok(());
        }
        if newest.0 - self.revision.0 > MAX_UNDONE as u64 {
            return Err(UndoError::TooMuch);
        }
        let mut density = Density::after(seen);
        walk(view, seen.next(), newest, |stored, _| {
            density.follow(&stored)?;
            self.walked += 1;
            let text = stored.key.as_str();
            if self.range.contains(text) && !self.past.contains_key(text) {
                self.bytes = self.bytes.saturating_add(stored.plain_bytes());
                if self.is_too_much() {
                    return Ok(false);
                }
                let revision = stored.committed.revision;
                let event = records
                    .event(stored)
                    .map_err(|error| HistoryError::record(revision, &error))?;
                self.past.insert(event.key, event.old);
            }
            Ok(!self.is_too_much())
        })?;
        if self.is_too_much() {
            return Err(UndoError::TooMuch);
        }
        density.end(newest)?;
        self.newest = newest;
        Ok(())
    }

    /// What the changed keys after a text held.
    pub(crate) fn after(&self, text: &str) -> impl Iterator<Item = (&Key, &Option<Entry>)> {
        let from = if text.is_empty() {
            Bound::Unbounded
        } else {
            Bound::Excluded(text)
        };
        self.past.range::<str, _>((from, Bound::Unbounded))
    }
}

#[cfg(test)]
impl PastReads {
    /// How many history records were read for the kept changes; none if nothing is kept.
    pub(crate) fn kept_walked(&self) -> Option<usize> {
        lock(&self.kept).as_ref().map(|kept| kept.walked)
    }

    /// Takes all permits.
    pub(crate) fn take_all_permits(&self) -> OwnedSemaphorePermit {
        let all = u32::try_from(MAX_READS).unwrap();
        Arc::clone(&self.permits).try_acquire_many_owned(all).unwrap()
    }

    /// Whether no read runs.
    pub(crate) fn is_idle(&self) -> bool {
        self.permits.available_permits() == MAX_READS
    }
}
