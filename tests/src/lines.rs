//! The lines of a watch's body.

use anyhow::{Context as _, Result, ensure};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

/// The lines of a streamed body; every event is one line.
pub struct Lines {
    body: Incoming,
    read: BytesMut,
    /// The length of the read part that contains no newline.
    searched: usize,
}

impl Lines {
    /// Starts at the beginning of a body.
    #[must_use]
    pub fn new(body: Incoming) -> Self {
        Self {
            body,
            read: BytesMut::new(),
            searched: 0,
        }
    }

    /// The next line with its newline, `None` at the clean end of the body. Dropping the future loses no data.
    ///
    /// # Errors
    /// The body breaks off, or ends within a line.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        loop {
            if let Some(line) = self.take() {
                return Ok(Some(line));
            }
            let Some(frame) = self.body.frame().await else {
                ensure!(
                    self.read.is_empty(),
                    "the stream ended within an event: {}",
                    String::from_utf8_lossy(&self.read)
                );
                return Ok(None);
            };
            if let Ok(data) = frame.context("the stream broke off")?.into_data() {
                self.read.extend_from_slice(&data);
            }
        }
    }

    /// The next line, if it has been received.
    pub fn take(&mut self) -> Option<Bytes> {
        let unsearched = self.read.get(self.searched..).unwrap_or_default();
        let end = unsearched.iter().position(|byte| *byte == b'\n');
        let Some(end) = end else {
            self.searched = self.read.len();
            return None;
        };
        let line = self.read.split_to(self.searched + end + 1).freeze();
        self.searched = 0;
        Some(line)
    }
}
