//! Every watch delivers exactly the events of its selection, over either protocol and however it starts.
//!
//! Writers and watches run at once. The responses of the writes fill a [`Ledger`], which derives the events of each
//! watch; a [`Checker`] compares. Some watches are cut repeatedly and resume from what they have seen, some time out
//! after a bookmark, some start with initial events.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use drydock_tests::calls::Caller;
use drydock_tests::clients::{Protocol, eventually};
use drydock_tests::conformance::version;
use drydock_tests::ledger::wire::{self, Place};
use drydock_tests::ledger::{Checker, ClassId, Event, Frame, Group, Kind, Ledger, Rule, Selection, Version};
use drydock_tests::load::{Call, Pool, Response, Sender};
use drydock_tests::lock;
use drydock_tests::standalone::Standalone;
use futures_util::future::try_join_all;
use serde_json::json;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};

const OBJECTS: u32 = 24;
const NAMESPACES: u32 = 2;
const GROUPS: u16 = 3;
const WRITERS: u32 = 6;
/// The time between two writes of a writer.
const WRITE_PERIOD: Duration = Duration::from_millis(8);
/// The least number of writes of each writer.
const WRITES: u32 = 100;
/// The timeout of watches that time out; a bookmark comes 2 s before.
const TIMEOUT_SECONDS: u64 = 3;
const PATIENCE: Duration = Duration::from_secs(30);

/// How a watch starts and ends.
#[derive(Clone, Copy, Debug)]
enum Manner {
    /// It starts before the first write and stays open.
    Stays { bookmarks: bool },
    /// It is cut after so many frames and resumes.
    IsCut { after: usize },
    /// It times out and resumes.
    TimesOut,
    /// It starts with initial events, again after each cut.
    InitialEvents { after: usize },
}

struct Stage {
    place: Place,
    ledger: Mutex<Ledger>,
    /// Whether all writes have been acknowledged.
    written: watch::Sender<bool>,
    /// The revision up to which everything has been observed: the largest number after the last write.
    known: watch::Sender<u64>,
    /// How many watches have yet to time out for the first time.
    awaited: watch::Sender<usize>,
}

impl Stage {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    /// Writes one object after the other until there were enough writes and no watch needs more.
    async fn write(&self, mut sender: Sender, writer: u32) -> Result<()> {
        let own = (writer..OBJECTS).step_by(WRITERS as usize);
        let mut objects: Vec<(u32, Option<Version>, u32)> = own.map(|object| (object, None, 0)).collect();
        let mut random = fastrand::Rng::with_seed(u64::from(writer));
        let mut ticks = interval(WRITE_PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut count = 0;
        while count < WRITES || *self.awaited.borrow() > 0 {
            ticks.tick().await;
            count += 1;
            let chosen = random.usize(..objects.len());
            let (object, state, serial) = objects.get_mut(chosen).context("a writer has objects")?;
            let version = Version {
                serial: *serial,
                group: random.u16(..GROUPS),
            };
            let (kind, call) = match state {
                None => (Kind::Added, self.place.create(*object, version, 0)),
                Some(_) if random.u8(..5) == 0 => {
                    let beyond = self.ledger().acknowledged_to();
                    succeed(&mut sender, self.place.remove(*object)).await?;
                    self.ledger().acknowledge_removal(*object, beyond)?;
                    *state = None;
                    continue;
                }
                Some(_) => (Kind::Modified, self.place.change(*object, version, 0)),
            };
            let response = succeed(&mut sender, call).await?;
            let event = Event {
                revision: wire::written(&response.start, *object, version)?,
                kind,
                key: *object,
                value: version,
            };
            self.ledger().acknowledge(event)?;
            *state = Some(version);
            *serial += 1;
        }
        Ok(())
    }

    /// Runs the watch of everything until every acknowledged write has been observed.
    async fn observe(&self, caller: &Caller) -> Result<()> {
        let from = self.ledger().known_to();
        let path = self.place.path(Selection::default());
        let mut watch = caller
            .watch(&format!("{path}&watch=true&resourceVersion={from}"))
            .await?;
        let mut written = self.written.subscribe();
        loop {
            let is_over = *written.borrow_and_update();
            if is_over && self.ledger().unsettled() == 0 {
                self.ledger().close()?;
                self.known.send_replace(u64::MAX);
                return Ok(());
            }
            tokio::select! {
                line = timeout(PATIENCE, watch.lines.next()) => {
                    let line = line.context("no event")??.context("the watch of everything ended")?;
                    self.ledger().observe(wire::frame(&line)?.0)?;
                    self.known.send_replace(self.ledger().known_to());
                }
                _ = written.changed(), if !is_over => {}
            }
        }
    }

    /// Watches until the writes have ended and every event has been delivered.
    async fn follow(
        &self,
        caller: &Caller,
        (class, selection): (ClassId, Selection),
        manner: Manner,
    ) -> Result<Seen> {
        let mut seen = Seen::default();
        let mut from = Some(self.ledger().known_to());
        if matches!(manner, Manner::InitialEvents { .. }) {
            from = None;
        }
        let mut is_awaited = matches!(manner, Manner::TimesOut);
        loop {
            let bookmarks = !matches!(manner, Manner::Stays { bookmarks: false });
            let (mut checker, parameters) = match from {
                Some(revision) => (
                    Checker::after(class, revision, bookmarks),
                    format!("&resourceVersion={revision}"),
                ),
                None => (
                    Checker::initial(class),
                    "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned(),
                ),
            };
            let seconds = match manner {
                Manner::TimesOut => format!("&timeoutSeconds={TIMEOUT_SECONDS}"),
                _ => String::new(),
            };
            let path = self.place.path(selection);
            let path = format!("{path}&watch=true&allowWatchBookmarks={bookmarks}{parameters}{seconds}");
            let mut watch = caller.watch(&path).await?;
            let cut = match manner {
                Manner::IsCut { after } | Manner::InitialEvents { after } => after,
                Manner::Stays { .. } | Manner::TimesOut => usize::MAX,
            };
            let is_done = self.read(&mut watch.lines, &mut checker, cut, &mut seen).await?;
            seen.watches += 1;
            if is_awaited {
                is_awaited = false;
                self.awaited.send_modify(|count| *count -= 1);
            }
            if is_done {
                return Ok(seen);
            }
            from = match manner {
                Manner::InitialEvents { .. } => None,
                _ => Some(checker.seen_to().context("it started after a revision")?),
            };
            // Every frame is checked before the next watch starts.
            self.settle_all(&mut checker).await?;
        }
    }

    /// Reads up to `cut` frames after the initial events; returns whether every event has been delivered.
    async fn read(
        &self,
        lines: &mut drydock_tests::lines::Lines,
        checker: &mut Checker,
        cut: usize,
        seen: &mut Seen,
    ) -> Result<bool> {
        let mut known = self.known.subscribe();
        let mut count = 0;
        while count < cut {
            let is_over = *known.borrow_and_update() == u64::MAX;
            checker.settle(&self.ledger())?;
            if is_over && checker.has_all_to(u64::MAX, &self.ledger())? {
                return Ok(true);
            }
            let line = tokio::select! {
                line = timeout(PATIENCE, lines.next()) => line.context("no event")??,
                _ = known.wait_for(|known| *known == u64::MAX), if !is_over => continue,
            };
            let Some(line) = line else {
                return Ok(false);
            };
            let (frame, _) = wire::frame(&line)?;
            count += usize::from(checker.seen_to().is_some());
            match frame {
                Frame::Bookmark { .. } => seen.bookmarks += 1,
                Frame::Event(_) | Frame::Error { .. } => seen.events += 1,
            }
            checker.take(frame)?;
        }
        Ok(false)
    }

    async fn settle_all(&self, checker: &mut Checker) -> Result<()> {
        let Some(seen) = checker.seen_to() else {
            return Ok(());
        };
        let mut known = self.known.subscribe();
        timeout(PATIENCE, known.wait_for(|known| *known >= seen))
            .await
            .context("the watch of everything has not reached it")??;
        Ok(checker.settle(&self.ledger())?)
    }
}

/// What a watcher received.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    watches: usize,
    events: usize,
    bookmarks: usize,
}

async fn succeed(sender: &mut Sender, call: Call) -> Result<Response> {
    sender.send(call).await?.succeeded()
}

fn selections() -> Vec<Selection> {
    let all = Selection::default();
    vec![
        all,
        Selection {
            namespace: Some(1),
            ..all
        },
        Selection {
            group: Some(Group::Is(0)),
            ..all
        },
        Selection {
            group: Some(Group::IsNot(1)),
            ..all
        },
        Selection {
            object: Some(5),
            ..all
        },
        Selection {
            namespace: Some(0),
            group: Some(Group::Is(2)),
            object: None,
        },
        Selection {
            namespace: Some(1),
            group: Some(Group::IsNot(2)),
            object: Some(7),
        },
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_watch_delivers_the_events_of_its_selection() -> Result<()> {
    let standalone = Standalone::start().await?;
    let callers = [
        standalone.caller(Protocol::Http1)?,
        standalone.caller(Protocol::Http2)?,
    ];
    let place = Place {
        prefix: "watched-".to_owned(),
        namespaces: NAMESPACES,
        object_bytes: 0,
    };
    for number in 0..NAMESPACES {
        let namespace = json!({ "metadata": { "name": place.namespace(number) } });
        callers[0]
            .post("/api/v1/namespaces", &namespace)
            .await?
            .expect(201)?;
    }
    let list = callers[0]
        .get(&place.path(Selection::default()))
        .await?
        .expect(200)?;
    let ledger = Ledger::new(OBJECTS, NAMESPACES, &selections(), version(&list)?);
    let classes: Vec<_> = ledger.classes().collect();
    let manners = [
        Manner::Stays { bookmarks: true },
        Manner::Stays { bookmarks: false },
        Manner::IsCut { after: 7 },
        Manner::TimesOut,
        Manner::InitialEvents { after: 11 },
    ];
    let awaited = classes.len() * callers.len();
    let stage = Arc::new(Stage {
        place,
        ledger: Mutex::new(ledger),
        written: watch::Sender::new(false),
        known: watch::Sender::new(0),
        awaited: watch::Sender::new(awaited),
    });

    let mut watching = Vec::new();
    for class in &classes {
        for manner in manners {
            for caller in &callers {
                let (stage, caller, class) = (Arc::clone(&stage), caller.clone(), *class);
                watching.push(tokio::spawn(async move {
                    let followed = stage.follow(&caller, class, manner).await;
                    let seen = followed.with_context(|| format!("{manner:?} of {:?}", class.1))?;
                    Ok::<_, anyhow::Error>((manner, seen))
                }));
            }
        }
    }
    let observing = {
        let (stage, caller) = (Arc::clone(&stage), callers[1].clone());
        tokio::spawn(async move { stage.observe(&caller).await })
    };
    let pool = Pool::open(&standalone.raw_client(Protocol::Http2)?, 2).await?;
    let writers = (0..WRITERS).map(async |writer| stage.write(pool.sender(writer as usize)?, writer).await);
    try_join_all(writers).await?;
    stage.written.send_replace(true);
    observing.await??;

    let mut bookmarks = 0;
    for watched in watching {
        let (manner, seen) = watched.await??;
        ensure!(seen.events > 0, "{manner:?} received no event");
        if let Manner::IsCut { .. } | Manner::TimesOut = manner {
            ensure!(seen.watches > 1, "{manner:?} has not resumed: {seen:?}");
        }
        if matches!(manner, Manner::TimesOut) {
            bookmarks += seen.bookmarks;
        }
    }
    ensure!(
        bookmarks >= awaited,
        "{bookmarks} bookmarks before the ends of {awaited} watches"
    );
    Ok(())
}

/// Frames from a real server: the checker notices each one that is lost or repeated.
#[tokio::test]
async fn lost_and_repeated_frames_of_a_real_watch_are_found() -> Result<()> {
    let standalone = Standalone::start().await?;
    let caller = standalone.caller(Protocol::Http2)?;
    let place = Place {
        prefix: "watched-".to_owned(),
        namespaces: 1,
        object_bytes: 0,
    };
    let namespace = json!({ "metadata": { "name": place.namespace(0) } });
    caller.post("/api/v1/namespaces", &namespace).await?.expect(201)?;
    let path = place.path(Selection::default());
    let from = version(&caller.get(&path).await?.expect(200)?)?;
    let mut ledger = Ledger::new(1, 1, &[Selection::default()], from);
    let (class, _) = ledger.classes().next().context("a class")?;
    let mut watch = caller
        .watch(&format!("{path}&watch=true&resourceVersion={from}"))
        .await?;
    let pool = Pool::open(&standalone.raw_client(Protocol::Http2)?, 1).await?;
    let mut sender = pool.sender(0)?;
    for serial in 0..4 {
        let version = Version { serial, group: 0 };
        let (kind, call) = match serial {
            0 => (Kind::Added, place.create(0, version, 0)),
            _ => (Kind::Modified, place.change(0, version, 0)),
        };
        let response = succeed(&mut sender, call).await?;
        let revision = wire::written(&response.start, 0, version)?;
        ledger.acknowledge(Event {
            revision,
            kind,
            key: 0,
            value: version,
        })?;
    }
    let mut frames = Vec::new();
    for _ in 0..4 {
        let line = watch.lines.next().await?.context("an event")?;
        frames.push(wire::frame(&line)?.0);
    }
    for frame in &frames {
        ledger.observe(*frame)?;
    }
    ledger.close()?;
    let check = |frames: &[Frame]| {
        let mut checker = Checker::after(class, from, false);
        let mut all = || {
            for frame in frames {
                checker.take(*frame)?;
            }
            checker.finish(u64::MAX, &ledger)
        };
        all().map_err(|fault| fault.rule)
    };
    assert_eq!(check(&frames), Ok(()));
    for index in 0..frames.len() {
        let (mut lost, mut twice) = (frames.clone(), frames.clone());
        lost.remove(index);
        twice.insert(index, frames[index]);
        let expected = if index == 3 {
            Rule::Complete
        } else {
            Rule::Reliable
        };
        assert_eq!(check(&lost), Err(expected), "without {index}");
        assert_eq!(check(&twice), Err(Rule::Unique), "{index} twice");
    }
    Ok(())
}

/// A watch that nobody reads any more is not kept until its timeout, whether its request or its connection ended.
#[tokio::test]
async fn a_client_that_goes_frees_its_watches() -> Result<()> {
    const WATCHES: usize = 20;
    let standalone = Standalone::start().await?;
    let caller = standalone.caller(Protocol::Http2)?;
    let path = "/apis/coordination.k8s.io/v1alpha3/evictioninterceptors?watch=true";
    let open = async || {
        let text = caller.get("/metrics").await?.text();
        let of_kind = |line: &&str| {
            line.starts_with("apiserver_longrunning_requests{") && line.contains("\"evictioninterceptors\"")
        };
        let numbers = text
            .lines()
            .filter(of_kind)
            .filter_map(|line| line.rsplit(' ').next());
        Ok::<_, anyhow::Error>(
            numbers
                .filter_map(|number| number.parse::<usize>().ok())
                .sum::<usize>(),
        )
    };
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let client = standalone.caller(protocol)?;
        let watches = try_join_all((0..WATCHES).map(|_| client.watch(path))).await?;
        eventually("all are open", PATIENCE, async || {
            Ok((open().await? == WATCHES).then_some(()))
        })
        .await?;
        drop(watches);
        eventually("all are freed", PATIENCE, async || {
            Ok((open().await? == 0).then_some(()))
        })
        .await?;
    }
    Ok(())
}
