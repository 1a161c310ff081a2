//! What a connection is doing, for the detection of slow and idle clients.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use tokio::time::Instant;

use super::outgoing::Outgoing;

/// The requests of a connection.
#[derive(Debug)]
pub(super) struct Activity {
    /// How many are in flight.
    pub(super) requests: AtomicUsize,
    stage: Mutex<Stage>,
    /// Their responses.
    pub(super) outgoing: Outgoing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// No request is in flight, since then.
    Idle(Instant),
    /// Part of a header block has arrived, since then.
    Head(Instant),
    /// Requests are in flight.
    Busy,
}

impl Activity {
    pub(super) fn new(stage: Stage, outgoing: Outgoing) -> Arc<Self> {
        Arc::new(Self {
            requests: AtomicUsize::new(0),
            stage: Mutex::new(stage),
            outgoing,
        })
    }

    pub(super) fn set(&self, next: impl FnOnce(Stage) -> Stage) {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        *stage = next(*stage);
    }

    pub(super) fn stage(&self) -> Stage {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn begin(self: &Arc<Self>) -> Busy {
        if self.requests.fetch_add(1, Ordering::AcqRel) == 0 {
            self.set(|_| Stage::Busy);
        }
        Busy(Arc::clone(self))
    }
}

/// Held by a request and the body of its response.
pub(super) struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        if self.0.requests.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.set(|_| Stage::Idle(Instant::now()));
        }
    }
}
