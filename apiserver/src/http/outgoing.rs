//! Drops responses whose clients have stopped reading.
//!
//! The body of such a response is not polled any more, so it cannot notice, and it holds resources: the state of a list, a
//! permit of the requests in flight. Over HTTP/1.1 the connection stalls with the response and is closed. Over HTTP/2 the
//! connection serves other requests, so only the content of the response is dropped: when the client reads on, it finds
//! its response reset, and resumes its watch or repeats its list.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body::Body as _;
use tokio::time::Instant;

use super::{
    body::{ResponseBody, Truncated},
    socket::Unsent,
};

/// How long a client may read nothing of a response.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// The largest piece that is handed to the connection at once, in bytes: a client that reads this much in
/// [`READ_TIMEOUT`] is slow, and one that does not is gone.
const PIECE_BYTES: usize = 128 * 1024;

/// The streamed responses of a connection that are in flight.
#[derive(Debug)]
pub(super) struct Outgoing {
    streams: Mutex<Vec<Weak<Mutex<Tracked>>>>,
    unsent: Option<Arc<Unsent>>,
}

#[derive(Debug)]
struct Tracked {
    /// None once it was dropped.
    body: Option<ResponseBody>,
    /// Bytes of the body that were not handed to the connection yet.
    rest: Bytes,
    /// When bytes were last handed to the connection, which polls again as soon as it has room. None over HTTP/1.1, where
    /// `unsent` is used instead.
    handed_at: Option<Instant>,
    unsent: Option<Arc<Unsent>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Outgoing {
    /// The responses of a connection; `unsent` counts its unsent bytes over HTTP/1.1.
    pub(super) fn new(unsent: Option<Arc<Unsent>>) -> Self {
        Self {
            streams: Mutex::default(),
            unsent,
        }
    }

    /// The same body, guards included, in a form that can be dropped while the connection holds it.
    pub(super) fn track(&self, body: ResponseBody) -> ResponseBody {
        if !body.is_stream() {
            return body;
        }
        let tracked = Arc::new(Mutex::new(Tracked {
            body: Some(body),
            rest: Bytes::new(),
            handed_at: None,
            unsent: self.unsent.clone(),
        }));
        lock(&self.streams).push(Arc::downgrade(&tracked));
        ResponseBody::abortable_stream(futures_util::stream::poll_fn(move |context| {
            lock(&tracked).poll_next(context)
        }))
    }

    /// Drops the content of responses whose clients have read nothing for [`READ_TIMEOUT`]. False if a response is past its
    /// deadline although nothing more of it is asked for: over HTTP/1.1 the connection has to be closed then.
    #[must_use]
    pub(super) fn drop_stalled(&self) -> bool {
        let mut abandoned = Vec::new();
        let mut in_time = true;
        lock(&self.streams).retain(|tracked| {
            let Some(tracked) = tracked.upgrade() else {
                return false;
            };
            // A locked response is being polled, so it is not stalled.
            let mut tracked = match tracked.try_lock() {
                Ok(tracked) => tracked,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return true,
            };
            let deadline = tracked.body.as_ref().and_then(ResponseBody::deadline);
            if tracked.unsent.is_some() && deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                in_time = false;
            }
            if tracked.handed_at.is_some_and(|at| at.elapsed() >= READ_TIMEOUT) {
                abandoned.extend(tracked.body.take());
            }
            tracked.body.is_some()
        });
        if !abandoned.is_empty() {
            tracing::debug!(
                responses = abandoned.len(),
                "responses dropped: their clients stopped reading"
            );
        }
        in_time
    }
}

impl Tracked {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Bytes, Truncated>>> {
        let Some(body) = &mut self.body else {
            return Poll::Ready(Some(Err(Truncated("the client stopped reading"))));
        };
        if let Some(unsent) = &self.unsent {
            ready!(unsent.poll_room(context));
        }
        if self.rest.is_empty() {
            self.handed_at = None;
            self.rest = match ready!(Pin::new(body).poll_frame(context)) {
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            };
        }
        let piece = self.rest.split_to(self.rest.len().min(PIECE_BYTES));
        match &self.unsent {
            Some(unsent) => unsent.add(piece.len()),
            None => self.handed_at = Some(Instant::now()),
        }
        Poll::Ready(Some(Ok(piece)))
    }
}
