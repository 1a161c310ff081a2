//! WebSocket: the handshake of a request, and the messages of a connection that was upgraded.
//!
//! A handler answers a request for an upgrade with the response of [`Handshake::response`]; each chunk of its body becomes
//! a message. The connection is served by [`run`] until the body ends or the client closes it. Rules and texts of the
//! handshake are those of kube-apiserver.

use std::io;
use std::time::Duration;

use aws_lc_rs::digest;
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use bytes::Bytes;
use drydock_machinery::websocket::{Closed, Framing, Session};
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body::Body as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use super::body::{ResponseBody, Truncated};
use super::outgoing::READ_TIMEOUT;
use crate::error::ApiError;

/// The only version of the protocol.
const VERSION: &str = "13";
/// The constant of RFC 6455 that proves the handshake was understood.
const KEY_SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Bytes that are read at once. Clients send only control frames.
const READ_BYTES: usize = 2048;
/// Messages are sent together up to this size, in bytes.
const BATCH_BYTES: usize = 64 * 1024;
/// How long the client may take to answer a close frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether a request asks for an upgrade to WebSocket.
#[must_use]
pub fn is_upgrade(headers: &HeaderMap) -> bool {
    let text = |name| {
        headers
            .get(name)
            .and_then(|value: &HeaderValue| value.to_str().ok())
    };
    text(header::UPGRADE).is_some_and(|value| value.eq_ignore_ascii_case("websocket"))
        && text(header::CONNECTION).is_some_and(|value| {
            value
                .split(',')
                .any(|token| token.trim().eq_ignore_ascii_case("upgrade"))
        })
}

/// A handshake that can be accepted.
#[derive(Debug)]
pub struct Handshake {
    accept: HeaderValue,
    protocol: Option<HeaderValue>,
}

impl Handshake {
    /// Checks the handshake of a request; `None` if it asks for no upgrade to WebSocket.
    ///
    /// # Errors
    /// 400 without a key, for another version, and for several subprotocols, of which none could be chosen; 403 for an
    /// `Origin` that is missing or not a URL.
    pub fn of(headers: &HeaderMap) -> Result<Option<Self>, ApiError> {
        if !is_upgrade(headers) {
            return Ok(None);
        }
        let text = |name| {
            let value = headers
                .get(name)
                .and_then(|value: &HeaderValue| value.to_str().ok());
            value.unwrap_or_default().trim()
        };
        let key = text(header::SEC_WEBSOCKET_KEY);
        if key.is_empty() {
            return Err(ApiError::bad_request("mismatch challenge/response"));
        }
        if text(header::SEC_WEBSOCKET_VERSION) != VERSION {
            return Err(ApiError::bad_request("missing or bad WebSocket Version"));
        }
        if !is_url(text(header::ORIGIN)) {
            return Err(ApiError::forbidden_origin());
        }
        let protocol = text(header::SEC_WEBSOCKET_PROTOCOL);
        if protocol.contains(',') {
            return Err(ApiError::bad_request("missing or bad WebSocket-Protocol"));
        }
        let proof = [key.as_bytes(), KEY_SUFFIX].concat();
        let proof = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &proof);
        let accept = HeaderValue::try_from(STANDARD.encode(proof))
            .map_err(|error| ApiError::internal("the handshake failed").because(error))?;
        Ok(Some(Self {
            accept,
            protocol: HeaderValue::try_from(protocol)
                .ok()
                .filter(|name| !name.is_empty()),
        }))
    }

    /// The response that accepts the handshake. Each chunk of `messages` becomes a message.
    #[must_use]
    pub fn response(self, messages: ResponseBody, framing: Framing) -> Response<ResponseBody> {
        let mut response = Response::new(messages);
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.extensions_mut().insert(framing);
        let headers = response.headers_mut();
        headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
        headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, self.accept);
        if let Some(protocol) = self.protocol {
            headers.insert(header::SEC_WEBSOCKET_PROTOCOL, protocol);
        }
        response
    }
}

/// The prefix of the subprotocol that carries a bearer token, since browsers cannot set `Authorization` here.
const TOKEN_PROTOCOL: &str = "base64url.bearer.authorization.k8s.io.";

/// Removes the bearer token from the subprotocols of an upgrade, and returns it.
///
/// # Errors
/// Several tokens, one that is not text in unpadded base64url, and one without a subprotocol beside it.
pub fn take_token(headers: &mut HeaderMap) -> Result<Option<String>, &'static str> {
    if !is_upgrade(headers) || !headers.contains_key(header::SEC_WEBSOCKET_PROTOCOL) {
        return Ok(None);
    }
    let (mut tokens, mut others) = (Vec::new(), Vec::new());
    for line in headers.get_all(header::SEC_WEBSOCKET_PROTOCOL) {
        for protocol in line.to_str().unwrap_or_default().split(',').map(str::trim) {
            match protocol.strip_prefix(TOKEN_PROTOCOL) {
                Some(token) => tokens.push(token.to_owned()),
                None => others.push(protocol.to_owned()),
            }
        }
    }
    let encoded = match tokens.as_slice() {
        [] => return Ok(None),
        [one] => one,
        _ => return Err("multiple base64.bearer.authorization tokens specified"),
    };
    let decoded = URL_SAFE_NO_PAD
        .decode(encoded)
        .map_err(|_| "invalid base64.bearer.authorization token encoding")?;
    let token = String::from_utf8(decoded).map_err(|_| "invalid base64.bearer.authorization token")?;
    let rest = HeaderValue::try_from(others.join(", ")).map_err(|_| "invalid subprotocols")?;
    headers.remove(header::SEC_WEBSOCKET_PROTOCOL);
    if rest.is_empty() {
        return Err("missing additional subprotocol");
    }
    headers.insert(header::SEC_WEBSOCKET_PROTOCOL, rest);
    Ok((!token.is_empty()).then_some(token))
}

/// Whether a text is a URL as a request line may hold it: absolute, or an absolute path.
fn is_url(text: &str) -> bool {
    let is_scheme = |scheme: &str| {
        scheme.starts_with(|first: char| first.is_ascii_alphabetic())
            && scheme
                .chars()
                .all(|other| other.is_ascii_alphanumeric() || "+-.".contains(other))
    };
    text.starts_with('/')
        || text
            .split_once(':')
            .is_some_and(|(scheme, rest)| is_scheme(scheme) && !rest.is_empty())
}

/// The messages of an accepted handshake, until its connection is ready for them.
#[derive(Debug)]
pub(super) struct Messages {
    pub(super) body: ResponseBody,
    pub(super) framing: Framing,
}

/// Takes the messages out of a response that switches protocols.
pub(super) fn take_messages(response: Response<ResponseBody>) -> (Response<ResponseBody>, Option<Messages>) {
    if response.status() != StatusCode::SWITCHING_PROTOCOLS {
        return (response, None);
    }
    let (mut parts, body) = response.into_parts();
    let framing = parts.extensions.remove::<Framing>().unwrap_or(Framing::Text);
    let messages = Messages { body, framing };
    (Response::from_parts(parts, ResponseBody::empty()), Some(messages))
}

/// Why a connection ended before its messages did.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error(transparent)]
    Session(#[from] Closed),
    #[error("the connection broke off")]
    Io(#[from] io::Error),
    #[error("the client stopped reading")]
    Stalled,
}

/// Sends messages until they end or the client closes the connection, and closes it.
pub(super) async fn run<S: AsyncRead + AsyncWrite + Unpin>(mut stream: S, messages: Messages) {
    let mut session = Session::new();
    match exchange(&mut stream, &mut session, messages).await {
        Ok(is_normal) => session.close(is_normal),
        Err(Ended::Session(_)) => {}
        Err(error) => {
            tracing::debug!(%error, "WebSocket connection ended");
            return;
        }
    }
    let closing = async {
        send(&mut stream, &mut session).await?;
        let mut buffer = vec![0; READ_BYTES];
        loop {
            let count = stream.read(&mut buffer).await?;
            let received = buffer.get(..count).unwrap_or_default();
            if count == 0 || session.receive(received).is_err() {
                return stream.shutdown().await.map_err(Ended::from);
            }
        }
    };
    if !matches!(timeout(CLOSE_TIMEOUT, closing).await, Ok(Ok(()))) {
        tracing::debug!("the client did not answer the close frame");
    }
}

/// Sends messages. Returns whether they ended normally.
async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    session: &mut Session,
    Messages { mut body, framing }: Messages,
) -> Result<bool, Ended> {
    let mut buffer = vec![0; READ_BYTES];
    loop {
        tokio::select! {
            count = stream.read(&mut buffer) => {
                let received = buffer.get(..count?).unwrap_or_default();
                if received.is_empty() {
                    return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
                }
                let result = session.receive(received);
                send(stream, session).await?;
                result?;
            }
            message = next(&mut body) => {
                let mut message = message;
                loop {
                    match message {
                        None => return Ok(true),
                        Some(Err(_)) => return Ok(false),
                        Some(Ok(bytes)) => session.send(bytes, framing)?,
                    }
                    if session.outgoing_bytes() >= BATCH_BYTES {
                        break;
                    }
                    match next(&mut body).now_or_never() {
                        Some(following) => message = following,
                        None => break,
                    }
                }
                send(stream, session).await?;
            }
        }
    }
}

async fn next(body: &mut ResponseBody) -> Option<Result<Bytes, Truncated>> {
    let frame = std::future::poll_fn(|context| std::pin::Pin::new(&mut *body).poll_frame(context)).await?;
    Some(frame.map(|frame| frame.into_data().unwrap_or_default()))
}

/// Sends what the session has to send. A client that reads nothing for long is disconnected.
async fn send<S: AsyncWrite + Unpin>(stream: &mut S, session: &mut Session) -> Result<(), Ended> {
    let bytes = session.take_outgoing();
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        match timeout(READ_TIMEOUT, stream.write(rest)).await {
            Err(_) => return Err(Ended::Stalled),
            Ok(Ok(0)) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
            Ok(written) => rest = rest.get(written?..).unwrap_or_default(),
        }
    }
    match timeout(READ_TIMEOUT, stream.flush()).await {
        Err(_) => Err(Ended::Stalled),
        Ok(flushed) => Ok(flushed?),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::{StreamExt as _, stream};
    use tokio::io::DuplexStream;

    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    const UPGRADE: (&str, &str) = ("upgrade", "WebSocket");
    const CONNECTION: (&str, &str) = ("connection", "keep-alive, Upgrade");
    const KEY: (&str, &str) = ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==");
    const V13: (&str, &str) = ("sec-websocket-version", "13");
    const ORIGIN: (&str, &str) = ("origin", "https://console.example.com");

    #[test]
    fn the_handshake_of_the_rfc_is_accepted() {
        let headers = headers(&[
            UPGRADE,
            CONNECTION,
            KEY,
            V13,
            ORIGIN,
            ("sec-websocket-protocol", "base64.binary.k8s.io"),
        ]);
        let handshake = Handshake::of(&headers).unwrap().unwrap();
        let response = handshake.response(ResponseBody::empty(), Framing::Binary);
        assert_eq!(response.status(), 101);
        assert_eq!(
            response.headers()["sec-websocket-accept"],
            "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        );
        assert_eq!(
            response.headers()["sec-websocket-protocol"],
            "base64.binary.k8s.io"
        );
        assert_eq!(take_messages(response).1.unwrap().framing, Framing::Binary);
    }

    #[test]
    fn other_handshakes_are_refused() {
        let code = |lines: &[(&'static str, &'static str)]| {
            Handshake::of(&headers(lines)).map_err(|error| error.code().as_u16())
        };
        for lines in [
            vec![CONNECTION, KEY, V13, ORIGIN],
            vec![UPGRADE, KEY, V13],
            vec![("upgrade", "h2c"), CONNECTION],
        ] {
            assert!(matches!(code(&lines), Ok(None)), "{lines:?}");
        }
        for (lines, expected) in [
            (vec![UPGRADE, CONNECTION, V13, ORIGIN], 400),
            (vec![UPGRADE, CONNECTION, KEY, ORIGIN], 400),
            (
                vec![UPGRADE, CONNECTION, KEY, ("sec-websocket-version", "8"), ORIGIN],
                400,
            ),
            (vec![UPGRADE, CONNECTION, KEY, V13], 403),
            (vec![UPGRADE, CONNECTION, KEY, V13, ("origin", "null")], 403),
            (
                vec![
                    UPGRADE,
                    CONNECTION,
                    KEY,
                    V13,
                    ORIGIN,
                    ("sec-websocket-protocol", "a, b"),
                ],
                400,
            ),
        ] {
            assert_eq!(code(&lines).unwrap_err(), expected, "{lines:?}");
        }
    }

    #[test]
    fn a_token_is_taken_out_of_the_subprotocols() {
        let take = |protocol: &'static str| {
            let mut headers = headers(&[UPGRADE, CONNECTION, ("sec-websocket-protocol", protocol)]);
            let token = take_token(&mut headers);
            let rest = headers.get("sec-websocket-protocol").cloned();
            (token, rest)
        };
        let (token, rest) = take("base64url.bearer.authorization.k8s.io.c2VjcmV0, base64.binary.k8s.io");
        assert_eq!(token, Ok(Some("secret".to_owned())));
        assert_eq!(rest.unwrap(), "base64.binary.k8s.io");
        assert_eq!(take("base64.binary.k8s.io").0, Ok(None));
        for protocol in [
            "base64url.bearer.authorization.k8s.io.c2VjcmV0",
            "a, base64url.bearer.authorization.k8s.io.???",
            "a, base64url.bearer.authorization.k8s.io._w",
            "base64url.bearer.authorization.k8s.io.YQ, base64url.bearer.authorization.k8s.io.YQ, a",
        ] {
            assert!(take(protocol).0.is_err(), "{protocol}");
        }
    }

    fn messages(body: ResponseBody) -> Messages {
        Messages {
            body,
            framing: Framing::Text,
        }
    }

    async fn read(client: &mut DuplexStream, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        client.read_exact(&mut bytes).await.unwrap();
        bytes
    }

    #[tokio::test(start_paused = true)]
    async fn messages_end_with_a_close_frame() {
        let (mut client, server) = tokio::io::duplex(1024);
        let body = ResponseBody::stream(stream::iter([Bytes::from("a"), Bytes::from("b")]));
        let running = tokio::spawn(run(server, messages(body)));
        assert_eq!(read(&mut client, 10).await, b"\x81\x01a\x81\x01b\x88\x02\x03\xe8");
        client.write_all(b"\x88\x82\0\0\0\0\x03\xe8").await.unwrap();
        assert_eq!(client.read(&mut [0; 1]).await.unwrap(), 0);
        running.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn the_messages_are_dropped_when_the_client_closes_or_disconnects() {
        for closes in [true, false] {
            let (mut client, server) = tokio::io::duplex(1024);
            let held = Arc::new(());
            let body = ResponseBody::stream(stream::pending()).holding(Arc::clone(&held));
            let running = tokio::spawn(run(server, messages(body)));
            if closes {
                client.write_all(b"\x88\x82\0\0\0\0\x03\xe8").await.unwrap();
                assert_eq!(read(&mut client, 4).await, b"\x88\x02\x03\xe8");
            }
            drop(client);
            running.await.unwrap();
            assert_eq!(Arc::strong_count(&held), 1);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_disconnected() {
        let (_client, server) = tokio::io::duplex(1024);
        let body = ResponseBody::stream(stream::repeat(Bytes::from(vec![b'x'; 500])));
        let before = tokio::time::Instant::now();
        run(server, messages(body)).await;
        assert_eq!(before.elapsed(), READ_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_answer_the_close_frame_is_disconnected() {
        let (_client, server) = tokio::io::duplex(1024);
        let before = tokio::time::Instant::now();
        run(server, messages(ResponseBody::stream(stream::empty()))).await;
        assert_eq!(before.elapsed(), CLOSE_TIMEOUT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_truncated_body_ends_with_the_code_of_a_failure() {
        let (mut client, server) = tokio::io::duplex(1024);
        let body = stream::iter([Err(Truncated("gone"))]).chain(stream::pending());
        let running = tokio::spawn(run(server, messages(ResponseBody::abortable_stream(body))));
        assert_eq!(read(&mut client, 4).await, b"\x88\x02\x03\xf3");
        drop(client);
        running.await.unwrap();
    }
}
