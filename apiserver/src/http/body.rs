//! The bodies of requests and responses.
//!
//! A response body is empty, one buffer, several shared buffers (lists assembled from encoded items) or a stream (watches
//! and large lists). A stream has no Content-Length, so the aggregator flushes every frame. It is dropped as soon as the
//! client disconnects, which is how a handler notices.

use std::{
    any::Any,
    collections::VecDeque,
    convert::Infallible,
    fmt,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::{Buf, Bytes, BytesMut};
use futures_util::{Stream, StreamExt};
use http_body::{Body, Frame, SizeHint};
use tokio::time::Instant;

use super::discard::Unread;
use crate::error::{ApiError, BODY_LIMIT};

/// The body of a response.
///
/// It may hold guards (metrics, shutdown), which are dropped when the last byte is handed over or the client disconnects.
pub struct ResponseBody {
    content: Content,
    held: Option<Box<dyn Any + Send>>,
    deadline: Option<Instant>,
}

enum Content {
    Empty,
    Full(Bytes),
    Chunks { chunks: VecDeque<Bytes>, remaining: u64 },
    Stream(Pin<Box<dyn Stream<Item = Bytes> + Send>>),
    Abortable(Pin<Box<dyn Stream<Item = Result<Bytes, Truncated>> + Send>>),
}

/// The response failed after its headers were sent: the connection or stream is reset, so that no client takes the partial
/// body for the whole.
#[derive(Debug, thiserror::Error)]
#[error("response truncated: {0}")]
pub struct Truncated(pub &'static str);

impl fmt::Debug for ResponseBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shape = match &self.content {
            Content::Empty => "Empty",
            Content::Full(_) => "Full",
            Content::Chunks { .. } => "Chunks",
            Content::Stream(_) | Content::Abortable(_) => "Stream",
        };
        f.debug_struct("ResponseBody")
            .field("shape", &shape)
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

impl ResponseBody {
    /// No body.
    #[must_use]
    pub const fn empty() -> Self {
        Self::of(Content::Empty)
    }

    const fn of(content: Content) -> Self {
        Self {
            content,
            held: None,
            deadline: None,
        }
    }

    /// One buffer.
    #[must_use]
    pub fn full(bytes: impl Into<Bytes>) -> Self {
        let bytes = bytes.into();
        Self::of(if bytes.is_empty() {
            Content::Empty
        } else {
            Content::Full(bytes)
        })
    }

    /// Several buffers in order, which other responses may share; sent with a Content-Length.
    #[must_use]
    pub fn chunks(chunks: impl IntoIterator<Item = Bytes>) -> Self {
        let chunks: VecDeque<Bytes> = chunks.into_iter().filter(|chunk| !chunk.is_empty()).collect();
        let remaining = chunks.iter().map(|chunk| chunk.len() as u64).sum();
        Self::of(Content::Chunks { chunks, remaining })
    }

    /// Frames as they arrive. The end of the stream is a clean end of the body, after which a watch client resumes.
    #[must_use]
    pub fn stream(stream: impl Stream<Item = Bytes> + Send + 'static) -> Self {
        Self::of(Content::Stream(Box::pin(stream)))
    }

    /// Frames as they arrive, where an error resets the response: for lists, since a truncated list would look complete.
    #[must_use]
    pub fn abortable_stream(stream: impl Stream<Item = Result<Bytes, Truncated>> + Send + 'static) -> Self {
        Self::of(Content::Abortable(Box::pin(stream)))
    }

    /// Whether the length is unknown.
    #[must_use]
    pub const fn is_stream(&self) -> bool {
        matches!(self.content, Content::Stream(_) | Content::Abortable(_))
    }

    /// Whether it is a document: everything but the stream of a watch.
    #[must_use]
    pub const fn is_document(&self) -> bool {
        !matches!(self.content, Content::Stream(_))
    }

    /// Remaining bytes; none for streams.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        match &self.content {
            Content::Empty => Some(0),
            Content::Full(bytes) => Some(bytes.len() as u64),
            Content::Chunks { remaining, .. } => Some(*remaining),
            Content::Stream(_) | Content::Abortable(_) => None,
        }
    }

    /// The remaining buffers, in order; none for streams.
    pub fn buffers(&self) -> impl Iterator<Item = &Bytes> {
        let (one, many) = match &self.content {
            Content::Full(bytes) => (Some(bytes), None),
            Content::Chunks { chunks, .. } => (None, Some(chunks)),
            Content::Empty | Content::Stream(_) | Content::Abortable(_) => (None, None),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// Resets a stream that has not ended by `deadline`; other bodies are unchanged.
    #[must_use]
    pub fn cut_at(self, deadline: Instant) -> Self {
        let content = match self.content {
            Content::Stream(stream) => Content::Abortable(Box::pin(cut(stream.map(Ok), deadline))),
            Content::Abortable(stream) => Content::Abortable(Box::pin(cut(stream, deadline))),
            whole => {
                return Self {
                    content: whole,
                    ..self
                };
            }
        };
        Self {
            content,
            held: self.held,
            deadline: Some(deadline),
        }
    }

    /// When a stream is reset, if [`Self::cut_at`] was called.
    #[must_use]
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The same with the deadline of the body that it is made from.
    #[must_use]
    pub fn due(self, deadline: Option<Instant>) -> Self {
        Self { deadline, ..self }
    }

    /// The same guards with other bytes.
    #[must_use]
    pub fn replaced_by(self, bytes: Bytes) -> Self {
        Self {
            content: Content::Full(bytes),
            held: self.held,
            deadline: None,
        }
    }

    /// Shows every buffer of a stream to `inspect` before it is sent; other bodies are unchanged.
    #[must_use]
    pub fn inspected(self, mut inspect: impl FnMut(&Bytes) + Send + 'static) -> Self {
        let content = match self.content {
            Content::Stream(stream) => Content::Stream(Box::pin(stream.inspect(inspect))),
            Content::Abortable(stream) => Content::Abortable(Box::pin(stream.inspect(move |item| {
                if let Ok(bytes) = item {
                    inspect(bytes);
                }
            }))),
            whole => whole,
        };
        Self { content, ..self }
    }

    /// Removes the guards, for a body that is sent in place of this one.
    #[must_use]
    pub fn release(&mut self) -> Option<Box<dyn Any + Send>> {
        self.held.take()
    }

    /// Keeps `guard` until the body is sent or dropped. A later guard is dropped after the earlier ones.
    #[must_use]
    pub fn holding(mut self, guard: impl Any + Send) -> Self {
        self.held = Some(match self.held.take() {
            None => Box::new(guard),
            Some(earlier) => Box::new((earlier, guard)),
        });
        self
    }
}

fn cut(
    mut stream: impl Stream<Item = Result<Bytes, Truncated>> + Send + Unpin + 'static,
    deadline: Instant,
) -> impl Stream<Item = Result<Bytes, Truncated>> + Send {
    let mut expired = Box::pin(tokio::time::sleep_until(deadline));
    futures_util::stream::poll_fn(move |context| {
        // Polled first: a stream that always has more would otherwise never time out.
        if expired.as_mut().poll(context).is_ready() {
            return Poll::Ready(Some(Err(Truncated("the request timed out"))));
        }
        stream.poll_next_unpin(context)
    })
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Truncated;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Truncated>>> {
        let this = &mut *self;
        let next = match &mut this.content {
            Content::Empty => None,
            Content::Full(bytes) => {
                let bytes = std::mem::take(bytes);
                this.content = Content::Empty;
                Some(Ok(Frame::data(bytes)))
            }
            Content::Chunks { chunks, remaining } => {
                let chunk = chunks.pop_front();
                if let Some(chunk) = &chunk {
                    *remaining = remaining.saturating_sub(chunk.len() as u64);
                }
                chunk.map(|chunk| Ok(Frame::data(chunk)))
            }
            Content::Stream(stream) => match stream.poll_next_unpin(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(frame) => frame.map(|bytes| Ok(Frame::data(bytes))),
            },
            Content::Abortable(stream) => match stream.poll_next_unpin(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(frame) => frame.map(|result| result.map(Frame::data)),
            },
        };
        if !matches!(next, Some(Ok(_))) {
            this.content = Content::Empty;
            this.held = None;
        }
        Poll::Ready(next)
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Empty => true,
            Content::Chunks { chunks, .. } => chunks.is_empty(),
            Content::Full(_) | Content::Stream(_) | Content::Abortable(_) => false,
        }
    }

    fn size_hint(&self) -> SizeHint {
        self.size().map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

/// The unread body of a request. What is not read when it is dropped is received and discarded, up to a limit.
#[derive(Debug)]
pub struct RequestBody(Source);

#[derive(Debug)]
enum Source {
    Bytes(Bytes),
    Unread(Unread),
}

impl RequestBody {
    /// A body in memory.
    #[must_use]
    pub fn from_bytes(bytes: impl Into<Bytes>) -> Self {
        Self(Source::Bytes(bytes.into()))
    }

    /// A body that is still to be read from the connection.
    pub(super) fn from_connection(unread: Unread) -> Self {
        Self(Source::Unread(unread))
    }

    /// The largest size the body can have, in bytes: its Content-Length. [`BODY_LIMIT`] if the client has not told it.
    #[must_use]
    pub fn max_bytes(&self) -> usize {
        match &self.0 {
            Source::Bytes(bytes) => bytes.len(),
            Source::Unread(unread) => {
                let told = unread.size_hint().upper();
                told.map_or(BODY_LIMIT, |bytes| usize::try_from(bytes).unwrap_or(BODY_LIMIT))
            }
        }
    }

    /// Reads the whole body.
    ///
    /// # Errors
    /// 413 for more than [`BODY_LIMIT`] bytes, without buffering any if the Content-Length says so; 400 if the client
    /// disconnects.
    pub async fn read(self) -> Result<Bytes, ApiError> {
        match self.0 {
            Source::Bytes(bytes) if bytes.len() > BODY_LIMIT => Err(ApiError::body_too_large()),
            Source::Bytes(bytes) => Ok(bytes),
            Source::Unread(unread) => collect(unread).await,
        }
    }
}

impl From<Infallible> for Truncated {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

async fn collect<B>(mut body: B) -> Result<Bytes, ApiError>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    let announced = body.size_hint().lower();
    if announced > BODY_LIMIT as u64 {
        return Err(ApiError::body_too_large());
    }
    let mut first: Option<Bytes> = None;
    let mut rest = BytesMut::new();
    while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame
            .map_err(|error| ApiError::bad_request("the request body could not be read").because(error))?;
        let Ok(data) = frame.into_data() else { continue };
        let length = first.as_ref().map_or(0, Bytes::len) + rest.len() + data.remaining();
        if length > BODY_LIMIT {
            return Err(ApiError::body_too_large());
        }
        match first.take() {
            None if rest.is_empty() => first = Some(data),
            None => rest.extend_from_slice(&data),
            Some(start) => {
                rest.reserve(
                    usize::try_from(announced)
                        .unwrap_or(0)
                        .max(start.len() + data.len()),
                );
                rest.extend_from_slice(&start);
                rest.extend_from_slice(&data);
            }
        }
    }
    Ok(first.unwrap_or_else(|| rest.freeze()))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Frames(VecDeque<Bytes>, u64);

    impl Body for Frames {
        type Data = Bytes;
        type Error = Truncated;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Truncated>>> {
            Poll::Ready(self.0.pop_front().map(|bytes| Ok(Frame::data(bytes))))
        }

        fn size_hint(&self) -> SizeHint {
            let mut hint = SizeHint::new();
            hint.set_lower(self.1);
            hint
        }
    }

    async fn read(frames: &[usize], announced: usize) -> Result<usize, u16> {
        let frames = frames
            .iter()
            .map(|length| Bytes::from(vec![b'x'; *length]))
            .collect();
        collect(Frames(frames, announced as u64))
            .await
            .map(|bytes| bytes.len())
            .map_err(|error| error.code().as_u16())
    }

    #[tokio::test]
    async fn request_bodies_up_to_exactly_the_limit_are_read() {
        assert_eq!(read(&[], 0).await, Ok(0));
        assert_eq!(read(&[10, 20, 30], 60).await, Ok(60));
        assert_eq!(read(&[BODY_LIMIT], BODY_LIMIT).await, Ok(BODY_LIMIT));
        assert_eq!(read(&[BODY_LIMIT, 1], 0).await, Err(413));
    }

    #[tokio::test]
    async fn a_content_length_over_the_limit_is_rejected_before_reading() {
        assert_eq!(read(&[1], BODY_LIMIT + 1).await, Err(413));
    }

    async fn drain(mut body: ResponseBody) -> Vec<u8> {
        let mut all = Vec::new();
        while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
        {
            all.extend_from_slice(&frame.unwrap().into_data().unwrap());
        }
        all
    }

    #[tokio::test]
    async fn sizes_are_known_except_for_streams() {
        let chunks = || ResponseBody::chunks([Bytes::from("ab"), Bytes::new(), Bytes::from("c")]);
        assert_eq!(chunks().size(), Some(3));
        assert_eq!(drain(chunks()).await, b"abc");
        assert_eq!(ResponseBody::full("").size(), Some(0));
        let stream = ResponseBody::stream(futures_util::stream::iter([Bytes::from("x"), Bytes::from("y")]));
        assert_eq!(stream.size(), None);
        assert_eq!(drain(stream).await, b"xy");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_outlives_its_deadline_is_reset() {
        let frames = futures_util::stream::iter([Bytes::from("x")]).chain(futures_util::stream::pending());
        let mut body =
            ResponseBody::stream(frames).cut_at(Instant::now() + std::time::Duration::from_mins(1));
        let mut next = async || std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        assert_eq!(next().await.unwrap().unwrap().into_data().unwrap(), "x");
        assert!(next().await.unwrap().is_err());
        assert!(next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_always_has_more_is_reset_at_its_deadline_too() {
        let frames = futures_util::stream::repeat(Bytes::from("x"));
        let minute = std::time::Duration::from_mins(1);
        let mut body = ResponseBody::stream(frames).cut_at(Instant::now() + minute);
        let mut next = async || std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        assert!(next().await.unwrap().is_ok());
        tokio::time::advance(minute).await;
        assert!(next().await.unwrap().is_err());
    }

    #[tokio::test]
    async fn guards_are_held_until_the_end_of_the_body() {
        let (guard, mut dropped) = tokio::sync::oneshot::channel::<()>();
        let body = ResponseBody::full("x").holding(guard);
        assert!(
            dropped
                .try_recv()
                .is_err_and(|error| error == tokio::sync::oneshot::error::TryRecvError::Empty)
        );
        drain(body).await;
        assert!(
            dropped
                .try_recv()
                .is_err_and(|error| error == tokio::sync::oneshot::error::TryRecvError::Closed)
        );
    }
}
