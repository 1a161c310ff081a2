//! Creates of objects.

use drydock_machinery::object_meta;
use drydock_storage::{Entry, Outcome, Store, Transaction};
use serde_json::Value;

use super::mutate::take_managed_fields;
use super::{Ownership, ResourceStore, WriteRequest, Written, drop_duplicate_owners, reject_invalid};
use crate::cache::Freshness;
use crate::error::ApiError;
use crate::registry::admission::{Operation, WriteAttributes};
use crate::registry::endpoint::Endpoint;
use crate::registry::metadata::{self, is_terminating, metadata_mut};
use crate::registry::resource::metadata_text;
use crate::registry::strategy::WriteContext;
use crate::request::options::parse_revision;

/// How many generated names are tried.
const GENERATED_NAME_TRIES: usize = 8;

impl<S: Store> ResourceStore<S> {
    /// Stores a new object. `object` is in the version of the endpoint and fits its schema.
    ///
    /// # Errors
    /// Every error of a create: 400, 403, 404 for the namespace, 409, 413, 422, 5xx.
    pub async fn create(
        &self,
        request: WriteRequest<'_>,
        namespace: &str,
        object: Value,
    ) -> Result<Written, ApiError> {
        self.reject_invalid_in_face(request, &object, None)?;
        let mut object = request.endpoint.into_hub(object, None, self.clock.now())?;
        metadata::set_namespace(&self.resource, &mut object, namespace)?;
        let sent_revision = parse_revision(metadata_text(&object, "resourceVersion")).unwrap_or_default();
        let generate = self.before_create(request, namespace, &mut object).await?;
        if sent_revision.is_some_and(|revision| revision > 0) && !request.options.dry_run {
            return Err(ApiError::unclassified(
                "resourceVersion should not be set on objects to be created",
            ));
        }
        self.insert(request, namespace, object, generate).await
    }

    /// Everything before the transaction: both phases of admission, system metadata, the strategy's hooks, managed fields,
    /// validation and warnings. Returns whether the name was generated.
    pub(super) async fn before_create(
        &self,
        request: WriteRequest<'_>,
        namespace: &str,
        object: &mut Value,
    ) -> Result<bool, ApiError> {
        let mut request = request;
        let context = WriteContext {
            now: self.clock.now(),
            namespace_terminating: false,
        };
        drop_duplicate_owners(request, object);
        let sent_name = metadata_text(object, "name").to_owned();
        self.check_namespace(request, namespace, object).await?;
        if self.mutate_new(request, namespace, object, &context).await? {
            request.ownership = Ownership::Applied;
        }
        let generate =
            metadata_text(object, "name").is_empty() && !metadata_text(object, "generateName").is_empty();
        if generate {
            generate_name(object);
        }
        self.prepare_new(object, &context);
        if request.ownership == Ownership::Recorded {
            self.record_managed_fields(request, None, object)?;
        }

        let strategy = &self.resource.strategy;
        let mut errors = strategy.validate(object, &context);
        if errors.is_empty() {
            errors = object_meta::validate_create(object, self.resource.is_namespaced());
        }
        reject_invalid(request.endpoint, object, errors)?;
        for warning in strategy.warnings_on_create(object) {
            request.caller.warnings.add(warning);
        }
        if let Some(completed) = self
            .admission
            .check(&self.new_attributes(&request, namespace, &sent_name, object))
            .await?
        {
            *object = completed;
        }
        let attributes = self.new_attributes(&request, namespace, &sent_name, object);
        self.admission.validate(&attributes).await?;
        Ok(generate)
    }

    /// A new object as the validating phase sees it.
    fn new_attributes<'a>(
        &'a self,
        request: &'a WriteRequest<'a>,
        namespace: &'a str,
        sent_name: &'a str,
        object: &'a Value,
    ) -> WriteAttributes<'a> {
        let mut attributes = WriteAttributes {
            object: Some(object),
            ..self.attributes(request, Operation::Create, namespace, object)
        };
        if !sent_name.is_empty() {
            // Policy may have changed it, but not what the request names.
            attributes.name = sent_name;
        }
        attributes
    }

    /// Checks that the namespace takes new objects. The error names an object without a name by its `generateName`.
    async fn check_namespace(
        &self,
        request: WriteRequest<'_>,
        namespace: &str,
        object: &Value,
    ) -> Result<(), ApiError> {
        let mut attributes = self.attributes(&request, Operation::Create, namespace, object);
        if attributes.name.is_empty() {
            attributes.name = metadata_text(object, "generateName");
        }
        self.admission.check_namespace(&attributes).await
    }

    /// Runs the mutating phase of admission, if it has something to do, on the object as the client sent it with the managed
    /// fields of the new object. Returns whether it ran.
    async fn mutate_new(
        &self,
        request: WriteRequest<'_>,
        namespace: &str,
        object: &mut Value,
        context: &WriteContext,
    ) -> Result<bool, ApiError> {
        let attributes = self.attributes(&request, Operation::Create, namespace, object);
        if !self.admission.mutates(&attributes) {
            return Ok(false);
        }
        if request.ownership == Ownership::Recorded {
            let mut prepared = object.clone();
            self.prepare_new(&mut prepared, context);
            self.record_managed_fields(request, None, &mut prepared)?;
            take_managed_fields(&mut prepared, object);
        }
        metadata::forget_on_create(object);
        let attributes = WriteAttributes {
            object: Some(object),
            ..self.attributes(&request, Operation::Create, namespace, object)
        };
        if let Some(mutated) = self.mutate(request, &attributes).await? {
            self.reject_invalid_mutation(request, &mutated, None)?;
            *object = mutated;
        }
        Ok(true)
    }

    /// Sets what the server sets in a new object.
    fn prepare_new(&self, object: &mut Value, context: &WriteContext) {
        metadata::set_on_create(object, &uuid::Uuid::new_v4().to_string(), context.now);
        if self.resource.has_status {
            metadata::keep_status(object, None);
        }
        self.resource.strategy.prepare_for_create(object, context);
    }

    /// Stores the object if no other has its name. If a generated name is taken, generates another.
    pub(super) async fn insert(
        &self,
        request: WriteRequest<'_>,
        namespace: &str,
        mut object: Value,
        generate: bool,
    ) -> Result<Written, ApiError> {
        for attempt in 1.. {
            let name = metadata_text(&object, "name");
            let key = self.resource.key(namespace, name);
            let key = key.map_err(|error| request.endpoint.not_found(name).because(error))?;
            let value = self.resource.encode(&object)?;
            let existing = if request.options.dry_run {
                match self.read(&key, Freshness::MostRecent).await? {
                    None => {
                        return Ok(Written {
                            value,
                            revision: None,
                        });
                    }
                    Some(existing) => existing.entry(),
                }
            } else {
                match self
                    .transact(Transaction::create(key.clone(), value.clone()))
                    .await?
                {
                    Outcome::Committed { revision } => {
                        return Ok(Written {
                            value,
                            revision: Some(revision),
                        });
                    }
                    Outcome::Conflict { current, .. } => match current {
                        Some(existing) => existing,
                        // The other object was deleted after the conflict was detected: the name is free again.
                        None => continue,
                    },
                }
            };
            if generate && attempt < GENERATED_NAME_TRIES {
                generate_name(&mut object);
                continue;
            }
            return Err(self.name_taken(request.endpoint, &object, &existing));
        }
        Err(ApiError::internal("no free name was found"))
    }

    fn name_taken(&self, endpoint: &Endpoint, object: &Value, existing: &Entry) -> ApiError {
        let name = &*endpoint.name_of(object);
        let resource = endpoint.group_resource();
        if !metadata_text(object, "generateName").is_empty() {
            return ApiError::generated_name_taken(resource, name);
        }
        match self.resource.decode(&existing.value) {
            Ok(existing) if is_terminating(&existing) => ApiError::already_exists_deleting(resource, name),
            _ => ApiError::already_exists(resource, name),
        }
    }
}

fn generate_name(object: &mut Value) {
    let name = object_meta::generate_name(metadata_text(object, "generateName"), &mut fastrand::Rng::new());
    metadata_mut(object).insert("name".to_owned(), name.into());
}
