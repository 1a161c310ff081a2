//! One buffer of a watch that reads the store's history, because memory does not have the next event any more.

use bytes::BytesMut;
use drydock_storage::{Event, Events, Revision, Signal, Store, StoreError};
use futures_util::FutureExt as _;
use tokio::sync::OwnedSemaphorePermit;

use super::encode_once::{EventEncoder, WatchKind};
use super::error::WatchEnd;
use super::history::kind_for;
use super::packer::BUFFER;
use super::parts::CacheParts;
use super::progress::Progress;
use super::selection::Selection;

/// A watch at the store's history. Its stream is not kept here while the client takes its time, see
/// [`super::replays`].
pub(super) struct Replay<E> {
    stream: Option<E>,
}

/// What came from the store's history, with the permit to read on what is available without waiting.
pub(super) enum Next {
    Signal(Option<Signal>, Option<OwnedSemaphorePermit>),
    /// Nothing came in time.
    Nothing,
}

/// A buffer of frames, and why nothing follows it.
pub(super) struct Filled {
    pub(super) frames: BytesMut,
    pub(super) end: Option<ReplayEnd>,
}

pub(super) enum ReplayEnd {
    /// The next event is not in the store any more; this is the oldest that is.
    Compacted(Revision),
    Failed(WatchEnd),
}

impl<E: Events> Replay<E> {
    /// Before the first event.
    pub(super) fn new() -> Self {
        Self { stream: None }
    }

    pub(super) fn has_stream(&self) -> bool {
        self.stream.is_some()
    }

    pub(super) fn set_stream(&mut self, stream: Option<E>) {
        self.stream = stream;
    }

    pub(super) fn take_stream(&mut self) -> Option<E> {
        self.stream.take()
    }

    /// The next signal after `seen`; opens a stream if there is none. Cancel safe: the stream is kept before anything
    /// else is awaited.
    pub(super) async fn next<S: Store<Events = E>>(
        &mut self,
        cache: &CacheParts<S>,
        range: &drydock_storage::KeyRange,
        seen: Revision,
    ) -> Result<Next, StoreError> {
        let permit = cache.replays.permit().await;
        let stream = if let Some(stream) = &mut self.stream {
            stream
        } else {
            let stream = cache.source.store.watch(range, seen.next()).await?;
            self.stream.insert(stream)
        };
        // There should be something, or the watch would be live. If it takes long, the permit is given to others.
        match tokio::time::timeout(cache.limits.read_wait, stream.next()).await {
            Ok(signal) => Ok(Next::Signal(signal, permit)),
            Err(_) => Ok(Next::Nothing),
        }
    }

    /// Packs the events of this signal, and of those that come without waiting, up to one buffer.
    pub(super) fn fill<S: Store<Events = E>>(
        &mut self,
        first: Option<Signal>,
        cache: &CacheParts<S>,
        selection: &Selection,
        progress: &mut Progress,
        encoder: &dyn EventEncoder,
    ) -> Filled {
        let mut frames = BytesMut::new();
        let mut end = None;
        let mut count = 0;
        let mut signal = Some(first);
        while let Some(next) = signal {
            match next {
                Some(Signal::Change(event)) => {
                    let revision = event.revision;
                    let encoder = progress.encoder(encoder, count);
                    match append(cache, selection, progress, event, encoder, &mut frames) {
                        Ok(matched) => {
                            count += usize::from(matched);
                            progress.seen = revision;
                        }
                        Err(error) => end = Some(ReplayEnd::Failed(error)),
                    }
                }
                Some(Signal::Progress(revision)) => progress.seen = progress.seen.max(revision),
                Some(Signal::Compacted(oldest)) => end = Some(ReplayEnd::Compacted(oldest)),
                // The stream ended. The next one continues after `seen`.
                None => self.stream = None,
            }
            signal = match &mut self.stream {
                Some(stream) if end.is_none() && frames.len() < BUFFER => stream.next().now_or_never(),
                _ => None,
            };
        }
        Filled { frames, end }
    }
}

/// Appends the frame of one event if it matches; returns whether it does. After an error nothing is appended.
fn append<S: Store>(
    cache: &CacheParts<S>,
    selection: &Selection,
    progress: &Progress,
    event: Event,
    encoder: &dyn EventEncoder,
    out: &mut BytesMut,
) -> Result<bool, WatchEnd> {
    let Event {
        revision,
        key,
        new,
        old,
        ..
    } = event;
    if old.as_ref().is_some_and(|old| old.value.is_unreadable()) && selection.may_match(&key) {
        // Whether the removed object matched is unknown, so the client must list again.
        return Err(progress.expired(revision.next(), &cache.metrics));
    }
    let object = |entry| cache.source.object(key.clone(), entry);
    let (old, new) = (old.map(object), new.map(object));
    let Some(kind) = kind_for(selection, old.as_ref(), new.as_ref()) else {
        return Ok(false);
    };
    let shown = if kind == WatchKind::Deleted { old } else { new };
    let Some(shown) = shown else { return Ok(false) };
    let before = out.len();
    let result = encoder.event(kind, &shown, revision, out);
    result.inspect_err(|_| out.truncate(before))?;
    Ok(true)
}
