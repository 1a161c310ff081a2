//! How is an event encoded once, however many watch it?
//!
//! Each event carries its encodings, one for every encoder that was asked for it. The first who needs one makes
//! it, others wait for that and share the bytes. They are counted in the history's budget and go with the event.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::{Bytes, BytesMut};
use drydock_storage::Revision;
use thiserror::Error;

use super::object::CachedObject;
use crate::request::projection::Projection;

/// What a watch says happened to an object, as its selection sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WatchKind {
    /// It came to be, or came to match.
    Added,
    /// It changed and still matches.
    Modified,
    /// It was removed, or no longer matches.
    Deleted,
}

/// Identifies an encoding: encoders of one resource with equal ids write the same bytes. Watches are always encoded as
/// JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EncoderId {
    /// The served version.
    pub face: &'static str,
    /// What is shown of an object.
    pub projection: Projection,
}

/// An object that could not be brought into the asked form.
#[derive(Debug, Clone, Error)]
#[error("object {key} cannot be encoded")]
pub struct EncodeError {
    /// The object's key.
    pub key: String,
    /// Why.
    #[source]
    pub source: Arc<dyn std::error::Error + Send + Sync>,
}

/// Writes frames of a watch: the event with its framing, ready for the socket.
pub trait EventEncoder: Send + Sync {
    /// Names what is written. See [`EncoderId`].
    fn id(&self) -> EncoderId;

    /// Appends one event. `revision` is the resourceVersion to show: the object's own, or the event's for
    /// [`WatchKind::Deleted`], whose object is the last one that matched.
    ///
    /// # Errors
    /// When the object cannot be brought into the asked form; what was appended is then dropped.
    fn event(
        &self,
        kind: WatchKind,
        object: &CachedObject,
        revision: Revision,
        out: &mut BytesMut,
    ) -> Result<(), EncodeError>;

    /// Appends a bookmark; `ends_initial_events` asks for the annotation `k8s.io/initial-events-end`.
    fn bookmark(&self, revision: Revision, ends_initial_events: bool, out: &mut BytesMut);

    /// The encoder of all frames after the first one of a stream, when it is not this one: a table says its
    /// columns only once.
    fn following(&self) -> Option<&dyn EventEncoder> {
        None
    }
}

/// The encodings of one event: a list that only grows, read without locks.
#[derive(Debug)]
pub(super) struct Encodings {
    first: OnceLock<Box<Slot>>,
    /// Bytes held by all encodings of the cache.
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

    /// The frame of `encoder` for `kind`, made by `encode` unless it is there. The flag says whether it was.
    pub(super) fn get(
        &self,
        encoder: EncoderId,
        kind: WatchKind,
        encode: impl FnOnce() -> Result<Bytes, EncodeError>,
    ) -> (Result<Bytes, EncodeError>, bool) {
        let slot = self.slot(encoder, kind);
        let mut was_there = true;
        let frame = slot.frame.get_or_init(|| {
            was_there = false;
            let frame = encode();
            self.held.fetch_add(length(&frame), Ordering::Relaxed);
            frame
        });
        (frame.clone(), was_there)
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

    /// What the encodings weigh.
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
        let made = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (encodings, made) = (&encodings, &made);
                scope.spawn(move || {
                    for round in 0..100 {
                        let face = ["a", "b", "c", "d", "e"][(round + thread) % 5];
                        let projection = Projection::Object;
                        let encoder = EncoderId { face, projection };
                        let kind = [WatchKind::Added, WatchKind::Deleted][round % 2];
                        let (frame, _) = encodings.get(encoder, kind, || {
                            made.fetch_add(1, Ordering::Relaxed);
                            Ok(format!("{face} {kind:?}").into())
                        });
                        assert_eq!(frame.unwrap(), format!("{face} {kind:?}"));
                    }
                });
            }
        });
        assert_eq!(made.load(Ordering::Relaxed), 10);
        assert_eq!(held.load(Ordering::Relaxed), encodings.bytes());
        assert_eq!(encodings.bytes(), 5 * 7 + 5 * 9);
        drop(encodings);
        assert_eq!(held.load(Ordering::Relaxed), 0);
    }
}
