//! What becomes of watches when the cache reads everything anew.

use std::sync::PoisonError;
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
    let mut watcher = fixture.watch(everything(), Start::Now).await;
    let shared = &fixture.cache.shared;
    // What happens in the gap is compacted before the cache comes back, so that it has to start over.
    fixture.store.faults.break_off.store(true, Ordering::Relaxed);
    fixture.store.faults.deaf.store(true, Ordering::Relaxed);
    write(&fixture.store, vec![(key("n", "1"), Some(thing(2)))]).await;
    write(&fixture.store, vec![(key("n", "2"), Some(thing(3)))]).await;
    fixture.store.compact(Revision(4)).await.unwrap();
    let looked = {
        // The feeder starts class logs over under this lock, and so stops there.
        let _classes = shared.classes.lock().unwrap_or_else(PoisonError::into_inner);
        fixture.store.faults.deaf.store(false, Ordering::Relaxed);
        assert!(soon(|| shared.history.floor() == Revision(4)), "it starts over");
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
