//! The strategy of EvictionRequest: which rules run in which hook.

use std::sync::Arc;

use drydock_machinery::field_error::{ErrorList, quoted};
use drydock_machinery::names::AllowedNames;
use drydock_proto::kinds::evictionrequest::evacuation::{ALIAS, HOLD_FINALIZER};
use drydock_proto::kinds::evictionrequest::{EVICTED, EvictionRequestSpec, EvictionRequestStatus};
use jiff::Timestamp;
use serde_json::Value;

use super::transitions::{StatusRules, forbids_cancellation, validate_spec_change, validate_status_change};
use super::{faces, validation};
use crate::registry::conditions::is_true;
use crate::registry::face::Face;
use crate::registry::part::Part;
use crate::registry::strategy::{Strategy, WriteContext};
use crate::registry::view::{part, text};

/// The rules of EvictionRequest.
#[derive(Debug, Clone, Default)]
pub struct EvictionRequestStrategy {
    names: Arc<AllowedNames>,
}

impl EvictionRequestStrategy {
    /// Requesters and interceptors may use these reserved names.
    #[must_use]
    pub const fn new(names: Arc<AllowedNames>) -> Self {
        Self { names }
    }

    fn create_errors(&self, object: &Value) -> Result<ErrorList, ErrorList> {
        let spec: EvictionRequestSpec = part(object, "spec")?;
        let mut errors = validation::validate_name(object, &spec);
        errors.extend(validation::validate_spec(&spec, &self.names));
        Ok(errors)
    }

    fn update_errors(&self, new: &Value, old: &Value) -> Result<ErrorList, ErrorList> {
        let (new, status) = (part::<EvictionRequestSpec>(new, "spec")?, part(old, "status")?);
        Ok(validate_spec_change(
            &new,
            &part(old, "spec")?,
            &status,
            &self.names,
        ))
    }

    fn status_errors(&self, new: &Value, old: &Value, now: Timestamp) -> Result<ErrorList, ErrorList> {
        let spec: EvictionRequestSpec = part(old, "spec")?;
        let rules = StatusRules::new(&spec, &self.names, now);
        Ok(validate_status_change(
            &part(new, "status")?,
            &part(old, "status")?,
            &rules,
        ))
    }
}

impl Strategy for EvictionRequestStrategy {
    fn validate(&self, object: &Value, _: &WriteContext) -> ErrorList {
        self.create_errors(object).unwrap_or_else(|errors| errors)
    }

    fn validate_update(&self, new: &Value, old: &Value, _: &WriteContext) -> ErrorList {
        self.update_errors(new, old).unwrap_or_else(|errors| errors)
    }

    fn validate_status_update(&self, new: &Value, old: &Value, context: &WriteContext) -> ErrorList {
        self.status_errors(new, old, context.now)
            .unwrap_or_else(|errors| errors)
    }

    fn validate_face(&self, face: &Face, part: Part, new: &Value, old: Option<&Value>) -> ErrorList {
        faces::validate(face, part, new, old)
    }

    fn is_released(&self, object: &Value, finalizer: &str) -> bool {
        finalizer == HOLD_FINALIZER && !(ALIAS.is_held)(object)
    }

    fn refuse_delete(&self, object: &Value, context: &WriteContext) -> Option<String> {
        // An object whose status cannot be parsed can be deleted.
        let status = part::<EvictionRequestStatus>(object, "status").ok()?;
        let is_evicted = is_true(&status.conditions, EVICTED);
        if !forbids_cancellation(&status) || is_evicted || context.namespace_terminating {
            return None;
        }
        Some(format!(
            "status.evictionRequestCancellationPolicy is Forbid and the eviction of pod {} has not finished",
            quoted(text(object, "/spec/target/pod/name"))
        ))
    }
}
