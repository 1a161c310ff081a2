//! The check of values.

use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use super::fixture::{
    TestClock, check_values, close, floors, incompressible, key, open, options, put, spoil_record,
    spoil_table, spoiled_change, text_of,
};
use crate::rocks::capacity::Room;
use crate::rocks::column_families::{HISTORY, STATE, Step};
use crate::rocks::{MaintenanceError, OpenError, RocksStore, check, restore, verify};
use crate::{At, Events, KeyRange, Options, Page, Removable, Revision, Signal, Store, StoreError};

#[tokio::test(flavor = "multi_thread")]
async fn a_value_damaged_on_disk_is_reported_and_served_from_memory_until_the_next_start() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    let one = put(&store, "one", "first").await;
    put(&store, "two", "second").await;
    clock.set(77);
    let whole = check_values(&store).await;
    assert_eq!((whole.objects, whole.history_records), (2, 2));
    assert!(whole.damaged.is_empty() && whole.damaged_history.is_empty());
    assert_eq!(store.metrics().values_checked_seconds.get(), 77);
    spoil_record(&store, "one", "first", one);
    for failures in 1..=2 {
        assert_eq!(check_values(&store).await.damaged, [key("one").to_string()]);
        assert_eq!(store.metrics().value_check_failures.get(), failures);
        assert_eq!(store.metrics().checksum_failures.get(), failures);
    }
    assert_eq!(text_of(&store, "one").await.unwrap(), "first");
    assert!(store.damaged().is_empty(), "the value in memory is good");
    close(store).await;

    let (store, opened) = RocksStore::open(options(root.path(), &clock)).unwrap();
    assert_eq!(opened.damaged, [key("one").to_string()]);
    assert!(matches!(
        store.get(&key("one")).await,
        Err(StoreError::Corrupt { .. })
    ));
    assert_eq!(text_of(&store, "two").await.unwrap(), "second");
    assert!(
        check_values(&store).await.damaged.is_empty(),
        "it was reported when the store was opened"
    );
    store
        .remove_damaged(&key("one"), Removable::Damaged)
        .await
        .unwrap();
    put(&store, "one", "anew").await;
    assert_eq!(text_of(&store, "one").await.unwrap(), "anew");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_makes_a_value_damaged_on_disk_whole_again() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    let one = put(&store, "one", "first").await;
    spoil_record(&store, "one", "first", one);
    assert_eq!(check_values(&store).await.damaged.len(), 1);
    put(&store, "one", "second").await;
    assert!(check_values(&store).await.damaged.is_empty());
    close(store).await;
    let (_, opened) = RocksStore::open(options(root.path(), &clock)).unwrap();
    assert!(opened.damaged.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_block_is_reported_by_key_and_needs_a_backup_of_another_volume() {
    for spoiled in [0, 30, 59] {
        let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
        let store = open(&root, &clock);
        for number in 0..60 {
            put(&store, &format!("{number:03}"), &incompressible(number)).await;
        }
        // History has a table of its own, and goes first: then the value is found in the table of the state.
        store.compact(Revision(61)).await.unwrap();
        for family in [HISTORY, STATE] {
            store.parts.lifecycle.engine().unwrap().settle(family);
        }
        let [links, copies] = ["links", "copies"].map(|name| root.path().join(name));
        let linked = store.backup(&links, 0, &|_| ()).unwrap();
        store.backup_incrementally(&copies, 0).unwrap();
        spoil_table(&root, &incompressible(spoiled).as_bytes()[1000..1100]);
        let name = format!("{spoiled:03}");
        let report = check_values(&store).await;
        assert!(report.damaged.contains(&key(&name).to_string()), "{report:?}");
        assert!(report.damaged.len() < 10, "{report:?}");
        assert_eq!(report.objects, 60 - report.damaged.len() as u64);
        for number in 0..60 {
            let found = text_of(&store, &format!("{number:03}")).await;
            assert_eq!(found, Some(incompressible(number)), "{number}");
        }
        let refused = store.backup(&links, 0, &|_| ()).unwrap_err();
        assert!(
            matches!(refused, MaintenanceError::Open(OpenError::Damaged { .. })),
            "{refused}"
        );
        close(store).await;
        let refused = RocksStore::open(options(root.path(), &clock)).map(|_| ());
        assert!(matches!(refused, Err(OpenError::Damaged { .. })), "{refused:?}");
        let verified = verify(&options(root.path(), &clock), &|_| {}).map(|_| ());
        assert!(
            matches!(verified, Err(MaintenanceError::Open(OpenError::Damaged { .. }))),
            "{verified:?}"
        );
        // A backup of links shares the damaged file.
        let target = options(&root.path().join("restored"), &clock);
        let refused = restore(&linked.path, &target, &|_| {}).unwrap_err();
        assert!(matches!(refused, MaintenanceError::Damaged { .. }), "{refused}");
        let restored = restore(&copies, &target, &|_| {}).unwrap();
        assert_eq!((restored.objects, restored.skipped.len()), (60, 0));
    }
}

/// Such a row must not be taken for one that was deleted meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_with_a_malformed_key_fails_the_check() {
    for family in [STATE, HISTORY] {
        let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
        clock.set(5);
        let store = open(&root, &clock);
        put(&store, "one", "first").await;
        store
            .parts
            .lifecycle
            .engine()
            .unwrap()
            .put_raw(family, b"\xffodd", b"x");
        let checking = store.clone();
        let checked = tokio::task::spawn_blocking(move || checking.check_values())
            .await
            .unwrap();
        assert!(matches!(checked, Err(StoreError::Corrupt { .. })), "{checked:?}");
        assert_eq!(store.metrics().value_check_failures.get(), 1);
        assert_eq!(store.metrics().values_checked_seconds.get(), 0);
        assert_eq!(store.floors().watchable_from, Revision(1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_check_runs_at_a_time_and_ends_when_the_disk_fills_up() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    for number in 0..200 {
        put(&store, &number.to_string(), &incompressible(number)).await;
    }
    let parts = Arc::clone(&store.parts);
    let checked = tokio::task::spawn_blocking(move || {
        let pause = |_| {
            let second = check::check(&parts, &|_| false);
            assert!(
                matches!(second, Err(StoreError::Unavailable { .. })),
                "{second:?}"
            );
            assert!(
                parts.settings.folder.join("check").exists(),
                "the files of the first are there"
            );
            parts.capacity.set_room(Room::Short);
            false
        };
        check::check(&parts, &pause)
    });
    let checked = checked.await.unwrap();
    assert!(matches!(checked, Err(StoreError::Full { .. })), "{checked:?}");
    assert!(!root.path().join("check").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_removes_the_files_of_an_interrupted_check() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    for name in ["check", "check.tmp"] {
        std::fs::create_dir_all(root.path().join(name)).unwrap();
        std::fs::write(root.path().join(name).join("1.sst"), b"old").unwrap();
    }
    let _store = open(&root, &clock);
    assert!(!root.path().join("check").exists() && !root.path().join("check.tmp").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_is_due_if_its_last_time_is_in_the_future() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    clock.set(7);
    std::fs::write(root.path().join("checked"), "99999999").unwrap();
    let options = Options {
        background_work: true,
        check_every: Duration::from_millis(5),
        ..options(root.path(), &clock)
    };
    let store = RocksStore::open(options).unwrap().0;
    while store.metrics().values_checked_seconds.get() == 0 {
        tokio::task::yield_now().await;
    }
    close(store).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn floors_rise_above_a_damaged_history_record() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    for name in ["one", "two", "three", "four"] {
        put(&store, name, "payload").await;
    }
    let spoiled = spoiled_change("two", Revision(3));
    let engine = store.parts.lifecycle.engine().unwrap();
    engine
        .write(&[Step::PutHistory(Revision(3), spoiled)], true)
        .unwrap();
    drop(engine);
    let report = check_values(&store).await;
    assert_eq!(
        (report.history_records, &report.damaged_history[..]),
        (4, &[3][..])
    );
    assert_eq!(store.floors(), floors(4, 4));
    let watched = store.watch(&KeyRange::all(), Revision(3)).await.map(|_| ());
    assert!(
        matches!(watched, Err(StoreError::Compacted { .. })),
        "{watched:?}"
    );
    let scanned = store
        .scan(&KeyRange::all(), At::Exactly(Revision(2)), Page::default())
        .await;
    assert!(
        matches!(scanned, Err(StoreError::Compacted { .. })),
        "{scanned:?}"
    );
    assert!(check_values(&store).await.damaged_history.is_empty());
    close(store).await;
    assert_eq!(open(&root, &clock).floors(), floors(4, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn floors_rise_above_a_damaged_block_of_history() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    for number in 0..60 {
        put(&store, "one", &incompressible(number)).await;
    }
    // All of one key, so that the state holds only the last value.
    let engine = store.parts.lifecycle.engine().unwrap();
    engine.settle(HISTORY);
    drop(engine);
    spoil_table(&root, &incompressible(30).as_bytes()[1000..1100]);
    let report = check_values(&store).await;
    assert!(report.damaged.is_empty(), "{report:?}");
    let floor = store.floors().watchable_from;
    assert_eq!(report.damaged_history, [floor.0 - 1]);
    // The thirty-first change is at revision 32, and blocks hold a handful of changes.
    assert!((32..45).contains(&floor.0), "{floor}");
    let mut events = store.watch(&KeyRange::all(), floor).await.unwrap();
    assert!(matches!(events.next().await, Some(Signal::Change(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_check_runs_when_it_is_due_and_not_before() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    clock.set(1);
    let options = || Options {
        background_work: true,
        check_every: Duration::from_millis(500),
        ..options(root.path(), &clock)
    };
    let store = RocksStore::open(options()).unwrap().0;
    let checked = root.path().join("checked");
    while !checked.exists() {
        tokio::task::yield_now().await;
    }
    assert_eq!(store.metrics().values_checked_seconds.get(), 0);
    clock.set(3);
    while store.metrics().values_checked_seconds.get() == 0 {
        tokio::task::yield_now().await;
    }
    close(store).await;
    assert_eq!(std::fs::read_to_string(&checked).unwrap(), "3000");
}
