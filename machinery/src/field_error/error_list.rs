//! The list of validation errors of an object, which stays small whatever the object is.

use std::collections::HashSet;
use std::fmt;

use super::{FieldError, quoted};
use crate::excerpt;

/// The maximum number of errors that are reported of one object.
pub const MAX_ERRORS: usize = 100;

/// The maximum total size of the errors that are reported of one object, in bytes of their JSON form. Messages contain the
/// errors once more than their causes, so a response has about twice this size.
pub const MAX_LIST_BYTES: usize = 24 * 1024;

/// The last item of a message that does not contain all errors.
const MORE_ERRORS: &str = "and more errors";

/// How much of a name messages print, in bytes. Valid names are shorter.
const MAX_NAME_BYTES: usize = 1024;

/// The validation errors of an object: at most [`MAX_ERRORS`], and at most [`MAX_LIST_BYTES`] of text. Once it is full,
/// further errors are dropped, and iterators that extend it are not read further.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ErrorList {
    errors: Vec<FieldError>,
    json_bytes: usize,
    /// The first error that was dropped. It is not reported, but a list that is extended by this one drops it too.
    dropped: Option<FieldError>,
}

impl ErrorList {
    /// An empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            errors: Vec::new(),
            json_bytes: 0,
            dropped: None,
        }
    }

    /// Appends an error, unless the list is full.
    pub fn push(&mut self, error: FieldError) {
        let bytes = json_bytes(&error.field) + json_bytes(&error.body);
        if self.is_full() {
            return;
        }
        if self.errors.len() >= MAX_ERRORS || self.json_bytes + bytes > MAX_LIST_BYTES {
            self.dropped = Some(error);
        } else {
            self.json_bytes += bytes;
            self.errors.push(error);
        }
    }

    /// Whether further errors are dropped: validation may stop.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.dropped.is_some()
    }

    /// The number of errors.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.errors.len()
    }

    /// Whether the object is valid.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// The errors in the order in which they were found.
    pub fn iter(&self) -> std::slice::Iter<'_, FieldError> {
        self.errors.iter()
    }

    /// The message of the 422 response; `kind` is `Kind.group`. Errors with equal text are printed once.
    #[must_use]
    pub fn invalid_message(&self, kind: &str, name: &str) -> String {
        let name = quoted(&excerpt::cut(name, MAX_NAME_BYTES));
        if self.is_empty() {
            return format!("{kind} {name} is invalid");
        }
        format!("{kind} {name} is invalid: {self}")
    }
}

impl fmt::Display for ErrorList {
    /// A single error is printed as it is, several in brackets; errors with equal text are printed once.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut seen = HashSet::new();
        let mut texts: Vec<String> = self
            .errors
            .iter()
            .map(ToString::to_string)
            .filter(|text| seen.insert(text.clone()))
            .collect();
        if self.is_full() {
            texts.push(MORE_ERRORS.to_owned());
        }
        match texts.as_slice() {
            [only] => f.write_str(only),
            several => write!(f, "[{}]", several.join(", ")),
        }
    }
}

impl Extend<FieldError> for ErrorList {
    fn extend<I: IntoIterator<Item = FieldError>>(&mut self, errors: I) {
        for error in errors {
            self.push(error);
            if self.is_full() {
                return;
            }
        }
    }
}

impl FromIterator<FieldError> for ErrorList {
    fn from_iter<I: IntoIterator<Item = FieldError>>(errors: I) -> Self {
        let mut list = Self::new();
        list.extend(errors);
        list
    }
}

impl From<FieldError> for ErrorList {
    fn from(error: FieldError) -> Self {
        Self::from_iter([error])
    }
}

impl IntoIterator for ErrorList {
    type Item = FieldError;
    type IntoIter = std::iter::Chain<std::vec::IntoIter<FieldError>, std::option::IntoIter<FieldError>>;

    fn into_iter(self) -> Self::IntoIter {
        self.errors.into_iter().chain(self.dropped)
    }
}

impl<'a> IntoIterator for &'a ErrorList {
    type Item = &'a FieldError;
    type IntoIter = std::slice::Iter<'a, FieldError>;

    fn into_iter(self) -> Self::IntoIter {
        self.errors.iter()
    }
}

/// The length of a text in JSON, without the quotes around it.
fn json_bytes(text: &str) -> usize {
    text.bytes()
        .map(|byte| match byte {
            b'"' | b'\\' => 2,
            0..=0x1f => 6,
            _ => 1,
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::super::{FieldPath, MAX_DETAIL_BYTES, MAX_VALUE_BYTES};
    use super::*;

    #[test]
    fn lists_keep_a_limited_number_of_errors() {
        let path = FieldPath::new("a");
        let read = std::cell::Cell::new(0);
        let endless = std::iter::repeat_with(|| {
            read.set(read.get() + 1);
            FieldError::invalid(&path.index(read.get()), "x", "")
        });
        let list: ErrorList = endless.collect();
        assert_eq!((list.len(), read.get()), (MAX_ERRORS, MAX_ERRORS + 1));
        assert!(
            list.to_string()
                .ends_with("a[100]: Invalid value: \"x\", and more errors]")
        );

        let mut outer = ErrorList::new();
        outer.extend(list.clone());
        assert_eq!(outer, list, "a list that is extended by a full list is full");
        let exact: ErrorList = list.iter().cloned().collect();
        assert!(!exact.is_full());
    }

    #[test]
    fn lists_and_errors_keep_a_limited_text() {
        let long = "\"".repeat(3_000_000);
        let path = FieldPath::new("labels").key(&long);
        let error = FieldError::invalid(&path, long.as_str(), &long);
        assert!(error.field().len() + error.body().len() < 3 * MAX_DETAIL_BYTES);
        let list = FieldError::invalid(&path, vec![long.clone(); 2], "");
        assert!(list.body().len() < 2 * MAX_VALUE_BYTES, "{}", list.body().len());
        let many: ErrorList = std::iter::repeat_n(error, 200).collect();
        assert!(many.is_full() && !many.is_empty());
        let bytes: usize = many.iter().map(|error| json_bytes(&error.to_string())).sum();
        assert!(bytes < MAX_LIST_BYTES + 200, "{bytes}");
        assert!(many.invalid_message("Kind", &long).len() < MAX_LIST_BYTES + 4 * MAX_NAME_BYTES);
    }
}
