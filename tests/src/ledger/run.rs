//! A run that a ledger judges: its phases, how far the ledger knows everything, and the rules that were broken.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use super::{Frame, Ledger, Rule, Violation};
use crate::lock;

/// More faults tell nothing new: a run ends after so many.
const MOST_FAULTS: u64 = 20;

/// The phases of a run, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Clients write.
    Load,
    /// No more writes; what was written arrives everywhere.
    Drain,
    /// The run ends at once.
    Over,
}

/// What all tasks of a run share, whatever it does.
pub(crate) struct Run {
    epoch: Instant,
    ledger: Mutex<Ledger>,
    /// The revision up to which the ledger knows everything.
    known: watch::Sender<u64>,
    phase: watch::Sender<Phase>,
    faults: Mutex<Vec<String>>,
    fault_count: AtomicU64,
}

impl Run {
    pub(crate) fn new(ledger: Ledger) -> Self {
        Self {
            epoch: Instant::now(),
            known: watch::Sender::new(ledger.known_to()),
            ledger: Mutex::new(ledger),
            phase: watch::Sender::new(Phase::Load),
            faults: Mutex::default(),
            fault_count: AtomicU64::new(0),
        }
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    pub(crate) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    pub(crate) fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Enters a later phase.
    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|current| {
            phase > *current && {
                *current = phase;
                true
            }
        });
    }

    /// The time since the run began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// The time that a writer puts into its objects, in nanoseconds.
    pub(crate) fn now(&self) -> u128 {
        self.elapsed().as_nanos()
    }

    /// Records a frame of the watch of everything.
    pub(crate) fn observe(&self, frame: Frame) -> Result<(), Violation> {
        let known = {
            let mut ledger = self.ledger();
            ledger.observe(frame)?;
            ledger.known_to()
        };
        self.known.send_replace(known);
        Ok(())
    }

    /// Declares that everything has been written and observed.
    pub(crate) fn close(&self) -> Result<(), Violation> {
        let closed = self.ledger().close();
        // Watchers end in either case.
        self.known.send_replace(u64::MAX);
        closed
    }

    /// The revision up to which the ledger knows everything: the largest number once it is closed.
    pub(crate) fn known(&self) -> watch::Receiver<u64> {
        self.known.subscribe()
    }

    /// Waits until the ledger knows everything up to a revision.
    pub(crate) async fn known_to(&self, revision: u64, patience: Duration) -> Result<(), Violation> {
        let mut known = self.known();
        match timeout(patience, known.wait_for(|known| *known >= revision)).await {
            Ok(_) => Ok(()),
            Err(_) => Err(Violation::new(
                Rule::Complete,
                format!("the watch of everything has not reached {revision}"),
            )),
        }
    }

    /// Records a fault; too many end the run.
    pub(crate) fn fault(&self, whose: &str, fault: &anyhow::Error) {
        let count = self.fault_count.fetch_add(1, Ordering::Relaxed) + 1;
        if count <= MOST_FAULTS {
            lock(&self.faults).push(format!("{whose}: {fault:#}"));
        }
        if count >= MOST_FAULTS {
            self.enter(Phase::Over);
        }
    }

    /// The first faults.
    pub(crate) fn faults(&self) -> Vec<String> {
        lock(&self.faults).clone()
    }

    pub(crate) fn fault_count(&self) -> u64 {
        self.fault_count.load(Ordering::Relaxed)
    }
}
