//! An object in the cache: its payload as stored, and the attributes needed to find and filter it without parsing.
//!
//! Attributes are the uid, the labels and the fields that selectors may name. Versions of an object share them as long
//! as they do not change, and equal labels of many objects share one allocation.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use drydock_storage::{Entry, Key, Revision, Value};

use super::tree::Item;

/// What is read from a stored object once, when it enters the cache.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Attributes {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.labels`.
    pub labels: Vec<(String, String)>,
    /// The fields a field selector may name, apart from `metadata.name` and `metadata.namespace`.
    pub fields: Vec<(String, String)>,
}

/// Reads the attributes of a payload; supplied by the registry of the kind.
pub type Extract = dyn Fn(&Key, &Value) -> Attributes + Send + Sync;

/// Whether a term is a label or a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum TermKind {
    /// A label of the object.
    Label,
    /// A declared field of the object.
    Field,
}

impl TermKind {
    fn tag(self) -> char {
        match self {
            Self::Label => 'l',
            Self::Field => 'f',
        }
    }
}

/// A label or field with its value, as one shared text: tag, name, NUL, value. Names never contain NUL.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Term(Arc<str>);

impl Term {
    /// The term of a name and a value.
    #[must_use]
    pub(super) fn new(kind: TermKind, name: &str, value: &str) -> Self {
        Self(Self::text(kind, name, value).into())
    }

    fn text(kind: TermKind, name: &str, value: &str) -> String {
        format!("{}{name}\0{value}", kind.tag())
    }

    /// The whole text, by which terms are ordered.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is a label or a field.
    #[must_use]
    pub(super) fn kind(&self) -> TermKind {
        if self.0.starts_with(TermKind::Label.tag()) {
            TermKind::Label
        } else {
            TermKind::Field
        }
    }

    /// The name of the label or field.
    #[must_use]
    pub(super) fn name(&self) -> &str {
        let text = self.0.get(1..).unwrap_or_default();
        text.split_once('\0').map_or(text, |(name, _)| name)
    }

    /// Its value.
    #[must_use]
    pub(super) fn value(&self) -> &str {
        self.0.split_once('\0').map_or("", |(_, value)| value)
    }

    fn value_if(&self, kind: TermKind, name: &str) -> Option<&str> {
        self.0
            .strip_prefix(kind.tag())?
            .strip_prefix(name)?
            .strip_prefix('\0')
    }
}

impl Borrow<str> for Term {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}({}={})", self.kind(), self.name(), self.value())
    }
}

/// The terms in use, and sets of them, so that equal ones share one allocation: objects of one workload have the same
/// labels. Owned by the feeder.
#[derive(Debug, Default)]
pub(super) struct Interner {
    terms: HashSet<Term>,
    sets: HashSet<Arc<[Term]>>,
    sweep_at: usize,
}

impl Interner {
    const SMALLEST_SWEEP: usize = 4096;

    fn intern(&mut self, kind: TermKind, name: &str, value: &str) -> Term {
        let text = Term::text(kind, name, value);
        if let Some(term) = self.terms.get(text.as_str()) {
            return term.clone();
        }
        let term = Term(text.into());
        self.terms.insert(term.clone());
        term
    }

    fn intern_set(&mut self, mut terms: Vec<Term>) -> Arc<[Term]> {
        terms.sort_unstable();
        if let Some(set) = self.sets.get(terms.as_slice()) {
            return Arc::clone(set);
        }
        if self.terms.len() + self.sets.len() >= self.sweep_at.max(Self::SMALLEST_SWEEP) {
            self.sets.retain(|set| Arc::strong_count(set) > 1);
            self.terms.retain(|term| Arc::strong_count(&term.0) > 1);
            self.sweep_at = (self.terms.len() + self.sets.len()) * 2;
        }
        let set: Arc<[Term]> = terms.into();
        self.sets.insert(Arc::clone(&set));
        set
    }
}

/// The attributes of an object, with its terms sorted. Shared between versions of an object.
#[derive(Debug, PartialEq, Eq)]
struct Kept {
    uid: Box<str>,
    terms: Arc<[Term]>,
}

/// An object as the cache holds it.
pub struct CachedObject {
    key: Key,
    value: Value,
    created: Revision,
    modified: Revision,
    kept: Arc<Kept>,
}

impl CachedObject {
    /// The object of an entry of the store.
    #[must_use]
    pub fn new(key: Key, entry: Entry, extract: &Extract) -> Self {
        Self::interned(key, entry, extract, None, &mut Interner::default())
    }

    /// As [`CachedObject::new`], but shares attributes with the previous version and with other objects where equal.
    pub(super) fn interned(
        key: Key,
        entry: Entry,
        extract: &Extract,
        before: Option<&Self>,
        interner: &mut Interner,
    ) -> Self {
        let attributes = extract(&key, &entry.value);
        let kept = match before {
            Some(before) if before.has(&attributes) => Arc::clone(&before.kept),
            _ => Arc::new(Kept::new(&attributes, interner)),
        };
        // Shares the allocation of the key too: the store may have allocated another one.
        let key = before.map_or(key, |before| before.key.clone());
        Self {
            key,
            value: entry.value,
            created: entry.created,
            modified: entry.modified,
            kept,
        }
    }

    fn has(&self, attributes: &Attributes) -> bool {
        let has = |kind, pairs: &[(String, String)]| {
            pairs
                .iter()
                .all(|(name, value)| self.value_of(kind, name) == Some(value))
        };
        *self.kept.uid == *attributes.uid
            && self.kept.terms.len() == attributes.labels.len() + attributes.fields.len()
            && has(TermKind::Label, &attributes.labels)
            && has(TermKind::Field, &attributes.fields)
    }

    /// The key under which it is stored.
    #[must_use]
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The stored payload, without resourceVersion, and the offset at which that is spliced in.
    #[must_use]
    pub fn value(&self) -> &Value {
        &self.value
    }

    /// The revision of its last write: its resourceVersion.
    #[must_use]
    pub fn modified(&self) -> Revision {
        self.modified
    }

    /// The entry as the store returns it.
    #[must_use]
    pub fn entry(&self) -> Entry {
        Entry {
            value: self.value.clone(),
            created: self.created,
            modified: self.modified,
        }
    }

    /// The value of a label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        self.value_of(TermKind::Label, name)
    }

    /// The value of a field that selectors may name. Every object has `metadata.name` and `metadata.namespace`.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&str> {
        match name {
            "metadata.name" => Some(self.key.name()),
            "metadata.namespace" => Some(self.key.namespace()),
            _ => self.value_of(TermKind::Field, name),
        }
    }

    fn value_of(&self, kind: TermKind, name: &str) -> Option<&str> {
        self.kept.terms.iter().find_map(|term| term.value_if(kind, name))
    }

    pub(super) fn terms(&self) -> &[Term] {
        &self.kept.terms
    }

    pub(super) fn has_terms_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.kept.terms, &other.kept.terms) || self.kept.terms == other.kept.terms
    }

    /// The size of the payload in bytes.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        u64::try_from(self.value.bytes.len()).unwrap_or(u64::MAX)
    }
}

impl Kept {
    fn new(attributes: &Attributes, interner: &mut Interner) -> Self {
        let labels = attributes.labels.iter().map(|pair| (TermKind::Label, pair));
        let fields = attributes.fields.iter().map(|pair| (TermKind::Field, pair));
        let terms: Vec<Term> = labels
            .chain(fields)
            .map(|(kind, (name, value))| interner.intern(kind, name, value))
            .collect();
        Self {
            uid: attributes.uid.as_str().into(),
            terms: interner.intern_set(terms),
        }
    }
}

impl fmt::Debug for CachedObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CachedObject")
            .field("key", &self.key)
            .field("modified", &self.modified)
            .finish_non_exhaustive()
    }
}

impl Item for Arc<CachedObject> {
    type Separator = Key;
    type Probe<'a> = &'a str;

    fn probe(&self) -> &str {
        self.key.as_str()
    }

    fn separator(&self) -> Key {
        self.key.clone()
    }

    fn bytes(&self) -> u64 {
        self.payload_bytes()
    }

    fn compare(&self, probe: &str) -> Ordering {
        self.key.as_str().cmp(probe)
    }

    fn compare_separator(separator: &Key, probe: &str) -> Ordering {
        separator.as_str().cmp(probe)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn object(payload: &'static str, splice_offset: u32) -> CachedObject {
        let entry = Entry {
            value: Value {
                bytes: Bytes::from_static(payload.as_bytes()),
                form: "v1".into(),
                splice_offset,
            },
            created: Revision(2),
            modified: Revision(7),
        };
        let extract = |_: &Key, _: &Value| Attributes {
            uid: "u".to_owned(),
            labels: vec![("b".to_owned(), "2".to_owned()), ("a".to_owned(), String::new())],
            fields: vec![("spec.x".to_owned(), "1".to_owned())],
        };
        CachedObject::new(Key::new("g", "r", "ns", "n").unwrap(), entry, &extract)
    }

    #[test]
    fn attributes_are_found_by_kind_and_name() {
        let object = object("{}", 1);
        assert_eq!(object.label("a"), Some(""));
        assert_eq!(object.label("b"), Some("2"));
        assert_eq!(object.label("spec.x"), None);
        assert_eq!(object.label(""), None);
        assert_eq!(object.field("spec.x"), Some("1"));
        assert_eq!(object.field("spec"), None);
        assert_eq!(object.field("metadata.name"), Some("n"));
        assert_eq!(object.field("metadata.namespace"), Some("ns"));
    }

    #[test]
    fn equal_label_sets_are_shared_and_unused_ones_are_dropped() {
        let mut interner = Interner::default();
        let mut kept = Vec::new();
        for number in 0..20_000_u32 {
            let attributes = Attributes {
                labels: vec![("number".to_owned(), (number % 10_000).to_string())],
                ..Attributes::default()
            };
            kept.push(Kept::new(&attributes, &mut interner));
            if number % 1000 == 999 {
                kept.truncate(kept.len() - 900);
            }
        }
        assert!(Arc::ptr_eq(&kept[0].terms, &kept[1000].terms));
        assert!(
            interner.terms.len() < 8192 && interner.sets.len() < 8192,
            "{}",
            interner.terms.len()
        );
    }

    #[test]
    fn versions_of_an_object_share_unchanged_attributes() {
        let mut interner = Interner::default();
        let first = object("{}", 1);
        let same = |_: &Key, _: &Value| Attributes {
            uid: "u".to_owned(),
            labels: vec![("a".to_owned(), String::new()), ("b".to_owned(), "2".to_owned())],
            fields: vec![("spec.x".to_owned(), "1".to_owned())],
        };
        let second = CachedObject::interned(
            first.key.clone(),
            first.entry(),
            &same,
            Some(&first),
            &mut interner,
        );
        assert!(Arc::ptr_eq(&first.kept, &second.kept));
        let fewer = |_: &Key, _: &Value| Attributes::default();
        let third = CachedObject::interned(
            first.key.clone(),
            first.entry(),
            &fewer,
            Some(&second),
            &mut interner,
        );
        assert!(!third.has_terms_of(&second));
    }
}
