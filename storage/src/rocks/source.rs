//! A store that a restore or an import reads.

use uuid::Uuid;

use super::column_families::Engine;
use crate::Revision;

/// A store that objects are taken from.
pub(crate) struct Source {
    pub(crate) engine: Engine,
    pub(crate) store: Uuid,
    /// No higher revision was assigned when it was taken.
    pub(crate) revision: Revision,
    pub(crate) taken_ms: u64,
}
