//! Frames of watches: how they are encoded, shared and packed.

use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::BytesMut;
use drydock_storage::Revision;

use super::super::*;
use super::fixture::*;
use crate::request::projection::Projection;

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
async fn an_event_is_encoded_once_per_encoder_for_all_watches() {
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
async fn an_encoding_error_ends_the_stream_after_the_frames_before_it() {
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

/// Writes a header into its first frame only.
struct WithHeader(Lines, Lines);

impl EventEncoder for WithHeader {
    fn id(&self) -> EncoderId {
        EncoderId {
            face: "first",
            projection: Projection::Object,
            media_type: crate::request::negotiate::MediaType::Json,
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
    let encoder = WithHeader(
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
