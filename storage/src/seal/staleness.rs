//! By what a stored record was sealed.

use bytes::Bytes;

use super::Seal;
use crate::Key;

/// The seal of a stored value.
#[derive(Debug, Clone)]
pub(crate) struct StoredSeal {
    pub(crate) key_id: String,
    pub(crate) payload: Bytes,
    /// It is sealed, and the checksum of the value is in clear beside it: as binaries before wrote it.
    pub(crate) shows_checksum: bool,
}

impl StoredSeal {
    /// Whether the value should be written again.
    pub(crate) fn is_stale(&self, seal: &dyn Seal, key: &Key) -> bool {
        self.shows_checksum || seal.is_stale(key.as_str(), &self.key_id, &self.payload)
    }
}
