//! Server-side apply: updates an object, or creates it if it does not exist.
//!
//! The merge and the ownership of fields are computed by [`drydock_machinery::apply::merge`]; the result goes through the
//! same steps as every create and update.

use drydock_machinery::apply::managed_fields::{Endpoint as Target, Writer};
use drydock_machinery::apply::merge::{self, ApplyError};
use drydock_storage::Store;
use serde_json::Value;

use super::{Change, Ownership, ResourceStore, WriteRequest, Written, conflict};
use crate::error::{ApiError, Reason, StatusCause};
use crate::registry::backoff::Backoff;
use crate::registry::endpoint::{Endpoint, OwnerVersions};
use crate::registry::metadata::time_text;
use crate::registry::part::Part;
use crate::registry::resource::metadata_text;

/// The object after an apply.
#[derive(Debug, Clone)]
pub enum Applied {
    /// It was created.
    Created(Written),
    /// It existed.
    Updated(Written),
}

/// A configuration that a manager applies.
struct Application<'a> {
    config: &'a Value,
    force: bool,
    endpoint: &'a Endpoint,
    target: Target<'a>,
    writer: Writer<'a>,
}

impl Application<'_> {
    fn merge(&self, live: Option<&Value>) -> Result<Value, ApiError> {
        let merged = merge::apply(&self.target, live, self.config, &self.writer, self.force);
        merged
            .map(|applied| applied.object)
            .map_err(|error| apply_error(self.endpoint, metadata_text(self.config, "name"), error))
    }
}

impl Change for Application<'_> {
    fn apply(&mut self, current: &Value) -> Result<Value, ApiError> {
        self.merge(Some(current))
    }

    fn uid_is_precondition(&self) -> bool {
        false
    }
}

impl<S: Store> ResourceStore<S> {
    /// Applies a configuration to an object, and creates the object if it does not exist. A status is never created.
    /// `config` is of the kind and version of the endpoint. With `force`, fields are taken from other managers.
    ///
    /// # Errors
    /// Every error of an update or a create, and 409 with a cause for each field that another manager owns.
    pub async fn apply(
        &self,
        request: WriteRequest<'_>,
        namespace: &str,
        name: &str,
        config: &Value,
        force: bool,
    ) -> Result<Applied, ApiError> {
        let request = WriteRequest {
            ownership: Ownership::Applied,
            ..request
        };
        let manager = request.field_manager();
        let time = time_text(self.clock.now());
        let versions = OwnerVersions::new(request.endpoint, self.clock.now());
        let mut application = Application {
            config,
            force,
            endpoint: request.endpoint,
            target: self.ownership_target(request, &versions),
            writer: request.writer(&manager, &time),
        };
        let mut backoff = Backoff::default();
        loop {
            match self.update(request, namespace, name, &mut application).await {
                Ok(written) => return Ok(Applied::Updated(written)),
                Err(error) if error.is(Reason::NotFound) && request.part == Part::Main => {}
                Err(error) => return Err(error),
            }
            match self.create_applied(request, namespace, name, &application).await {
                Ok(written) => return Ok(Applied::Created(written)),
                // Another client created it meanwhile. A resource of its own may also show it under another name.
                Err(error) if error.is(Reason::AlreadyExists) && request.endpoint.face().alias.is_none() => {}
                Err(error) => return Err(error),
            }
            backoff.wait().await;
        }
    }

    async fn create_applied(
        &self,
        request: WriteRequest<'_>,
        namespace: &str,
        name: &str,
        application: &Application<'_>,
    ) -> Result<Written, ApiError> {
        let endpoint = request.endpoint;
        let mut object = application.merge(None)?;
        self.check_identity(namespace, name, &mut object)?;
        self.reject_invalid_in_face(request, &object, None)?;
        let uid = metadata_text(&object, "uid");
        if !uid.is_empty() {
            return Err(conflict(
                &request,
                name,
                format!(
                    "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
                ),
            ));
        }
        let mut object = endpoint.into_hub(object, None, self.clock.now())?;
        self.admission
            .check_create(request.caller, endpoint, namespace, name)
            .await?;
        let generate = self.before_create(request, namespace, &mut object).await?;
        self.insert(request, namespace, object, generate).await
    }
}

fn apply_error(endpoint: &Endpoint, name: &str, error: ApplyError) -> ApiError {
    match error {
        ApplyError::ManagedFields => ApiError::bad_request(error.to_string()),
        ApplyError::Config { .. } | ApplyError::Entries(_) | ApplyError::Changes(_) => {
            ApiError::unclassified(error.to_string())
        }
        ApplyError::Conflicts(conflicts) => ApiError::apply_conflict(&conflicts, conflicts.causes()),
        ApplyError::Decode(error) => ApiError::invalid(
            endpoint.group_kind(),
            name,
            vec![StatusCause {
                reason: "FieldValueInvalid".into(),
                message: format!("Invalid value: {error}"),
                field: "patch".to_owned(),
            }],
        ),
    }
}
