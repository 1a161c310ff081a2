//! Watches that read the store's history because memory does not reach back far enough.

use drydock_storage::Revision;

use super::super::*;
use super::fixture::*;

/// A watch once held its permit as long as its client was slow: with eight such watches no other was served.
#[tokio::test(start_paused = true)]
async fn stalled_clients_block_no_other_watch_from_reading_history() {
    let limits = CacheLimits {
        history_bytes: 0,
        ..CacheLimits::default()
    };
    let replays = limits.replays;
    let fixture = Fixture::with(limits).await;
    for serial in 0..40 {
        fixture.put(&key("n", "1"), &thing("a", serial)).await;
    }
    let encoder = Lines {
        padding: 10_000,
        ..Lines::default()
    };
    let start = WatchStart::After(Revision(1));
    let mut stalled = Vec::new();
    for _ in 0..replays {
        let mut watcher = fixture.watch(everything(), start).await;
        let first = next(&mut watcher, &encoder).await.unwrap().unwrap().unwrap();
        assert!(first.len() < 40, "more is to come");
        stalled.push((watcher, first.len()));
    }
    // Another watch reads everything, twice.
    for _ in 0..2 {
        let mut ninth = fixture.watch(everything(), start).await;
        assert_eq!(drain(&mut ninth).await.len(), 40);
    }
    assert_eq!(fixture.cache.reads.exactly(Revision(9)).await.unwrap().count(), 1);
    // One more than streams are kept, in turns: each loses its stream and continues at its revision all the same.
    let mut ninth = fixture.watch(everything(), start).await;
    let first = next(&mut ninth, &encoder).await.unwrap().unwrap().unwrap();
    stalled.push((ninth, first.len()));
    for (watcher, count) in &mut stalled {
        while let Some(Some(frames)) = next(watcher, &encoder).await {
            *count += frames.unwrap().len();
        }
        assert_eq!(*count, 40);
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_gets_no_replay_permit_in_time_is_refused() {
    let limits = CacheLimits {
        history_bytes: 0,
        replays: 2,
        ..CacheLimits::default()
    };
    let fixture = Fixture::with(limits).await;
    for serial in 0..6 {
        fixture.put(&key("n", "1"), &thing("a", serial)).await;
    }
    let start = WatchStart::After(Revision(1));
    let replays = &fixture.cache.parts().replays;
    let reading = [replays.permit().await, replays.permit().await];
    let refused = fixture.cache.subscribe(request(start, 60)).await;
    assert!(matches!(refused.err(), Some(ReadError::Busy { .. })));
    assert_eq!(
        fixture.cache.reads.exactly(Revision(3)).await.unwrap().count(),
        1,
        "lists of past states have permits of their own"
    );
    drop(reading);
    let mut watcher = fixture.watch(everything(), start).await;
    assert_eq!(drain(&mut watcher).await.len(), 6);
}
