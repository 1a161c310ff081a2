//! Compaction of history.

use super::{Backend, change_summary, create, delete, entry, key, next, scan_all, things, update};
use crate::{At, EventKind, Page, Revision, Signal, Store, StoreError};

/// A repeated compaction changes nothing.
pub async fn floors_rise_and_never_fall<B: Backend>(backend: &B) {
    let store = backend.open().await;
    for name in ["one", "two", "three"] {
        create(&store, &key("a", name), "x").await;
    }
    assert!(store.floors().listable_from <= Revision::INITIAL);
    assert!(store.floors().watchable_from <= Revision(2));
    for (through, floor) in [(2, 3), (3, 4), (2, 4)] {
        store.compact(Revision(through)).await.unwrap();
        let floors = store.floors();
        assert_eq!(floors.listable_from, Revision(floor), "through {through}");
        assert_eq!(floors.watchable_from, Revision(floor), "through {through}");
    }
}

/// The error names the floor.
pub async fn the_past_below_the_floor_is_gone<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let one = key("a", "one");
    let r2 = create(&store, &one, "1").await;
    let r3 = update(&store, &one, r2, "2").await;
    let r4 = update(&store, &one, r3, "3").await;
    store.compact(r3).await.unwrap();
    let refused = store.scan(&things(), At::Exactly(r3), Page::default()).await;
    let Err(StoreError::Compacted { requested, floor }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((requested, floor), (r3, r4));
    let refused = store.watch(&things(), r3).await.map(|_| ());
    let Err(StoreError::Compacted { requested, floor }) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!((requested, floor), (r3, r4));
    let scan = scan_all(&store, &things(), At::Exactly(r4)).await;
    assert_eq!(scan.entries, [(one, entry("3", r2, r4))]);
}

/// A watch opened exactly there delivers it (etcd#19179).
pub async fn the_record_at_the_floor_is_watched<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let one = key("a", "one");
    let r2 = create(&store, &one, "1").await;
    let r3 = update(&store, &one, r2, "2").await;
    let r4 = update(&store, &one, r3, "3").await;
    store.compact(r2).await.unwrap();
    let mut events = store.watch(&things(), r3).await.unwrap();
    assert_eq!(
        change_summary(&mut events).await,
        (EventKind::Updated, "one".into(), r3)
    );
    assert_eq!(
        change_summary(&mut events).await,
        (EventKind::Updated, "one".into(), r4)
    );
}

/// Compaction does not drop a deletion at the floor (etcd#18089, etcd#19179).
pub async fn a_deletion_at_the_floor_is_watched<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let one = key("a", "one");
    let r2 = create(&store, &one, "1").await;
    let r3 = delete(&store, &one, r2).await;
    let r4 = create(&store, &key("a", "two"), "1").await;
    store.compact(r2).await.unwrap();
    let mut events = store.watch(&things(), r3).await.unwrap();
    assert_eq!(
        change_summary(&mut events).await,
        (EventKind::Deleted, "one".into(), r3)
    );
    assert_eq!(
        change_summary(&mut events).await,
        (EventKind::Created, "two".into(), r4)
    );
}

/// Including a key that was last written long ago.
pub async fn compaction_keeps_live_keys<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let (old, gone) = (key("a", "old"), key("a", "gone"));
    let r2 = create(&store, &old, "1").await;
    let r3 = create(&store, &gone, "1").await;
    let r4 = delete(&store, &gone, r3).await;
    let r5 = create(&store, &key("a", "new"), "1").await;
    store.compact(r4).await.unwrap();
    for at in [At::Latest, At::Exactly(r5)] {
        let scan = scan_all(&store, &things(), at).await;
        assert_eq!(super::names(&scan), ["new", "old"]);
    }
    assert_eq!(store.get(&old).await.unwrap().entry, Some(entry("1", r2, r2)));
    assert_eq!(store.get(&gone).await.unwrap().entry, None);
}

/// The next write takes the next revision.
pub async fn compaction_takes_no_revision<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let r2 = create(&store, &key("a", "one"), "1").await;
    store.compact(r2).await.unwrap();
    assert_eq!(store.current_revision().await.unwrap(), r2);
    assert_eq!(create(&store, &key("a", "two"), "1").await, r2.next());
}

/// Even if the newest record was a deletion (etcd#17780).
pub async fn compaction_of_a_deletion_keeps_the_revision<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let one = key("a", "one");
    let r2 = create(&store, &one, "1").await;
    let r3 = delete(&store, &one, r2).await;
    store.compact(r3).await.unwrap();
    assert_eq!(store.current_revision().await.unwrap(), r3);
    let mut events = store.watch(&things(), r3.next()).await.unwrap();
    assert_eq!(create(&store, &one, "2").await, r3.next());
    assert_eq!(
        change_summary(&mut events).await,
        (EventKind::Created, "one".into(), r3.next())
    );
}

/// The error names both revisions.
pub async fn compaction_of_the_future_is_refused<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let current = create(&store, &key("a", "one"), "1").await;
    let refused = store.compact(current.next()).await;
    assert!(matches!(refused, Err(StoreError::Future { .. })), "{refused:?}");
}

/// With the floor as its last signal, and without a gap.
pub async fn a_watch_left_behind_ends<B: Backend>(backend: &B) {
    let store = backend.open().await;
    let mut events = store.watch(&things(), Revision(2)).await.unwrap();
    for name in ["one", "two", "three"] {
        create(&store, &key("a", name), "x").await;
    }
    store.compact(Revision(3)).await.unwrap();
    let mut seen = Revision::INITIAL;
    let end = loop {
        match next(&mut events).await {
            Some(Signal::Change(event)) if !B::ENDS_AT_ONCE => {
                assert_eq!(event.revision, seen.next(), "no event is left out");
                seen = event.revision;
                if seen == Revision(4) {
                    return;
                }
            }
            end => break end,
        }
    };
    assert_eq!(end, Some(Signal::Compacted(Revision(4))));
    assert_eq!(next(&mut events).await, None);
}
