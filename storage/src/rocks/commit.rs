//! How do concurrent transactions become one ordered, durable history?
//!
//! ```text
//! request tasks: encode, compress, checksum ──▶ bounded queue ──▶ commit thread
//!   1 wait for one message, take what is queued (a batch)
//!   2 per transaction, in order: check conditions against index + pending changes, assign the revision
//!   3 one atomic write, synced
//!   4 overwrite the commit mark
//!   5 fold the pending changes into the index, publish events and the revision, then answer
//! ```
//!
//! While one sync runs the next batch gathers: no timer, no artificial delay. Conflicts wait for the sync too, since
//! they may show a pending change. Any failure of step 3 or 4 leaves the outcome in doubt: the batch is answered
//! with [`StoreError::Unknown`] and the store is poisoned. A stall writes nothing: the same batch is tried again until
//! the engine takes it, or the store is closed or poisoned meanwhile.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::metrics::histogram::Histogram;
use thiserror::Error;
use tokio::sync::oneshot;

use super::Shared;
use super::column_families::{Engine, Meta, Step};
use super::error::EngineError;
use super::index::{Index, Slot, conflict, damaged};
use super::mark::Mark;
use super::prepare::{Prepared, cannot_encode};
use super::queue::Weight;
use crate::clock::Stopwatch;
use crate::metrics::{Metrics, Stage, gauge_value};
use crate::options::Durability;
use crate::record::{Committed, Place, finish_change, finish_state};
use crate::{Entry, Event, EventKind, Floors, Key, Outcome, Revision, StoreError, Value};

/// The most one batch takes.
pub(crate) const BATCH: Weight = Weight {
    writes: 1024,
    bytes: 1 << 20,
};
/// How often a stalled batch is tried again.
const STALL_PAUSE: Duration = Duration::from_millis(5);
/// How many revisions relaxed mode may hand out between two durable ceilings.
pub(crate) const CEILING_STEP: u64 = 1_000_000;

/// The answers to the transactions of one message, in their order.
pub(crate) type Answers = Vec<Result<Outcome, StoreError>>;

/// What the commit thread is asked for.
pub(crate) enum Message {
    /// Independent transactions, each at a revision of its own.
    Transactions {
        prepared: Vec<Prepared>,
        queued: Stopwatch,
        reply: oneshot::Sender<Answers>,
    },
    /// Raise the floors and let go of history below them.
    Compact {
        wanted: Floors,
        queued: Stopwatch,
        reply: oneshot::Sender<Result<(), StoreError>>,
    },
}

/// Why the outcome of a write is not known.
#[derive(Debug, Clone, Error)]
#[error("{0}")]
struct Doubt(String);

/// Why a batch is not durable.
#[derive(Debug)]
enum NotDurable {
    /// The engine took nothing of it, and the store does not wait for the engine any more.
    NotWritten,
    /// It may be on disk or not, and why.
    InDoubt(String),
}

fn unknown(reason: &str) -> StoreError {
    StoreError::Unknown {
        source: Some(Box::new(Doubt(reason.to_owned()))),
    }
}

/// What stands for a value that cannot be read, in the event of its removal.
fn unreadable(place: Place) -> Entry {
    Entry {
        value: Value::unreadable(),
        created: place.created,
        modified: place.modified,
    }
}

/// Where the time of a commit goes: handles, so that no write looks them up.
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

fn note(histogram: &Histogram, since: Stopwatch) {
    histogram.observe(since.elapsed().as_secs_f64());
}

/// The one writer.
pub(crate) struct CommitThread {
    shared: Arc<Shared>,
    engine: Arc<Engine>,
    stages: Stages,
    /// Commit times never go back, whatever the clock does.
    last_ms: u64,
    /// Relaxed mode: no revision beyond it is handed out before a higher one is durable.
    ceiling: Revision,
}

/// Changes of a batch that are not durable yet.
struct Pending {
    changed: HashMap<Key, Option<Slot>>,
    steps: Vec<Step>,
    events: Vec<Event>,
    revision: Revision,
    at_ms: u64,
    letting_go: Option<LettingGo>,
}

/// What a batch drops of history.
struct LettingGo {
    /// Everything below this revision.
    below: Revision,
    /// When it was asked for.
    since: Stopwatch,
}

/// The label that a transaction is counted under.
fn outcome_label(result: &Result<Outcome, StoreError>) -> &'static str {
    match result {
        Ok(Outcome::Committed { .. }) => "committed",
        Ok(Outcome::Conflict { .. }) => "conflict",
        Err(StoreError::Unknown { .. }) => "unknown",
        Err(_) => "refused",
    }
}

enum Reply {
    Transactions(oneshot::Sender<Answers>, Answers),
    /// To a compaction.
    Compact(oneshot::Sender<Result<(), StoreError>>, Result<(), StoreError>),
}

impl Reply {
    fn send(self) {
        // Whoever asked may have gone away; what happened has happened.
        match self {
            Self::Transactions(reply, answers) => drop(reply.send(answers)),
            Self::Compact(reply, answer) => drop(reply.send(answer)),
        }
    }

    /// What is answered instead when the batch is not durable: nothing of it is shown, not even a conflict with one
    /// of its changes.
    fn withheld(self, instead: impl Fn() -> StoreError) -> Self {
        match self {
            Self::Transactions(reply, mut answers) => {
                // A conflict may show a change of the batch too.
                for answer in answers.iter_mut().filter(|answer| answer.is_ok()) {
                    *answer = Err(instead());
                }
                Self::Transactions(reply, answers)
            }
            Self::Compact(reply, _) => Self::Compact(reply, Err(instead())),
        }
    }
}

impl CommitThread {
    pub(crate) fn new(shared: Arc<Shared>, engine: Arc<Engine>, last_ms: u64, ceiling: Revision) -> Self {
        Self {
            stages: Stages::of(&shared.metrics),
            shared,
            engine,
            last_ms,
            ceiling,
        }
    }

    /// Works until the queue is closed and empty. A panic is doubt.
    pub(crate) fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let ended = catch_unwind(AssertUnwindSafe(move || {
            while let Some(messages) = self.shared.queue.take() {
                self.commit(messages);
            }
            self.finish();
        }));
        if ended.is_err() {
            shared.poison.poison("the commit thread panicked");
            shared.queue.close();
            // Dropping what waits answers it: nobody knows.
            while shared.queue.take().is_some() {}
        }
    }

    /// Leaves a log that is synced and a mark that says so.
    fn finish(&mut self) {
        if self.shared.poison.is_poisoned() {
            return;
        }
        let revision = self.shared.current();
        let done = self
            .engine
            .write(&[Step::PutMeta(Meta::Ceiling, 0)], true)
            .map_err(|error| error.to_string())
            .and_then(|_| self.write_mark(revision, true).map_err(|error| error.to_string()))
            .and_then(|()| self.shared.mark_file.sync().map_err(|error| error.to_string()));
        if let Err(reason) = done {
            tracing::error!(reason, "the store was not closed in order");
        }
    }

    fn commit(&mut self, messages: Vec<Message>) {
        let whole = Stopwatch::start();
        self.observe_queue(&messages);
        let (pending, replies) = self.prepare(messages);
        note(&self.stages.prepare, whole);
        if pending.steps.is_empty() {
            self.answer(replies);
            return;
        }
        match self.make_durable(&pending) {
            Ok(()) => {}
            Err(NotDurable::NotWritten) => {
                let refused = || self.shared.refusal();
                self.answer(replies.into_iter().map(|reply| reply.withheld(refused)));
                return;
            }
            Err(NotDurable::InDoubt(reason)) => {
                self.shared.poison.poison(&reason);
                let in_doubt = || unknown(&reason);
                self.answer(replies.into_iter().map(|reply| reply.withheld(in_doubt)));
                return;
            }
        }
        fail::fail_point!("commit-before-publish");
        let publishing = Stopwatch::start();
        self.publish(pending);
        note(&self.stages.publish, publishing);
        self.shared.queue.observe(whole.elapsed());
        fail::fail_point!("commit-before-reply");
        self.answer(replies);
    }

    /// Ends a batch: counts how transactions ended and tells those who asked.
    fn answer(&self, replies: impl IntoIterator<Item = Reply>) {
        self.shared.queue.rest();
        for reply in replies {
            if let Reply::Transactions(_, answers) = &reply {
                for outcome in answers.iter().map(outcome_label) {
                    self.shared.count(outcome);
                    if outcome == "conflict" {
                        self.shared.metrics.conflicts.inc();
                    }
                }
            }
            reply.send();
        }
    }

    /// Step 2.
    fn prepare(&mut self, messages: Vec<Message>) -> (Pending, Vec<Reply>) {
        let shared = Arc::clone(&self.shared);
        let index = shared.index();
        self.last_ms = self.last_ms.max(shared.clock.now_ms());
        let mut pending = Pending {
            changed: HashMap::new(),
            steps: Vec::new(),
            events: Vec::new(),
            revision: index.revision(),
            at_ms: self.last_ms,
            letting_go: None,
        };
        let mut replies = Vec::with_capacity(messages.len());
        for message in messages {
            replies.push(match message {
                Message::Transactions { prepared, reply, .. } => {
                    let prepared = prepared.into_iter();
                    let answers = prepared
                        .map(|prepared| self.apply(&index, &mut pending, prepared))
                        .collect();
                    Reply::Transactions(reply, answers)
                }
                Message::Compact {
                    wanted,
                    queued,
                    reply,
                } => {
                    let answer = self.raise_floors(&index, &mut pending, wanted, queued);
                    Reply::Compact(reply, answer)
                }
            });
        }
        drop(index);
        if !pending.events.is_empty() {
            pending
                .steps
                .push(Step::PutMeta(Meta::Revision, pending.revision.0));
        }
        (pending, replies)
    }

    /// Checks one transaction and appends its write.
    fn apply(&self, index: &Index, pending: &mut Pending, prepared: Prepared) -> Result<Outcome, StoreError> {
        let found = pending.slot(index, &prepared.key);
        if let Some(conflict) = conflict(&prepared.key, prepared.base, found, pending.revision)? {
            return Ok(conflict);
        }
        self.shared.poison.check_writable()?;
        let before = match found {
            None => None,
            Some(Slot::Whole(entry)) => Some(entry.clone()),
            Some(Slot::Damaged(place)) if prepared.may_remove_damaged => Some(unreadable(*place)),
            Some(Slot::Damaged(_)) => return Err(damaged(&prepared.key)),
        };
        let committed = Committed {
            revision: pending.revision.next(),
            at_ms: pending.at_ms,
        };
        let event = self.append(&mut pending.steps, prepared, before, committed)?;
        let slot = event.new.clone().map(Slot::Whole);
        pending.changed.insert(event.key.clone(), slot);
        pending.events.push(event);
        pending.revision = committed.revision;
        Ok(Outcome::Committed {
            revision: committed.revision,
        })
    }

    /// Appends the records of one write.
    fn append(
        &self,
        steps: &mut Vec<Step>,
        prepared: Prepared,
        before: Option<Entry>,
        committed: Committed,
    ) -> Result<Event, StoreError> {
        let Prepared {
            key,
            value,
            state_body,
            mut history_body,
            assumed,
            ..
        } = prepared;
        let previous = before.as_ref().map(|entry| entry.modified);
        if assumed != previous {
            let old = before.as_ref().map(|entry| &entry.value);
            let records = &self.shared.records;
            history_body = records
                .history_body(&key, old, value.as_ref())
                .map_err(|error| cannot_encode(&error))?;
        }
        let place = Place {
            created: before.as_ref().map_or(committed.revision, |entry| entry.created),
            modified: committed.revision,
        };
        let kind = match (&before, &value) {
            (_, None) => EventKind::Deleted,
            (None, Some(_)) => EventKind::Created,
            (Some(_), Some(_)) => EventKind::Updated,
        };
        steps.push(if value.is_some() {
            Step::PutState(key.clone(), finish_state(state_body, &key, place))
        } else {
            Step::DeleteState(key.clone())
        });
        let record = finish_change(history_body, &key, kind, place.created, previous, committed);
        steps.push(Step::PutHistory(committed.revision, record));
        Ok(Event {
            revision: committed.revision,
            key,
            kind,
            new: value.map(|value| Entry {
                value,
                created: place.created,
                modified: place.modified,
            }),
            old: before,
        })
    }

    /// Raises the published floors, then appends what makes them durable and drops what lies below.
    fn raise_floors(
        &self,
        index: &Index,
        pending: &mut Pending,
        wanted: Floors,
        since: Stopwatch,
    ) -> Result<(), StoreError> {
        self.shared.poison.check_writable()?;
        let highest = index.revision().next();
        if wanted.listable_from > highest || wanted.watchable_from > highest {
            return Err(StoreError::Future {
                requested: wanted.listable_from.max(wanted.watchable_from).previous(),
                current: index.revision(),
            });
        }
        let before = self.shared.floors();
        let floors = self.shared.raise_floors(wanted);
        if floors == before {
            return Ok(());
        }
        fail::fail_point!("compact-after-floors");
        pending.steps.extend([
            Step::PutMeta(Meta::ListableFrom, floors.listable_from.0),
            Step::PutMeta(Meta::WatchableFrom, floors.watchable_from.0),
            Step::DropHistory(floors.watchable_from),
        ]);
        pending.letting_go = Some(LettingGo {
            below: floors.watchable_from,
            since,
        });
        Ok(())
    }

    /// Steps 3 and 4.
    fn make_durable(&mut self, pending: &Pending) -> Result<(), NotDurable> {
        let is_strict = self.shared.durability == Durability::Strict;
        if !is_strict && pending.revision > self.ceiling {
            let ceiling = Revision(pending.revision.0.saturating_add(CEILING_STEP));
            self.write(&[Step::PutMeta(Meta::Ceiling, ceiling.0)], true)?;
            self.ceiling = ceiling;
        }
        fail::fail_point!("commit-before-sync");
        let syncing = Stopwatch::start();
        // Files of history go soon after: floors that power could take back would leave a hole below them.
        let sync = is_strict || pending.letting_go.is_some();
        let size = self.write(&pending.steps, sync)?;
        note(&self.stages.sync, syncing);
        fail::fail_point!("commit-after-sync");
        self.shared.metrics.wal_bytes.inc_by(size as u64);
        if is_strict {
            self.write_mark(pending.revision, false).map_err(|error| {
                NotDurable::InDoubt(format!("the commit mark cannot be written: {error}"))
            })?;
        }
        if let Some(letting_go) = &pending.letting_go {
            self.shared.set_durable_floor(letting_go.below);
            note(&self.shared.metrics.compaction_seconds, letting_go.since);
        }
        Ok(())
    }

    /// Writes a batch, waiting out stalls for as long as anybody waits for it.
    fn write(&self, steps: &[Step], sync: bool) -> Result<usize, NotDurable> {
        let mut has_stalled = false;
        loop {
            let since = Stopwatch::start();
            match self.engine.write(steps, sync) {
                Ok(size) => {
                    if sync {
                        note(&self.shared.metrics.sync_seconds, since);
                    }
                    return Ok(size);
                }
                Err(EngineError::Stalled) => {
                    if self.shared.has_given_up() {
                        return Err(NotDurable::NotWritten);
                    }
                    if !has_stalled {
                        has_stalled = true;
                        let pressure = self.shared.observe_pressure(&self.engine);
                        tracing::warn!(?pressure, "the engine takes no writes for now");
                    }
                    std::thread::sleep(STALL_PAUSE);
                    let stalled = &self.shared.metrics.stalls_seconds;
                    stalled.inc_by(STALL_PAUSE.as_secs_f64());
                }
                Err(error) => {
                    return Err(NotDurable::InDoubt(format!("a commit failed in doubt: {error}")));
                }
            }
        }
    }

    fn write_mark(&self, synced: Revision, is_clean: bool) -> std::io::Result<()> {
        fail::fail_point!("mark-write", |_| Err(std::io::Error::other(
            "injected by a failpoint"
        )));
        let mark = Mark {
            synced,
            is_clean,
            ..self.shared.mark_template(self.shared.clock.now_ms())
        };
        self.shared.mark_file.write(&mark)
    }

    /// Step 5, but for the answers.
    fn publish(&self, pending: Pending) {
        let bytes = pending.steps.iter().map(|step| match step {
            Step::PutHistory(_, record) => record.len() as u64,
            _ => 0,
        });
        let bytes = bytes.sum();
        let metrics = &self.shared.metrics;
        let (objects, object_bytes) = {
            let mut index = self.shared.index_mut();
            index.apply(pending.changed, pending.revision);
            self.shared.set_current(pending.revision);
            index.size()
        };
        if !pending.events.is_empty() {
            self.shared
                .timeline()
                .note(self.shared.steady_ms(), pending.revision, bytes);
            let writes = u32::try_from(pending.events.len()).unwrap_or(u32::MAX);
            metrics.commit_batch_size.observe(f64::from(writes));
        }
        self.shared.tail.publish(pending.events, pending.revision);
        metrics.revision.set(gauge_value(pending.revision.0));
        metrics.objects.set(gauge_value(objects));
        metrics.object_bytes.set(gauge_value(object_bytes));
    }

    fn observe_queue(&self, messages: &[Message]) {
        for message in messages {
            if let Message::Transactions { queued, .. } = message {
                note(&self.stages.queue, *queued);
            }
        }
    }
}

impl Pending {
    /// What a key holds after the changes so far.
    fn slot<'a>(&'a self, index: &'a Index, key: &Key) -> Option<&'a Slot> {
        match self.changed.get(key) {
            Some(slot) => slot.as_ref(),
            None => index.slot(key),
        }
    }
}
