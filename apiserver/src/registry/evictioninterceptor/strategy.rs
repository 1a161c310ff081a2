//! The strategy of EvictionInterceptor: which rules run in which hook.

use std::sync::Arc;

use drydock_machinery::field_error::{ErrorList, FieldPath};
use drydock_machinery::names::AllowedNames;
use drydock_proto::kinds::evictioninterceptor::{EvictionInterceptorSpec, EvictionInterceptorStatus};
use serde_json::Value;

use super::validation;
use crate::registry::conditions::validate_conditions;
use crate::registry::numbers::negative_error;
use crate::registry::strategy::{Strategy, WriteContext};
use crate::registry::view::{part, text};

/// The rules of EvictionInterceptor.
#[derive(Debug, Clone, Default)]
pub struct EvictionInterceptorStrategy {
    names: Arc<AllowedNames>,
}

impl EvictionInterceptorStrategy {
    /// Interceptors may use these reserved names.
    #[must_use]
    pub const fn new(names: Arc<AllowedNames>) -> Self {
        Self { names }
    }

    fn create_errors(&self, object: &Value) -> Result<ErrorList, ErrorList> {
        let spec: EvictionInterceptorSpec = part(object, "spec")?;
        let mut errors = validation::validate_names(text(object, "/metadata/name"), &spec, &self.names);
        errors.extend(validation::validate_rule(&spec, None));
        Ok(errors)
    }
}

impl Strategy for EvictionInterceptorStrategy {
    /// Expressions are compiled.
    fn is_heavy(&self) -> bool {
        true
    }

    fn validate(&self, object: &Value, _: &WriteContext) -> ErrorList {
        self.create_errors(object).unwrap_or_else(|errors| errors)
    }

    fn validate_update(&self, new: &Value, old: &Value, _: &WriteContext) -> ErrorList {
        let errors = || -> Result<ErrorList, ErrorList> {
            let (new, old) = (part::<EvictionInterceptorSpec>(new, "spec")?, part(old, "spec")?);
            Ok(validation::validate_change(&new, &old))
        };
        errors().unwrap_or_else(|errors| errors)
    }

    fn validate_status_update(&self, new: &Value, _: &Value, _: &WriteContext) -> ErrorList {
        part(new, "status").map_or_else(|errors| errors, |status| status_errors(&status))
    }
}

fn status_errors(status: &EvictionInterceptorStatus) -> ErrorList {
    let path = FieldPath::new("status");
    let mut errors = validate_conditions(&status.conditions, &path.child("conditions"));
    errors.extend(negative_error(
        &path.child("matchedPods"),
        status.matched_pods.unwrap_or_default(),
    ));
    errors
}
