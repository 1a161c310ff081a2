//! Label selectors. [`Selector::parse`] parses the text of a query parameter, [`Selector::try_from`] converts a
//! `metav1.LabelSelector`. All requirements must be satisfied; a selector without requirements matches everything.

mod parse;

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use crate::field_error::{ErrorList, FieldError, FieldPath};
use crate::names::{label_key_errors, label_value_errors};

pub use parse::ParseError;

/// How many of the values of a requirement an error about their number prints.
const VALUES_SHOWN: usize = 10;

/// The operator of a requirement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operator {
    /// The label is present with one of the values.
    In,
    /// The label is absent or has none of the values.
    NotIn,
    /// The label is present with the value; written `=`.
    Equals,
    /// The same as [`Equals`](Self::Equals), written `==`.
    DoubleEquals,
    /// The label is absent or has another value.
    NotEquals,
    /// The label is present.
    Exists,
    /// The label is absent.
    DoesNotExist,
    /// The label is a 64-bit integer greater than the value.
    GreaterThan,
    /// The label is a 64-bit integer less than the value.
    LessThan,
}

impl Operator {
    /// The operators shared by the requirements of label selectors and node selectors.
    pub(super) fn parse_set(operator: &str) -> Option<Self> {
        match operator {
            "In" => Some(Self::In),
            "NotIn" => Some(Self::NotIn),
            "Exists" => Some(Self::Exists),
            "DoesNotExist" => Some(Self::DoesNotExist),
            _ => None,
        }
    }
}

/// One condition on one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

impl Requirement {
    /// A requirement with a valid key and valid values.
    ///
    /// # Errors
    /// All errors, below `path`: an invalid label key or value, or the wrong number of values.
    pub fn new(
        path: &FieldPath,
        key: &str,
        operator: Operator,
        values: Vec<String>,
    ) -> Result<Self, ErrorList> {
        let mut errors = ErrorList::new();
        errors.extend(key_error(&path.child("key"), key));
        let values_path = path.child("values");
        if let Some(detail) = wrong_number_of_values(operator, values.len()) {
            let shown: Vec<String> = values.iter().take(VALUES_SHOWN).cloned().collect();
            errors.push(FieldError::invalid(&values_path, shown, detail));
        }
        if matches!(operator, Operator::GreaterThan | Operator::LessThan) {
            errors.extend(not_integers(&values_path, &values));
        }
        for (index, value) in values.iter().enumerate() {
            if errors.is_full() {
                break;
            }
            let details = label_value_errors(value);
            if !details.is_empty() {
                let path = values_path.index(index).key(key);
                errors.push(FieldError::invalid(&path, value.as_str(), &details.join("; ")));
            }
        }
        if errors.is_empty() {
            Ok(Self {
                key: key.to_owned(),
                operator,
                values,
            })
        } else {
            Err(errors)
        }
    }

    /// The label key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The operator.
    #[must_use]
    pub const fn operator(&self) -> Operator {
        self.operator
    }

    /// The values of the operator.
    #[must_use]
    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// Whether a label with this value, or an absent label, satisfies the requirement.
    #[must_use]
    pub fn matches(&self, label: Option<&str>) -> bool {
        let has = |label: &str| self.values.iter().any(|value| value == label);
        match self.operator {
            Operator::In | Operator::Equals | Operator::DoubleEquals => label.is_some_and(has),
            Operator::NotIn | Operator::NotEquals => !label.is_some_and(has),
            Operator::Exists => label.is_some(),
            Operator::DoesNotExist => label.is_none(),
            Operator::GreaterThan => self.compares(label, |label, value| label > value),
            Operator::LessThan => self.compares(label, |label, value| label < value),
        }
    }

    fn compares(&self, label: Option<&str>, holds: fn(i64, i64) -> bool) -> bool {
        let number = |text: &str| text.parse::<i64>().ok();
        let label = label.and_then(number);
        let value = self.values.first().and_then(|value| number(value));
        matches!((label, value), (Some(label), Some(value)) if holds(label, value))
    }
}

fn key_error(path: &FieldPath, key: &str) -> Option<FieldError> {
    let details = label_key_errors(key);
    (!details.is_empty()).then(|| FieldError::invalid(path, key, &details.join("; ")))
}

fn wrong_number_of_values(operator: Operator, count: usize) -> Option<&'static str> {
    match operator {
        Operator::In | Operator::NotIn if count == 0 => {
            Some("for 'in', 'notin' operators, values set can't be empty")
        }
        Operator::Equals | Operator::DoubleEquals | Operator::NotEquals if count != 1 => {
            Some("exact-match compatibility requires one single value")
        }
        Operator::Exists | Operator::DoesNotExist if count != 0 => {
            Some("values set must be empty for exists and does not exist")
        }
        Operator::GreaterThan | Operator::LessThan if count != 1 => {
            Some("for 'Gt', 'Lt' operators, exactly one value is required")
        }
        _ => None,
    }
}

/// An error for each value that is not a 64-bit integer.
pub(super) fn not_integers<'a>(
    path: &'a FieldPath,
    values: &'a [String],
) -> impl Iterator<Item = FieldError> + 'a {
    values
        .iter()
        .enumerate()
        .filter(|(_, value)| value.parse::<i64>().is_err())
        .map(|(index, value)| {
            let detail = "for 'Gt', 'Lt' operators, the value must be an integer";
            FieldError::invalid(&path.index(index), value.as_str(), detail)
        })
}

impl fmt::Display for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        let mut values: Vec<&str> = self.values.iter().map(String::as_str).collect();
        values.sort_unstable();
        let values = values.join(",");
        match self.operator {
            Operator::In => write!(f, "{key} in ({values})"),
            Operator::NotIn => write!(f, "{key} notin ({values})"),
            Operator::Equals => write!(f, "{key}={values}"),
            Operator::DoubleEquals => write!(f, "{key}=={values}"),
            Operator::NotEquals => write!(f, "{key}!={values}"),
            Operator::Exists => write!(f, "{key}"),
            Operator::DoesNotExist => write!(f, "!{key}"),
            Operator::GreaterThan => write!(f, "{key}>{values}"),
            Operator::LessThan => write!(f, "{key}<{values}"),
        }
    }
}

/// Requirements that must all be satisfied, sorted by key. `Display` prints the text that [`Selector::parse`] parses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

impl Selector {
    /// A selector that matches everything.
    #[must_use]
    pub const fn everything() -> Self {
        Self {
            requirements: Vec::new(),
        }
    }

    /// Parses the text of a query parameter: `a=b,c in (d,e),!f`.
    ///
    /// # Errors
    /// The first error, with the text of Kubernetes.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        parse::parse(text).map(Self::from_iter)
    }

    /// The requirements, sorted by key.
    #[must_use]
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Whether it matches everything.
    #[must_use]
    pub const fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether it matches an object; `label` returns the value of a label.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements
            .iter()
            .all(|requirement| requirement.matches(label(&requirement.key)))
    }
}

impl FromIterator<Requirement> for Selector {
    fn from_iter<I: IntoIterator<Item = Requirement>>(requirements: I) -> Self {
        let mut requirements: Vec<Requirement> = requirements.into_iter().collect();
        requirements.sort_by(|a, b| a.key.cmp(&b.key));
        Self { requirements }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, requirement) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            write!(f, "{requirement}")?;
        }
        Ok(())
    }
}

impl TryFrom<&LabelSelector> for Selector {
    type Error = ErrorList;

    /// Fails with the errors of [`validate_label_selector`].
    fn try_from(selector: &LabelSelector) -> Result<Self, ErrorList> {
        let mut errors = validate_label_selector(selector, &FieldPath::root());
        let mut requirements = Vec::new();
        let root = FieldPath::root();
        let pairs = selector.match_labels.iter().flatten();
        let exact =
            pairs.map(|(key, value)| Requirement::new(&root, key, Operator::Equals, vec![value.clone()]));
        let expressions = selector
            .match_expressions
            .iter()
            .flatten()
            .filter_map(|expression| {
                let operator = Operator::parse_set(&expression.operator)?;
                let values = expression.values.clone().unwrap_or_default();
                Some(Requirement::new(&root, &expression.key, operator, values))
            });
        for requirement in exact.chain(expressions) {
            match requirement {
                Ok(requirement) => requirements.push(requirement),
                Err(found) if errors.is_empty() => errors.extend(found),
                Err(_) => {}
            }
        }
        if errors.is_empty() {
            Ok(requirements.into_iter().collect())
        } else {
            Err(errors)
        }
    }
}

/// Validates a `metav1.LabelSelector`.
#[must_use]
pub fn validate_label_selector(selector: &LabelSelector, path: &FieldPath) -> ErrorList {
    let mut errors = ErrorList::new();
    let pairs_path = path.child("matchLabels");
    for (key, value) in selector.match_labels.iter().flatten() {
        if errors.is_full() {
            return errors;
        }
        errors.extend(FieldError::invalid_each(&pairs_path, key, label_key_errors(key)));
        errors.extend(FieldError::invalid_each(
            &pairs_path,
            value,
            label_value_errors(value),
        ));
    }
    let expressions_path = path.child("matchExpressions");
    for (index, expression) in selector.match_expressions.iter().flatten().enumerate() {
        if errors.is_full() {
            return errors;
        }
        errors.extend(validate_expression(expression, &expressions_path.index(index)));
    }
    errors
}

fn validate_expression(expression: &LabelSelectorRequirement, path: &FieldPath) -> ErrorList {
    let values = expression.values.as_deref().unwrap_or_default();
    let mut errors = ErrorList::new();
    errors.extend(set_operator_error(path, &expression.operator, values.len()));
    if Operator::parse_set(&expression.operator).is_none() {
        errors.push(unknown_operator(path, &expression.operator));
    }
    errors.extend(key_and_value_errors(path, &expression.key, values));
    errors
}

/// The error about an operator that does not exist.
pub(super) fn unknown_operator(path: &FieldPath, operator: &str) -> FieldError {
    FieldError::invalid(&path.child("operator"), operator, "not a valid selector operator")
}

/// The error about the number of values of `In`, `NotIn`, `Exists` and `DoesNotExist`; other operators have none.
pub(super) fn set_operator_error(path: &FieldPath, operator: &str, values: usize) -> Option<FieldError> {
    let path = path.child("values");
    match operator {
        "In" | "NotIn" if values == 0 => Some(FieldError::required(
            &path,
            "must be specified when `operator` is 'In' or 'NotIn'",
        )),
        "Exists" | "DoesNotExist" if values > 0 => Some(FieldError::forbidden(
            &path,
            "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
        )),
        _ => None,
    }
}

/// One error for each violated rule of a label key and of its values.
pub(super) fn key_and_value_errors(path: &FieldPath, key: &str, values: &[String]) -> ErrorList {
    let key_path = path.child("key");
    let mut errors: ErrorList = FieldError::invalid_each(&key_path, key, label_key_errors(key)).collect();
    for (index, value) in values.iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let path = path.child("values").index(index);
        errors.extend(FieldError::invalid_each(&path, value, label_value_errors(value)));
    }
    errors
}

#[cfg(test)]
mod tests;
