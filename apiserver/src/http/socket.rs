//! Buffers small writes of a connection, and detects that the peer does not read.
//!
//! HTTP/2 flushes after every frame. A watch event is a frame, so a hundred watchers of one connection would cost a
//! hundred TLS records and system calls for one change. A [`Socket`] therefore buffers what is written until the
//! connection's task has nothing more to write and calls [`Socket::poll_sent`], or until [`WRITE_BYTES`] are buffered.
//! Large writes are not copied.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
};

use futures_util::task::AtomicWaker;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};

/// The size of the buffer in bytes: four TLS records.
const WRITE_BYTES: usize = 64 * 1024;
/// The capacity that an idle connection keeps, in bytes.
const KEPT_BYTES: usize = 4 * 1024;
/// Bytes of responses that may be unsent before the responses have to pause.
const UNSENT_BYTES: usize = 128 * 1024;

/// The unsent bytes of the responses of an HTTP/1.1 connection. Without this limit hyper would buffer a mebibyte; over
/// HTTP/2 each stream has its own limit.
#[derive(Debug, Default)]
pub(super) struct Unsent {
    bytes: AtomicUsize,
    waiting: AtomicWaker,
}

impl Unsent {
    /// Pending while there are too many.
    pub(super) fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.bytes.load(Ordering::Acquire) < UNSENT_BYTES {
            return Poll::Ready(());
        }
        self.waiting.register(context.waker());
        if self.bytes.load(Ordering::Acquire) < UNSENT_BYTES {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    pub(super) fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
    }

    /// Heads and framing are subtracted too but were never added, so the count stops at zero.
    fn take(&self, bytes: usize) {
        let left = |unsent: usize| Some(unsent.saturating_sub(bytes));
        // The update always succeeds.
        let before = match self.bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, left) {
            Ok(before) | Err(before) => before,
        };
        if before >= UNSENT_BYTES && before.saturating_sub(bytes) < UNSENT_BYTES {
            self.waiting.wake();
        }
    }
}

/// The stream of a connection, shared by the protocol, which reads and writes it, and the connection's task, which sends the
/// buffer. Both run in one task, so the lock is never contended.
pub(super) struct Socket<S>(Arc<Mutex<Io<S>>>);

struct Io<S> {
    stream: TokioIo<S>,
    written: Vec<u8>,
    /// How many bytes of `written` were sent.
    sent: usize,
    /// Whether the stream may hold unflushed bytes.
    is_unflushed: bool,
    /// Whether the last write was pending. Then a successful flush proves nothing: it had nothing to do.
    is_blocked: bool,
    /// Since when the peer has read nothing although there is something to send.
    blocked_since: Option<Instant>,
    unsent: Option<Arc<Unsent>>,
}

impl<S> Clone for Socket<S> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Socket<S> {
    pub(super) fn new(stream: S, unsent: Option<Arc<Unsent>>) -> Self {
        Self(Arc::new(Mutex::new(Io {
            stream: TokioIo::new(stream),
            written: Vec::new(),
            sent: 0,
            is_unflushed: false,
            is_blocked: false,
            blocked_since: None,
            unsent,
        })))
    }

    fn io(&self) -> MutexGuard<'_, Io<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends the buffer. Pending while the peer does not read.
    pub(super) fn poll_sent(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io().poll_sent(context)
    }

    /// Whether there is something to send and the last write was not pending.
    pub(super) fn has_written(&self) -> bool {
        let io = self.io();
        !io.written.is_empty() && !io.is_blocked
    }

    /// Since when the peer has read nothing although there is something to send.
    pub(super) fn blocked_since(&self) -> Option<Instant> {
        self.io().blocked_since
    }
}

impl<S: AsyncWrite + Unpin> Io<S> {
    /// Writes, and records whether the peer reads.
    fn poll_recorded(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(Pin<&mut TokioIo<S>>, &mut Context<'_>) -> Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        let result = write(Pin::new(&mut self.stream), context);
        self.is_blocked = result.is_pending();
        if self.is_blocked {
            self.blocked_since.get_or_insert_with(Instant::now);
        } else {
            self.blocked_since = None;
            self.is_unflushed = true;
        }
        if let (Some(unsent), Poll::Ready(Ok(count))) = (&self.unsent, &result) {
            unsent.take(*count);
        }
        result
    }

    /// Writes the whole buffer to the stream.
    fn poll_drained(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.written.len() {
            let written = std::mem::take(&mut self.written);
            let rest = written.get(self.sent..).unwrap_or_default();
            let result = self.poll_recorded(context, |stream, context| stream.poll_write(context, rest));
            self.written = written;
            match ready!(result)? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.sent += count,
            }
        }
        self.written.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }

    fn poll_sent(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_drained(context))?;
        self.written.shrink_to(KEPT_BYTES);
        if self.is_unflushed {
            let result = Pin::new(&mut self.stream).poll_flush(context);
            if result.is_pending() {
                self.blocked_since.get_or_insert_with(Instant::now);
            } else {
                self.is_unflushed = false;
                self.blocked_since = self.blocked_since.filter(|_| self.is_blocked);
            }
            return result;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_write(
        &mut self,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let length = buffers.iter().map(|buffer| buffer.len()).sum::<usize>();
        if self.written.len() + length > WRITE_BYTES {
            ready!(self.poll_drained(context))?;
            if length > WRITE_BYTES {
                return self.poll_recorded(context, |stream, context| {
                    stream.poll_write_vectored(context, buffers)
                });
            }
        }
        for buffer in buffers {
            self.written.extend_from_slice(buffer);
        }
        Poll::Ready(Ok(length))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Read for Socket<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io().stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Write for Socket<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.io().poll_write(context, &[io::IoSlice::new(bytes)])
    }

    /// Does nothing: the buffer is sent when the connection has nothing more to write.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut io = self.io();
        ready!(io.poll_sent(context))?;
        Pin::new(&mut io.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.io().poll_write(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::ReadBuf;

    use super::*;

    /// Records the sizes of writes; accepts as many bytes as it has room for.
    #[derive(Default)]
    struct Peer {
        writes: Arc<Mutex<Vec<usize>>>,
        room: Arc<Mutex<Option<usize>>>,
    }

    impl AsyncRead for Peer {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl AsyncWrite for Peer {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let mut room = self.room.lock().unwrap();
            let count = room.map_or(bytes.len(), |room| room.min(bytes.len()));
            if count == 0 {
                return Poll::Pending;
            }
            *room = room.map(|room| room - count);
            self.writes.lock().unwrap().push(count);
            Poll::Ready(Ok(count))
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    fn write(socket: &mut Socket<Peer>, length: usize) -> Poll<io::Result<usize>> {
        let mut context = Context::from_waker(std::task::Waker::noop());
        let written = Pin::new(&mut *socket).poll_write(&mut context, &vec![b'x'; length]);
        assert!(Pin::new(socket).poll_flush(&mut context).is_ready());
        written
    }

    fn sent(socket: &Socket<Peer>) -> bool {
        let mut context = Context::from_waker(std::task::Waker::noop());
        socket.poll_sent(&mut context).is_ready()
    }

    #[test]
    fn small_writes_are_buffered_and_large_ones_are_not() {
        let peer = Peer::default();
        let writes = Arc::clone(&peer.writes);
        let mut socket = Socket::new(peer, None);
        for _ in 0..10 {
            assert!(write(&mut socket, 3000).is_ready());
        }
        assert_eq!(*writes.lock().unwrap(), [0_usize; 0]);
        assert!(sent(&socket));
        assert_eq!(*writes.lock().unwrap(), [30_000]);

        assert!(write(&mut socket, 10).is_ready());
        assert!(write(&mut socket, WRITE_BYTES + 1).is_ready());
        assert_eq!(*writes.lock().unwrap(), [30_000, 10, WRITE_BYTES + 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_peer_without_room_blocks_writers_until_it_reads() {
        let peer = Peer::default();
        let (writes, room) = (Arc::clone(&peer.writes), Arc::clone(&peer.room));
        *room.lock().unwrap() = Some(0);
        let mut socket = Socket::new(peer, None);
        assert!(write(&mut socket, WRITE_BYTES).is_ready());
        assert_eq!(socket.blocked_since(), None);
        let now = Instant::now();
        assert!(!sent(&socket));
        tokio::time::advance(std::time::Duration::from_secs(5)).await;
        assert!(write(&mut socket, 1).is_pending());
        assert_eq!(socket.blocked_since(), Some(now));

        *room.lock().unwrap() = Some(1);
        assert!(!sent(&socket));
        assert_eq!(socket.blocked_since(), Some(Instant::now()));
        *room.lock().unwrap() = None;
        assert!(sent(&socket));
        assert_eq!(socket.blocked_since(), None);
        assert_eq!(*writes.lock().unwrap(), [1, WRITE_BYTES - 1]);
    }
}
