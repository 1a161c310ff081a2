//! Watches: what they begin with, what they are told, how they end.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::BytesMut;
use drydock_storage::{Revision, Store};
use tokio::time::Instant;

use super::super::WatchKind::{Added, Deleted, Modified};
use super::super::*;
use super::faulty::FaultyStore;
use super::fixture::*;
use crate::request::projection::Projection;

fn thing(app: &str, serial: u64) -> Thing {
    Thing::new(app, "x", serial)
}

fn request(start: WatchStart, timeout: u64) -> WatchRequest {
    WatchRequest {
        selection: everything(),
        start,
        bookmarks: true,
        timeout: Duration::from_secs(timeout),
    }
}

/// What a watch gets until it ends, with the second at which it got it.
async fn until_end<S: Store>(mut watcher: Watcher<S>) -> Vec<(u64, Frame)> {
    let start = Instant::now();
    let mut all = Vec::new();
    while let Some(buffer) = watcher.next_buffer(&Lines::default()).await {
        let second = start.elapsed().as_secs_f64().round();
        let second = format!("{second}").parse().unwrap();
        all.extend(frames(&buffer.unwrap()).into_iter().map(|frame| (second, frame)));
    }
    all
}

#[tokio::test(start_paused = true)]
async fn kinds_follow_what_matches_before_and_after() {
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
async fn a_watch_goes_on_behind_any_revision() {
    let fixture = Fixture::new().await;
    for serial in 0..6 {
        fixture.put(&key("n", "1"), &thing("a", serial)).await;
    }
    for behind in 1..=7 {
        let mut watcher = fixture
            .watch(everything(), WatchStart::After(Revision(behind)))
            .await;
        let revisions: Vec<u64> = drain(&mut watcher).await.iter().map(revision).collect();
        assert_eq!(revisions, (behind + 1..=7).collect::<Vec<_>>(), "behind {behind}");
    }
}

fn revision(frame: &Frame) -> u64 {
    match frame {
        Frame::Event { revision, .. } | Frame::Bookmark { revision, .. } => revision.0,
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_behind_the_future_is_silent_until_then() {
    let fixture = Fixture::new().await;
    let mut watcher = fixture.watch(everything(), WatchStart::After(Revision(3))).await;
    for serial in 0..4 {
        fixture.put(&key("n", "1"), &thing("a", serial)).await;
    }
    let revisions: Vec<u64> = drain(&mut watcher).await.iter().map(revision).collect();
    assert_eq!(revisions, [4, 5]);
}

#[tokio::test(start_paused = true)]
async fn initial_events_end_with_a_bookmark_at_once_even_if_there_are_none() {
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
    // Not asked for: not sent, not even this one.
    let mut watcher = fixture.watch(everything(), initial).await;
    assert_eq!(drain(&mut watcher).await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn initial_events_of_the_future_are_refused_in_the_stream_after_three_seconds() {
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
async fn a_start_that_is_compacted_is_refused_in_the_stream() {
    let limits = CacheLimits {
        history_bytes: 0,
        ..CacheLimits::default()
    };
    let fixture = Fixture::with(limits).await;
    for serial in 0..6 {
        fixture.put(&key("n", "1"), &thing("a", serial)).await;
    }
    fixture.store.compact(Revision(4)).await.unwrap();
    // The first event that is kept is 5.
    let mut watcher = fixture.watch(everything(), WatchStart::After(Revision(4))).await;
    assert_eq!(drain(&mut watcher).await.len(), 3);
    let mut watcher = fixture.watch(everything(), WatchStart::After(Revision(3))).await;
    let end = watcher.next_buffer(&Lines::default()).await.unwrap().unwrap_err();
    assert_eq!(end.to_string(), "too old resource version: 3 (4)");
    assert!(watcher.next_buffer(&Lines::default()).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn bookmarks_come_each_minute_and_before_the_end_at_the_head() {
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
async fn writes_of_others_advance_bookmarks_and_nothing_is_promised_at_the_start() {
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
async fn a_timeout_ends_a_watch_cleanly_whether_busy_or_not() {
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
async fn a_slow_watcher_holds_up_nobody_and_misses_nothing() {
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

#[tokio::test(start_paused = true)]
async fn buffers_are_packed_up_to_64_kib() {
    let fixture = Fixture::new().await;
    let mut watcher = fixture.watch(everything(), WatchStart::Now).await;
    for serial in 0..100 {
        fixture.put(&key("n", "1"), &thing("a", serial)).await;
    }
    let encoder = Lines {
        padding: 10_000,
        ..Lines::default()
    };
    let mut sizes = Vec::new();
    while let Some(Some(buffer)) = next(&mut watcher, &encoder).await {
        sizes.push(buffer.unwrap().len());
    }
    assert_eq!(sizes.iter().sum::<usize>(), 100);
    assert_eq!(sizes[..16], [6; 16]);
}

#[tokio::test(start_paused = true)]
async fn an_event_is_encoded_once_for_all_who_want_it_in_that_form() {
    let fixture = Fixture::new().await;
    let mut watchers = Vec::new();
    for selection in [
        everything(),
        select(namespace("n"), "", ""),
        select(Scope::All, "app=a", ""),
    ] {
        for id in 0..40 {
            watchers.push((id % 2, fixture.watch(selection.clone(), WatchStart::Now).await));
        }
    }
    let encoders = ["a", "b"].map(|face| Lines {
        face,
        ..Lines::default()
    });
    for round in 1..=10 {
        fixture.put(&key("n", "1"), &thing("a", round)).await;
        fixture.put(&key("n", "1"), &thing("a", round + 100)).await;
        for (id, watcher) in &mut watchers {
            let mut count = 0;
            while let Some(Some(frames)) = next(watcher, &encoders[*id]).await {
                count += frames.unwrap().len();
            }
            assert_eq!(count, 2);
        }
    }
    for encoder in &encoders {
        // The first event is ADDED, all others MODIFIED; all see the same kind.
        assert_eq!(encoder.encoded.load(Ordering::Relaxed), 20);
    }
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_encoded_ends_the_stream_after_what_could() {
    let fixture = Fixture::new().await;
    let encoder = Lines {
        poison: Some(key("n", "2")),
        ..Lines::default()
    };
    for (name, serial) in [("1", 1), ("2", 2), ("3", 3)] {
        fixture.put(&key("n", name), &thing("a", serial)).await;
    }
    for start in [
        WatchStart::InitialEvents(Freshness::Any),
        WatchStart::After(Revision(1)),
    ] {
        let mut watcher = fixture.watch(everything(), start).await;
        let first = next(&mut watcher, &encoder).await.unwrap().unwrap().unwrap();
        assert!(!first.is_empty(), "{start:?}");
        let end = next(&mut watcher, &encoder).await.unwrap().unwrap().unwrap_err();
        assert_eq!(end.to_string(), "object g/things/n/2 cannot be encoded");
        assert!(watcher.next_buffer(&encoder).await.is_none());
    }
}

/// Says a headline in its first frame only.
struct Headline(Lines, Lines);

impl EventEncoder for Headline {
    fn id(&self) -> EncoderId {
        EncoderId {
            face: "first",
            projection: Projection::Object,
        }
    }
    fn event(
        &self,
        kind: WatchKind,
        object: &CachedObject,
        revision: Revision,
        out: &mut BytesMut,
    ) -> Result<(), EncodeError> {
        out.extend_from_slice(b"HEAD ");
        self.0.event(kind, object, revision, out)
    }
    fn bookmark(&self, revision: Revision, ends_initial_events: bool, out: &mut BytesMut) {
        out.extend_from_slice(b"HEAD ");
        self.0.bookmark(revision, ends_initial_events, out);
    }
    fn following(&self) -> Option<&dyn EventEncoder> {
        Some(&self.1)
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_frame_may_have_its_own_encoder() {
    let fixture = Fixture::new().await;
    let encoder = Headline(
        Lines::default(),
        Lines {
            face: "following",
            ..Lines::default()
        },
    );
    let initial = WatchStart::InitialEvents(Freshness::Any);
    for (start, bookmarks) in [
        (WatchStart::Now, false),
        (initial, false),
        (initial, true),
        (WatchStart::Now, true),
    ] {
        let mut watchers = Vec::new();
        for _ in 0..3 {
            let request = WatchRequest {
                bookmarks,
                ..request(start, 3600)
            };
            watchers.push(fixture.cache.subscribe(request).await.unwrap());
        }
        for serial in 0..3 {
            fixture.put(&key("n", "1"), &thing("a", serial)).await;
        }
        for mut watcher in watchers {
            let mut text = String::new();
            let moment = Duration::from_millis(20);
            while let Ok(buffer) = tokio::time::timeout(moment, watcher.next_buffer(&encoder)).await {
                text.push_str(std::str::from_utf8(&buffer.unwrap().unwrap()).unwrap());
            }
            let lines: Vec<&str> = text.lines().collect();
            assert!(lines.len() >= 3 && lines[0].starts_with("HEAD "), "{text}");
            assert!(lines[1..].iter().all(|line| !line.starts_with("HEAD ")), "{text}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_servers_end_is_spread_and_says_how_far_each_watch_got() {
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
async fn a_broken_stream_of_the_store_is_resumed_unnoticed() {
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
async fn a_gap_in_the_store_expires_watches_one_after_the_other() {
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
    // Broken off, and compacted before the cache comes back.
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

#[tokio::test(start_paused = true)]
async fn a_cache_that_differs_from_its_store_is_found_and_read_anew() {
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
        "the fault"
    );
    assert_eq!(drain(&mut watcher).await.len(), 1);
    let start = Instant::now();
    // Its watches have been told too little, so they end and their clients list anew.
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

/// A watch once held its turn at the disk for as long as its peer was slow: eight such, and no other was served.
#[tokio::test(start_paused = true)]
async fn stalled_peers_keep_no_other_watch_from_the_disk() {
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
    let behind = WatchStart::After(Revision(1));
    let mut stalled = Vec::new();
    for _ in 0..replays {
        let mut watcher = fixture.watch(everything(), behind).await;
        let first = next(&mut watcher, &encoder).await.unwrap().unwrap().unwrap();
        assert!(first.len() < 40, "more is to come");
        stalled.push((watcher, first.len()));
    }
    // Overtaken while it was open, and begun on disk.
    for _ in 0..2 {
        let mut ninth = fixture.watch(everything(), behind).await;
        assert_eq!(drain(&mut ninth).await.len(), 40);
    }
    assert_eq!(fixture.cache.reads.exactly(Revision(9)).await.unwrap().count(), 1);
    // More than are kept open, in turns: each loses its stream and goes on where it was all the same.
    let mut ninth = fixture.watch(everything(), behind).await;
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
async fn a_watch_that_finds_no_place_at_the_disk_in_time_is_refused() {
    let limits = CacheLimits {
        history_bytes: 0,
        replays: 2,
        ..CacheLimits::default()
    };
    let fixture = Fixture::with(limits).await;
    for serial in 0..6 {
        fixture.put(&key("n", "1"), &thing("a", serial)).await;
    }
    let behind = WatchStart::After(Revision(1));
    let replays = &fixture.cache.parts().replays;
    let reading = [replays.permit().await, replays.permit().await];
    let refused = fixture.cache.subscribe(request(behind, 60)).await;
    assert!(matches!(refused.err(), Some(ReadError::Busy { .. })));
    assert_eq!(
        fixture.cache.reads.exactly(Revision(3)).await.unwrap().count(),
        1,
        "lists of the past have places of their own"
    );
    drop(reading);
    let mut watcher = fixture.watch(everything(), behind).await;
    assert_eq!(drain(&mut watcher).await.len(), 6);
}

/// Class logs and packed buffers were not counted: a thousand watches of everything that all select by other words
/// could hold many times the budget.
#[tokio::test(start_paused = true)]
async fn what_is_noted_and_packed_for_watches_stays_within_the_budget() {
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
        // A log that grows takes twice what it had.
        assert!(held <= budget / 4 * 2, "{held} bytes in round {round}");
    }
    for (watcher, seen) in fast.iter_mut().chain(&mut slow) {
        seen.extend(drain(watcher).await.iter().map(revision));
        assert_eq!(*seen, (2..1202).collect::<Vec<_>>());
    }
}

/// A watch whose peer takes nothing is not polled, and so was never counted.
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

/// Only what was packed by the watch itself was measured, and of that a sixteenth.
#[tokio::test(start_paused = true)]
async fn the_way_to_the_socket_is_measured_by_kind_however_frames_were_had() {
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
    // The second takes what the first has packed, the third begins before its class and reads the history.
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
