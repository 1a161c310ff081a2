//! Limits how many watches read history from disk at once.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many watches may read history from disk at once.
const MAX_REPLAYS: usize = 4;

/// Limits reads of history from disk.
pub(crate) struct Replays(Arc<Semaphore>);

impl Replays {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Semaphore::new(MAX_REPLAYS)))
    }

    pub(super) async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0).acquire_owned().await.ok()
    }
}
