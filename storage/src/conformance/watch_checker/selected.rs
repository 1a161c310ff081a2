//! The events that a selection calls for, with bounded memory.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use super::event::{Event, Kind, Rule, Violation};

/// A fingerprint of a set of objects, independent of their order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    sum: u64,
    /// The number of objects.
    pub objects: u64,
}

impl Digest {
    /// Adds an object as it was written at `revision`.
    pub fn add(&mut self, key: &impl Hash, value: &impl Hash, revision: u64) {
        self.sum = self.sum.wrapping_add(fingerprint(key, value, revision));
        self.objects += 1;
    }

    fn remove(&mut self, key: &impl Hash, value: &impl Hash, revision: u64) {
        self.sum = self.sum.wrapping_sub(fingerprint(key, value, revision));
        self.objects -= 1;
    }
}

fn fingerprint(key: &impl Hash, value: &impl Hash, revision: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    (key, value, revision).hash(&mut hasher);
    hasher.finish()
}

/// A value that matches the selection, and the revision of the write that stored it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored<V> {
    /// The value.
    pub value: V,
    /// The revision.
    pub revision: u64,
}

/// The events of one selection in order, and its state after each.
///
/// Events have positions, counted from 0; [`forget_before`](Self::forget_before) drops old ones.
#[derive(Debug)]
pub struct SelectedEvents<K, V> {
    entries: VecDeque<(Event<K, V>, Digest)>,
    /// The number of entries that were dropped.
    forgotten: u64,
    /// The state before the first entry that is kept.
    before: Digest,
}

impl<K, V> Default for SelectedEvents<K, V> {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            forgotten: 0,
            before: Digest::default(),
        }
    }
}

impl<K: Hash, V: Hash> SelectedEvents<K, V> {
    /// Records a write. `old` and `new` are the object before and after it, each only if it matches the selection.
    pub fn push(&mut self, key: K, revision: u64, old: Option<Stored<V>>, new: Option<V>) {
        let mut state = self.entries.back().map_or(self.before, |(_, state)| *state);
        if let Some(old) = &old {
            state.remove(&key, &old.value, old.revision);
        }
        if let Some(new) = &new {
            state.add(&key, new, revision);
        }
        let (kind, value) = match (old, new) {
            (None, None) => return,
            (None, Some(new)) => (Kind::Added, new),
            (Some(_), Some(new)) => (Kind::Modified, new),
            (Some(old), None) => (Kind::Deleted, old.value),
        };
        let event = Event {
            revision,
            kind,
            key,
            value,
        };
        self.entries.push_back((event, state));
    }
}

impl<K, V> SelectedEvents<K, V> {
    /// Records an event where no state is compared.
    pub fn push_event(&mut self, event: Event<K, V>) {
        self.entries.push_back((event, Digest::default()));
    }

    /// The number of kept events up to a revision.
    fn count_to(&self, revision: u64) -> usize {
        self.entries
            .partition_point(|(event, _)| event.revision <= revision)
    }

    /// The position of the first event after a revision.
    pub(super) fn position_after(&self, revision: u64) -> Result<u64, Forgotten> {
        let count = self.count_to(revision);
        // With no kept event at or before the revision, a dropped one may lie after it.
        if count == 0 && self.forgotten > 0 {
            return Err(Forgotten);
        }
        Ok(self.forgotten + count as u64)
    }

    /// The event at a position, `None` if it has not happened.
    pub(super) fn at(&self, position: u64) -> Result<Option<&Event<K, V>>, Forgotten> {
        let index = position.checked_sub(self.forgotten).ok_or(Forgotten)?;
        let index = usize::try_from(index).map_err(|_| Forgotten)?;
        Ok(self.entries.get(index).map(|(event, _)| event))
    }

    /// The state right after a revision.
    ///
    /// # Errors
    /// It is no longer kept.
    pub fn state_at(&self, revision: u64) -> Result<Digest, Forgotten> {
        let last = self.count_to(revision).checked_sub(1);
        match last.and_then(|last| self.entries.get(last)) {
            Some((_, state)) => Ok(*state),
            None if self.forgotten == 0 => Ok(self.before),
            None => Err(Forgotten),
        }
    }

    /// Drops the events before a revision, except for the last of them: it holds the state at that time.
    pub fn forget_before(&mut self, revision: u64) {
        let before = self.count_to(revision.saturating_sub(1));
        for _ in 1..before {
            if let Some((_, state)) = self.entries.pop_front() {
                self.before = state;
                self.forgotten += 1;
            }
        }
    }
}

/// The events that are needed were dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgotten;

impl From<Forgotten> for Violation {
    fn from(_: Forgotten) -> Self {
        Self::new(Rule::Forgotten, "the events that are needed were dropped")
    }
}
