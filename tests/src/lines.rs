//! How is a watch's body read, event by event?

use anyhow::{Context as _, Result, ensure};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

/// The lines of a body that has not ended yet: every event is one.
pub struct Lines {
    body: Incoming,
    read: BytesMut,
    /// How much of what was read has no end of a line in it.
    searched: usize,
}

impl Lines {
    /// Of a body from its start.
    #[must_use]
    pub fn new(body: Incoming) -> Self {
        Self {
            body,
            read: BytesMut::new(),
            searched: 0,
        }
    }

    /// The next line with its end, `None` at the clean end of the body. Dropping the future loses nothing.
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

    /// The next line, if it has come already.
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
