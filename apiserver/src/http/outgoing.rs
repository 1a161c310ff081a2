//! What becomes of a response whose client has stopped reading it?
//!
//! Nobody asks its body for more, so the body cannot notice, and it holds what it would have sent: the state of a
//! list, a place among the requests in flight. Over HTTP/1.1 the connection stalls with it and is closed. Over HTTP/2
//! the connection serves others, so the connection only takes the content away: the client finds its response reset
//! when it reads on, and resumes its watch or repeats its list.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
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
    /// Since when its last bytes wait to be taken: whoever has room for more asks for more at once.
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
            let mut followed = lock(&followed);
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
            // Since when it waits stays as it is: the peer has taken nothing since.
            ready!(unsent.poll_room(context));
        }
        let next = Pin::new(body).poll_frame(context);
        self.handed_at = matches!(next, Poll::Ready(Some(_))).then(Instant::now);
        let next =
            next.map(|frame| frame.map(|frame| frame.map(|frame| frame.into_data().unwrap_or_default())));
        if let (Some(unsent), Poll::Ready(Some(Ok(bytes)))) = (&self.unsent, &next) {
            unsent.add(bytes.len());
        }
        next
    }
}
