//! Which objects have labels like these? [`Selector::parse`] reads the text of a query, [`Selector::try_from`] a
//! `metav1.LabelSelector`. All requirements must hold; none at all holds for everything.

mod parse;

use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use crate::field_error::{ErrorList, FieldError, FieldPath};
use crate::names::{label_key_faults, label_value_faults};

pub use parse::ParseError;

/// How a requirement compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operator {
    /// The label is there with one of the values.
    In,
    /// The label is absent, or has none of the values.
    NotIn,
    /// The label is there with the value; written `=`.
    Equals,
    /// The same, written `==`.
    DoubleEquals,
    /// The label is absent, or has another value.
    NotEquals,
    /// The label is there.
    Exists,
    /// The label is absent.
    DoesNotExist,
    /// The label is a larger 64-bit integer.
    GreaterThan,
    /// The label is a smaller 64-bit integer.
    LessThan,
}

/// One condition on one label.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Requirement {
    key: String,
    operator: Operator,
    values: Vec<String>,
}

impl Requirement {
    /// A requirement whose key and values may be those of labels.
    ///
    /// # Errors
    /// All faults, below `path`: a key or value no label can have, or the wrong number of values.
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
            errors.push(FieldError::invalid(&values_path, values.clone(), detail));
        }
        if matches!(operator, Operator::GreaterThan | Operator::LessThan) {
            errors.extend(not_integers(&values_path, &values));
        }
        for (index, value) in values.iter().enumerate() {
            let faults = label_value_faults(value);
            if !faults.is_empty() {
                let path = values_path.index(index).key(key);
                errors.push(FieldError::invalid(&path, value.as_str(), &faults.join("; ")));
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

    /// The label.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// How it is compared.
    #[must_use]
    pub const fn operator(&self) -> Operator {
        self.operator
    }

    /// What it is compared with.
    #[must_use]
    pub fn values(&self) -> &[String] {
        &self.values
    }

    /// Whether a label with this value, or its absence, fits.
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
    let faults = label_key_faults(key);
    (!faults.is_empty()).then(|| FieldError::invalid(path, key, &faults.join("; ")))
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

/// A fault for each value that is no 64-bit integer.
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

/// Requirements that must all hold, in the order of their keys. `Display` prints what [`Selector::parse`] reads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

impl Selector {
    /// Holds for everything.
    #[must_use]
    pub const fn everything() -> Self {
        Self {
            requirements: Vec::new(),
        }
    }

    /// Reads the text of a query: `a=b,c in (d,e),!f`.
    ///
    /// # Errors
    /// The first fault, in the words clients know from Kubernetes.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        parse::parse(text).map(Self::from_iter)
    }

    /// The requirements in the order of their keys.
    #[must_use]
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Whether it holds for everything.
    #[must_use]
    pub const fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Whether it holds for an object whose labels `label` looks up.
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

    /// Fails with the faults of a selector that [`validate_label_selector`] refuses.
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
                let operator = expression_operator(&expression.operator)?;
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

fn expression_operator(operator: &str) -> Option<Operator> {
    match operator {
        "In" => Some(Operator::In),
        "NotIn" => Some(Operator::NotIn),
        "Exists" => Some(Operator::Exists),
        "DoesNotExist" => Some(Operator::DoesNotExist),
        _ => None,
    }
}

/// All faults of a `metav1.LabelSelector`.
#[must_use]
pub fn validate_label_selector(selector: &LabelSelector, path: &FieldPath) -> ErrorList {
    let mut errors = ErrorList::new();
    let pairs_path = path.child("matchLabels");
    for (key, value) in selector.match_labels.iter().flatten() {
        errors.extend(each(&pairs_path, key, label_key_faults(key)));
        errors.extend(each(&pairs_path, value, label_value_faults(value)));
    }
    let expressions_path = path.child("matchExpressions");
    for (index, expression) in selector.match_expressions.iter().flatten().enumerate() {
        errors.extend(validate_expression(expression, &expressions_path.index(index)));
    }
    errors
}

fn validate_expression(expression: &LabelSelectorRequirement, path: &FieldPath) -> ErrorList {
    let values = expression.values.as_deref().unwrap_or_default();
    let mut errors = ErrorList::new();
    errors.extend(set_operator_error(path, &expression.operator, values.len()));
    if expression_operator(&expression.operator).is_none() {
        let operator = expression.operator.as_str();
        errors.push(FieldError::invalid(
            &path.child("operator"),
            operator,
            "not a valid selector operator",
        ));
    }
    errors.extend(key_and_value_errors(path, &expression.key, values));
    errors
}

/// The fault in the number of values of `In`, `NotIn`, `Exists` and `DoesNotExist`; other operators have none.
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

/// One fault for each broken rule of a key and of its values.
pub(super) fn key_and_value_errors(path: &FieldPath, key: &str, values: &[String]) -> ErrorList {
    let mut errors: ErrorList = each(&path.child("key"), key, label_key_faults(key)).collect();
    for (index, value) in values.iter().enumerate() {
        errors.extend(each(
            &path.child("values").index(index),
            value,
            label_value_faults(value),
        ));
    }
    errors
}

fn each<'a>(
    path: &'a FieldPath,
    value: &'a str,
    faults: Vec<String>,
) -> impl Iterator<Item = FieldError> + 'a {
    faults
        .into_iter()
        .map(move |fault| FieldError::invalid(path, value, &fault))
}

#[cfg(test)]
mod tests;
