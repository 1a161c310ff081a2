//! The watchers.

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
use super::shared::Shared;
use crate::ledger::run::Phase;
use crate::ledger::wire::frame;
use crate::ledger::{Checker, ClassId, Event, Frame, Group, Kind, Rule, Selection, Violation};
use crate::lines::Lines;
use crate::load::{Call, Sender};

/// One watch of so many is of everything, of a group, of one object; the rest are of a namespace.
const OF_EVERYTHING: usize = 2500;
const OF_A_GROUP: usize = 25;
const OF_AN_OBJECT: usize = 100;
/// A slow reader pauses so often, then catches up, and starts over.
const PAUSES: u32 = 6;
/// What it reads between two pauses: more than its stream's window, so that the server sees progress.
const BURST_BYTES: usize = 96 << 10;
/// How often a watch is checked for overdue events.
const OVERDUE_CHECK: Duration = Duration::from_secs(5);
/// The shortest and the longest timeout of a watch, in seconds.
const SHORTEST: u64 = 240;
const LONGEST: u64 = 900;
/// How much before its timeout a watch may end.
const EARLY: Duration = Duration::from_secs(1);

/// The selection of a watcher. A slow reader watches more than it can read during its pauses.
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

/// Opens a watch; `None` after a 429.
pub(super) async fn open(
    shared: &Shared,
    sender: &mut Sender,
    selection: Selection,
    parameters: &str,
) -> Result<Option<Lines>> {
    let path = format!("{}&watch=true{parameters}", shared.place.path(selection));
    let response = sender.stream(Call::get(path)).await?;
    match response.status() {
        StatusCode::OK => Ok(Some(Lines::new(response.into_body()))),
        StatusCode::TOO_MANY_REQUESTS => Ok(None),
        status => {
            let text = response.into_body().collect().await.context("read a refusal")?;
            let text = String::from_utf8_lossy(&text.to_bytes()).into_owned();
            Err(Violation::new(Rule::Open, format!("the watch was rejected: {status}: {text}")).into())
        }
    }
}

/// Runs the watch of everything, which the ledger takes the order of events from.
pub(super) async fn observe(shared: Arc<Shared>, mut sender: Sender) {
    let observed = async {
        loop {
            let from = shared.run.ledger().known_to();
            let parameters = format!("&allowWatchBookmarks=true&timeoutSeconds=1800&resourceVersion={from}");
            let lines = open(&shared, &mut sender, Selection::default(), &parameters).await?;
            let Some(mut lines) = lines else {
                shared.back_off().await;
                continue;
            };
            while let Some(line) = lines.next().await? {
                shared.run.observe(frame(&line)?.0)?;
            }
        }
    };
    let observed: Result<()> = observed.await;
    if let Err(fault) = observed {
        shared.run.fault("the watch of everything", &fault);
        // No other watch can be checked without it.
        shared.run.enter(Phase::Over);
    }
}

/// How a watch starts.
#[derive(Clone, Copy, Debug)]
enum Start {
    After(u64),
    InitialEvents,
    List,
}

impl Start {
    /// The start of a client that has no state yet.
    fn new(turn: u64) -> Self {
        if turn.is_multiple_of(3) {
            Self::List
        } else {
            Self::InitialEvents
        }
    }
}

/// How a faultless watch ended.
enum End {
    /// Another watch resumes after this revision.
    Resume(u64),
    /// It was closed during initial events.
    Restart,
    /// It has delivered every event.
    Done,
}

/// A client that always has one watch open.
pub(super) struct Watcher {
    pub(super) shared: Arc<Shared>,
    pub(super) number: usize,
    pub(super) class: ClassId,
    pub(super) selection: Selection,
    pub(super) sender: Sender,
    pub(super) is_slow: bool,
    /// Makes it reconnect.
    pub(super) reconnect: Arc<Notify>,
    /// When the initial events ended: the lag of earlier writes is not measured.
    pub(super) live_since: u128,
}

impl Watcher {
    /// Watches until every event has been delivered.
    pub(super) async fn run(mut self) {
        let mut turn = self.number as u64;
        let mut start = Start::new(turn);
        loop {
            if self.shared.run.phase() == Phase::Over {
                return;
            }
            turn = turn.wrapping_add(1);
            start = match self.watch(start, turn).await {
                Ok(End::Resume(revision)) => {
                    self.shared.counters.resumed.fetch_add(1, Ordering::Relaxed);
                    // Some clients lose their state when they reconnect.
                    if turn.is_multiple_of(5) {
                        Start::new(turn)
                    } else {
                        Start::After(revision)
                    }
                }
                Ok(End::Restart) => Start::InitialEvents,
                Ok(End::Done) => return,
                Err(fault) => {
                    let whose = format!("watch {} of {:?} from {start:?}", self.number, self.selection);
                    self.shared.run.fault(&whose, &fault);
                    if self.shared.run.phase() > Phase::Load {
                        return;
                    }
                    Start::InitialEvents
                }
            };
        }
    }

    async fn watch(&mut self, start: Start, turn: u64) -> Result<End> {
        let shared = Arc::clone(&self.shared);
        let mut permit = Some(
            shared
                .opening
                .acquire()
                .await
                .context("the semaphore is never closed")?,
        );
        let (mut checker, from) = match start {
            Start::InitialEvents => (
                Checker::initial(self.class),
                "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned(),
            ),
            Start::After(revision) => self.after(revision),
            Start::List => {
                let class = (self.class, self.selection);
                let listed = list(&shared, &mut self.sender, class, "").await?;
                self.after(listed)
            }
        };
        let seconds = SHORTEST + turn.wrapping_mul(7919) % (LONGEST - SHORTEST);
        let parameters = format!("&allowWatchBookmarks=true&timeoutSeconds={seconds}{from}");
        let started = Instant::now();
        let mut lines = loop {
            match open(&shared, &mut self.sender, self.selection, &parameters).await? {
                Some(lines) => break lines,
                None => shared.back_off().await,
            }
        };
        shared.counters.watches.fetch_add(1, Ordering::Relaxed);
        self.live_since = shared.run.now();
        if checker.seen_to().is_some() {
            permit = None;
        }
        let mut overdue_checks = interval(OVERDUE_CHECK);
        overdue_checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut phases = shared.run.phases();
        let (mut pauses, mut burst) = (PAUSES, 0);
        while shared.run.phase() == Phase::Load {
            let line = tokio::select! {
                line = lines.next() => line?,
                () = self.reconnect.notified() => return self.leave(checker).await,
                _ = phases.changed() => continue,
                _ = overdue_checks.tick() => {
                    self.check_overdue(&mut checker)?;
                    continue;
                }
            };
            let Some(line) = line else {
                if started.elapsed() + EARLY < Duration::from_secs(seconds) {
                    let detail = format!("a watch of {seconds} s ended after {:?}", started.elapsed());
                    return Err(Violation::new(Rule::Open, detail).into());
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
            checker.settle(&shared.run.ledger())?;
            if checker.seen_to().is_none() {
                continue;
            }
            if permit.take().is_some() {
                self.live_since = shared.run.now();
            }
            if self.is_slow {
                self.pace(&mut pauses, &mut burst, &checker).await?;
            }
        }
        drop(permit);
        if shared.run.phase() == Phase::Over {
            return Ok(End::Done);
        }
        self.drain(checker, lines).await
    }

    /// Lets a slow reader pause between bursts, and catch up after its last pause.
    async fn pace(&self, pauses: &mut u32, burst: &mut usize, checker: &Checker) -> Result<()> {
        if *pauses > 0 && *burst >= BURST_BYTES {
            (*pauses, *burst) = (*pauses - 1, 0);
            sleep(self.shared.settings.pause).await;
        } else if *pauses == 0 && checker.due(&self.shared.run.ledger())?.is_none() {
            (*pauses, *burst) = (PAUSES, 0);
        }
        Ok(())
    }

    fn after(&self, revision: u64) -> (Checker, String) {
        let checker = Checker::after(self.class, revision, true);
        (checker, format!("&resourceVersion={revision}"))
    }

    fn take(&self, checker: &mut Checker, line: &[u8]) -> Result<()> {
        let (frame, sent) = frame(line)?;
        match frame {
            // A deleted object carries the time of an earlier write; slow readers lag on purpose.
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

    /// Checks the frames that were still waiting, and returns where to resume.
    async fn leave(&self, mut checker: Checker) -> Result<End> {
        let Some(seen) = checker.seen_to() else {
            return Ok(End::Restart);
        };
        self.shared.known_to(seen).await?;
        checker.settle(&self.shared.run.ledger())?;
        Ok(End::Resume(seen))
    }

    /// Checks that no event is overdue.
    fn check_overdue(&self, checker: &mut Checker) -> Result<(), Violation> {
        let ledger = self.shared.run.ledger();
        checker.settle(&ledger)?;
        let due = checker.due(&ledger)?;
        drop(ledger);
        let overdue = self.shared.revision_before(self.shared.settings.patience());
        match (due, overdue) {
            (Some(event), Some(revision)) if event.revision <= revision => {
                let patience = self.shared.settings.patience();
                Err(Violation::new(
                    Rule::Complete,
                    format!("{event:?} is overdue by {patience:?}"),
                ))
            }
            _ => Ok(()),
        }
    }

    /// Reads the remaining events after the last write.
    async fn drain(&self, mut checker: Checker, mut lines: Lines) -> Result<End> {
        let shared = &self.shared;
        let rest = async {
            let mut known = shared.run.known();
            loop {
                let is_closed = *known.borrow_and_update() == u64::MAX;
                checker.settle(&shared.run.ledger())?;
                if is_closed && checker.has_all_to(u64::MAX, &shared.run.ledger())? {
                    return Ok::<_, anyhow::Error>(true);
                }
                let line = tokio::select! {
                    line = lines.next() => line?,
                    _ = known.wait_for(|known| *known == u64::MAX), if !is_closed => continue,
                };
                let Some(line) = line else {
                    // It timed out; another watch resumes.
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
        checker.finish(u64::MAX, &shared.run.ledger())?;
        Ok(End::Done)
    }
}
