//! Memory of watches, and their metrics.

use std::time::Duration;

use drydock_storage::Revision;

use super::super::WatchKind::{Added, Deleted, Modified};
use super::super::*;
use super::fixture::*;

/// Class logs and packed buffers were not counted once: a thousand watches of everything with different selector texts
/// could hold many times the limit.
#[tokio::test(start_paused = true)]
async fn class_logs_and_shared_buffers_stay_within_the_memory_limit() {
    let limits = CacheLimits {
        history_bytes: 1 << 20,
        ..CacheLimits::default()
    };
    let budget = limits.history_bytes;
    let fixture = Fixture::with(limits).await;
    let mut slow = Vec::new();
    let mut fast = Vec::new();
    for class in 0..100 {
        let everything = || select(Scope::All, &format!("app!=other-{class}"), "");
        slow.push((fixture.watch(everything(), WatchStart::Now).await, Vec::new()));
        fast.push((fixture.watch(everything(), WatchStart::Now).await, Vec::new()));
    }
    let encoder = Lines {
        padding: 200,
        ..Lines::default()
    };
    for round in 0..30 {
        for serial in 0..40 {
            fixture
                .put(&key("n", "1"), &thing("a", round * 100 + serial))
                .await;
        }
        for (watcher, seen) in &mut fast {
            while let Some(Some(frames)) = next(watcher, &encoder).await {
                seen.extend(frames.unwrap().iter().map(revision));
            }
        }
        let held = fixture.cache.parts().logs.lock_classes().bytes();
        // A growing log doubles its capacity.
        assert!(held <= budget / 4 * 2, "{held} bytes in round {round}");
    }
    for (watcher, seen) in fast.iter_mut().chain(&mut slow) {
        seen.extend(drain(watcher).await.iter().map(revision));
        assert_eq!(*seen, (2..1202).collect::<Vec<_>>());
    }
}

/// A watch whose client reads nothing is not polled, and was not counted once.
#[tokio::test(start_paused = true)]
async fn a_watch_that_is_not_read_counts_as_lagging() {
    let fixture = Fixture::new().await;
    let metrics = &fixture.cache.parts().metrics;
    let mut watcher = fixture.watch(everything(), WatchStart::Now).await;
    let _of_others = fixture
        .watch(select(namespace("o"), "", ""), WatchStart::Now)
        .await;
    let lagging = async || {
        tokio::time::sleep(Duration::from_secs(3)).await;
        metrics.watchers_lagging.get()
    };
    assert_eq!(lagging().await, 0);
    for serial in 0..5 {
        fixture.put(&key("n", "1"), &thing("a", serial)).await;
    }
    assert_eq!(lagging().await, 1);
    assert_eq!(drain(&mut watcher).await.len(), 5);
    assert_eq!(lagging().await, 0);
    fixture.put(&key("n", "1"), &thing("a", 9)).await;
    assert_eq!(lagging().await, 1);
    drop(watcher);
    assert_eq!(lagging().await, 0);
}

/// Once only one in 16 buffers was measured, and only those that the watch had packed itself.
#[tokio::test(start_paused = true)]
async fn time_to_socket_is_measured_by_kind_for_every_source_of_frames() {
    let fixture = Fixture::new().await;
    let count = |kind| {
        let mut registry = prometheus_client::registry::Registry::default();
        let metric = fixture.cache.parts().metrics.publish_to_socket(kind).clone();
        registry.register("m", "", metric);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let line = text.lines().find(|line| line.starts_with("m_count")).unwrap();
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    // The second takes the buffer that the first has packed. The third begins before its class log and reads the
    // event history.
    let mut first = fixture.watch(everything(), WatchStart::Now).await;
    let mut second = fixture.watch(everything(), WatchStart::Now).await;
    fixture.put(&key("n", "1"), &thing("a", 1)).await;
    fixture.put(&key("n", "1"), &thing("a", 2)).await;
    fixture.put(&key("n", "1"), &thing("a", 3)).await;
    fixture.delete(&key("n", "1")).await;
    let late = select(Scope::All, "app=a", "");
    let mut third = fixture.watch(late, WatchStart::After(Revision(1))).await;
    for watcher in [&mut first, &mut second, &mut third] {
        assert_eq!(drain(watcher).await.len(), 4);
    }
    assert_eq!([Added, Modified, Deleted].map(count), [3, 3, 3]);
}
