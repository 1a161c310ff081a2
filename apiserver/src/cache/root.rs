//! A root: all objects of a resource and their index, at one revision.
//!
//! Roots never change once they are published. They share what is equal, see [`super::tree`].

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use drydock_storage::{Key, Revision, StoreError, Unread};

use super::error::ReadError;
use super::object::{CachedObject, Term};
use super::selection::Selection;
use super::tree::{Builder, Item, Tree};

/// How many keys an error about values that do not open names.
const MOST_NAMED: usize = 100;

/// An entry of the secondary index of labels and declared fields: the object under `key` has `term`. It names the object
/// instead of holding it, so that writes which change neither labels nor fields leave the index alone.
#[derive(Clone, Debug)]
pub(super) struct Posting {
    pub(super) term: Term,
    pub(super) key: Key,
}

impl Item for Posting {
    type Separator = Self;
    type Probe<'a> = (&'a str, &'a str);

    fn probe(&self) -> (&str, &str) {
        (self.term.as_str(), self.key.as_str())
    }

    fn separator(&self) -> Self {
        self.clone()
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn compare(&self, probe: (&str, &str)) -> Ordering {
        self.probe().cmp(&probe)
    }

    fn compare_separator(separator: &Self, probe: (&str, &str)) -> Ordering {
        separator.compare(probe)
    }
}

/// The objects and their index at one revision.
#[derive(Clone, Debug)]
pub(super) struct Root {
    pub(super) revision: Revision,
    /// The position of the first event after this root. Meaningless in roots of the past.
    pub(super) position: u64,
    pub(super) objects: Tree<Arc<CachedObject>>,
    pub(super) postings: Tree<Posting>,
    /// Keys whose value the store cannot read. Some may be among the objects, with the value they had before.
    pub(super) damaged: Arc<BTreeMap<Key, Unread>>,
}

impl Root {
    /// A root of these objects, without damage.
    pub(super) fn build(revision: Revision, position: u64, objects: Tree<Arc<CachedObject>>) -> Self {
        let mut postings = Vec::new();
        for object in objects.cursor() {
            postings.extend(object.terms().iter().map(|term| Posting {
                term: term.clone(),
                key: object.key().clone(),
            }));
        }
        postings.sort_unstable_by(|one, other| one.compare(other.probe()));
        let mut builder = Builder::default();
        for posting in postings {
            builder.push(posting);
        }
        Self {
            revision,
            position,
            objects,
            postings: builder.finish(),
            damaged: Arc::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn empty(revision: Revision) -> Self {
        Self::build(revision, 0, Tree::default())
    }

    /// Whether every object that may match can be read.
    ///
    /// # Errors
    /// [`ReadError::Sealed`] if values do not open; else [`StoreError::Corrupt`] with the first key that is damaged.
    pub(super) fn check_readable(&self, selection: &Selection) -> Result<(), ReadError> {
        let damaged = self.damaged.iter().filter(|(key, _)| selection.may_match(key));
        let mut first_damaged = None;
        let mut sealed = Vec::new();
        for (key, unread) in damaged {
            match unread {
                Unread::Sealed(reason) if sealed.len() < MOST_NAMED => {
                    sealed.push((key.clone(), Arc::clone(reason)));
                }
                Unread::Sealed(_) => break,
                Unread::Damaged => first_damaged = first_damaged.or(Some(key)),
            }
        }
        match first_damaged {
            _ if !sealed.is_empty() => Err(ReadError::Sealed(sealed)),
            Some(key) => Err(Unread::Damaged.error(key).into()),
            None => Ok(()),
        }
    }

    /// The object under `key`.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] or [`StoreError::Sealed`] when the store cannot read it.
    pub(super) fn get(&self, key: &Key) -> Result<Option<Arc<CachedObject>>, StoreError> {
        if let Some(unread) = self.damaged.get(key) {
            return Err(unread.error(key));
        }
        Ok(self.objects.get(key.as_str()).cloned())
    }

    /// Puts `new` under `key`, or nothing, and returns what was there.
    pub(super) fn set(&mut self, key: &Key, new: Option<&Arc<CachedObject>>) -> Option<Arc<CachedObject>> {
        let old = match new {
            Some(new) => self.objects.insert(Arc::clone(new)),
            None => self.objects.remove(key.as_str()),
        };
        match (&old, new) {
            (Some(old), Some(new)) if old.has_terms_of(new) => {}
            (old, new) => self.reindex(key, old.as_deref(), new.map(AsRef::as_ref)),
        }
        old
    }

    fn reindex(&mut self, key: &Key, old: Option<&CachedObject>, new: Option<&CachedObject>) {
        let terms =
            |object: Option<&CachedObject>| object.map_or_else(Vec::new, |object| object.terms().to_vec());
        let (old, new) = (terms(old), terms(new));
        for term in old.iter().filter(|term| !new.contains(term)) {
            self.postings.remove((term.as_str(), key.as_str()));
        }
        for term in new.iter().filter(|term| !old.contains(term)) {
            self.postings.insert(Posting {
                term: term.clone(),
                key: key.clone(),
            });
        }
    }

    /// This root moved to `revision`: each change is an object and the state its key has there.
    pub(super) fn changed<'a>(
        &self,
        revision: Revision,
        changes: impl Iterator<Item = (Option<&'a Arc<CachedObject>>, &'a Option<Arc<CachedObject>>)>,
    ) -> Self {
        let mut root = self.clone();
        for (object, state) in changes {
            if let Some(object) = object {
                root.set(object.key(), state.as_ref());
                root.clear_damage(object.key());
            }
        }
        root.revision = revision;
        root
    }

    /// Whether the value under `key` is sealed and did not open.
    pub(super) fn is_sealed(&self, key: &Key) -> bool {
        matches!(self.damaged.get(key), Some(Unread::Sealed(_)))
    }

    /// The value under `key` is known, whatever the store has of it.
    pub(super) fn clear_damage(&mut self, key: &Key) {
        if self.damaged.contains_key(key) {
            Arc::make_mut(&mut self.damaged).remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use drydock_storage::{Entry, Value};

    use super::super::object::Attributes;
    use super::*;

    /// Damage found now once made past states unreadable in which the object did not exist or was intact.
    #[test]
    fn a_past_state_rebuilt_from_events_is_readable_whatever_is_damaged_now() {
        let key = Key::new("g", "things", "n", "one").unwrap();
        let entry = Entry {
            value: Value {
                bytes: Bytes::from_static(b"{}"),
                form: "g/v1".into(),
                splice_offset: 1,
            },
            created: Revision(3),
            modified: Revision(3),
        };
        let object = Arc::new(CachedObject::new(key.clone(), entry, &|_, _| {
            Attributes::default()
        }));
        let mut root = Root::empty(Revision(5));
        root.damaged = Arc::new([(key, Unread::Damaged)].into());
        for state in [None, Some(Arc::clone(&object))] {
            let past = root.changed(Revision(2), [(Some(&object), &state)].into_iter());
            assert!(past.damaged.is_empty());
            assert_eq!(past.objects.count(), u64::from(state.is_some()));
        }
    }
}
