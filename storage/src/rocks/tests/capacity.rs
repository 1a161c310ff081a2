//! Full disks and the limit for objects.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tempfile::TempDir;

use super::fixture::{
    TestClock, close, floors, key, options, put, put_each_second, run_housekeeping, value, with_free,
};
use crate::rocks::RocksStore;
use crate::{FreeSpace, Growth, Health, Options, Outcome, Revision, Store, StoreError, Transaction};

#[tokio::test(flavor = "multi_thread")]
async fn a_nearly_full_disk_accepts_deletes_but_no_creates() {
    let (root, clock, free) = (
        TempDir::new().unwrap(),
        TestClock::default(),
        Arc::new(AtomicU64::new(50 << 30)),
    );
    let store = with_free(&root, &clock, &free);
    let created = put(&store, "one", "some text").await;
    free.store((1 << 30) - 1, Ordering::Relaxed);
    run_housekeeping(&store).await;
    let refused = store.transact(Transaction::create(key("two"), value("x"))).await;
    assert!(matches!(refused, Err(StoreError::Full { .. })), "{refused:?}");
    let longer = Transaction::update(key("one"), created, value("some longer text"));
    let refused = store.transact(longer.clone()).await;
    assert!(matches!(refused, Err(StoreError::Full { .. })), "{refused:?}");
    let marked = store.transact(longer.growing(Growth::UpTo(16))).await.unwrap();
    assert!(matches!(marked, Outcome::Committed { .. }), "{marked:?}");
    let created = created.next();
    let shorter = put(&store, "one", "text").await;
    assert_eq!(shorter, created.next());
    let deleted = store
        .transact(Transaction::delete(key("one"), shorter))
        .await
        .unwrap();
    assert!(matches!(deleted, Outcome::Committed { .. }), "{deleted:?}");
    free.store(50 << 30, Ordering::Relaxed);
    run_housekeeping(&store).await;
    put(&store, "two", "x").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn at_the_object_limit_values_may_shrink_and_be_deleted() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let open = || {
        let options = Options {
            object_bytes: 20,
            ..options(root.path(), &clock)
        };
        RocksStore::open(options).unwrap().0
    };
    let store = open();
    assert_eq!(store.metrics().object_bytes_limit.get(), 20);
    put(&store, "one", "0123456789").await;
    put(&store, "two", "0123456789").await;
    close(store).await;
    let store = open();
    let create = || store.transact(Transaction::create(key("three"), value("x")));
    let Err(StoreError::Full { reason }) = create().await else {
        panic!("a create above the limit");
    };
    assert!(
        reason.contains("objects have 20 bytes, the limit is 20"),
        "{reason}"
    );
    let full = crate::metrics::EndedAs { outcome: "full" };
    assert_eq!(store.metrics().commits.get_or_create(&full).get(), 1);
    let grows = Transaction::update(key("one"), Revision(2), value("0123456789a"));
    let many = store
        .transact_many(vec![grows.clone(), grows.growing(Growth::UpTo(11))])
        .await;
    assert!(matches!(
        many[..],
        [Err(StoreError::Full { .. }), Ok(Outcome::Committed { .. })]
    ));
    // The reserve is a quarter of the limit: five bytes more.
    let report = |base, length| {
        let value = value(&"0".repeat(length));
        Transaction::update(key("one"), Revision(base), value).growing(Growth::UpTo(1000))
    };
    let used = store.transact(report(4, 16)).await.unwrap();
    assert!(matches!(used, Outcome::Committed { .. }), "{used:?}");
    let Err(StoreError::Full { reason }) = store.transact(report(5, 17)).await else {
        panic!("a report above the reserve");
    };
    assert!(reason.contains("its reserve is used up"), "{reason}");
    let marked = report(5, 17).growing(Growth::Deletion);
    assert!(matches!(
        store.transact(marked).await,
        Ok(Outcome::Committed { .. })
    ));
    put(&store, "one", "0").await;
    assert!(matches!(create().await, Ok(Outcome::Committed { .. })));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_measures_the_disk_and_keeps_a_window_below_the_minimum() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let with = |free: u64| {
        let options = Options {
            measure_disk: Arc::new(move |_| {
                Ok(FreeSpace {
                    free,
                    total: 100 << 30,
                })
            }),
            window: Duration::from_secs(20),
            ..options(root.path(), &clock)
        };
        RocksStore::open(options).unwrap().0
    };
    let store = with(10 << 30);
    assert_eq!(store.metrics().disk_free_bytes.get(), 10 << 30);
    put_each_second(&store, &clock).await;
    clock.set(40);
    assert_eq!(run_housekeeping(&store).await, floors(19, 19));
    close(store).await;
    let store = with((1 << 30) - 1);
    let refused = store.transact(Transaction::create(key("two"), value("x"))).await;
    assert!(matches!(refused, Err(StoreError::Full { .. })), "{refused:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_on_a_full_disk_is_read_only_until_there_is_space() {
    let (root, clock, free) = (
        TempDir::new().unwrap(),
        TestClock::default(),
        Arc::new(AtomicU64::new(50 << 30)),
    );
    let store = with_free(&root, &clock, &free);
    put(&store, "one", "x").await;
    close(store).await;
    free.store(1 << 20, Ordering::Relaxed);
    let store = with_free(&root, &clock, &free);
    assert!(matches!(store.health(), Health::ReadOnly(_)));
    assert!(store.get(&key("one")).await.unwrap().entry.is_some());
    let refused = store.transact(Transaction::delete(key("one"), Revision(2))).await;
    assert!(matches!(refused, Err(StoreError::ReadOnly { .. })), "{refused:?}");
    free.store(50 << 30, Ordering::Relaxed);
    run_housekeeping(&store).await;
    assert_eq!(store.health(), Health::Ready);
    put(&store, "one", "y").await;
}
