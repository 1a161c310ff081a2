//! The strategy of NodeMaintenance: which rules run in which hook.

use drydock_machinery::field_error::ErrorList;
use serde_json::{Value, json};

use super::transitions::{validate_spec_change, validate_status_change};
use super::{drain_plan, validation, warnings};
use crate::registry::strategy::{Strategy, WriteContext};
use crate::registry::view::part;

/// The rules of NodeMaintenance.
#[derive(Debug, Clone, Copy, Default)]
pub struct NodeMaintenanceStrategy;

impl Strategy for NodeMaintenanceStrategy {
    fn prepare_for_create(&self, object: &mut Value, _: &WriteContext) {
        complete_plan(object);
    }

    fn validate(&self, object: &Value, _: &WriteContext) -> ErrorList {
        part(object, "spec").map_or_else(
            |errors| errors,
            |spec| validation::validate_spec(&spec, plan_of(object)),
        )
    }

    fn warnings_on_create(&self, object: &Value) -> Vec<String> {
        part(object, "spec").map_or_else(|_| Vec::new(), |spec| warnings::about_empty_terms(&spec))
    }

    fn prepare_for_update(&self, new: &mut Value, _: &Value, _: &WriteContext) {
        // A client may send the incomplete plan of its manifest again: completed, it equals the stored plan.
        complete_plan(new);
    }

    fn validate_update(&self, new: &Value, old: &Value, _: &WriteContext) -> ErrorList {
        let errors = || -> Result<ErrorList, ErrorList> {
            let (spec, before) = (part(new, "spec")?, part(old, "spec")?);
            Ok(validate_spec_change(&spec, &before, plan_of(new), plan_of(old)))
        };
        errors().unwrap_or_else(|errors| errors)
    }

    fn warnings_on_update(&self, new: &Value, _: &Value) -> Vec<String> {
        self.warnings_on_create(new)
    }

    fn validate_status_update(&self, new: &Value, old: &Value, _: &WriteContext) -> ErrorList {
        let errors = || {
            Ok(validate_status_change(
                &part(new, "status")?,
                &part(old, "status")?,
            ))
        };
        errors().unwrap_or_else(|errors: ErrorList| errors)
    }
}

fn plan_of(object: &Value) -> &[Value] {
    object
        .pointer("/spec/drainPlan")
        .and_then(Value::as_array)
        .map_or(&[], Vec::as_slice)
}

fn complete_plan(object: &mut Value) {
    let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    let plan = spec.entry("drainPlan").or_insert_with(|| json!([]));
    if plan.is_null() {
        *plan = json!([]);
    }
    if let Some(plan) = plan.as_array_mut() {
        drain_plan::complete(plan);
    }
}
