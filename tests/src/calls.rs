//! JSON calls and their responses, watches and their events.
//!
//! [`Caller`] sends requests as one user to one server; [`Watch`] reads a stream of events.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::Value;
use tokio::time::timeout;

use crate::clients::{Connection, Protocol, RawClient};
use crate::lines::Lines;
use crate::websocket::{Refusal, WebSocket};

/// The timeout of an event, enough for a busy machine.
const EVENT_DEADLINE: Duration = Duration::from_secs(30);

/// The media type of an RFC 7386 merge patch.
pub const MERGE_PATCH: &str = "application/merge-patch+json";
/// The media type of an RFC 6902 JSON patch.
pub const JSON_PATCH: &str = "application/json-patch+json";
/// The media type of Kubernetes' own merge patch.
pub const STRATEGIC_PATCH: &str = "application/strategic-merge-patch+json";
/// The media type of server-side apply.
pub const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// A client of one server. Every call has a connection of its own.
#[derive(Clone)]
pub struct Caller {
    client: RawClient,
    headers: HeaderMap,
}

impl Caller {
    /// A caller with the client's certificate.
    #[must_use]
    pub fn new(client: RawClient) -> Self {
        Self {
            client,
            headers: HeaderMap::new(),
        }
    }

    /// The protocol of its connections.
    #[must_use]
    pub fn protocol(&self) -> Protocol {
        self.client.protocol()
    }

    /// Adds a header to every request; a repeated name is sent as another line.
    ///
    /// # Errors
    /// It is not a header.
    pub fn with_header(mut self, name: &str, value: &str) -> Result<Self> {
        let name: HeaderName = name.parse().with_context(|| format!("{name} is not a header"))?;
        // Bytes, since user names are UTF-8.
        let value = HeaderValue::from_bytes(value.as_bytes())
            .with_context(|| format!("{value:?} is not a header value"))?;
        self.headers.append(name, value);
        Ok(self)
    }

    /// Sends a body of a media type; an empty media type sends none.
    ///
    /// # Errors
    /// There is no response.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        media_type: &str,
        body: impl Into<Bytes>,
    ) -> Result<Response> {
        let request = self.request(method.clone(), path, media_type, body)?;
        let response = self
            .client
            .send(request)
            .await
            .with_context(|| format!("{method} {path}"))?;
        let (head, body) = response.into_parts();
        Ok(Response {
            what: format!("{method} {path}"),
            status: head.status.as_u16(),
            headers: head.headers,
            body,
        })
    }

    /// GET.
    ///
    /// # Errors
    /// There is no response.
    pub async fn get(&self, path: &str) -> Result<Response> {
        self.call(Method::GET, path, "", Bytes::new()).await
    }

    /// POST of a JSON body.
    ///
    /// # Errors
    /// There is no response.
    pub async fn post(&self, path: &str, body: &Value) -> Result<Response> {
        self.call(Method::POST, path, "application/json", body.to_string())
            .await
    }

    /// PUT of a JSON body.
    ///
    /// # Errors
    /// There is no response.
    pub async fn put(&self, path: &str, body: &Value) -> Result<Response> {
        self.call(Method::PUT, path, "application/json", body.to_string())
            .await
    }

    /// PATCH of one of the four media types.
    ///
    /// # Errors
    /// There is no response.
    pub async fn patch(&self, path: &str, media_type: &str, body: &Value) -> Result<Response> {
        self.call(Method::PATCH, path, media_type, body.to_string()).await
    }

    /// DELETE without a body.
    ///
    /// # Errors
    /// There is no response.
    pub async fn delete(&self, path: &str) -> Result<Response> {
        self.call(Method::DELETE, path, "", Bytes::new()).await
    }

    /// DELETE with options in a JSON body.
    ///
    /// # Errors
    /// There is no response.
    pub async fn delete_with(&self, path: &str, options: &Value) -> Result<Response> {
        self.call(Method::DELETE, path, "application/json", options.to_string())
            .await
    }

    /// Starts a watch; the path has its parameters.
    ///
    /// # Errors
    /// The response is not a 200.
    pub async fn watch(&self, path: &str) -> Result<Watch> {
        let mut connection = self.client.connect().await?;
        let response = connection
            .stream(self.request(Method::GET, path, "", Bytes::new())?)
            .await?;
        let (head, body) = response.into_parts();
        if head.status != 200 {
            let text = body.collect().await.context("read the error")?.to_bytes();
            bail!("GET {path}: {}: {}", head.status, String::from_utf8_lossy(&text));
        }
        Ok(Watch {
            _connection: connection,
            headers: head.headers,
            lines: Lines::new(body),
        })
    }

    /// Starts a response and returns its media type and its body.
    ///
    /// # Errors
    /// The response is not a 200.
    pub async fn stream(&self, path: &str) -> Result<(String, Incoming)> {
        let request = self.request(Method::GET, path, "", Bytes::new())?;
        let mut connection = self.client.connect().await?;
        let response = connection.stream(request).await?;
        ensure!(response.status() == 200, "GET {path}: {}", response.status());
        let media_type = response.headers().get(CONTENT_TYPE);
        let media_type = media_type
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let media_type = media_type.to_owned();
        connection.detach();
        Ok((media_type, response.into_body()))
    }

    /// Sends a handshake of a WebSocket with these header lines besides the caller's own, always over HTTP/1.1.
    ///
    /// # Errors
    /// There is no response.
    pub async fn websocket(&self, path: &str, lines: &[(&str, &str)]) -> Result<Result<WebSocket, Refusal>> {
        let stream = self.client.over_http1().open().await?;
        WebSocket::connect(stream, path, &self.headers, lines).await
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        media_type: &str,
        body: impl Into<Bytes>,
    ) -> Result<Request<Bytes>> {
        let mut request = Request::new(body.into());
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().with_context(|| format!("{path} is not a path"))?;
        request.headers_mut().extend(self.headers.clone());
        if !media_type.is_empty() {
            request
                .headers_mut()
                .insert(CONTENT_TYPE, media_type.parse().context("a media type")?);
        }
        Ok(request)
    }
}

/// A response.
#[derive(Clone, Debug)]
pub struct Response {
    /// The request, for messages.
    pub what: String,
    /// The HTTP status.
    pub status: u16,
    /// The head.
    pub headers: HeaderMap,
    /// The whole body.
    pub body: Bytes,
}

impl Response {
    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON.
    ///
    /// # Errors
    /// It is not JSON.
    pub fn json(&self) -> Result<Value> {
        serde_json::from_slice(&self.body)
            .with_context(|| format!("{}: {} {}", self.what, self.status, self.text()))
    }

    /// The body of a response that must have this status.
    ///
    /// # Errors
    /// It has another status, or its body is not JSON; the message has the body.
    pub fn expect(&self, status: u16) -> Result<Value> {
        ensure!(
            self.status == status,
            "{}: expected {status}, got {}: {}",
            self.what,
            self.status,
            self.text()
        );
        self.json()
    }

    /// Checks an error: a Status of this code and reason, with exactly this message.
    ///
    /// # Errors
    /// It is another response; the message has both.
    pub fn expect_error(&self, code: u16, reason: &str, message: &str) -> Result<Value> {
        let status = self.expect(code)?;
        let text = |member: &str| status.get(member).and_then(Value::as_str).unwrap_or_default();
        ensure!(
            (text("kind"), text("reason"), text("message")) == ("Status", reason, message)
                && status.get("code") == Some(&code.into()),
            "{}: expected {reason} {message:?}, got {status}",
            self.what
        );
        Ok(status)
    }

    /// The server's time, from the `date` header, in the format of objects: tests have no clock of their own.
    ///
    /// # Errors
    /// There is no such header.
    pub fn time(&self) -> Result<String> {
        const MONTHS: [&str; 12] = [
            "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
        ];
        // Sat, 28 Nov 2026 01:00:00 GMT
        let date = self.header("date");
        let parts: Vec<_> = date.split_whitespace().collect();
        let [_, day, month, year, time, _] = parts.as_slice() else {
            bail!("{}: {date:?} is not a date", self.what);
        };
        let month = MONTHS.iter().position(|it| it == month).context("a month")? + 1;
        Ok(format!("{year}-{month:02}-{day}T{time}Z"))
    }

    /// A header's value, or the empty string.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers
            .get(name)
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default()
    }
}

/// A stream of events. Dropping it closes its connection.
pub struct Watch {
    _connection: Connection,
    /// The headers of the response.
    pub headers: HeaderMap,
    /// The lines of the body.
    pub lines: Lines,
}

impl Watch {
    /// The next event, `None` at the clean end of the stream. Every event is one line.
    ///
    /// # Errors
    /// The stream breaks off, no event comes for 30 s, or it is not JSON.
    pub async fn next(&mut self) -> Result<Option<Value>> {
        let Some(line) = timeout(EVENT_DEADLINE, self.lines.next())
            .await
            .context("no event came")??
        else {
            return Ok(None);
        };
        let event = serde_json::from_slice(&line)
            .with_context(|| format!("not an event: {}", String::from_utf8_lossy(&line)))?;
        Ok(Some(event))
    }

    /// The next event; the stream must not end.
    ///
    /// # Errors
    /// As for [`next`](Self::next), or the stream ended.
    pub async fn event(&mut self) -> Result<Value> {
        self.next().await?.context("the watch ended")
    }

    /// The next event's type and its object's name.
    ///
    /// # Errors
    /// As for [`event`](Self::event).
    pub async fn type_and_name(&mut self) -> Result<(String, String)> {
        let event = self.event().await?;
        let text = |pointer: &str| {
            let value = event.pointer(pointer).and_then(Value::as_str);
            value.unwrap_or_default().to_owned()
        };
        Ok((text("/type"), text("/object/metadata/name")))
    }
}
