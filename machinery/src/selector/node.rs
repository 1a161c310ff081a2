//! Which nodes does a node selector choose? A node is chosen when any term matches; a term matches when all its
//! requirements on labels and on `metadata.name` hold, and an empty term matches nothing.

use drydock_proto::kinds::nodemaintenance::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

use super::label::{Operator, Requirement, Selector, key_and_value_errors, not_integers, set_operator_error};
use crate::field_error::{ErrorList, FieldError, FieldPath};
use crate::names::dns_subdomain_faults;

const NAME_FIELD: &str = "metadata.name";
const UNKNOWN_OPERATOR: &str = "not a valid selector operator";

/// A node selector, ready to be asked about many nodes.
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
    /// Whether the node is chosen. `label` looks up its labels.
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

    /// Fails with the faults of a selector that [`validate_node_selector`] refuses, other than having no term.
    fn try_from(selector: &NodeSelector) -> Result<Self, ErrorList> {
        let path = FieldPath::new("nodeSelectorTerms");
        let mut terms = Vec::new();
        let mut errors = ErrorList::new();
        for (index, term) in selector.node_selector_terms.iter().enumerate() {
            let faults = validate_term(term, &path.index(index));
            if !faults.is_empty() {
                errors.extend(faults);
            } else if !term.match_expressions.is_empty() || !term.match_fields.is_empty() {
                match Term::try_from(term) {
                    Ok(term) => terms.push(term),
                    Err(faults) => errors.extend(faults),
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
        "In" => Some(Operator::In),
        "NotIn" => Some(Operator::NotIn),
        "Exists" => Some(Operator::Exists),
        "DoesNotExist" => Some(Operator::DoesNotExist),
        "Gt" => Some(Operator::GreaterThan),
        "Lt" => Some(Operator::LessThan),
        _ => None,
    }
}

/// All faults of a node selector.
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
        errors.extend(validate_label_requirement(
            requirement,
            &path.child("matchExpressions").index(index),
        ));
    }
    for (index, requirement) in term.match_fields.iter().enumerate() {
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
        None => {
            errors.push(FieldError::invalid(
                &path.child("operator"),
                operator.as_str(),
                UNKNOWN_OPERATOR,
            ));
        }
        Some(Operator::GreaterThan | Operator::LessThan) => {
            let path = path.child("values");
            if values.len() != 1 {
                let detail = "must be specified single value when `operator` is 'Lt' or 'Gt'";
                errors.push(FieldError::required(&path, detail));
            }
            // The reference lets these through, to match no node ever.
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
        other => errors.push(FieldError::invalid(
            &path.child("operator"),
            other,
            UNKNOWN_OPERATOR,
        )),
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
        let faults = dns_subdomain_faults(value);
        let path = values_path.index(index);
        errors.extend(
            faults
                .iter()
                .map(|fault| FieldError::invalid(&path, value.as_str(), fault)),
        );
    }
    errors
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    fn selector(terms: &Value) -> NodeSelector {
        serde_json::from_value(json!({ "nodeSelectorTerms": terms })).unwrap()
    }

    fn chooses(terms: &Value, expected: bool) {
        let labels = BTreeMap::from([("zone", "a"), ("cpu", "16"), ("gpu", "")]);
        let matcher = NodeMatcher::try_from(&selector(terms)).unwrap();
        assert_eq!(
            matcher.matches("node-1", |key| labels.get(key).copied()),
            expected,
            "{terms}"
        );
    }

    #[test]
    fn any_term_and_all_its_requirements_decide() {
        let label = |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        let name = |operator: &str, name: &str| label("metadata.name", operator, &[name]);
        chooses(&json!([]), false);
        chooses(&json!([{}]), false);
        for requirement in [
            label("zone", "In", &["a", "b"]),
            label("zone", "NotIn", &["c"]),
            label("rack", "NotIn", &["c"]),
            label("gpu", "Exists", &[]),
            label("rack", "DoesNotExist", &[]),
            label("cpu", "Gt", &["8"]),
            label("cpu", "Lt", &["17"]),
        ] {
            chooses(&json!([{"matchExpressions": [requirement]}]), true);
            chooses(
                &json!([{"matchExpressions": [requirement], "matchFields": [name("In", "node-1")]}]),
                true,
            );
            chooses(
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
            chooses(&json!([{"matchExpressions": [requirement]}]), false);
            chooses(
                &json!([{"matchExpressions": [requirement]}, {}, {"matchFields": [name("NotIn", "node-2")]}]),
                true,
            );
        }
    }

    #[test]
    #[expect(clippy::too_many_lines, reason = "a table")]
    fn every_fault_has_its_path() {
        fn check(terms: &Value, expected: &[(&str, &str, &str)]) {
            let errors = validate_node_selector(&selector(terms), &FieldPath::new("spec"));
            let found: Vec<_> = errors
                .iter()
                .map(|error| {
                    (
                        error.field(),
                        error.reason(),
                        error.body().split(" (").next().unwrap(),
                    )
                })
                .collect();
            assert_eq!(found, expected, "{terms}");
            assert_eq!(
                NodeMatcher::try_from(&selector(terms)).is_err(),
                !found.is_empty() && *terms != json!([])
            );
        }
        let expressions = |list: Value| json!([{}, {"matchExpressions": [list]}]);
        let fields = |list: Value| json!([{"matchFields": [list]}]);
        check(
            &json!([]),
            &[(
                "spec.nodeSelectorTerms",
                "FieldValueRequired",
                "Required value: must have at least one node selector term",
            )],
        );
        check(&json!([{}]), &[]);
        check(
            &expressions(json!({"key": "a", "operator": "In"})),
            &[(
                "spec.nodeSelectorTerms[1].matchExpressions[0].values",
                "FieldValueRequired",
                "Required value: must be specified when `operator` is 'In' or 'NotIn'",
            )],
        );
        check(
            &expressions(json!({"key": "a", "operator": "Exists", "values": ["x"]})),
            &[(
                "spec.nodeSelectorTerms[1].matchExpressions[0].values",
                "FieldValueForbidden",
                "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
            )],
        );
        check(
            &expressions(json!({"key": "a", "operator": "Gt", "values": ["x", "1"]})),
            &[
                (
                    "spec.nodeSelectorTerms[1].matchExpressions[0].values",
                    "FieldValueRequired",
                    "Required value: must be specified single value when `operator` is 'Lt' or 'Gt'",
                ),
                (
                    "spec.nodeSelectorTerms[1].matchExpressions[0].values[0]",
                    "FieldValueInvalid",
                    "Invalid value: \"x\": for 'Gt', 'Lt' operators, the value must be an integer",
                ),
            ],
        );
        check(
            &expressions(json!({"key": "-", "operator": "Foo", "values": ["-"]})),
            &[
                (
                    "spec.nodeSelectorTerms[1].matchExpressions[0].operator",
                    "FieldValueInvalid",
                    "Invalid value: \"Foo\": not a valid selector operator",
                ),
                (
                    "spec.nodeSelectorTerms[1].matchExpressions[0].key",
                    "FieldValueInvalid",
                    "Invalid value: \"-\": name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
                ),
                (
                    "spec.nodeSelectorTerms[1].matchExpressions[0].values[0]",
                    "FieldValueInvalid",
                    "Invalid value: \"-\": a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character",
                ),
            ],
        );
        check(
            &fields(json!({"key": "metadata.name", "operator": "In", "values": ["a", "b"]})),
            &[(
                "spec.nodeSelectorTerms[0].matchFields[0].values",
                "FieldValueRequired",
                "Required value: must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
            )],
        );
        check(
            &fields(json!({"key": "spec.x", "operator": "Exists", "values": ["A"]})),
            &[
                (
                    "spec.nodeSelectorTerms[0].matchFields[0].operator",
                    "FieldValueInvalid",
                    "Invalid value: \"Exists\": not a valid selector operator",
                ),
                (
                    "spec.nodeSelectorTerms[0].matchFields[0].key",
                    "FieldValueInvalid",
                    "Invalid value: \"spec.x\": not a valid field selector key",
                ),
            ],
        );
        check(
            &fields(json!({"key": "metadata.name", "operator": "NotIn", "values": ["A"]})),
            &[(
                "spec.nodeSelectorTerms[0].matchFields[0].values[0]",
                "FieldValueInvalid",
                "Invalid value: \"A\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character",
            )],
        );
    }

    proptest! {
        /// A term with one `In` on a label chooses exactly the nodes that carry one of the values.
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
