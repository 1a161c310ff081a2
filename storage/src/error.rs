//! Errors of a store. Each variant tells the caller what to do next.

use std::time::Duration;

use thiserror::Error;

use crate::{KeyError, Revision};

/// An error of a store. The cause is in `source`.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The revision is older than what is kept: start over from the newest state.
    #[error("revision {requested} is compacted, the oldest kept is {floor}")]
    Compacted {
        /// The requested revision.
        requested: Revision,
        /// The oldest revision that can be served.
        floor: Revision,
    },
    /// The revision has not been assigned yet.
    #[error("revision {requested} is in the future, current is {current}")]
    Future {
        /// The requested revision.
        requested: Revision,
        /// The newest committed revision.
        current: Revision,
    },
    /// The queue is full or the disk cannot keep up: nothing was written, retry later.
    #[error("the store is busy, retry after {retry_after:?}")]
    Busy {
        /// How long to wait before the retry.
        retry_after: Duration,
    },
    /// The outcome of a write is unknown: it may or may not have happened.
    #[error("the outcome of the write is unknown")]
    Unknown {
        /// Why.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// Writes are refused, reads are served.
    #[error("the store is read-only: {reason}")]
    ReadOnly {
        /// Why, for people.
        reason: String,
    },
    /// The store may not grow: reads, deletes and writes that do not make a value longer are served.
    #[error("the store is full: {reason}")]
    Full {
        /// Why, for people.
        reason: String,
    },
    /// A value is larger than the store accepts.
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
    /// A key is malformed.
    #[error("malformed key")]
    Key(#[from] KeyError),
    /// A stored value failed its checks. It is named so that it can be removed or restored.
    #[error("stored data of {key} is damaged: {reason}")]
    Corrupt {
        /// The key, or the file, that is damaged.
        key: String,
        /// What is wrong, for people.
        reason: String,
    },
    /// A stored value is sealed and does not open, which says nothing about the bytes: the key may be missing from the
    /// configuration, be another one, or its service may not answer.
    #[error("stored data of {key} does not open: {reason}")]
    Sealed {
        /// The key of the object, or the part of the history.
        key: String,
        /// Why, in the words of kube-apiserver.
        reason: String,
    },
    /// A value cannot be sealed: nothing was written.
    #[error("the value cannot be sealed: {reason}")]
    NotSealed {
        /// Why, in the words of kube-apiserver.
        reason: String,
    },
    /// The engine does not work now (no space, no file handles, a disk that does not respond), which says nothing about the
    /// data: retry.
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
