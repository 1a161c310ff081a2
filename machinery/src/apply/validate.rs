//! Validation of an applied configuration against its schema.
//!
//! Only what ownership needs is checked: known fields, JSON types, and unique identities of list items. Values are
//! validated later, as in any other write. Error texts start as those of `sigs.k8s.io/structured-merge-diff`.

use std::collections::BTreeSet;
use std::fmt::{self, Display, Formatter};

use serde_json::{Map, Value};

use super::items::item_element;
use super::path::PathElement;
use crate::codec::json_type;
use crate::excerpt;
use crate::field_error::MAX_ERRORS;
use crate::schema::{List, ListKind, ObjectShape, Shape, Structural};

/// How much of a path and of a message an error keeps, in bytes.
const MAX_TEXT_BYTES: usize = 1024;

/// An error in an applied configuration. `Display` prints `.spec.priority: expected numeric (int or float), got string`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct ConfigError {
    /// The path of the value: `.spec.priority`.
    pub path: String,
    /// The error.
    pub message: String,
}

/// The errors in a configuration, in the order of the walk, at most 100.
pub(super) fn validate(schema: &Structural, config: &Value) -> Vec<ConfigError> {
    let mut validator = Validator { errors: Vec::new() };
    validator.value(schema, config, None);
    validator.errors
}

/// The current position, as a linked list on the stack of the walk.
struct Position<'p> {
    parent: Option<&'p Position<'p>>,
    step: Step<'p>,
}

enum Step<'p> {
    Field(&'p str),
    Item(&'p PathElement),
    Index(usize),
}

impl Display for Position<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            parent.fmt(f)?;
        }
        match self.step {
            Step::Field(name) => write!(f, ".{name}"),
            Step::Item(element) => element.fmt(f),
            Step::Index(index) => write!(f, "[{index}]"),
        }
    }
}

struct Validator {
    errors: Vec<ConfigError>,
}

impl Validator {
    /// `message` is printed only if the error is kept; clients choose the path and parts of the message, so both are cut.
    fn error(&mut self, position: Option<&Position<'_>>, message: fmt::Arguments<'_>) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(ConfigError {
                path: position.map_or_else(String::new, |position| excerpt::print(position, MAX_TEXT_BYTES)),
                message: excerpt::print(&message, MAX_TEXT_BYTES),
            });
        }
    }

    fn value(&mut self, schema: &Structural, value: &Value, position: Option<&Position<'_>>) {
        let expected = match (&schema.shape, value) {
            (Shape::Any, _)
            | (_, Value::Null)
            | (Shape::Boolean, Value::Bool(_))
            | (Shape::Integer(_) | Shape::Number, Value::Number(_))
            | (Shape::String, Value::String(_))
            | (Shape::Time | Shape::IntOrString, Value::Bool(_) | Value::Number(_) | Value::String(_)) => {
                return;
            }
            (Shape::Object(object), Value::Object(members)) => {
                return self.members(object, members, position);
            }
            (Shape::List(list), Value::Array(items)) => return self.items(list, items, position),
            (Shape::Boolean, _) => "boolean",
            (Shape::Integer(_) | Shape::Number, _) => "numeric (int or float)",
            (Shape::String, _) => "string",
            (Shape::Time | Shape::IntOrString, _) => "any scalar",
            (Shape::List(_), _) => "list",
            (Shape::Object(_), _) => "map",
        };
        self.error(
            position,
            format_args!("expected {expected}, got {}", json_type(value)),
        );
    }

    fn members(&mut self, object: &ObjectShape, members: &Map<String, Value>, parent: Option<&Position<'_>>) {
        for (key, member) in members {
            let position = Position {
                parent,
                step: Step::Field(key),
            };
            match object.child(key) {
                Some(schema) => self.value(schema, member, Some(&position)),
                None if object.preserves_unknown => {}
                None => self.error(Some(&position), format_args!("field not declared in schema")),
            }
        }
    }

    fn items(&mut self, list: &List, items: &[Value], parent: Option<&Position<'_>>) {
        if list.kind == ListKind::Atomic {
            for (index, item) in items.iter().enumerate() {
                let step = Step::Index(index);
                self.value(&list.items, item, Some(&Position { parent, step }));
            }
            return;
        }
        let mut seen = BTreeSet::new();
        for (index, item) in items.iter().enumerate() {
            let element = match item_element(list, item) {
                Ok(element) => element,
                // Without an identity the rest of the list cannot be checked.
                Err(error) => return self.error(parent, format_args!("element {index}: {error}")),
            };
            let step = Step::Item(&element);
            self.value(&list.items, item, Some(&Position { parent, step }));
            if seen.contains(&element) {
                self.error(parent, format_args!("duplicate entries for key {element}"));
            }
            seen.insert(element);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::fixtures::V1_SCHEMA;
    use super::*;

    fn check(config: &Value, expected: &[&str]) {
        let errors = validate(&V1_SCHEMA, config);
        let texts: Vec<_> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(texts, expected, "{config}");
    }

    #[test]
    fn values_have_the_type_of_the_schema() {
        check(
            &json!({"metadata": {"labels": {"a": 1}}, "spec": {"priority": "5", "enabled": "yes", "requesters": {},
                "target": [], "active": [1], "atomicList": ["a", true]}, "status": "x"}),
            &[
                ".metadata.labels.a: expected string, got number",
                ".spec.active[=1]: expected string, got number",
                ".spec.atomicList[1]: expected string, got bool",
                ".spec.enabled: expected boolean, got string",
                ".spec.priority: expected numeric (int or float), got string",
                ".spec.requesters: expected list, got object",
                ".spec.target: expected map, got array",
                ".status: expected map, got string",
            ],
        );
        check(
            &json!({"status": {"conditions": [{"type": "T", "lastTransitionTime": {}}]}}),
            &[".status.conditions[type=\"T\"].lastTransitionTime: expected any scalar, got object"],
        );
        check(
            &json!({"metadata": {"labels": null}, "spec": {"priority": 1.5, "enabled": null, "requesters": null,
                "free": {"any": [{}]}}, "status": {"conditions": [{"type": "T", "lastTransitionTime": "soon"}]}}),
            &[],
        );
    }

    #[test]
    fn unknown_fields_are_errors() {
        check(
            &json!({"spec": {"bogus": 1, "granular": [{"name": "a", "x": {}}]}, "other": {}}),
            &[
                ".other: field not declared in schema",
                ".spec.bogus: field not declared in schema",
                ".spec.granular[name=\"a\"].x: field not declared in schema",
            ],
        );
    }

    #[test]
    fn items_have_unique_identities() {
        check(
            &json!({"status": {"active": ["b", "b"]}}),
            &[".status.active: duplicate entries for key [=\"b\"]"],
        );
        check(
            &json!({"spec": {"requesters": [{"name": "a"}, {"name": "a", "intent": "E"}], "granular": [{"intent": "E"}],
                "ports": [{"port": 80}, {"port": 80, "protocol": "TCP"}], "active": [null]}}),
            &[
                ".spec.active: element 0: associative list without keys has an element that's an explicit null",
                ".spec.granular: element 0: associative list with keys has an element that omits all key fields [\"name\"] (and doesn't have default values for any key fields)",
                ".spec.ports: duplicate entries for key [port=80,protocol=\"TCP\"]",
                ".spec.requesters: duplicate entries for key [name=\"a\"]",
            ],
        );
    }

    #[test]
    fn errors_are_limited() {
        let spec: Map<String, Value> = (0..200).map(|index| (format!("x{index}"), json!(1))).collect();
        assert_eq!(validate(&V1_SCHEMA, &json!({ "spec": spec })).len(), 100);
    }
}
