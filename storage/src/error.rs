//! What may go wrong, said as what the caller does next.

use std::time::Duration;

use thiserror::Error;

use crate::{KeyError, Revision};

/// A refusal of the store. Each variant says what to do; what broke is in `source`.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The revision lies before what is kept: start over from the newest state.
    #[error("revision {requested} is compacted, the oldest kept is {floor}")]
    Compacted {
        /// What was asked for.
        requested: Revision,
        /// The oldest revision that can be served.
        floor: Revision,
    },
    /// The revision has not been reached.
    #[error("revision {requested} lies in the future, current is {current}")]
    Future {
        /// What was asked for.
        requested: Revision,
        /// The newest committed revision.
        current: Revision,
    },
    /// Queues are full or the disk cannot keep up: nothing happened, try again later.
    #[error("the store is busy, retry after {retry_after:?}")]
    Busy {
        /// How long to wait before another try.
        retry_after: Duration,
    },
    /// The outcome of a write is not known: it may or may not have happened.
    #[error("the outcome of the write is unknown")]
    Unknown {
        /// Why.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// Writes are refused, reads go on.
    #[error("the store is read-only: {reason}")]
    ReadOnly {
        /// Why, for people.
        reason: String,
    },
    /// There is no room for more: reads, deletes and writes that do not grow go on.
    #[error("the store is full: {reason}")]
    Full {
        /// Why, for people.
        reason: String,
    },
    /// A value is larger than the store takes.
    #[error("the value has {found} bytes, the limit is {limit}")]
    TooLarge {
        /// Its size in bytes.
        found: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// [`Store::remove_damaged`](crate::Store::remove_damaged) of a key that is absent or whose value can be read.
    #[error("the value of the key is not damaged")]
    NotDamaged,
    /// A key that was read or given is not well formed.
    #[error("malformed key")]
    Key(#[from] KeyError),
    /// A stored value failed its checks. Its key is named so that it can be removed or restored.
    #[error("stored data of {key} is damaged: {reason}")]
    Corrupt {
        /// The key, or the file, that is damaged.
        key: String,
        /// What was found, for people.
        reason: String,
    },
    /// The engine does not do its work at the moment (no room, no file handle, a disk that does not answer), which says
    /// nothing about the data: try again.
    #[error("the storage engine is not available: {reason}")]
    Unavailable {
        /// Why, for people.
        reason: String,
    },
    /// The store has been closed or has failed; only a restart helps.
    #[error("the store is closed: {reason}")]
    Closed {
        /// Why, for people.
        reason: String,
    },
}
