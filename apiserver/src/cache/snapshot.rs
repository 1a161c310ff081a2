//! What did the resource look like at one revision?
//!
//! A [`Snapshot`] is a root of the trees: it never changes, holds no lock, and costs nothing but what it keeps
//! alive. Lists are read off it by a cursor, as slowly as the client likes.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex};

use drydock_storage::{Key, Revision, StoreError};

use super::object::{CachedObject, Term};
use super::past::Past;
use super::selection::Selection;
use super::tree::{Builder, Cursor, Item, Tree};

/// That an object has a term: an entry of the secondary index. Names the object instead of holding it, so that
/// writes which leave labels and fields alone leave the index alone.
#[derive(Clone, Debug)]
pub(super) struct Posting {
    term: Term,
    key: Key,
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

/// Which labels the secondary index holds. Declared fields are always in it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum IndexedLabels {
    /// All of them.
    #[default]
    All,
    /// These.
    Only(Vec<String>),
}

impl IndexedLabels {
    fn has(&self, term: &Term) -> bool {
        use super::object::TermKind::{Field, Label};
        match (term.kind(), self) {
            (Field, _) | (Label, Self::All) => true,
            (Label, Self::Only(names)) => names.iter().any(|name| name == term.name()),
        }
    }
}

/// The objects and their index at one revision.
#[derive(Clone, Debug)]
pub(super) struct Root {
    pub(super) revision: Revision,
    /// The position of the first event that is not contained. Means nothing in roots of the past.
    pub(super) position: u64,
    pub(super) objects: Tree<Arc<CachedObject>>,
    pub(super) postings: Tree<Posting>,
    pub(super) indexed: Arc<IndexedLabels>,
    /// Keys whose value the store cannot read. Some may be among the objects, as they were when it still could.
    pub(super) damaged: Arc<BTreeSet<Key>>,
}

impl Root {
    /// A root of objects that come ordered by key, without damage.
    pub(super) fn build(
        revision: Revision,
        position: u64,
        objects: Tree<Arc<CachedObject>>,
        indexed: Arc<IndexedLabels>,
    ) -> Self {
        let mut postings = Vec::new();
        for object in objects.cursor() {
            let terms = object.terms().iter().filter(|term| indexed.has(term));
            postings.extend(terms.map(|term| Posting {
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
            indexed,
            damaged: Arc::default(),
        }
    }

    /// Whether everything that may match can be read.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] with the first key that cannot.
    pub(super) fn check_readable(&self, selection: &Selection) -> Result<(), StoreError> {
        let mut damaged = self.damaged.iter();
        match damaged.find(|key| selection.may_match(key)) {
            Some(key) => Err(unreadable(key)),
            None => Ok(()),
        }
    }

    /// Makes one key hold `new`, or nothing.
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
            if self.indexed.has(term) {
                self.postings.insert(Posting {
                    term: term.clone(),
                    key: key.clone(),
                });
            }
        }
    }
}

fn unreadable(key: &Key) -> StoreError {
    StoreError::Corrupt {
        key: key.to_string(),
        reason: "its value was found damaged".to_owned(),
    }
}

/// What a list asks for.
#[derive(Debug, Clone)]
pub struct Query {
    /// Scope and selectors.
    pub selection: Selection,
    /// Only keys at or after this text, relative to [`Selection::prefix`], as continue tokens hold it.
    pub start: Option<String>,
    /// At most so many matches; 0 = all.
    pub limit: usize,
}

/// The answer to a [`Query`].
#[derive(Debug)]
pub struct Page {
    /// The revision of the snapshot: the list's resourceVersion.
    pub revision: Revision,
    /// The matches in key order. Lazy where it can be.
    pub objects: Objects,
    /// Where the next page starts, relative to [`Selection::prefix`]; none when this is the last one.
    pub next: Option<String>,
    /// How many objects follow this page, exactly; only with `next` and without selectors.
    pub remaining: Option<u64>,
}

/// The state of a resource at one revision. Cloning is cheap; holding one keeps its objects alive.
#[derive(Clone)]
pub(super) struct Snapshot {
    root: Arc<Root>,
    past: Arc<Mutex<Past>>,
}

impl Snapshot {
    pub(super) fn new(root: Arc<Root>, past: Arc<Mutex<Past>>) -> Self {
        Self { root, past }
    }

    /// The revision it shows.
    #[must_use]
    pub(super) fn revision(&self) -> Revision {
        self.root.revision
    }

    pub(super) fn position(&self) -> u64 {
        self.root.position
    }

    /// How many objects there are.
    #[cfg(test)]
    pub(super) fn count(&self) -> u64 {
        self.root.objects.count()
    }

    /// The object under `key`.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] when the store cannot read it.
    pub(super) fn get(&self, key: &Key) -> Result<Option<Arc<CachedObject>>, StoreError> {
        if self.root.damaged.contains(key) {
            return Err(unreadable(key));
        }
        Ok(self.root.objects.get(key.as_str()).cloned())
    }

    /// As [`Root::check_readable`]. Whoever shows what matches asks before.
    pub(super) fn check_readable(&self, selection: &Selection) -> Result<(), StoreError> {
        self.root.check_readable(selection)
    }

    /// All matches in key order, read lazily.
    #[must_use]
    pub(super) fn matches(&self, selection: &Selection) -> Objects {
        self.matches_from(selection, selection.range().start.as_str())
    }

    /// A page of a list. When another page follows, this snapshot is kept for it for a while, so that it will be
    /// of the same revision.
    #[must_use]
    pub(super) fn select(&self, query: &Query) -> Page {
        let selection = &query.selection;
        let range = selection.range();
        let start = query.start.as_ref();
        let start = start.map(|start| format!("{}{start}", selection.prefix()));
        let start = start.filter(|start| *start > range.start);
        let start = start.as_deref().unwrap_or(&range.start);
        let mut page = Page {
            revision: self.root.revision,
            objects: self.matches_from(selection, start),
            next: None,
            remaining: None,
        };
        if query.limit == 0 {
            return page;
        }
        let last = if selection.has_selectors() {
            let mut matches: Vec<_> = page.objects.by_ref().take(query.limit).collect();
            let last = matches.last().map(|object| object.key().clone());
            let more = page.objects.next().is_some();
            matches.shrink_to_fit();
            page.objects = Objects(Source::Collected(matches.into_iter()));
            last.filter(|_| more)
        } else {
            let (first, end) = (self.root.objects.rank(start), self.end_rank(&range.end));
            let limit = u64::try_from(query.limit).unwrap_or(u64::MAX);
            if let Source::Range { left, .. } = &mut page.objects.0 {
                *left = limit;
            }
            let next = first.saturating_add(limit);
            if next < end {
                page.remaining = Some(end - next);
                let last = self.root.objects.cursor_at(next - 1).next();
                last.map(|object| object.key().clone())
            } else {
                None
            }
        };
        if let Some(last) = last {
            let relative = last.as_str().strip_prefix(selection.prefix());
            page.next = relative.map(|relative| format!("{relative}\0"));
            let mut past = self
                .past
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            past.pin(Arc::clone(&self.root));
        }
        page
    }

    fn end_rank(&self, end: &str) -> u64 {
        if end.is_empty() {
            self.root.objects.count()
        } else {
            self.root.objects.rank(end)
        }
    }

    fn matches_from(&self, selection: &Selection, start: &str) -> Objects {
        if let Some(name) = selection.name() {
            return Objects(Source::Name {
                objects: self.root.objects.clone(),
                name: name.to_owned(),
                start: start.to_owned(),
                selection: selection.clone(),
            });
        }
        let end = &selection.range().end;
        let in_range = self.end_rank(end).saturating_sub(self.root.objects.rank(start));
        let postings = &self.root.postings;
        let terms = selection.equalities().iter();
        let indexed = terms.filter(|term| self.root.indexed.has(term)).map(|term| {
            let after = postings.rank((term.as_str(), end)) - postings.rank((term.as_str(), start));
            (after, term)
        });
        let source = match indexed.min_by_key(|(count, _)| *count) {
            Some((count, term)) if count < in_range => Source::Postings {
                cursor: postings.cursor_from((term.as_str(), start)),
                left: count,
                objects: self.root.objects.clone(),
                selection: selection.clone(),
            },
            _ => Source::Range {
                cursor: self.root.objects.cursor_from(start),
                left: u64::MAX,
                selection: selection.clone(),
            },
        };
        Objects(source)
    }
}

impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("revision", &self.root.revision)
            .field("count", &self.root.objects.count())
            .finish_non_exhaustive()
    }
}

/// Objects of a snapshot in key order. Owns what it reads; may be held and moved on as slowly as one likes.
pub struct Objects(Source);

enum Source {
    /// A walk over the keys; `left` counts matches.
    Range {
        cursor: Cursor<Arc<CachedObject>>,
        left: u64,
        selection: Selection,
    },
    /// A walk over the objects that have a term; `left` counts postings.
    Postings {
        cursor: Cursor<Posting>,
        left: u64,
        objects: Tree<Arc<CachedObject>>,
        selection: Selection,
    },
    /// The objects of one name, from namespace to namespace.
    Name {
        objects: Tree<Arc<CachedObject>>,
        name: String,
        /// Where the next namespace begins, or the first key that may match.
        start: String,
        selection: Selection,
    },
    Collected(std::vec::IntoIter<Arc<CachedObject>>),
}

/// The object of a name in the first namespace that has keys at or after `start`, and where the next namespace
/// begins. The object may be absent; none when there are no such keys in the range of the selection.
fn in_next_namespace(
    objects: &Tree<Arc<CachedObject>>,
    name: &str,
    start: &str,
    selection: &Selection,
) -> Option<(Option<Arc<CachedObject>>, String)> {
    let first = objects.cursor_from(start).next()?;
    let namespace = first.key().as_str().rsplit_once('/')?.0;
    if !selection.range().contains(namespace) {
        return None;
    }
    let key = format!("{namespace}/{name}");
    let found = objects.get(key.as_str()).filter(|_| key.as_str() >= start);
    // The character after the one that ends a namespace.
    Some((found.cloned(), format!("{namespace}0")))
}

impl Iterator for Objects {
    type Item = Arc<CachedObject>;

    fn next(&mut self) -> Option<Arc<CachedObject>> {
        match &mut self.0 {
            Source::Range {
                cursor,
                left,
                selection,
            } => {
                let end = selection.range().end.as_str();
                while *left > 0 {
                    let object = cursor.next()?;
                    if !end.is_empty() && object.key().as_str() >= end {
                        *left = 0;
                    } else if selection.selects(&object) {
                        *left -= 1;
                        return Some(object);
                    }
                }
                None
            }
            Source::Postings {
                cursor,
                left,
                objects,
                selection,
            } => {
                while *left > 0 {
                    *left -= 1;
                    let posting = cursor.next()?;
                    let object = objects.get(posting.key.as_str());
                    if let Some(object) = object.filter(|object| selection.selects(object)) {
                        return Some(Arc::clone(object));
                    }
                }
                None
            }
            Source::Name {
                objects,
                name,
                start,
                selection,
            } => loop {
                let (found, next) = in_next_namespace(objects, name, start, selection)?;
                *start = next;
                if let Some(object) = found.filter(|object| selection.selects(object)) {
                    return Some(object);
                }
            },
            Source::Collected(objects) => objects.next(),
        }
    }
}

impl Objects {
    /// Objects that are at hand already, in order.
    pub(super) fn collected(objects: Vec<Arc<CachedObject>>) -> Self {
        Self(Source::Collected(objects.into_iter()))
    }
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects").finish_non_exhaustive()
    }
}
