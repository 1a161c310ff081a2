//! Validation of a node maintenance, field by field.

use drydock_machinery::field_error::{ErrorList, FieldError, FieldPath};
use drydock_machinery::selector::node::validate_node_selector;
use drydock_proto::kinds::nodemaintenance::{MAX_SELECTOR_SIZE, NodeMaintenanceSpec, NodeSelector, Stage};
use serde_json::Value;

use super::drain_plan;

/// All errors of the spec of a new maintenance. The plan is complete.
pub(super) fn validate_spec(spec: &NodeMaintenanceSpec, plan: &[Value]) -> ErrorList {
    let mut errors = validate_selector(spec);
    errors.extend(validate_stage(&spec.stage));
    errors.extend(drain_plan::validate(
        plan,
        &FieldPath::new("spec").child("drainPlan"),
    ));
    errors
}

/// All errors of the node selector.
pub(super) fn validate_selector(spec: &NodeMaintenanceSpec) -> ErrorList {
    let path = FieldPath::new("spec").child("nodeSelector");
    match &spec.node_selector {
        None => FieldError::required(&path, "").into(),
        Some(selector) if size(selector) > MAX_SELECTOR_SIZE => {
            let path = path.child("nodeSelectorTerms");
            FieldError::too_many(&path, size(selector), MAX_SELECTOR_SIZE).into()
        }
        Some(selector) => validate_node_selector(selector, &path),
    }
}

/// The number of terms, requirements and values.
fn size(selector: &NodeSelector) -> usize {
    let terms = selector.node_selector_terms.iter();
    terms
        .map(|term| {
            let requirements = term.match_expressions.iter().chain(&term.match_fields);
            1 + requirements
                .map(|requirement| 1 + requirement.values.len())
                .sum::<usize>()
        })
        .sum()
}

/// The error of an unknown stage.
pub(super) fn validate_stage(stage: &Stage) -> Option<FieldError> {
    let Stage::Other(other) = stage else { return None };
    Some(FieldError::not_supported(
        &FieldPath::new("spec").child("stage"),
        other.as_str(),
        Stage::KNOWN,
    ))
}
