//! Restarts, losses of power, and regressions of other stores by name.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::FutureExt as _;
use tempfile::TempDir;

use super::fixture::{TestClock, close, key, open, options, put, run_housekeeping, series, value};
use crate::rocks::column_families::HISTORY;
use crate::rocks::folder::engine_folder;
use crate::rocks::{OpenError, RocksStore};
use crate::{
    Durability, EventKind, Events, KeyRange, Options, Outcome, Revision, Signal, Store, Transaction, Value,
};

/// The newest record is a deletion, compaction removes it, and the process restarts (etcd#17780).
#[tokio::test(flavor = "multi_thread")]
async fn etcd_17780_revision_does_not_decrease_after_compaction_of_a_tombstone() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    let created = put(&store, "one", "1").await;
    store
        .transact(Transaction::delete(key("one"), created))
        .await
        .unwrap();
    store.compact(Revision(3)).await.unwrap();
    close(store).await;
    let (store, opened) = RocksStore::open(options(root.path(), &clock)).unwrap();
    assert_eq!((opened.revision, opened.history_records), (3, 0));
    assert_eq!(put(&store, "one", "2").await, Revision(4));
}

/// Compaction at a deletion, a restart, then a watch from there (etcd#18089, etcd#19179).
#[tokio::test(flavor = "multi_thread")]
async fn etcd_19179_a_deletion_at_the_floor_is_delivered_after_a_restart() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    let created = put(&store, "one", "1").await;
    store
        .transact(Transaction::delete(key("one"), created))
        .await
        .unwrap();
    store.compact(created).await.unwrap();
    close(store).await;
    let store = open(&root, &clock);
    let mut events = store.watch(&KeyRange::all(), Revision(3)).await.unwrap();
    let Some(Signal::Change(event)) = events.next().await else {
        panic!("the deletion is due");
    };
    assert_eq!((event.revision, event.kind), (Revision(3), EventKind::Deleted));
}

/// A watch that resumes across a restart never goes back in time (etcd#15271).
#[tokio::test(flavor = "multi_thread")]
async fn etcd_15271_a_resumed_watch_does_not_travel_back() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let mut seen = Revision::INITIAL;
    for _ in 0..4 {
        let store = open(&root, &clock);
        let mut events = store.watch(&KeyRange::all(), seen.next()).await.unwrap();
        let last = {
            put(&store, "one", "1").await;
            put(&store, "two", "1").await
        };
        while seen < last {
            match events.next().await {
                Some(Signal::Change(event)) => {
                    assert_eq!(event.revision, seen.next());
                    seen = event.revision;
                }
                other => panic!("{other:?}"),
            }
        }
        close(store).await;
    }
}

/// A transaction is delivered once, also after a conflict in the same batch (etcd#17247).
#[tokio::test(flavor = "multi_thread")]
async fn etcd_17247_a_transaction_is_not_delivered_twice() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    let transactions = ["a", "a", "b"].map(|name| Transaction::create(key(name), value("x")));
    let outcomes = store.transact_many(transactions.to_vec()).await;
    assert!(matches!(
        outcomes[..],
        [
            Ok(Outcome::Committed { .. }),
            Ok(Outcome::Conflict { .. }),
            Ok(Outcome::Committed { .. })
        ]
    ));
    let mut events = store.watch(&KeyRange::all(), Revision(2)).await.unwrap();
    for (revision, name) in [(2, "a"), (3, "b")] {
        let Some(Signal::Change(event)) = events.next().await else {
            panic!("a change is due");
        };
        assert_eq!((event.revision, event.key), (Revision(revision), key(name)));
    }
    store.request_progress();
    assert_eq!(events.next().await, Some(Signal::Progress(Revision(3))));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_open_is_refused() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    let refused = RocksStore::open(options(root.path(), &clock))
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(refused, OpenError::Locked { .. }), "{refused}");
    close(store).await;
    close(open(&root, &clock)).await;
}

/// Options of relaxed mode, with syncs only when a test asks for them.
fn relaxed(folder: &Path, clock: &TestClock) -> Options {
    Options {
        durability: Durability::Relaxed {
            interval: Duration::from_hours(1),
        },
        ..options(folder, clock)
    }
}

/// The files of a store after a loss of power, with `synced` bytes of the newest log.
fn after_power_loss(root: &TempDir, synced: u64) -> TempDir {
    let left = TempDir::new().unwrap();
    let (from, to) = (root.path(), left.path());
    std::fs::create_dir(engine_folder(to)).unwrap();
    for name in ["format", "mark"] {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
    for found in std::fs::read_dir(engine_folder(from)).unwrap() {
        let found = found.unwrap();
        std::fs::copy(found.path(), engine_folder(to).join(found.file_name())).unwrap();
    }
    let (log, _) = newest_log(&left);
    let file = std::fs::OpenOptions::new().write(true).open(log).unwrap();
    file.set_len(synced).unwrap();
    left
}

fn newest_log(root: &TempDir) -> (PathBuf, u64) {
    let files = std::fs::read_dir(engine_folder(root.path())).unwrap();
    let paths = files.map(|file| file.unwrap().path());
    let logs = paths.filter(|path| path.extension().is_some_and(|end| end == "log"));
    let newest = logs.max().unwrap();
    let length = std::fs::metadata(&newest).unwrap().len();
    (newest, length)
}

/// If files of history are removed before the floors are synced, a loss of power reverts the floors and not the removal, and
/// the next start finds a gap.
#[tokio::test(flavor = "multi_thread")]
async fn floors_survive_a_loss_of_power_in_relaxed_mode() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = RocksStore::open(relaxed(root.path(), &clock)).unwrap().0;
    for name in ["one", "two"] {
        put(&store, name, "x").await;
    }
    store.parts.lifecycle.engine().unwrap().settle(HISTORY);
    let syncs = || series(&store, "sync_seconds_count");
    let before = syncs();
    for name in ["three", "four"] {
        put(&store, name, "x").await;
    }
    assert!((syncs() - before).abs() < 0.1, "writes are not synced");
    store.compact(Revision(3)).await.unwrap();
    store.threads.housekeeping().drop_files();
    let synced = if syncs() > before + 0.5 {
        newest_log(&root).1
    } else {
        0
    };
    let left = after_power_loss(&root, synced);
    let next_boot = Options {
        boot_id: uuid::Uuid::from_u128(1),
        ..relaxed(left.path(), &clock)
    };
    let (_, opened) = RocksStore::open(next_boot).unwrap();
    assert!(opened.resumed_at_ceiling);
    assert_eq!(opened.objects, 4);
}

/// Opening the log for writing first would flush what can be read and drop the torn rest.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_start_in_relaxed_mode_changes_no_log() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = RocksStore::open(relaxed(root.path(), &clock)).unwrap().0;
    for name in ["one", "two", "three"] {
        put(&store, name, "x").await;
    }
    run_housekeeping(&store).await;
    let left = after_power_loss(&root, newest_log(&root).1 - 1);
    let logs = || {
        let files = std::fs::read_dir(engine_folder(left.path())).unwrap();
        let paths = files.map(|file| file.unwrap().path());
        let mut logs: Vec<_> = paths
            .filter(|path| path.extension().is_some_and(|end| end == "log" || end == "sst"))
            .map(|path| (std::fs::read(&path).unwrap(), path))
            .collect();
        logs.sort();
        logs
    };
    let before = logs();
    let refused = RocksStore::open(relaxed(left.path(), &clock)).map(|_| ());
    assert!(
        matches!(refused, Err(OpenError::AcknowledgedLost { .. })),
        "{refused:?}"
    );
    assert!(logs() == before, "the start changed the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_that_resume_after_a_restart_need_no_disk() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    for text in ["1", "2", "3"] {
        put(&store, "one", text).await;
    }
    close(store).await;
    let store = open(&root, &clock);
    let mut events = store.watch(&KeyRange::all(), Revision(2)).await.unwrap();
    let mut next = async || match events.next().await {
        Some(Signal::Change(event)) => event.revision.0,
        other => panic!("a change is due, not {other:?}"),
    };
    for expected in 2..=4 {
        assert_eq!(next().await, expected);
    }
    put(&store, "one", "5").await;
    assert_eq!(next().await, 5);
    assert_eq!(store.metrics().replays.get(), 0);
    drop(events);
    // Events that do not fit into the tail are on disk only.
    let large = "x".repeat(Value::MAX_BYTES);
    for number in 0..25 {
        put(&store, &number.to_string(), &large).await;
    }
    close(store).await;
    let store = open(&root, &clock);
    let mut events = store.watch(&KeyRange::all(), Revision(2)).await.unwrap();
    for expected in 2..=30 {
        let next = events.next().await;
        assert!(
            matches!(&next, Some(Signal::Change(event)) if event.revision == Revision(expected)),
            "{expected}"
        );
    }
    let replays = store.metrics().replays.get();
    assert!((1..10).contains(&replays), "{replays}");
    drop(events);
    // A cancelled `next` does not repeat its read.
    let mut events = store.watch(&KeyRange::all(), Revision(2)).await.unwrap();
    let first = loop {
        match events.next().now_or_never() {
            Some(first) => break first,
            None => tokio::task::yield_now().await,
        }
    };
    assert!(matches!(first, Some(Signal::Change(event)) if event.revision == Revision(2)));
    assert_eq!(store.metrics().replays.get(), replays + 1);
}
