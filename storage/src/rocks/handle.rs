//! The handle of an open store.

use std::sync::Arc;

use super::check::{CheckReport, check};
use super::parts::Parts;
use super::threads::Threads;
use crate::metrics::Metrics;
use crate::{Key, StoreError};

/// A store in a folder. Clones share it; when the last one is dropped the store is closed.
#[derive(Clone)]
pub struct RocksStore {
    pub(super) parts: Arc<Parts>,
    pub(super) threads: Arc<Threads>,
}

impl RocksStore {
    /// The metrics of the store.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.parts.metrics
    }

    /// The identity of the store.
    #[must_use]
    pub fn uuid(&self) -> uuid::Uuid {
        self.parts.mark.store()
    }

    /// Keys whose value failed its checksum when the store was opened, and that are still there.
    #[must_use]
    pub fn damaged(&self) -> Vec<Key> {
        self.parts.published.index().damaged().cloned().collect()
    }

    /// How many values are sealed and did not open.
    #[must_use]
    pub fn unopened(&self) -> usize {
        self.parts.published.index().sealed().count()
    }

    /// Does the periodic work once: measures the disk, drops old history, syncs the mark. Blocks.
    pub fn run_housekeeping(&self) {
        self.threads.housekeeping().once();
    }

    /// Reads every value from disk and compares it with its checksums, without pauses. Blocks.
    ///
    /// # Errors
    /// The engine cannot be read or another check is running, which says nothing about the values; the disk is nearly
    /// full; a row has a malformed key.
    pub fn check_values(&self) -> Result<CheckReport, StoreError> {
        check(&self.parts, &|_| false)
    }
}
