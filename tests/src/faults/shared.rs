//! What all clients share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Result;
use tokio::sync::watch;
use tokio::time::Instant;

use super::PATIENCE;
use crate::ledger::wire::Place;
use crate::ledger::{Frame, Ledger, Rule, Violation};
use crate::lock;
use crate::standalone::Standalone;

/// More violations tell nothing new.
const MOST_VIOLATIONS: usize = 20;

/// How far the run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Clients write.
    Load,
    /// What was written arrives everywhere.
    Drain,
    /// It ends at once.
    Over,
}

/// Counts for the summary, and for faults that wait until clients have noticed them.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) writes: AtomicU64,
    pub(super) removals: AtomicU64,
    pub(super) reads: AtomicU64,
    pub(super) lists: AtomicU64,
    pub(super) events: AtomicU64,
    /// Writes that were repeated or read back since nobody knew whether they happened.
    pub(super) doubts: AtomicU64,
    /// Requests that were refused or not answered.
    pub(super) refusals: AtomicU64,
    /// Of these, the writes that were refused since etcd is full.
    pub(super) full: AtomicU64,
    /// Watches that went on at the same or another server.
    pub(super) resumed: AtomicU64,
    /// Watches whose start was compacted, so that the client listed again.
    pub(super) expired: AtomicU64,
}

pub(super) struct Shared {
    pub(super) servers: Vec<Standalone>,
    pub(super) place: Place,
    pub(super) counters: Counters,
    ledger: Mutex<Ledger>,
    known: watch::Sender<u64>,
    phase: watch::Sender<Phase>,
    /// The highest revision that any response showed: none that is requested later may show a lower one.
    newest: AtomicU64,
    /// Whether lanes write large objects without a pause.
    pub(super) is_hurried: AtomicBool,
    /// The number of the current fault.
    pub(super) fault: AtomicU64,
    /// The longest wait for a success since the last fault began, by the server that the client prefers.
    felt: Mutex<BTreeMap<usize, Duration>>,
    /// How far each watcher has read.
    pub(super) watched: Vec<AtomicU64>,
    violations: Mutex<Vec<String>>,
    epoch: Instant,
}

impl Shared {
    pub(super) fn new(servers: Vec<Standalone>, place: Place, ledger: Ledger, watchers: usize) -> Self {
        Self {
            servers,
            place,
            counters: Counters::default(),
            known: watch::Sender::new(ledger.known_to()),
            newest: AtomicU64::new(ledger.known_to()),
            ledger: Mutex::new(ledger),
            phase: watch::Sender::new(Phase::Load),
            is_hurried: AtomicBool::new(false),
            fault: AtomicU64::new(0),
            felt: Mutex::default(),
            watched: (0..watchers).map(|_| AtomicU64::new(0)).collect(),
            violations: Mutex::default(),
            epoch: Instant::now(),
        }
    }

    pub(super) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    pub(super) fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    pub(super) fn phases(&self) -> watch::Receiver<Phase> {
        self.phase.subscribe()
    }

    /// Enters a later phase.
    pub(super) fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|current| {
            phase > *current && {
                *current = phase;
                true
            }
        });
    }

    /// The time that a writer puts into its objects, in nanoseconds.
    pub(super) fn now(&self) -> u128 {
        self.epoch.elapsed().as_nanos()
    }

    /// The highest revision of all responses so far.
    pub(super) fn newest(&self) -> u64 {
        self.newest.load(Ordering::SeqCst)
    }

    pub(super) fn note_revision(&self, revision: u64) {
        self.newest.fetch_max(revision, Ordering::SeqCst);
    }

    /// Records a frame of the watch of everything.
    pub(super) fn observe(&self, frame: Frame) -> Result<(), Violation> {
        let known = {
            let mut ledger = self.ledger();
            ledger.observe(frame)?;
            ledger.known_to()
        };
        self.known.send_replace(known);
        Ok(())
    }

    /// Declares that everything has been written and observed.
    pub(super) fn close(&self) -> Result<(), Violation> {
        let closed = self.ledger().close();
        // Watchers end in either case.
        self.known.send_replace(u64::MAX);
        closed
    }

    /// The revision up to which the ledger knows everything.
    pub(super) fn known(&self) -> watch::Receiver<u64> {
        self.known.subscribe()
    }

    /// Waits until the ledger knows everything up to a revision.
    pub(super) async fn known_to(&self, revision: u64) -> Result<(), Violation> {
        let mut known = self.known();
        let waited = tokio::time::timeout(PATIENCE, known.wait_for(|known| *known >= revision)).await;
        match waited {
            Ok(_) => Ok(()),
            Err(_) => Err(Violation::new(
                Rule::Complete,
                format!("the watch of everything has not reached {revision}"),
            )),
        }
    }

    /// Records how long a client waited for a success.
    pub(super) fn record_wait(&self, home: usize, took: Duration) {
        let mut felt = lock(&self.felt);
        let longest = felt.entry(home).or_default();
        *longest = took.max(*longest);
    }

    /// The longest waits since the last call.
    pub(super) fn take_waits(&self) -> BTreeMap<usize, Duration> {
        std::mem::take(&mut *lock(&self.felt))
    }

    /// Records a broken rule; too many end the run.
    pub(super) fn violation(&self, whose: &str, violation: &anyhow::Error) {
        let fault = self.fault.load(Ordering::Relaxed);
        let mut violations = lock(&self.violations);
        violations.push(format!("during fault {fault}, {whose}: {violation:#}"));
        if violations.len() >= MOST_VIOLATIONS {
            drop(violations);
            self.enter(Phase::Over);
        }
    }

    pub(super) fn violations(&self) -> Vec<String> {
        lock(&self.violations).clone()
    }

    pub(super) fn counts(&self) -> String {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.counters;
        format!(
            "{} writes of which {} deletes, {} in doubt; {} gets, {} lists; {} events, {} watches resumed, {} expired; \
             {} requests refused or unanswered, {} since etcd was full",
            read(&counters.writes),
            read(&counters.removals),
            read(&counters.doubts),
            read(&counters.reads),
            read(&counters.lists),
            read(&counters.events),
            read(&counters.resumed),
            read(&counters.expired),
            read(&counters.refusals),
            read(&counters.full),
        )
    }
}

/// Counts one more.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
