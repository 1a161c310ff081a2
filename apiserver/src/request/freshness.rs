//! The state that a request reads: `resourceVersion` and `resourceVersionMatch`, resolved.

use drydock_storage::Revision;

/// How recent a state must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freshness {
    /// It contains every write that was acknowledged before the request: a linearizable read.
    MostRecent,
    /// The newest state in memory, whatever its revision.
    Any,
    /// This revision or a later one.
    NotOlderThan(Revision),
}

/// Which state a list shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListState {
    /// The newest state in memory, once it is as recent as required.
    Newest(Freshness),
    /// The state right after this revision.
    Exactly(Revision),
    /// The state of the list's first page, at this revision. It may be kept a little longer than
    /// [`ListState::Exactly`] allows.
    Continued(Revision),
}

impl From<Freshness> for ListState {
    fn from(freshness: Freshness) -> Self {
        Self::Newest(freshness)
    }
}

/// Where a watch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchStart {
    /// With the first event after this revision, which may lie in the future.
    After(Revision),
    /// With an ADDED event for every object of a state, then every later event.
    InitialEvents(Freshness),
    /// With the first event after every write that was acknowledged before the request.
    Now,
}
