//! Watchers. Each always has one watch open, at its own server or, when that ends or refuses, at the next one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use http::StatusCode;
use http_body_util::BodyExt as _;
use tokio::time::{Instant, interval, timeout};

use super::client::Client;
use super::shared::{Shared, count};
use super::{PATIENCE, SERVERS};
use crate::ledger::run::Phase;
use crate::ledger::wire::frame;
use crate::ledger::{Checker, ClassId, Frame, Selection};
use crate::lines::Lines;
use crate::load::Call;

/// How often a watcher says how far it is.
const SAY_EVERY: Duration = Duration::from_millis(200);

/// What came of opening a watch.
enum Opened {
    Lines(Lines),
    /// The revision to start from is compacted.
    Expired,
    /// The server cannot serve it now.
    Refused,
}

async fn open(shared: &Shared, client: &mut Client, selection: Selection, from: &str) -> Result<Opened> {
    let path = shared.place.path(selection);
    let call = Call::get(format!(
        "{path}&watch=true&allowWatchBookmarks=true&timeoutSeconds=1800{from}"
    ));
    let Ok(response) = client.stream(call).await else {
        client.leave().await;
        return Ok(Opened::Refused);
    };
    match response.status() {
        StatusCode::OK => Ok(Opened::Lines(Lines::new(response.into_body()))),
        StatusCode::GONE => Ok(Opened::Expired),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE | StatusCode::GATEWAY_TIMEOUT => {
            client.leave().await;
            Ok(Opened::Refused)
        }
        status => {
            let text = timeout(PATIENCE, response.into_body().collect())
                .await??
                .to_bytes();
            bail!("a watch: {status}: {}", String::from_utf8_lossy(&text))
        }
    }
}

/// Runs the watch of everything, which the ledger takes the order of events from. It must never have to list again: of
/// three servers, one has the events that it lacks.
pub(super) async fn observe(shared: Arc<Shared>) {
    let observed: Result<()> = async {
        let mut client = Client::new(Arc::clone(&shared), 0);
        let mut expired = 0;
        loop {
            let from = format!("&resourceVersion={}", shared.run.ledger().known_to());
            let mut lines = match open(&shared, &mut client, Selection::default(), &from).await? {
                Opened::Lines(lines) => lines,
                Opened::Refused => continue,
                Opened::Expired => {
                    expired += 1;
                    if expired > SERVERS {
                        bail!("every server has compacted {from}");
                    }
                    client.leave().await;
                    continue;
                }
            };
            while let Ok(Some(line)) = lines.next().await {
                match frame(&line)?.0 {
                    Frame::Error { .. } => break,
                    frame => shared.run.observe(frame)?,
                }
                expired = 0;
            }
            client.leave().await;
        }
    }
    .await;
    if let Err(violation) = observed {
        shared.violation("the watch of everything", &violation);
        // No other watch can be checked without it.
        shared.run.enter(Phase::Over);
    }
}

/// How a watch starts.
#[derive(Clone, Copy, Debug)]
enum Start {
    After(u64),
    InitialEvents,
}

/// What a watcher waited for.
enum Next {
    Line(Result<Option<Bytes>>),
    Tick,
    /// The ledger is closed.
    Closed,
}

/// How a faultless watch ended.
enum End {
    /// Another watch goes on.
    Continue(Start),
    /// Everything was delivered.
    Done,
}

/// A client that always has one watch open.
pub(super) struct Watcher {
    shared: Arc<Shared>,
    client: Client,
    number: usize,
    class: ClassId,
    selection: Selection,
}

impl Watcher {
    pub(super) fn new(shared: Arc<Shared>, number: usize, (class, selection): (ClassId, Selection)) -> Self {
        Self {
            client: Client::new(Arc::clone(&shared), number % SERVERS),
            shared,
            number,
            class,
            selection,
        }
    }

    /// Watches until everything was delivered.
    pub(super) async fn run(mut self) {
        let mut start = Start::InitialEvents;
        while self.shared.run.phase() < Phase::Over {
            start = match self.watch(start).await {
                Ok(End::Continue(start)) => start,
                Ok(End::Done) => return,
                Err(violation) => {
                    let whose = format!("watch {} of {:?} from {start:?}", self.number, self.selection);
                    self.shared.violation(&whose, &violation);
                    Start::InitialEvents
                }
            };
        }
    }

    async fn watch(&mut self, start: Start) -> Result<End> {
        let shared = Arc::clone(&self.shared);
        let (mut checker, from) = match start {
            Start::InitialEvents => (
                Checker::initial(self.class),
                "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned(),
            ),
            Start::After(revision) => (
                Checker::after(self.class, revision, true),
                format!("&resourceVersion={revision}"),
            ),
        };
        let (began, fault) = (Instant::now(), self.fault());
        let mut lines = loop {
            match open(&shared, &mut self.client, self.selection, &from).await? {
                Opened::Lines(lines) => break lines,
                Opened::Expired => return Ok(self.expired()),
                Opened::Refused if shared.run.phase() == Phase::Over => return Ok(End::Done),
                Opened::Refused if began.elapsed() > PATIENCE => bail!("no server accepts a watch"),
                Opened::Refused => {}
            }
        };
        let mut ticks = interval(SAY_EVERY);
        let mut known = shared.run.known();
        let mut is_closed = false;
        loop {
            // Nothing is awaited in the branches: they hold what is not sent between threads.
            let next = tokio::select! {
                line = lines.next() => Next::Line(line),
                _ = ticks.tick() => Next::Tick,
                _ = known.wait_for(|known| *known == u64::MAX), if !is_closed => Next::Closed,
            };
            let line = match next {
                Next::Line(line) => line,
                Next::Closed => {
                    is_closed = true;
                    continue;
                }
                Next::Tick if self.say(&mut checker)? => return Ok(End::Done),
                // Every server has watches when the next fault comes.
                Next::Tick if !self.client.is_home() && self.fault() != fault => {
                    self.client.return_home();
                    return self.resumed(checker).await;
                }
                Next::Tick => continue,
            };
            let Ok(Some(line)) = line else {
                return self.broken(checker).await;
            };
            match frame(&line)?.0 {
                Frame::Error { code: 410 } => return Ok(self.expired()),
                // The server ends, or cannot go on.
                Frame::Error {
                    code: 429 | 500 | 503 | 504,
                } => return self.broken(checker).await,
                frame => {
                    count(&shared.counters.events);
                    checker.take(frame)?;
                }
            }
            checker.settle(&shared.run.ledger())?;
        }
    }

    /// Says how far the watch is; returns whether it has everything and the ledger is closed.
    fn say(&self, checker: &mut Checker) -> Result<bool> {
        let ledger = self.shared.run.ledger();
        checker.settle(&ledger)?;
        let known = ledger.known_to();
        let has_all = checker.has_all_to(known, &ledger)?;
        drop(ledger);
        if has_all && let Some(watched) = self.shared.watched.get(self.number) {
            watched.store(known, Ordering::SeqCst);
        }
        Ok((has_all && known == u64::MAX) || self.shared.run.phase() == Phase::Over)
    }

    fn expired(&self) -> End {
        count(&self.shared.counters.expired);
        End::Continue(Start::InitialEvents)
    }

    fn fault(&self) -> u64 {
        self.shared.fault.load(Ordering::Relaxed)
    }

    /// The watch broke; the next server has another one.
    async fn broken(&mut self, checker: Checker) -> Result<End> {
        self.client.leave().await;
        self.resumed(checker).await
    }

    /// Checks what was delivered; another watch goes on after it.
    async fn resumed(&mut self, mut checker: Checker) -> Result<End> {
        count(&self.shared.counters.resumed);
        let Some(seen) = checker.seen_to() else {
            return Ok(End::Continue(Start::InitialEvents));
        };
        self.shared
            .known_to(seen)
            .await
            .context("an event that nobody else saw")?;
        checker.settle(&self.shared.run.ledger())?;
        Ok(End::Continue(Start::After(seen)))
    }
}
