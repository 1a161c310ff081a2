//! How does one watch get every event that concerns it, exactly once, at its own speed?
//!
//! A watcher is a cursor. It holds no queue: what it has not taken yet is in its class log or the event history,
//! and when it has gone from there too, on disk. Being slow costs nobody anything, least of all the writer.
//!
//! ```text
//! Await ──► Live ◄──► Replay          Await: the start lies in the future
//! Initial ──► │          │            Initial: objects of a root, then Live from the root's position
//!             ▼          ▼            Live: class log, or event history before it
//!            end      Expired         Replay: the store's history, until memory has what comes next
//! ```

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use drydock_storage::{Event, Events as _, Revision, Signal, Store, StoreError};
use futures_util::FutureExt as _;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, Sleep};

use super::bookmark::Bookmarks;
use super::class::{Chunk, Class, Member, Taken};
use super::encode_once::{EventEncoder, WatchKind};
use super::error::{ReadError, WatchEnd};
use super::history::{CacheEvent, Entered, History, kind_for};
use super::object::CachedObject;
use super::selection::Selection;
use super::snapshot::Objects;
use super::watch_cache::Shared;

/// Frames are packed into buffers of this size; only a single larger frame makes a larger one.
const BUFFER: usize = 64 << 10;

/// The most events looked at for one buffer.
const MOST_EVENTS: usize = 256;

/// A watch that has not taken an event for so long counts as lagging.
const LAGGING: Duration = Duration::from_secs(1);

/// How long a watch may go on sending what is pending when it should end with the server.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// What a watch asks for.
#[derive(Debug, Clone)]
pub struct WatchRequest {
    /// Scope and selectors.
    pub selection: Selection,
    /// Where the stream begins.
    pub start: Start,
    /// Whether bookmarks are wanted, the one after initial events included.
    pub bookmarks: bool,
    /// When the stream ends by itself.
    pub timeout: Duration,
}

/// Where a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Behind this revision: everything later, nothing else. It may lie in the future.
    From(Revision),
    /// With ADDED for every object of a state, then everything later.
    InitialEvents(InitialState),
    /// With whatever comes after every write answered before.
    Now,
}

/// Which state initial events show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InitialState {
    /// The newest the cache has.
    Any,
    /// One of this revision or later.
    NotOlderThan(Revision),
    /// One that holds every write answered before.
    Fresh,
}

/// An open watch. Dropping it ends it. See the module.
pub struct Watcher<S: Store> {
    shared: Arc<Shared<S>>,
    /// Tells it from all other watches of the cache.
    id: u64,
    cursor: Arc<Cursor>,
    class: Member,
    woken: watch::Receiver<u64>,
    state: State<S>,
    /// How often the cache had been found wrong when the watch began.
    faults: u64,
    /// The position of the next event to look at, when live.
    next: u64,
    /// Every event up to here has been sent, or does not concern this watch.
    seen: Revision,
    /// The revision of the last event sent, and how many events of it were.
    sent: (Revision, usize),
    bookmarks: Option<Bookmarks>,
    deadline: Instant,
    /// When in the server's end this watch has its turn, 0 to 1.
    turn: f64,
    timer: Pin<Box<Sleep>>,
    has_begun: bool,
    /// When the events of the last buffer entered the cache; measured once its peer has taken it.
    pending: Entered,
}

/// Where a watch is, for others to see whether it lags: a peer that takes nothing is not there to say so.
#[derive(Debug)]
pub(super) struct Cursor {
    class: Arc<Class>,
    /// The position of the next event to look at; none while it reads something else than events in memory.
    next: AtomicU64,
    /// Every event up to this revision has been sent.
    seen: AtomicU64,
}

/// No position: the watch is not at events in memory.
const ELSEWHERE: u64 = u64::MAX;

impl Cursor {
    /// How many revisions there are from the first event that the watch has not taken for [`LAGGING`] to `applied`; 0 for
    /// one that does not lag.
    pub(super) fn behind(&self, history: &History, applied: Revision, now: Instant) -> u64 {
        let next = self.next.load(Ordering::Relaxed);
        let behind = |revision: Revision| applied.0.saturating_sub(revision.0);
        if next == ELSEWHERE {
            return behind(Revision(self.seen.load(Ordering::Relaxed)));
        }
        let Some(pending) = self.class.pending(next) else {
            return 0;
        };
        match history.at(std::iter::once(pending)).first() {
            Some(event) if now.duration_since(event.at) < LAGGING => 0,
            Some(event) => behind(event.revision.previous()),
            None => behind(history.floor()).max(1),
        }
    }
}

enum State<S: Store> {
    /// Nothing is sent until this revision is reached.
    Await(Revision, watch::Receiver<Revision>),
    /// Objects of a state, at its revision.
    Initial(Objects, Revision),
    Live,
    Replay(Replay<S>),
    /// Ends with this, at this time.
    Failing(Option<WatchEnd>, Instant),
    Ended,
}

/// Reading the store's history because memory does not have what comes next. The stream is not kept here while the
/// peer takes its time, see [`Parked`].
struct Replay<S: Store> {
    /// The open stream, while it is read.
    events: Option<S::Events>,
    /// How many events of the first revision have been sent before.
    skip: usize,
}

enum Step {
    Frames(Bytes),
    /// Something else is to be done now.
    Again,
    Wait,
    Failed(WatchEnd),
}

/// What the logs had for a live watcher.
enum Pulled {
    Frames(Bytes),
    /// Events that do not concern this watch.
    Passed,
    /// Everything up to this applied revision has been sent.
    Head(Revision),
    /// What comes next is not in memory any more.
    Overtaken,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S: Store> Watcher<S> {
    pub(super) async fn begin(shared: Arc<Shared<S>>, request: WatchRequest) -> Result<Self, ReadError> {
        // Before any root is: one that is found wrong later is then known to be older.
        let faults = shared.faults.load(Ordering::SeqCst);
        let newest = shared.newest()?;
        let deadline = Instant::now() + request.timeout;
        // Joined before looking where to start: from here on, events are noted for this watch.
        let class = lock(&shared.classes).join(&request.selection);
        let mut random = lock(&shared.random).fork();
        let id = shared.watches_begun.fetch_add(1, Ordering::Relaxed);
        let cursor = Arc::new(Cursor {
            class: Arc::clone(class.class()),
            next: AtomicU64::new(newest.position()),
            seen: AtomicU64::new(newest.revision().0),
        });
        lock(&shared.cursors).insert(id, Arc::clone(&cursor));
        let mut watcher = Self {
            cursor,
            woken: class.subscribe(),
            id,
            class,
            state: State::Live,
            faults,
            next: newest.position(),
            seen: newest.revision(),
            sent: (Revision(0), 0),
            bookmarks: None,
            deadline,
            turn: random.f64(),
            timer: Box::pin(tokio::time::sleep_until(deadline)),
            has_begun: false,
            pending: Entered::default(),
            shared,
        };
        watcher.shared.metrics.watchers.inc();
        drop(newest);
        watcher.place(request.start, &request.selection).await?;
        watcher.tell_place();
        watcher.bookmarks = request
            .bookmarks
            .then(|| Bookmarks::new(watcher.seen, deadline, random));
        Ok(watcher)
    }

    async fn place(&mut self, start: Start, selection: &Selection) -> Result<(), ReadError> {
        let snapshot = match start {
            Start::From(revision) => return self.place_behind(revision).await,
            Start::Now | Start::InitialEvents(InitialState::Fresh) => self.shared.fresh().await?,
            Start::InitialEvents(InitialState::Any) => self.shared.newest()?,
            Start::InitialEvents(InitialState::NotOlderThan(revision)) => {
                match self.shared.not_older_than(revision).await {
                    Err(ReadError::TooLargeResourceVersion { requested, current }) => {
                        let end = WatchEnd::TooLargeResourceVersion { requested, current };
                        self.state = State::Failing(Some(end), Instant::now());
                        return Ok(());
                    }
                    snapshot => snapshot?,
                }
            }
        };
        self.next = snapshot.position();
        self.seen = snapshot.revision();
        if start != Start::Now {
            snapshot.check_readable(selection)?;
            self.state = State::Initial(snapshot.matches(selection), snapshot.revision());
        }
        Ok(())
    }

    async fn place_behind(&mut self, revision: Revision) -> Result<(), ReadError> {
        self.seen = revision;
        if self.join_memory() {
            return Ok(());
        }
        self.state = if let Some(end) = self.expiry() {
            State::Failing(Some(end), Instant::now())
        } else {
            // Refused at once rather than silent for long, where even a moment cannot be had.
            drop(replay_permit(&self.shared).await?);
            State::Replay(Replay {
                events: None,
                skip: 0,
            })
        };
        Ok(())
    }

    /// Goes live if the event history holds everything after `seen`, or will.
    fn join_memory(&mut self) -> bool {
        // What comes after `seen` has no position before the cache itself has come that far; the store's history
        // may be ahead of it.
        let mut applied = self.shared.applied.subscribe();
        if self.seen > *applied.borrow_and_update() {
            self.state = State::Await(self.seen, applied);
            return true;
        }
        let Some(position) = self.shared.history.position_after(self.seen) else {
            return false;
        };
        self.next = position;
        self.state = State::Live;
        true
    }

    /// How the watch ends if the store does not hold what comes after `seen` either, or if what was sent so far
    /// may have been wrong.
    fn expiry(&self) -> Option<WatchEnd> {
        if self.is_mistaken() {
            return Some(self.expired(self.shared.history.floor().next()));
        }
        let oldest = self.shared.store.floors().watchable_from;
        (self.seen.next() < oldest).then(|| self.expired(oldest))
    }

    /// Whether what was sent may have been wrong: the cache has been found to be since the watch began.
    fn is_mistaken(&self) -> bool {
        self.faults != self.shared.faults.load(Ordering::SeqCst)
    }

    fn expired(&self, oldest: Revision) -> WatchEnd {
        self.shared.metrics.expired.inc();
        WatchEnd::Expired {
            since: self.seen,
            oldest,
        }
    }

    /// The next frames, packed; waits until there are some. None when the watch has ended as it should. After an
    /// error there is nothing more. Cancel safe.
    pub async fn next_buffer(&mut self, encoder: &dyn EventEncoder) -> Option<Result<Bytes, WatchEnd>> {
        // Whoever asks for more has passed on what there was.
        for (kind, at) in std::mem::take(&mut self.pending).iter() {
            let metric = self.shared.metrics.publish_to_socket(kind);
            metric.observe(at.elapsed().as_secs_f64());
        }
        let answer = self.take_next(encoder).await;
        self.tell_place();
        answer
    }

    /// Says where the watch is.
    fn tell_place(&self) {
        let next = match self.state {
            State::Live => self.next,
            State::Await(..) | State::Initial(..) | State::Replay(_) => ELSEWHERE,
            // Nothing more is to be taken.
            State::Failing(..) | State::Ended => ELSEWHERE - 1,
        };
        self.cursor.seen.store(self.seen.0, Ordering::Relaxed);
        self.cursor.next.store(next, Ordering::Relaxed);
    }

    async fn take_next(&mut self, encoder: &dyn EventEncoder) -> Option<Result<Bytes, WatchEnd>> {
        loop {
            if let Some(ended_at) = self.is_over() {
                let last = self.last_words(encoder, ended_at);
                return last.map(|last| Ok(self.began(last)));
            }
            let step = match &mut self.state {
                State::Ended => return None,
                State::Initial(..) => self.send_initial(encoder),
                State::Live => self.go_on(encoder),
                State::Replay(_) => self.replay(encoder).await,
                State::Await(revision, applied) => {
                    if *applied.borrow() < *revision {
                        Step::Wait
                    } else {
                        self.leave_memory_unless_joined();
                        Step::Again
                    }
                }
                State::Failing(end, at) => match end.take_if(|_| *at <= Instant::now()) {
                    Some(end) => Step::Failed(end),
                    None => Step::Wait,
                },
            };
            match step {
                Step::Frames(bytes) => return Some(Ok(self.began(bytes))),
                Step::Again => {}
                Step::Wait => self.wait().await,
                Step::Failed(end) => {
                    self.state = State::Ended;
                    return Some(Err(end));
                }
            }
        }
    }

    fn began(&mut self, bytes: Bytes) -> Bytes {
        self.has_begun = true;
        bytes
    }

    /// Since when the watch is over.
    fn is_over(&self) -> Option<Instant> {
        let now = Instant::now();
        let end = self
            .turn_to_end()
            .map_or(self.deadline, |turn| turn.min(self.deadline));
        (end <= now).then_some(end)
    }

    fn turn_to_end(&self) -> Option<Instant> {
        let (from, over) = self.shared.ending.get()?;
        Some(*from + over.mul_f64(self.turn))
    }

    /// What is still said when the watch is over: with the server's end what is pending and a bookmark, so that
    /// the client can resume; otherwise nothing.
    fn last_words(&mut self, encoder: &dyn EventEncoder, ended_at: Instant) -> Option<Bytes> {
        let is_live = matches!(self.state, State::Live);
        let now = Instant::now();
        if is_live && self.deadline > now && now < ended_at + LAST_WORDS {
            loop {
                match self.pull(encoder) {
                    Ok(Pulled::Frames(bytes)) => return Some(bytes),
                    Ok(Pulled::Passed) => {}
                    Ok(Pulled::Head(applied)) => {
                        self.state = State::Ended;
                        return self.bookmark(encoder, applied);
                    }
                    Ok(Pulled::Overtaken) | Err(_) => break,
                }
            }
        }
        self.state = State::Ended;
        None
    }

    async fn wait(&mut self) {
        let target = self.next_alarm();
        if self.timer.deadline() != target {
            self.timer.as_mut().reset(target);
        }
        let revision = async {
            match &mut self.state {
                State::Await(revision, applied) => {
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

    /// When there is something to do whatever happens.
    fn next_alarm(&self) -> Instant {
        let own = match (&self.state, &self.bookmarks) {
            (State::Live, Some(bookmarks)) => Some(bookmarks.next_at()),
            (State::Failing(_, at), _) => Some(*at),
            _ => None,
        };
        let alarms = [Some(self.deadline), self.turn_to_end(), own];
        alarms.into_iter().flatten().min().unwrap_or(self.deadline)
    }

    /// The encoder of the next frame, `yet` frames from here.
    fn encoder_after<'e>(&self, encoder: &'e dyn EventEncoder, yet: usize) -> &'e dyn EventEncoder {
        if self.has_begun || yet > 0 {
            encoder.following().unwrap_or(encoder)
        } else {
            encoder
        }
    }

    fn send_initial(&mut self, encoder: &dyn EventEncoder) -> Step {
        let mut out = BytesMut::with_capacity(BUFFER);
        let mut count = 0;
        while out.len() < BUFFER {
            let State::Initial(objects, revision) = &mut self.state else {
                break;
            };
            let revision = *revision;
            let Some(object) = objects.next() else {
                self.state = State::Live;
                if self.bookmarks.is_some() {
                    self.encoder_after(encoder, count)
                        .bookmark(revision, true, &mut out);
                }
                break;
            };
            let before = out.len();
            let encoder = self.encoder_after(encoder, count);
            match encoder.event(WatchKind::Added, &object, object.modified(), &mut out) {
                Ok(()) => count += 1,
                Err(error) => {
                    out.truncate(before);
                    self.state = State::Failing(Some(error.into()), Instant::now());
                }
            }
        }
        let sent = u64::try_from(count).unwrap_or(u64::MAX);
        self.shared.metrics.initial_events.inc_by(sent);
        if out.is_empty() {
            Step::Again
        } else {
            Step::Frames(out.freeze())
        }
    }

    fn go_on(&mut self, encoder: &dyn EventEncoder) -> Step {
        match self.pull(encoder) {
            Ok(Pulled::Frames(bytes)) => Step::Frames(bytes),
            Ok(Pulled::Passed) => Step::Again,
            Ok(Pulled::Head(applied)) => {
                let due = self.bookmarks.as_ref().map(Bookmarks::next_at);
                if due.is_none_or(|due| due > Instant::now()) {
                    return Step::Wait;
                }
                self.bookmark(encoder, applied).map_or(Step::Wait, Step::Frames)
            }
            Ok(Pulled::Overtaken) => {
                self.leave_memory();
                Step::Again
            }
            Err(end) => Step::Failed(end),
        }
    }

    fn bookmark(&mut self, encoder: &dyn EventEncoder, applied: Revision) -> Option<Bytes> {
        let bookmarks = self.bookmarks.as_mut()?;
        let revision = bookmarks.promise(Instant::now(), applied, self.sent.0)?;
        let mut out = BytesMut::new();
        self.encoder_after(encoder, 0).bookmark(revision, false, &mut out);
        Some(out.freeze())
    }

    /// Takes what the logs have, up to a buffer full.
    fn pull(&mut self, encoder: &dyn EventEncoder) -> Result<Pulled, WatchEnd> {
        // Read before the class log: all events of this root are in there.
        let (applied, position) = match &*self.shared.newest.load() {
            Some(root) => (root.revision, root.position),
            None => (self.seen, self.next),
        };
        let id = self.encoder_after(encoder, 0).id();
        match self.class.take(self.next, id, MOST_EVENTS) {
            Taken::Nothing => {
                self.next = self.next.max(position);
                self.seen = self.seen.max(applied);
                Ok(Pulled::Head(applied))
            }
            Taken::Chunk(chunk) => {
                self.next = chunk.last + 1;
                if self.sent.0 == chunk.first_revision && chunk.first_revision == chunk.last_revision {
                    self.sent.1 += chunk.of_last_revision;
                } else {
                    self.sent = (chunk.last_revision, chunk.of_last_revision);
                }
                self.pending = chunk.entered;
                Ok(Pulled::Frames(chunk.bytes))
            }
            Taken::Entries(entries) => {
                let events = self.shared.history.at(entries.iter().map(|entry| entry.position));
                if events.is_empty() {
                    return Ok(Pulled::Overtaken);
                }
                let kinds = entries.iter().map(|entry| entry.kind);
                let wanted: Vec<_> = events.into_iter().zip(kinds).collect();
                let packed = self.pack(&wanted, encoder)?;
                if self.has_begun || encoder.following().is_none() {
                    self.share(&wanted, &packed, id);
                }
                Ok(Pulled::Frames(packed.bytes))
            }
            Taken::CoveredFrom(covered) => self.pull_from_history(encoder, covered),
        }
    }

    /// Takes events from before the class log begins.
    fn pull_from_history(&mut self, encoder: &dyn EventEncoder, covered: u64) -> Result<Pulled, WatchEnd> {
        let Some(events) = self.shared.history.range(self.next, covered, MOST_EVENTS) else {
            return Ok(Pulled::Overtaken);
        };
        let Some(last) = events.last().map(|event| event.position) else {
            self.next = covered;
            return Ok(Pulled::Passed);
        };
        let wanted: Vec<_> = events
            .into_iter()
            .filter_map(|event| Some((Arc::clone(&event), event.kind_for(&self.class.selection)?)))
            .collect();
        if wanted.is_empty() {
            self.next = last + 1;
            return Ok(Pulled::Passed);
        }
        let packed = self.pack(&wanted, encoder)?;
        if packed.count == wanted.len() {
            self.next = last + 1;
        }
        Ok(Pulled::Frames(packed.bytes))
    }

    /// Packs frames of events until the buffer is full, and moves the cursor behind the last one in it. When a
    /// frame cannot be made, those before it are sent first.
    fn pack(
        &mut self,
        wanted: &[(Arc<CacheEvent>, WatchKind)],
        encoder: &dyn EventEncoder,
    ) -> Result<Packed, WatchEnd> {
        let mut packer = Packer::default();
        let mut count = 0;
        for (event, kind) in wanted {
            let (frame, was_made) = event.frame(*kind, self.encoder_after(encoder, count));
            let metrics = &self.shared.metrics;
            let counter = if was_made {
                &metrics.encodings_shared
            } else {
                &metrics.encoded
            };
            counter.inc();
            let frame = match frame {
                Ok(frame) => frame,
                Err(_) if count > 0 => break,
                Err(error) => return Err(error.into()),
            };
            if count > 0 && packer.len() + frame.len() > BUFFER {
                break;
            }
            packer.add(frame);
            count += 1;
            self.next = event.position + 1;
            self.pending.note(*kind, event.at);
            self.note_sent(event.revision);
        }
        Ok(Packed {
            bytes: packer.finish(),
            count,
        })
    }

    fn note_sent(&mut self, revision: Revision) {
        if self.sent.0 == revision {
            self.sent.1 += 1;
        } else {
            self.sent = (revision, 1);
        }
    }

    fn share(&self, wanted: &[(Arc<CacheEvent>, WatchKind)], packed: &Packed, encoder: super::EncoderId) {
        let packed_events = wanted.get(..packed.count).unwrap_or_default();
        let (Some((first, _)), Some((last, _))) = (packed_events.first(), packed_events.last()) else {
            return;
        };
        let of_last = packed_events.iter().rev();
        self.class.share(Chunk {
            encoder,
            from: first.position,
            first_revision: first.revision,
            last: last.position,
            last_revision: last.revision,
            of_last_revision: of_last
                .take_while(|(event, _)| event.revision == last.revision)
                .count(),
            entered: self.pending,
            bytes: packed.bytes.clone(),
        });
    }

    fn leave_memory_unless_joined(&mut self) {
        if self.is_mistaken() || !self.join_memory() {
            self.leave_memory();
        }
    }

    /// Goes on with the store's history, or ends when that does not reach back far enough.
    fn leave_memory(&mut self) {
        let (last, of_last) = self.sent;
        // A revision of which a part was sent is read again, without that part.
        let skip = if self.seen < last {
            self.seen = last.previous();
            of_last
        } else {
            0
        };
        self.state = match self.expiry() {
            Some(end) => State::Failing(Some(end), self.turn_to_expire()),
            None => State::Replay(Replay { events: None, skip }),
        };
    }

    /// When many expire together, they do it one after the other, so that they do not all relist at once.
    fn turn_to_expire(&self) -> Instant {
        let now = Instant::now();
        let stagger = self.shared.config.limits.stagger;
        let restarted = *lock(&self.shared.restarted);
        match restarted.filter(|at| now.duration_since(*at) < stagger) {
            Some(at) => at + stagger.mul_f64(self.turn),
            None => now,
        }
    }

    async fn replay(&mut self, encoder: &dyn EventEncoder) -> Step {
        let State::Replay(replay) = &mut self.state else {
            return Step::Again;
        };
        if replay.events.is_none() {
            replay.events = lock(&self.shared.parked).take(self.id);
        }
        let is_whole = replay.skip == 0;
        if self.is_mistaken() {
            let oldest = self.shared.history.floor().next();
            return self.expire(oldest);
        }
        if is_whole && self.join_memory() {
            return Step::Again;
        }
        let target = self.next_alarm();
        if self.timer.deadline() != target {
            self.timer.as_mut().reset(target);
        }
        let read = tokio::select! {
            biased;
            read = next_replayed(&self.shared, &self.class.selection, self.seen, &mut self.state) => read,
            () = self.timer.as_mut() => return Step::Again,
        };
        let step = match read {
            Ok(Replayed::Signal(signal, _permit)) => self.take_replayed(signal, encoder),
            Ok(Replayed::NothingYet) => Step::Again,
            Err(StoreError::Compacted { floor, .. }) => self.expire(floor),
            Err(error) => Step::Failed(WatchEnd::Store(error)),
        };
        // The peer may take as long as it likes with this; others have their turn meanwhile.
        if matches!(step, Step::Frames(_))
            && let State::Replay(replay) = &mut self.state
            && let Some(events) = replay.events.take()
        {
            lock(&self.shared.parked).put(self.id, events);
        }
        step
    }

    fn expire(&mut self, oldest: Revision) -> Step {
        let end = self.expired(oldest);
        self.state = State::Failing(Some(end), self.turn_to_expire());
        Step::Again
    }

    /// Packs what the store told, and what it tells without waiting.
    fn take_replayed(&mut self, first: Option<Signal>, encoder: &dyn EventEncoder) -> Step {
        let mut out = BytesMut::new();
        let mut count = 0;
        let mut signal = Some(first);
        while let Some(next) = signal {
            match next {
                Some(Signal::Change(event)) => {
                    let (revision, events) = (event.revision, vec![event]);
                    if let Err(error) = self.encode_replayed(revision, events, encoder, &mut count, &mut out)
                    {
                        if out.is_empty() {
                            return Step::Failed(error);
                        }
                        self.state = State::Failing(Some(error), Instant::now());
                        return Step::Frames(out.freeze());
                    }
                }
                Some(Signal::Progress(revision)) => self.seen = self.seen.max(revision),
                Some(Signal::Compacted(oldest)) if out.is_empty() => return self.expire(oldest),
                Some(Signal::Compacted(oldest)) => {
                    self.expire(oldest);
                    break;
                }
                // The store's stream ended; another one goes on at the same place.
                None => {
                    if let State::Replay(replay) = &mut self.state {
                        replay.events = None;
                    }
                    break;
                }
            }
            signal = match &mut self.state {
                State::Replay(replay) if out.len() < BUFFER => replay
                    .events
                    .as_mut()
                    .and_then(|events| events.next().now_or_never()),
                _ => None,
            };
        }
        if out.is_empty() {
            Step::Again
        } else {
            Step::Frames(out.freeze())
        }
    }

    /// Appends the frames of one revision; what was appended of it is dropped when one of them cannot be made.
    fn encode_replayed(
        &mut self,
        revision: Revision,
        events: Vec<Event>,
        encoder: &dyn EventEncoder,
        count: &mut usize,
        out: &mut BytesMut,
    ) -> Result<(), WatchEnd> {
        let State::Replay(replay) = &mut self.state else {
            return Ok(());
        };
        let mut skip = std::mem::take(&mut replay.skip);
        let extract = Arc::clone(&self.shared.config.extract);
        let before = out.len();
        for Event { key, new, old, .. } in events {
            if old.as_ref().is_some_and(|old| old.value.is_unreadable())
                && self.class.selection.may_match(&key)
            {
                // It is gone and nobody knows what it was: the client lists anew.
                out.truncate(before);
                return Err(self.expired(revision.next()));
            }
            let read = |entry| CachedObject::new(key.clone(), entry, &*extract);
            let (old, new) = (old.map(read), new.map(read));
            let Some(kind) = kind_for(&self.class.selection, old.as_ref(), new.as_ref()) else {
                continue;
            };
            if skip > 0 {
                skip -= 1;
                continue;
            }
            let shown = if kind == WatchKind::Deleted { &old } else { &new };
            if let Some(shown) = shown {
                let encoder = self.encoder_after(encoder, *count);
                let result = encoder.event(kind, shown, revision, out);
                result.inspect_err(|_| out.truncate(before))?;
                *count += 1;
                self.note_sent(revision);
            }
        }
        self.seen = revision;
        Ok(())
    }
}

/// What was had of the store's history, and the right to go on reading what it tells without waiting.
enum Replayed {
    Signal(Option<Signal>, Option<OwnedSemaphorePermit>),
    /// Nothing came in time.
    NothingYet,
}

/// Streams of the store's history whose watches wait for their peers: each may hold what it has read ahead, so only
/// a few are kept. A watch that finds its own gone opens another one at the same place.
pub(super) struct Parked<E> {
    most: usize,
    streams: VecDeque<(u64, E)>,
}

impl<E> Parked<E> {
    pub(super) const fn new(most: usize) -> Self {
        Self {
            most,
            streams: VecDeque::new(),
        }
    }

    /// Keeps the stream of a watch, instead of the one kept longest when there are too many.
    fn put(&mut self, watch: u64, events: E) {
        if self.streams.len() >= self.most {
            self.streams.pop_front();
        }
        self.streams.push_back((watch, events));
    }

    fn take(&mut self, watch: u64) -> Option<E> {
        let index = self.streams.iter().position(|(of, _)| *of == watch)?;
        self.streams.remove(index).map(|(_, events)| events)
    }
}

/// Waits its turn for a moment: after a restart many resume at once, and each is done soon.
async fn replay_permit<S: Store>(shared: &Shared<S>) -> Result<OwnedSemaphorePermit, ReadError> {
    let permit = Arc::clone(&shared.replays).acquire_owned();
    let permit = tokio::time::timeout(shared.config.limits.read_wait, permit).await;
    permit.ok().and_then(Result::ok).ok_or(ReadError::Busy {
        retry_after: Duration::from_secs(1),
    })
}

/// The store's next word on what comes after `seen`, opening its history first. Cancel safe: what was acquired is
/// in the state before anything else is awaited.
async fn next_replayed<S: Store>(
    shared: &Shared<S>,
    selection: &Selection,
    seen: Revision,
    state: &mut State<S>,
) -> Result<Replayed, StoreError> {
    let State::Replay(replay) = state else {
        return Ok(Replayed::NothingYet);
    };
    // The semaphore is never closed; a watch without a permit would still be right.
    let permit = Arc::clone(&shared.replays).acquire_owned().await.ok();
    let events = if let Some(events) = &mut replay.events {
        events
    } else {
        let events = shared.store.watch(selection.range(), seen.next()).await?;
        replay.events.insert(events)
    };
    // There is something, or memory would have been joined. Should it be long in coming, others have their turn.
    match tokio::time::timeout(shared.config.limits.read_wait, events.next()).await {
        Ok(signal) => Ok(Replayed::Signal(signal, permit)),
        Err(_) => Ok(Replayed::NothingYet),
    }
}

impl<S: Store> Drop for Watcher<S> {
    fn drop(&mut self) {
        drop(lock(&self.shared.parked).take(self.id));
        lock(&self.shared.cursors).remove(&self.id);
        self.shared.metrics.watchers.dec();
    }
}

struct Packed {
    bytes: Bytes,
    count: usize,
}

/// Joins frames. A single one is passed on as it is.
#[derive(Default)]
struct Packer {
    single: Option<Bytes>,
    joined: BytesMut,
}

impl Packer {
    fn len(&self) -> usize {
        self.single.as_ref().map_or(self.joined.len(), Bytes::len)
    }

    fn add(&mut self, frame: Bytes) {
        if self.joined.is_empty() && self.single.is_none() {
            self.single = Some(frame);
            return;
        }
        if let Some(single) = self.single.take() {
            self.joined.reserve((single.len() + frame.len()) * 2);
            self.joined.extend_from_slice(&single);
        }
        self.joined.extend_from_slice(&frame);
    }

    fn finish(self) -> Bytes {
        self.single.unwrap_or_else(|| self.joined.freeze())
    }
}
