//! Concurrent clients on all backends: their history is strictly serializable and every watch is complete. Planted
//! violations show that the checker works.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests"
)]

mod brute_force;
#[path = "../support/etcd_process.rs"]
mod etcd_process;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use drydock_storage::conformance::history::{Call, Operation, Recorder, check};
use drydock_storage::conformance::recorded_watch::{RecordedWatch, check_watch};
use drydock_storage::memory::MemoryStore;
use drydock_storage::rocks::RocksStore;
use drydock_storage::{
    Event, Events, Key, KeyRange, Options, Outcome, Revision, Signal, Store, StoreError, Transaction, Value,
    Write,
};
use etcd_process::EtcdProcess;
use tempfile::TempDir;
use tokio::sync::Mutex;

const CLIENTS: u64 = 8;
const KEYS: u64 = 6;
const PATIENCE: Duration = Duration::from_secs(20);

/// Failpoints are global, so tests of the engine run one at a time.
static EXCLUSIVE: Mutex<()> = Mutex::const_new(());

/// How many operations all clients run together: `DRYDOCK_HISTORY_OPERATIONS`, or about a thousand.
fn operations() -> u64 {
    std::env::var("DRYDOCK_HISTORY_OPERATIONS")
        .ok()
        .and_then(|count| count.parse().ok())
        .unwrap_or(960)
}

fn options(root: &TempDir) -> Options {
    Options {
        // However long it runs, no history is dropped.
        window: Duration::from_hours(24),
        lock_wait: PATIENCE,
        ..Options::for_tests(root.path())
    }
}

fn key(number: u64) -> Key {
    let namespace = if number.is_multiple_of(2) { "a" } else { "ab" };
    Key::new("g.example", "things", namespace, &format!("k{number}")).unwrap()
}

fn value(unique: u64) -> Value {
    Value {
        bytes: Bytes::from(format!("value {unique}")),
        form: "g.example/v1".into(),
        splice_offset: 0,
    }
}

/// Writes a key against what was just read, so that some writes conflict.
async fn write<S: Store>(
    store: &S,
    recorder: &Recorder,
    random: &mut fastrand::Rng,
    unique: u64,
) -> Result<(), StoreError> {
    let key = key(random.u64(..KEYS));
    let transaction = match recorder.get(store, &key).await?.entry {
        None => Transaction::create(key, value(unique)),
        Some(entry) if random.u8(..4) == 0 => Transaction::delete(key, entry.modified),
        Some(entry) => Transaction::update(key, entry.modified, value(unique)),
    };
    recorder.transact(store, transaction).await.map(drop)
}

/// Runs one client until it is done or an operation fails.
async fn client<S: Store>(
    store: S,
    recorder: Arc<Recorder>,
    mut random: fastrand::Rng,
    uniques: std::ops::Range<u64>,
) -> Result<(), StoreError> {
    for unique in uniques {
        match random.u8(..6) {
            0 => {
                let range = KeyRange::namespace("g.example", "things", "ab");
                recorder.scan(&store, &range).await?;
            }
            1 => drop(recorder.get(&store, &key(random.u64(..KEYS))).await?),
            _ => write(&store, &recorder, &mut random, unique).await?,
        }
    }
    Ok(())
}

/// Runs all clients; returns how each ended.
async fn run_clients<S: Store>(
    store: &S,
    recorder: &Arc<Recorder>,
    seed: u64,
    operations: u64,
) -> Vec<Result<(), StoreError>> {
    let each = operations / CLIENTS;
    let clients = (0..CLIENTS).map(|number| {
        let random = fastrand::Rng::with_seed(seed * 100 + number);
        let first = (seed * CLIENTS + number) * each;
        let client = client(store.clone(), Arc::clone(recorder), random, first..first + each);
        tokio::spawn(client)
    });
    let mut ends = Vec::new();
    for client in clients.collect::<Vec<_>>() {
        ends.push(client.await.unwrap());
    }
    ends
}

/// The revision of a signal.
fn revision_of_signal(signal: &Signal) -> Revision {
    match signal {
        Signal::Change(event) => event.revision,
        Signal::Progress(revision) | Signal::Compacted(revision) => *revision,
    }
}

/// Reads a watch until it has reached `last`, once that is known.
async fn follow<E: Events>(
    mut events: E,
    mut last: tokio::sync::watch::Receiver<Option<Revision>>,
) -> Vec<Signal> {
    let mut signals = Vec::new();
    let mut newest = Revision::default();
    loop {
        tokio::select! {
            signal = events.next() => {
                let Some(signal) = signal else { break };
                newest = newest.max(revision_of_signal(&signal));
                signals.push(signal);
            }
            Ok(()) = last.changed() => {}
        }
        if last.borrow().is_some_and(|last| newest >= last) {
            break;
        }
    }
    signals
}

/// Watches of different ranges, and their signals so far. They continue after a reopening.
struct Watches {
    recorded: Vec<RecordedWatch>,
    next: Revision,
}

impl Watches {
    fn new() -> Self {
        let first = Revision::INITIAL.next();
        let ranges = [
            KeyRange::all(),
            KeyRange::namespace("g.example", "things", "a"),
            KeyRange::one(&key(3)),
        ];
        let watch = |range| RecordedWatch {
            range,
            first,
            signals: Vec::new(),
        };
        Self {
            recorded: ranges.map(watch).into(),
            next: first,
        }
    }

    /// Watches `store` while `work` runs, up to its revision after that.
    async fn during<S: Store, T>(&mut self, store: &S, work: impl Future<Output = T>) -> T {
        let (end, last) = tokio::sync::watch::channel(None);
        let mut followers = Vec::new();
        for watch in &self.recorded {
            let events = store.watch(&watch.range, self.next).await.unwrap();
            followers.push(tokio::spawn(follow(events, last.clone())));
        }
        let done = work.await;
        let current = store.current_revision().await.unwrap();
        end.send(Some(current)).unwrap();
        store.request_progress();
        for (watch, follower) in self.recorded.iter_mut().zip(followers) {
            let signals = tokio::time::timeout(PATIENCE, follower).await.unwrap().unwrap();
            watch.signals.extend(signals);
        }
        self.next = current.next();
        done
    }

    fn check(&self, truth: &Truth) {
        for watch in &self.recorded {
            assert_eq!(check_watch(watch, truth), Ok(()));
        }
    }
}

type Truth = Vec<Event>;

async fn all_changes<S: Store>(store: &S) -> Truth {
    let current = store.current_revision().await.unwrap();
    let mut events = store.watch(&KeyRange::all(), Revision(2)).await.unwrap();
    let mut found = Vec::new();
    while found
        .last()
        .map_or(Revision::INITIAL, |event: &Event| event.revision)
        < current
    {
        match tokio::time::timeout(PATIENCE, events.next()).await.unwrap() {
            Some(Signal::Change(event)) => found.push(event),
            other => panic!("{other:?}"),
        }
    }
    found
}

async fn record<S: Store>(store: &S, seed: u64) -> (Vec<Operation>, Truth) {
    let recorder = Arc::new(Recorder::default());
    let mut watches = Watches::new();
    let clients = run_clients(store, &recorder, seed, operations());
    let ends = watches.during(store, clients).await;
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    let truth = all_changes(store).await;
    watches.check(&truth);
    (recorder.operations(), truth)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_engine_is_strictly_serializable() {
    let _exclusive = EXCLUSIVE.lock().await;
    let root = tempfile::tempdir().unwrap();
    let store = RocksStore::open(options(&root)).unwrap().0;
    let (operations, truth) = record(&store, 1).await;
    assert_eq!(check(&operations, &truth), Ok(()));
    let is_conflict =
        |one: &&Operation| matches!(one.call, Call::Transact(_, Some(Outcome::Conflict { .. })));
    assert!(
        operations.iter().filter(is_conflict).count() > 10,
        "there were hardly any conflicts"
    );
}

/// Where the engine fails, and whether the write is on disk all the same.
const FAULTS: [(&str, &str, bool); 5] = [
    ("engine-write", "return", false),
    ("engine-written", "return", true),
    ("mark-write", "return", true),
    ("commit-before-sync", "panic", false),
    ("commit-before-publish", "panic", true),
];

/// After a write of unknown outcome the clients stop, the store is opened again, and they continue: the write happened or
/// not, and all clients agree about it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_engine_is_strictly_serializable_across_failures_and_reopenings() {
    let _exclusive = EXCLUSIVE.lock().await;
    let root = tempfile::tempdir().unwrap();
    let recorder = Arc::new(Recorder::default());
    let mut watches = Watches::new();
    let mut random = fastrand::Rng::with_seed(9);
    let lives = FAULTS.into_iter().chain(FAULTS).chain(FAULTS);
    let each = operations() / lives.clone().count() as u64;
    for (life, (point, action, happens)) in (10..).zip(lives) {
        let store = RocksStore::open(options(&root)).unwrap().0;
        let unknown_before = unknown(&recorder.operations()).count();
        let passes = random.u64(1..=(each / 20).max(1));
        fail::cfg(point, &format!("{passes}*off->1*{action}")).unwrap();
        let clients = run_clients(&store, &recorder, life, each.max(CLIENTS * 8));
        let ends = watches.during(&store, clients).await;
        fail::remove(point);
        for end in &ends {
            assert!(
                matches!(
                    end,
                    Ok(()) | Err(StoreError::Unknown { .. } | StoreError::ReadOnly { .. })
                ),
                "{point}: {end:?}"
            );
        }
        let published = store.current_revision().await.unwrap();
        drop(store);
        let store = RocksStore::open(options(&root)).unwrap().0;
        let recovered = store.current_revision().await.unwrap();
        let unknown_now = unknown(&recorder.operations()).count() - unknown_before;
        assert!(unknown_now > 0, "{point}: no outcome was unknown");
        if happens {
            // A batch has at most one transaction of a client.
            assert!(recovered > published, "{point}: {unknown_now} unknown");
        } else {
            assert_eq!(recovered, published, "{point}: {unknown_now} unknown");
        }
        drop(store);
    }
    let store = RocksStore::open(options(&root)).unwrap().0;
    let ends = watches
        .during(&store, run_clients(&store, &recorder, 99, each.max(CLIENTS)))
        .await;
    assert!(ends.iter().all(Result::is_ok), "{ends:?}");
    let truth = all_changes(&store).await;
    watches.check(&truth);
    let operations = recorder.operations();
    assert_eq!(check(&operations, &truth), Ok(()));
    // If one of unknown outcome that happened is not recorded, its event is not explained.
    let acknowledged: BTreeSet<Revision> = operations.iter().filter_map(revision_of).collect();
    let happened = truth
        .iter()
        .find(|event| !acknowledged.contains(&event.revision))
        .unwrap();
    let mut without = operations.clone();
    without.retain(|one| !unknown(std::slice::from_ref(one)).any(|one| puts(one, happened)));
    assert_eq!(
        check(&without, &truth).map_err(|violation| violation.rule),
        Err("every event was requested")
    );
}

/// The transactions of unknown outcome.
fn unknown(operations: &[Operation]) -> impl Iterator<Item = &Transaction> {
    operations.iter().filter_map(|one| match &one.call {
        Call::Transact(transaction, None) => Some(transaction),
        _ => None,
    })
}

/// The revision a write was acknowledged at.
fn revision_of(operation: &Operation) -> Option<Revision> {
    match &operation.call {
        Call::Transact(_, Some(Outcome::Committed { revision })) => Some(*revision),
        _ => None,
    }
}

/// Whether a transaction requests just this change.
fn puts(transaction: &Transaction, event: &Event) -> bool {
    let new = event.new.as_ref().map(|entry| &entry.value);
    transaction.key == event.key && transaction.write.value() == new
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn etcd_is_strictly_serializable() {
    let etcd = EtcdProcess::start().await;
    let (operations, truth) = record(&etcd.store().await, 4).await;
    assert_eq!(check(&operations, &truth), Ok(()));
}

/// The process is killed while clients write, and starts again: what was acknowledged is there, writes of unknown outcome
/// happened or not, watches go on without a gap, and a second server sees the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn etcd_is_strictly_serializable_across_kills() {
    let mut etcd = EtcdProcess::start_with(&[]).await;
    let recorder = Arc::new(Recorder::default());
    let mut watches = Watches::new();
    let (store, other) = (etcd.store().await, etcd.store().await);
    let each = (operations() / 4).max(CLIENTS * 8);
    for life in 20..24 {
        let store = if life % 2 == 0 { &store } else { &other };
        let before = recorder.operations().len() as u64;
        let work = async {
            let clients = run_clients(store, &recorder, life, each);
            let kill = async {
                // Amid the work, not after a time.
                while (recorder.operations().len() as u64) < before + each / 4 {
                    tokio::task::yield_now().await;
                }
                etcd.restart().await;
            };
            tokio::join!(clients, kill).0
        };
        let ends = watches.during(store, work).await;
        for end in &ends {
            assert!(
                matches!(
                    end,
                    Ok(()) | Err(StoreError::Unknown { .. } | StoreError::Unavailable { .. })
                ),
                "{end:?}"
            );
        }
    }
    let truth = all_changes(&other).await;
    watches.check(&truth);
    assert_eq!(check(&recorder.operations(), &truth), Ok(()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_model_is_strictly_serializable() {
    let (operations, truth) = record(&MemoryStore::new(), 2).await;
    assert_eq!(check(&operations, &truth), Ok(()));
}

/// The rule that `spoil` violates.
fn broken(
    (operations, truth): &(Vec<Operation>, Truth),
    spoil: impl FnOnce(&mut Vec<Operation>, &mut Truth),
) -> &'static str {
    let (mut operations, mut truth) = (operations.clone(), truth.clone());
    spoil(&mut operations, &mut truth);
    check(&operations, &truth).map_or_else(|violation| violation.rule, |()| "none")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_planted_violation_is_reported_by_its_rule() {
    let recorded = record(&MemoryStore::new(), 3).await;
    assert_eq!(broken(&recorded, |_, _| {}), "none");
    // A read of an older state than one that returned before.
    let stale = broken(&recorded, |operations, _| {
        let found = operations.iter_mut().rev().find_map(|one| match &mut one.call {
            Call::Get(_, found) => Some(found),
            _ => None,
        });
        found.unwrap().revision = Revision(2);
    });
    assert_eq!(stale, "no stale reads");
    // A write that was acknowledged and lost.
    let lost = broken(&recorded, |_, truth| drop(truth.remove(3)));
    assert_eq!(lost, "every write is shown");
    // A wrong value at the right revision.
    let wrong = broken(&recorded, |operations, _| {
        let found = operations.iter_mut().rev().find_map(|one| match &mut one.call {
            Call::Get(_, found) => found.entry.as_mut(),
            _ => None,
        });
        found.unwrap().value = value(9_999_999);
    });
    assert_eq!(wrong, "gets show the state");
    // A committed transaction whose condition did not hold.
    let forced = broken(&recorded, |operations, _| {
        let write = operations.iter_mut().find_map(|one| match &mut one.call {
            Call::Transact(transaction, Some(Outcome::Committed { .. })) => Some(&mut transaction.write),
            _ => None,
        });
        let write = write.unwrap();
        let base = Revision(1);
        *write = match write.value().cloned() {
            Some(value) => Write::Update { base, value },
            None => Write::Delete { base },
        };
    });
    assert_eq!(forced, "conditions hold");
    // Two writes whose revisions contradict real time.
    let swapped = broken(&recorded, |operations, _| {
        let writes = operations
            .iter_mut()
            .filter(|one| matches!(&one.call, Call::Transact(_, Some(Outcome::Committed { .. }))));
        let first = writes.min_by_key(|one| one.called).unwrap();
        (first.called, first.returned) = (u64::MAX - 2, u64::MAX - 1);
    });
    assert_eq!(swapped, "real time");
    // An event that no transaction explains.
    let invented = broken(&recorded, |operations, _| {
        operations.retain(|one| {
            !matches!(one.call, Call::Transact(_, Some(Outcome::Committed { revision })) if revision.0 == 5)
        });
    });
    assert_eq!(invented, "every event was requested");
    // A committed write of unknown outcome: the events resolve it.
    let unknown = broken(&recorded, |operations, _| {
        for one in operations {
            if let Call::Transact(
                _,
                outcome @ Some(Outcome::Committed {
                    revision: Revision(5),
                }),
            ) = &mut one.call
            {
                *outcome = None;
                one.returned = u64::MAX;
            }
        }
    });
    assert_eq!(unknown, "none");
}
