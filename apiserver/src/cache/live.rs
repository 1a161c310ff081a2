//! One buffer of a live watch: the next events from its class log, or from the event history where that reaches back
//! further.

use std::sync::Arc;

use bytes::Bytes;
use drydock_storage::Revision;

use super::class::{Chunk, Class, Taken};
use super::encode_once::{EncoderId, EventEncoder, WatchKind};
use super::error::WatchEnd;
use super::history::{CacheEvent, History};
use super::metrics::ResourceMetrics;
use super::packer::Packer;
use super::progress::Progress;

/// The most events looked at for one buffer.
const MAX_EVENTS: usize = 256;

/// What the logs had for a live watch.
pub(super) enum Pulled {
    Frames(Bytes),
    /// Only events that do not match.
    NoMatch,
    /// Nothing: every event up to this applied revision has been sent.
    Head(Revision),
    /// The next event is not in memory any more.
    NotInMemory,
}

struct Packed {
    bytes: Bytes,
    count: usize,
}

/// A watch at the logs.
pub(super) struct Live<'a> {
    pub(super) history: &'a History,
    pub(super) metrics: &'a ResourceMetrics,
    pub(super) class: &'a Class,
    pub(super) progress: &'a mut Progress,
    pub(super) encoder: &'a dyn EventEncoder,
}

impl Live<'_> {
    /// Takes the next events, up to one buffer. `head` is the revision and position of the newest root, read before
    /// this call: all its events are then in the logs.
    pub(super) fn pull(mut self, head: Option<(Revision, u64)>) -> Result<Pulled, WatchEnd> {
        let progress = &mut *self.progress;
        let (applied, position) = head.unwrap_or((progress.seen, progress.next));
        let id = progress.encoder(self.encoder, 0).id();
        match self.class.take(progress.next, id, MAX_EVENTS) {
            Taken::Nothing => {
                progress.next = progress.next.max(position);
                progress.seen = progress.seen.max(applied);
                Ok(Pulled::Head(applied))
            }
            Taken::Chunk(chunk) => {
                progress.next = chunk.last + 1;
                progress.seen = chunk.last_revision;
                progress.pending = chunk.entered;
                Ok(Pulled::Frames(chunk.bytes))
            }
            Taken::Entries(entries) => {
                let events = self.history.at(entries.iter().map(|entry| entry.position));
                if events.is_empty() {
                    return Ok(Pulled::NotInMemory);
                }
                let kinds = entries.iter().map(|entry| entry.kind);
                let wanted: Vec<_> = events.into_iter().zip(kinds).collect();
                let packed = self.pack(&wanted)?;
                if self.progress.has_begun || self.encoder.following().is_none() {
                    self.share(&wanted, &packed, id);
                }
                Ok(Pulled::Frames(packed.bytes))
            }
            Taken::CoveredFrom(covered) => self.pull_from_history(covered),
        }
    }

    /// Takes events from before the class log begins.
    fn pull_from_history(&mut self, covered: u64) -> Result<Pulled, WatchEnd> {
        let Some(events) = self.history.range(self.progress.next, covered, MAX_EVENTS) else {
            return Ok(Pulled::NotInMemory);
        };
        let Some(last) = events.last().map(|event| event.position) else {
            self.progress.next = covered;
            return Ok(Pulled::NoMatch);
        };
        let wanted: Vec<_> = events
            .into_iter()
            .filter_map(|event| Some((Arc::clone(&event), event.kind_for(&self.class.selection)?)))
            .collect();
        if wanted.is_empty() {
            self.progress.next = last + 1;
            return Ok(Pulled::NoMatch);
        }
        let packed = self.pack(&wanted)?;
        if packed.count == wanted.len() {
            self.progress.next = last + 1;
        }
        Ok(Pulled::Frames(packed.bytes))
    }

    /// Packs frames of events until the buffer is full, and moves the watch past the last one. When a frame cannot
    /// be encoded, those before it are sent first.
    fn pack(&mut self, wanted: &[(Arc<CacheEvent>, WatchKind)]) -> Result<Packed, WatchEnd> {
        let progress = &mut *self.progress;
        let mut packer = Packer::default();
        let mut count = 0;
        for (event, kind) in wanted {
            let (frame, was_encoded) = event.frame(*kind, progress.encoder(self.encoder, count));
            self.metrics.frame(was_encoded);
            let frame = match frame {
                Ok(frame) => frame,
                Err(_) if count > 0 => break,
                Err(error) => return Err(error.into()),
            };
            if count > 0 && !packer.has_room(&frame) {
                break;
            }
            packer.add(frame);
            count += 1;
            progress.next = event.position + 1;
            progress.seen = event.revision;
            progress.pending.note(*kind, event.at);
        }
        Ok(Packed {
            bytes: packer.finish(),
            count,
        })
    }

    /// Leaves a packed buffer to the other watches of the class.
    fn share(&self, wanted: &[(Arc<CacheEvent>, WatchKind)], packed: &Packed, encoder: EncoderId) {
        let events = wanted.get(..packed.count).unwrap_or_default();
        let (Some((first, _)), Some((last, _))) = (events.first(), events.last()) else {
            return;
        };
        self.class.share(Chunk {
            encoder,
            from: first.position,
            last: last.position,
            last_revision: last.revision,
            entered: self.progress.pending,
            bytes: packed.bytes.clone(),
        });
    }
}
