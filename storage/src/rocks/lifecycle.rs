//! The state of an open store: which operations it serves, and the engine while it is open.
//!
//! After a failed or doubtful sync the kernel may have dropped dirty pages, so a later sync that succeeds proves nothing.
//! The store is then *poisoned*: it accepts no more writes and serves reads of published state until the process ends;
//! only the next start finds out what is on disk. The first reason is kept.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use prometheus_client::metrics::gauge::Gauge;

use super::column_families::Engine;
use crate::sync::lock;
use crate::{Health, StoreError};

const SOUND: u8 = 0;
const READ_ONLY: u8 = 1;
const POISONED: u8 = 2;
const CLOSED: u8 = 3;

/// The state of an open store. It only gets worse, except that a store opened on a full disk may become writable.
pub(crate) struct Lifecycle {
    /// One of the constants above; every read and write checks it.
    condition: AtomicU8,
    /// Why the condition is not [`SOUND`].
    reason: Mutex<String>,
    /// None once the store is closed.
    engine: Mutex<Option<Arc<Engine>>>,
    /// Writes no longer wait for a stalled engine.
    gives_up_on_stalls: AtomicBool,
    gauge: Gauge,
}

impl Lifecycle {
    pub(crate) fn new(engine: Option<Arc<Engine>>, gauge: Gauge) -> Self {
        Self {
            condition: AtomicU8::new(SOUND),
            reason: Mutex::new(String::new()),
            engine: Mutex::new(engine),
            gives_up_on_stalls: AtomicBool::new(false),
            gauge,
        }
    }

    /// The open engine. Callers drop it soon: closing waits for them.
    pub(crate) fn engine(&self) -> Result<Arc<Engine>, StoreError> {
        lock(&self.engine).as_ref().map(Arc::clone).ok_or_else(closed)
    }

    /// Takes the engine out, to close it; none if that was done before.
    pub(crate) fn take_engine(&self) -> Option<Arc<Engine>> {
        lock(&self.engine).take()
    }

    /// Makes the commit thread drop what a stalled engine does not accept.
    pub(crate) fn give_up_on_stalls(&self) {
        self.gives_up_on_stalls.store(true, Ordering::Release);
    }

    /// Whether a write should not wait for a stalled engine.
    pub(crate) fn has_given_up(&self) -> bool {
        self.gives_up_on_stalls.load(Ordering::Acquire) || self.is_poisoned()
    }

    fn condition(&self) -> u8 {
        self.condition.load(Ordering::Acquire)
    }

    fn worsen(&self, condition: u8, reason: &str) {
        let mut kept = lock(&self.reason);
        if self.condition() < condition {
            reason.clone_into(&mut kept);
            // An orderly close is no failure.
            if condition != CLOSED {
                self.gauge.set(i64::from(condition));
            }
            self.condition.store(condition, Ordering::Release);
        }
    }

    fn reason(&self) -> String {
        lock(&self.reason).clone()
    }

    /// Refuses writes from now on: the outcome of one is unknown.
    pub(crate) fn poison(&self, reason: &str) {
        tracing::error!(reason, "the store accepts no more writes");
        self.worsen(POISONED, reason);
    }

    /// Refuses writes until [`Lifecycle::allow_writes`].
    pub(crate) fn forbid_writes(&self, reason: &str) {
        tracing::warn!(reason, "the store is read-only");
        self.worsen(READ_ONLY, reason);
    }

    /// Reverts [`Lifecycle::forbid_writes`]; a poisoned store stays poisoned.
    pub(crate) fn allow_writes(&self) {
        let _kept = lock(&self.reason);
        if self.condition() == READ_ONLY {
            self.gauge.set(i64::from(SOUND));
            self.condition.store(SOUND, Ordering::Release);
        }
    }

    /// Refuses everything from now on.
    pub(crate) fn close(&self) {
        self.worsen(CLOSED, "closed by its owner");
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.condition() == CLOSED
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.condition() == READ_ONLY
    }

    pub(crate) fn is_poisoned(&self) -> bool {
        self.condition() == POISONED
    }

    /// Whether reads are served.
    pub(crate) fn check_readable(&self) -> Result<(), StoreError> {
        if self.is_closed() { Err(closed()) } else { Ok(()) }
    }

    /// Whether writes are served.
    pub(crate) fn check_writable(&self) -> Result<(), StoreError> {
        match self.condition() {
            SOUND => Ok(()),
            CLOSED => Err(closed()),
            _ => Err(StoreError::ReadOnly {
                reason: self.reason(),
            }),
        }
    }

    /// The error of a write that was not attempted again: the store is poisoned or closing.
    pub(crate) fn refusal(&self) -> StoreError {
        self.check_writable().err().unwrap_or_else(closed)
    }

    pub(crate) fn health(&self) -> Health {
        match self.condition() {
            SOUND => Health::Ready,
            READ_ONLY => Health::ReadOnly(self.reason()),
            _ => Health::Failed(self.reason()),
        }
    }
}

pub(crate) fn closed() -> StoreError {
    StoreError::Closed {
        reason: "closed by its owner".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_failure_is_kept_and_reads_go_on() {
        let gauge = Gauge::default();
        let lifecycle = Lifecycle::new(None, gauge.clone());
        lifecycle.check_writable().unwrap();
        lifecycle.forbid_writes("disk full");
        assert_eq!(lifecycle.health(), Health::ReadOnly("disk full".to_owned()));
        lifecycle.allow_writes();
        assert_eq!(lifecycle.health(), Health::Ready);
        lifecycle.poison("sync failed");
        lifecycle.poison("again");
        lifecycle.forbid_writes("later");
        lifecycle.allow_writes();
        assert_eq!(lifecycle.health(), Health::Failed("sync failed".to_owned()));
        assert!(matches!(
            lifecycle.check_writable(),
            Err(StoreError::ReadOnly { .. })
        ));
        lifecycle.check_readable().unwrap();
        lifecycle.close();
        assert!(matches!(
            lifecycle.check_readable(),
            Err(StoreError::Closed { .. })
        ));
        assert_eq!(gauge.get(), i64::from(POISONED));
    }

    #[test]
    fn an_orderly_close_is_no_failure() {
        let gauge = Gauge::default();
        let lifecycle = Lifecycle::new(None, gauge.clone());
        lifecycle.close();
        assert_eq!(gauge.get(), i64::from(SOUND));
    }
}
