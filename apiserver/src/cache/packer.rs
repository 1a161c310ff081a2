//! Joins frames into buffers for the socket.

use bytes::{Bytes, BytesMut};

/// Frames are packed into buffers of this size; only a single larger frame makes a larger one.
pub(super) const BUFFER: usize = 64 << 10;

/// Joins frames. A single frame is passed on without a copy.
#[derive(Default)]
pub(super) struct Packer {
    single: Option<Bytes>,
    joined: BytesMut,
}

impl Packer {
    /// Whether another frame fits.
    pub(super) fn has_room(&self, frame: &Bytes) -> bool {
        let length = self.single.as_ref().map_or(self.joined.len(), Bytes::len);
        length + frame.len() <= BUFFER
    }

    pub(super) fn add(&mut self, frame: Bytes) {
        if self.joined.is_empty() && self.single.is_none() {
            self.single = Some(frame);
            return;
        }
        if let Some(single) = self.single.take() {
            self.joined.reserve((single.len() + frame.len()) * 2);
            self.joined.extend_from_slice(&single);
        }
        self.joined.extend_from_slice(&frame);
    }

    pub(super) fn finish(self) -> Bytes {
        self.single.unwrap_or_else(|| self.joined.freeze())
    }
}
