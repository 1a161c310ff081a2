//! Keys and ranges of keys.
//!
//! Keys are text, the same on every backend: `<group>/<resource>/<namespace or nothing>/<name>`. No part contains `/` or
//! NUL, so the prefix of a namespace, which ends with `/`, never matches a longer namespace (`a` and `ab`).

use std::borrow::Borrow;
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use thiserror::Error;

/// The longest key in bytes: four parts of at most 253 bytes and their separators.
pub const MAX_KEY_BYTES: usize = 1024;

/// Why a key was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KeyError {
    /// A required part is empty.
    #[error("the {part} of a key is empty")]
    Empty {
        /// Which part: `group`, `resource` or `name`.
        part: &'static str,
    },
    /// A part contains `/` or NUL, which would put it into another range.
    #[error("the {part} of a key contains '/' or NUL")]
    Separator {
        /// Which part: `group`, `resource`, `namespace` or `name`.
        part: &'static str,
    },
    /// The text has not exactly four parts.
    #[error("a key has four parts, this text has {found}")]
    Parts {
        /// How many were found.
        found: usize,
    },
    /// The key is longer than [`MAX_KEY_BYTES`].
    #[error("a key has at most {MAX_KEY_BYTES} bytes, this one has {found}")]
    TooLong {
        /// Its length in bytes.
        found: usize,
    },
}

/// The key of one object. Cloning increments a reference count; keys are ordered by their bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// The key of an object; `namespace` is empty for cluster-scoped resources.
    ///
    /// # Errors
    /// An empty part (other than the namespace), a part with `/` or NUL, a key that is too long.
    pub fn new(group: &str, resource: &str, namespace: &str, name: &str) -> Result<Self, KeyError> {
        for (part, text, may_be_empty) in [
            ("group", group, false),
            ("resource", resource, false),
            ("namespace", namespace, true),
            ("name", name, false),
        ] {
            if text.is_empty() && !may_be_empty {
                return Err(KeyError::Empty { part });
            }
            if text.bytes().any(|byte| byte == b'/' || byte == 0) {
                return Err(KeyError::Separator { part });
            }
        }
        let text = format!("{group}/{resource}/{namespace}/{name}");
        if text.len() > MAX_KEY_BYTES {
            return Err(KeyError::TooLong { found: text.len() });
        }
        Ok(Self(text.into()))
    }

    /// Reads a key as written by [`Key::as_str`].
    ///
    /// # Errors
    /// As [`Key::new`], and for a text without exactly four parts.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let parts: Vec<&str> = text.split('/').collect();
        let [group, resource, namespace, name] = parts.as_slice() else {
            return Err(KeyError::Parts { found: parts.len() });
        };
        Self::new(group, resource, namespace, name)
    }

    /// The whole key: `<group>/<resource>/<namespace>/<name>`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn part(&self, index: usize) -> &str {
        self.0.split('/').nth(index).unwrap_or_default()
    }

    /// The API group.
    #[must_use]
    pub fn group(&self) -> &str {
        self.part(0)
    }

    /// The plural resource.
    #[must_use]
    pub fn resource(&self) -> &str {
        self.part(1)
    }

    /// The namespace, empty for cluster-scoped resources.
    #[must_use]
    pub fn namespace(&self) -> &str {
        self.part(2)
    }

    /// The object's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.part(3)
    }
}

/// Equality, order and hash of a key are those of its text, so maps of keys can be searched by text.
impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.0)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A half-open range of keys, `start <= key < end`, as text. An empty `end` is unbounded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct KeyRange {
    /// The inclusive lower bound.
    pub start: String,
    /// The exclusive upper bound; empty: unbounded.
    pub end: String,
}

impl KeyRange {
    /// Every key of the store.
    #[must_use]
    pub fn all() -> Self {
        Self {
            start: String::new(),
            end: String::new(),
        }
    }

    /// All objects of a resource, in every namespace.
    #[must_use]
    pub fn resource(group: &str, resource: &str) -> Self {
        Self::prefix(format!("{group}/{resource}/"))
    }

    /// All objects of a resource in one namespace.
    #[must_use]
    pub fn namespace(group: &str, resource: &str, namespace: &str) -> Self {
        Self::prefix(format!("{group}/{resource}/{namespace}/"))
    }

    /// The one key.
    #[must_use]
    pub fn one(key: &Key) -> Self {
        Self {
            start: key.as_str().to_owned(),
            end: format!("{key}\0"),
        }
    }

    /// `prefix` ends with `/`, whose successor is `0`.
    fn prefix(prefix: String) -> Self {
        let mut end = prefix.clone();
        end.pop();
        end.push('0');
        Self { start: prefix, end }
    }

    /// Group and resource of a range of one resource; empty for a range of several.
    pub(crate) fn group_and_resource(&self) -> (&str, &str) {
        let mut parts = self.start.split('/');
        (parts.next().unwrap_or_default(), parts.next().unwrap_or_default())
    }

    /// Whether the key is in the range.
    #[must_use]
    pub fn contains(&self, key: &str) -> bool {
        key >= self.start.as_str() && (self.end.is_empty() || key < self.end.as_str())
    }

    /// The bounds of the part of the range after the text `after`; none if it is empty.
    #[must_use]
    pub fn bounds_after<'a>(&'a self, after: &'a str) -> Option<(Bound<&'a str>, Bound<&'a str>)> {
        let is_whole = after.is_empty() || after < self.start.as_str();
        let lowest = if is_whole { self.start.as_str() } else { after };
        if !self.end.is_empty() && lowest >= self.end.as_str() {
            return None;
        }
        let start = if is_whole {
            Bound::Included(lowest)
        } else {
            Bound::Excluded(lowest)
        };
        let end = if self.end.is_empty() {
            Bound::Unbounded
        } else {
            Bound::Excluded(self.end.as_str())
        };
        Some((start, end))
    }
}
