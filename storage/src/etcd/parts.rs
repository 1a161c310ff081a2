//! What the handles and tasks of a store share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use etcd_client::KeyValue;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::floors::KnownFloors;
use super::keyspace::Keyspace;
use super::marker::Marker;
use super::members::Members;
use super::metrics::EtcdMetrics;
use super::options::EtcdOptions;
use super::waiting::Waiting;
use crate::record::{RecordError, Records};
use crate::{Entry, Health, Key, Revision, StoreError, Value};

/// See the module.
pub(super) struct Parts {
    pub(super) options: EtcdOptions,
    pub(super) keys: Keyspace,
    pub(super) members: Members,
    pub(super) marker: Marker,
    pub(super) records: Records,
    pub(super) floors: KnownFloors,
    pub(super) metrics: EtcdMetrics,
    /// Reads of the current revision that wait.
    pub(super) waiting: Waiting,
    /// Counts requests for progress.
    pub(super) pulse: watch::Sender<u64>,
    /// The newest revision for which progress was requested on its own.
    pub(super) pulsed: AtomicU64,
    /// Ends every task and watch.
    pub(super) closed: CancellationToken,
}

/// A value of etcd could not be read.
pub(super) struct Unreadable {
    pub(super) key: Key,
    pub(super) error: RecordError,
}

impl From<Unreadable> for StoreError {
    fn from(found: Unreadable) -> Self {
        found.error.of_read(found.key.as_str())
    }
}

/// A revision of etcd.
pub(super) fn revision(number: i64) -> Revision {
    Revision(u64::try_from(number).unwrap_or_default())
}

/// A revision as etcd has it; one that it never assigns if it does not fit.
pub(super) fn number(revision: Revision) -> i64 {
    i64::try_from(revision.0).unwrap_or(i64::MAX)
}

impl Parts {
    /// Whether the store is open.
    pub(super) fn check_open(&self) -> Result<(), StoreError> {
        if self.closed.is_cancelled() {
            return Err(StoreError::Closed {
                reason: "closed by its owner".to_owned(),
            });
        }
        Ok(())
    }

    /// Which operations are served.
    pub(super) fn health(&self) -> Health {
        if let Some(reason) = self.members.failed() {
            return Health::Failed(reason.to_owned());
        }
        if self.closed.is_cancelled() {
            return Health::Failed("closed by its owner".to_owned());
        }
        match self.members.outage() {
            Some(reason) => Health::Unreachable(format!("no member of etcd serves: {reason}")),
            None => Health::Ready,
        }
    }

    /// The value of a key.
    pub(super) fn value(&self, key: &Key, bytes: &[u8]) -> Result<Value, Unreadable> {
        let bytes = Bytes::copy_from_slice(bytes);
        self.records.unplaced_value(key, &bytes).map_err(|error| {
            if error.is_damage() {
                self.metrics.checksum_failures.inc();
            }
            Unreadable {
                key: key.clone(),
                error,
            }
        })
    }

    /// The entry of a key.
    pub(super) fn entry(&self, key: &Key, stored: &KeyValue) -> Result<Entry, Unreadable> {
        Ok(Entry {
            value: self.value(key, stored.value())?,
            created: revision(stored.create_revision()),
            modified: revision(stored.mod_revision()),
        })
    }

    /// Asks every watch for progress.
    pub(super) fn request_progress(&self) {
        self.pulse.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Asks every watch for progress if `current` is news: watches of quiet ranges then reach it without waiting.
    pub(super) fn announce(&self, current: Revision) {
        self.metrics.revision.set(number(current));
        if self.pulsed.fetch_max(current.0, Ordering::AcqRel) < current.0 {
            self.request_progress();
        }
    }
}

/// The parts, shared.
pub(super) type Shared = Arc<Parts>;
