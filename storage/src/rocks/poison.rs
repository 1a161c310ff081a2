//! What if a write fails in doubt?
//!
//! After a failed or doubtful sync the kernel may have dropped the dirty pages, so a later sync that succeeds
//! proves nothing. Then the store takes no more writes: it serves reads of what was published until the process
//! ends, and only a reopen tells the truth. The first reason stays.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, PoisonError};

use prometheus_client::metrics::gauge::Gauge;

use crate::{Health, StoreError};

const SOUND: u8 = 0;
const READ_ONLY: u8 = 1;
const POISONED: u8 = 2;
const CLOSED: u8 = 3;

/// The health of a store. But for a disk that was full at the start, it only gets worse.
#[derive(Debug)]
pub(crate) struct Poison {
    /// One of the constants above; every read and write looks at it.
    condition: AtomicU8,
    /// Why it is not sound any more.
    reason: Mutex<String>,
    gauge: Gauge,
}

impl Poison {
    pub(crate) fn new(gauge: Gauge) -> Self {
        Self {
            condition: AtomicU8::new(SOUND),
            reason: Mutex::new(String::new()),
            gauge,
        }
    }

    fn condition(&self) -> u8 {
        self.condition.load(Ordering::Acquire)
    }

    fn worsen(&self, condition: u8, reason: &str) {
        let mut kept = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        if self.condition() < condition {
            reason.clone_into(&mut kept);
            // An orderly end is no failure.
            if condition != CLOSED {
                self.gauge.set(i64::from(condition));
            }
            self.condition.store(condition, Ordering::Release);
        }
    }

    fn reason(&self) -> String {
        self.reason.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// No more writes: one ended in doubt.
    pub(crate) fn poison(&self, reason: &str) {
        tracing::error!(reason, "the store takes no more writes");
        self.worsen(POISONED, reason);
    }

    /// No writes from the start, and why.
    pub(crate) fn forbid_writes(&self, reason: &str) {
        tracing::warn!(reason, "the store is read-only");
        self.worsen(READ_ONLY, reason);
    }

    /// What forbade writes is gone. Doubt never goes.
    pub(crate) fn allow_writes(&self) {
        let _kept = self.reason.lock().unwrap_or_else(PoisonError::into_inner);
        if self.condition() == READ_ONLY {
            self.gauge.set(i64::from(SOUND));
            self.condition.store(SOUND, Ordering::Release);
        }
    }

    /// Nothing any more: the owner closed the store.
    pub(crate) fn close(&self) {
        self.worsen(CLOSED, "closed by its owner");
    }

    /// Whether the store has been closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.condition() == CLOSED
    }

    /// Whether writes were forbidden from the start, and nothing worse has happened.
    pub(crate) fn is_read_only(&self) -> bool {
        self.condition() == READ_ONLY
    }

    /// Whether a write ended in doubt.
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
    fn the_first_doubt_stays_and_reads_go_on() {
        let gauge = Gauge::default();
        let poison = Poison::new(gauge.clone());
        poison.check_writable().unwrap();
        poison.forbid_writes("disk full");
        assert_eq!(poison.health(), Health::ReadOnly("disk full".to_owned()));
        poison.allow_writes();
        assert_eq!(poison.health(), Health::Ready);
        poison.poison("sync failed");
        poison.poison("again");
        poison.forbid_writes("later");
        poison.allow_writes();
        assert_eq!(poison.health(), Health::Failed("sync failed".to_owned()));
        assert!(matches!(
            poison.check_writable(),
            Err(StoreError::ReadOnly { .. })
        ));
        poison.check_readable().unwrap();
        poison.close();
        assert!(matches!(poison.check_readable(), Err(StoreError::Closed { .. })));
        assert_eq!(gauge.get(), i64::from(POISONED));
    }

    #[test]
    fn an_orderly_end_is_no_failure() {
        let gauge = Gauge::default();
        let poison = Poison::new(gauge.clone());
        poison.close();
        assert_eq!(gauge.get(), i64::from(SOUND));
    }
}
