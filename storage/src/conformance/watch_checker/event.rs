//! The events of a watch, and the rules that they follow.

use std::fmt;

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The object was created, or began to match.
    Added,
    /// The object matched before and still does.
    Modified,
    /// The object was deleted, or ceased to match.
    Deleted,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Event<K, V> {
    /// The revision of the write. Every write has a revision of its own.
    pub revision: u64,
    /// What the write did, as the selection sees it.
    pub kind: Kind,
    /// The object.
    pub key: K,
    /// Its value after the write; for [`Kind::Deleted`] the last value that matched.
    pub value: V,
}

/// What a watch delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Frame<K, V> {
    /// An event.
    Event(Event<K, V>),
    /// The promise that every event up to a revision has been delivered.
    Bookmark {
        /// That revision.
        revision: u64,
        /// Whether it is the bookmark that ends the initial events.
        ends_initial_events: bool,
    },
    /// An ERROR event: the watch cannot go on.
    Error {
        /// The HTTP status code that it carries.
        code: u16,
    },
}

/// A guarantee of writes, lists and watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Revisions never decrease within a watch.
    Ordered,
    /// No event is delivered twice.
    Unique,
    /// No event is missing, and none is delivered that did not happen. This holds across reconnects: the first event
    /// is the next one after the revision that the watch resumes from.
    Reliable,
    /// The type and the object of an event follow from whether the object matched before and matches now.
    Filtered,
    /// Every event up to a bookmark's revision precedes the bookmark; bookmarks never go back.
    Bookmarkable,
    /// Initial events are the state at the revision of the bookmark that ends them.
    Initial,
    /// Every event up to the revision that the client waited for has been delivered.
    Complete,
    /// Bookmarks come only if they were requested.
    Unrequested,
    /// The watch stays open until its end is due.
    Open,
    /// An acknowledged write happened once, at the revision of its response.
    Acknowledged,
    /// A list is the state at its revision.
    Snapshot,
    /// Not a guarantee: the checker no longer holds the events that it needs.
    Forgotten,
}

/// A violated rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The rule.
    pub rule: Rule,
    /// The evidence.
    pub detail: String,
}

impl Violation {
    /// A violation with its evidence.
    pub fn new(rule: Rule, detail: impl Into<String>) -> Self {
        Self {
            rule,
            detail: detail.into(),
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.detail)
    }
}

impl std::error::Error for Violation {}
