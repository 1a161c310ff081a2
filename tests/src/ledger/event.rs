//! What of an object and of an event is compared?

use std::fmt;

/// What an object is: enough to tell every state of it from every other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// How many times the object was written before, also under earlier lives of its name.
    pub serial: u32,
    /// The group that its label names.
    pub group: u16,
}

/// What happened to an object, as a watch tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// It came, or came to match.
    Added,
    /// It changed.
    Modified,
    /// It went, or ceased to match.
    Deleted,
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The revision of the write. Every write has one of its own.
    pub revision: u64,
    /// What happened.
    pub kind: Kind,
    /// The object's number.
    pub object: u32,
    /// What it is now, or for a removal was when it last matched.
    pub version: Version,
}

/// What a watch delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// An event.
    Event(Event),
    /// The promise that everything up to a revision has been delivered.
    Bookmark {
        /// That revision.
        revision: u64,
        /// Whether it says that the initial events are over.
        ends_initial_events: bool,
    },
    /// The watch cannot go on.
    Error {
        /// The HTTP status that says why.
        code: u16,
    },
}

/// A condition on an object's group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// It is this one.
    Is(u16),
    /// It is another.
    IsNot(u16),
}

/// Which objects a watch selects: those that fulfil all conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selection {
    /// Objects of this namespace.
    pub namespace: Option<u32>,
    /// Objects of such a group.
    pub group: Option<Group>,
    /// This one object.
    pub object: Option<u32>,
}

impl Selection {
    /// Whether it has an object of `namespace` in that state.
    #[must_use]
    pub fn has(&self, namespace: u32, object: u32, version: Version) -> bool {
        self.namespace.is_none_or(|it| it == namespace)
            && self.object.is_none_or(|it| it == object)
            && match self.group {
                None => true,
                Some(Group::Is(group)) => group == version.group,
                Some(Group::IsNot(group)) => group != version.group,
            }
    }
}

/// What is promised of writes, lists and watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// Revisions never decrease within a watch. Since a revision has one event of a watch, events are also atomic:
    /// none of a later revision comes before all of an earlier one.
    Ordered,
    /// No event comes twice.
    Unique,
    /// Nothing that happened is missing, and nothing comes that did not happen: also for a watch that goes on behind
    /// what another has seen, whose first event is the next one.
    Reliable,
    /// Kind and object follow from what matched before and what matches now.
    Filtered,
    /// What a bookmark promises has come before it; bookmarks never go back.
    Bookmarkable,
    /// Initial events are the state at the revision of their bookmark.
    Initial,
    /// What is owed has come.
    Complete,
    /// Only what was asked for comes.
    Unasked,
    /// What is acknowledged was done, once, and at the revision that the answer names.
    Acknowledged,
    /// A list is the state at its revision.
    Snapshot,
    /// The checker was asked about what the ledger has forgotten.
    Forgotten,
    /// The watch goes on until it is to end.
    Open,
    /// What the server remembers goes back as far as it says, and not without end.
    Window,
    /// Memory stays what it is.
    Flat,
}

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Which.
    pub rule: Rule,
    /// What shows it.
    pub detail: String,
}

impl Fault {
    /// A fault with what shows it.
    pub fn new(rule: Rule, detail: impl Into<String>) -> Self {
        Self {
            rule,
            detail: detail.into(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.rule, self.detail)
    }
}

impl std::error::Error for Fault {}
