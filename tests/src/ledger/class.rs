//! What is everybody owed who watches the same selection?

use std::collections::VecDeque;

use super::event::{Event, Kind, Selection, Version};

/// A fingerprint of a set of objects, in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest {
    sum: u64,
    /// How many objects it is of.
    pub objects: u64,
}

impl Digest {
    /// Takes an object in, as it was written at `revision`.
    pub fn add(&mut self, object: u32, version: Version, revision: u64) {
        self.sum = self.sum.wrapping_add(mix(object, version, revision));
        self.objects += 1;
    }

    fn remove(&mut self, object: u32, version: Version, revision: u64) {
        self.sum = self.sum.wrapping_sub(mix(object, version, revision));
        self.objects -= 1;
    }
}

/// Spreads all bits over all (the finish of `SplitMix64`), once for each number.
fn mix(object: u32, version: Version, revision: u64) -> u64 {
    let scramble = |mut bits: u64| {
        bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    };
    let numbers = u64::from(object) << 32 | u64::from(version.serial);
    scramble(scramble(scramble(numbers) ^ revision) ^ u64::from(version.group))
}

/// An object before or after a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) version: Version,
    pub(super) revision: u64,
}

/// A write as it changed one object.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub(super) revision: u64,
    pub(super) object: u32,
    pub(super) namespace: u32,
    pub(super) old: Option<Stored>,
    pub(super) new: Option<Stored>,
}

/// The events of one selection, and its state after each.
#[derive(Debug)]
pub(super) struct Class {
    pub(super) selection: Selection,
    entries: VecDeque<(Event, Digest)>,
    /// How many entries were forgotten; places count them.
    forgotten: u64,
    /// The state before the first entry that is kept.
    before: Digest,
}

impl Class {
    pub(super) fn new(selection: Selection) -> Self {
        Self {
            selection,
            entries: VecDeque::new(),
            forgotten: 0,
            before: Digest::default(),
        }
    }

    /// The state after the newest entry.
    fn now(&self) -> Digest {
        self.entries.back().map_or(self.before, |(_, state)| *state)
    }

    /// What the selection makes of a write.
    pub(super) fn push(&mut self, change: &Change) {
        let is = |stored: Option<Stored>| {
            stored.filter(|it| self.selection.has(change.namespace, change.object, it.version))
        };
        let (old, new) = (is(change.old), is(change.new));
        let (kind, version) = match (old, new) {
            (None, None) => return,
            (None, Some(new)) => (Kind::Added, new.version),
            (Some(_), Some(new)) => (Kind::Modified, new.version),
            (Some(old), None) => (Kind::Deleted, old.version),
        };
        let mut state = self.now();
        if let Some(old) = old {
            state.remove(change.object, old.version, old.revision);
        }
        if let Some(new) = new {
            state.add(change.object, new.version, new.revision);
        }
        let event = Event {
            revision: change.revision,
            kind,
            object: change.object,
            version,
        };
        self.entries.push_back((event, state));
    }

    /// The place of the first event beyond a revision; `None` if that may be forgotten.
    pub(super) fn place_behind(&self, revision: u64) -> Option<u64> {
        let place = self
            .entries
            .partition_point(|(event, _)| event.revision <= revision);
        // Whether the last forgotten one lay beyond the revision is not known any more.
        (place > 0 || self.forgotten == 0).then_some(self.forgotten + place as u64)
    }

    /// The event at a place: `Err` if it is forgotten, `None` if it has not happened.
    pub(super) fn at(&self, place: u64) -> Result<Option<Event>, Forgotten> {
        let index = place.checked_sub(self.forgotten).ok_or(Forgotten)?;
        let index = usize::try_from(index).map_err(|_| Forgotten)?;
        Ok(self.entries.get(index).map(|(event, _)| *event))
    }

    /// The state right after a revision.
    pub(super) fn state_at(&self, revision: u64) -> Result<Digest, Forgotten> {
        let place = self
            .entries
            .partition_point(|(event, _)| event.revision <= revision);
        match place.checked_sub(1).and_then(|last| self.entries.get(last)) {
            Some((_, state)) => Ok(*state),
            None if self.forgotten == 0 => Ok(self.before),
            None => Err(Forgotten),
        }
    }

    /// Forgets what lies before a revision, except for the last event there: it says what the state was.
    pub(super) fn forget_before(&mut self, revision: u64) {
        let before = self
            .entries
            .partition_point(|(event, _)| event.revision < revision);
        for _ in 1..before {
            if let Some((_, state)) = self.entries.pop_front() {
                self.before = state;
                self.forgotten += 1;
            }
        }
    }
}

/// The ledger does not go back that far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Forgotten;
