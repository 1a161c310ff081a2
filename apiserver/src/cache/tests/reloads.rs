//! What becomes of watches when the cache reads everything anew.

use std::sync::atomic::Ordering;
use std::time::Duration;

use drydock_storage::{Revision, Store};
use futures_util::FutureExt as _;
use tokio::time::Instant;

use super::super::*;
use super::faulty::FaultyStore;
use super::fixture::*;

fn thing(serial: u64) -> Thing {
    Thing::new("a", "x", serial)
}

/// Spins, as nothing may be awaited while a lock is held; says whether `is_so` became so.
fn soon(is_so: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > Duration::from_millis(300) {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// The new root was published before cursors of before were sent off: who looked in between went on behind the gap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_that_looks_while_the_cache_starts_over_does_not_skip_the_gap() {
    let limits = CacheLimits {
        stagger: Duration::ZERO,
        ..CacheLimits::default()
    };
    let fixture = Fixture::over(FaultyStore::default(), limits).await;
    fixture.put(&key("n", "1"), &thing(1)).await;
    let mut watcher = fixture.watch(everything(), WatchStart::Now).await;
    let parts = fixture.cache.parts();
    // What happens in the gap is compacted before the cache comes back, so that it has to start over.
    fixture.store.faults.break_off.store(true, Ordering::Relaxed);
    fixture.store.faults.deaf.store(true, Ordering::Relaxed);
    write(&fixture.store, &key("n", "1"), Some(thing(2))).await;
    write(&fixture.store, &key("n", "2"), Some(thing(3))).await;
    fixture.store.compact(Revision(4)).await.unwrap();
    let looked = {
        // The feeder starts class logs over under this lock, and so stops there.
        let _classes = parts.logs.lock_classes();
        fixture.store.faults.deaf.store(false, Ordering::Relaxed);
        assert!(
            soon(|| parts.logs.history().floor() == Revision(4)),
            "it starts over"
        );
        let _published = soon(|| fixture.cache.revision() == Some(Revision(4)));
        watcher.next_buffer(&Lines::default()).now_or_never()
    };
    let encoder = Lines::default();
    let end = match looked {
        Some(end) => end,
        None => tokio::time::timeout(Duration::from_secs(5), watcher.next_buffer(&encoder))
            .await
            .expect("it is told of the gap"),
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

/// What an event says was there before was not looked at: only the next check, minutes later, found the difference.
#[tokio::test(start_paused = true)]
async fn an_event_that_does_not_go_on_from_the_cache_shows_that_the_cache_is_wrong() {
    for (hidden, then) in [
        // An update of what the cache does not know.
        (vec![Some(thing(2))], Some(thing(3))),
        // A removal of it.
        (vec![Some(thing(2))], None),
        // The creation of what it still has.
        (vec![Some(thing(2)), None], Some(thing(3))),
        // An update of another state than it has.
        (vec![Some(thing(2)), Some(thing(3))], Some(thing(4))),
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
        assert!(start.elapsed() <= Duration::from_secs(10), "the turn to expire");
        let found = things(fixture.cache.reads.newest().unwrap().matches(&everything()));
        let found = found.into_values().map(|(_, thing)| thing).next();
        assert_eq!(found, then);
    }
}
