//! Node selectors of core/v1. A node is selected when any term matches it. A term matches when all its requirements on
//! labels and on `metadata.name` are satisfied; an empty term matches nothing.

use drydock_proto::kinds::nodemaintenance::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

use super::label::{
    Operator, Requirement, Selector, key_and_value_errors, not_integers, set_operator_error, unknown_operator,
};
use crate::field_error::{ErrorList, FieldError, FieldPath};
use crate::names::dns_subdomain_errors;

const NAME_FIELD: &str = "metadata.name";

/// A node selector, compiled for matching many nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeMatcher {
    terms: Vec<Term>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Term {
    labels: Selector,
    names: Vec<NameRequirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct NameRequirement {
    name: String,
    equal: bool,
}

impl NodeMatcher {
    /// Whether the node is selected; `label` returns the value of a label.
    pub fn matches<'a>(&self, name: &str, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.terms.iter().any(|term| {
            term.names
                .iter()
                .all(|required| (required.name == name) == required.equal)
                && term.labels.matches(&label)
        })
    }
}

impl TryFrom<&NodeSelector> for NodeMatcher {
    type Error = ErrorList;

    /// Fails with the errors of [`validate_node_selector`], except that a selector without terms is accepted.
    fn try_from(selector: &NodeSelector) -> Result<Self, ErrorList> {
        let path = FieldPath::new("nodeSelectorTerms");
        let mut terms = Vec::new();
        let mut errors = ErrorList::new();
        for (index, term) in selector.node_selector_terms.iter().enumerate() {
            let term_errors = validate_term(term, &path.index(index));
            if !term_errors.is_empty() {
                errors.extend(term_errors);
            } else if !term.match_expressions.is_empty() || !term.match_fields.is_empty() {
                match Term::try_from(term) {
                    Ok(term) => terms.push(term),
                    Err(term_errors) => errors.extend(term_errors),
                }
            }
        }
        if errors.is_empty() {
            Ok(Self { terms })
        } else {
            Err(errors)
        }
    }
}

impl TryFrom<&NodeSelectorTerm> for Term {
    type Error = ErrorList;

    fn try_from(term: &NodeSelectorTerm) -> Result<Self, ErrorList> {
        let labels = term.match_expressions.iter().filter_map(|requirement| {
            let operator = operator(&requirement.operator)?;
            Some(Requirement::new(
                &FieldPath::root(),
                &requirement.key,
                operator,
                requirement.values.clone(),
            ))
        });
        let names = term.match_fields.iter().flat_map(|requirement| {
            let equal = requirement.operator == "In";
            requirement.values.iter().map(move |name| NameRequirement {
                name: name.clone(),
                equal,
            })
        });
        Ok(Self {
            labels: labels.collect::<Result<_, _>>()?,
            names: names.collect(),
        })
    }
}

fn operator(text: &str) -> Option<Operator> {
    match text {
        "Gt" => Some(Operator::GreaterThan),
        "Lt" => Some(Operator::LessThan),
        _ => Operator::parse_set(text),
    }
}

/// Validates a node selector.
#[must_use]
pub fn validate_node_selector(selector: &NodeSelector, path: &FieldPath) -> ErrorList {
    let path = path.child("nodeSelectorTerms");
    if selector.node_selector_terms.is_empty() {
        return FieldError::required(&path, "must have at least one node selector term").into();
    }
    let terms = selector.node_selector_terms.iter().enumerate();
    terms
        .flat_map(|(index, term)| validate_term(term, &path.index(index)))
        .collect()
}

fn validate_term(term: &NodeSelectorTerm, path: &FieldPath) -> ErrorList {
    let mut errors = ErrorList::new();
    for (index, requirement) in term.match_expressions.iter().enumerate() {
        if errors.is_full() {
            return errors;
        }
        errors.extend(validate_label_requirement(
            requirement,
            &path.child("matchExpressions").index(index),
        ));
    }
    for (index, requirement) in term.match_fields.iter().enumerate() {
        if errors.is_full() {
            return errors;
        }
        errors.extend(validate_field_requirement(
            requirement,
            &path.child("matchFields").index(index),
        ));
    }
    errors
}

fn validate_label_requirement(requirement: &NodeSelectorRequirement, path: &FieldPath) -> ErrorList {
    let NodeSelectorRequirement {
        key,
        operator,
        values,
    } = requirement;
    let mut errors = ErrorList::new();
    errors.extend(set_operator_error(path, operator, values.len()));
    match self::operator(operator) {
        None => errors.push(unknown_operator(path, operator)),
        Some(Operator::GreaterThan | Operator::LessThan) => {
            let path = path.child("values");
            if values.len() != 1 {
                let detail = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                errors.push(FieldError::required(&path, detail));
            }
            // The reference accepts other values, which match no node.
            errors.extend(not_integers(&path, values));
        }
        Some(_) => {}
    }
    errors.extend(key_and_value_errors(path, key, values));
    errors
}

fn validate_field_requirement(requirement: &NodeSelectorRequirement, path: &FieldPath) -> ErrorList {
    let NodeSelectorRequirement {
        key,
        operator,
        values,
    } = requirement;
    let mut errors = ErrorList::new();
    let values_path = path.child("values");
    match operator.as_str() {
        "In" | "NotIn" if values.len() == 1 => {}
        "In" | "NotIn" => errors.push(FieldError::required(
            &values_path,
            "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
        )),
        other => errors.push(unknown_operator(path, other)),
    }
    if key != NAME_FIELD {
        errors.push(FieldError::invalid(
            &path.child("key"),
            key.as_str(),
            "not a valid field selector key",
        ));
        return errors;
    }
    for (index, value) in values.iter().enumerate() {
        if errors.is_full() {
            break;
        }
        let path = values_path.index(index);
        errors.extend(FieldError::invalid_each(
            &path,
            value,
            dns_subdomain_errors(value),
        ));
    }
    errors
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;
    use crate::field_error::tests::{Cause, assert_causes};

    fn selector(terms: &Value) -> NodeSelector {
        serde_json::from_value(json!({ "nodeSelectorTerms": terms })).unwrap()
    }

    fn selects(terms: &Value, expected: bool) {
        let labels = BTreeMap::from([("zone", "a"), ("cpu", "16"), ("gpu", "")]);
        let matcher = NodeMatcher::try_from(&selector(terms)).unwrap();
        assert_eq!(
            matcher.matches("node-1", |key| labels.get(key).copied()),
            expected,
            "{terms}"
        );
    }

    #[test]
    fn a_node_is_selected_by_any_term_whose_requirements_are_all_satisfied() {
        let label = |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        let name = |operator: &str, name: &str| label("metadata.name", operator, &[name]);
        selects(&json!([]), false);
        selects(&json!([{}]), false);
        for requirement in [
            label("zone", "In", &["a", "b"]),
            label("zone", "NotIn", &["c"]),
            label("rack", "NotIn", &["c"]),
            label("gpu", "Exists", &[]),
            label("rack", "DoesNotExist", &[]),
            label("cpu", "Gt", &["8"]),
            label("cpu", "Lt", &["17"]),
        ] {
            selects(&json!([{"matchExpressions": [requirement]}]), true);
            selects(
                &json!([{"matchExpressions": [requirement], "matchFields": [name("In", "node-1")]}]),
                true,
            );
            selects(
                &json!([{"matchExpressions": [requirement], "matchFields": [name("In", "node-2")]}]),
                false,
            );
        }
        for requirement in [
            label("zone", "In", &["b"]),
            label("zone", "NotIn", &["a"]),
            label("rack", "Exists", &[]),
            label("gpu", "DoesNotExist", &[]),
            label("cpu", "Gt", &["16"]),
            label("zone", "Lt", &["16"]),
        ] {
            selects(&json!([{"matchExpressions": [requirement]}]), false);
            selects(
                &json!([{"matchExpressions": [requirement]}, {}, {"matchFields": [name("NotIn", "node-2")]}]),
                true,
            );
        }
    }

    fn check(terms: &Value, expected: &[Cause<'_>]) {
        let errors = validate_node_selector(&selector(terms), &FieldPath::new("spec"));
        assert_causes(&errors, expected, terms);
        assert_eq!(
            NodeMatcher::try_from(&selector(terms)).is_err(),
            !errors.is_empty() && *terms != json!([]),
            "{terms}"
        );
    }

    #[test]
    fn terms_are_required_and_may_be_empty() {
        check(
            &json!([]),
            &[(
                "spec.nodeSelectorTerms",
                "Required",
                "Required value: must have at least one node selector term",
            )],
        );
        check(&json!([{}]), &[]);
    }

    #[test]
    fn errors_in_label_requirements_have_their_path() {
        const WORD: &str = "consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character";
        let check = |requirement: Value, expected: &[Cause<'_>]| {
            check(&json!([{}, {"matchExpressions": [requirement]}]), expected);
        };
        let values = "spec.nodeSelectorTerms[1].matchExpressions[0].values";
        check(
            json!({"key": "a", "operator": "In"}),
            &[(
                values,
                "Required",
                "Required value: must be specified when `operator` is 'In' or 'NotIn'",
            )],
        );
        check(
            json!({"key": "a", "operator": "Exists", "values": ["x"]}),
            &[(
                values,
                "Forbidden",
                "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            )],
        );
        check(
            json!({"key": "a", "operator": "Gt", "values": ["x", "1"]}),
            &[
                (
                    values,
                    "Required",
                    "Required value: must be specified single value when `operator` is 'Lt' or 'Gt'",
                ),
                (
                    "spec.nodeSelectorTerms[1].matchExpressions[0].values[0]",
                    "Invalid",
                    "Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
                ),
            ],
        );
        check(
            json!({"key": "-", "operator": "Foo", "values": ["-"]}),
            &[
                (
                    "spec.nodeSelectorTerms[1].matchExpressions[0].operator",
                    "Invalid",
                    "Invalid value: \"Foo\": not a valid selector operator",
                ),
                (
                    "spec.nodeSelectorTerms[1].matchExpressions[0].key",
                    "Invalid",
                    &format!("Invalid value: \"-\": name part must {WORD}"),
                ),
                (
                    "spec.nodeSelectorTerms[1].matchExpressions[0].values[0]",
                    "Invalid",
                    &format!("Invalid value: \"-\": a valid label must be an empty string or {WORD}"),
                ),
            ],
        );
    }

    #[test]
    fn errors_in_field_requirements_have_their_path() {
        let check = |requirement: Value, expected: &[Cause<'_>]| {
            check(&json!([{"matchFields": [requirement]}]), expected);
        };
        check(
            json!({"key": "metadata.name", "operator": "In", "values": ["a", "b"]}),
            &[(
                "spec.nodeSelectorTerms[0].matchFields[0].values",
                "Required",
                "Required value: must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
            )],
        );
        check(
            json!({"key": "spec.x", "operator": "Exists", "values": ["A"]}),
            &[
                (
                    "spec.nodeSelectorTerms[0].matchFields[0].operator",
                    "Invalid",
                    "Invalid value: \"Exists\": not a valid selector operator",
                ),
                (
                    "spec.nodeSelectorTerms[0].matchFields[0].key",
                    "Invalid",
                    "Invalid value: \"spec.x\": not a valid field selector key",
                ),
            ],
        );
        check(
            json!({"key": "metadata.name", "operator": "NotIn", "values": ["A"]}),
            &[(
                "spec.nodeSelectorTerms[0].matchFields[0].values[0]",
                "Invalid",
                "Invalid value: \"A\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            )],
        );
    }

    proptest! {
        /// Terms with one `In` on a label select exactly the nodes with one of the values.
        #[test]
        fn terms_are_a_union(
            zones in prop::collection::vec(prop::collection::vec("[a-d]", 1..3), 0..3),
            zone in "[a-e]",
        ) {
            let terms: Vec<Value> = zones
                .iter()
                .map(|zones| json!({"matchExpressions": [{"key": "zone", "operator": "In", "values": zones}]}))
                .collect();
            let matcher = NodeMatcher::try_from(&selector(&json!(terms))).unwrap();
            let expected = zones.iter().flatten().any(|known| *known == zone);
            prop_assert_eq!(matcher.matches("n", |key| (key == "zone").then_some(zone.as_str())), expected);
        }
    }
}
