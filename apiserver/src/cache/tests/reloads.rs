//! Watches while the cache loses its stream or is reloaded.

use std::sync::atomic::Ordering;
use std::time::Duration;

use drydock_storage::{Revision, Store};
use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::super::*;
use super::faulty::FaultyStore;
use super::fixture::*;

/// Spins until `condition` holds, since nothing may be awaited while a lock is held; returns whether it did in time.
fn soon(condition: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > Duration::from_millis(300) {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// The new root was once published before class logs were restarted: a watch in between continued after the gap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_polled_during_a_reload_does_not_skip_the_gap() {
    let limits = CacheLimits {
        stagger: Duration::ZERO,
        ..CacheLimits::default()
    };
    let fixture = Fixture::over(FaultyStore::default(), limits).await;
    fixture.put(&key("n", "1"), &thing("a", 1)).await;
    let mut watcher = fixture.watch(everything(), WatchStart::Now).await;
    let parts = fixture.cache.parts();
    // The events in the gap are compacted before the cache reconnects, so that it has to reload.
    fixture.store.faults.break_off.store(true, Ordering::Relaxed);
    fixture.store.faults.deaf.store(true, Ordering::Relaxed);
    write(&fixture.store, &key("n", "1"), Some(thing("a", 2))).await;
    write(&fixture.store, &key("n", "2"), Some(thing("a", 3))).await;
    fixture.store.compact(Revision(4)).await.unwrap();
    let looked = {
        // The feeder restarts class logs under this lock, so it blocks there.
        let _classes = parts.logs.lock_classes();
        fixture.store.faults.deaf.store(false, Ordering::Relaxed);
        assert!(soon(|| parts.logs.history().floor() == Revision(4)), "it reloads");
        let _published = soon(|| parts.published.applied() == Revision(4));
        watcher.next_buffer(&Lines::default()).now_or_never()
    };
    let encoder = Lines::default();
    let end = match looked {
        Some(end) => end,
        None => tokio::time::timeout(Duration::from_secs(5), watcher.next_buffer(&encoder))
            .await
            .expect("it expires"),
    };
    let end = end.unwrap().unwrap_err();
    assert!(
        matches!(
            end,
            WatchEnd::Expired {
                since: Revision(2),
                ..
            }
        ),
        "{end}"
    );
}

/// The old value of an event was once not compared: only the next check, minutes later, found the difference.
#[tokio::test(start_paused = true)]
async fn an_event_that_contradicts_the_cache_causes_a_reload() {
    for (hidden, then) in [
        // An update of an object that the cache does not have.
        (vec![Some(thing("a", 2))], Some(thing("a", 3))),
        // Its deletion.
        (vec![Some(thing("a", 2))], None),
        // The creation of an object that it still has.
        (vec![Some(thing("a", 2)), None], Some(thing("a", 3))),
        // An update of another version than it has.
        (
            vec![Some(thing("a", 2)), Some(thing("a", 3))],
            Some(thing("a", 4)),
        ),
    ] {
        let fixture = Fixture::over(FaultyStore::default(), CacheLimits::default()).await;
        let one = key("n", "1");
        let (seen, unseen) = if hidden.len() == 1 { (0, 1) } else { (1, 2) };
        for state in &hidden[..seen] {
            fixture.write(&one, state.clone()).await;
        }
        let mut watcher = fixture.watch(everything(), WatchStart::Now).await;
        *fixture.store.faults.hide.lock().unwrap() = Some(one.clone());
        for state in &hidden[seen..unseen] {
            fixture.write(&one, state.clone()).await;
        }
        *fixture.store.faults.hide.lock().unwrap() = None;
        let start = Instant::now();
        fixture.write(&one, then.clone()).await;
        let end = watcher.next_buffer(&Lines::default()).await.unwrap().unwrap_err();
        assert!(matches!(end, WatchEnd::Expired { .. }), "{end}");
        assert!(start.elapsed() <= Duration::from_secs(10), "within the stagger");
        let found = things(fixture.cache.reads.newest().unwrap().matches(&everything()));
        let found = found.into_values().map(|(_, thing)| thing).next();
        assert_eq!(found, then);
    }
}

#[tokio::test(start_paused = true)]
async fn a_broken_store_stream_is_resumed_without_a_gap() {
    let fixture = Fixture::over(FaultyStore::default(), CacheLimits::default()).await;
    let mut watcher = fixture.watch(everything(), WatchStart::Now).await;
    for serial in 0..20 {
        if serial % 5 == 2 {
            fixture.store.faults.break_off.store(true, Ordering::Relaxed);
        }
        fixture.put(&key("n", "1"), &thing("a", serial)).await;
    }
    let revisions: Vec<u64> = drain(&mut watcher).await.iter().map(revision).collect();
    assert_eq!(revisions, (2..22).collect::<Vec<_>>());
    assert_eq!(fixture.store.faults.watches.load(Ordering::Relaxed), 5);
}

#[tokio::test(start_paused = true)]
async fn a_cache_that_differs_from_its_store_is_reloaded() {
    let fixture = Fixture::over(FaultyStore::default(), CacheLimits::default()).await;
    fixture.put(&key("n", "1"), &thing("a", 1)).await;
    let mut watcher = fixture.watch(everything(), WatchStart::Now).await;
    *fixture.store.faults.hide.lock().unwrap() = Some(key("n", "2"));
    fixture.put(&key("n", "2"), &thing("a", 2)).await;
    *fixture.store.faults.hide.lock().unwrap() = None;
    fixture.put(&key("n", "3"), &thing("a", 3)).await;
    assert_eq!(
        names(fixture.cache.reads.fresh().await.unwrap().matches(&everything())),
        ["1", "3"],
        "an event is missing"
    );
    assert_eq!(drain(&mut watcher).await.len(), 1);
    let start = Instant::now();
    // Its watches have missed an event, so they expire and their clients list again.
    let end = watcher.next_buffer(&Lines::default()).await.unwrap().unwrap_err();
    assert!(matches!(end, WatchEnd::Expired { .. }), "{end}");
    assert!(
        (299..=460).contains(&start.elapsed().as_secs()),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(
        names(fixture.cache.reads.newest().unwrap().matches(&everything())),
        ["1", "2", "3"]
    );
}
