//! What do all tasks of a soak have in common?

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use anyhow::Result;
use http::StatusCode;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep};

use super::settings::Settings;
use crate::ledger::wire::Place;
use crate::ledger::{Frame, Ledger, Rule, Violation};
use crate::load::{Call, Histogram, Response, Sender};
use crate::lock;

/// The soak ends after so many faults.
const MOST_FAULTS: u64 = 20;
/// Watches opened at a time; one counts until its initial events have ended.
const OPENING: usize = 64;
/// The wait after a 429.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The phases of a soak, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// The full load.
    Load,
    /// No more writes; watches deliver the remaining events.
    Drain,
    /// The soak cannot go on.
    Over,
}

/// Counts since the start.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) writes: AtomicU64,
    pub(super) events: AtomicU64,
    pub(super) bookmarks: AtomicU64,
    pub(super) watches: AtomicU64,
    pub(super) resumed: AtomicU64,
    pub(super) timed_out: AtomicU64,
    pub(super) lists: AtomicU64,
    pub(super) listed: AtomicU64,
    pub(super) past: AtomicU64,
    pub(super) expired: AtomicU64,
    pub(super) backups: AtomicU64,
    pub(super) put_off: AtomicU64,
}

/// The state that all tasks share.
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) place: Place,
    pub(super) counters: Counters,
    pub(super) opening: Semaphore,
    epoch: Instant,
    ledger: Mutex<Ledger>,
    /// The revision up to which the ledger knows everything.
    known: watch::Sender<u64>,
    phase: watch::Sender<Phase>,
    /// The known revision, once a second.
    marks: Mutex<VecDeque<(Instant, u64)>>,
    latencies: Mutex<Histogram>,
    lags: Mutex<Histogram>,
    faults: Mutex<Vec<String>>,
    fault_count: AtomicU64,
}

impl Shared {
    pub(super) fn new(settings: Settings, place: Place, ledger: Ledger) -> Self {
        Self {
            settings,
            place,
            counters: Counters::default(),
            opening: Semaphore::new(OPENING),
            epoch: Instant::now(),
            known: watch::Sender::new(ledger.known_to()),
            ledger: Mutex::new(ledger),
            phase: watch::Sender::new(Phase::Load),
            marks: Mutex::default(),
            latencies: Mutex::default(),
            lags: Mutex::default(),
            faults: Mutex::default(),
            fault_count: AtomicU64::new(0),
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
        self.ledger().close()?;
        self.known.send_replace(u64::MAX);
        Ok(())
    }

    /// The revision up to which the ledger knows everything: the largest number once it is closed.
    pub(super) fn known(&self) -> watch::Receiver<u64> {
        self.known.subscribe()
    }

    /// Waits until the ledger knows everything up to a revision.
    pub(super) async fn known_to(&self, revision: u64) -> Result<(), Violation> {
        let mut known = self.known();
        let waited = tokio::time::timeout(
            self.settings.patience(),
            known.wait_for(|known| *known >= revision),
        );
        match waited.await {
            Ok(_) => Ok(()),
            Err(_) => Err(Violation::new(
                Rule::Complete,
                format!("the watch of everything has not reached {revision}"),
            )),
        }
    }

    /// Records the revision that is known now; drops marks and events that are too old to be needed.
    pub(super) fn mark(&self) {
        let now = Instant::now();
        let oldest = 2 * self.settings.memory() + 2 * self.settings.window;
        let mut marks = lock(&self.marks);
        marks.push_back((now, *self.known.borrow()));
        while marks.front().is_some_and(|(at, _)| now - *at > oldest) {
            marks.pop_front();
        }
        drop(marks);
        if let Some(revision) = self.revision_before(self.settings.memory()) {
            self.ledger().forget_before(revision);
        }
    }

    /// The newest revision that was known at that time.
    pub(super) fn revision_before(&self, ago: Duration) -> Option<u64> {
        let now = Instant::now();
        let marks = lock(&self.marks);
        let index = marks.partition_point(|(at, _)| now - *at >= ago);
        let (_, revision) = marks.get(index.checked_sub(1)?)?;
        Some(*revision)
    }

    /// The time that a writer puts into its objects, in nanoseconds.
    pub(super) fn now(&self) -> u128 {
        self.epoch.elapsed().as_nanos()
    }

    pub(super) fn record_write(&self, took: Duration) {
        self.counters.writes.fetch_add(1, Ordering::Relaxed);
        lock(&self.latencies).record(took);
    }

    pub(super) fn record_event(&self, sent: Option<u64>) {
        self.counters.events.fetch_add(1, Ordering::Relaxed);
        if let Some(sent) = sent {
            let lag = self.epoch.elapsed().saturating_sub(Duration::from_nanos(sent));
            lock(&self.lags).record(lag);
        }
    }

    /// Takes the latencies of writes and the lags of events since the last call.
    pub(super) fn take_times(&self) -> (Histogram, Histogram) {
        let take = |times: &Mutex<Histogram>| std::mem::take(&mut *lock(times));
        (take(&self.latencies), take(&self.lags))
    }

    /// Records a fault; too many end the soak.
    pub(super) fn fault(&self, whose: &str, fault: &anyhow::Error) {
        let count = self.fault_count.fetch_add(1, Ordering::Relaxed) + 1;
        if count <= MOST_FAULTS {
            lock(&self.faults).push(format!("{whose}: {fault:#}"));
        }
        if count >= MOST_FAULTS {
            self.enter(Phase::Over);
        }
    }

    /// The first faults.
    pub(super) fn faults(&self) -> Vec<String> {
        lock(&self.faults).clone()
    }

    pub(super) fn fault_count(&self) -> u64 {
        self.fault_count.load(Ordering::Relaxed)
    }

    /// Sends a request, again after each 429; the response must be a success.
    pub(super) async fn send(&self, sender: &mut Sender, call: &Call) -> Result<Response> {
        loop {
            let response = sender.send_keeping(call.clone(), usize::MAX).await?;
            if response.status != StatusCode::TOO_MANY_REQUESTS {
                return response.succeeded();
            }
            self.back_off().await;
        }
    }

    pub(super) async fn back_off(&self) {
        self.counters.put_off.fetch_add(1, Ordering::Relaxed);
        sleep(RETRY_AFTER).await;
    }
}
