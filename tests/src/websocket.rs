//! A WebSocket client without a library, so that nothing that the server uses checks itself: the handshake as text, and the
//! frames byte by byte.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use http::HeaderMap;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

/// The time limit of a frame, enough for a busy machine.
const DEADLINE: Duration = Duration::from_secs(30);
/// The key of RFC 6455, and what the server must make of it.
const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// The header lines of a handshake as browsers send them.
pub const HANDSHAKE: [(&str, &str); 5] = [
    ("connection", "Upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", KEY),
    ("origin", "https://console.example.com"),
];

/// A frame of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// A text message.
    Text(String),
    /// A binary message.
    Binary(Vec<u8>),
    /// The answer to a ping.
    Pong(Vec<u8>),
    /// The end, with its code.
    Close(u16),
}

/// The response to a handshake that was refused.
#[derive(Debug)]
pub struct Refusal {
    /// The status.
    pub status: u16,
    /// The head and what came of the body with it.
    pub text: String,
}

/// A connection after its handshake.
pub struct WebSocket {
    stream: TlsStream<TcpStream>,
    /// The subprotocol that the server chose; empty for none.
    pub protocol: String,
}

impl WebSocket {
    /// Sends a handshake with these header lines.
    ///
    /// # Errors
    /// There is no response, or a 101 that does not fit the handshake.
    pub(crate) async fn connect(
        mut stream: TlsStream<TcpStream>,
        path: &str,
        own: &HeaderMap,
        lines: &[(&str, &str)],
    ) -> Result<Result<Self, Refusal>> {
        let mut head = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n");
        for (name, value) in own {
            write!(head, "{name}: {}\r\n", value.to_str().context("a header")?)?;
        }
        for (name, value) in lines {
            write!(head, "{name}: {value}\r\n")?;
        }
        head.push_str("\r\n");
        stream
            .write_all(head.as_bytes())
            .await
            .context("send the handshake")?;
        stream.flush().await.context("send the handshake")?;
        let mut response = Vec::new();
        while !response.ends_with(b"\r\n\r\n") {
            let byte = timeout(DEADLINE, stream.read_u8()).await.context("no response")?;
            response.push(byte.context("the response is incomplete")?);
        }
        let text = String::from_utf8_lossy(&response).into_owned();
        let status: u16 = text
            .split(' ')
            .nth(1)
            .and_then(|status| status.parse().ok())
            .with_context(|| format!("no status: {text}"))?;
        let header = |wanted: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(": "));
            let found = lines.find(|(name, _)| name.eq_ignore_ascii_case(wanted));
            found.map_or("", |(_, value)| value)
        };
        if status != 101 {
            let mut body = vec![0; 4096];
            // Only for messages.
            let count = timeout(Duration::from_secs(1), stream.read(&mut body)).await;
            let count = count.unwrap_or(Ok(0)).unwrap_or(0);
            let body = String::from_utf8_lossy(body.get(..count).unwrap_or_default()).into_owned();
            return Ok(Err(Refusal {
                status,
                text: text + &body,
            }));
        }
        ensure!(header("sec-websocket-accept") == ACCEPT, "{text}");
        ensure!(header("upgrade").eq_ignore_ascii_case("websocket"), "{text}");
        let protocol = header("sec-websocket-protocol").to_owned();
        Ok(Ok(Self { stream, protocol }))
    }

    /// The next frame.
    ///
    /// # Errors
    /// None comes within 30 s, the connection breaks off, or the frame is masked, fragmented or of an unknown type.
    pub async fn next(&mut self) -> Result<Frame> {
        timeout(DEADLINE, self.read()).await.context("no frame came")?
    }

    async fn read(&mut self) -> Result<Frame> {
        let [first, second] = self.take().await?;
        ensure!(first & 0xf0 == 0x80, "a fragment or an extension: {first:x}");
        let length = match second {
            126 => usize::from(u16::from_be_bytes(self.take().await?)),
            127 => usize::try_from(u64::from_be_bytes(self.take().await?))?,
            short => {
                ensure!(short < 126, "a masked frame");
                usize::from(short)
            }
        };
        let mut payload = vec![0; length];
        self.stream
            .read_exact(&mut payload)
            .await
            .context("the frame is incomplete")?;
        Ok(match first & 0xf {
            1 => Frame::Text(String::from_utf8(payload).context("text")?),
            2 => Frame::Binary(payload),
            8 => {
                let code = payload.first_chunk().context("a close frame without a code")?;
                Frame::Close(u16::from_be_bytes(*code))
            }
            10 => Frame::Pong(payload),
            other => bail!("a frame of type {other}"),
        })
    }

    async fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.stream
            .read_exact(&mut bytes)
            .await
            .context("the connection broke off")?;
        Ok(bytes)
    }

    /// The event of the next text message, which is one JSON document.
    ///
    /// # Errors
    /// As for [`next`](Self::next), or it is no such message.
    pub async fn event(&mut self) -> Result<Value> {
        match self.next().await? {
            Frame::Text(text) => serde_json::from_str(&text).with_context(|| text.clone()),
            other => bail!("not text: {other:?}"),
        }
    }

    /// Sends a frame of this type.
    ///
    /// # Errors
    /// The connection is closed.
    pub async fn send(&mut self, opcode: u8, payload: &[u8]) -> Result<()> {
        let length = u8::try_from(payload.len()).ok().filter(|length| *length < 126);
        let length = length.context("a short payload")?;
        // The mask is zero.
        let frame = [&[0x80 | opcode, 0x80 | length, 0, 0, 0, 0], payload].concat();
        self.stream.write_all(&frame).await.context("send a frame")?;
        self.stream.flush().await.context("send a frame")
    }

    /// Waits for the end of the connection.
    ///
    /// # Errors
    /// Something else comes, or nothing for 30 s.
    pub async fn ended(&mut self) -> Result<()> {
        let mut rest = [0; 1];
        let count = timeout(DEADLINE, self.stream.read(&mut rest))
            .await
            .context("no end")?;
        // A peer that closes without a TLS alert is an error here, and an end too.
        ensure!(count.unwrap_or(0) == 0, "more after the end: {rest:x?}");
        Ok(())
    }
}
