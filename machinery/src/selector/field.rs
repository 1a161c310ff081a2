//! Field selectors, over `metadata.name`, `metadata.namespace` and the fields that a kind declares.
//!
//! Terms compare with `=`, `==` or `!=`. All terms must be satisfied; an absent field equals the empty text.

use std::fmt;

use crate::field_error::quoted;

/// The fields by which objects of every kind can be selected.
const METADATA_FIELDS: [&str; 2] = ["metadata.name", "metadata.namespace"];

/// Why a field selector is rejected. `Display` prints the text of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldSelectorError {
    /// A term is not a comparison.
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    Syntax {
        /// The whole text.
        selector: String,
        /// The term.
        term: String,
    },
    /// A backslash before a character that cannot be escaped.
    #[error("invalid field selector: invalid escape sequence: {0}")]
    Escape(String),
    /// An unescaped `=` or `,` in a value; the number is its code point.
    #[error("invalid field selector: unescaped character in value: {0}")]
    Unescaped(u32),
    /// The field is not supported, in a kind that declares no fields.
    #[error("{} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"", quoted(.0))]
    Unknown(String),
    /// The field is not supported, in a kind that declares other fields.
    #[error("field label not supported: {0}")]
    Unsupported(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Term {
    field: String,
    equal: bool,
    value: String,
}

/// Terms that must all be satisfied. `Display` prints the text that [`FieldSelector::parse`] parses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct FieldSelector {
    terms: Vec<Term>,
}

impl FieldSelector {
    /// A selector that matches everything.
    #[must_use]
    pub const fn everything() -> Self {
        Self { terms: Vec::new() }
    }

    /// Parses the text of a query parameter: `metadata.name=a,metadata.namespace!=b`. A backslash escapes `\`, `,` and `=`.
    ///
    /// # Errors
    /// The first error in the order of the sorted terms.
    pub fn parse(text: &str) -> Result<Self, FieldSelectorError> {
        let mut parts = split_terms(text);
        parts.sort_unstable();
        let mut terms = Vec::with_capacity(parts.len());
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            let (field, equal, value) = split_term(part).ok_or_else(|| FieldSelectorError::Syntax {
                selector: text.to_owned(),
                term: part.to_owned(),
            })?;
            let value = unescaped(value)?;
            // A lone operator is not a condition, as in Kubernetes.
            if !field.is_empty() || !value.is_empty() {
                terms.push(Term {
                    field: field.to_owned(),
                    equal,
                    value,
                });
            }
        }
        // In the order of what is printed, in which `==` is `=`.
        terms.sort_by_cached_key(Term::to_string);
        Ok(Self { terms })
    }

    /// Checks that every field is supported: a metadata field, or one of those the kind declares.
    ///
    /// # Errors
    /// The first unsupported field.
    pub fn check_supported(&self, declared: &[&str]) -> Result<(), FieldSelectorError> {
        let known = |field: &str| METADATA_FIELDS.contains(&field) || declared.contains(&field);
        match self.terms.iter().find(|term| !known(&term.field)) {
            None => Ok(()),
            Some(term) if declared.is_empty() => Err(FieldSelectorError::Unknown(term.field.clone())),
            Some(term) => Err(FieldSelectorError::Unsupported(term.field.clone())),
        }
    }

    /// Whether it matches everything.
    #[must_use]
    pub const fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether it matches an object; `field` returns the value of a field.
    pub fn matches<'a>(&self, field: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.terms
            .iter()
            .all(|term| (field(&term.field).unwrap_or_default() == term.value) == term.equal)
    }

    /// The values that a field is compared with.
    pub fn values<'a>(&'a self, field: &'a str) -> impl Iterator<Item = &'a str> {
        let terms = self.terms.iter().filter(move |term| term.field == field);
        terms.map(|term| term.value.as_str())
    }

    /// Replaces the values that a field is compared with.
    #[must_use]
    pub fn map_values(mut self, field: &str, replacement: impl Fn(&str) -> String) -> Self {
        for term in self.terms.iter_mut().filter(|term| term.field == field) {
            term.value = replacement(&term.value);
        }
        self
    }

    /// The value that a term requires of a field, if any. A list by name then reads a single object.
    #[must_use]
    pub fn required_value(&self, field: &str) -> Option<&str> {
        self.terms
            .iter()
            .find(|term| term.equal && term.field == field)
            .map(|term| term.value.as_str())
    }
}

impl fmt::Display for FieldSelector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{term}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operator = if self.equal { "=" } else { "!=" };
        write!(f, "{}{operator}", self.field)?;
        for character in self.value.chars() {
            if matches!(character, '\\' | ',' | '=') {
                f.write_str("\\")?;
            }
            write!(f, "{character}")?;
        }
        Ok(())
    }
}

/// Splits at unescaped commas.
fn split_terms(text: &str) -> Vec<&str> {
    let mut escaped = false;
    text.split(|character| {
        let splits = character == ',' && !escaped;
        escaped = character == '\\' && !escaped;
        splits
    })
    .collect()
}

/// Splits at the first operator: the field, whether the value must be equal, and the value.
fn split_term(term: &str) -> Option<(&str, bool, &str)> {
    let starts_comparison = |at: &usize| {
        term.get(*at..)
            .is_some_and(|rest| rest.starts_with('=') || rest.starts_with("!="))
    };
    let start = term
        .match_indices(['=', '!'])
        .map(|(at, _)| at)
        .find(starts_comparison)?;
    let (field, rest) = term.split_at_checked(start)?;
    if let Some(value) = rest.strip_prefix("!=") {
        return Some((field, false, value));
    }
    let value = rest.strip_prefix("==").or_else(|| rest.strip_prefix('='))?;
    Some((field, true, value))
}

fn unescaped(value: &str) -> Result<String, FieldSelectorError> {
    let mut out = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => match characters.next() {
                Some(next @ ('\\' | ',' | '=')) => out.push(next),
                Some(other) => return Err(FieldSelectorError::Escape(format!("\\{other}"))),
                None => return Err(FieldSelectorError::Escape("\\".to_owned())),
            },
            ',' | '=' => return Err(FieldSelectorError::Unescaped(u32::from(character))),
            other => out.push(other),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, expected: Result<&str, &str>) {
        let parsed = FieldSelector::parse(text)
            .map(|selector| selector.to_string())
            .map_err(|error| error.to_string());
        assert_eq!(parsed.as_deref().map_err(String::as_str), expected, "{text}");
    }

    #[test]
    fn terms_are_parsed_and_printed() {
        check("", Ok(""));
        check(",", Ok(""));
        check("a=b,", Ok("a=b"));
        check("b==1,a!=2", Ok("a!=2,b=1"));
        check("a=", Ok("a="));
        check(r"a=b\,c\=d\\", Ok(r"a=b\,c\=d\\"));
        check("a!b=c", Ok("a!b=c"));
        check("=x", Ok("=x"));
        check("é=ü", Ok("é=ü"));
        check("=,!=,a=b", Ok("a=b"));
        // A value may sort before the second sign of the operator.
        check("a==,a= 1", Ok("a=,a= 1"));
    }

    #[test]
    fn errors_have_the_text_of_kubernetes() {
        check("a", Err("invalid selector: 'a'; can't understand 'a'"));
        check(
            "x=1,a in (b)",
            Err("invalid selector: 'x=1,a in (b)'; can't understand 'a in (b)'"),
        );
        check(
            r"a=\x",
            Err(r"invalid field selector: invalid escape sequence: \x"),
        );
        check(
            r"a=b\",
            Err(r"invalid field selector: invalid escape sequence: \"),
        );
        check(
            "a=b=c",
            Err("invalid field selector: unescaped character in value: 61"),
        );
    }

    #[test]
    fn only_declared_fields_are_supported() {
        let unknown = |text: &str, declared: &[&str]| {
            FieldSelector::parse(text)
                .unwrap()
                .check_supported(declared)
                .map_err(|error| error.to_string())
        };
        assert_eq!(unknown("metadata.name=a,metadata.namespace=b", &[]), Ok(()));
        assert_eq!(unknown("spec.x=a", &["spec.x"]), Ok(()));
        assert_eq!(
            unknown("spec.x=a", &[]),
            Err(
                r#""spec.x" is not a known field selector: only "metadata.name", "metadata.namespace""#
                    .to_owned()
            )
        );
        assert_eq!(
            unknown("spec.y=a", &["spec.x"]),
            Err("field label not supported: spec.y".to_owned())
        );
    }

    #[test]
    fn absent_fields_equal_the_empty_text() {
        let fields = |field: &str| (field == "metadata.name").then_some("web");
        for (text, expected) in [
            ("metadata.name=web", true),
            ("metadata.name!=web", false),
            ("metadata.name=db", false),
            ("metadata.namespace=", true),
            ("metadata.namespace!=x", true),
            ("metadata.name=web,metadata.namespace=x", false),
            ("", true),
        ] {
            assert_eq!(
                FieldSelector::parse(text).unwrap().matches(fields),
                expected,
                "{text}"
            );
        }
    }

    #[test]
    fn an_equality_term_requires_a_value() {
        let selector = FieldSelector::parse("metadata.name=web,metadata.namespace!=x").unwrap();
        assert_eq!(selector.required_value("metadata.name"), Some("web"));
        assert_eq!(selector.required_value("metadata.namespace"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_rejected(text in r"[ab,=!\\\PC]{0,24}") {
            if let Ok(selector) = FieldSelector::parse(&text) {
                prop_assert_eq!(&FieldSelector::parse(&selector.to_string()).unwrap(), &selector);
            }
        }
    }
}
