//! Encoding of watch events, once per event and encoding, for any number of watches.
//!
//! An event holds its encoded frames, one per encoder and kind. The first watch that needs a frame encodes it; others
//! wait for it and share the bytes. Frames count towards the memory of the event history and are dropped with the
//! event.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use drydock_storage::Revision;
use thiserror::Error;

use super::object::CachedObject;
use crate::request::negotiate::MediaType;
use crate::request::projection::Projection;

/// What happened to an object, as seen through the selection of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WatchKind {
    /// It was created, or began to match.
    Added,
    /// It was changed and still matches.
    Modified,
    /// It was deleted, or stopped matching.
    Deleted,
}

/// Identifies an encoding: encoders of one resource with equal ids write the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EncoderId {
    /// The served version or resource.
    pub face: &'static str,
    /// What is shown of an object.
    pub projection: Projection,
    /// How it is written.
    pub media_type: MediaType,
}

/// An object could not be encoded as requested.
#[derive(Debug, Clone, Error)]
#[error("object {key} cannot be encoded")]
pub struct EncodeError {
    /// The object's key.
    pub key: String,
    /// Why.
    #[source]
    pub source: Arc<dyn std::error::Error + Send + Sync>,
}

/// Encodes the frames of a watch: events with their framing, ready for the socket.
pub trait EventEncoder: Send + Sync {
    /// Names what is written. See [`EncoderId`].
    fn id(&self) -> EncoderId;

    /// Appends one event. `revision` is the resourceVersion to show: the object's own, or the event's for
    /// [`WatchKind::Deleted`], whose object is the last one that matched.
    ///
    /// # Errors
    /// When the object cannot be encoded as requested; the caller then drops what was appended.
    fn event(
        &self,
        kind: WatchKind,
        object: &CachedObject,
        revision: Revision,
        out: &mut BytesMut,
    ) -> Result<(), EncodeError>;

    /// Appends a bookmark; with `ends_initial_events`, it has the annotation `k8s.io/initial-events-end`.
    fn bookmark(&self, revision: Revision, ends_initial_events: bool, out: &mut BytesMut);

    /// The encoder of all frames after the first one of a stream, if it is a different one: only the first table of
    /// a stream has columns.
    fn following(&self) -> Option<&dyn EventEncoder> {
        None
    }
}

/// The encoded frames of one event: a list that only grows and is read without locks.
#[derive(Debug)]
pub(super) struct Encodings {
    first: OnceLock<Box<Slot>>,
    /// Bytes of all encoded frames of the cache.
    held: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Slot {
    encoder: EncoderId,
    kind: WatchKind,
    frame: OnceLock<Result<Bytes, EncodeError>>,
    next: OnceLock<Box<Slot>>,
}

impl Encodings {
    pub(super) fn new(held: Arc<AtomicU64>) -> Self {
        Self {
            first: OnceLock::new(),
            held,
        }
    }

    /// The frame of `encoder` for `kind`, encoded by `encode` if it does not exist yet. Also returns whether it did.
    pub(super) fn get(
        &self,
        encoder: EncoderId,
        kind: WatchKind,
        encode: impl FnOnce() -> Result<Bytes, EncodeError>,
    ) -> (Result<Bytes, EncodeError>, bool) {
        let slot = self.slot(encoder, kind);
        let mut existed = true;
        let frame = slot.frame.get_or_init(|| {
            existed = false;
            let frame = encode();
            self.held.fetch_add(length(&frame), Ordering::Relaxed);
            frame
        });
        (frame.clone(), existed)
    }

    fn slot(&self, encoder: EncoderId, kind: WatchKind) -> &Slot {
        let mut place = &self.first;
        loop {
            let slot = place.get_or_init(|| {
                Box::new(Slot {
                    encoder,
                    kind,
                    frame: OnceLock::new(),
                    next: OnceLock::new(),
                })
            });
            if slot.encoder == encoder && slot.kind == kind {
                return slot;
            }
            place = &slot.next;
        }
    }

    /// The size of all frames.
    pub(super) fn bytes(&self) -> u64 {
        let mut bytes = 0;
        let mut place = self.first.get();
        while let Some(slot) = place {
            bytes += slot.frame.get().map_or(0, length);
            place = slot.next.get();
        }
        bytes
    }
}

impl Drop for Encodings {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

fn length(frame: &Result<Bytes, EncodeError>) -> u64 {
    let length = frame.as_ref().map_or(0, Bytes::len);
    u64::try_from(length).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_encoder_and_kind_is_encoded_once_by_any_number_of_threads() {
        let held = Arc::new(AtomicU64::new(0));
        let encodings = Encodings::new(Arc::clone(&held));
        let calls = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (encodings, calls) = (&encodings, &calls);
                scope.spawn(move || {
                    for round in 0..100 {
                        let face = ["a", "b", "c", "d", "e"][(round + thread) % 5];
                        let projection = Projection::Object;
                        let id = EncoderId {
                            face,
                            projection,
                            media_type: MediaType::Json,
                        };
                        let kind = [WatchKind::Added, WatchKind::Deleted][round % 2];
                        let (frame, _) = encodings.get(id, kind, || {
                            calls.fetch_add(1, Ordering::Relaxed);
                            Ok(format!("{face} {kind:?}").into())
                        });
                        assert_eq!(frame.unwrap(), format!("{face} {kind:?}"));
                    }
                });
            }
        });
        assert_eq!(calls.load(Ordering::Relaxed), 10);
        assert_eq!(held.load(Ordering::Relaxed), encodings.bytes());
        assert_eq!(encodings.bytes(), 5 * 7 + 5 * 9);
        drop(encodings);
        assert_eq!(held.load(Ordering::Relaxed), 0);
    }
}
