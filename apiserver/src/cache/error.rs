//! Why was a read refused, and how did a watch end?

use std::time::Duration;

use drydock_storage::{Revision, StoreError};
use thiserror::Error;

use super::encode_once::EncodeError;

/// Why a list, get or watch was refused before it began.
#[derive(Debug, Error)]
pub enum ReadError {
    /// The cache has not been filled yet: 429.
    #[error("storage is (re)initializing")]
    NotReady {
        /// When to try again; grows the longer it takes.
        retry_after: Duration,
    },
    /// The cache did not reach the newest revision in time, or too many replays run: 429.
    #[error("the cache is busy")]
    Busy {
        /// When to try again.
        retry_after: Duration,
    },
    /// The revision was not reached within 3 s: 504 with cause `ResourceVersionTooLarge`, retry after 1 s.
    #[error("Too large resource version: {requested}, current: {current}")]
    TooLargeResourceVersion {
        /// What was asked for.
        requested: Revision,
        /// What the cache has.
        current: Revision,
    },
    /// The revision is not kept any more: 410.
    #[error("revision {requested} has expired, the oldest is {oldest}")]
    Expired {
        /// What was asked for.
        requested: Revision,
        /// The oldest that can be listed.
        oldest: Revision,
    },
    /// The store failed.
    #[error("the store cannot be read")]
    Store(#[from] StoreError),
}

/// Why a watch ended in the middle; told to the client in an ERROR event.
#[derive(Debug, Error)]
pub enum WatchEnd {
    /// Events after `since` are not kept any more: 410, `too old resource version: <since> (<oldest - 1>)`.
    #[error("too old resource version: {since} ({})", oldest.0.saturating_sub(1))]
    Expired {
        /// The last revision the watcher knows.
        since: Revision,
        /// The oldest event that can be watched from.
        oldest: Revision,
    },
    /// The revision asked for with initial events was not reached within 3 s: 504.
    #[error("Too large resource version: {requested}, current: {current}")]
    TooLargeResourceVersion {
        /// What was asked for.
        requested: Revision,
        /// What the cache has.
        current: Revision,
    },
    /// An object cannot be shown in the asked form: 500.
    #[error(transparent)]
    Encode(#[from] EncodeError),
    /// The store failed while events were replayed from it: 500.
    #[error("the store cannot be read")]
    Store(#[source] StoreError),
}
