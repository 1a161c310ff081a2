//! The objects of the ledger, their events, and the selections of watches.

use drydock_storage::conformance::watch_checker;

/// The content of an object: enough to tell every state of it from every other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version {
    /// The number of earlier writes under the object's name, across deletions.
    pub serial: u32,
    /// The group that its label names.
    pub group: u16,
}

/// An event of the object whose number is the key. Every write has a revision of its own.
pub type Event = watch_checker::Event<u32, Version>;

/// What a watch delivers.
pub type Frame = watch_checker::Frame<u32, Version>;

/// A condition on an object's group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// It is this one.
    Is(u16),
    /// It is any other.
    IsNot(u16),
}

/// The objects that a watch selects: those that fulfil all conditions.
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
    /// Whether an object of `namespace` with this content is selected.
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
