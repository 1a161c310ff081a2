//! What all clients share.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::PATIENCE;
use crate::ledger::run::Run;
use crate::ledger::wire::Place;
use crate::ledger::{Ledger, Violation};
use crate::lock;
use crate::standalone::Standalone;

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
    pub(super) run: Run,
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
    /// How many requests of each writer and reader were answered.
    turns: Vec<AtomicU64>,
}

/// A writer or reader among the turns; none is waited for after its end.
pub(super) struct Turns {
    shared: Arc<Shared>,
    number: usize,
}

impl Turns {
    pub(super) fn new(shared: Arc<Shared>, number: usize) -> Self {
        Self { shared, number }
    }

    /// Counts an answered request.
    pub(super) fn next(&self) {
        if let Some(turns) = self.shared.turns.get(self.number) {
            count(turns);
        }
    }
}

impl Drop for Turns {
    fn drop(&mut self) {
        if let Some(turns) = self.shared.turns.get(self.number) {
            turns.store(u64::MAX, Ordering::Relaxed);
        }
    }
}

impl Shared {
    pub(super) fn new(
        servers: Vec<Standalone>,
        place: Place,
        ledger: Ledger,
        watchers: usize,
        others: usize,
    ) -> Self {
        Self {
            servers,
            place,
            counters: Counters::default(),
            newest: AtomicU64::new(ledger.known_to()),
            run: Run::new(ledger),
            is_hurried: AtomicBool::new(false),
            fault: AtomicU64::new(0),
            felt: Mutex::default(),
            watched: (0..watchers).map(|_| AtomicU64::new(0)).collect(),
            turns: (0..others).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// The turns of all writers and readers so far.
    pub(super) fn turns(&self) -> Vec<u64> {
        self.turns
            .iter()
            .map(|turns| turns.load(Ordering::Relaxed))
            .collect()
    }

    /// The highest revision of all responses so far.
    pub(super) fn newest(&self) -> u64 {
        self.newest.load(Ordering::SeqCst)
    }

    pub(super) fn note_revision(&self, revision: u64) {
        self.newest.fetch_max(revision, Ordering::SeqCst);
    }

    /// Waits until the ledger knows everything up to a revision.
    pub(super) async fn known_to(&self, revision: u64) -> Result<(), Violation> {
        self.run.known_to(revision, PATIENCE).await
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
        self.run
            .fault(&format!("during fault {fault}, {whose}"), violation);
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
