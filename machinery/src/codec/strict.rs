//! What does a strict client hear, and how? The `fieldValidation` modes, their limits and their texts.

use std::fmt::Display;

/// How many strict errors one request may report; the rest is dropped.
pub(crate) const MOST_ERRORS: usize = 100;

/// The `fieldValidation` of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldValidation {
    /// Unknown and repeated fields are dropped without a word.
    Ignore,
    /// Each is answered with a `Warning` header.
    #[default]
    Warn,
    /// Each makes the request fail.
    Strict,
}

impl FieldValidation {
    /// The names a request may use, in the order in which errors list them.
    pub const SUPPORTED: [&'static str; 4] = ["", "Ignore", "Strict", "Warn"];

    /// The mode a parameter asks for; the empty text asks for the default. `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "Warn" => Some(Self::Warn),
            "Ignore" => Some(Self::Ignore),
            "Strict" => Some(Self::Strict),
            _ => None,
        }
    }
}

/// Something in a body that a lenient decoder drops. `Display` is the text of the `Warning` header.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum StrictError {
    /// A key of a YAML mapping stands twice.
    #[error("line {line}: key {key:?} already set in map")]
    DuplicateKey {
        /// The line of the second value, from 1.
        line: u64,
        /// The key.
        key: String,
    },
    /// A field of a JSON object stands twice.
    #[error("duplicate field \"{path}\"")]
    DuplicateField {
        /// The path: dots and `[i]`.
        path: String,
    },
    /// The schema does not know the field.
    #[error("unknown field \"{path}\"")]
    UnknownField {
        /// The path: dots and `[i]`.
        path: String,
    },
    /// A member of a JSON patch operation stands twice.
    #[error("json patch duplicate field \"{path}\"")]
    PatchDuplicateField {
        /// The path in the patch: `[0].value`.
        path: String,
    },
    /// A JSON patch operation has no such member.
    #[error("json patch unknown field \"{path}\"")]
    PatchUnknownField {
        /// The path in the patch: `[0].foo`.
        path: String,
    },
}

/// The errors of one request as they are reported: what the decoder found, then what the schema found; each text
/// once, nothing below an unknown field, at most 100.
///
/// For bodies in JSON, [`strict_errors_in`] gives the order of the body instead.
#[must_use]
pub fn strict_errors(duplicates: Vec<StrictError>, unknown: Vec<StrictError>) -> Vec<StrictError> {
    reported(duplicates, unknown, |errors| errors)
}

/// [`strict_errors`] of a JSON body, in the order in which they stand there.
#[must_use]
pub fn strict_errors_in(
    body: &[u8],
    duplicates: Vec<StrictError>,
    unknown: Vec<StrictError>,
) -> Vec<StrictError> {
    reported(duplicates, unknown, |errors| {
        super::json::in_order_of_discovery(body, errors)
    })
}

fn reported(
    mut found: Vec<StrictError>,
    mut unknown: Vec<StrictError>,
    order: impl FnOnce(Vec<StrictError>) -> Vec<StrictError>,
) -> Vec<StrictError> {
    let skipped: Vec<String> = unknown
        .iter()
        .filter_map(|error| match error {
            StrictError::UnknownField { path } => Some(path.clone()),
            _ => None,
        })
        .collect();
    let is_skipped = |error: &StrictError| match error {
        StrictError::DuplicateField { path } => skipped.iter().any(|skipped| {
            path.strip_prefix(skipped.as_str())
                .is_some_and(|rest| rest.starts_with(['.', '[']))
        }),
        _ => false,
    };
    found.append(&mut unknown);
    let mut errors: Vec<StrictError> = Vec::new();
    for error in order(found) {
        if errors.len() < MOST_ERRORS && !is_skipped(&error) && !errors.contains(&error) {
            errors.push(error);
        }
    }
    errors
}

/// The text of a strict failure: `strict decoding error: unknown field "spec.x", duplicate field "spec.y"`.
#[must_use]
pub fn strict_decoding_error(errors: &[StrictError]) -> String {
    let mut parts = Vec::new();
    if let Some(yaml) = yaml_lines(errors) {
        parts.push(yaml);
    }
    parts.extend(
        errors
            .iter()
            .filter(|error| !matches!(error, StrictError::DuplicateKey { .. }))
            .map(ToString::to_string),
    );
    format!("strict decoding error: {}", parts.join(", "))
}

/// The text of a strict failure of an apply patch, which only repeated keys of the YAML text can cause; `None` when
/// there are none.
#[must_use]
pub fn strict_yaml_error(errors: &[StrictError]) -> Option<String> {
    yaml_lines(errors)
        .map(|lines| format!("error strict decoding patch: error converting YAML to JSON: {lines}"))
}

/// Repeated YAML keys as one error of several lines.
fn yaml_lines(errors: &[StrictError]) -> Option<String> {
    let lines: Vec<String> = errors
        .iter()
        .filter(|error| matches!(error, StrictError::DuplicateKey { .. }))
        .map(|error| format!("\n  {error}"))
        .collect();
    (!lines.is_empty()).then(|| format!("yaml: unmarshal errors:{}", lines.concat()))
}

/// The message of a body of a known kind that does not decode: `EvictionRequest in version "v1alpha3" cannot be
/// handled as a EvictionRequest: …`.
#[must_use]
pub fn cannot_be_handled(kind: &str, version: &str, why: &dyn Display) -> String {
    format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unknown(path: &str) -> StrictError {
        StrictError::UnknownField {
            path: path.to_owned(),
        }
    }

    fn duplicate(path: &str) -> StrictError {
        StrictError::DuplicateField {
            path: path.to_owned(),
        }
    }

    #[test]
    fn each_text_is_kept_once_and_at_most_a_hundred() {
        let many: Vec<_> = (0..150)
            .map(|index| unknown(&format!("spec.x{}", index / 2)))
            .collect();
        assert_eq!(strict_errors(Vec::new(), many).len(), 75);
        let many: Vec<_> = (0..150).map(|index| unknown(&format!("spec.x{index}"))).collect();
        let kept = strict_errors(Vec::new(), many);
        assert_eq!(kept.len(), 100);
        assert_eq!(kept[99], unknown("spec.x99"));
    }

    #[test]
    fn bodies_in_json_give_their_order() {
        let errors = strict_errors_in(
            br#"{"spec":{"x":{"a":1,"a":1},"y":1,"y":1}}"#,
            vec![duplicate("spec.x.a"), duplicate("spec.y")],
            vec![unknown("spec.x")],
        );
        assert_eq!(
            strict_decoding_error(&errors),
            r#"strict decoding error: unknown field "spec.x", duplicate field "spec.y""#
        );
    }

    #[test]
    fn content_of_unknown_fields_is_not_inspected() {
        let errors = strict_errors(
            vec![
                duplicate("spec.x.y"),
                duplicate("spec.x"),
                duplicate("spec.xy"),
                duplicate("spec.x[0].a"),
            ],
            vec![unknown("spec.x")],
        );
        assert_eq!(
            errors,
            [duplicate("spec.x"), duplicate("spec.xy"), unknown("spec.x")]
        );
    }

    #[test]
    fn strict_failures_join_their_texts() {
        assert_eq!(
            strict_decoding_error(&[unknown("spec.x"), duplicate("spec.y")]),
            r#"strict decoding error: unknown field "spec.x", duplicate field "spec.y""#
        );
        let twice = StrictError::DuplicateKey {
            line: 2,
            key: "a".to_owned(),
        };
        assert_eq!(twice.to_string(), r#"line 2: key "a" already set in map"#);
        assert_eq!(
            strict_decoding_error(&[twice.clone(), unknown("spec.x")]),
            "strict decoding error: yaml: unmarshal errors:\n  line 2: key \"a\" already set in map, unknown field \"spec.x\""
        );
        assert_eq!(
            strict_yaml_error(&[twice]).unwrap(),
            "error strict decoding patch: error converting YAML to JSON: yaml: unmarshal errors:\n  line 2: key \"a\" already set in map"
        );
        assert_eq!(strict_yaml_error(&[unknown("a")]), None);
    }

    #[test]
    fn bodies_that_do_not_decode_name_kind_and_version() {
        assert_eq!(
            cannot_be_handled("EvictionRequest", "v1alpha3", &"unexpected end of JSON input"),
            "EvictionRequest in version \"v1alpha3\" cannot be handled as a EvictionRequest: unexpected end of JSON input"
        );
    }

    #[test]
    fn modes_have_the_names_of_the_parameter() {
        assert_eq!(FieldValidation::parse(""), Some(FieldValidation::Warn));
        assert_eq!(FieldValidation::parse("Strict"), Some(FieldValidation::Strict));
        assert_eq!(FieldValidation::parse("Ignore"), Some(FieldValidation::Ignore));
        assert_eq!(FieldValidation::parse("strict"), None);
    }
}
