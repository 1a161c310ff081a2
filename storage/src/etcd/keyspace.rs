//! Where the keys of a store are in etcd.
//!
//! Objects are at `<prefix>/<key>`. What the store itself needs is beside them, outside the range of all objects:
//! the marker at `<prefix>`, the compactor's key at `<prefix>.compact`.

use std::ops::Bound;

use super::error::EtcdOpenError;
use crate::{Key, KeyError, KeyRange};

/// The keys of one store.
#[derive(Debug, Clone)]
pub(super) struct Keyspace {
    /// The prefix without a slash at its end.
    prefix: String,
    /// What precedes every key of an object: the prefix and a slash.
    root: String,
}

/// A half-open range of keys of etcd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RawRange {
    pub(super) start: Vec<u8>,
    pub(super) end: Vec<u8>,
}

impl Keyspace {
    /// The keys below a prefix such as `/registry/drydock`.
    pub(super) fn new(prefix: &str) -> Result<Self, EtcdOpenError> {
        let trimmed = prefix.trim_end_matches('/');
        if !trimmed.starts_with('/') || trimmed.contains("//") || trimmed.contains('\0') {
            return Err(EtcdOpenError::Prefix {
                prefix: prefix.to_owned(),
            });
        }
        Ok(Self {
            prefix: trimmed.to_owned(),
            root: format!("{trimmed}/"),
        })
    }

    /// The prefix, for people.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The key of the marker.
    pub(super) fn marker(&self) -> &str {
        &self.prefix
    }

    /// The prefixes that this one is below, the longest first.
    pub(super) fn outer(&self) -> impl Iterator<Item = &str> {
        let slashes = self
            .prefix
            .match_indices('/')
            .map(|(at, _)| at)
            .filter(|at| *at > 0);
        slashes.rev().filter_map(|at| self.prefix.get(..at))
    }

    /// The key on which compactors agree.
    pub(super) fn compactor(&self) -> String {
        format!("{}.compact", self.prefix)
    }

    /// A key that never exists.
    pub(super) fn nothing(&self) -> String {
        format!("{}.nothing", self.prefix)
    }

    /// The key of an object.
    pub(super) fn object(&self, key: &Key) -> String {
        format!("{}{key}", self.root)
    }

    /// The key behind a key of etcd.
    pub(super) fn key(&self, raw: &[u8]) -> Result<Key, KeyError> {
        let text = String::from_utf8_lossy(raw);
        Key::parse(text.strip_prefix(&self.root).unwrap_or(&text))
    }

    /// The part of a range after the text `after`; none if it is empty.
    pub(super) fn range(&self, range: &KeyRange, after: &str) -> Option<RawRange> {
        let (start, end) = range.bounds_after(after)?;
        let start = match start {
            Bound::Included(text) => format!("{}{text}", self.root),
            Bound::Excluded(text) => format!("{}{text}\0", self.root),
            Bound::Unbounded => self.root.clone(),
        };
        let end = match end {
            Bound::Included(text) | Bound::Excluded(text) => format!("{}{text}", self.root),
            // The successor of the slash.
            Bound::Unbounded => format!("{}0", self.prefix),
        };
        Some(RawRange {
            start: start.into_bytes(),
            end: end.into_bytes(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(range: &KeyRange, after: &str) -> Option<(String, String)> {
        let keys = Keyspace::new("/registry/drydock/").unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let range = keys.range(range, after)?;
        Some((text(range.start), text(range.end)))
    }

    #[test]
    fn ranges_stay_below_the_prefix() {
        let both = |start: &str, end: &str| Some((start.to_owned(), end.to_owned()));
        let all = KeyRange::all();
        assert_eq!(range(&all, ""), both("/registry/drydock/", "/registry/drydock0"));
        assert_eq!(
            range(&all, "g/r/n/x"),
            both("/registry/drydock/g/r/n/x\0", "/registry/drydock0")
        );
        let things = KeyRange::resource("g", "r");
        assert_eq!(
            range(&things, ""),
            both("/registry/drydock/g/r/", "/registry/drydock/g/r0")
        );
        assert_eq!(range(&things, "z"), None);
    }

    #[test]
    fn what_the_store_needs_is_no_object() {
        let keys = Keyspace::new("/registry/drydock").unwrap();
        let all = keys.range(&KeyRange::all(), "").unwrap();
        for key in [keys.marker().to_owned(), keys.compactor(), keys.nothing()] {
            assert!(key.as_bytes() < all.start.as_slice(), "{key}");
        }
        let key = Key::new("g", "r", "", "x").unwrap();
        assert_eq!(keys.key(keys.object(&key).as_bytes()).unwrap(), key);
        assert!(keys.key(b"/registry/drydock/else").is_err());
    }

    #[test]
    fn a_prefix_may_be_below_others() {
        let outer = |prefix| -> Vec<String> {
            let keys = Keyspace::new(prefix).unwrap();
            keys.outer().map(str::to_owned).collect()
        };
        assert_eq!(outer("/registry/drydock/a/"), ["/registry/drydock", "/registry"]);
        assert!(outer("/registry").is_empty());
    }

    #[test]
    fn a_prefix_is_a_path() {
        for prefix in ["", "/", "//", "registry", "/a//b", "/a\0"] {
            assert!(Keyspace::new(prefix).is_err(), "{prefix}");
        }
    }
}
