//! Validation errors: which field is invalid, and why.
//!
//! A validation function walks an object with a [`FieldPath`] and returns an [`ErrorList`] with one [`FieldError`] for
//! each violation, in the order of the walk. Paths, bodies and reasons are those of `k8s.io/apimachinery`, since clients
//! display the bodies and match the reasons.
//!
//! Whatever the object, errors stay small: a list keeps [`MAX_ERRORS`] errors and [`MAX_LIST_BYTES`] of text, and an error
//! prints the first 1 KiB of a value.

use std::collections::HashSet;
use std::fmt;

use serde_json::Value;

use crate::excerpt;

/// The maximum number of errors that are reported of one object.
pub const MAX_ERRORS: usize = 100;

/// The maximum total size of the errors that are reported of one object, in bytes of their JSON form. Messages contain the
/// errors once more than their causes, so a response has about twice this size.
pub const MAX_LIST_BYTES: usize = 24 * 1024;

/// The last item of a message that does not contain all errors.
const MORE_ERRORS: &str = "and more errors";

/// How much of a value an error prints, in bytes.
const MAX_VALUE_BYTES: usize = 1024;
/// How much of the path of a field an error prints, in bytes.
const MAX_FIELD_BYTES: usize = 1024;
/// How much of the detail of an error is kept, in bytes.
const MAX_DETAIL_BYTES: usize = 4096;
/// How much of a name messages print, in bytes. Valid names are shorter.
const MAX_NAME_BYTES: usize = 1024;

/// The path of a field in an object: `spec.requesters[1].name`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldPath(String);

impl FieldPath {
    /// The object as a whole, printed `<nil>`.
    #[must_use]
    pub const fn root() -> Self {
        Self(String::new())
    }

    /// A member of the object.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// A member of this field.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        if self.0.is_empty() {
            return Self::new(name);
        }
        Self(format!("{}.{name}", self.0))
    }

    /// An item of this list.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// A value of this map. The key is not quoted.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "<nil>" } else { &self.0 })
    }
}

/// The kind of a violation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Required,
    Invalid,
    TypeInvalid,
    NotSupported,
    Forbidden,
    Duplicate,
    TooLong,
    TooMany,
}

impl Kind {
    /// The reason of the cause in a `Status`.
    const fn reason(self) -> &'static str {
        match self {
            Self::Required => "FieldValueRequired",
            Self::Invalid => "FieldValueInvalid",
            Self::TypeInvalid => "FieldValueTypeInvalid",
            Self::NotSupported => "FieldValueNotSupported",
            Self::Forbidden => "FieldValueForbidden",
            Self::Duplicate => "FieldValueDuplicate",
            Self::TooLong => "FieldValueTooLong",
            Self::TooMany => "FieldValueTooMany",
        }
    }

    const fn text(self) -> &'static str {
        match self {
            Self::Required => "Required value",
            Self::Invalid | Self::TypeInvalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Forbidden => "Forbidden",
            Self::Duplicate => "Duplicate value",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
        }
    }
}

/// One violation of one field. `Display` prints `field: body`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
#[error("{field}: {body}")]
pub struct FieldError {
    kind: Kind,
    field: String,
    body: String,
}

impl FieldError {
    fn without_value(kind: Kind, path: &FieldPath, detail: &str) -> Self {
        Self::with_body(kind, path, kind.text().to_owned(), detail)
    }

    fn with_value(kind: Kind, path: &FieldPath, value: impl Into<Value>, detail: &str) -> Self {
        let body = format!("{}: {}", kind.text(), printed(&value.into()));
        Self::with_body(kind, path, body, detail)
    }

    fn with_body(kind: Kind, path: &FieldPath, mut body: String, detail: &str) -> Self {
        if !detail.is_empty() {
            body.push_str(": ");
            body.push_str(&excerpt::cut(detail, MAX_DETAIL_BYTES));
        }
        Self {
            kind,
            field: excerpt::print(path, MAX_FIELD_BYTES),
            body,
        }
    }

    /// The field is missing or empty. `detail` may be empty, here and in the other constructors.
    #[must_use]
    pub fn required(path: &FieldPath, detail: &str) -> Self {
        Self::without_value(Kind::Required, path, detail)
    }

    /// The value violates a rule.
    #[must_use]
    pub fn invalid(path: &FieldPath, value: impl Into<Value>, detail: &str) -> Self {
        Self::with_value(Kind::Invalid, path, value, detail)
    }

    /// One error for each rule that the value violates.
    pub(crate) fn invalid_each(
        path: &FieldPath,
        value: &str,
        details: Vec<String>,
    ) -> impl Iterator<Item = Self> {
        details
            .into_iter()
            .map(move |detail| Self::invalid(path, value, &detail))
    }

    /// The value has the wrong type.
    #[must_use]
    pub fn type_invalid(path: &FieldPath, value: impl Into<Value>, detail: &str) -> Self {
        Self::with_value(Kind::TypeInvalid, path, value, detail)
    }

    /// The value is not one of `supported`, which are listed in the order given.
    #[must_use]
    pub fn not_supported(path: &FieldPath, value: impl Into<Value>, supported: &[&str]) -> Self {
        let listed: Vec<String> = supported.iter().map(|text| quoted(text)).collect();
        let detail = if listed.is_empty() {
            String::new()
        } else {
            format!("supported values: {}", listed.join(", "))
        };
        Self::with_value(Kind::NotSupported, path, value, &detail)
    }

    /// The field must not be set, or must not change, under these circumstances.
    #[must_use]
    pub fn forbidden(path: &FieldPath, detail: &str) -> Self {
        Self::without_value(Kind::Forbidden, path, detail)
    }

    /// The value occurs earlier in the list.
    #[must_use]
    pub fn duplicate(path: &FieldPath, value: impl Into<Value>) -> Self {
        Self::with_value(Kind::Duplicate, path, value, "")
    }

    /// The text has more than `max_bytes` bytes. The body does not contain the text.
    #[must_use]
    pub fn too_long(path: &FieldPath, max_bytes: usize) -> Self {
        let unit = if max_bytes == 1 { "byte" } else { "bytes" };
        Self::without_value(
            Kind::TooLong,
            path,
            &format!("may not be more than {max_bytes} {unit}"),
        )
    }

    /// The list has `actual` items, more than `max`.
    #[must_use]
    pub fn too_many(path: &FieldPath, actual: usize, max: usize) -> Self {
        let unit = if max == 1 { "item" } else { "items" };
        Self::with_value(
            Kind::TooMany,
            path,
            actual,
            &format!("must have at most {max} {unit}"),
        )
    }

    /// The reason of the cause in a `Status`.
    #[must_use]
    pub const fn reason(&self) -> &'static str {
        self.kind.reason()
    }

    /// The path of the field, as text.
    #[must_use]
    pub fn field(&self) -> &str {
        &self.field
    }

    /// The same error at another path.
    #[must_use]
    pub fn at(self, path: impl Into<String>) -> Self {
        Self {
            field: path.into(),
            ..self
        }
    }

    /// The error without the field: the message of the cause in a `Status`.
    #[must_use]
    pub fn body(&self) -> &str {
        &self.body
    }
}

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

/// A value as error bodies print it: text in quotes, anything else as JSON with `<`, `>` and `&` escaped; cut.
fn printed(value: &Value) -> String {
    match value {
        Value::String(text) => quoted(&excerpt::cut(text, MAX_VALUE_BYTES)),
        Value::Array(_) | Value::Object(_) => excerpt::print(value, MAX_VALUE_BYTES)
            .replace('&', "\\u0026")
            .replace('<', "\\u003c")
            .replace('>', "\\u003e"),
        scalar => scalar.to_string(),
    }
}

/// Text in double quotes, escaped as Go's `%q` does.
#[must_use]
pub fn quoted(text: &str) -> String {
    use fmt::Write as _;

    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            ' '..='~' => out.push(character),
            // Writing to a String cannot fail.
            _ if is_printable(character) => out.push(character),
            '\0'..='\x7f' => drop(write!(out, "\\x{:02x}", u32::from(character))),
            '\u{80}'..='\u{ffff}' => drop(write!(out, "\\u{:04x}", u32::from(character))),
            _ => drop(write!(out, "\\U{:08x}", u32::from(character))),
        }
    }
    out.push('"');
    out
}

/// Whether a character is printable (Go's `unicode.IsPrint`). A combining mark is printable only after a letter, so the
/// character is tested after one.
pub(crate) fn is_printable(character: char) -> bool {
    if character.is_ascii() {
        return matches!(character, ' '..='~');
    }
    let mut pair = [b'a'; 5];
    let Some(rest) = pair.get_mut(1..) else {
        return false;
    };
    let length = character.encode_utf8(rest).len();
    let text = pair
        .get(..=length)
        .and_then(|bytes| std::str::from_utf8(bytes).ok());
    text.is_some_and(|text| text.escape_debug().nth(1) == Some(character))
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    use super::*;

    /// Field, reason without `FieldValue`, and body without the example that some rules append in parentheses.
    pub(crate) type Cause<'a> = (&'a str, &'a str, &'a str);

    /// Compares errors with expected causes; `subject` is what was validated.
    pub(crate) fn assert_causes(errors: &ErrorList, expected: &[Cause<'_>], subject: &dyn fmt::Display) {
        let found: Vec<Cause<'_>> = errors
            .iter()
            .map(|error| {
                let reason = error.reason().trim_start_matches("FieldValue");
                let body = error.body().split(" (e.g. ").next().unwrap();
                (error.field(), reason, body)
            })
            .collect();
        assert_eq!(found, expected, "{subject}");
    }

    #[test]
    fn paths_have_the_format_of_kubernetes() {
        let requesters = FieldPath::new("spec").child("requesters");
        assert_eq!(
            requesters.index(1).child("name").to_string(),
            "spec.requesters[1].name"
        );
        assert_eq!(
            FieldPath::new("metadata").child("labels").key("a/b").to_string(),
            "metadata.labels[a/b]"
        );
        assert_eq!(FieldPath::root().to_string(), "<nil>");
        assert_eq!(FieldPath::root().child("spec").to_string(), "spec");
        assert_eq!(
            FieldPath::new("values").index(0).key("k").to_string(),
            "values[0][k]"
        );
    }

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

    #[test]
    fn bodies_and_reasons_follow_the_kind() {
        let path = &FieldPath::new("spec").child("a");
        for (error, reason, body) in [
            (FieldError::required(path, ""), "Required", "Required value"),
            (
                FieldError::required(path, "why"),
                "Required",
                "Required value: why",
            ),
            (
                FieldError::invalid(path, "a\"b", "why"),
                "Invalid",
                r#"Invalid value: "a\"b": why"#,
            ),
            (FieldError::invalid(path, 7, ""), "Invalid", "Invalid value: 7"),
            (
                FieldError::invalid(path, Value::Null, ""),
                "Invalid",
                "Invalid value: null",
            ),
            (
                FieldError::invalid(path, json!({"b": "<", "a": [1]}), "x"),
                "Invalid",
                r#"Invalid value: {"a":[1],"b":"\u003c"}: x"#,
            ),
            (
                FieldError::type_invalid(path, true, "x"),
                "TypeInvalid",
                "Invalid value: true: x",
            ),
            (
                FieldError::not_supported(path, "C", &["A", "B"]),
                "NotSupported",
                r#"Unsupported value: "C": supported values: "A", "B""#,
            ),
            (FieldError::forbidden(path, "why"), "Forbidden", "Forbidden: why"),
            (
                FieldError::duplicate(path, "n"),
                "Duplicate",
                r#"Duplicate value: "n""#,
            ),
            (
                FieldError::too_long(path, 10),
                "TooLong",
                "Too long: may not be more than 10 bytes",
            ),
            (
                FieldError::too_many(path, 3, 1),
                "TooMany",
                "Too many: 3: must have at most 1 item",
            ),
        ] {
            assert_eq!(error.reason(), format!("FieldValue{reason}"));
            assert_eq!(error.body(), body);
            assert_eq!(error.to_string(), format!("spec.a: {body}"));
        }
    }

    #[test]
    fn several_errors_are_printed_in_brackets_and_equal_errors_once() {
        let path = FieldPath::new("spec");
        let mut errors = ErrorList::new();
        assert_eq!(errors.invalid_message("K.g", "n"), r#"K.g "n" is invalid"#);
        errors.push(FieldError::required(&path, "x"));
        errors.push(FieldError::required(&path, "x"));
        assert_eq!(
            errors.invalid_message("K.g", "n"),
            r#"K.g "n" is invalid: spec: Required value: x"#
        );
        errors.push(FieldError::forbidden(&path, "y"));
        assert_eq!(
            errors.invalid_message("K.g", "n"),
            r#"K.g "n" is invalid: [spec: Required value: x, spec: Forbidden: y]"#
        );
        assert_eq!(errors.len(), 3);
    }

    #[test]
    fn text_is_quoted_as_in_go() {
        // Expected texts were printed by Go's strconv.Quote.
        for (text, expected) in [
            ("a b", r#""a b""#),
            (
                "\u{7}\u{8}\u{b}\u{c}\n\r\t\0\u{7f}",
                r#""\a\b\v\f\n\r\t\x00\x7f""#,
            ),
            ("é世e\u{301}", "\"é世e\u{301}\""),
            ("\u{85}\u{a0}\u{200b}\u{feff}", r#""\u0085\u00a0\u200b\ufeff""#),
            ("\u{10ffff}\u{1f600}", "\"\\U0010ffff\u{1f600}\""),
        ] {
            assert_eq!(quoted(text), expected);
        }
    }
}
