//! How does a drain plan become complete and ordered?
//!
//! A plan names steps: pods of a type, up to a priority, maybe narrowed by a selector. Steps are taken by type
//! (Default, `DaemonSet`, Static), then by ascending priority, those with a selector before the one without. Every plan
//! ends with all pods of a type, so the default steps are added where they are missing. [`complete`] is idempotent.

use std::cmp::Ordering;
use std::collections::HashSet;

use drydock_machinery::field_error::{ErrorList, FieldError, FieldPath};
use drydock_machinery::selector::label::validate_label_selector;
use drydock_proto::kinds::nodemaintenance::{DEFAULT_PLAN_PRIORITIES, DrainPlanEntry, PodType};
use serde::Deserialize;
use serde_json::{Value, json};

/// Adds the default steps that are missing, and orders all. A plan with faults stays as it is, so that the paths of its
/// faults are those of what was written.
pub(super) fn complete(plan: &mut Vec<Value>) {
    if !validate(plan, &FieldPath::root()).is_empty() {
        return;
    }
    let mut steps: Vec<(DrainPlanEntry, Value)> = Vec::with_capacity(plan.len());
    for value in plan.iter() {
        // A plan without faults holds nothing else.
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

/// All pods of each type, in four steps.
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

/// The order in which two steps are taken; steps that only differ in their selectors keep the order they have.
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

/// All faults of a plan, complete or not.
pub(super) fn validate(plan: &[Value], path: &FieldPath) -> ErrorList {
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
        // As text, since selectors are not hashed; a plan may be long.
        if !seen.insert(json!(entry).to_string()) {
            errors.push(FieldError::duplicate(&path, value.clone()));
        }
    }
    errors
}
