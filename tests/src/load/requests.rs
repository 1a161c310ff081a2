//! How many requests does a server answer, and how long does each take?

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::histogram::Histogram;
use super::pool::{Answer, Call, Pool};

/// Where a measurement ends: at whichever comes first.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// Requests in all.
    pub requests: u64,
    /// Time after which no request is begun.
    pub time: Duration,
}

/// What was measured.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Requests that succeeded.
    pub succeeded: u64,
    /// Requests that did not.
    pub failed: u64,
    /// What the first of them said.
    pub first_failure: Option<String>,
    /// Bytes of all answers' bodies.
    pub bytes: u64,
    /// From the first request to the last answer.
    pub elapsed: Duration,
    /// Times of the requests that succeeded.
    pub latencies: Histogram,
}

impl Measured {
    /// Requests that succeeded in a second.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "counts of a benchmark fit a float exactly"
    )]
    pub fn rate(&self) -> f64 {
        self.succeeded as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    fn record(&mut self, answer: Result<Answer>, took: Duration) {
        match answer.and_then(Answer::succeeded) {
            Ok(answer) => {
                self.succeeded += 1;
                self.bytes += answer.size as u64;
                self.latencies.record(took);
            }
            Err(error) => {
                self.failed += 1;
                self.first_failure.get_or_insert_with(|| format!("{error:#}"));
            }
        }
    }

    fn merge(&mut self, other: Self) {
        self.succeeded += other.succeeded;
        self.failed += other.failed;
        self.bytes += other.bytes;
        self.latencies.merge(&other.latencies);
        if let Some(failure) = other.first_failure {
            self.first_failure.get_or_insert(failure);
        }
    }
}

/// Lets `clients` clients send one request after the other; `call` makes the one with that number.
///
/// # Errors
/// The pool is empty. Requests that fail are counted, not returned.
pub async fn drive<F>(pool: &Pool, clients: usize, bound: Bound, call: F) -> Result<Measured>
where
    F: Fn(u64) -> Call + Send + Sync + 'static,
{
    let (call, next) = (Arc::new(call), Arc::new(AtomicU64::new(0)));
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for client in 0..clients {
        let mut sender = pool.sender(client)?;
        let (call, next) = (Arc::clone(&call), Arc::clone(&next));
        tasks.spawn(async move {
            let mut measured = Measured::default();
            while started.elapsed() < bound.time {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= bound.requests {
                    break;
                }
                let call = call(number);
                let asked = Instant::now();
                let answer = sender.send(call).await;
                measured.record(answer, asked.elapsed());
            }
            measured
        });
    }
    let mut all = Measured::default();
    while let Some(measured) = tasks.join_next().await {
        all.merge(measured.context("a client ended early")?);
    }
    all.elapsed = started.elapsed();
    Ok(all)
}

/// Requests under way at most when a server cannot keep up with a steady rate.
const PACED_IN_FLIGHT: usize = 256;

/// Sends `per_second` requests a second for `time`, each whether or not those before it are answered.
///
/// # Errors
/// The pool is empty. Requests that fail are counted, not returned.
pub async fn pace<F>(pool: &Pool, per_second: u32, time: Duration, call: F) -> Result<Measured>
where
    F: Fn(u64) -> Call + Send + Sync,
{
    let places = Arc::new(Semaphore::new(PACED_IN_FLIGHT));
    let mut beat = interval(Duration::from_secs(1) / per_second.max(1));
    // A beat that comes late is made up for, so that the rate holds over the whole time.
    beat.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let started = Instant::now();
    let mut tasks: JoinSet<Measured> = JoinSet::new();
    let mut all = Measured::default();
    let mut number = 0;
    while started.elapsed() < time {
        beat.tick().await;
        let place = Arc::clone(&places).acquire_owned().await.context("a place")?;
        let mut sender = pool.sender(usize::try_from(number).unwrap_or_default())?;
        let call = call(number);
        number += 1;
        tasks.spawn(async move {
            let _place = place;
            let asked = Instant::now();
            let answer = sender.send(call).await;
            let mut measured = Measured::default();
            measured.record(answer, asked.elapsed());
            measured
        });
        while let Some(done) = tasks.try_join_next() {
            all.merge(done.context("a client ended early")?);
        }
    }
    while let Some(done) = tasks.join_next().await {
        all.merge(done.context("a client ended early")?);
    }
    all.elapsed = started.elapsed();
    Ok(all)
}
