//! What do all tasks of a soak have in common?

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use http::StatusCode;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use super::settings::Settings;
use crate::ledger::run::Run;
use crate::ledger::wire::Place;
use crate::ledger::{Ledger, Violation};
use crate::load::{Call, Histogram, Response, Sender};
use crate::lock;

/// Watches opened at a time; one counts until its initial events have ended.
const OPENING: usize = 64;
/// The wait after a 429.
const RETRY_AFTER: Duration = Duration::from_secs(1);

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
    pub(super) run: Run,
    /// The known revision, once a second.
    marks: Mutex<VecDeque<(Instant, u64)>>,
    latencies: Mutex<Histogram>,
    lags: Mutex<Histogram>,
}

impl Shared {
    pub(super) fn new(settings: Settings, place: Place, ledger: Ledger) -> Self {
        Self {
            settings,
            place,
            counters: Counters::default(),
            opening: Semaphore::new(OPENING),
            run: Run::new(ledger),
            marks: Mutex::default(),
            latencies: Mutex::default(),
            lags: Mutex::default(),
        }
    }

    /// Waits until the ledger knows everything up to a revision.
    pub(super) async fn known_to(&self, revision: u64) -> Result<(), Violation> {
        self.run.known_to(revision, self.settings.patience()).await
    }

    /// Records the revision that is known now; drops marks and events that are too old to be needed.
    pub(super) fn mark(&self) {
        let now = Instant::now();
        let oldest = 2 * self.settings.memory() + 2 * self.settings.window;
        let mut marks = lock(&self.marks);
        marks.push_back((now, *self.run.known().borrow()));
        while marks.front().is_some_and(|(at, _)| now - *at > oldest) {
            marks.pop_front();
        }
        drop(marks);
        if let Some(revision) = self.revision_before(self.settings.memory()) {
            self.run.ledger().forget_before(revision);
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

    pub(super) fn record_write(&self, took: Duration) {
        self.counters.writes.fetch_add(1, Ordering::Relaxed);
        lock(&self.latencies).record(took);
    }

    pub(super) fn record_event(&self, sent: Option<u64>) {
        self.counters.events.fetch_add(1, Ordering::Relaxed);
        if let Some(sent) = sent {
            let lag = self.run.elapsed().saturating_sub(Duration::from_nanos(sent));
            lock(&self.lags).record(lag);
        }
    }

    /// Takes the latencies of writes and the lags of events since the last call.
    pub(super) fn take_times(&self) -> (Histogram, Histogram) {
        let take = |times: &Mutex<Histogram>| std::mem::take(&mut *lock(times));
        (take(&self.latencies), take(&self.lags))
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
