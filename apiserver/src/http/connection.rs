//! How is one connection served, and when is it closed?
//!
//! HTTP/1.1 or HTTP/2 is chosen by ALPN, with hyper's own builders and every limit set on purpose: one aggregator
//! carries all its users over few connections, so streams are many and header blocks large, while slow or idle clients
//! are cut off.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use http::{Request, Response};
use hyper::{
    body::Incoming,
    rt::{Read, ReadBufCursor, Write},
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    body::{RequestBody, ResponseBody},
    certificate::PeerCertificates,
    outgoing::Outgoing,
    socket::{Socket, Unsent},
};

/// The largest header block: 1 MiB and Go's allowance of 4 KiB.
const HEADER_BYTES: usize = 1_048_576 + 4096;
/// `SETTINGS_MAX_HEADER_LIST_SIZE` as the reference sends it.
const HEADER_LIST_BYTES: u32 = 1_048_896;
/// Lines of an HTTP/1.1 header block; every group and extra of a user is one.
const HEADER_LINES: usize = 1024;
/// Time to send a header block.
const HEADER_TIME: Duration = Duration::from_secs(32);
/// Time a connection may do nothing.
const IDLE: Duration = Duration::from_secs(90);
/// How often slow and idle connections are looked for.
const TICK: Duration = Duration::from_secs(4);
/// Streams per HTTP/2 connection, as aggregated servers allow.
const STREAMS: u32 = 1000;
/// Receive window per stream, and frame size.
const WINDOW_BYTES: u32 = 256 * 1024;
/// Receive window of a connection. Bodies are at most 3 MiB, so a hundred full windows suffice.
const CONNECTION_WINDOW_BYTES: u32 = 100 * WINDOW_BYTES;
/// What may wait to be sent per stream before a handler has to pause: with thousands of slow watchers this is what
/// each of them costs.
const SEND_BYTES: usize = 128 * 1024;
/// Streams reset by the client before we accepted them, beyond which the connection is an attack.
const PENDING_RESETS: usize = 20;
/// Streams we reset ourselves, beyond which the connection is an attack.
const LOCAL_RESETS: usize = 1024;
/// A dead peer is noticed by unanswered pings, so that it does not hold watches.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Time to answer a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a connection may be without room for more. That a peer takes no byte is noticed by the kernel, see the
/// listener; one that takes bytes slowly may fill a large send buffer for this long.
const STALLED: Duration = Duration::from_mins(2);
/// Time for the last bytes of a connection that has ended.
const LAST_BYTES: Duration = Duration::from_secs(1);

/// What a request can know of the connection that brought it. Never an identity: that is found per request.
#[derive(Debug)]
pub struct Connection {
    /// The peer.
    pub remote: SocketAddr,
    /// Whether HTTP/2 is spoken.
    pub http2: bool,
    /// What the client showed; possession of the key is proved, nothing else.
    pub certificates: Option<PeerCertificates>,
    going: CancellationToken,
}

impl Connection {
    /// A connection from `remote`.
    #[must_use]
    pub fn new(remote: SocketAddr, http2: bool, certificates: Option<PeerCertificates>) -> Self {
        Self {
            remote,
            http2,
            certificates,
            going: CancellationToken::new(),
        }
    }

    /// Lets the connection end after the responses that are under way.
    pub fn close(&self) {
        self.going.cancel();
    }

    /// Whether [`Self::close`] was called.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.going.is_cancelled()
    }
}

/// What answers the requests of a connection.
pub trait Service: Send + Sync + 'static {
    /// Answers one request.
    fn serve(
        &self,
        connection: &Connection,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Response<ResponseBody>> + Send;
}

/// What the connection is doing, for the watch on slow and idle clients.
#[derive(Debug)]
struct Activity {
    requests: AtomicUsize,
    stage: Mutex<Stage>,
    outgoing: Outgoing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing is under way since then.
    Idle(Instant),
    /// Bytes arrive that are no whole request yet, since then.
    Head(Instant),
    /// Requests are being answered.
    Busy,
}

impl Activity {
    fn new(stage: Stage, outgoing: Outgoing) -> Arc<Self> {
        Arc::new(Self {
            requests: AtomicUsize::new(0),
            stage: Mutex::new(stage),
            outgoing,
        })
    }

    fn set(&self, next: impl FnOnce(Stage) -> Stage) {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        *stage = next(*stage);
    }

    fn stage(&self) -> Stage {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(self: &Arc<Self>) -> Busy {
        if self.requests.fetch_add(1, Ordering::AcqRel) == 0 {
            self.set(|_| Stage::Busy);
        }
        Busy(Arc::clone(self))
    }
}

/// Held by a request and its response's body.
struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        if self.0.requests.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.set(|_| Stage::Idle(Instant::now()));
        }
    }
}

/// Notes that bytes arrive while no request is being answered: over HTTP/1.1 they are the start of a header block. Over
/// HTTP/2 they may be pings and settings, and hyper bounds header blocks by itself.
struct Noticed<S> {
    inner: Socket<S>,
    activity: Arc<Activity>,
    http2: bool,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Read for Noticed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.inner).poll_read(context, buffer);
        if !self.http2
            && matches!(result, Poll::Ready(Ok(())))
            && self.activity.requests.load(Ordering::Acquire) == 0
        {
            self.activity.set(|stage| match stage {
                Stage::Idle(_) => Stage::Head(Instant::now()),
                other => other,
            });
        }
        result
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Write for Noticed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
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
        Pin::new(&mut self.inner).poll_write_vectored(context, buffers)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}

/// Serves a connection until it ends, is idle, too slow, or `closed` tells it to go.
pub async fn serve<T, S>(stream: T, connection: Connection, service: Arc<S>, closed: CancellationToken)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Service,
{
    let http2 = connection.http2;
    let now = Instant::now();
    let unsent = (!http2).then(Arc::<Unsent>::default);
    let stage = if http2 { Stage::Idle(now) } else { Stage::Head(now) };
    let activity = Activity::new(stage, Outgoing::new(unsent.clone()));
    let socket = Socket::new(stream, unsent);
    let io = Noticed {
        inner: socket.clone(),
        activity: Arc::clone(&activity),
        http2,
    };
    let connection = Arc::new(connection);
    let going = connection.going.clone();
    let answer = {
        let activity = Arc::clone(&activity);
        service_fn(move |request: Request<Incoming>| {
            let busy = activity.begin();
            let activity = Arc::clone(&activity);
            let (connection, service) = (Arc::clone(&connection), Arc::clone(&service));
            async move {
                let response = service
                    .serve(&connection, request.map(RequestBody::from_connection))
                    .await;
                Ok::<_, std::convert::Infallible>(
                    response.map(|body| activity.outgoing.follow(body.holding(busy))),
                )
            }
        })
    };
    if http2 {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .max_header_list_size(HEADER_LIST_BYTES)
            .initial_stream_window_size(WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(WINDOW_BYTES)
            .max_send_buf_size(SEND_BYTES)
            .max_pending_accept_reset_streams(PENDING_RESETS)
            .max_local_error_reset_streams(LOCAL_RESETS)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        let served = builder.serve_connection(io, answer);
        tokio::pin!(served);
        drive(
            served,
            http2::Connection::graceful_shutdown,
            &socket,
            &activity,
            &going,
            &closed,
        )
        .await;
    } else {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            // Idle time counts here too, so this is only the last line; see `drive` for the time of a header block.
            .header_read_timeout(IDLE + TICK)
            .max_headers(HEADER_LINES)
            .max_header_size(HEADER_BYTES)
            .max_buf_size(HEADER_BYTES)
            .half_close(false)
            .keep_alive(true);
        let served = builder.serve_connection(io, answer);
        tokio::pin!(served);
        drive(
            served,
            http1::Connection::graceful_shutdown,
            &socket,
            &activity,
            &going,
            &closed,
        )
        .await;
    }
}

async fn drive<C, E, S>(
    mut served: Pin<&mut C>,
    let_go: impl Fn(Pin<&mut C>),
    socket: &Socket<S>,
    activity: &Activity,
    going: &CancellationToken,
    closed: &CancellationToken,
) where
    C: Future<Output = Result<(), E>>,
    E: std::error::Error,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut told = false;
    let mut tick = tokio::time::interval(TICK);
    loop {
        tokio::select! {
            result = turns(served.as_mut(), socket, activity) => {
                if let Err(error) = result {
                    tracing::debug!(error, "connection ended with an error");
                }
                break;
            }
            () = going.cancelled(), if !told => {
                told = true;
                let_go(served.as_mut());
            }
            () = closed.cancelled(), if !told => {
                told = true;
                let_go(served.as_mut());
            }
            _ = tick.tick() => {
                if socket.refused_since().is_some_and(|since| since.elapsed() >= STALLED) {
                    tracing::debug!("connection closed: the peer takes nothing");
                    return;
                }
                activity.outgoing.drop_stalled();
                match activity.stage() {
                    Stage::Head(since) if since.elapsed() >= HEADER_TIME => {
                        tracing::debug!("connection closed: header too slow");
                        return;
                    }
                    Stage::Idle(since) if since.elapsed() >= IDLE && !told => {
                        told = true;
                        let_go(served.as_mut());
                    }
                    Stage::Idle(since) if since.elapsed() >= IDLE + PING_TIMEOUT => return,
                    _ => {}
                }
            }
        }
    }
    let rest = std::future::poll_fn(|context| socket.poll_sent(context));
    if !matches!(tokio::time::timeout(LAST_BYTES, rest).await, Ok(Ok(()))) {
        tracing::debug!("the last bytes of a connection were not taken");
    }
}

/// Runs the protocol until the connection ends, and sends what it wrote when it has nothing more to say.
///
/// Before that everybody who is ready has a turn, if the connection has several responses under way: after a change
/// those are the streams of all its watchers, and what they hand on leaves together.
async fn turns<C, E, S>(
    mut served: Pin<&mut C>,
    socket: &Socket<S>,
    activity: &Activity,
) -> Result<(), String>
where
    C: Future<Output = Result<(), E>>,
    E: std::error::Error,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut has_waited = false;
    std::future::poll_fn(|context| {
        if let Poll::Ready(result) = served.as_mut().poll(context) {
            return Poll::Ready(result.map_err(|error| error.to_string()));
        }
        let has_company = activity.requests.load(Ordering::Relaxed) > 1;
        has_waited = !has_waited && has_company && socket.has_written();
        if has_waited {
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
