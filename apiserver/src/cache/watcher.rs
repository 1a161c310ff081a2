//! One watch: every event that matches its selection, exactly once, at its client's speed.
//!
//! A watcher is a cursor and has no queue. The events it has not sent yet are in its class log or the event history,
//! and later only in the store. So a slow client holds up neither the feeder nor other watches.
//!
//! ```text
//! Await ──► Live ◄──► Replay          Await: the start lies in the future; expired if the store never had it
//! Initial ──► │          │            Initial: objects of a state, then Live from its position
//!             ▼          ▼            Live: events in memory
//!            end      expired         Replay: the store's history, until memory has the next event
//! ```

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use drydock_storage::{Revision, Store, StoreError};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep};

use super::bookmark::Bookmarks;
use super::class::Member;
use super::encode_once::{EventEncoder, WatchKind};
use super::error::{ReadError, WatchEnd};
use super::history::Entered;
use super::live::{Live, Pulled};
use super::open_watches::{Cursor, Opened};
use super::packer::BUFFER;
use super::parts::CacheParts;
use super::progress::Progress;
use super::reads::Reads;
use super::replay::{Filled, Next, Replay, ReplayEnd};
use super::selection::Selection;
use super::snapshot::Objects;
use crate::request::freshness::{Freshness, WatchStart};

/// How often a watch that waits for a revision asks the store whether it has it: ten times as long as reads wait for one.
const ASK_EVERY: Duration = Duration::from_secs(30);
/// How long a watch that ends with the server may still send pending events.
const DRAIN_TIME: Duration = Duration::from_secs(1);

/// What a watch asks for.
#[derive(Debug, Clone)]
pub struct WatchRequest {
    /// Scope and selectors.
    pub selection: Selection,
    /// Where the stream begins.
    pub start: WatchStart,
    /// Whether bookmarks are wanted, including the one after initial events.
    pub bookmarks: bool,
    /// When the stream ends by itself.
    pub timeout: Duration,
}

/// An open watch; dropping it closes it. See the module.
pub struct Watcher<S: Store> {
    parts: Arc<CacheParts<S>>,
    /// Identifies the watch among all watches of the cache.
    id: u64,
    cursor: Arc<Cursor>,
    class: Member,
    woken: watch::Receiver<u64>,
    state: State<S>,
    /// The generation of the cache when the watch began.
    generation: u64,
    progress: Progress,
    bookmarks: Option<Bookmarks>,
    deadline: Instant,
    /// Offset (0–1) within the staggered termination window.
    stagger: f64,
    timer: Pin<Box<Sleep>>,
}

enum State<S: Store> {
    /// Nothing is sent until the cache has reached this revision. At this time the store is asked for its own.
    Await(Revision, watch::Receiver<Revision>, Instant),
    /// Sends the objects of a state, at its revision.
    Initial(Objects, Revision),
    Live,
    Replay(Replay<S::Events>),
    /// Ends with this error, at this time.
    Failing(Option<WatchEnd>, Instant),
    Ended,
}

enum Step {
    Frames(Bytes),
    /// The state has changed: look again.
    Again,
    Wait,
    Failed(WatchEnd),
}

impl<S: Store> Watcher<S> {
    pub(super) async fn begin(reads: &Reads<S>, request: WatchRequest) -> Result<Self, ReadError> {
        let parts = Arc::clone(reads.parts());
        // Read before any root: a root that turns out to be wrong later then belongs to an older generation.
        let generation = parts.termination.generation();
        let newest = reads.newest()?;
        let deadline = Instant::now() + request.timeout;
        // Joined before the start is chosen: from here on, events are noted for this watch.
        let class = parts.logs.join(&request.selection);
        let (next, seen) = (newest.position(), newest.revision());
        drop(newest);
        let Opened {
            id,
            cursor,
            mut random,
        } = parts.watches.open(class.class(), next, seen);
        parts.metrics.watchers.inc();
        let mut watcher = Self {
            parts,
            id,
            cursor,
            woken: class.subscribe(),
            class,
            state: State::Live,
            generation,
            progress: Progress {
                next,
                seen,
                has_begun: false,
                pending: Entered::default(),
            },
            bookmarks: None,
            deadline,
            stagger: random.f64(),
            timer: Box::pin(tokio::time::sleep_until(deadline)),
        };
        watcher.place(reads, request.start, &request.selection).await?;
        watcher.update_cursor();
        watcher.bookmarks = request
            .bookmarks
            .then(|| Bookmarks::new(watcher.progress.seen, deadline, random));
        Ok(watcher)
    }

    async fn place(
        &mut self,
        reads: &Reads<S>,
        start: WatchStart,
        selection: &Selection,
    ) -> Result<(), ReadError> {
        let freshness = match start {
            WatchStart::After(revision) => return self.place_after(revision).await,
            WatchStart::InitialEvents(freshness) => freshness,
            WatchStart::Now => Freshness::MostRecent,
        };
        let snapshot = match reads.current(freshness).await {
            Err(ReadError::TooLargeResourceVersion { requested, current }) => {
                self.fail_at(
                    WatchEnd::TooLargeResourceVersion { requested, current },
                    Instant::now(),
                );
                return Ok(());
            }
            snapshot => snapshot?,
        };
        self.progress.next = snapshot.position();
        self.progress.seen = snapshot.revision();
        if start != WatchStart::Now {
            snapshot.check_readable(selection)?;
            self.state = State::Initial(snapshot.matches(selection), snapshot.revision());
        }
        Ok(())
    }

    async fn place_after(&mut self, revision: Revision) -> Result<(), ReadError> {
        self.progress.seen = revision;
        if self.join_memory() {
            return Ok(());
        }
        if let Some(end) = self.expiry() {
            self.fail_at(end, Instant::now());
        } else {
            // Where no permit is free for long, refuse the watch now instead of opening a silent stream.
            self.parts.replays.check_admission().await?;
            self.state = State::Replay(Replay::new());
        }
        Ok(())
    }

    fn fail_at(&mut self, end: WatchEnd, at: Instant) {
        self.state = State::Failing(Some(end), at);
    }

    /// Goes live if the event history has everything after `seen`, or waits until it will; returns whether it did.
    fn join_memory(&mut self) -> bool {
        let seen = self.progress.seen;
        // The store's history may be ahead of the cache. What follows `seen` has no position before the cache has
        // reached it.
        let mut applied = self.parts.published.subscribe();
        if seen > *applied.borrow_and_update() {
            self.state = State::Await(seen, applied, Instant::now() + ASK_EVERY);
            return true;
        }
        let Some(position) = self.parts.logs.history().position_after(seen) else {
            return false;
        };
        self.progress.next = position;
        self.state = State::Live;
        true
    }

    /// The error to end with if the store does not have what follows `seen` either, or if what was sent may be wrong.
    fn expiry(&self) -> Option<WatchEnd> {
        if let Some(end) = self.outdated() {
            return Some(end);
        }
        let oldest = self.parts.source.store.floors().watchable_from;
        (self.progress.seen.next() < oldest).then(|| self.expired(oldest))
    }

    /// The error to end with if what was sent may be wrong: the cache was found to differ from the store since the
    /// watch began.
    fn outdated(&self) -> Option<WatchEnd> {
        let oldest = || self.parts.logs.history().floor().next();
        self.is_outdated().then(|| self.expired(oldest()))
    }

    fn is_outdated(&self) -> bool {
        self.generation != self.parts.termination.generation()
    }

    fn expired(&self, oldest: Revision) -> WatchEnd {
        self.progress.expired(oldest, &self.parts.metrics)
    }

    /// The next frames, packed; waits until there are some. None when the watch has ended normally. Nothing follows an
    /// error. Cancel safe.
    pub async fn next_buffer(&mut self, encoder: &dyn EventEncoder) -> Option<Result<Bytes, WatchEnd>> {
        // A caller that asks for more has passed on the last buffer.
        for (kind, at) in std::mem::take(&mut self.progress.pending).iter() {
            let metric = self.parts.metrics.publish_to_socket(kind);
            metric.observe(at.elapsed().as_secs_f64());
        }
        let next = self.take_next(encoder).await;
        self.update_cursor();
        next
    }

    fn update_cursor(&self) {
        let Progress { next, seen, .. } = self.progress;
        match self.state {
            State::Live => self.cursor.set_live(next, seen),
            State::Await(..) | State::Initial(..) | State::Replay(_) => self.cursor.set_not_live(seen),
            State::Failing(..) | State::Ended => self.cursor.set_ended(seen),
        }
    }

    async fn take_next(&mut self, encoder: &dyn EventEncoder) -> Option<Result<Bytes, WatchEnd>> {
        loop {
            if let Some(ended_at) = self.ended_at() {
                let last = self.last_frames(encoder, ended_at);
                self.progress.has_begun |= last.is_some();
                return last.map(Ok);
            }
            let step = match &mut self.state {
                State::Ended => return None,
                State::Initial(..) => self.send_initial(encoder),
                State::Live => self.send_live(encoder),
                State::Replay(_) => self.replay(encoder).await,
                State::Await(revision, applied, ask_at) => {
                    let revision = *revision;
                    if *applied.borrow() >= revision {
                        if self.is_outdated() || !self.join_memory() {
                            self.leave_memory();
                        }
                        Step::Again
                    } else if *ask_at <= Instant::now() {
                        self.ask_store(revision).await
                    } else {
                        Step::Wait
                    }
                }
                State::Failing(end, at) => match end.take_if(|_| *at <= Instant::now()) {
                    Some(end) => Step::Failed(end),
                    None => Step::Wait,
                },
            };
            match step {
                Step::Frames(frames) => {
                    self.progress.has_begun = true;
                    return Some(Ok(frames));
                }
                Step::Again => {}
                Step::Wait => self.wait().await,
                Step::Failed(end) => {
                    self.state = State::Ended;
                    return Some(Err(end));
                }
            }
        }
    }

    /// Ends the watch if the store itself has not reached the revision: it is from another life of the store, and events
    /// would not come before the store has counted up to it. Cancel safe: the store is asked again.
    async fn ask_store(&mut self, requested: Revision) -> Step {
        let current = self.parts.source.store.current_revision().await;
        if let State::Await(_, _, ask_at) = &mut self.state {
            *ask_at = Instant::now() + ASK_EVERY;
        }
        match current {
            Ok(current) if current < requested => {
                self.parts.metrics.expired.inc();
                Step::Failed(WatchEnd::NeverReached { requested, current })
            }
            // The cache is behind, or nobody knows.
            Ok(_) | Err(_) => Step::Wait,
        }
    }

    /// When the watch has ended by its timeout or with the server; none if it has not.
    fn ended_at(&self) -> Option<Instant> {
        let now = Instant::now();
        let shutdown = self.parts.termination.shutdown_at(self.stagger);
        let end = shutdown.map_or(self.deadline, |at| at.min(self.deadline));
        (end <= now).then_some(end)
    }

    /// What is still sent when the watch has ended: with the server's end the pending events and a bookmark, so that
    /// the client can resume; otherwise nothing.
    fn last_frames(&mut self, encoder: &dyn EventEncoder, ended_at: Instant) -> Option<Bytes> {
        let is_live = matches!(self.state, State::Live);
        let now = Instant::now();
        if is_live && self.deadline > now && now < ended_at + DRAIN_TIME {
            loop {
                match self.pull(encoder) {
                    Ok(Pulled::Frames(bytes)) => return Some(bytes),
                    Ok(Pulled::NoMatch) => {}
                    Ok(Pulled::Head(applied)) => {
                        self.state = State::Ended;
                        return self.bookmark(encoder, applied);
                    }
                    Ok(Pulled::NotInMemory) | Err(_) => break,
                }
            }
        }
        self.state = State::Ended;
        None
    }

    async fn wait(&mut self) {
        self.set_timer();
        let revision = async {
            match &mut self.state {
                State::Await(revision, applied, _) => {
                    let revision = *revision;
                    // The sender lives as long as the cache.
                    let _closed = applied.wait_for(|applied| *applied >= revision).await.is_err();
                }
                _ => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = self.woken.changed() => {}
            () = revision => {}
            () = self.timer.as_mut() => {}
        }
    }

    /// Sets the timer to the next time at which there is something to do in any case.
    fn set_timer(&mut self) {
        let own = match (&self.state, &self.bookmarks) {
            (State::Live, Some(bookmarks)) => Some(bookmarks.next_at()),
            (State::Failing(_, at) | State::Await(_, _, at), _) => Some(*at),
            _ => None,
        };
        let shutdown = self.parts.termination.shutdown_at(self.stagger);
        let others = [shutdown, own].into_iter().flatten();
        let target = others.fold(self.deadline, Ord::min);
        if self.timer.deadline() != target {
            self.timer.as_mut().reset(target);
        }
    }

    fn send_initial(&mut self, encoder: &dyn EventEncoder) -> Step {
        let mut out = BytesMut::with_capacity(BUFFER);
        let mut count = 0;
        while out.len() < BUFFER {
            let State::Initial(objects, revision) = &mut self.state else {
                break;
            };
            let encoder = self.progress.encoder(encoder, count);
            let Some(object) = objects.next() else {
                if self.bookmarks.is_some() {
                    encoder.bookmark(*revision, true, &mut out);
                }
                self.state = State::Live;
                break;
            };
            let before = out.len();
            match encoder.event(WatchKind::Added, &object, object.modified(), &mut out) {
                Ok(()) => count += 1,
                Err(error) => {
                    out.truncate(before);
                    self.fail_at(error.into(), Instant::now());
                }
            }
        }
        let sent = u64::try_from(count).unwrap_or(u64::MAX);
        self.parts.metrics.initial_events.inc_by(sent);
        frames_or_again(out)
    }

    fn pull(&mut self, encoder: &dyn EventEncoder) -> Result<Pulled, WatchEnd> {
        let parts = &*self.parts;
        let head = parts.published.head();
        let live = Live {
            history: parts.logs.history(),
            metrics: &parts.metrics,
            class: &self.class,
            progress: &mut self.progress,
            encoder,
        };
        live.pull(head)
    }

    fn send_live(&mut self, encoder: &dyn EventEncoder) -> Step {
        match self.pull(encoder) {
            Ok(Pulled::Frames(bytes)) => Step::Frames(bytes),
            Ok(Pulled::NoMatch) => Step::Again,
            Ok(Pulled::Head(applied)) => {
                let due = self.bookmarks.as_ref().map(Bookmarks::next_at);
                if due.is_none_or(|due| due > Instant::now()) {
                    return Step::Wait;
                }
                self.bookmark(encoder, applied).map_or(Step::Wait, Step::Frames)
            }
            Ok(Pulled::NotInMemory) => {
                self.leave_memory();
                Step::Again
            }
            Err(end) => Step::Failed(end),
        }
    }

    fn bookmark(&mut self, encoder: &dyn EventEncoder, applied: Revision) -> Option<Bytes> {
        let bookmarks = self.bookmarks.as_mut()?;
        let revision = bookmarks.take_due(Instant::now(), applied, self.progress.seen)?;
        let mut out = BytesMut::new();
        let encoder = self.progress.encoder(encoder, 0);
        encoder.bookmark(revision, false, &mut out);
        Some(out.freeze())
    }

    /// Continues with the store's history, or ends when that does not reach back far enough.
    fn leave_memory(&mut self) {
        match self.expiry() {
            Some(end) => self.expire(end),
            None => self.state = State::Replay(Replay::new()),
        }
    }

    async fn replay(&mut self, encoder: &dyn EventEncoder) -> Step {
        let State::Replay(replay) = &mut self.state else {
            return Step::Again;
        };
        if !replay.has_stream() {
            replay.set_stream(self.parts.replays.unpark(self.id));
        }
        if let Some(end) = self.outdated() {
            self.expire(end);
            return Step::Again;
        }
        if self.join_memory() {
            return Step::Again;
        }
        self.set_timer();
        let State::Replay(replay) = &mut self.state else {
            return Step::Again;
        };
        let range = self.class.selection.range();
        let next = tokio::select! {
            biased;
            next = replay.next(&self.parts, range, self.progress.seen) => next,
            () = self.timer.as_mut() => return Step::Again,
        };
        let (signal, _permit) = match next {
            Ok(Next::Signal(signal, permit)) => (signal, permit),
            Ok(Next::Nothing) => return Step::Again,
            Err(StoreError::Compacted { floor, .. }) => {
                self.expire(self.expired(floor));
                return Step::Again;
            }
            Err(error) => return Step::Failed(WatchEnd::Store(error)),
        };
        let selection = &self.class.selection;
        let Filled { frames, end } = replay.fill(signal, &self.parts, selection, &mut self.progress, encoder);
        // The client may take any time over the frames; others read meanwhile.
        if !frames.is_empty()
            && end.is_none()
            && let Some(stream) = replay.take_stream()
        {
            self.parts.replays.park(self.id, stream);
        }
        match end {
            Some(ReplayEnd::Compacted(oldest)) => self.expire(self.expired(oldest)),
            Some(ReplayEnd::Failed(end)) => self.fail_at(end, Instant::now()),
            None => {}
        }
        frames_or_again(frames)
    }

    fn expire(&mut self, end: WatchEnd) {
        self.fail_at(end, self.parts.termination.expire_at(self.stagger));
    }
}

fn frames_or_again(frames: BytesMut) -> Step {
    if frames.is_empty() {
        Step::Again
    } else {
        Step::Frames(frames.freeze())
    }
}

impl<S: Store> Drop for Watcher<S> {
    fn drop(&mut self) {
        drop(self.parts.replays.unpark(self.id));
        self.parts.watches.close(self.id);
        self.parts.metrics.watchers.dec();
    }
}
