//! What becomes of a response whose client has stopped reading it?
//!
//! Nobody asks its body for more, so the body cannot notice, and it holds what it would have sent: the state of a
//! list, a place among the requests in flight. Over HTTP/1.1 the connection stalls with it and is closed. Over HTTP/2
//! the connection serves others, so the connection only takes the content away: the client finds its response reset
//! when it reads on, and resumes its watch or repeats its list.

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

/// How long a client may take nothing of what it is sent.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// What is handed on at once at most, in bytes: a client that takes so much in [`PATIENCE`] is slow, not gone.
const PIECE_BYTES: usize = 128 * 1024;

/// The responses of a connection that are under way, as far as they are streams.
#[derive(Debug)]
pub(super) struct Outgoing {
    streams: Mutex<Vec<Weak<Mutex<Followed>>>>,
    unsent: Option<Arc<Unsent>>,
}

#[derive(Debug)]
struct Followed {
    /// None when it was taken away.
    body: Option<ResponseBody>,
    /// What the body has given and was not handed on yet.
    rest: Bytes,
    /// Since when its last bytes wait to be taken: whoever has room for more asks for more at once. Over HTTP/1.1 the
    /// connection is looked at instead.
    handed_at: Option<Instant>,
    unsent: Option<Arc<Unsent>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Outgoing {
    /// Of a connection that counts what was not sent, or not.
    pub(super) fn new(unsent: Option<Arc<Unsent>>) -> Self {
        Self {
            streams: Mutex::default(),
            unsent,
        }
    }

    /// The same response, with what it holds, that can be taken away.
    pub(super) fn follow(&self, body: ResponseBody) -> ResponseBody {
        if !body.is_stream() {
            return body;
        }
        let followed = Arc::new(Mutex::new(Followed {
            body: Some(body),
            rest: Bytes::new(),
            handed_at: None,
            unsent: self.unsent.clone(),
        }));
        lock(&self.streams).push(Arc::downgrade(&followed));
        ResponseBody::abortable_stream(futures_util::stream::poll_fn(move |context| {
            lock(&followed).poll_next(context)
        }))
    }

    /// Takes away the content of responses whose clients have taken nothing for [`PATIENCE`].
    pub(super) fn drop_stalled(&self) {
        let mut abandoned = Vec::new();
        lock(&self.streams).retain(|followed| {
            let Some(followed) = followed.upgrade() else {
                return false;
            };
            // Whoever is being asked for more is not stalled, and is not waited for.
            let mut followed = match followed.try_lock() {
                Ok(followed) => followed,
                Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                Err(TryLockError::WouldBlock) => return true,
            };
            if followed.handed_at.is_some_and(|at| at.elapsed() >= PATIENCE) {
                abandoned.extend(followed.body.take());
            }
            followed.body.is_some()
        });
        if !abandoned.is_empty() {
            tracing::debug!(
                responses = abandoned.len(),
                "dropped: their clients stopped reading"
            );
        }
    }
}

impl Followed {
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
