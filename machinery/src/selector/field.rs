//! Which objects have fields like these? A few fields only: `metadata.name`, `metadata.namespace`, and what a kind
//! declares. Terms are `=`, `==` and `!=`, and all must hold; an absent field is empty text.

use std::fmt;

use crate::field_error::quoted;

/// The fields every kind can be selected by.
pub const METADATA_FIELDS: [&str; 2] = ["metadata.name", "metadata.namespace"];

/// Why a field selector is refused, in the words clients know.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FieldSelectorError {
    /// A term is no comparison.
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    Syntax {
        /// The whole text.
        selector: String,
        /// The term.
        term: String,
    },
    /// A backslash in front of something that needs none.
    #[error("invalid field selector: invalid escape sequence: {0}")]
    Escape(String),
    /// A `=` or `,` in a value without a backslash; the number is its code point.
    #[error("invalid field selector: unescaped character in value: {0}")]
    Unescaped(u32),
    /// Objects cannot be selected by the field, in a kind that declares none of its own.
    #[error("{} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"", quoted(.0))]
    Unknown(String),
    /// Objects cannot be selected by the field, in a kind that declares others.
    #[error("field label not supported: {0}")]
    Unsupported(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Term {
    field: String,
    equal: bool,
    value: String,
}

/// Terms that must all hold. `Display` prints what [`FieldSelector::parse`] reads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct FieldSelector {
    terms: Vec<Term>,
}

impl FieldSelector {
    /// Holds for everything.
    #[must_use]
    pub const fn everything() -> Self {
        Self { terms: Vec::new() }
    }

    /// Reads the text of a query: `metadata.name=a,metadata.namespace!=b`. A backslash escapes `\`, `,` and `=`.
    ///
    /// # Errors
    /// The first fault in the order of the sorted terms.
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
            // A lone operator asks nothing, whichever it is.
            if !field.is_empty() || !value.is_empty() {
                terms.push(Term {
                    field: field.to_owned(),
                    equal,
                    value,
                });
            }
        }
        Ok(Self { terms })
    }

    /// Whether every field is one of [`METADATA_FIELDS`] or of those the kind declares.
    ///
    /// # Errors
    /// The first field that is not.
    pub fn check_supported(&self, declared: &[&str]) -> Result<(), FieldSelectorError> {
        let known = |field: &str| METADATA_FIELDS.contains(&field) || declared.contains(&field);
        match self.terms.iter().find(|term| !known(&term.field)) {
            None => Ok(()),
            Some(term) if declared.is_empty() => Err(FieldSelectorError::Unknown(term.field.clone())),
            Some(term) => Err(FieldSelectorError::Unsupported(term.field.clone())),
        }
    }

    /// Whether it holds for everything.
    #[must_use]
    pub const fn is_everything(&self) -> bool {
        self.terms.is_empty()
    }

    /// Whether it holds for an object whose fields `field` looks up.
    pub fn matches<'a>(&self, field: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.terms
            .iter()
            .all(|term| (field(&term.field).unwrap_or_default() == term.value) == term.equal)
    }

    /// The one value a field must have, if a term says so: a list by name need not look at every object.
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
            let operator = if term.equal { "=" } else { "!=" };
            write!(f, "{comma}{}{operator}", term.field)?;
            for character in term.value.chars() {
                if matches!(character, '\\' | ',' | '=') {
                    f.write_str("\\")?;
                }
                write!(f, "{character}")?;
            }
        }
        Ok(())
    }
}

/// Splits at commas that no backslash escapes.
fn split_terms(text: &str) -> Vec<&str> {
    let mut escaped = false;
    text.split(|character| {
        let splits = character == ',' && !escaped;
        escaped = character == '\\' && !escaped;
        splits
    })
    .collect()
}

/// Splits at the first comparison: the field, whether the values must be equal, and the value.
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
    fn terms_are_read_and_printed() {
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
    }

    #[test]
    fn faults_read_as_in_kubernetes() {
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
    fn absent_fields_are_empty() {
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
    fn a_term_may_name_the_only_value() {
        let selector = FieldSelector::parse("metadata.name=web,metadata.namespace!=x").unwrap();
        assert_eq!(selector.required_value("metadata.name"), Some("web"));
        assert_eq!(selector.required_value("metadata.namespace"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in r"[ab,=!\\\PC]{0,24}") {
            if let Ok(selector) = FieldSelector::parse(&text) {
                prop_assert_eq!(&FieldSelector::parse(&selector.to_string()).unwrap(), &selector);
            }
        }
    }
}
