//! What do all tasks of a soak have in common?

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use http::StatusCode;
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, sleep};

use super::settings::Settings;
use crate::ledger::wire::Place;
use crate::ledger::{Fault, Frame, Ledger, Rule};
use crate::load::{Answer, Call, Histogram, Sender};

/// So many faults are kept; then the soak ends.
const MOST_FAULTS: u64 = 20;
/// Watches that are being opened at a time, up to the end of what they are shown first.
const OPENING: usize = 64;
/// When the server says that it is busy.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// How far the soak is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Everybody does what they do.
    Load,
    /// Nothing is written any more; watches deliver what they owe.
    Drain,
    /// Something is broken beyond use.
    Over,
}

/// What was done since the last look.
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

/// The common state.
pub(super) struct Shared {
    pub(super) settings: Settings,
    pub(super) place: Place,
    pub(super) counters: Counters,
    pub(super) opening: Semaphore,
    epoch: Instant,
    ledger: Mutex<Ledger>,
    /// Up to which revision the ledger knows everything.
    known: watch::Sender<u64>,
    phase: watch::Sender<Phase>,
    /// When which revision was known, once a second.
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

    /// Goes on to a later phase.
    pub(super) fn enter(&self, phase: Phase) {
        self.phase.send_if_modified(|current| {
            phase > *current && {
                *current = phase;
                true
            }
        });
    }

    /// What the one watch has delivered.
    pub(super) fn tell(&self, frame: Frame) -> Result<(), Fault> {
        let known = {
            let mut ledger = self.ledger();
            ledger.tell(frame)?;
            ledger.known_to()
        };
        self.known.send_replace(known);
        Ok(())
    }

    /// Says that everything has been written and told.
    pub(super) fn close(&self) -> Result<(), Fault> {
        self.ledger().close()?;
        self.known.send_replace(u64::MAX);
        Ok(())
    }

    /// Up to which revision the ledger knows everything: the largest number when it is closed.
    pub(super) fn known(&self) -> watch::Receiver<u64> {
        self.known.subscribe()
    }

    /// Waits until the ledger knows everything up to a revision.
    pub(super) async fn known_to(&self, revision: u64) -> Result<(), Fault> {
        let mut known = self.known();
        let waited = tokio::time::timeout(
            self.settings.patience(),
            known.wait_for(|known| *known >= revision),
        );
        match waited.await {
            Ok(_) => Ok(()),
            Err(_) => Err(Fault::new(
                Rule::Complete,
                format!("the watch of everything has not come to {revision}"),
            )),
        }
    }

    /// Notes which revision is known now; forgets what is too old to be asked for.
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

    /// The newest revision that was known so long ago.
    pub(super) fn revision_before(&self, ago: Duration) -> Option<u64> {
        let now = Instant::now();
        let marks = lock(&self.marks);
        let index = marks.partition_point(|(at, _)| now - *at >= ago);
        let (_, revision) = marks.get(index.checked_sub(1)?)?;
        Some(*revision)
    }

    /// What a writer says of the time.
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

    /// Times of writes and lags of events since the last look.
    pub(super) fn take_times(&self) -> (Histogram, Histogram) {
        let take = |times: &Mutex<Histogram>| std::mem::take(&mut *lock(times));
        (take(&self.latencies), take(&self.lags))
    }

    /// Notes a fault; too many end the soak.
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

    /// Sends a request until the server is not too busy for it; the answer must be a success.
    pub(super) async fn send(&self, sender: &mut Sender, call: &Call) -> Result<Answer> {
        loop {
            let answer = sender.send_keeping(call.clone(), usize::MAX).await?;
            if answer.status != StatusCode::TOO_MANY_REQUESTS {
                return answer.succeeded();
            }
            self.put_off().await;
        }
    }

    pub(super) async fn put_off(&self) {
        self.counters.put_off.fetch_add(1, Ordering::Relaxed);
        sleep(RETRY_AFTER).await;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
