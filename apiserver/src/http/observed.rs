//! The socket as the HTTP library sees it: what arrives and leaves is observed, and requests that the library could not
//! answer properly are changed on the way (see [`super::target`]).

use std::{
    io,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
};

use hyper::rt::{Read, ReadBuf, ReadBufCursor, Write};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};

use super::{
    activity::{Activity, Stage},
    socket::Socket,
    target::{self, Shortener},
};

/// How much is read at once over HTTP/2, in bytes: a TLS record.
const READ_BYTES: usize = 16 * 1024;

/// Records that bytes arrive while no request is in flight: over HTTP/1.1 they are the start of a header block. Over HTTP/2
/// they may be pings and settings, and hyper itself limits the time of header blocks.
pub(super) struct Observed<S> {
    inner: Socket<S>,
    activity: Arc<Activity>,
    /// None over HTTP/1.1.
    shortener: Option<Shortener>,
    /// What the shortener has passed on, and how much of it was read.
    passed: Vec<u8>,
    read: usize,
}

impl<S> Observed<S> {
    pub(super) fn new(inner: Socket<S>, activity: Arc<Activity>, http2: bool) -> Self {
        Self {
            inner,
            activity,
            shortener: http2.then(Shortener::new),
            passed: Vec::new(),
            read: 0,
        }
    }

    /// What is written in place of the library's own response.
    fn replacement(&self, written: &[u8]) -> Option<bytes::Bytes> {
        let is_own = self.shortener.is_none() && self.activity.requests.load(Ordering::Acquire) == 0;
        is_own.then(|| target::response(written)).flatten()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Read for Observed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        mut buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        let Some(shortener) = &mut this.shortener else {
            let result = Pin::new(&mut this.inner).poll_read(context, buffer);
            if matches!(result, Poll::Ready(Ok(()))) && this.activity.requests.load(Ordering::Acquire) == 0 {
                this.activity.set(|stage| match stage {
                    Stage::Idle(_) => Stage::Head(Instant::now()),
                    other => other,
                });
            }
            return result;
        };
        // A header block that is held back is as if nothing had arrived.
        while this.read == this.passed.len() {
            let mut bytes = [0; READ_BYTES];
            let mut received = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut this.inner).poll_read(context, received.unfilled()))?;
            if received.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.read = 0;
            this.passed.clear();
            shortener.pass(received.filled(), &mut this.passed);
        }
        let rest = this.passed.get(this.read..).unwrap_or_default();
        let now = rest.get(..buffer.remaining()).unwrap_or(rest);
        buffer.put_slice(now);
        this.read += now.len();
        if this.read == this.passed.len() {
            this.passed.shrink_to(READ_BYTES);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Write for Observed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(replacement) = self.replacement(bytes) {
            let written = ready!(Pin::new(&mut self.inner).poll_write(context, &replacement))?;
            debug_assert_eq!(
                written,
                replacement.len(),
                "the socket takes small writes as a whole"
            );
            return Poll::Ready(Ok(bytes.len()));
        }
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if let Some(first) = buffers.first()
            && self.replacement(first).is_some()
        {
            return self.poll_write(context, first);
        }
        Pin::new(&mut self.inner).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
