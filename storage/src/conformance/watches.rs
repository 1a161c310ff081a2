//! Watches: ordered, unique, reliable, resumable.

use std::time::Duration;

use super::{
    Backend, change, change_summary, create, delete, entry, key, next, progress, things, update, value,
};
use crate::{Event, EventKind, Events, Key, KeyRange, Revision, Signal, Store, StoreError, Transaction};

/// Including changes from before it was opened.
pub async fn a_watch_from_the_start_sees_everything<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let one = key("a", "one");
    let created = create(&store, &one, "1").await;
    let updated = update(&store, &one, created, "2").await;
    let mut events = store.watch(&things(), Revision::INITIAL).await.unwrap();
    assert_eq!(
        change_summary(&mut events).await,
        (EventKind::Created, "one".into(), created)
    );
    assert_eq!(
        change_summary(&mut events).await,
        (EventKind::Updated, "one".into(), updated)
    );
    let deleted = delete(&store, &one, updated).await;
    assert_eq!(
        change_summary(&mut events).await,
        (EventKind::Deleted, "one".into(), deleted)
    );
}

/// And nothing earlier.
pub async fn a_watch_from_now_sees_what_follows<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let current = create(&store, &key("a", "before"), "1").await;
    let mut events = store.watch(&things(), current.next()).await.unwrap();
    let after = create(&store, &key("a", "after"), "1").await;
    assert_eq!(
        change_summary(&mut events).await,
        (EventKind::Created, "after".into(), after)
    );
}

/// Not even by waiting: a watch opened for later events must not deliver an earlier one (etcd#20221).
pub async fn the_future_is_not_watched<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let current = create(&store, &key("a", "one"), "1").await;
    let refused = store.watch(&things(), current.next().next()).await.map(|_| ());
    let Err(StoreError::Future {
        requested,
        current: at,
    }) = refused
    else {
        panic!("{refused:?}");
    };
    assert_eq!((requested, at), (current.next().next(), current));
}

/// The entry before and the entry after.
pub async fn events_hold_both_sides<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let one = key("a", "one");
    let mut events = store.watch(&things(), Revision(2)).await.unwrap();
    let r2 = create(&store, &one, "1").await;
    let r3 = update(&store, &one, r2, "2").await;
    let r4 = delete(&store, &one, r3).await;
    let r5 = create(&store, &one, "3").await;
    let expected = [
        (r2, EventKind::Created, Some(entry("1", r2, r2)), None),
        (
            r3,
            EventKind::Updated,
            Some(entry("2", r2, r3)),
            Some(entry("1", r2, r2)),
        ),
        (r4, EventKind::Deleted, None, Some(entry("2", r2, r3))),
        (r5, EventKind::Created, Some(entry("3", r5, r5)), None),
    ];
    for (at, kind, new, old) in expected {
        let expected = Event {
            revision: at,
            key: one.clone(),
            kind,
            new,
            old,
        };
        assert_eq!(change(&mut events).await, expected);
    }
}

/// Changes of other namespaces and groups are not delivered.
pub async fn a_watch_sees_only_its_range<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let range = KeyRange::namespace(super::GROUP, "things", "a");
    let mut events = store.watch(&range, Revision(2)).await.unwrap();
    create(&store, &key("ab", "foreign"), "x").await;
    let other = Key::new("other", "things", "a", "one").unwrap();
    create(&store, &other, "x").await;
    let revision = create(&store, &key("a", "one"), "x").await;
    assert_eq!(
        change_summary(&mut events).await,
        (EventKind::Created, "one".into(), revision)
    );
}

/// So that a watch of a quiet range is not left behind by compaction.
pub async fn progress_follows_foreign_writes<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let range = KeyRange::namespace(super::GROUP, "things", "quiet");
    let mut events = store.watch(&range, Revision(2)).await.unwrap();
    let last = create(&store, &key("busy", "one"), "x").await;
    assert_eq!(progress(&mut events).await, last);
}

/// Even if nothing was written; it never overtakes events (etcd#15220).
pub async fn progress_comes_when_asked_for<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let mut events = store.watch(&things(), Revision(2)).await.unwrap();
    store.request_progress();
    assert_eq!(progress(&mut events).await, Revision::INITIAL);
    let written = create(&store, &key("a", "one"), "x").await;
    store.request_progress();
    match next(&mut events).await {
        Some(Signal::Change(event)) => assert_eq!(event.revision, written),
        other => panic!("the event comes before the progress, not {other:?}"),
    }
    assert_eq!(progress(&mut events).await, written);
}

/// From any revision, beginning with the next event.
pub async fn a_watch_resumes_without_gap<B: Backend>(backend: &B) {
    let store = backend.open().await;
    for index in 0..20 {
        create(&store, &key("a", &format!("n{index:02}")), "x").await;
    }
    for stop in 1..=21 {
        let mut events = store.watch(&things(), Revision(stop).next()).await.unwrap();
        for expected in stop + 1..=21 {
            let (_, _, at) = change_summary(&mut events).await;
            assert_eq!(at, Revision(expected));
        }
    }
}

/// However far the reader falls behind the events in memory (etcd#17529, etcd#18089).
pub async fn a_slow_reader_misses_nothing<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let mut events = store.watch(&things(), Revision(2)).await.unwrap();
    let transactions =
        (0..12_000).map(|index| Transaction::create(key("a", &format!("n{index}")), value("x")));
    let outcomes = store.transact_many(transactions.collect()).await;
    assert!(outcomes.iter().all(Result::is_ok));
    for expected in 2..12_002 {
        let (_, _, at) = change_summary(&mut events).await;
        assert_eq!(at, Revision(expected));
    }
}

/// Without another signal.
pub async fn closing_ends_watches<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let mut events = store.watch(&things(), Revision(2)).await.unwrap();
    store.close(Duration::from_secs(5)).await.unwrap();
    assert_eq!(next(&mut events).await, None);
    assert_eq!(next(&mut events).await, None);
}

/// While several writers run.
pub async fn many_watches_see_the_same<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let mut readers = Vec::new();
    for first in [2, 2, 1] {
        let mut events = store.watch(&things(), Revision(first)).await.unwrap();
        readers.push(tokio::spawn(async move {
            let mut seen = Vec::new();
            while seen.len() < 200 {
                match events.next().await {
                    Some(Signal::Change(event)) => seen.push(event),
                    Some(Signal::Progress(_)) => {}
                    other => panic!("{other:?}"),
                }
            }
            seen
        }));
    }
    let writers = (0..4).map(|writer| {
        let store = store.clone();
        tokio::spawn(async move {
            for index in 0..50 {
                create(&store, &key("a", &format!("w{writer}n{index}")), "x").await;
            }
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let mut seen = Vec::new();
    for reader in readers {
        seen.push(
            tokio::time::timeout(super::PATIENCE, reader)
                .await
                .unwrap()
                .unwrap(),
        );
    }
    let revisions: Vec<u64> = seen
        .iter()
        .flatten()
        .map(|event| event.revision.0)
        .take(200)
        .collect();
    assert_eq!(revisions, (2..202).collect::<Vec<_>>());
    assert!(seen.windows(2).all(|pair| pair.first() == pair.last()));
}
