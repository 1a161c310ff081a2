//! Completes, orders and validates drain plans.
//!
//! A plan is a list of steps. A step selects the pods of a type up to a priority, optionally narrowed by a label selector.
//! Steps are ordered by type (Default, `DaemonSet`, Static), then by ascending priority, those with a selector before
//! those without. Missing default steps are added, so that every plan covers all pods of each type. [`complete`] is
//! idempotent.

use std::cmp::Ordering;
use std::collections::HashSet;

use drydock_machinery::field_error::{ErrorList, FieldError, FieldPath};
use drydock_machinery::selector::label::validate_label_selector;
use drydock_proto::kinds::nodemaintenance::{
    DEFAULT_PLAN_PRIORITIES, DrainPlanEntry, MAX_PLAN_ENTRIES, PodType,
};
use serde::Deserialize;
use serde_json::{Value, json};

/// Adds the missing default steps and sorts the plan. A plan with errors stays as it is, so that the paths of the errors
/// match what the client sent.
pub(super) fn complete(plan: &mut Vec<Value>) {
    if !validate(plan, &FieldPath::root()).is_empty() {
        return;
    }
    let mut steps: Vec<(DrainPlanEntry, Value)> = Vec::with_capacity(plan.len());
    for value in plan.iter() {
        // Cannot fail: the plan is valid.
        if let Ok(entry) = DrainPlanEntry::deserialize(value) {
            steps.push((entry, value.clone()));
        }
    }
    for default in defaults() {
        if !steps.iter().any(|(entry, _)| *entry == default) {
            let value = json!(default);
            steps.push((default, value));
        }
    }
    steps.sort_by(|(a, _), (b, _)| in_order(a, b));
    *plan = steps.into_iter().map(|(_, value)| value).collect();
}

/// The default steps: four for each type, which cover all pods of the type.
fn defaults() -> impl Iterator<Item = DrainPlanEntry> {
    let types = [PodType::Default, PodType::DaemonSet, PodType::Static];
    types.into_iter().flat_map(|pod_type| {
        DEFAULT_PLAN_PRIORITIES
            .into_iter()
            .map(move |pod_priority| DrainPlanEntry {
                pod_type: pod_type.clone(),
                pod_priority,
                pod_selector: None,
            })
    })
}

/// The order of two steps. Steps that differ only in their selectors are equal.
pub(super) fn in_order(a: &DrainPlanEntry, b: &DrainPlanEntry) -> Ordering {
    let key = |entry: &DrainPlanEntry| {
        (
            entry.pod_type.rank(),
            entry.pod_priority,
            entry.pod_selector.is_none(),
        )
    };
    key(a).cmp(&key(b))
}

/// All errors of a plan, complete or not.
pub(super) fn validate(plan: &[Value], path: &FieldPath) -> ErrorList {
    if plan.len() > MAX_PLAN_ENTRIES {
        return FieldError::too_many(path, plan.len(), MAX_PLAN_ENTRIES).into();
    }
    let mut errors = ErrorList::new();
    let mut seen = HashSet::new();
    for (index, value) in plan.iter().enumerate() {
        let path = path.index(index);
        let entry = match DrainPlanEntry::deserialize(value) {
            Ok(entry) => entry,
            Err(error) => {
                errors.push(FieldError::invalid(&path, value.clone(), &error.to_string()));
                continue;
            }
        };
        if let PodType::Other(other) = &entry.pod_type {
            errors.push(FieldError::not_supported(
                &path.child("podType"),
                other.as_str(),
                PodType::KNOWN,
            ));
        }
        if let Some(selector) = &entry.pod_selector {
            errors.extend(validate_label_selector(selector, &path.child("podSelector")));
        }
        // Compared as text: selectors have no hash.
        if !seen.insert(json!(entry).to_string()) {
            errors.push(FieldError::duplicate(&path, value.clone()));
        }
    }
    errors
}
