//! The frames of a WebSocket connection (RFC 6455), on the side of the server: messages go out, and of what the client
//! sends only control frames matter.
//!
//! No I/O: received bytes are passed in, and bytes to send are taken out. What a client sends is bounded by
//! [`MAX_INCOMING_BYTES`] and never kept.

use std::io::{self, Read, Write};

use bytes::Bytes;
use tungstenite::protocol::frame::CloseFrame;
use tungstenite::protocol::frame::coding::CloseCode;
use tungstenite::protocol::{Role, WebSocketConfig};
use tungstenite::{Error, Message, Utf8Bytes, WebSocket};

/// The largest message a client may send, in bytes. Watches expect none.
pub const MAX_INCOMING_BYTES: usize = 64 * 1024;
/// The initial size of the receive buffer, in bytes.
const RECEIVE_BYTES: usize = 4 * 1024;

/// How messages are framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Framing {
    /// Text frames, for JSON.
    Text,
    /// Binary frames.
    Binary,
}

/// The connection has ended: nothing more can be sent or received.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    /// Both sides have sent a close frame.
    #[error("the WebSocket connection is closed")]
    Cleanly,
    /// The client broke the protocol.
    #[error("the client broke the WebSocket protocol: {0}")]
    Broken(String),
    /// A message for text frames is not UTF-8.
    #[error("a message is not UTF-8")]
    NotText,
}

/// A connection after its handshake.
#[derive(Debug)]
pub struct Session(WebSocket<Buffers>);

/// Bytes between the frames and the network.
#[derive(Debug, Default)]
struct Buffers {
    incoming: Vec<u8>,
    outgoing: Vec<u8>,
}

impl Read for Buffers {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.incoming.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut rest = self.incoming.as_slice();
        let count = rest.read(buffer)?;
        self.incoming.drain(..count);
        Ok(count)
    }
}

impl Write for Buffers {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.outgoing.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Default for Session {
    fn default() -> Self {
        Self::new()
    }
}

impl Session {
    /// A connection on which nothing was sent yet.
    #[must_use]
    pub fn new() -> Self {
        let config = WebSocketConfig::default()
            .read_buffer_size(RECEIVE_BYTES)
            .write_buffer_size(0)
            .max_message_size(Some(MAX_INCOMING_BYTES))
            .max_frame_size(Some(MAX_INCOMING_BYTES));
        Self(WebSocket::from_raw_socket(
            Buffers::default(),
            Role::Server,
            Some(config),
        ))
    }

    /// Handles bytes of the client: pings and close frames are answered, messages are dropped.
    ///
    /// # Errors
    /// The client closed the connection, or broke the protocol; [`Self::take_outgoing`] may hold the answer.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), Closed> {
        self.0.get_mut().incoming.extend_from_slice(bytes);
        loop {
            match self.0.read() {
                Ok(Message::Close(_)) => {
                    self.flush()?;
                    return Err(Closed::Cleanly);
                }
                Ok(_) => {}
                Err(Error::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => return self.flush(),
                Err(error) => return Err(closed(&error)),
            }
        }
    }

    /// Adds a message to the outgoing bytes.
    ///
    /// # Errors
    /// [`Closed`]: after a close frame, and for text that is not UTF-8.
    pub fn send(&mut self, message: Bytes, framing: Framing) -> Result<(), Closed> {
        let message = match framing {
            Framing::Text => Message::Text(Utf8Bytes::try_from(message).map_err(|_| Closed::NotText)?),
            Framing::Binary => Message::Binary(message),
        };
        self.0.write(message).map_err(|error| closed(&error))
    }

    /// Adds a close frame: normal, or with the code of a failure of the server.
    pub fn close(&mut self, is_normal: bool) {
        let code = if is_normal {
            CloseCode::Normal
        } else {
            CloseCode::Error
        };
        let frame = CloseFrame {
            code,
            reason: Utf8Bytes::default(),
        };
        // Fails only if the connection is closed already.
        let _already_closed = self.0.close(Some(frame)).is_err();
    }

    /// The bytes to send, which are then forgotten.
    #[must_use]
    pub fn take_outgoing(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0.get_mut().outgoing)
    }

    /// How many bytes are to be sent.
    #[must_use]
    pub fn outgoing_bytes(&self) -> usize {
        self.0.get_ref().outgoing.len()
    }

    fn flush(&mut self) -> Result<(), Closed> {
        match self.0.flush() {
            Ok(()) | Err(Error::ConnectionClosed) => Ok(()),
            Err(error) => Err(closed(&error)),
        }
    }
}

fn closed(error: &Error) -> Closed {
    match error {
        Error::ConnectionClosed | Error::AlreadyClosed => Closed::Cleanly,
        other => Closed::Broken(other.to_string()),
    }
}

/// Fuzz target: no bytes of a client may panic, or cost more than a small multiple of their length.
///
/// # Panics
/// If the answer is much longer than the input, which is a bug.
pub fn fuzz_receive(bytes: &[u8]) {
    let mut session = Session::new();
    for part in bytes.chunks(7) {
        if session.receive(part).is_err() {
            break;
        }
    }
    let sent = session.send(Bytes::from_static(b"{}\n"), Framing::Text);
    session.close(sent.is_ok());
    assert!(session.take_outgoing().len() <= 2 * bytes.len() + 256);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A frame of a client, whose mask is zero.
    fn frame(opcode: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0x80 | opcode];
        match payload.len() {
            length @ 0..126 => frame.push(0x80 | u8::try_from(length).unwrap()),
            length @ 126..65_536 => {
                frame.push(0xfe);
                frame.extend(u16::try_from(length).unwrap().to_be_bytes());
            }
            length => {
                frame.push(0xff);
                frame.extend((length as u64).to_be_bytes());
            }
        }
        frame.extend([0; 4]);
        frame.extend_from_slice(payload);
        frame
    }

    #[test]
    fn messages_are_one_frame_each() {
        let mut session = Session::new();
        session
            .send(Bytes::from_static(b"{\"a\":1}\n"), Framing::Text)
            .unwrap();
        assert_eq!(session.take_outgoing(), b"\x81\x08{\"a\":1}\n");
        session
            .send(Bytes::from_static(b"\xff"), Framing::Binary)
            .unwrap();
        assert_eq!(session.take_outgoing(), b"\x82\x01\xff");
        assert_eq!(
            session.send(Bytes::from_static(b"\xff"), Framing::Text),
            Err(Closed::NotText)
        );
        let large = Bytes::from(vec![b'x'; 70_000]);
        session.send(large, Framing::Text).unwrap();
        assert_eq!(session.outgoing_bytes(), 70_000 + 10);
    }

    #[test]
    fn pings_are_answered_and_messages_are_dropped() {
        let mut session = Session::new();
        let received = [frame(1, b"hello"), frame(9, b"p"), frame(2, &[0; 1000])].concat();
        for byte in received {
            session.receive(&[byte]).unwrap();
        }
        assert_eq!(session.take_outgoing(), b"\x8a\x01p");
    }

    #[test]
    fn a_close_frame_of_the_client_is_answered() {
        let mut session = Session::new();
        assert_eq!(session.receive(&frame(8, b"\x03\xe8")), Err(Closed::Cleanly));
        assert_eq!(session.take_outgoing(), b"\x88\x02\x03\xe8");
        assert!(session.send(Bytes::new(), Framing::Text).is_err());
    }

    #[test]
    fn the_server_closes_and_waits_for_the_answer() {
        let mut session = Session::new();
        session.close(true);
        assert_eq!(session.take_outgoing(), b"\x88\x02\x03\xe8");
        assert_eq!(session.receive(&frame(1, b"late")), Ok(()));
        assert_eq!(session.receive(&frame(8, b"\x03\xe8")), Err(Closed::Cleanly));
        let mut session = Session::new();
        session.close(false);
        assert_eq!(session.take_outgoing(), b"\x88\x02\x03\xf3");
    }

    #[test]
    fn broken_and_large_frames_end_the_connection() {
        for bytes in [
            b"\x81\x05hello".to_vec(),
            vec![0xf1, 0x80, 0, 0, 0, 0],
            b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            frame(2, &vec![0; MAX_INCOMING_BYTES + 1]),
            [&[0x82, 0xff][..], &u64::MAX.to_be_bytes(), &[0; 4]].concat(),
        ] {
            let mut session = Session::new();
            assert!(matches!(session.receive(&bytes), Err(Closed::Broken(_))));
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            fuzz_receive(&bytes);
        }
    }
}
