//! Reads of past states and of history.

use tempfile::TempDir;

use super::fixture::{TestClock, open, put, run_housekeeping, value};
use crate::rocks::column_families::HISTORY;
use crate::rocks::{history, read};
use crate::{At, KeyRange, Page, Revision, Store, StoreError, Value};

/// Files of history are removed whatever snapshots exist: a read that meets the gap is late, nothing is damaged.
#[tokio::test(flavor = "multi_thread")]
async fn a_past_read_whose_history_is_dropped_is_compacted_not_damaged() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    for round in 2..=9 {
        put(&store, "one", &round.to_string()).await;
    }
    let engine = store.parts.lifecycle.engine().unwrap();
    engine.settle(HISTORY);
    let view = engine.view();
    let read = || {
        read::attempt(
            &store.parts,
            &view,
            &KeyRange::all(),
            Revision(3),
            &Page::default(),
        )
    };
    assert!(matches!(read(), Ok(read::Attempt::Done(_))));
    store.compact(Revision(9)).await.unwrap();
    engine.drop_history_files(Revision(10)).unwrap();
    let late = read();
    assert!(matches!(late, Ok(read::Attempt::Compacted)), "{late:?}");
    assert_eq!(store.metrics().checksum_failures.get(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pages_of_a_past_state_undo_each_change_once() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    let names = ["a", "b", "c", "d", "e", "f"];
    for name in names {
        put(&store, name, "then").await;
    }
    let at = Revision(7);
    for name in ["b", "d"] {
        put(&store, name, "later").await;
    }
    let mut seen = Vec::new();
    let mut page = Page {
        after: String::new(),
        limit: 2,
        ..Page::default()
    };
    loop {
        let scan = store
            .scan(&KeyRange::all(), At::Exactly(at), page.clone())
            .await
            .unwrap();
        seen.extend(scan.entries.iter().map(|(key, entry)| {
            assert_eq!(entry.value, value("then"));
            key.name().to_owned()
        }));
        if !scan.more {
            break;
        }
        page.after = scan.entries.last().unwrap().0.to_string();
        // Changes between two pages are undone too, before and after the page.
        put(&store, "a", "between").await;
        put(&store, "f", "between").await;
        let walked = store.parts.past_reads.kept_walked();
        assert_eq!(walked, Some(seen.len()), "two changes before each page");
    }
    assert_eq!(seen, names);
    // Abandoned in the middle, the undone changes are dropped with the floor.
    page.after = String::new();
    store.scan(&KeyRange::all(), At::Exactly(at), page).await.unwrap();
    assert!(store.parts.past_reads.kept_walked().is_some());
    store.compact(at).await.unwrap();
    run_housekeeping(&store).await;
    assert!(store.parts.past_reads.kept_walked().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn undone_changes_are_kept_for_30_seconds() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    put(&store, "a", "then").await;
    let at = put(&store, "b", "then").await;
    put(&store, "a", "later").await;
    let page = Page {
        limit: 1,
        ..Page::default()
    };
    let scan = store.scan(&KeyRange::all(), At::Exactly(at), page).await.unwrap();
    assert!(scan.more);
    clock.set(29);
    run_housekeeping(&store).await;
    assert!(store.parts.past_reads.kept_walked().is_some());
    clock.set(30);
    run_housekeeping(&store).await;
    assert!(store.parts.past_reads.kept_walked().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn past_reads_are_limited_and_reads_of_the_newest_state_are_not() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    let at = put(&store, "a", "then").await;
    let now = put(&store, "a", "later").await;
    let permits = store.parts.past_reads.take_all_permits();
    let reader = store.clone();
    let read = |at| {
        let store = reader.clone();
        async move { store.scan(&KeyRange::all(), at, Page::default()).await }
    };
    for at in [At::Latest, At::Exactly(now)] {
        assert_eq!(read(at).await.unwrap().entries.len(), 1);
    }
    let refused = read(At::Exactly(at)).await.map(|_| ());
    assert!(matches!(refused, Err(StoreError::Busy { .. })), "{refused:?}");
    drop(permits);
    assert_eq!(read(At::Exactly(at)).await.unwrap().entries.len(), 1);
    assert!(store.parts.past_reads.is_idle());
}

#[tokio::test(flavor = "multi_thread")]
async fn reads_of_history_are_bounded_by_size_in_memory() {
    let (root, clock) = (TempDir::new().unwrap(), TestClock::default());
    let store = open(&root, &clock);
    // A hundredth of that on disk.
    let large = "x".repeat(Value::MAX_BYTES);
    for number in 0..45 {
        put(&store, &number.to_string(), &large).await;
    }
    let at = store.current_revision().await.unwrap();
    let engine = store.parts.lifecycle.engine().unwrap();
    let read = |from: Revision| {
        history::read_after(
            &engine,
            &store.parts.records,
            from,
            store.parts.published.current(),
        )
        .unwrap()
    };
    assert_eq!(
        read(Revision(1)).len(),
        3,
        "4 MiB hold no more than three of them"
    );
    for number in 0..45 {
        put(&store, &number.to_string(), &large).await;
    }
    assert_eq!(read(at).len(), 2);
    let refused = store
        .scan(&KeyRange::all(), At::Exactly(at), Page::default())
        .await
        .map(|_| ());
    assert!(
        matches!(refused, Err(StoreError::Compacted { .. })),
        "{refused:?}"
    );
    let nearer = Revision(at.0 + 10);
    let scan = store
        .scan(&KeyRange::all(), At::Exactly(nearer), Page::default())
        .await
        .unwrap();
    assert_eq!(scan.entries.len(), 45);
}
