//! A few HTTP/2 connections that many clients share, as behind the aggregator.

use std::sync::Arc;

use anyhow::{Context as _, Result, ensure};
use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::task::JoinHandle;

use crate::clients::{Protocol, RawClient};

/// Flow-control windows large enough that no watch or list waits for them.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;
/// The largest frame, for fewer reads of lists.
const FRAME_BYTES: u32 = 256 << 10;

/// One request.
#[derive(Clone, Debug)]
pub struct Call {
    /// The method.
    pub method: Method,
    /// Path and query.
    pub path: String,
    /// The media type of the body, if there is one.
    pub content_type: Option<&'static str>,
    /// The body.
    pub body: Bytes,
}

impl Call {
    /// GET.
    #[must_use]
    pub fn get(path: impl Into<String>) -> Self {
        Self {
            method: Method::GET,
            path: path.into(),
            content_type: None,
            body: Bytes::new(),
        }
    }

    /// POST of JSON.
    #[must_use]
    pub fn post(path: impl Into<String>, body: Bytes) -> Self {
        Self {
            method: Method::POST,
            path: path.into(),
            content_type: Some("application/json"),
            body,
        }
    }

    /// PATCH with a JSON merge patch.
    #[must_use]
    pub fn merge_patch(path: impl Into<String>, body: Bytes) -> Self {
        Self {
            method: Method::PATCH,
            path: path.into(),
            content_type: Some("application/merge-patch+json"),
            body,
        }
    }

    /// PATCH with a server-side apply of JSON, which is YAML too.
    #[must_use]
    pub fn apply(path: impl Into<String>, body: Bytes) -> Self {
        Self {
            content_type: Some("application/apply-patch+yaml"),
            ..Self::merge_patch(path, body)
        }
    }

    /// DELETE.
    #[must_use]
    pub fn delete(path: impl Into<String>) -> Self {
        Self {
            method: Method::DELETE,
            path: path.into(),
            content_type: None,
            body: Bytes::new(),
        }
    }
}

/// A response, read to its end.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status.
    pub status: StatusCode,
    /// The size of the body in bytes.
    pub size: usize,
    /// The start of the body, 64 KiB unless more was requested.
    pub start: Bytes,
}

impl Response {
    /// The part of a body that is kept.
    const KEPT_BYTES: usize = 64 << 10;

    /// Checks that the request succeeded.
    ///
    /// # Errors
    /// It did not; the message has the body.
    pub fn succeeded(self) -> Result<Self> {
        ensure!(
            self.status.is_success(),
            "{}: {}",
            self.status,
            String::from_utf8_lossy(&self.start)
        );
        Ok(self)
    }
}

/// HTTP/2 connections to one server. Dropping it closes them.
pub struct Pool {
    senders: Vec<Sender>,
    tasks: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Opens the connections.
    ///
    /// # Errors
    /// The client does not offer HTTP/2, or a connection or handshake fails.
    pub async fn open(client: &RawClient, connections: usize) -> Result<Self> {
        Self::open_with_window(client, connections, STREAM_WINDOW_BYTES).await
    }

    /// Opens connections with this flow-control window per stream: with a small one, a server soon waits for a slow
    /// reader.
    ///
    /// # Errors
    /// As for [`open`](Self::open).
    pub async fn open_with_window(client: &RawClient, connections: usize, window: u32) -> Result<Self> {
        ensure!(client.protocol() == Protocol::Http2, "load is sent over HTTP/2");
        let base: Arc<str> = format!("https://{}", client.address()).into();
        let mut pool = Self {
            senders: Vec::new(),
            tasks: Vec::new(),
        };
        for _ in 0..connections {
            let stream = client.open().await?;
            let (sender, connection) = Builder::new(TokioExecutor::new())
                .initial_stream_window_size(window)
                .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
                .max_frame_size(FRAME_BYTES)
                .handshake(TokioIo::new(stream))
                .await
                .context("start HTTP/2")?;
            pool.tasks.push(tokio::spawn(async { drop(connection.await) }));
            pool.senders.push(Sender {
                inner: sender,
                base: Arc::clone(&base),
            });
        }
        Ok(pool)
    }

    /// Whether all connections are open. Servers close connections that are idle for minutes.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.senders.iter().all(|sender| !sender.inner.is_closed())
    }

    /// The connection of client `number`.
    ///
    /// # Errors
    /// The pool is empty.
    pub fn sender(&self, number: usize) -> Result<Sender> {
        let index = number % self.senders.len().max(1);
        self.senders.get(index).cloned().context("a pool has connections")
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

/// A client's share of a connection.
#[derive(Clone)]
pub struct Sender {
    inner: SendRequest<Full<Bytes>>,
    base: Arc<str>,
}

impl Sender {
    /// Sends a request and reads the whole response.
    ///
    /// # Errors
    /// The connection is closed, or the response breaks off.
    pub async fn send(&mut self, call: Call) -> Result<Response> {
        self.send_keeping(call, Response::KEPT_BYTES).await
    }

    /// Sends a request and reads the whole response, of which the first `most` bytes are kept.
    ///
    /// # Errors
    /// As for [`send`](Self::send).
    pub async fn send_keeping(&mut self, call: Call, most: usize) -> Result<Response> {
        let (head, mut body) = self.stream(call).await?.into_parts();
        let (mut size, mut start) = (0, BytesMut::new());
        while let Some(frame) = body.frame().await {
            let frame = frame.context("read the body of the response")?;
            if let Some(data) = frame.data_ref() {
                size += data.len();
                let room = most.saturating_sub(start.len()).min(data.len());
                start.extend_from_slice(data.get(..room).unwrap_or_default());
            }
        }
        Ok(Response {
            status: head.status,
            size,
            start: start.freeze(),
        })
    }

    /// Sends a request and returns as soon as the head of the response has come.
    ///
    /// # Errors
    /// The connection is closed.
    pub async fn stream(&mut self, call: Call) -> Result<http::Response<Incoming>> {
        let mut request = Request::builder()
            .method(call.method)
            .uri(format!("{}{}", self.base, call.path))
            .header(ACCEPT, "application/json");
        if let Some(content_type) = call.content_type {
            request = request.header(CONTENT_TYPE, content_type);
        }
        let request = request
            .body(Full::new(call.body))
            .with_context(|| format!("{} is not a path", call.path))?;
        self.inner.ready().await.context("the connection is closed")?;
        self.inner.send_request(request).await.context("no response")
    }
}
