//! The published, durable entry of every key.
//!
//! One map in memory, written by the commit thread, once per batch: a reader sees all of a batch or none of it, together
//! with its revision. Housekeeping alone writes besides, the values that did not open before (see `reopen`). Conditions are
//! checked and gets served from here, without a disk read. The bytes of a value are shared with all its readers.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use crate::record::Place;
use crate::{Entry, Key, KeyRange, Outcome, Revision, StoreError, Unread};

/// What a key holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Slot {
    /// A value that passed its checks.
    Whole(Entry),
    /// A value that failed its checksum when it was loaded; its revisions are known.
    Damaged(Place),
    /// A value that is sealed and did not open when it was loaded, and why. Housekeeping tries again.
    Sealed(Place, Arc<str>),
}

impl Slot {
    pub(crate) fn place(&self) -> Place {
        match self {
            Self::Whole(entry) => Place {
                created: entry.created,
                modified: entry.modified,
            },
            Self::Damaged(place) | Self::Sealed(place, _) => *place,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Whole(entry) => entry.value.bytes.len() as u64,
            Self::Damaged(_) | Self::Sealed(..) => 0,
        }
    }

    /// Why its value cannot be read; none if it can.
    pub(crate) fn why_unread(&self) -> Option<Unread> {
        match self {
            Self::Whole(_) => None,
            Self::Damaged(_) => Some(Unread::Damaged),
            Self::Sealed(_, reason) => Some(Unread::Sealed(Arc::clone(reason))),
        }
    }

    /// The error of a read of it, whose value cannot be read.
    pub(crate) fn unread(&self, key: &Key) -> StoreError {
        self.why_unread().unwrap_or(Unread::Damaged).error(key)
    }
}

/// The error for a key whose value failed its checksum.
pub(crate) fn damaged(key: &Key) -> StoreError {
    Unread::Damaged.error(key)
}

/// The conflict of a write that expects `base` of a key which holds `found` at `revision`, if it is one.
pub(crate) fn conflict(
    key: &Key,
    base: Option<Revision>,
    found: Option<&Slot>,
    revision: Revision,
) -> Result<Option<Outcome>, StoreError> {
    if found.map(|slot| slot.place().modified) == base {
        return Ok(None);
    }
    let current = match found {
        None => None,
        Some(Slot::Whole(entry)) => Some(entry.clone()),
        Some(unread) => return Err(unread.unread(key)),
    };
    Ok(Some(Outcome::Conflict { revision, current }))
}

/// All keys at one revision.
#[derive(Debug, Default)]
pub(crate) struct Index {
    slots: HashMap<Key, Slot>,
    /// Keys whose value is damaged or sealed.
    unread: BTreeSet<Key>,
    revision: Revision,
    bytes: u64,
}

impl Index {
    /// An index without keys.
    pub(crate) fn at(revision: Revision) -> Self {
        Self {
            revision,
            ..Self::default()
        }
    }

    pub(crate) fn revision(&self) -> Revision {
        self.revision
    }

    pub(crate) fn slot(&self, key: &Key) -> Option<&Slot> {
        self.slots.get(key)
    }

    /// The key with this text and its slot.
    pub(crate) fn find(&self, text: &str) -> Option<(&Key, &Slot)> {
        self.slots.get_key_value(text)
    }

    /// The entry of a key; an error when its value is damaged.
    pub(crate) fn entry(&self, key: &Key) -> Result<Option<&Entry>, StoreError> {
        match self.slots.get(key) {
            None => Ok(None),
            Some(Slot::Whole(entry)) => Ok(Some(entry)),
            Some(unread) => Err(unread.unread(key)),
        }
    }

    /// How many keys hold a value, and the bytes of all values.
    pub(crate) fn size(&self) -> (u64, u64) {
        (self.slots.len() as u64, self.bytes)
    }

    /// Keys whose value cannot be read, with their slots.
    pub(crate) fn unread(&self) -> impl Iterator<Item = (&Key, &Slot)> {
        self.unread.iter().filter_map(|key| self.slots.get_key_value(key))
    }

    /// Keys whose value is damaged.
    pub(crate) fn damaged(&self) -> impl Iterator<Item = &Key> {
        self.unread()
            .filter_map(|(key, slot)| matches!(slot, Slot::Damaged(_)).then_some(key))
    }

    /// Keys whose value is sealed and did not open, and why.
    pub(crate) fn sealed(&self) -> impl Iterator<Item = (&Key, &Arc<str>)> {
        self.unread().filter_map(|(key, slot)| match slot {
            Slot::Sealed(_, reason) => Some((key, reason)),
            _ => None,
        })
    }

    /// The first key of a range whose value cannot be read.
    pub(crate) fn first_unread(&self, range: &KeyRange) -> Option<(&Key, &Slot)> {
        self.unread().find(|(key, _)| range.contains(key.as_str()))
    }

    /// Every key and its slot, unordered.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Slot)> {
        self.slots.iter()
    }

    /// Applies the writes of a batch, and its revision.
    pub(crate) fn apply(
        &mut self,
        changed: impl IntoIterator<Item = (Key, Option<Slot>)>,
        revision: Revision,
    ) {
        for (key, slot) in changed {
            self.set(key, slot);
        }
        self.revision = revision;
    }

    /// Sets what one key holds.
    pub(crate) fn set(&mut self, key: Key, slot: Option<Slot>) {
        let before = if let Some(slot) = slot {
            self.bytes += slot.bytes();
            if matches!(slot, Slot::Whole(_)) {
                self.unread.remove(&key);
            } else {
                self.unread.insert(key.clone());
            }
            self.slots.insert(key, slot)
        } else {
            self.unread.remove(&key);
            self.slots.remove(&key)
        };
        self.bytes -= before.map_or(0, |slot| slot.bytes());
    }
}
