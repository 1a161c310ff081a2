//! Watches: where they begin, and which events they get.

use drydock_storage::{Revision, Store};
use tokio::time::Instant;

use super::super::WatchKind::{Added, Deleted, Modified};
use super::super::*;
use super::fixture::*;

#[tokio::test(start_paused = true)]
async fn event_kind_depends_on_whether_the_object_matched_before_and_after() {
    let fixture = Fixture::new().await;
    let one = key("n", "1");
    let mut by_label = fixture
        .watch(select(Scope::All, "app=a", ""), WatchStart::Now)
        .await;
    let mut by_name = fixture
        .watch(select(namespace("n"), "", "metadata.name=1"), WatchStart::Now)
        .await;
    let mut of_others = fixture
        .watch(select(namespace("o"), "", ""), WatchStart::Now)
        .await;
    let mut unlike = fixture
        .watch(select(Scope::All, "app!=a", ""), WatchStart::Now)
        .await;
    fixture.put(&one, &thing("b", 1)).await;
    fixture.put(&one, &thing("a", 2)).await;
    fixture.put(&one, &thing("a", 3)).await;
    fixture.put(&one, &thing("b", 4)).await;
    fixture.put(&one, &thing("a", 5)).await;
    fixture.delete(&one).await;
    assert_eq!(
        drain(&mut by_label).await,
        [
            event(Added, &one, 3, thing("a", 2)),
            event(Modified, &one, 4, thing("a", 3)),
            event(Deleted, &one, 5, thing("a", 3)),
            event(Added, &one, 6, thing("a", 5)),
            event(Deleted, &one, 7, thing("a", 5)),
        ]
    );
    assert_eq!(
        drain(&mut unlike).await,
        [
            event(Added, &one, 2, thing("b", 1)),
            event(Deleted, &one, 3, thing("b", 1)),
            event(Added, &one, 5, thing("b", 4)),
            event(Deleted, &one, 6, thing("b", 4)),
        ]
    );
    assert_eq!(drain(&mut by_name).await.len(), 6);
    assert_eq!(drain(&mut of_others).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_watch_resumes_after_any_revision() {
    let fixture = Fixture::new().await;
    for serial in 0..6 {
        fixture.put(&key("n", "1"), &thing("a", serial)).await;
    }
    for after in 1..=7 {
        let mut watcher = fixture
            .watch(everything(), WatchStart::After(Revision(after)))
            .await;
        let revisions: Vec<u64> = drain(&mut watcher).await.iter().map(revision).collect();
        assert_eq!(revisions, (after + 1..=7).collect::<Vec<_>>(), "after {after}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_after_a_future_revision_waits_for_it() {
    let fixture = Fixture::new().await;
    let mut watcher = fixture.watch(everything(), WatchStart::After(Revision(3))).await;
    for serial in 0..4 {
        fixture.put(&key("n", "1"), &thing("a", serial)).await;
    }
    let revisions: Vec<u64> = drain(&mut watcher).await.iter().map(revision).collect();
    assert_eq!(revisions, [4, 5]);
}

/// As after a restore without raised revisions, or in front of an emptied store: without an end, an informer would show the
/// objects of another life until the store has counted up to its revision.
#[tokio::test(start_paused = true)]
async fn a_watch_after_a_revision_that_the_store_never_had_expires() {
    let fixture = Fixture::new().await;
    let start = Instant::now();
    let mut never = fixture
        .watch(everything(), WatchStart::After(Revision(900)))
        .await;
    let mut soon = fixture.watch(everything(), WatchStart::After(Revision(2))).await;
    fixture.put(&key("n", "1"), &thing("a", 1)).await;
    fixture.put(&key("n", "1"), &thing("a", 2)).await;
    let end = never.next_buffer(&Lines::default()).await.unwrap().unwrap_err();
    assert_eq!(
        end.to_string(),
        "the resource version 900 is not of this storage, which is at 3: list again"
    );
    assert_eq!(start.elapsed().as_secs(), 30);
    assert!(never.next_buffer(&Lines::default()).await.is_none());
    assert_eq!(drain(&mut soon).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn initial_events_end_with_a_bookmark_even_if_there_are_none() {
    let fixture = Fixture::new().await;
    let initial = WatchStart::InitialEvents(Freshness::MostRecent);
    let mut watcher = fixture.cache.subscribe(request(initial, 3600)).await.unwrap();
    assert_eq!(drain(&mut watcher).await, [bookmark(1, true)]);

    fixture.put(&key("n", "1"), &thing("a", 1)).await;
    fixture.put(&key("n", "2"), &thing("a", 2)).await;
    let mut watcher = fixture.cache.subscribe(request(initial, 3600)).await.unwrap();
    fixture.put(&key("n", "1"), &thing("a", 3)).await;
    assert_eq!(
        drain(&mut watcher).await,
        [
            event(Added, &key("n", "1"), 2, thing("a", 1)),
            event(Added, &key("n", "2"), 3, thing("a", 2)),
            bookmark(3, true),
            event(Modified, &key("n", "1"), 4, thing("a", 3)),
        ]
    );
    // Without bookmarks, this one is not sent either.
    let mut watcher = fixture.watch(everything(), initial).await;
    assert_eq!(drain(&mut watcher).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn initial_events_of_a_future_revision_fail_in_the_stream_after_three_seconds() {
    let fixture = Fixture::new().await;
    let start = Instant::now();
    let at_least = WatchStart::InitialEvents(Freshness::NotOlderThan(Revision(9)));
    let mut watcher = fixture.cache.subscribe(request(at_least, 3600)).await.unwrap();
    let end = watcher.next_buffer(&Lines::default()).await.unwrap().unwrap_err();
    assert_eq!(end.to_string(), "Too large resource version: 9, current: 1");
    assert_eq!(start.elapsed().as_secs(), 3);
    assert!(watcher.next_buffer(&Lines::default()).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_compacted_start_fails_in_the_stream() {
    let limits = CacheLimits {
        history_bytes: 0,
        ..CacheLimits::default()
    };
    let fixture = Fixture::with(limits).await;
    for serial in 0..6 {
        fixture.put(&key("n", "1"), &thing("a", serial)).await;
    }
    fixture.store.compact(Revision(4)).await.unwrap();
    // The oldest event that is kept is 5.
    let mut watcher = fixture.watch(everything(), WatchStart::After(Revision(4))).await;
    assert_eq!(drain(&mut watcher).await.len(), 3);
    let mut watcher = fixture.watch(everything(), WatchStart::After(Revision(3))).await;
    let end = watcher.next_buffer(&Lines::default()).await.unwrap().unwrap_err();
    assert_eq!(end.to_string(), "too old resource version: 3 (4)");
    assert!(watcher.next_buffer(&Lines::default()).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_slow_watch_delays_no_other_and_misses_no_event() {
    for history_bytes in [4_000, 1 << 20] {
        let limits = CacheLimits {
            history_bytes,
            ..CacheLimits::default()
        };
        let fixture = Fixture::with(limits).await;
        let mut slow = fixture.watch(everything(), WatchStart::Now).await;
        let mut fast = fixture.watch(everything(), WatchStart::Now).await;
        for serial in 0..300 {
            fixture
                .put(&key("n", &(serial % 7).to_string()), &thing("a", serial))
                .await;
            let frames = drain(&mut fast).await;
            assert_eq!(frames.len(), 1, "event {serial} at once");
        }
        let revisions: Vec<u64> = drain(&mut slow).await.iter().map(revision).collect();
        assert_eq!(revisions, (2..302).collect::<Vec<_>>());
    }
}
