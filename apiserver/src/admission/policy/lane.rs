//! How many expressions of policies are evaluated at a time.

use std::sync::Arc;

use drydock_machinery::policy_expression::THREADS;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Places for evaluations.
#[derive(Clone)]
pub(super) struct Lane(Arc<Semaphore>);

impl Lane {
    /// The places of all policies: one for each thread.
    pub(super) fn of_all() -> Self {
        Self(Arc::new(Semaphore::new(THREADS)))
    }

    /// The places of one policy: half as many as there are threads, so that a policy whose expressions take long delays only
    /// the writes that it is for.
    pub(super) fn of_one() -> Self {
        Self(Arc::new(Semaphore::new(THREADS / 2)))
    }

    /// Waits for a place, which is kept until it is dropped.
    pub(super) async fn place(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed. If it were, only the threads would be the limit.
        Arc::clone(&self.0).acquire_owned().await.ok()
    }
}
