//! The published, durable entry of every key.
//!
//! One map in memory, written by the commit thread alone, once per batch: a reader sees all of a batch or none of it,
//! together with its revision. Conditions are checked and gets served from here, without a disk read. The bytes of a value
//! are shared with all its readers.

use std::collections::{BTreeSet, HashMap};

use crate::record::Place;
use crate::{Entry, Key, KeyRange, Outcome, Revision, StoreError};

/// What a key holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Slot {
    /// A value that passed its checks.
    Whole(Entry),
    /// A value that failed its checksum when it was loaded; its revisions are known.
    Damaged(Place),
}

impl Slot {
    pub(crate) fn place(&self) -> Place {
        match self {
            Self::Whole(entry) => Place {
                created: entry.created,
                modified: entry.modified,
            },
            Self::Damaged(place) => *place,
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Whole(entry) => entry.value.bytes.len() as u64,
            Self::Damaged(_) => 0,
        }
    }
}

/// The error for a key whose value failed its checksum.
pub(crate) fn damaged(key: &Key) -> StoreError {
    StoreError::Corrupt {
        key: key.to_string(),
        reason: "its value fails its checksum".to_owned(),
    }
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
        Some(Slot::Damaged(_)) => return Err(damaged(key)),
    };
    Ok(Some(Outcome::Conflict { revision, current }))
}

/// All keys at one revision.
#[derive(Debug, Default)]
pub(crate) struct Index {
    slots: HashMap<Key, Slot>,
    damaged: BTreeSet<Key>,
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
            Some(Slot::Damaged(_)) => Err(damaged(key)),
        }
    }

    /// How many keys hold a value, and the bytes of all values.
    pub(crate) fn size(&self) -> (u64, u64) {
        (self.slots.len() as u64, self.bytes)
    }

    /// Keys whose value is damaged.
    pub(crate) fn damaged(&self) -> impl Iterator<Item = &Key> {
        self.damaged.iter()
    }

    /// The first damaged key of a range.
    pub(crate) fn first_damaged(&self, range: &KeyRange) -> Option<&Key> {
        self.damaged.iter().find(|key| range.contains(key.as_str()))
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
            if matches!(slot, Slot::Damaged(_)) {
                self.damaged.insert(key.clone());
            } else {
                self.damaged.remove(&key);
            }
            self.slots.insert(key, slot)
        } else {
            self.damaged.remove(&key);
            self.slots.remove(&key)
        };
        self.bytes -= before.map_or(0, |slot| slot.bytes());
    }
}
