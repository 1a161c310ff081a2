//! Serves one connection and decides when it is closed.
//!
//! ALPN selects HTTP/1.1 or HTTP/2, with hyper's builders and every limit set explicitly: an aggregator sends the requests
//! of all its users over few connections, so streams are many and header blocks large. Slow and idle clients are
//! disconnected. A connection that is upgraded to WebSocket goes on in [`websocket`].

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use futures_util::FutureExt as _;
use http::{Request, Response, header};
use http_body::Body as _;
use hyper::upgrade::OnUpgrade;
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    activity::{Activity, Stage},
    body::{RequestBody, ResponseBody},
    certificate::PeerCertificates,
    discard::Unread,
    observed::Observed,
    outgoing::Outgoing,
    socket::{Socket, Unsent},
    streams::{Cancellations, PeerKind, StreamLimits},
    websocket::{self, Messages},
};

/// The largest header block: 1 MiB and Go's allowance of 4 KiB.
const HEADER_BYTES: usize = 1_048_576 + 4096;
/// `SETTINGS_MAX_HEADER_LIST_SIZE` as the reference sends it.
const HEADER_LIST_BYTES: u32 = 1_048_896;
/// Lines of an HTTP/1.1 header block. Each group and each extra of a user has one. The header map of the HTTP library has
/// no room for more names than this.
const HEADER_LINES: usize = 24_576;
/// Time limit for a client to send a header block.
const HEADER_TIMEOUT: Duration = Duration::from_secs(32);
/// Time a connection may be idle.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// How often a connection is checked for being slow or idle.
const TICK: Duration = Duration::from_secs(4);
/// Streams per HTTP/2 connection, as aggregated servers allow.
const STREAMS: u32 = 1000;
/// Receive window per stream.
const WINDOW_BYTES: u32 = 256 * 1024;
/// The largest frame. The HTTP/2 library allows as many frames of a header block as it would have of this size, and clients
/// may send 16 KiB each whatever the server allows.
const FRAME_BYTES: u32 = 16 * 1024;
/// Receive window of a connection. Bodies are at most 3 MiB, so a hundred full windows suffice.
const CONNECTION_WINDOW_BYTES: u32 = 100 * WINDOW_BYTES;
/// Bytes that may be buffered per stream before its handler has to pause. Each slow watcher costs this much memory.
const SEND_BYTES: usize = 128 * 1024;
/// Interval of pings. A peer that does not respond to them is dead and must not hold watches.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Time limit for the response to a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// How long writes to a connection may block. The kernel detects a peer that takes no byte at all (see the listener); this
/// limit is for one that takes bytes slowly, from a large send buffer.
const STALL_TIMEOUT: Duration = Duration::from_mins(2);
/// Time limit to send the last bytes of a connection that has ended.
const FINAL_FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The connection of a request, as filters see it. It has no identity: that is established per request.
#[derive(Debug)]
pub struct Connection {
    /// The peer.
    pub remote: SocketAddr,
    /// Whether HTTP/2 is spoken.
    pub http2: bool,
    /// The certificates of the client. Only possession of the key is proved.
    pub certificates: Option<PeerCertificates>,
    /// Who the peer is by its certificate, for limits alone.
    pub peer: PeerKind,
    closing: CancellationToken,
}

impl Connection {
    /// A connection from `remote`.
    #[must_use]
    pub fn new(remote: SocketAddr, http2: bool, certificates: Option<PeerCertificates>) -> Self {
        Self {
            remote,
            http2,
            certificates,
            peer: PeerKind::default(),
            closing: CancellationToken::new(),
        }
    }

    /// The same with the limits of `peer`; a stranger's otherwise.
    #[must_use]
    pub fn of(self, peer: PeerKind) -> Self {
        Self { peer, ..self }
    }

    /// Closes the connection after the responses in flight.
    pub fn close(&self) {
        self.closing.cancel();
    }

    /// Whether [`Self::close`] was called.
    #[cfg(test)]
    pub(crate) fn is_closing(&self) -> bool {
        self.closing.is_cancelled()
    }
}

/// Handles the requests of a connection.
pub trait Service: Send + Sync + 'static {
    /// Handles one request.
    fn serve(
        &self,
        connection: &Connection,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Response<ResponseBody>> + Send;

    /// Who a peer with these certificates is, for the limits of its connection.
    fn peer(&self, certificates: &PeerCertificates) -> PeerKind {
        let _ = certificates;
        PeerKind::Stranger
    }
}

/// Serves a connection until it ends, is idle or too slow, or `closed` is cancelled.
pub async fn serve<T, S>(stream: T, connection: Connection, service: Arc<S>, closed: CancellationToken)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service,
{
    let upgraded = Upgraded::default();
    let http2 = connection.http2;
    let now = Instant::now();
    let unsent = (!http2).then(Arc::<Unsent>::default);
    let stage = if http2 { Stage::Idle(now) } else { Stage::Head(now) };
    let activity = Activity::new(stage, Outgoing::new(unsent.clone()));
    let socket = Socket::new(stream, unsent);
    let io = Observed::new(socket.clone(), Arc::clone(&activity), http2);
    let connection = Arc::new(connection);
    let limits = StreamLimits::of(connection.peer);
    let cancellations = Cancellations::new(limits);
    let ends = Ends {
        closing: connection.closing.clone(),
        closed,
        flooded: cancellations.flooded().clone(),
    };
    let handler = {
        let (activity, upgraded) = (Arc::clone(&activity), Arc::clone(&upgraded));
        service_fn(move |mut request: Request<Incoming>| {
            let busy = activity.begin();
            let upgrade = hyper::upgrade::on(&mut request);
            let request = with_body(request, &activity);
            let (activity, upgraded) = (Arc::clone(&activity), Arc::clone(&upgraded));
            let (connection, service) = (Arc::clone(&connection), Arc::clone(&service));
            let unanswered = cancellations.begin();
            async move {
                let response = service.serve(&connection, request).await;
                unanswered.answered();
                let (response, messages) = websocket::take_messages(response);
                if let Some(messages) = messages {
                    *upgraded.lock().unwrap_or_else(PoisonError::into_inner) = Some((upgrade, messages));
                }
                Ok::<_, std::convert::Infallible>(
                    response.map(|body| activity.outgoing.track(body.holding(busy))),
                )
            }
        })
    };
    if http2 {
        let served = http2_builder(limits).serve_connection(io, handler);
        let served = std::pin::pin!(served);
        drive(
            served,
            http2::Connection::graceful_shutdown,
            &socket,
            &activity,
            &ends,
        )
        .await;
    } else {
        let served = http1_builder().serve_connection(io, handler).with_upgrades();
        let served = std::pin::pin!(served);
        drive(
            served,
            http1::UpgradeableConnection::graceful_shutdown,
            &socket,
            &activity,
            &ends,
        )
        .await;
        let upgraded = upgraded.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((upgrade, messages)) = upgraded
            && let Some(Ok(stream)) = upgrade.now_or_never()
        {
            let stream = TokioIo::new(stream);
            websocket::run(Unbuffered { stream, socket }, messages).await;
        }
    }
}

/// The upgrade of a connection, and the messages to send on it.
type Upgraded = Arc<Mutex<Option<(OnUpgrade, Messages)>>>;

/// An upgraded connection. Unlike [`Socket`], it sends what was written when it is flushed.
struct Unbuffered<S> {
    stream: TokioIo<hyper::upgrade::Upgraded>,
    socket: Socket<S>,
}

impl<S> AsyncRead for Unbuffered<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S> AsyncWrite for Unbuffered<S>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.poll_sent(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The request with a body that is received to its end, whether it is read or not, and keeps the connection busy until then.
fn with_body(request: Request<Incoming>, activity: &Arc<Activity>) -> Request<RequestBody> {
    // Reading would invite a client that waits for the response to send the body after all.
    let is_awaited = request.headers().contains_key(header::EXPECT);
    let held = (!is_awaited && !request.body().is_end_stream()).then(|| activity.begin());
    request.map(|body| RequestBody::from_connection(Unread::new(body, held)))
}

fn http2_builder(limits: StreamLimits) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(HEADER_LIST_BYTES)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(FRAME_BYTES)
        .max_send_buf_size(SEND_BYTES)
        .max_pending_accept_reset_streams(limits.pending_resets)
        .max_local_error_reset_streams(limits.local_resets)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}

fn http1_builder() -> http1::Builder {
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        // Includes idle time, so this is only the last resort; `drive` limits the time of a header block.
        .header_read_timeout(IDLE_TIMEOUT + TICK)
        .max_headers(HEADER_LINES)
        .max_header_size(HEADER_BYTES)
        .max_buf_size(HEADER_BYTES)
        .half_close(false)
        .keep_alive(true);
    builder
}

/// What ends a connection.
struct Ends {
    /// A filter asks to close it.
    closing: CancellationToken,
    /// The server shuts down.
    closed: CancellationToken,
    /// The client cancels more requests than it may.
    flooded: CancellationToken,
}

/// Runs a connection until it ends.
async fn drive<C, E, S>(
    mut served: Pin<&mut C>,
    shut_down: impl Fn(Pin<&mut C>),
    socket: &Socket<S>,
    activity: &Activity,
    ends: &Ends,
) where
    C: Future<Output = Result<(), E>>,
    E: std::error::Error,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut is_shutting_down = false;
    let mut tick = tokio::time::interval(TICK);
    loop {
        tokio::select! {
            result = run(served.as_mut(), socket, activity) => {
                if let Err(error) = result {
                    tracing::debug!(error, "connection ended with an error");
                }
                break;
            }
            () = ends.flooded.cancelled() => {
                tracing::warn!("connection closed: the client cancelled too many requests");
                return;
            }
            () = ends.closing.cancelled(), if !is_shutting_down => {
                is_shutting_down = true;
                shut_down(served.as_mut());
            }
            () = ends.closed.cancelled(), if !is_shutting_down => {
                is_shutting_down = true;
                shut_down(served.as_mut());
            }
            _ = tick.tick() => {
                if socket.blocked_since().is_some_and(|since| since.elapsed() >= STALL_TIMEOUT) {
                    tracing::debug!("connection closed: the peer stopped reading");
                    return;
                }
                if !activity.outgoing.drop_stalled() {
                    tracing::debug!("connection closed: the peer reads its response too slowly");
                    return;
                }
                match activity.stage() {
                    Stage::Head(since) if since.elapsed() >= HEADER_TIMEOUT => {
                        tracing::debug!("connection closed: the header block took too long");
                        return;
                    }
                    Stage::Idle(since) if since.elapsed() >= IDLE_TIMEOUT && !is_shutting_down => {
                        is_shutting_down = true;
                        shut_down(served.as_mut());
                    }
                    Stage::Idle(since) if since.elapsed() >= IDLE_TIMEOUT + PING_TIMEOUT => return,
                    _ => {}
                }
            }
        }
    }
    let rest = std::future::poll_fn(|context| socket.poll_sent(context));
    if !matches!(tokio::time::timeout(FINAL_FLUSH_TIMEOUT, rest).await, Ok(Ok(()))) {
        tracing::debug!("the last bytes of a connection could not be sent");
    }
}

/// Polls the protocol until the connection ends, and sends what it wrote when it has nothing more to write.
///
/// If several responses are in flight, every task that is ready runs once before the bytes are sent: after a change these
/// are the streams of all watchers of the connection, and their frames leave in one write.
async fn run<C, E, S>(mut served: Pin<&mut C>, socket: &Socket<S>, activity: &Activity) -> Result<(), String>
where
    C: Future<Output = Result<(), E>>,
    E: std::error::Error,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut has_yielded = false;
    std::future::poll_fn(|context| {
        if let Poll::Ready(result) = served.as_mut().poll(context) {
            return Poll::Ready(result.map_err(|error| error.to_string()));
        }
        let has_others = activity.requests.load(Ordering::Relaxed) > 1;
        has_yielded = !has_yielded && has_others && socket.has_written();
        if has_yielded {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        match socket.poll_sent(context) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.to_string())),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
        }
    })
    .await
}
