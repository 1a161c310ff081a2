//! Who watches, how, and what is made of it?

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result};
use http::StatusCode;
use http_body_util::BodyExt as _;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use super::checks::list;
use super::scatter;
use super::settings::Settings;
use super::shared::{Phase, Shared};
use crate::ledger::wire::frame;
use crate::ledger::{Checker, ClassId, Event, Fault, Frame, Group, Kind, Rule, Selection};
use crate::lines::Lines;
use crate::load::{Call, Sender};

/// Watches of everything are few, of a group some, of one object some more; the rest is of a namespace.
const OF_EVERYTHING: usize = 2500;
const OF_A_GROUP: usize = 25;
const OF_AN_OBJECT: usize = 100;
/// A slow reader pauses so often, then reads until it has everything, and begins again.
const PAUSES: u32 = 6;
/// What it reads between two pauses: more than its stream's window, so that the server sees it read.
const BURST_BYTES: usize = 96 << 10;
/// How often a watch looks whether it is owed something.
const LOOK: Duration = Duration::from_secs(5);
/// A watch is to end by itself after so long, at least and at most.
const SHORTEST: u64 = 240;
const LONGEST: u64 = 900;
/// How much earlier than it was asked to may a watch end?
const EARLY: Duration = Duration::from_secs(1);

/// What the watcher of that number watches. Who is to read slowly watches more than it can take meanwhile.
pub(super) fn selection(number: usize, is_slow: bool, settings: &Settings) -> Selection {
    let spread = scatter(number as u64, 0);
    let below = |limit: u32| u32::try_from(spread % u64::from(limit.max(1))).unwrap_or_default();
    let everything = Selection::default();
    if is_slow || number % OF_A_GROUP == 2 {
        let group = below(settings.groups().into());
        Selection {
            group: u16::try_from(group).ok().map(Group::Is),
            ..everything
        }
    } else if number % OF_EVERYTHING == 1 {
        everything
    } else if number % OF_AN_OBJECT == 3 {
        Selection {
            object: Some(below(settings.objects)),
            ..everything
        }
    } else {
        Selection {
            namespace: Some(below(settings.namespaces())),
            ..everything
        }
    }
}

/// Opens a watch with these parameters; `None` when the server is too busy.
pub(super) async fn open(
    shared: &Shared,
    sender: &mut Sender,
    selection: Selection,
    parameters: &str,
) -> Result<Option<Lines>> {
    let path = format!("{}&watch=true{parameters}", shared.place.path(selection));
    let answer = sender.stream(Call::get(path)).await?;
    match answer.status() {
        StatusCode::OK => Ok(Some(Lines::new(answer.into_body()))),
        StatusCode::TOO_MANY_REQUESTS => Ok(None),
        status => {
            let text = answer.into_body().collect().await.context("read a refusal")?;
            let text = String::from_utf8_lossy(&text.to_bytes()).into_owned();
            Err(Fault::new(Rule::Open, format!("a watch is refused: {status}: {text}")).into())
        }
    }
}

/// The one watch of everything, which the ledger learns the order of events from.
pub(super) async fn tell(shared: Arc<Shared>, mut sender: Sender) {
    let told = async {
        loop {
            let from = shared.ledger().known_to();
            let parameters = format!("&allowWatchBookmarks=true&timeoutSeconds=1800&resourceVersion={from}");
            let lines = open(&shared, &mut sender, Selection::default(), &parameters).await?;
            let Some(mut lines) = lines else {
                shared.put_off().await;
                continue;
            };
            while let Some(line) = lines.next().await? {
                shared.tell(frame(&line)?.0)?;
            }
        }
    };
    let told: Result<()> = told.await;
    if let Err(fault) = told {
        shared.fault("the watch of everything", &fault);
        // Nobody else can be judged without it.
        shared.enter(Phase::Over);
    }
}

/// Where a watch begins.
#[derive(Clone, Copy, Debug)]
enum Start {
    Behind(u64),
    State,
    List,
}

impl Start {
    /// As clients begin that know nothing yet.
    fn anew(turn: u64) -> Self {
        if turn.is_multiple_of(3) {
            Self::List
        } else {
            Self::State
        }
    }
}

/// How a watch came to its end, which nothing is wrong with.
enum End {
    /// Another goes on behind it.
    Resume(u64),
    /// It was given up before all of the state was shown.
    Again,
    /// It has delivered everything.
    Done,
}

/// One watcher, over all its watches.
pub(super) struct Watcher {
    pub(super) shared: Arc<Shared>,
    pub(super) number: usize,
    pub(super) class: ClassId,
    pub(super) selection: Selection,
    pub(super) sender: Sender,
    pub(super) is_slow: bool,
    /// Says that it is to reconnect.
    pub(super) reconnect: Arc<Notify>,
    /// Since when its watch has shown the state: what was sent before that could not come sooner.
    pub(super) live_since: u128,
}

impl Watcher {
    /// Watches until nothing is owed any more.
    pub(super) async fn run(mut self) {
        let mut turn = self.number as u64;
        let mut start = Start::anew(turn);
        loop {
            if self.shared.phase() == Phase::Over {
                return;
            }
            turn = turn.wrapping_add(1);
            start = match self.watch(start, turn).await {
                Ok(End::Resume(revision)) => {
                    self.shared.counters.resumed.fetch_add(1, Ordering::Relaxed);
                    // A client that reconnects does not always know where it was.
                    if turn.is_multiple_of(5) {
                        Start::anew(turn)
                    } else {
                        Start::Behind(revision)
                    }
                }
                Ok(End::Again) => Start::State,
                Ok(End::Done) => return,
                Err(fault) => {
                    let whose = format!("watch {} of {:?} from {start:?}", self.number, self.selection);
                    self.shared.fault(&whose, &fault);
                    if self.shared.phase() > Phase::Load {
                        return;
                    }
                    Start::State
                }
            };
        }
    }

    async fn watch(&mut self, start: Start, turn: u64) -> Result<End> {
        let shared = Arc::clone(&self.shared);
        let mut permit = Some(shared.opening.acquire().await.context("nobody closes it")?);
        let (mut checker, from) = match start {
            Start::State => (
                Checker::initial(self.class),
                "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned(),
            ),
            Start::Behind(revision) => self.behind(revision),
            Start::List => {
                let class = (self.class, self.selection);
                let listed = list(&shared, &mut self.sender, class, "").await?;
                self.behind(listed)
            }
        };
        let seconds = SHORTEST + turn.wrapping_mul(7919) % (LONGEST - SHORTEST);
        let parameters = format!("&allowWatchBookmarks=true&timeoutSeconds={seconds}{from}");
        let started = Instant::now();
        let mut lines = loop {
            match open(&shared, &mut self.sender, self.selection, &parameters).await? {
                Some(lines) => break lines,
                None => shared.put_off().await,
            }
        };
        shared.counters.watches.fetch_add(1, Ordering::Relaxed);
        self.live_since = shared.now();
        if checker.seen_to().is_some() {
            permit = None;
        }

        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut phases = shared.phases();
        let (mut pauses, mut burst) = (PAUSES, 0);
        while shared.phase() == Phase::Load {
            let line = tokio::select! {
                line = lines.next() => line?,
                () = self.reconnect.notified() => return self.leave(checker).await,
                _ = phases.changed() => continue,
                _ = looks.tick() => {
                    self.look(&mut checker)?;
                    continue;
                }
            };
            let Some(line) = line else {
                if started.elapsed() + EARLY < Duration::from_secs(seconds) {
                    let detail = format!("a watch of {seconds} s ended after {:?}", started.elapsed());
                    return Err(Fault::new(Rule::Open, detail).into());
                }
                shared.counters.timed_out.fetch_add(1, Ordering::Relaxed);
                return self.leave(checker).await;
            };
            burst += line.len();
            self.take(&mut checker, &line)?;
            while let Some(line) = lines.take() {
                burst += line.len();
                self.take(&mut checker, &line)?;
            }
            checker.settle(&shared.ledger())?;
            if checker.seen_to().is_some() {
                if permit.take().is_some() {
                    self.live_since = shared.now();
                }
                if self.is_slow && pauses > 0 && burst >= BURST_BYTES {
                    (pauses, burst) = (pauses - 1, 0);
                    sleep(shared.settings.pause).await;
                } else if self.is_slow && pauses == 0 && checker.owed(&shared.ledger())?.is_none() {
                    (pauses, burst) = (PAUSES, 0);
                }
            }
        }
        drop(permit);
        if shared.phase() == Phase::Over {
            return Ok(End::Done);
        }
        self.drain(checker, lines).await
    }

    fn behind(&self, revision: u64) -> (Checker, String) {
        let checker = Checker::behind(self.class, revision, true);
        (checker, format!("&resourceVersion={revision}"))
    }

    fn take(&self, checker: &mut Checker, line: &[u8]) -> Result<()> {
        let (frame, sent) = frame(line)?;
        match frame {
            // What is removed is shown as it was sent long ago; who reads slowly lags by intent.
            Frame::Event(Event { kind, .. }) => {
                let is_timed = checker.seen_to().is_some() && kind != Kind::Deleted && !self.is_slow;
                let is_new = |sent: &u64| u128::from(*sent) >= self.live_since;
                self.shared
                    .record_event(sent.filter(|sent| is_timed && is_new(sent)));
            }
            Frame::Bookmark { .. } | Frame::Error { .. } => {
                self.shared.counters.bookmarks.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(checker.take(frame)?)
    }

    /// Judges what could not be judged when it came; says where to go on.
    async fn leave(&self, mut checker: Checker) -> Result<End> {
        let Some(seen) = checker.seen_to() else {
            return Ok(End::Again);
        };
        self.shared.known_to(seen).await?;
        checker.settle(&self.shared.ledger())?;
        Ok(End::Resume(seen))
    }

    /// Looks whether an event is overdue.
    fn look(&self, checker: &mut Checker) -> Result<(), Fault> {
        let ledger = self.shared.ledger();
        checker.settle(&ledger)?;
        let owed = checker.owed(&ledger)?;
        drop(ledger);
        let overdue = self.shared.revision_before(self.shared.settings.patience());
        match (owed, overdue) {
            (Some(event), Some(revision)) if event.revision <= revision => {
                let patience = self.shared.settings.patience();
                Err(Fault::new(
                    Rule::Complete,
                    format!("{event:?} is owed for {patience:?}"),
                ))
            }
            _ => Ok(()),
        }
    }

    /// Reads what is still to come, now that nothing is written any more.
    async fn drain(&self, mut checker: Checker, mut lines: Lines) -> Result<End> {
        let shared = &self.shared;
        let rest = async {
            let mut known = shared.known();
            loop {
                let is_closed = *known.borrow_and_update() == u64::MAX;
                checker.settle(&shared.ledger())?;
                if is_closed && checker.has_all_to(u64::MAX, &shared.ledger())? {
                    return Ok::<_, anyhow::Error>(true);
                }
                let line = tokio::select! {
                    line = lines.next() => line?,
                    _ = known.wait_for(|known| *known == u64::MAX), if !is_closed => continue,
                };
                let Some(line) = line else {
                    // Its time was over: another goes on.
                    return Ok(false);
                };
                self.take(&mut checker, &line)?;
            }
        };
        let read = timeout(shared.settings.patience(), rest).await;
        if let Ok(read) = read
            && !read?
        {
            return self.leave(checker).await;
        }
        checker.finish(u64::MAX, &shared.ledger())?;
        Ok(End::Done)
    }
}
