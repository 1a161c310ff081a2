//! Many watches at once: their events, bytes, lag, and ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http_body_util::BodyExt as _;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::histogram::Histogram;
use super::pool::{Call, Pool};
use crate::clients::POLL_INTERVAL;

/// The annotation with the time of the write: nanoseconds since the watchers' epoch.
pub const SENT: &str = "bench.drydock.dev/sent";

/// The start of an event that is searched for it: metadata comes first, with annotations first.
const SEARCHED_BYTES: usize = 1024;

/// What the watchers have received.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Events over all watchers.
    pub events: u64,
    /// Bytes over all watchers.
    pub bytes: u64,
    /// Watches that the server ended.
    pub ended: u64,
    /// The times from sending a write to reading its event.
    pub lag: Histogram,
}

/// Open watches.
pub struct Watchers {
    epoch: Instant,
    events: Arc<AtomicU64>,
    closing: watch::Sender<bool>,
    tasks: JoinSet<Seen>,
}

impl Watchers {
    /// Opens `count` watches on a path with its query.
    ///
    /// # Errors
    /// One is rejected.
    pub async fn open(pool: &Pool, count: usize, path: &str) -> Result<Self> {
        let mut watchers = Self {
            epoch: Instant::now(),
            events: Arc::default(),
            closing: watch::Sender::new(false),
            tasks: JoinSet::new(),
        };
        for number in 0..count {
            let mut sender = pool.sender(number)?;
            let response = sender.stream(Call::get(path)).await?;
            ensure!(
                response.status().is_success(),
                "the watch was rejected: {}",
                response.status()
            );
            let (epoch, count) = (watchers.epoch, Arc::clone(&watchers.events));
            let mut closing = watchers.closing.subscribe();
            watchers.tasks.spawn(async move {
                let mut seen = Seen::default();
                let mut body = response.into_body();
                let mut event = Event::default();
                loop {
                    let frame = tokio::select! {
                        frame = body.frame() => frame,
                        _ = closing.changed() => break,
                    };
                    let Some(Ok(frame)) = frame else {
                        seen.ended = 1;
                        break;
                    };
                    if let Ok(data) = frame.into_data() {
                        seen.bytes += data.len() as u64;
                        let events = event.read(&data, |sent| {
                            seen.lag.record(epoch.elapsed().saturating_sub(sent));
                        });
                        seen.events += events;
                        count.fetch_add(events, Ordering::Relaxed);
                    }
                }
                seen
            });
        }
        Ok(watchers)
    }

    /// The clock for [`SENT`].
    pub fn clock(&self) -> impl Fn() -> u128 + Send + Sync + use<> {
        let epoch = self.epoch;
        move || epoch.elapsed().as_nanos()
    }

    /// Waits until all watchers together have received `events` events, or none for `patience`; returns the time of
    /// the last one.
    pub async fn wait_for(&self, events: u64, patience: Duration) -> Instant {
        let (mut seen, mut since) = (0, Instant::now());
        while seen < events && since.elapsed() < patience {
            sleep(POLL_INTERVAL).await;
            let now = self.events.load(Ordering::Relaxed);
            if now != seen {
                (seen, since) = (now, Instant::now());
            }
        }
        since
    }

    /// Closes the watches and adds up what they received.
    ///
    /// # Errors
    /// A watcher ended early.
    pub async fn close(mut self) -> Result<Seen> {
        self.closing.send_replace(true);
        let mut all = Seen::default();
        while let Some(seen) = self.tasks.join_next().await {
            let seen = seen.context("a watcher ended early")?;
            all.events += seen.events;
            all.bytes += seen.bytes;
            all.ended += seen.ended;
            all.lag.merge(&seen.lag);
        }
        Ok(all)
    }
}

/// The event that is being read: events are lines, and frames may end anywhere.
#[derive(Debug, Default)]
struct Event {
    start: Vec<u8>,
}

impl Event {
    /// Reads a piece of the body; returns the number of events that ended in it.
    fn read(&mut self, data: &Bytes, mut sent: impl FnMut(Duration)) -> u64 {
        let mut ended = 0;
        for piece in data.split_inclusive(|byte| *byte == b'\n') {
            let room = SEARCHED_BYTES.saturating_sub(self.start.len()).min(piece.len());
            self.start
                .extend_from_slice(piece.get(..room).unwrap_or_default());
            if piece.ends_with(b"\n") {
                ended += 1;
                if let Some(at) = sent_at(&self.start) {
                    sent(at);
                }
                self.start.clear();
            }
        }
        ended
    }
}

fn sent_at(start: &[u8]) -> Option<Duration> {
    let text = std::str::from_utf8(start).unwrap_or_else(|error| {
        // A character may be cut.
        std::str::from_utf8(start.get(..error.valid_up_to()).unwrap_or_default()).unwrap_or_default()
    });
    let (_, after) = text.split_once(SENT)?;
    let digits = after.strip_prefix("\":\"")?;
    let (digits, _) = digits.split_once('"')?;
    digits.parse().ok().map(Duration::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_counted_and_timed_across_frames() {
        let text = format!(
            "{{\"object\":{{\"metadata\":{{\"annotations\":{{\"{SENT}\":\"17\"}}}}}}}}\n{{\"type\":\"BOOKMARK\"}}\n{{"
        );
        for cut in 0..text.len() {
            let (mut event, mut times) = (Event::default(), Vec::new());
            let (one, other) = text.as_bytes().split_at(cut);
            let mut read = |piece: &[u8]| event.read(&Bytes::copy_from_slice(piece), |at| times.push(at));
            assert_eq!(read(one) + read(other), 2);
            assert_eq!(times, [Duration::from_nanos(17)]);
        }
    }
}
