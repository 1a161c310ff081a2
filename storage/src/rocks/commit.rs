//! Group commit: one thread makes queued transactions durable in batches.
//!
//! ```text
//! request tasks: encode, compress, checksum ──▶ bounded queue ──▶ commit thread
//!   1 wait for a message, take what is queued (a batch)
//!   2 per transaction, in order: check its condition against the index and the batch so far, assign the revision
//!   3 one atomic write, synced
//!   4 overwrite the commit mark
//!   5 publish: apply the batch to the index, append its events, then reply
//! ```
//!
//! The next batch gathers while one sync runs: no timer, no artificial delay. Replies with conflicts wait for the sync too,
//! since they may show a change of the batch. After a failure of step 3 or 4 the outcome is unknown: the batch gets
//! [`StoreError::Unknown`] and the store is poisoned. A stalled engine writes nothing: the same batch is tried again until
//! the engine accepts it, or the store is closed or poisoned.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use prometheus_client::metrics::histogram::Histogram;
use thiserror::Error;

use super::batch::Batch;
use super::column_families::{Engine, Meta, STALL_PAUSE, Step};
use super::error::EngineError;
use super::message::{Message, Reply};
use super::parts::Parts;
use crate::clock::Stopwatch;
use crate::metrics::{Metrics, Stage};
use crate::options::Durability;
use crate::{Revision, StoreError};

/// How many revisions relaxed mode may assign between two durable ceilings.
pub(crate) const CEILING_STEP: u64 = 1_000_000;

/// Why the outcome of a write is unknown.
#[derive(Debug, Clone, Error)]
#[error("{0}")]
struct UnknownOutcome(String);

/// Why a batch is not durable.
#[derive(Debug)]
enum NotDurable {
    /// The engine wrote nothing of it, and the store no longer waits for the engine.
    NotWritten,
    /// It may be on disk or not, and why.
    Unknown(String),
}

fn unknown(reason: &str) -> StoreError {
    StoreError::Unknown {
        source: Some(Box::new(UnknownOutcome(reason.to_owned()))),
    }
}

/// Durations of the stages of a commit. Handles, so that no write looks them up.
struct Stages {
    queue: Histogram,
    prepare: Histogram,
    sync: Histogram,
    publish: Histogram,
}

impl Stages {
    fn of(metrics: &Metrics) -> Self {
        let stage = |stage: &'static str| metrics.commit_seconds.get_or_create(&Stage { stage }).clone();
        Self {
            queue: stage("queue"),
            prepare: stage("prepare"),
            sync: stage("sync"),
            publish: stage("publish"),
        }
    }
}

fn observe(histogram: &Histogram, since: Stopwatch) {
    histogram.observe(since.elapsed().as_secs_f64());
}

/// The single writer.
pub(crate) struct CommitThread {
    parts: Arc<Parts>,
    engine: Arc<Engine>,
    stages: Stages,
    /// Commit times never go back, whatever the clock does.
    last_ms: u64,
    /// Relaxed mode: no revision beyond it is assigned before a higher one is durable.
    ceiling: Revision,
}

impl CommitThread {
    pub(crate) fn new(parts: Arc<Parts>, engine: Arc<Engine>, last_ms: u64, ceiling: Revision) -> Self {
        Self {
            stages: Stages::of(&parts.metrics),
            parts,
            engine,
            last_ms,
            ceiling,
        }
    }

    /// Runs until the queue is closed and empty. A panic leaves the outcome unknown.
    pub(crate) fn run(mut self) {
        let parts = Arc::clone(&self.parts);
        let ended = catch_unwind(AssertUnwindSafe(move || {
            while let Some(messages) = self.parts.queue.take() {
                self.commit(messages);
            }
            self.finish();
        }));
        if ended.is_err() {
            parts.lifecycle.poison("the commit thread panicked");
            parts.queue.close();
            // Dropping a message tells its sender that the outcome is unknown.
            while parts.queue.take().is_some() {}
        }
    }

    /// Leaves a synced log and a mark of an orderly close.
    fn finish(&mut self) {
        if self.parts.lifecycle.is_poisoned() {
            return;
        }
        let revision = self.parts.published.current();
        let done = self
            .engine
            .write(&[Step::PutMeta(Meta::Ceiling, 0)], true)
            .map_err(|error| error.to_string())
            .and_then(|_| self.write_mark(revision, true).map_err(|error| error.to_string()))
            .and_then(|()| self.parts.mark.sync().map_err(|error| error.to_string()));
        if let Err(reason) = done {
            tracing::error!(reason, "the store was not closed in order");
        }
    }

    fn commit(&mut self, messages: Vec<Message>) {
        let whole = Stopwatch::start();
        for message in &messages {
            if let Message::Transactions { queued, .. } = message {
                observe(&self.stages.queue, *queued);
            }
        }
        let (batch, replies) = self.prepare(messages);
        observe(&self.stages.prepare, whole);
        if batch.steps.is_empty() {
            self.reply(replies);
            return;
        }
        match self.make_durable(&batch) {
            Ok(()) => {}
            Err(NotDurable::NotWritten) => {
                let refused = || self.parts.lifecycle.refusal();
                self.reply(replies.into_iter().map(|reply| reply.withheld(refused)));
                return;
            }
            Err(NotDurable::Unknown(reason)) => {
                self.parts.lifecycle.poison(&reason);
                let unknown = || unknown(&reason);
                self.reply(replies.into_iter().map(|reply| reply.withheld(unknown)));
                return;
            }
        }
        fail::fail_point!("commit-before-publish");
        let publishing = Stopwatch::start();
        self.publish(batch);
        observe(&self.stages.publish, publishing);
        self.parts.queue.observe(whole.elapsed());
        fail::fail_point!("commit-before-reply");
        self.reply(replies);
    }

    /// Ends a batch: counts the outcomes and sends the replies.
    fn reply(&self, replies: impl IntoIterator<Item = Reply>) {
        self.parts.queue.rest();
        for reply in replies {
            for label in reply.labels() {
                self.parts.counters.count(label);
            }
            reply.send();
        }
    }

    /// Step 2.
    fn prepare(&mut self, messages: Vec<Message>) -> (Batch, Vec<Reply>) {
        let parts = &*self.parts;
        let index = parts.published.index();
        self.last_ms = self.last_ms.max(parts.settings.clock.now_ms());
        let mut batch = Batch::new(index.revision(), self.last_ms);
        let reply = |message| match message {
            Message::Transactions { prepared, reply, .. } => {
                let results = prepared
                    .into_iter()
                    .map(|prepared| batch.apply(parts, &index, prepared));
                Reply::Transactions(reply, results.collect())
            }
            Message::Compact {
                wanted,
                queued,
                reply,
            } => Reply::Compact(reply, batch.raise_floors(parts, wanted, queued)),
        };
        let replies = messages.into_iter().map(reply).collect();
        batch.finish();
        (batch, replies)
    }

    /// Steps 3 and 4.
    fn make_durable(&mut self, batch: &Batch) -> Result<(), NotDurable> {
        let is_strict = self.parts.settings.durability == Durability::Strict;
        if !is_strict && batch.revision > self.ceiling {
            let ceiling = Revision(batch.revision.0.saturating_add(CEILING_STEP));
            self.write(&[Step::PutMeta(Meta::Ceiling, ceiling.0)], true)?;
            self.ceiling = ceiling;
        }
        fail::fail_point!("commit-before-sync");
        let syncing = Stopwatch::start();
        // Files of history are removed soon after: floors that a loss of power could revert would leave a gap below them.
        let sync = is_strict || batch.compaction.is_some();
        let size = self.write(&batch.steps, sync)?;
        observe(&self.stages.sync, syncing);
        fail::fail_point!("commit-after-sync");
        self.parts.metrics.wal_bytes.inc_by(size as u64);
        if is_strict {
            self.write_mark(batch.revision, false).map_err(|error| {
                NotDurable::Unknown(format!("the commit mark cannot be written: {error}"))
            })?;
        }
        if let Some(compaction) = &batch.compaction {
            self.parts.retention.set_durable_floor(compaction.below);
            observe(&self.parts.metrics.compaction_seconds, compaction.since);
        }
        Ok(())
    }

    /// Writes steps atomically, and waits while the engine is stalled, as long as a caller waits too.
    fn write(&self, steps: &[Step], sync: bool) -> Result<usize, NotDurable> {
        let mut has_stalled = false;
        loop {
            let since = Stopwatch::start();
            match self.engine.write(steps, sync) {
                Ok(size) => {
                    if sync {
                        observe(&self.parts.metrics.sync_seconds, since);
                    }
                    return Ok(size);
                }
                Err(EngineError::Stalled) => {
                    if self.parts.lifecycle.has_given_up() {
                        return Err(NotDurable::NotWritten);
                    }
                    if !has_stalled {
                        has_stalled = true;
                        let pressure = self.parts.observe_pressure(&self.engine);
                        tracing::warn!(?pressure, "the engine is stalled: writes wait");
                    }
                    std::thread::sleep(STALL_PAUSE);
                    let stalled = &self.parts.metrics.stalls_seconds;
                    stalled.inc_by(STALL_PAUSE.as_secs_f64());
                }
                Err(error) => {
                    return Err(NotDurable::Unknown(format!(
                        "the outcome of a commit is unknown: {error}"
                    )));
                }
            }
        }
    }

    fn write_mark(&self, synced: Revision, is_clean: bool) -> std::io::Result<()> {
        fail::fail_point!("mark-write", |_| Err(std::io::Error::other(
            "injected by a failpoint"
        )));
        self.parts.mark.write(synced, is_clean)
    }

    /// Step 5, without the replies.
    fn publish(&self, batch: Batch) {
        if !batch.events.is_empty() {
            self.parts.retention.note(batch.revision, batch.history_bytes());
            let writes = u32::try_from(batch.events.len()).unwrap_or(u32::MAX);
            self.parts.metrics.commit_batch_size.observe(f64::from(writes));
        }
        self.parts
            .published
            .apply(batch.changed, batch.events, batch.revision);
    }
}
