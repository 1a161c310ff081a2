//! Values that are sealed and did not open when they were loaded: tried again when the encryption says that it may help, and
//! now and then.

use std::sync::atomic::Ordering;

use super::housekeeping::Stop;
use super::index::Slot;
use super::parts::{Parts, Reopening};
use super::read::engine_failed;
use crate::record::{Place, RecordError, StoredState};
use crate::{Entry, Key, StoreError, Value};

/// How many values are opened between two updates of the index.
const AT_ONCE: usize = 256;

/// How many rounds pass until the second attempt, and at most until the next one; each attempt doubles it. A key service that is
/// well may have refused one key, or not yet be asked again for one.
const ROUNDS: (u64, u64) = (2, 60);

impl Parts {
    /// Opens what did not open before, if the encryption has changed since, or some time has passed. Blocks
    /// on the disk, and on a key service; ends early once `stop` is set.
    pub(crate) fn reopen(&self, stop: &Stop) -> Result<(), StoreError> {
        let generation = self.records.seal().generation().wrapping_add(1);
        let sealed: Vec<Key> = {
            let index = self.published.index();
            index.sealed().map(|(key, _)| key.clone()).collect()
        };
        if sealed.is_empty() {
            return Ok(());
        }
        let Reopening { tried, rounds, pause } = &self.reopening;
        let passed = rounds.fetch_add(1, Ordering::AcqRel) + 1;
        let is_new = tried.swap(generation, Ordering::AcqRel) != generation;
        let waited = pause.load(Ordering::Acquire);
        if !is_new && passed < waited {
            return Ok(());
        }
        rounds.store(0, Ordering::Release);
        let next = if is_new {
            ROUNDS.0
        } else {
            waited.saturating_mul(2)
        };
        pause.store(next.min(ROUNDS.1), Ordering::Release);
        let mut opened_values = 0;
        for keys in sealed.chunks(AT_ONCE) {
            let engine = self.lifecycle.engine()?;
            let view = engine.view();
            let mut opened = Vec::new();
            for key in keys {
                if stop.is_set() {
                    return Ok(());
                }
                let record = view.state_record(key.as_str());
                let Some(record) = record.map_err(|error| engine_failed(&error))? else {
                    continue;
                };
                let Ok(stored) = StoredState::decode(key, &record) else {
                    // Of a value that was written meanwhile, or that the weekly check reports.
                    continue;
                };
                let place = stored.place();
                let slot = self.reopened(key, place, self.records.value(key, stored));
                opened_values += usize::from(matches!(slot, Slot::Whole(_)));
                opened.push((key.clone(), slot));
            }
            self.published.reopen(opened);
        }
        if opened_values > 0 {
            let left = sealed.len() - opened_values;
            tracing::info!(
                opened = opened_values,
                left,
                "sealed values open that did not open before"
            );
        }
        Ok(())
    }

    /// What a key holds whose value was read again.
    fn reopened(&self, key: &Key, place: Place, read: Result<Value, RecordError>) -> Slot {
        match read {
            Ok(value) => Slot::Whole(Entry {
                value,
                created: place.created,
                modified: place.modified,
            }),
            // It may not open for another reason now.
            Err(RecordError::Seal(error)) => Slot::Sealed(place, error.reason),
            Err(error) => {
                tracing::error!(%key, %error, "a value is damaged and set apart");
                self.metrics.checksum_failures.inc();
                Slot::Damaged(place)
            }
        }
    }
}
