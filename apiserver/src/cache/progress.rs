//! How far one watch has got.

use drydock_storage::Revision;

use super::encode_once::EventEncoder;
use super::error::WatchEnd;
use super::history::Entered;
use super::metrics::ResourceMetrics;

/// How far a watch has got.
#[derive(Debug)]
pub(super) struct Progress {
    /// The position of the next event to look at; meaningful while the watch is live.
    pub(super) next: u64,
    /// Every event up to here has been sent, or does not match the selection.
    pub(super) seen: Revision,
    /// Whether a frame has been sent.
    pub(super) has_begun: bool,
    /// When the events of the last buffer entered the cache; measured once the client has taken it.
    pub(super) pending: Entered,
}

impl Progress {
    /// The encoder of the next frame but `frames`.
    pub(super) fn encoder<'e>(&self, encoder: &'e dyn EventEncoder, frames: usize) -> &'e dyn EventEncoder {
        if self.has_begun || frames > 0 {
            encoder.following().unwrap_or(encoder)
        } else {
            encoder
        }
    }

    /// The end of a watch that cannot continue after `seen`, which is counted.
    pub(super) fn expired(&self, oldest: Revision, metrics: &ResourceMetrics) -> WatchEnd {
        metrics.expired.inc();
        WatchEnd::Expired {
            since: self.seen,
            oldest,
        }
    }
}
