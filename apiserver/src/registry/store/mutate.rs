//! The mutating phase of a write, in which the policy of the cluster may change the object.
//!
//! The object that the policy sees has the managed fields that it would be stored with. What the policy changes belongs to
//! no manager. Everything that the server sets itself is set afterwards, so the policy cannot change it.

use drydock_machinery::apply::managed_fields;
use drydock_machinery::object_meta;
use drydock_storage::Store;
use serde_json::Value;

use super::{ResourceStore, WriteRequest, set_managed_fields};
use crate::error::ApiError;
use crate::registry::admission::WriteAttributes;
use crate::registry::metadata::{self, metadata_mut};

impl<S: Store> ResourceStore<S> {
    /// Runs the mutating phase on a new object or on the new state of one, which already has its managed fields.
    ///
    /// # Errors
    /// Those of the policy, and 400 if it moves the object to another namespace.
    pub(super) async fn mutate(
        &self,
        request: WriteRequest<'_>,
        attributes: &WriteAttributes<'_>,
    ) -> Result<Option<Value>, ApiError> {
        let Some(mut object) = self.admission.mutate(attributes).await? else {
            return Ok(None);
        };
        let entries = |object: &Value| object.pointer("/metadata/managedFields").cloned();
        if let Some(Err(error)) = entries(&object).map(|list| managed_fields::check_list(&list)) {
            request.caller.warnings.add(format!(
                ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated \
                 mutating admission controller; please fix your requests: {error}"
            ));
            set_managed_fields(&mut object, attributes.object.and_then(entries));
        }
        metadata::set_namespace(&self.resource, &mut object, attributes.namespace)?;
        if let Some(warning) = object_meta::drop_duplicate_owners_after_admission(&mut object) {
            request.caller.warnings.add(warning);
        }
        Ok(Some(object))
    }
}

/// Moves the managed fields of an object to another.
pub(super) fn take_managed_fields(from: &mut Value, to: &mut Value) {
    let entries = metadata_mut(from).remove("managedFields");
    set_managed_fields(to, entries);
}
