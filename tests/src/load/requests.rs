//! Request load: closed-loop clients, and requests at a steady rate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::histogram::Histogram;
use super::pool::{Call, Pool, Response};

/// The end of a measurement: whichever comes first.
#[derive(Clone, Copy, Debug)]
pub struct Bound {
    /// The number of requests.
    pub requests: u64,
    /// The time after which no request starts.
    pub time: Duration,
}

/// A measurement.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Requests that succeeded.
    pub succeeded: u64,
    /// Requests that failed.
    pub failed: u64,
    /// The error of the first failure.
    pub first_failure: Option<String>,
    /// The size of all response bodies in bytes.
    pub bytes: u64,
    /// The time from the first request to the last response.
    pub elapsed: Duration,
    /// Latencies of the requests that succeeded.
    pub latencies: Histogram,
}

impl Measured {
    /// Successful requests per second.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "counts of a benchmark fit a float exactly"
    )]
    pub fn rate(&self) -> f64 {
        self.succeeded as f64 / self.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    fn record(&mut self, response: Result<Response>, took: Duration) {
        match response.and_then(Response::succeeded) {
            Ok(response) => {
                self.succeeded += 1;
                self.bytes += response.size as u64;
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

/// Runs `clients` clients, each of which sends one request after the other; `call` makes the request of a number.
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
                let response = sender.send(call).await;
                measured.record(response, asked.elapsed());
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

/// The most requests in flight when a server cannot keep up.
const PACED_IN_FLIGHT: usize = 256;

/// Sends `per_second` requests a second for `time`, without waiting for responses.
///
/// # Errors
/// The pool is empty. Requests that fail are counted, not returned.
pub async fn pace<F>(pool: &Pool, per_second: u32, time: Duration, call: F) -> Result<Measured>
where
    F: Fn(u64) -> Call + Send + Sync,
{
    let permits = Arc::new(Semaphore::new(PACED_IN_FLIGHT));
    let mut ticks = interval(Duration::from_secs(1) / per_second.max(1));
    // Late ticks are made up for, so that the rate holds over the whole time.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let started = Instant::now();
    let mut tasks: JoinSet<Measured> = JoinSet::new();
    let mut all = Measured::default();
    let mut number = 0;
    while started.elapsed() < time {
        ticks.tick().await;
        let permit = Arc::clone(&permits).acquire_owned().await.context("a permit")?;
        let mut sender = pool.sender(usize::try_from(number).unwrap_or_default())?;
        let call = call(number);
        number += 1;
        tasks.spawn(async move {
            let _permit = permit;
            let asked = Instant::now();
            let response = sender.send(call).await;
            let mut measured = Measured::default();
            measured.record(response, asked.elapsed());
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
