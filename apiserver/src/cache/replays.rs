//! Admission of watches that read the store's history because memory does not reach back far enough.
//!
//! A watch holds a permit only while it reads one buffer, and not while its client takes it. Between two buffers its
//! stream is parked here. Each stream may hold what it has read ahead, so only a few are kept; a watch that finds its
//! stream gone opens another one at the same revision.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ReadError;
use super::lock::lock;

/// The permits and parked streams of a cache. See the module.
pub(super) struct Replays<E> {
    permits: Arc<Semaphore>,
    parked: Mutex<Parked<E>>,
    /// How long a new watch waits for a permit.
    wait: Duration,
}

struct Parked<E> {
    capacity: usize,
    /// By the id of their watch, in the order in which they were parked.
    streams: VecDeque<(u64, E)>,
}

impl<E> Replays<E> {
    /// As many permits as parked streams.
    pub(super) fn new(capacity: usize, wait: Duration) -> Self {
        Self {
            permits: Arc::new(Semaphore::new(capacity)),
            parked: Mutex::new(Parked {
                capacity,
                streams: VecDeque::new(),
            }),
            wait,
        }
    }

    /// Waits for a permit. Cancel safe.
    pub(super) async fn permit(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed; a watch that read without a permit would still be correct.
        Arc::clone(&self.permits).acquire_owned().await.ok()
    }

    /// Whether a permit can be had in time. Permits are held briefly, so that all watches that resume after a restart
    /// get one soon.
    ///
    /// # Errors
    /// [`ReadError::Busy`].
    pub(super) async fn check_admission(&self) -> Result<(), ReadError> {
        let permit = tokio::time::timeout(self.wait, self.permit()).await;
        match permit {
            Ok(_permit) => Ok(()),
            Err(_) => Err(ReadError::Busy {
                retry_after: Duration::from_secs(1),
            }),
        }
    }

    /// Keeps the stream of a watch; drops the one parked longest when there are too many.
    pub(super) fn park(&self, watch: u64, stream: E) {
        let mut parked = lock(&self.parked);
        if parked.streams.len() >= parked.capacity {
            parked.streams.pop_front();
        }
        parked.streams.push_back((watch, stream));
    }

    /// Takes the stream of a watch back, if it is still there.
    pub(super) fn unpark(&self, watch: u64) -> Option<E> {
        let mut parked = lock(&self.parked);
        let index = parked.streams.iter().position(|(of, _)| *of == watch)?;
        parked.streams.remove(index).map(|(_, stream)| stream)
    }
}
