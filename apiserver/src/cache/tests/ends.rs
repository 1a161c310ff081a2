//! Bookmarks of watches, and how watches end.

use std::sync::atomic::Ordering;
use std::time::Duration;

use drydock_storage::{Revision, Store};
use tokio::time::Instant;

use super::super::WatchKind::Added;
use super::super::*;
use super::faulty::FaultyStore;
use super::fixture::*;

#[tokio::test(start_paused = true)]
async fn bookmarks_are_sent_each_minute_and_two_seconds_before_the_timeout() {
    let fixture = Fixture::new().await;
    let watcher = fixture
        .cache
        .subscribe(request(WatchStart::Now, 135))
        .await
        .unwrap();
    fixture.put(&key("n", "1"), &thing("a", 1)).await;
    let seen = until_end(watcher).await;
    assert_eq!(seen[0], (0, event(Added, &key("n", "1"), 2, thing("a", 1))));
    let bookmarks: Vec<_> = seen[1..].iter().map(|(_, frame)| frame.clone()).collect();
    assert_eq!(bookmarks, vec![bookmark(2, false); 3]);
    let seconds: Vec<u64> = seen[1..].iter().map(|(second, _)| *second).collect();
    assert!(
        (58..=62).contains(&seconds[0]) && (117..=123).contains(&seconds[1]),
        "{seconds:?}"
    );
    assert_eq!(seconds[2], 133);
}

#[tokio::test(start_paused = true)]
async fn writes_to_other_resources_advance_bookmarks_and_none_is_sent_at_the_start() {
    let fixture = Fixture::new().await;
    let idle = fixture
        .cache
        .subscribe(request(WatchStart::Now, 70))
        .await
        .unwrap();
    assert_eq!(until_end(idle).await, []);
    let watcher = fixture
        .cache
        .subscribe(request(WatchStart::Now, 10))
        .await
        .unwrap();
    let other = drydock_storage::Key::new(GROUP, "others", "n", "1").unwrap();
    write(&fixture.store, &other, Some(thing("a", 1))).await;
    assert_eq!(until_end(watcher).await, [(8, bookmark(2, false))]);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_ends_a_watch_without_an_error() {
    let fixture = Fixture::new().await;
    let start = Instant::now();
    let mut watcher = fixture
        .cache
        .subscribe(WatchRequest {
            bookmarks: false,
            ..request(WatchStart::Now, 5)
        })
        .await
        .unwrap();
    assert!(watcher.next_buffer(&Lines::default()).await.is_none());
    assert_eq!(start.elapsed().as_secs(), 5);
    fixture.put(&key("n", "1"), &thing("a", 1)).await;
    assert!(
        watcher.next_buffer(&Lines::default()).await.is_none(),
        "an ended watch stays ended"
    );
}

#[tokio::test(start_paused = true)]
async fn server_shutdown_ends_watches_staggered_each_with_a_bookmark() {
    let fixture = Fixture::new().await;
    let mut ends = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let watcher = fixture
            .cache
            .subscribe(request(WatchStart::Now, 3600))
            .await
            .unwrap();
        ends.spawn(until_end(watcher));
    }
    fixture.put(&key("n", "1"), &thing("a", 1)).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    fixture.cache.end_watches(Duration::from_secs(20));
    let mut seconds: Vec<u64> = ends
        .join_all()
        .await
        .into_iter()
        .map(|seen| {
            assert_eq!(seen.len(), 2);
            assert_eq!(seen[1].1, bookmark(2, false));
            seen[1].0
        })
        .collect();
    seconds.sort_unstable();
    assert!(
        seconds[0] < 5 && seconds[49] > 15 && seconds[49] <= 21,
        "{seconds:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_gap_in_the_store_expires_watches_staggered() {
    let fixture = Fixture::over(FaultyStore::default(), CacheLimits::default()).await;
    fixture.put(&key("n", "1"), &thing("a", 1)).await;
    let mut ends = tokio::task::JoinSet::new();
    let start = Instant::now();
    for _ in 0..50 {
        let mut watcher = fixture.watch(everything(), WatchStart::Now).await;
        ends.spawn(async move {
            let end = watcher.next_buffer(&Lines::default()).await.unwrap().unwrap_err();
            assert_eq!(end.to_string(), "too old resource version: 2 (4)");
            start.elapsed().as_secs()
        });
    }
    // The stream ends, and the store is compacted before the cache reconnects.
    fixture.store.faults.break_off.store(true, Ordering::Relaxed);
    write(&fixture.store, &key("n", "1"), Some(thing("a", 2))).await;
    write(&fixture.store, &key("n", "2"), Some(thing("a", 3))).await;
    fixture.store.compact(Revision(4)).await.unwrap();
    let snapshot = fixture.cache.reads.fresh().await.unwrap();
    assert_eq!((snapshot.revision(), snapshot.count()), (Revision(4), 2));
    let mut seconds = ends.join_all().await;
    seconds.sort_unstable();
    assert!(
        seconds[0] <= 2 && seconds[49] >= 8 && seconds[49] <= 10,
        "{seconds:?}"
    );
}
