//! Updates of an object or its status, by PUT and by PATCH.

use drydock_machinery::apply::managed_fields::keep_times_of_unchanged;
use drydock_machinery::object_meta;
use drydock_storage::{Entry, Key, Outcome, Store, Transaction};
use serde_json::Value;

use super::mutate::take_managed_fields;
use super::{
    Ownership, ResourceStore, WriteRequest, Written, conflict, drop_duplicate_owners, growth, reject_invalid,
    set_managed_fields,
};
use crate::cache::Freshness;
use crate::error::ApiError;
use crate::registry::admission::{Operation, WriteAttributes};
use crate::registry::backoff::Backoff;
use crate::registry::deletion;
use crate::registry::metadata::{self, metadata_mut};
use crate::registry::part::Part;
use crate::registry::resource::metadata_text;
use crate::registry::strategy::WriteContext;
use crate::request::options::parse_revision;
use crate::threads::{HEAVY_BYTES, Heavy};

/// Computes the new object of an update from the current one.
pub trait Change: Send {
    /// The complete new object. Both objects are in the version of the endpoint and fit its schema; the current one has
    /// its resourceVersion. Called again with the newer object after a conflict with a concurrent write.
    ///
    /// # Errors
    /// The error for the client.
    fn apply(&mut self, current: &Value) -> Result<Value, ApiError>;

    /// Whether a different uid is a failed precondition (409, as for PUT) or an invalid field (422).
    fn uid_is_precondition(&self) -> bool;
}

/// The outcome of one attempt.
enum Attempt {
    Done(Written),
    /// A concurrent write was committed first. The current entry; `None` if the object was removed.
    Conflict(Option<Entry>),
}

impl<S: Store> ResourceStore<S> {
    /// Updates an object. After a conflict with a concurrent write it retries with the newer object. The retry fails with 409 if
    /// the change names the resourceVersion it is based on.
    ///
    /// # Errors
    /// Every error of an update: 400, 403, 404, 409, 413, 422, 5xx.
    pub async fn update(
        &self,
        request: WriteRequest<'_>,
        namespace: &str,
        name: &str,
        change: &mut dyn Change,
    ) -> Result<Written, ApiError> {
        let found = self.find(request.endpoint, namespace, name, Freshness::MostRecent);
        let (key, object) = found.await?;
        let mut entry = object.entry();
        let mut backoff = Backoff::default();
        loop {
            // A small patch of a large object costs as much as the object.
            let attempt = if entry.value.bytes.len() >= HEAVY_BYTES {
                Heavy::new(self.try_update(request, &key, entry, change)).await
            } else {
                self.try_update(request, &key, entry, change).await
            };
            match attempt? {
                Attempt::Done(written) => return Ok(written),
                Attempt::Conflict(Some(newer)) => entry = newer,
                Attempt::Conflict(None) => {
                    return Err(request.endpoint.not_found(name));
                }
            }
            backoff.wait().await;
        }
    }

    async fn try_update(
        &self,
        request: WriteRequest<'_>,
        key: &Key,
        entry: Entry,
        change: &mut dyn Change,
    ) -> Result<Attempt, ApiError> {
        let mut request = request;
        let mut old = self.decode(key, &entry.value)?;
        let mut new = self.apply_change(request, key, &entry, &mut old, change)?;
        let context = WriteContext {
            now: self.clock.now(),
            namespace_terminating: false,
        };
        if self
            .mutate_update(request, key, &entry, &mut new, &old, &context)
            .await?
        {
            request.ownership = Ownership::Applied;
        }
        self.check_revision(request, &new, &entry, &request.endpoint.name_of(&old))?;
        self.set_server_fields(request, &mut new, &old, &context)?;
        self.validate_update(request, &new, &old, &context)?;

        let value = self.resource.encode(&new)?;
        let is_noop = value.bytes == entry.value.bytes && value.form == entry.value.form;
        let attributes = WriteAttributes {
            name: key.name(),
            object: Some(&new),
            old: Some(&old),
            revision: Some(entry.modified),
            ..self.attributes(&request, Operation::Update, key.namespace(), &new)
        };
        self.admission.check(&attributes).await?;
        self.admission.validate(&attributes).await?;
        // What is sealed with an old key is written again, so that reading and writing every object replaces the key.
        if is_noop && (request.options.dry_run || !self.is_stale(key, &entry).await?) {
            return Ok(Attempt::Done(Written::from_entry(entry)));
        }
        if request.options.dry_run {
            return Ok(Attempt::Done(Written {
                value,
                revision: Some(entry.modified),
            }));
        }
        let is_released = |finalizer: &str| self.resource.strategy.is_released(&new, finalizer);
        let removes = deletion::is_complete(&new, is_released);
        let transaction = if removes {
            Transaction::delete(key.clone(), entry.modified)
        } else {
            let growth = growth::of_update(
                self.resource.scope,
                request.part,
                (&old, &entry.value),
                (&new, &value),
            );
            Transaction::update(key.clone(), entry.modified, value.clone()).growing(growth)
        };
        Ok(match self.transact(transaction).await? {
            Outcome::Committed { revision } => Attempt::Done(Written {
                value,
                revision: Some(if removes { entry.modified } else { revision }),
            }),
            Outcome::Conflict { current, .. } => Attempt::Conflict(current),
        })
    }

    async fn is_stale(&self, key: &Key, entry: &Entry) -> Result<bool, ApiError> {
        let stale = self.store.is_stale(key, entry.modified).await;
        stale.map_err(|error| self.store_error(error))
    }

    /// Runs the mutating phase of admission, if it has something to do, on the object as the client changed it with the
    /// managed fields after the update. Returns whether it ran.
    async fn mutate_update(
        &self,
        request: WriteRequest<'_>,
        key: &Key,
        entry: &Entry,
        new: &mut Value,
        old: &Value,
        context: &WriteContext,
    ) -> Result<bool, ApiError> {
        let attributes = self.attributes(&request, Operation::Update, key.namespace(), new);
        if !self.admission.mutates(&attributes) {
            return Ok(false);
        }
        if request.ownership == Ownership::Recorded {
            let mut prepared = new.clone();
            self.prepare_update(request, &mut prepared, old, context);
            self.record_managed_fields(request, Some(old), &mut prepared)?;
            take_managed_fields(&mut prepared, new);
        }
        let attributes = WriteAttributes {
            name: key.name(),
            object: Some(new),
            old: Some(old),
            revision: Some(entry.modified),
            ..self.attributes(&request, Operation::Update, key.namespace(), new)
        };
        if let Some(mutated) = self.mutate(request, &attributes).await? {
            self.reject_invalid_mutation(request, &mutated, Some(old))?;
            *new = mutated;
        }
        Ok(true)
    }

    /// Applies the change, converts the result to the hub, and checks its identity.
    fn apply_change(
        &self,
        request: WriteRequest<'_>,
        key: &Key,
        entry: &Entry,
        old: &mut Value,
        change: &mut dyn Change,
    ) -> Result<Value, ApiError> {
        // The change expects a resourceVersion, which stored objects do not have.
        let set_revision = |object: &mut Value| {
            metadata_mut(object).insert("resourceVersion".to_owned(), entry.modified.to_string().into());
        };
        let endpoint = request.endpoint;
        let mut new = if endpoint.face().is_hub() {
            set_revision(old);
            let changed = change.apply(old);
            metadata_mut(old).remove("resourceVersion");
            changed?
        } else {
            let mut current = endpoint.from_hub(old.clone())?;
            set_revision(&mut current);
            let changed = change.apply(&current)?;
            self.reject_invalid_in_face(request, &changed, Some(&current))?;
            endpoint.into_hub(changed, Some(old), self.clock.now())?
        };

        let name = &*endpoint.name_of(old);
        let uid = metadata_text(old, "uid");
        let sent_uid = metadata_text(&new, "uid");
        let is_other_uid = !sent_uid.is_empty() && sent_uid != uid;
        if is_other_uid && !change.uid_is_precondition() {
            return Err(ApiError::immutable_uid(
                endpoint.group_kind(),
                name,
                &endpoint.other_uid(sent_uid),
            ));
        }
        self.check_identity(key.namespace(), key.name(), &mut new)?;
        if is_other_uid {
            let (sent_uid, uid) = (
                endpoint.other_uid(metadata_text(&new, "uid")),
                endpoint.other_uid(uid),
            );
            return Err(conflict(
                &request,
                name,
                format!(
                    "StorageError: invalid object, Code: 4, Key: /{key}, ResourceVersion: 0, AdditionalErrorMsg: \
                     Precondition failed: UID in precondition: {sent_uid}, UID in object meta: {uid}"
                ),
            ));
        }
        Ok(new)
    }

    /// Restores what the update may not change, runs the strategy's `prepare_for_update`, increments the generation and
    /// records managed fields.
    fn set_server_fields(
        &self,
        request: WriteRequest<'_>,
        new: &mut Value,
        old: &Value,
        context: &WriteContext,
    ) -> Result<(), ApiError> {
        // What an update may not change is restored from the stored object, managed fields that are recorded already
        // excepted.
        match request.ownership {
            Ownership::Applied => {
                let entries = metadata_mut(new).remove("managedFields");
                self.prepare_update(request, new, old, context);
                set_managed_fields(new, entries);
            }
            Ownership::Recorded => {
                self.prepare_update(request, new, old, context);
                self.record_managed_fields(request, Some(old), new)?;
            }
        }
        keep_times_of_unchanged(old, new);
        Ok(())
    }

    /// Restores what the update may not change, runs the strategy's `prepare_for_update` and increments the generation.
    fn prepare_update(
        &self,
        request: WriteRequest<'_>,
        new: &mut Value,
        old: &Value,
        context: &WriteContext,
    ) {
        match request.part {
            Part::Status => metadata::keep_all_but_status(new, old),
            Part::Main => {
                metadata::restore_immutable(new, old);
                drop_duplicate_owners(request, new);
                if self.resource.has_status {
                    metadata::keep_status(new, Some(old));
                }
                self.resource.strategy.prepare_for_update(new, old, context);
                metadata::advance_generation(new, old);
            }
        }
    }

    fn validate_update(
        &self,
        request: WriteRequest<'_>,
        new: &Value,
        old: &Value,
        context: &WriteContext,
    ) -> Result<(), ApiError> {
        let strategy = &self.resource.strategy;
        if request.part == Part::Status {
            let errors = strategy.validate_status_update(new, old, context);
            return reject_invalid(request.endpoint, new, errors);
        }
        let mut errors = strategy.validate_update(new, old, context);
        if errors.is_empty() {
            errors = object_meta::validate_update(new, old);
        }
        reject_invalid(request.endpoint, new, errors)?;
        for warning in strategy.warnings_on_update(new, old) {
            request.caller.warnings.add(warning);
        }
        Ok(())
    }

    /// Checks the rules that only the version of the request has. Both objects are in that version.
    pub(super) fn reject_invalid_in_face(
        &self,
        request: WriteRequest<'_>,
        new: &Value,
        old: Option<&Value>,
    ) -> Result<(), ApiError> {
        let endpoint = request.endpoint;
        if endpoint.face().is_hub() {
            return Ok(());
        }
        let strategy = &self.resource.strategy;
        let errors = strategy.validate_face(endpoint.face(), request.part, new, old);
        if errors.is_empty() {
            return Ok(());
        }
        let name = metadata_text(new, "name");
        Err(ApiError::invalid_fields(endpoint.group_kind(), name, &errors))
    }

    /// Checks the rules of the request's version again for what the mutating phase made. Both objects are hubs.
    pub(super) fn reject_invalid_mutation(
        &self,
        request: WriteRequest<'_>,
        mutated: &Value,
        old: Option<&Value>,
    ) -> Result<(), ApiError> {
        let endpoint = request.endpoint;
        if endpoint.face().is_hub() {
            return Ok(());
        }
        let mutated = endpoint.from_hub(mutated.clone())?;
        let old = old.map(|old| endpoint.from_hub(old.clone())).transpose()?;
        self.reject_invalid_in_face(request, &mutated, old.as_ref())
    }

    fn check_revision(
        &self,
        request: WriteRequest<'_>,
        new: &Value,
        entry: &Entry,
        name: &str,
    ) -> Result<(), ApiError> {
        let text = metadata_text(new, "resourceVersion");
        let sent = parse_revision(text).map_err(|_| {
            ApiError::unclassified(format!("strconv.ParseUint: parsing {text:?}: invalid syntax"))
        })?;
        match sent {
            None | Some(0) if self.resource.capabilities.unconditional_update => Ok(()),
            None | Some(0) => Err(ApiError::revision_required(
                request.endpoint.group_resource(),
                name,
            )),
            Some(sent) if sent == entry.modified.0 => Ok(()),
            Some(_) => Err(conflict(
                &request,
                name,
                "the object has been modified; please apply your changes to the latest version and try again",
            )),
        }
    }
}
