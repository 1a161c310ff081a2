//! Strict decoding errors (unknown and duplicate fields), and the `fieldValidation` modes that report them.

use std::fmt::Display;

use crate::field_error::MAX_ERRORS;

/// How much of a key messages print, in bytes.
pub(super) const MAX_KEY_BYTES: usize = 1024;

/// The `fieldValidation` of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FieldValidation {
    /// Unknown and duplicate fields are dropped silently.
    Ignore,
    /// Unknown and duplicate fields are dropped; each adds a `Warning` header.
    #[default]
    Warn,
    /// Unknown and duplicate fields fail the request.
    Strict,
}

impl FieldValidation {
    /// The supported values of the parameter, in the order in which errors list them.
    pub const SUPPORTED: [&'static str; 4] = ["", "Ignore", "Strict", "Warn"];

    /// Parses the parameter; the empty text is the default mode. `None` for an unsupported value.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "" | "Warn" => Some(Self::Warn),
            "Ignore" => Some(Self::Ignore),
            "Strict" => Some(Self::Strict),
            _ => None,
        }
    }

    /// Applies the mode to the strict errors of a request. Returns the errors to send as warnings.
    ///
    /// # Errors
    /// In [`Strict`](Self::Strict) mode the text of the failure, if there are any errors.
    pub fn check(self, errors: Vec<StrictError>) -> Result<Vec<StrictError>, String> {
        match self {
            Self::Warn => Ok(errors),
            Self::Strict if !errors.is_empty() => Err(strict_decoding_error(&errors)),
            Self::Ignore | Self::Strict => Ok(Vec::new()),
        }
    }
}

/// An unknown or duplicate field of a body. `Display` prints the text of the `Warning` header.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum StrictError {
    /// A duplicate key of a YAML mapping.
    #[error("line {line}: key {key:?} already set in map")]
    DuplicateKey {
        /// The line of the second value, counted from 1.
        line: u64,
        /// The key.
        key: String,
    },
    /// A duplicate field of a JSON object.
    #[error("duplicate field \"{path}\"")]
    DuplicateField {
        /// The path: dots and `[i]`.
        path: String,
    },
    /// A field that is not in the schema.
    #[error("unknown field \"{path}\"")]
    UnknownField {
        /// The path: dots and `[i]`.
        path: String,
    },
    /// A duplicate member of a JSON patch operation.
    #[error("json patch duplicate field \"{path}\"")]
    PatchDuplicateField {
        /// The path in the patch: `[0].value`.
        path: String,
    },
    /// An unknown member of a JSON patch operation.
    #[error("json patch unknown field \"{path}\"")]
    PatchUnknownField {
        /// The path in the patch: `[0].foo`.
        path: String,
    },
}

/// The strict errors of one request as they are reported: errors of the decoder, then those of the schema; each text
/// once, none below an unknown field, at most 100.
///
/// For JSON bodies, [`strict_errors_in`] returns them in the order of the body instead.
#[must_use]
pub fn strict_errors(duplicates: Vec<StrictError>, unknown: Vec<StrictError>) -> Vec<StrictError> {
    reported(duplicates, unknown, |errors| errors)
}

/// [`strict_errors`] of a JSON body, in the order in which they occur in the body.
#[must_use]
pub fn strict_errors_in(
    body: &[u8],
    duplicates: Vec<StrictError>,
    unknown: Vec<StrictError>,
) -> Vec<StrictError> {
    reported(duplicates, unknown, |errors| {
        super::json::in_order_of_position(body, errors)
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
        if errors.len() < MAX_ERRORS && !is_skipped(&error) && !errors.contains(&error) {
            errors.push(error);
        }
    }
    errors
}

/// The text of a failure in strict mode: `strict decoding error: unknown field "spec.x", duplicate field "spec.y"`.
#[must_use]
fn strict_decoding_error(errors: &[StrictError]) -> String {
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

/// The text of a failure of an apply patch in strict mode, which only duplicate keys of the YAML text cause; `None` if
/// there are none.
#[must_use]
pub fn strict_yaml_error(errors: &[StrictError]) -> Option<String> {
    yaml_lines(errors)
        .map(|lines| format!("error strict decoding patch: error converting YAML to JSON: {lines}"))
}

/// Duplicate YAML keys as one error with several lines.
fn yaml_lines(errors: &[StrictError]) -> Option<String> {
    let lines: Vec<String> = errors
        .iter()
        .filter(|error| matches!(error, StrictError::DuplicateKey { .. }))
        .map(|error| format!("\n  {error}"))
        .collect();
    (!lines.is_empty()).then(|| format!("yaml: unmarshal errors:{}", lines.concat()))
}

/// The message for a body of a known kind that does not decode: `EvictionRequest in version "v1alpha3" cannot be
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
    fn errors_are_reported_once_and_limited() {
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
    fn errors_of_json_bodies_are_sorted_by_position() {
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
    fn errors_below_unknown_fields_are_not_reported() {
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
    fn failures_in_strict_mode_list_all_errors() {
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
    fn undecodable_bodies_are_reported_with_kind_and_version() {
        assert_eq!(
            cannot_be_handled("EvictionRequest", "v1alpha3", &"unexpected end of JSON input"),
            "EvictionRequest in version \"v1alpha3\" cannot be handled as a EvictionRequest: unexpected end of JSON input"
        );
    }

    #[test]
    fn modes_are_parsed_and_decide_what_is_reported() {
        assert_eq!(FieldValidation::parse(""), Some(FieldValidation::Warn));
        assert_eq!(FieldValidation::parse("Strict"), Some(FieldValidation::Strict));
        assert_eq!(FieldValidation::parse("Ignore"), Some(FieldValidation::Ignore));
        assert_eq!(FieldValidation::parse("strict"), None);
        let errors = vec![unknown("spec.x")];
        assert_eq!(FieldValidation::Ignore.check(errors.clone()), Ok(Vec::new()));
        assert_eq!(FieldValidation::Warn.check(errors.clone()), Ok(errors.clone()));
        assert_eq!(
            FieldValidation::Strict.check(errors),
            Err(r#"strict decoding error: unknown field "spec.x""#.to_owned())
        );
        assert_eq!(FieldValidation::Strict.check(Vec::new()), Ok(Vec::new()));
    }
}
