//! Watches: one task each, on a connection of its own, so that a slow reader slows nobody else.
//!
//! The task reads etcd's stream and hands batches over through a short queue; when the queue is full it stops reading, and
//! etcd keeps the rest. When the stream ends it continues on a new one, at another member if need be. A stream always
//! begins one revision early, at a revision that etcd has: etcd tells no progress to a watch that begins in the future.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    EventType, KeyValue, ResponseHeader, WatchOptions, WatchRequestSender, WatchResponse, WatchResponseStream,
};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::keyspace::RawRange;
use super::metrics::OfResource;
use super::parts::{Parts, Shared, number, revision};
use crate::{Entry, Event, EventKind, Events, Key, KeyRange, Revision, Signal, Value};

/// How many batches may wait for the reader; etcd sends about 2 MiB in one.
const QUEUE: usize = 8;
/// The largest message of a stream: an event with two values, twice over.
const LARGEST_MESSAGE: usize = 64 << 20;
/// How often a stream without events is asked how far it is.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// How long a request for progress may take to leave.
const SEND: Duration = Duration::from_millis(500);
/// How long a new stream may take to begin.
const BEGIN: Duration = Duration::from_secs(5);
/// The first and the longest wait before a new stream.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// A watch of a store in etcd.
pub struct EtcdEvents {
    batches: mpsc::Receiver<Vec<Signal>>,
    taken: VecDeque<Signal>,
    parts: Shared,
    has_ended: bool,
    _task: DropGuard,
}

impl EtcdEvents {
    /// Watches a range from `first` on.
    pub(super) fn begin(parts: &Shared, range: &KeyRange, first: Revision) -> Self {
        let (sender, batches) = mpsc::channel(QUEUE);
        let end = CancellationToken::new();
        let follower = Follower {
            parts: Arc::clone(parts),
            // An empty range has no events; it is followed for its progress.
            range: parts.keys.range(range, "").unwrap_or_else(|| nothing(parts)),
            labels: labels(range),
            seen: first.previous(),
            is_asked: false,
            last: None,
            pulse: parts.pulse.subscribe(),
            batches: sender,
        };
        parts.metrics.watches.inc();
        tokio::spawn(run(follower, end.clone()));
        Self {
            batches,
            taken: VecDeque::new(),
            parts: Arc::clone(parts),
            has_ended: false,
            _task: end.drop_guard(),
        }
    }
}

fn labels(range: &KeyRange) -> OfResource {
    let (group, resource) = range.group_and_resource();
    OfResource {
        group: group.to_owned(),
        resource: resource.to_owned(),
    }
}

fn nothing(parts: &Parts) -> RawRange {
    let start = parts.keys.nothing().into_bytes();
    let mut end = start.clone();
    end.push(0);
    RawRange { start, end }
}

impl Events for EtcdEvents {
    async fn next(&mut self) -> Option<Signal> {
        while !self.has_ended {
            if self.parts.closed.is_cancelled() {
                break;
            }
            if let Some(signal) = self.taken.pop_front() {
                self.has_ended = matches!(signal, Signal::Compacted(_));
                return Some(signal);
            }
            tokio::select! {
                batch = self.batches.recv() => match batch {
                    Some(batch) => self.taken.extend(batch),
                    None => break,
                },
                () = self.parts.closed.cancelled() => break,
            }
        }
        self.has_ended = true;
        None
    }
}

impl Drop for EtcdEvents {
    fn drop(&mut self) {
        self.parts.metrics.watches.dec();
    }
}

/// The task of a watch.
struct Follower {
    parts: Shared,
    range: RawRange,
    labels: OfResource,
    /// Everything up to here has been handed over.
    seen: Revision,
    /// Somebody asked for progress since the last one was handed over.
    is_asked: bool,
    /// The last event of this stream.
    last: Option<Revision>,
    pulse: watch::Receiver<u64>,
    batches: mpsc::Sender<Vec<Signal>>,
}

/// Why a stream is not read any more.
enum End {
    /// Another one continues.
    Continue(String),
    /// The watch ends: readers must load anew, from this revision on.
    Compacted(Revision),
    /// Nobody reads.
    Unread,
}

async fn run(mut follower: Follower, end: CancellationToken) {
    let parts = Arc::clone(&follower.parts);
    tokio::select! {
        () = follower.follow() => {}
        () = end.cancelled() => {}
        () = parts.closed.cancelled() => {}
    }
}

impl Follower {
    async fn follow(&mut self) {
        let mut back_off = BACK_OFF.0;
        loop {
            let before = self.seen;
            let reason = match self.stream().await {
                End::Continue(reason) => reason,
                End::Compacted(floor) => {
                    self.parts.floors.note(floor.previous());
                    // A reader that is gone needs no end.
                    let _unread = self.batches.send(vec![Signal::Compacted(floor)]).await;
                    return;
                }
                End::Unread => return,
            };
            self.parts.metrics.watch_restarts.inc();
            tracing::debug!(reason, seen = %self.seen, "a watch of etcd continues on a new stream");
            if self.seen > before {
                back_off = BACK_OFF.0;
            }
            sleep(back_off).await;
            back_off = (back_off * 2).min(BACK_OFF.1);
        }
    }

    /// Reads one stream to its end.
    async fn stream(&mut self) -> End {
        let opened = timeout(BEGIN, self.open()).await;
        let (member, mut requests, mut responses) = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(reason)) => return End::Continue(reason),
            Err(_) => return End::Continue("it did not begin in time".to_owned()),
        };
        self.last = None;
        let after = self.seen;
        let mut is_quiet = false;
        let mut ticks = interval(ASK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            let ask = tokio::select! {
                response = responses.message() => {
                    is_quiet = false;
                    let flow = match response {
                        Ok(Some(response)) => self.take(member, &response, after).await,
                        Ok(None) => ControlFlow::Break(End::Continue("etcd ended it".to_owned())),
                        Err(error) => ControlFlow::Break(self.broken(member, &error)),
                    };
                    if let ControlFlow::Break(end) = flow {
                        return end;
                    }
                    false
                }
                changed = self.pulse.changed() => {
                    if changed.is_err() {
                        return End::Unread;
                    }
                    self.is_asked = true;
                    true
                }
                _ = ticks.tick() => {
                    if self.parts.members.should_leave(member) {
                        return End::Continue("its member does not serve".to_owned());
                    }
                    std::mem::replace(&mut is_quiet, true) || self.is_asked
                }
            };
            if ask && !matches!(timeout(SEND, requests.request_progress()).await, Ok(Ok(()))) {
                return End::Continue("a request for progress did not leave".to_owned());
            }
        }
    }

    async fn open(&self) -> Result<(usize, WatchRequestSender, WatchResponseStream), String> {
        let members = &self.parts.members;
        let (member, client) = members
            .watch_connection()
            .await
            .map_err(|error| error.to_string())?;
        let options = WatchOptions::new()
            .with_range(self.range.end.clone())
            .with_start_revision(number(self.seen.max(Revision::INITIAL)))
            .with_prev_key()
            .with_fragment();
        let mut watches = client.watch_client().max_decoding_message_size(LARGEST_MESSAGE);
        match watches.watch(self.range.start.clone(), Some(options)).await {
            Ok(stream) => {
                let (requests, responses) = stream.split();
                Ok((member, requests, responses))
            }
            Err(error) => {
                let reason = error.to_string();
                members.note_failure(member, &reason);
                Err(reason)
            }
        }
    }

    fn broken(&self, member: usize, error: &etcd_client::Error) -> End {
        let reason = error.to_string();
        self.parts.members.note_failure(member, &reason);
        End::Continue(reason)
    }

    /// Hands over what a response holds. Events up to `after` were handed over from an earlier stream.
    async fn take(&mut self, member: usize, response: &WatchResponse, after: Revision) -> ControlFlow<End> {
        let parts = Arc::clone(&self.parts);
        if parts.members.check_member(member, response.header()).is_err() {
            return ControlFlow::Break(End::Unread);
        }
        if response.canceled() {
            let compacted = revision(response.compact_revision());
            if compacted.0 > 0 {
                return ControlFlow::Break(End::Compacted(compacted.next()));
            }
            let reason = format!("etcd refused it: {}", response.cancel_reason());
            return ControlFlow::Break(End::Continue(reason));
        }
        if response.created() {
            return ControlFlow::Continue(());
        }
        let mut batch = Vec::new();
        let mut end = None;
        if response.events().is_empty() {
            let reached = revision(response.header().map_or(0, ResponseHeader::revision));
            parts.metrics.progress(&self.labels);
            if reached > self.seen || self.is_asked {
                self.seen = self.seen.max(reached);
                self.is_asked = false;
                batch.push(Signal::Progress(self.seen));
            }
        }
        for event in response.events() {
            match self.change(event, after) {
                Ok(None) => {}
                Ok(Some(event)) => {
                    parts.metrics.event(&self.labels);
                    self.seen = self.seen.max(event.revision);
                    batch.push(Signal::Change(event));
                }
                Err(stop) => {
                    end = Some(stop);
                    break;
                }
            }
        }
        if !batch.is_empty() && self.batches.send(batch).await.is_err() {
            return ControlFlow::Break(End::Unread);
        }
        match end {
            Some(end) => ControlFlow::Break(end),
            None => ControlFlow::Continue(()),
        }
    }

    /// The change in an event of etcd; none if it was handed over before, or is no change of an object.
    fn change(&mut self, event: &etcd_client::Event, after: Revision) -> Result<Option<Event>, End> {
        let Some(stored) = event.kv() else {
            return Ok(None);
        };
        let at = revision(stored.mod_revision());
        if at <= after {
            return Ok(None);
        }
        let key = match self.parts.keys.key(stored.key()) {
            Ok(key) => key,
            Err(error) => {
                let key = String::from_utf8_lossy(stored.key());
                tracing::error!(%key, %error, "somebody else wrote below the prefix of this store");
                return Ok(None);
            }
        };
        if self.last == Some(at) {
            tracing::error!(%key, revision = %at, "somebody else changed several objects at once: readers load anew");
            return Err(End::Compacted(at.next()));
        }
        self.last = Some(at);
        // Between the event and its delivery the value before it may have been compacted: the reader lags too far.
        let old = |parts: &Parts| match event.prev_kv() {
            Some(previous) => old_entry(parts, &key, previous, at),
            None => Err(End::Compacted(at.next())),
        };
        let is_created = stored.create_revision() == stored.mod_revision();
        let (kind, old) = match event.event_type() {
            EventType::Delete => (EventKind::Deleted, Some(old(&self.parts)?)),
            EventType::Put if is_created => (EventKind::Created, None),
            EventType::Put => (EventKind::Updated, Some(old(&self.parts)?)),
        };
        let new = match kind {
            EventKind::Deleted => None,
            EventKind::Created | EventKind::Updated => match self.parts.entry(&key, stored) {
                Ok(entry) => Some(entry),
                Err(found) => {
                    tracing::error!(%key, error = %found.error, "a value cannot be read: the watch ends");
                    return Err(End::Compacted(at.next()));
                }
            },
        };
        Ok(Some(Event {
            revision: at,
            key,
            kind,
            new,
            old,
        }))
    }
}

/// The entry before a change at `at`.
fn old_entry(parts: &Parts, key: &Key, stored: &KeyValue, at: Revision) -> Result<Entry, End> {
    match parts.entry(key, stored) {
        Ok(entry) => Ok(entry),
        Err(found) if found.error.is_damage() => Ok(Entry {
            value: Value::unreadable(),
            created: revision(stored.create_revision()),
            modified: revision(stored.mod_revision()),
        }),
        Err(found) => {
            tracing::error!(%key, error = %found.error, "a value cannot be read: the watch ends");
            Err(End::Compacted(at.next()))
        }
    }
}
