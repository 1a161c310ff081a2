//! Random programs of writes, compactions, lists and watches, compared with a model step by step.

use drydock_storage::{Revision, Store};
use proptest::prelude::*;

use super::super::*;
use super::checker::{Change, Log, Record, Wanted, check};
use super::fixture::*;

#[derive(Debug, Clone)]
enum Step {
    /// Puts or deletes up to three keys, one transaction each, and then waits for the cache or not.
    Write(Vec<(usize, Option<(usize, usize)>)>, bool),
    /// Compacts the store up to this many revisions ago.
    Compact(u64),
    Open {
        wanted: (usize, usize, usize),
        start: Begin,
        bookmarks: bool,
    },
    /// Reads some buffers of a watch.
    Read(usize, usize),
    /// Closes a watch and resumes it with another one.
    Resume(usize),
    /// Lists the state of `back` revisions ago, in pages of `limit`, with writes in between.
    List {
        back: u64,
        wanted: (usize, usize, usize),
        limit: usize,
    },
    Fresh,
    Advance(u64),
}

#[derive(Debug, Clone, Copy)]
enum Begin {
    /// After the revision this many revisions ago; negative: a future one.
    Back(i64),
    Initial(Freshness),
    Now,
}

fn step() -> impl Strategy<Value = Step> {
    let thing = prop::option::weighted(0.75, (0_usize..2, 0_usize..2));
    let wanted = || (0_usize..4, 0_usize..4, 0_usize..5);
    let begin = prop_oneof![
        4 => (-2_i64..12).prop_map(Begin::Back),
        1 => Just(Begin::Initial(Freshness::Any)),
        1 => Just(Begin::Initial(Freshness::MostRecent)),
        1 => Just(Begin::Now),
    ];
    prop_oneof![
        8 => (prop::collection::vec((0_usize..8, thing), 1..4), any::<bool>())
            .prop_map(|(writes, settle)| Step::Write(writes, settle)),
        1 => (0_u64..6).prop_map(Step::Compact),
        3 => (wanted(), begin, any::<bool>())
            .prop_map(|(wanted, start, bookmarks)| Step::Open { wanted, start, bookmarks }),
        4 => (any::<prop::sample::Index>(), 1_usize..4)
            .prop_map(|(watch, buffers)| Step::Read(watch.index(64), buffers)),
        1 => any::<prop::sample::Index>().prop_map(|watch| Step::Resume(watch.index(64))),
        2 => (0_u64..10, wanted(), 0_usize..4)
            .prop_map(|(back, wanted, limit)| Step::List { back, wanted, limit }),
        1 => Just(Step::Fresh),
        1 => (0_u64..100).prop_map(Step::Advance),
    ]
}

/// A selection for the cache, and the same for the checker.
fn selection((scope, app, phase): (usize, usize, usize)) -> (Selection, Wanted) {
    let scopes = [
        (Scope::All, None, None),
        (namespace("a"), Some("a"), None),
        (namespace("ab"), Some("ab"), None),
        (
            Scope::Name {
                namespace: "a".to_owned(),
                name: "k1".to_owned(),
            },
            Some("a"),
            Some("k1"),
        ),
    ];
    let (scope, namespace, name) = scopes[scope].clone();
    let conditions = [
        ("", None),
        ("=0", Some(true)),
        ("!=0", Some(false)),
        ("=1", Some(true)),
    ];
    let condition = |what: &str, index: usize| {
        let (text, is_equal) = conditions[index];
        let value = text.trim_start_matches(['!', '=']).to_owned();
        let text = if text.is_empty() {
            String::new()
        } else {
            format!("{what}{text}")
        };
        (text, is_equal.map(|is_equal| (is_equal, value)))
    };
    let (labels, app) = condition("app", app);
    // The last field condition selects a name in all namespaces.
    if phase == 4 {
        let wanted = Wanted {
            namespace: namespace.map(str::to_owned),
            name: Some(name.unwrap_or("k2").to_owned()),
            app,
            phase: None,
        };
        let fields = format!("metadata.name={}", name.unwrap_or("k2"));
        return (select(scope, &labels, &fields), wanted);
    }
    let (fields, phase) = condition("status.phase", phase);
    let wanted = Wanted {
        namespace: namespace.map(str::to_owned),
        name: name.map(str::to_owned),
        app,
        phase,
    };
    (select(scope, &labels, &fields), wanted)
}

struct Open {
    watcher: Option<Watcher<drydock_storage::memory::MemoryStore>>,
    selection: Selection,
    record: Record,
    encoder: Lines,
    begun_at: Revision,
}

struct Run {
    fixture: Fixture,
    log: Log,
    revision: Revision,
    serial: u64,
    watches: Vec<Open>,
}

fn keys(index: usize) -> drydock_storage::Key {
    key(if index < 4 { "a" } else { "ab" }, &format!("k{}", index % 4))
}

impl Run {
    async fn new(history_bytes: u64) -> Self {
        let limits = CacheLimits {
            history_bytes,
            replays: 64,
            stagger: std::time::Duration::ZERO,
            ..CacheLimits::default()
        };
        Self {
            fixture: Fixture::with(limits).await,
            log: Log::default(),
            revision: Revision(1),
            serial: 0,
            watches: Vec::new(),
        }
    }

    async fn write(&mut self, writes: &[(usize, Option<(usize, usize)>)]) {
        for (index, thing) in writes {
            let key = keys(*index);
            let old = self.log.state_at(self.revision).remove(key.as_str());
            if old.is_none() && thing.is_none() {
                continue;
            }
            self.serial += 1;
            let new = thing.map(|(app, phase)| Thing::new(&app.to_string(), &phase.to_string(), self.serial));
            let revision = write(&self.fixture.store, &key, new.clone()).await;
            assert_eq!(revision, self.revision.next());
            self.revision = revision;
            self.log.changes.push(Change {
                revision,
                key: key.to_string(),
                old: old.map(|(_, thing)| thing),
                new,
            });
        }
    }

    async fn settle(&self) {
        self.fixture
            .cache
            .reads
            .not_older_than(self.revision)
            .await
            .unwrap();
    }

    async fn take(&mut self, step: Step) {
        match step {
            Step::Write(writes, settle) => {
                self.write(&writes).await;
                if settle {
                    self.settle().await;
                }
            }
            Step::Compact(back) => {
                let through = Revision(self.revision.0.saturating_sub(back).max(1));
                self.fixture.store.compact(through).await.unwrap();
            }
            Step::Open {
                wanted,
                start,
                bookmarks,
            } => self.open(selection(wanted), start, bookmarks).await,
            Step::Read(watch, buffers) => self.read(watch, buffers).await,
            Step::Resume(watch) => self.resume(watch).await,
            Step::List { back, wanted, limit } => self.list(back, selection(wanted), limit).await,
            Step::Fresh => {
                let snapshot = self.fixture.cache.reads.fresh().await.unwrap();
                assert!(snapshot.revision() >= self.revision, "a fresh read is too old");
                assert_eq!(
                    things(snapshot.matches(&everything())),
                    self.log.state_at(snapshot.revision())
                );
            }
            Step::Advance(seconds) => tokio::time::sleep(std::time::Duration::from_secs(seconds)).await,
        }
    }

    async fn open(&mut self, (selection, wanted): (Selection, Wanted), begin: Begin, bookmarks: bool) {
        let (start, behind) = match begin {
            Begin::Back(back) => {
                let behind = Revision(self.revision.0.saturating_add_signed(-back).max(1));
                (WatchStart::After(behind), Some(behind))
            }
            Begin::Initial(state) => (WatchStart::InitialEvents(state), None),
            Begin::Now => {
                self.settle().await;
                (WatchStart::Now, Some(self.revision))
            }
        };
        // Without the end bookmark a client cannot distinguish initial events from later ones.
        let bookmarks = bookmarks || behind.is_none();
        let request = WatchRequest {
            selection: selection.clone(),
            start,
            bookmarks,
            timeout: HOUR,
        };
        let watcher = self.fixture.cache.subscribe(request).await.unwrap();
        let second = self.watches.len() % 2;
        self.watches.push(Open {
            watcher: Some(watcher),
            selection,
            record: Record {
                wanted,
                behind,
                bookmarks,
                frames: Vec::new(),
                complete_to: None,
                expired_since: None,
            },
            encoder: Lines {
                face: ["a", "b"][second],
                padding: second * 20_000,
                ..Lines::default()
            },
            begun_at: self.revision,
        });
    }

    async fn read(&mut self, watch: usize, buffers: usize) {
        let count = self.watches.len();
        let Some(open) = self.watches.get_mut(watch % count.max(1)) else {
            return;
        };
        for _ in 0..buffers {
            let Some(watcher) = &mut open.watcher else { return };
            match next(watcher, &open.encoder).await {
                None => return,
                Some(Some(Ok(frames))) => open.record.frames.extend(frames),
                Some(Some(Err(WatchEnd::Expired { since, oldest }))) => {
                    assert!(
                        since.next() < oldest,
                        "expired although the store still has the event"
                    );
                    assert!(open.record.behind.is_none_or(|behind| behind <= since));
                    open.record.expired_since = Some(since);
                    assert!(
                        next(watcher, &open.encoder).await.unwrap().is_none(),
                        "nothing follows an error"
                    );
                    open.watcher = None;
                }
                Some(Some(Err(WatchEnd::NeverReached { requested, current }))) => {
                    assert!(current < requested && requested > self.revision);
                    assert_eq!(open.record.behind, Some(requested));
                    assert!(
                        open.record.frames.is_empty(),
                        "events before the requested revision"
                    );
                    open.watcher = None;
                }
                Some(end) => panic!("{end:?}"),
            }
        }
    }

    async fn resume(&mut self, watch: usize) {
        let count = self.watches.len();
        let Some(open) = self.watches.get_mut(watch % count.max(1)) else {
            return;
        };
        let last = open.record.frames.last().map(|frame| match frame {
            Frame::Event { revision, .. } | Frame::Bookmark { revision, .. } => *revision,
        });
        let ended_initial = open.record.behind.is_some()
            || open.record.frames.iter().any(|frame| {
                matches!(
                    frame,
                    Frame::Bookmark {
                        ends_initial_events: true,
                        ..
                    }
                )
            });
        let Some(last) = last.filter(|_| ended_initial) else {
            return;
        };
        if open.watcher.is_none() {
            return;
        }
        let request = WatchRequest {
            selection: open.selection.clone(),
            start: WatchStart::After(last),
            bookmarks: open.record.bookmarks,
            timeout: HOUR,
        };
        let watcher = self.fixture.cache.subscribe(request).await.unwrap();
        check(&open.record, &self.log).unwrap();
        open.watcher = Some(watcher);
        open.record.behind = Some(last);
        open.record.frames.clear();
        open.begun_at = self.revision;
    }

    async fn list(&mut self, back: u64, (selection, wanted): (Selection, Wanted), limit: usize) {
        let revision = Revision(self.revision.0.saturating_sub(back).max(1));
        let mut state = self.log.state_at(revision);
        state.retain(|key, (_, thing)| wanted.has(key, thing));
        let oldest = self.fixture.store.floors().listable_from;
        let mut snapshot = match self.fixture.cache.reads.exactly(revision).await {
            Ok(snapshot) => {
                assert!(revision >= oldest, "an expired state was listed");
                snapshot
            }
            Err(ReadError::Expired { .. }) => {
                assert!(revision < oldest, "a kept state has expired");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let mut query = Query {
            selection,
            start: None,
            limit,
        };
        let mut found = std::collections::BTreeMap::new();
        loop {
            assert_eq!(snapshot.revision(), revision);
            let page = snapshot.select(&query);
            let mut part = things(page.objects);
            assert!(limit == 0 || part.len() <= limit, "a page of {}", part.len());
            found.append(&mut part);
            if let Some(remaining) = page.remaining {
                assert!(!query.selection.has_selectors() && page.next.is_some());
                assert_eq!(remaining, (state.len() - found.len()) as u64);
            }
            let Some(start) = page.next else { break };
            assert!(limit > 0);
            let token = ContinueToken {
                of: PageOf::Revision(revision),
                start,
            };
            let token = ContinueToken::decode(&token.encode()).unwrap();
            query.start = Some(token.start);
            self.write(&[(found.len() % 8, Some((0, 1)))]).await;
            self.settle().await;
            snapshot = self.fixture.cache.reads.continued(revision).await.unwrap();
        }
        assert_eq!(found, state);
    }

    /// Reads all watches to the end and checks what they saw.
    async fn finish(mut self) {
        self.settle().await;
        for index in 0..self.watches.len() {
            self.read(index, 10_000).await;
            let open = &mut self.watches[index];
            if open.watcher.is_some() {
                open.record.complete_to = Some(self.revision);
            }
            if let Err(violation) = check(&open.record, &self.log) {
                panic!("{violation}: {:#?}\nin {:#?}", open.record, self.log);
            }
        }
    }
}

fn run(history_bytes: u64, steps: Vec<Step>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let mut run = Run::new(history_bytes).await;
        for step in steps {
            run.take(step).await;
        }
        run.finish().await;
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 192, ..ProptestConfig::default() })]

    #[test]
    fn lists_and_watches_equal_the_model(
        history_bytes in prop_oneof![Just(0_u64), Just(2_000), Just(4_000), Just(1 << 20)],
        steps in prop::collection::vec(step(), 1..60),
    ) {
        run(history_bytes, steps);
    }
}

/// A watch that reads the store's history may be ahead of the cache. It must not then read events in memory that it has
/// sent already.
#[test]
fn a_replay_ahead_of_the_cache_waits_for_it() {
    let open = Step::Open {
        wanted: (0, 0, 0),
        start: Begin::Back(0),
        bookmarks: false,
    };
    let put = |keys: &[usize], settle| {
        let writes = keys.iter().map(|key| (*key, Some((0, 0))));
        Step::Write(writes.collect(), settle)
    };
    let mut steps = vec![
        open.clone(),
        open,
        put(&[0, 7], false),
        put(&[1], false),
        put(&[2], false),
    ];
    steps.extend([put(&[3], true), put(&[4], false), Step::Read(0, 2)]);
    for history_bytes in [0, 500, 1000, 1500, 2000] {
        run(history_bytes, steps.clone());
    }
}
