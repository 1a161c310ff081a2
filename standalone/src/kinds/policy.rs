//! Disruption budgets of policy/v1. [`crate::budgets`] keeps their status.

use drydock_machinery::field_error::{ErrorList, FieldError, FieldPath};
use drydock_machinery::table::{Cell, Column, ColumnType, age_of, name_of};
use serde_json::{Value, json};

use super::{BuiltIn, Rules, count_of};
use crate::budgets::Amount;
use crate::object::set;

pub(super) fn kinds() -> Vec<BuiltIn> {
    vec![BuiltIn {
        group: "policy",
        kind: "PodDisruptionBudget",
        plural: "poddisruptionbudgets",
        singular: "poddisruptionbudget",
        short_names: &["pdb"],
        members: &["spec", "status"],
        rules: Rules {
            columns: const {
                &[
                    Column::NAME,
                    Column::new(
                        "Min Available",
                        ColumnType::String,
                        "How many pods must remain available.",
                    ),
                    Column::new(
                        "Max Unavailable",
                        ColumnType::String,
                        "How many pods may be unavailable.",
                    ),
                    Column::new(
                        "Allowed Disruptions",
                        ColumnType::Integer,
                        "How many pods may be disrupted now.",
                    ),
                    Column::AGE,
                ]
            },
            cells: |budget, now| {
                vec![
                    name_of(budget),
                    amount_of(budget, "/spec/minAvailable"),
                    amount_of(budget, "/spec/maxUnavailable"),
                    count_of(budget, "/status/disruptionsAllowed"),
                    age_of(budget, now),
                ]
            },
            prepare_for_create: |budget, _| {
                let status = json!({
                    "currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0,
                });
                set(budget, "status", status);
            },
            validate,
            ..Rules::PLAIN
        },
        ..BuiltIn::V1
    }]
}

fn amount_of(budget: &Value, pointer: &str) -> Cell {
    match budget.pointer(pointer) {
        None | Some(Value::Null) => Cell::from("N/A"),
        Some(Value::String(text)) => Cell::from(text.as_str()),
        Some(other) => Cell::from(other.to_string()),
    }
}

fn validate(budget: &Value) -> ErrorList {
    let mut errors = ErrorList::new();
    let spec = FieldPath::new("spec");
    let given = |member: &str| {
        budget
            .get("spec")
            .and_then(|spec| spec.get(member))
            .filter(|value| !value.is_null())
    };
    let both = given("minAvailable").zip(given("maxUnavailable"));
    if both.is_some() {
        let shown = budget.get("spec").cloned().unwrap_or_default();
        errors.push(FieldError::invalid(
            &spec,
            shown,
            "minAvailable and maxUnavailable cannot be both set",
        ));
    }
    for member in ["minAvailable", "maxUnavailable"] {
        if let Some(value) = given(member)
            && Amount::parse(value).is_none()
        {
            let detail = "must be a number of pods, or a percentage such as 10%, and not negative";
            errors.push(FieldError::invalid(&spec.child(member), value.clone(), detail));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(spec: &Value, fields: &[&str]) {
        let found = validate(&json!({ "spec": spec }));
        assert_eq!(
            found.iter().map(FieldError::field).collect::<Vec<_>>(),
            fields,
            "{spec}"
        );
    }

    #[test]
    fn a_budget_has_at_most_one_valid_amount() {
        check(&json!({}), &[]);
        check(&json!({"minAvailable": 1}), &[]);
        check(&json!({"maxUnavailable": "50%"}), &[]);
        check(&json!({"minAvailable": 1, "maxUnavailable": 1}), &["spec"]);
        check(&json!({"minAvailable": -1}), &["spec.minAvailable"]);
        check(&json!({"maxUnavailable": "half"}), &["spec.maxUnavailable"]);
    }
}
