//! Why a read was refused, and why a watch ended early.

use std::sync::Arc;
use std::time::Duration;

use drydock_storage::{Key, Revision, StoreError};
use thiserror::Error;

use super::encode_once::EncodeError;

/// Why a get, list or watch was refused before it began.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The cache has not been filled yet: 429.
    #[error("storage is (re)initializing")]
    NotReady {
        /// When to retry; grows with the time since the start.
        retry_after: Duration,
    },
    /// The cache did not reach the newest revision in time, or too many reads of history run: 429.
    #[error("the cache is busy")]
    Busy {
        /// When to retry.
        retry_after: Duration,
    },
    /// The revision was not reached within 3 s: 504 with cause `ResourceVersionTooLarge`, retry after 1 s.
    #[error("Too large resource version: {requested}, current: {current}")]
    TooLargeResourceVersion {
        /// The requested revision.
        requested: Revision,
        /// The cache's revision.
        current: Revision,
    },
    /// The state at this revision is not kept any more: 410.
    #[error("revision {requested} has expired, the oldest is {oldest}")]
    Expired {
        /// The requested revision.
        requested: Revision,
        /// The oldest revision that can be listed.
        oldest: Revision,
    },
    /// Values that belong to the result are sealed and do not open: 500, never a shorter list. Their keys, the first ones, and
    /// why.
    #[error("values are sealed and do not open")]
    Sealed(Vec<(Key, Arc<str>)>),
    /// The store failed.
    #[error("the store cannot be read")]
    Store(#[from] StoreError),
}

/// Why a watch ended early; sent to the client as an ERROR event.
#[derive(Debug, Error)]
pub enum WatchEnd {
    /// Events after `since` are not kept any more: 410, `too old resource version: <since> (<oldest - 1>)`.
    #[error("too old resource version: {since} ({})", oldest.0.saturating_sub(1))]
    Expired {
        /// Every event up to here was sent.
        since: Revision,
        /// The oldest event that a watch can start with.
        oldest: Revision,
    },
    /// The store has not assigned the revision that the watch began after: 410, so that the client lists again.
    #[error("the resource version {requested} is not of this storage, which is at {current}: list again")]
    NeverReached {
        /// The requested revision.
        requested: Revision,
        /// The store's revision.
        current: Revision,
    },
    /// The revision required of initial events was not reached within 3 s: 504.
    #[error("Too large resource version: {requested}, current: {current}")]
    TooLargeResourceVersion {
        /// The requested revision.
        requested: Revision,
        /// The cache's revision.
        current: Revision,
    },
    /// An object cannot be encoded as requested: 500.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The store failed while events were replayed from it: 500.
    #[error("the store cannot be read")]
    Store(#[source] StoreError),
}
