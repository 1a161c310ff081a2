//! Reads and drops the rest of request bodies that no handler wants.
//!
//! A request may be refused before its body has arrived. Over HTTP/1.1 the connection would then be closed with bytes
//! unread, and the system would discard the response on the client's side. Over HTTP/2 the stream would be reset, and each
//! frame of the body that is still on its way would count as an error of the connection, which many users share.

use std::{
    any::Any,
    fmt,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tokio::{runtime::Handle, time::timeout};

use crate::error::BODY_LIMIT;

/// How much of a body is dropped, in bytes. A client that sends more may get a broken connection instead of the response.
const LIMIT: u64 = 4 * BODY_LIMIT as u64;
/// How long the rest of a body may take.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// The body of a request on a connection. What nobody has read when it is dropped is read and discarded.
pub(super) struct Unread(Option<Rest>);

struct Rest {
    body: Incoming,
    /// Held until the body has ended, so that the connection is not taken for idle. None if the rest is not to be read.
    held: Option<Box<dyn Any + Send>>,
}

impl fmt::Debug for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unread").finish_non_exhaustive()
    }
}

impl Unread {
    /// The body with a guard that is held until it has ended. Without one the rest is not read.
    pub(super) fn new(body: Incoming, held: Option<impl Any + Send>) -> Self {
        Self(Some(Rest {
            body,
            held: held.map(|held| Box::new(held) as Box<dyn Any + Send>),
        }))
    }
}

impl Body for Unread {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(rest) = &mut self.0 else {
            return Poll::Ready(None);
        };
        let frame = ready!(Pin::new(&mut rest.body).poll_frame(context));
        if !matches!(frame, Some(Ok(_))) {
            self.0 = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|rest| rest.body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.0
            .as_ref()
            .map_or_else(SizeHint::default, |rest| rest.body.size_hint())
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        let Some(Rest {
            body,
            held: Some(held),
        }) = self.0.take()
        else {
            return;
        };
        // Without a runtime the connection has ended, too.
        if let (false, Ok(runtime)) = (body.is_end_stream(), Handle::try_current()) {
            runtime.spawn(async move {
                let _held = held;
                if timeout(TIME_LIMIT, discard(body)).await.is_err() {
                    tracing::debug!("the rest of a request body took too long");
                }
            });
        }
    }
}

async fn discard<B: Body<Data = Bytes> + Unpin>(mut body: B) {
    let mut left = LIMIT;
    while let Some(Ok(frame)) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let length = frame.data_ref().map_or(0, |data| data.len() as u64);
        match left.checked_sub(length) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    /// Sends chunks of a mebibyte, and counts them.
    struct Chunks<'a>(&'a mut u64, u64);

    impl Body for Chunks<'_> {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            if *self.0 == self.1 {
                return Poll::Ready(None);
            }
            *self.0 += 1;
            Poll::Ready(Some(Ok(Frame::data(Bytes::from(vec![0; 1 << 20])))))
        }
    }

    #[tokio::test]
    async fn a_bounded_part_of_a_body_is_read() {
        for (chunks, expected) in [(0, 0), (3, 3), (12, 12), (100, 13)] {
            let mut read = 0;
            discard(Chunks(&mut read, chunks)).await;
            assert_eq!(read, expected);
        }
    }
}
