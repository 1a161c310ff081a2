//! One state of a resource, as gets and lists read it.
//!
//! A [`Snapshot`] is a root that is held: it never changes, needs no lock, and costs only the objects it keeps alive.
//! Lists walk it with a cursor, as slowly as their clients read.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, Mutex};

use drydock_storage::{Key, Revision, StoreError};

use super::error::ReadError;
use super::lock::lock;
use super::object::CachedObject;
use super::past::Past;
use super::root::{Posting, Root};
use super::selection::Selection;
use super::tree::{Cursor, Tree};

/// What a list asks for.
#[derive(Debug, Clone)]
pub struct Query {
    /// Scope and selectors.
    pub selection: Selection,
    /// Only keys at or after this text, relative to [`Selection::prefix`], as continue tokens hold it.
    pub start: Option<String>,
    /// The most matches to return; 0 = all.
    pub limit: usize,
}

impl Query {
    /// The first key that the page may hold. A start before the scope is moved into it.
    pub(super) fn first_key(&self) -> Cow<'_, str> {
        let first = self.selection.range().start.as_str();
        let start = self.start.as_ref();
        let start = start.map(|start| format!("{}{start}", self.selection.prefix()));
        match start.filter(|start| start.as_str() > first) {
            Some(start) => start.into(),
            None => first.into(),
        }
    }

    /// The `start` of the page after the one that ends with the key `last`.
    pub(super) fn start_after(&self, last: &str) -> Option<String> {
        let relative = last.strip_prefix(self.selection.prefix());
        relative.map(|relative| format!("{relative}\0"))
    }
}

/// The result of a [`Query`].
#[derive(Debug)]
pub struct Page {
    /// The revision of the snapshot: the list's resourceVersion.
    pub revision: Revision,
    /// The matches in key order, read lazily where possible.
    pub objects: Objects,
    /// Where the next page starts, relative to [`Selection::prefix`]; none on the last page.
    pub next: Option<String>,
    /// The exact number of objects after this page; only with `next` and without selectors.
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
    /// [`StoreError::Corrupt`] or [`StoreError::Sealed`] when the store cannot read it.
    pub(super) fn get(&self, key: &Key) -> Result<Option<Arc<CachedObject>>, StoreError> {
        self.root.get(key)
    }

    /// As [`Root::check_readable`]; to be called before matches are shown.
    pub(super) fn check_readable(&self, selection: &Selection) -> Result<(), ReadError> {
        self.root.check_readable(selection)
    }

    /// All matches in key order, read lazily.
    #[must_use]
    pub(super) fn matches(&self, selection: &Selection) -> Objects {
        self.matches_from(selection, selection.range().start.as_str())
    }

    /// A page of a list. When another page follows, this state is kept for a while, so that the next page has the
    /// same revision.
    #[must_use]
    pub(super) fn select(&self, query: &Query) -> Page {
        let selection = &query.selection;
        let start = &*query.first_key();
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
            let (first, end) = (
                self.root.objects.rank(start),
                self.end_rank(&selection.range().end),
            );
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
            page.next = query.start_after(last.as_str());
            lock(&self.past).pin(Arc::clone(&self.root));
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
        let indexed = terms.map(|term| {
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

/// Objects of a snapshot in key order. Owns what it reads, so it may be held and advanced at any pace.
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
    /// The objects of one name, namespace by namespace.
    Name {
        objects: Tree<Arc<CachedObject>>,
        name: String,
        /// The start of the next namespace, or the first key that may match.
        start: String,
        selection: Selection,
    },
    Collected(std::vec::IntoIter<Arc<CachedObject>>),
}

/// The object of a name in the first namespace that has keys at or after `start`, and the start of the next
/// namespace. The object may be absent; none when the selection's range has no such keys.
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
    // '0' follows '/', which ends the namespace.
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
    /// Objects that were collected before, in order.
    pub(super) fn collected(objects: Vec<Arc<CachedObject>>) -> Self {
        Self(Source::Collected(objects.into_iter()))
    }
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects").finish_non_exhaustive()
    }
}
