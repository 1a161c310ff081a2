//! What happens when etcd is full, stands still, or compacts under a reader.

use std::time::Duration;

use bytes::Bytes;
use drydock_storage::conformance::{commit, put, thing, value};
use drydock_storage::etcd::{EtcdOptions, EtcdStore};
use drydock_storage::{
    At, Events as _, Health, KeyRange, Outcome, Page, Revision, Signal, Store as _, StoreError, Transaction,
    Value,
};
use rustix::process::{Pid, Signal as Kill, kill_process};

use crate::etcd_process::EtcdProcess;

const PATIENCE: Duration = Duration::from_secs(30);

fn signal(etcd: &EtcdProcess, signal: Kill) {
    let id = i32::try_from(etcd.id()).ok().and_then(Pid::from_raw).unwrap();
    kill_process(id, signal).unwrap();
    // Its threads stop one after the other, and one of them might still answer.
    while signal == Kill::STOP && !is_stopped(etcd.id()) {
        std::thread::yield_now();
    }
}

/// Whether every thread of the process stands still.
fn is_stopped(id: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{id}/task")).unwrap();
    threads.flatten().all(|thread| {
        let state = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        state
            .rsplit_once(')')
            .is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
    })
}

/// A value that does not compress.
fn random(size: usize, random: &mut fastrand::Rng) -> Value {
    let mut bytes = vec![0; size];
    random.fill(&mut bytes);
    Value {
        bytes: Bytes::from(bytes),
        ..value("")
    }
}

/// Waits until a condition of the store holds.
async fn eventually(holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_etcd_serves_reads_and_deletes() {
    let quota = "--quota-backend-bytes=8388608";
    let etcd = EtcdProcess::start_with(&["--unsafe-no-fsync", quota]).await;
    let store = etcd.store().await;
    let mut source = fastrand::Rng::with_seed(1);
    let mut created = Vec::new();
    let refused = loop {
        let key = thing(&format!("n{}", created.len()));
        let write = Transaction::create(key.clone(), random(1 << 20, &mut source));
        match store.transact(write).await {
            Ok(Outcome::Committed { revision }) => created.push((key, revision)),
            // The write with which etcd became full was written, and etcd says that it is full.
            Err(StoreError::Unknown { .. }) => {
                let entry = store.get(&key).await.unwrap().entry;
                created.extend(entry.map(|entry| (key, entry.modified)));
            }
            other => break other,
        }
    };
    let Err(StoreError::Full { reason }) = &refused else {
        panic!("{refused:?}");
    };
    assert!(reason.contains("NOSPACE"), "{reason}");
    assert!(created.len() > 2);
    // A server starts on it all the same.
    let store = etcd.store().await;
    let small = store
        .transact(Transaction::create(thing("small"), value("x")))
        .await;
    assert!(matches!(small, Err(StoreError::Full { .. })), "{small:?}");
    for (key, revision) in created {
        assert!(store.get(&key).await.unwrap().entry.is_some());
        commit(&store, Transaction::delete(key, revision)).await;
    }
    let current = store.current_revision().await.unwrap();
    store.compact(current).await.unwrap();
    etcd.etcdctl(&["defrag"]);
    etcd.etcdctl(&["alarm", "disarm"]);
    commit(&store, Transaction::create(thing("small"), value("x"))).await;
    assert_eq!(store.health(), Health::Ready);
}

/// A write that passes etcd's first check of its quota and not the second one is applied, and all the same answered with the
/// error. It must not be told as refused.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_refused_since_etcd_is_full_did_not_happen() {
    const WRITERS: usize = 8;
    const MOST_ETCDS: u64 = 10;
    let mut doubted = 0;
    for attempt in 0..MOST_ETCDS {
        let quota = "--quota-backend-bytes=8388608";
        let etcd = EtcdProcess::start_with(&["--unsafe-no-fsync", quota]).await;
        let store = etcd.store().await;
        let mut first = put(&store, "shared", "first").await;
        let writers = (0..WRITERS).map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                let seed = attempt * 1_000 + u64::try_from(writer).unwrap();
                let mut source = fastrand::Rng::with_seed(seed);
                let mut outcomes = Vec::new();
                loop {
                    let key = thing(&format!("w{writer}-{}", outcomes.len()));
                    let write = Transaction::create(key.clone(), random(40 << 10, &mut source));
                    let outcome = store.transact(write).await;
                    let is_full = matches!(outcome, Err(StoreError::Full { .. }));
                    outcomes.push((key, outcome));
                    if is_full {
                        return outcomes;
                    }
                }
            })
        });
        for outcomes in writers.collect::<Vec<_>>() {
            for (key, outcome) in outcomes.await.unwrap() {
                let is_stored = store.get(&key).await.unwrap().entry.is_some();
                match outcome {
                    Ok(Outcome::Committed { .. }) => assert!(is_stored, "{key} is lost"),
                    Err(StoreError::Full { .. }) => assert!(!is_stored, "{key} was refused and is stored"),
                    Err(StoreError::Unknown { .. }) => {
                        assert!(is_stored, "{key}: what is certain is not told as unknown");
                        doubted += 1;
                    }
                    other => panic!("{key}: {other:?}"),
                }
            }
        }
        // An update that is refused leaves the object as it was.
        let update = Transaction::update(thing("shared"), first, value("second"));
        assert!(matches!(
            store.transact(update).await,
            Err(StoreError::Full { .. })
        ));
        first = store.get(&thing("shared")).await.unwrap().entry.unwrap().modified;
        commit(&store, Transaction::delete(thing("shared"), first)).await;
        if doubted > 0 {
            return;
        }
    }
    panic!("no write met the end of the quota");
}

/// A start near the quota must not raise the alarm.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_takes_no_space() {
    let etcd = EtcdProcess::start_with(&["--unsafe-no-fsync", "--quota-backend-bytes=1048576"]).await;
    let store = etcd.store().await;
    assert_eq!(etcd.etcdctl(&["alarm", "list"]), "");
    commit(&store, Transaction::create(thing("one"), value("x"))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_that_is_not_answered_has_an_unknown_outcome() {
    let etcd = EtcdProcess::start().await;
    let options = EtcdOptions {
        write_deadline: Duration::from_millis(300),
        ..etcd.options()
    };
    let (store, _) = EtcdStore::open(options).await.unwrap();
    let first = put(&store, "one", "first").await;
    let mut events = store.watch(&KeyRange::all(), first.next()).await.unwrap();
    signal(&etcd, Kill::STOP);
    let write = Transaction::update(thing("one"), first, value("second"));
    let outcome = store.transact(write).await;
    assert!(matches!(outcome, Err(StoreError::Unknown { .. })), "{outcome:?}");
    eventually(|| matches!(store.health(), Health::Unreachable(_))).await;
    // Nothing is sent to a member that is known not to answer.
    let refused = store
        .transact(Transaction::create(thing("two"), value("x")))
        .await;
    assert!(
        matches!(refused, Err(StoreError::Unavailable { .. })),
        "{refused:?}"
    );
    signal(&etcd, Kill::CONT);
    eventually(|| store.health() == Health::Ready).await;
    let entry = store.get(&thing("one")).await.unwrap().entry.unwrap();
    // Whether the write happened is told by what is stored, and by the watch.
    let last = put(&store, "one", "third").await;
    let expected = if entry.modified == first {
        vec![last]
    } else {
        vec![entry.modified, last]
    };
    let mut seen = Vec::new();
    while seen.len() < expected.len() {
        match tokio::time::timeout(PATIENCE, events.next()).await.unwrap() {
            Some(Signal::Change(event)) => seen.push(event.revision),
            Some(Signal::Progress(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(seen, expected);
    assert_eq!(store.get(&thing("two")).await.unwrap().entry, None);
}

/// Reads wait for a member that stands still for a moment.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_standstill_is_no_error_for_readers() {
    let etcd = EtcdProcess::start().await;
    let store = etcd.store().await;
    let first = put(&store, "one", "first").await;
    signal(&etcd, Kill::STOP);
    let key = thing("one");
    let read = tokio::spawn({
        let store = store.clone();
        async move { store.get(&key).await }
    });
    eventually(|| matches!(store.health(), Health::Unreachable(_))).await;
    signal(&etcd, Kill::CONT);
    assert_eq!(read.await.unwrap().unwrap().entry.unwrap().modified, first);
}

/// An event is never left out: the watch ends when what it has not read is compacted.
#[tokio::test(flavor = "multi_thread")]
async fn a_lagging_watch_ends_when_its_events_are_compacted() {
    let etcd = EtcdProcess::start().await;
    let store = etcd.store().await;
    let mut events = store.watch(&KeyRange::all(), Revision(2)).await.unwrap();
    let mut source = fastrand::Rng::with_seed(2);
    let mut last = put(&store, "one", "first").await;
    for _ in 0..600 {
        let write = Transaction::update(thing("one"), last, random(128 << 10, &mut source));
        last = commit(&store, write).await;
    }
    store.compact(last).await.unwrap();
    let mut seen = Revision::INITIAL;
    let end = loop {
        match tokio::time::timeout(PATIENCE, events.next()).await.unwrap() {
            Some(Signal::Change(event)) => {
                assert_eq!(event.revision, seen.next());
                seen = event.revision;
            }
            Some(Signal::Progress(_)) => {}
            end => break end,
        }
    };
    assert!(matches!(end, Some(Signal::Compacted(_))), "{end:?}");
    assert!(seen < last);
    assert_eq!(events.next().await, None);
}

/// One of two servers compacts; the other one learns it from etcd.
#[tokio::test(flavor = "multi_thread")]
async fn servers_compact_in_turn_and_know_each_others_floors() {
    let etcd = EtcdProcess::start().await;
    let open = || async {
        let options = EtcdOptions {
            compaction_interval: Duration::from_millis(200),
            ..etcd.options()
        };
        EtcdStore::open(options).await.unwrap().0
    };
    let (one, two, other) = (open().await, open().await, etcd.store().await);
    let first = put(&one, "one", "first").await;
    eventually(|| one.floors().listable_from > first || two.floors().listable_from > first).await;
    let refused = other
        .scan(&KeyRange::all(), At::Exactly(Revision::INITIAL), Page::default())
        .await;
    let Err(StoreError::Compacted { floor, .. }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(other.floors().listable_from, floor);
    assert!(floor > Revision::INITIAL.next());
}
