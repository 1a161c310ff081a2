//! Floors, the window, and the removal of old history.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tempfile::TempDir;

use super::fixture::{
    GRACE, SplitClock, TestClock, close, floors, key, open, options, put, put_each_second, run_housekeeping,
    series, value, with_free,
};
use crate::rocks::RocksStore;
use crate::rocks::column_families::HISTORY;
use crate::{At, FreeSpace, KeyRange, Options, Page, Revision, Store, StoreError, Transaction};

#[tokio::test(flavor = "multi_thread")]
async fn floors_follow_the_window_and_survive_a_restart() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    put_each_second(&store, &clock).await;
    assert_eq!(run_housekeeping(&store).await, floors(1, 1));
    clock.set(320);
    assert_eq!(run_housekeeping(&store).await, floors(19, 19));
    close(store).await;

    let store = open(&root, &clock);
    assert_eq!(store.floors(), floors(19, 19));
    assert!(
        store
            .scan(&KeyRange::all(), At::Exactly(Revision(19)), Page::default())
            .await
            .is_ok()
    );
    clock.set(5000);
    // A quiet night: the newest state stays listable, the newest ten revisions watchable.
    assert_eq!(run_housekeeping(&store).await, floors(30, 21));
    assert!(store.watch(&KeyRange::all(), Revision(21)).await.is_ok());
    let refused = store
        .scan(&KeyRange::all(), At::Exactly(Revision(29)), Page::default())
        .await;
    assert!(
        matches!(refused, Err(StoreError::Compacted { .. })),
        "{refused:?}"
    );
    close(store).await;
    let (_, opened) = RocksStore::open(options(root.path(), &clock)).unwrap();
    assert_eq!(
        (
            opened.listable_from,
            opened.watchable_from,
            opened.history_records
        ),
        (30, 21, 10)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_goes_back_does_not_reorder_history() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    clock.set(1000);
    put(&store, "one", "1").await;
    clock.set(10);
    put(&store, "one", "2").await;
    clock.set(1299);
    assert_eq!(run_housekeeping(&store).await, floors(1, 1));
    clock.set(1302);
    assert_eq!(run_housekeeping(&store).await, floors(3, 1));
}

/// Commits made after a wall clock was ahead for a while looked new until it had caught up.
#[tokio::test(flavor = "multi_thread")]
async fn history_ages_although_the_wall_clock_jumps() {
    let (root, clock) = (TempDir::new().unwrap(), SplitClock::default());
    let open = || {
        let options = Options {
            clock: Arc::new(clock.clone()),
            ..options(root.path(), &clock.wall)
        };
        RocksStore::open(options).unwrap().0
    };
    let store = open();
    clock.wall.set(1000);
    put(&store, "one", "1").await;
    clock.wall.set(900_000);
    put(&store, "one", "2").await;
    clock.wall.set(1000);
    for second in 1..=30 {
        clock.uptime.set(second);
        put(&store, "one", &second.to_string()).await;
    }
    clock.uptime.set(315);
    // Revision 18 is of second 15, the newest 10 of 33 stay watchable.
    assert_eq!(run_housekeeping(&store).await, floors(17, 17));
    close(store).await;
    // A new process counts from its start.
    clock.uptime.set(7);
    let store = open();
    assert_eq!(run_housekeeping(&store).await, floors(17, 17));
    clock.uptime.set(308);
    assert_eq!(run_housekeeping(&store).await, floors(33, 24));
}

#[tokio::test(flavor = "multi_thread")]
async fn files_of_old_history_are_removed() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    for name in ["one", "two"] {
        put(&store, name, "x").await;
    }
    let engine = store.parts.lifecycle.engine().unwrap();
    engine.flush().unwrap();
    store.compact(Revision(3)).await.unwrap();
    engine.drop_history_files(Revision(4)).unwrap();
    let view = engine.view();
    assert!(
        view.history(Revision(0), Revision(9))
            .unwrap()
            .next()
            .unwrap()
            .is_none()
    );
    assert_eq!(
        store.get(&key("one")).await.unwrap().entry.unwrap().modified,
        Revision(2)
    );
}

/// If the batch that raises the floors fails and the files below them are removed, the next start finds a gap.
#[tokio::test(flavor = "multi_thread")]
async fn files_below_floors_that_are_not_durable_are_kept() {
    for is_poisoned in [false, true] {
        let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
        let store = open(&root, &clock);
        for name in ["one", "two"] {
            put(&store, name, "x").await;
        }
        store.parts.lifecycle.engine().unwrap().settle(HISTORY);
        for name in ["three", "four"] {
            put(&store, name, "x").await;
        }
        // The state after a compaction whose batch failed.
        store.parts.retention.raise(floors(4, 4));
        if is_poisoned {
            store.parts.lifecycle.poison("injected");
        }
        assert_eq!(run_housekeeping(&store).await, floors(4, 4));
        close(store).await;
        let (_, opened) = RocksStore::open(options(root.path(), &clock)).unwrap();
        assert_eq!((opened.watchable_from, opened.history_records), (1, 4));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_window_metric_is_set_at_the_start() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    clock.set(10);
    put(&store, "one", "x").await;
    close(store).await;
    clock.set(50);
    let store = open(&root, &clock);
    assert_eq!(store.metrics().window_seconds.get(), 40);
}

/// A full queue must not keep compaction out: history grows when it is needed most.
#[tokio::test(flavor = "multi_thread")]
async fn compaction_passes_a_full_queue() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    put_each_second(&store, &clock).await;
    close(store).await;
    clock.set(320);
    let full = Options {
        queue_writes: 0,
        ..options(root.path(), &clock)
    };
    let store = RocksStore::open(full).unwrap().0;
    let refused = store.transact(Transaction::create(key("two"), value("x"))).await;
    assert!(matches!(refused, Err(StoreError::Busy { .. })), "{refused:?}");
    assert_eq!(run_housekeeping(&store).await, floors(19, 19));
    assert_eq!(store.metrics().compactions_skipped.get(), 0);
    store.parts.lifecycle.poison("injected");
    clock.set(325);
    assert_eq!(run_housekeeping(&store).await, floors(19, 19));
    assert_eq!(store.metrics().compactions_skipped.get(), 1);
    assert!((series(&store, "compaction_seconds_count") - 1.0).abs() < 0.1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_runs_short_shortens_the_window() {
    let (root, clock, free) = (
        TempDir::new().unwrap(),
        TestClock::default(),
        Arc::new(AtomicU64::new(10 << 30)),
    );
    let store = with_free(&root, &clock, &free);
    put_each_second(&store, &clock).await;
    clock.set(95);
    assert_eq!(run_housekeeping(&store).await, floors(19, 19));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_on_a_short_disk_compacts_at_once() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    put_each_second(&store, &clock).await;
    close(store).await;
    clock.set(95);
    let options = Options {
        background_work: true,
        measure_disk: Arc::new(|_| {
            Ok(FreeSpace {
                free: 10 << 30,
                total: 100 << 30,
            })
        }),
        ..options(root.path(), &clock)
    };
    let store = RocksStore::open(options).unwrap().0;
    let rises = async {
        while store.floors() != floors(19, 19) {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(GRACE, rises).await.unwrap();
}
