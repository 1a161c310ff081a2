//! The variables of a write, made once for each version that policies match.

use drydock_machinery::policy_expression::{Input, Value as Cel};

use super::{PolicyContext, input};
use crate::admission::attributes::Attributes;
use crate::error::ApiError;
use crate::registry::endpoint::Endpoint;

/// The variables of a write.
pub(super) struct Prepared<'a> {
    context: &'a PolicyContext,
    attributes: &'a Attributes<'a>,
    /// By version.
    inputs: Vec<(&'static str, Input)>,
    namespace: Option<Cel>,
}

impl<'a> Prepared<'a> {
    pub(super) const fn new(context: &'a PolicyContext, attributes: &'a Attributes<'a>) -> Self {
        Self {
            context,
            attributes,
            inputs: Vec::new(),
            namespace: None,
        }
    }

    /// The variables for a policy that matched in a version, without `params`.
    ///
    /// # Errors
    /// 404 for a namespace that is missing, 500 if it cannot be read.
    pub(super) async fn input(
        &mut self,
        endpoint: &Endpoint,
        sees_namespace: bool,
    ) -> Result<Input, ApiError> {
        let id = endpoint.face().id();
        let known = self.inputs.iter().find(|(known, _)| *known == id);
        let mut input = if let Some((_, input)) = known {
            input.clone()
        } else {
            let input = input::of(self.attributes, endpoint)?;
            self.inputs.push((id, input.clone()));
            input
        };
        if sees_namespace {
            let namespace = if let Some(namespace) = &self.namespace {
                namespace.clone()
            } else {
                let namespace = namespace(self.context, self.attributes).await?;
                self.namespace.insert(namespace).clone()
            };
            input.set("namespaceObject", namespace);
        }
        Ok(input)
    }
}

/// The variable `namespaceObject`: null for objects without namespace.
pub(super) async fn namespace(context: &PolicyContext, attributes: &Attributes<'_>) -> Result<Cel, ApiError> {
    let name = attributes.write().namespace;
    if name.is_empty() {
        return Ok(Cel::Null);
    }
    match context.params.namespace(name).await {
        Ok(Some(object)) => Ok(input::namespace(&object)),
        Ok(None) => Err(ApiError::namespace_not_found(name)),
        Err(error) => Err(ApiError::internal("the namespace could not be read").because(error)),
    }
}
