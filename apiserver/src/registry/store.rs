//! How are objects created, changed and removed, whatever their kind?
//!
//! ```text
//! create   metadata ─ prepare ─ ownership ─ validate ─ admit ─ encode ─ transact(absent)
//! update   read ─ change ─ restore ─ prepare ─ ownership ─ validate ─ admit ─ encode ─ transact(revision)
//!            ▲                                                                  │
//!            └───────────────────────── somebody was faster ◄──────────────────┘
//! delete   read ─ preconditions ─ admit ─ finalizers ─ transact(revision)
//! ```
//!
//! Nothing is written after a commit, and nothing is answered before it.

use std::sync::Arc;

use bytes::Bytes;
use drydock_machinery::apply::managed_fields::{
    Endpoint, OneVersion, Writer, default_manager, keep_times_of_unchanged, record_update,
};
use drydock_machinery::clock::Clock;
use drydock_machinery::codec::encode_stored;
use drydock_machinery::field_error::ErrorList;
use drydock_machinery::object_meta;
use drydock_storage::{Entry, Key, Outcome, Revision, Store, StoreError, Transaction};
use futures_util::future::join_all;
use serde_json::Value;

use super::contention::Contention;
use super::deletion::{self, Deletion};
use super::metadata::{self, is_terminating, metadata_mut, time_text};
use super::resource::{Part, Resource, ServedVersion, metadata_text};
use super::strategy::WriteContext;
use crate::admission::{Attributes, Chain, Operation};
use crate::cache::{CachedObject, Moment, WatchCache};
use crate::error::{ApiError, StatusCause};
use crate::request::RequestContext;
use crate::request::options::{DeleteOptions, UNSAFE_DELETE, WriteOptions, parse_revision};

/// How often a generated name is tried before giving up.
const GENERATED_NAME_TRIES: usize = 8;
/// How many objects of a collection are deleted with one call of the store: one batch of its commit thread.
const DELETED_AT_ONCE: usize = 1024;

/// Who writes, through which version, and how.
#[derive(Debug, Clone, Copy)]
pub struct WriteRequest<'a> {
    /// The request behind the write.
    pub context: &'a RequestContext,
    /// Its options.
    pub options: &'a WriteOptions,
    /// The version it is written in.
    pub version: &'a ServedVersion,
    /// The part it may change.
    pub part: Part,
}

/// An object as it is after a write.
#[derive(Debug, Clone)]
pub struct Written {
    /// The stored form.
    pub value: drydock_storage::Value,
    /// Its revision; none for an object that a dry run only pretended to create.
    pub revision: Option<Revision>,
}

impl Written {
    fn from_entry(entry: Entry) -> Self {
        Self {
            value: entry.value,
            revision: Some(entry.modified),
        }
    }
}

/// What a delete did.
#[derive(Debug, Clone)]
pub enum Deleted {
    /// The object is gone; this was its uid.
    Gone {
        /// `metadata.uid`.
        uid: String,
    },
    /// Finalizers hold the object.
    Held(Written),
}

/// All objects of one resource.
pub struct ResourceStore<S: Store> {
    /// What is stored.
    pub resource: Arc<Resource>,
    /// The current objects and their recent past.
    pub cache: WatchCache<S>,
    store: S,
    admission: Arc<Chain>,
    clock: Arc<dyn Clock>,
}

/// What an update makes of the current object.
pub trait Change: Send {
    /// The wanted object: complete, fitting the schema, in the version of the request. Called again with the newer
    /// object when somebody was faster.
    ///
    /// # Errors
    /// Whatever the client is to be told.
    fn apply(&mut self, current: &Value) -> Result<Value, ApiError>;

    /// Whether a change of the uid is told as a failed precondition (as PUT does) or as an invalid field.
    fn uid_is_precondition(&self) -> bool;
}

impl<S: Store> ResourceStore<S> {
    /// The objects of a resource in a store.
    #[must_use]
    pub fn new(
        resource: Arc<Resource>,
        store: S,
        cache: WatchCache<S>,
        admission: Arc<Chain>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            resource,
            cache,
            store,
            admission,
            clock,
        }
    }

    /// The server's clock.
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    /// The server's clock, for streams that outlive a request.
    #[must_use]
    pub fn shared_clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    /// The key of an object; a name no key can hold names no object.
    ///
    /// # Errors
    /// 404.
    pub fn key(&self, namespace: &str, name: &str) -> Result<Key, ApiError> {
        self.resource
            .key(namespace, name)
            .map_err(|error| ApiError::not_found(self.resource.group_resource(), name).because(error))
    }

    /// The most recent state of an object.
    ///
    /// # Errors
    /// 404, and what the cache refuses.
    pub async fn get(&self, key: &Key) -> Result<Arc<CachedObject>, ApiError> {
        self.cache
            .get(key, Moment::MostRecent)
            .await?
            .ok_or_else(|| ApiError::not_found(self.resource.group_resource(), key.name()))
    }

    /// Stores a new object.
    ///
    /// # Errors
    /// Every refusal of a create: 400, 403, 404 for the namespace, 409, 413, 422, 5xx.
    pub async fn create(
        &self,
        request: WriteRequest<'_>,
        namespace: &str,
        mut object: Value,
    ) -> Result<Written, ApiError> {
        metadata::settle_namespace(&self.resource, &mut object, namespace)?;
        let claimed_revision = parse_revision(metadata_text(&object, "resourceVersion")).unwrap_or_default();
        let now = self.clock.now();
        metadata::begin(&mut object, &uuid::Uuid::new_v4().to_string(), now);
        if self.resource.has_status {
            metadata::keep_status(&mut object, None);
        }
        drop_duplicate_owners(request, &mut object);
        let generate =
            metadata_text(&object, "name").is_empty() && !metadata_text(&object, "generateName").is_empty();
        if generate {
            generate_name(&mut object);
        }
        self.admission
            .begin_create(&self.attributes(&request, Operation::Create, namespace, &object))
            .await?;
        let rules = WriteContext {
            now,
            namespace_terminating: false,
        };
        self.resource.strategy.prepare_for_create(&mut object, &rules);
        self.record_owner(request, None, &mut object);

        let mut faults = self.resource.strategy.validate(&object, &rules);
        if faults.is_empty() {
            faults = object_meta::validate_create(&object, self.resource.is_namespaced());
        }
        self.refuse_faults(&object, &faults)?;
        for warning in self.resource.strategy.warnings_on_create(&object) {
            request.context.warnings.add(warning);
        }
        let attributes = Attributes {
            object: Some(&object),
            ..self.attributes(&request, Operation::Create, namespace, &object)
        };
        self.admission.validate(&attributes).await?;
        if claimed_revision.is_some_and(|revision| revision > 0) && !request.options.dry_run {
            return Err(ApiError::unclassified(
                "resourceVersion should not be set on objects to be created",
            ));
        }

        for attempt in 1.. {
            let key = self.key(namespace, metadata_text(&object, "name"))?;
            let value = self.encode(&object)?;
            let existing = if request.options.dry_run {
                match self.cache.get(&key, Moment::MostRecent).await? {
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
                        // It went away between the check and the answer: the name is free again.
                        None => continue,
                    },
                }
            };
            if generate && attempt < GENERATED_NAME_TRIES {
                generate_name(&mut object);
                continue;
            }
            return Err(self.name_taken(&object, &existing));
        }
        Err(ApiError::internal("no name could be settled on"))
    }

    fn name_taken(&self, object: &Value, existing: &Entry) -> ApiError {
        let name = metadata_text(object, "name");
        let resource = self.resource.group_resource();
        if !metadata_text(object, "generateName").is_empty() {
            return ApiError::generated_name_taken(resource, name);
        }
        match decode(&existing.value.bytes) {
            Ok(existing) if is_terminating(&existing) => ApiError::already_exists_deleting(resource, name),
            _ => ApiError::already_exists(resource, name),
        }
    }

    /// Changes an object, again and again until nobody was faster, unless the change names the resourceVersion it
    /// is based on.
    ///
    /// # Errors
    /// Every refusal of an update: 400, 403, 404, 409, 413, 422, 5xx.
    pub async fn update(
        &self,
        request: WriteRequest<'_>,
        namespace: &str,
        name: &str,
        change: &mut dyn Change,
    ) -> Result<Written, ApiError> {
        let key = self.key(namespace, name)?;
        let mut entry = self.get(&key).await?.entry();
        let mut contention = Contention::default();
        loop {
            match self.update_once(request, &key, entry, change).await? {
                Attempt::Done(written) => return Ok(written),
                Attempt::Overtaken(Some(newer)) => entry = newer,
                Attempt::Overtaken(None) => {
                    return Err(ApiError::not_found(self.resource.group_resource(), name));
                }
            }
            contention.pause().await;
        }
    }

    async fn update_once(
        &self,
        request: WriteRequest<'_>,
        key: &Key,
        entry: Entry,
        change: &mut dyn Change,
    ) -> Result<Attempt, ApiError> {
        let name = key.name();
        let mut old = decode_stored(key, &entry)?;
        // Clients see a resourceVersion; what is stored has none.
        metadata_mut(&mut old).insert("resourceVersion".to_owned(), entry.modified.to_string().into());
        let mut new = change.apply(&old)?;
        metadata_mut(&mut old).remove("resourceVersion");

        self.settle_identity(key.namespace(), name, &mut new)?;
        let said_uid = metadata_text(&new, "uid");
        let uid = metadata_text(&old, "uid");
        if change.uid_is_precondition() && !said_uid.is_empty() && said_uid != uid {
            return Err(self.conflict(name, format!(
                "StorageError: invalid object, Code: 4, Key: /{key}, ResourceVersion: 0, AdditionalErrorMsg: \
                 Precondition failed: UID in precondition: {said_uid}, UID in object meta: {uid}"
            )));
        }
        self.check_revision(&new, &entry, name)?;

        let now = self.clock.now();
        let rules = WriteContext {
            now,
            namespace_terminating: false,
        };
        match request.part {
            Part::Status => metadata::keep_all_but_status(&mut new, &old),
            Part::Main => {
                metadata::restore(&mut new, &old);
                drop_duplicate_owners(request, &mut new);
                if self.resource.has_status {
                    metadata::keep_status(&mut new, Some(&old));
                }
                self.resource.strategy.prepare_for_update(&mut new, &old, &rules);
                metadata::advance_generation(&mut new, &old);
            }
        }
        self.record_owner(request, Some(&old), &mut new);

        let mut faults = match request.part {
            Part::Main => self.resource.strategy.validate_update(&new, &old, &rules),
            Part::Status => self.resource.strategy.validate_status_update(&new, &old, &rules),
        };
        if faults.is_empty() && request.part == Part::Main {
            faults = object_meta::validate_update(&new, &old);
        }
        self.refuse_faults(&new, &faults)?;
        if request.part == Part::Main {
            for warning in self.resource.strategy.warnings_on_update(&new, &old) {
                request.context.warnings.add(warning);
            }
        }

        let value = self.encode(&new)?;
        let is_noop = value.bytes == entry.value.bytes && value.form == entry.value.form;
        let attributes = Attributes {
            object: Some(&new),
            old: Some(&old),
            ..self.attributes(&request, Operation::Update, key.namespace(), &new)
        };
        self.admission.validate(&attributes).await?;
        if is_noop {
            return Ok(Attempt::Done(Written::from_entry(entry)));
        }
        let removes = deletion::is_finished_by(&new);
        if request.options.dry_run {
            return Ok(Attempt::Done(Written {
                value,
                revision: Some(entry.modified),
            }));
        }
        let transaction = if removes {
            Transaction::delete(key.clone(), entry.modified)
        } else {
            // What is on its way out must get there, and what is reported leads there.
            let leads_to_less = request.part == Part::Status || is_terminating(&old);
            Transaction::update(key.clone(), entry.modified, value.clone()).growing(leads_to_less)
        };
        Ok(match self.transact(transaction).await? {
            Outcome::Committed { .. } if removes => Attempt::Done(Written {
                value,
                revision: Some(entry.modified),
            }),
            Outcome::Committed { revision } => Attempt::Done(Written {
                value,
                revision: Some(revision),
            }),
            Outcome::Conflict { current, .. } => Attempt::Overtaken(current),
        })
    }

    /// Removes an object, or marks it for removal.
    ///
    /// # Errors
    /// Every refusal of a delete: 403, 404, 409, 5xx.
    pub async fn delete(
        &self,
        context: &RequestContext,
        key: &Key,
        options: &DeleteOptions,
    ) -> Result<Deleted, ApiError> {
        let mut entry = self.get(key).await?.entry();
        let mut contention = Contention::default();
        loop {
            let step = self.plan_delete(context, key, &entry, options).await?;
            let transaction = match step {
                DeleteStep::Done(deleted) => return Ok(deleted),
                DeleteStep::Commit(transaction) => transaction,
            };
            match self.commit_delete(transaction, &entry).await? {
                Ok(deleted) => return Ok(deleted),
                Err(Some(newer)) => entry = newer,
                Err(None) => return Err(ApiError::not_found(self.resource.group_resource(), key.name())),
            }
            contention.pause().await;
        }
    }

    /// Removes an object whose stored value cannot be read, and no other. Nothing is known of it: no preconditions,
    /// finalizers or admission rules are looked at, so the user needs a right of its own.
    ///
    /// # Errors
    /// 403, 404, 409 when it changed meanwhile, 422 for an object that can be read, 5xx.
    pub async fn delete_unreadable(
        &self,
        context: &RequestContext,
        key: &Key,
        version: &ServedVersion,
    ) -> Result<Deleted, ApiError> {
        let resource = self.resource.group_resource();
        self.admission
            .check_unsafe_delete(context, &self.resource, version.name, key)
            .await?;
        match self.store.get(key).await {
            Err(StoreError::Corrupt { .. }) => {}
            Err(error) => return Err(error.into()),
            Ok(found) if found.entry.is_none() => return Err(ApiError::not_found(resource, key.name())),
            Ok(_) => {
                let cause = StatusCause {
                    reason: "FieldValueInvalid".into(),
                    message:
                        "Invalid value: true: is exclusively used to delete corrupt object(s), try again by \
                              removing this option"
                            .to_owned(),
                    field: UNSAFE_DELETE.to_owned(),
                };
                return Err(ApiError::invalid(resource, key.name(), vec![cause]));
            }
        }
        tracing::warn!(%key, user = context.user.name, "an object that cannot be read is removed");
        match self.store.remove_damaged(key).await {
            Ok(Outcome::Committed { .. }) => Ok(Deleted::Gone { uid: String::new() }),
            Ok(Outcome::Conflict { .. }) | Err(StoreError::NotDamaged) => {
                Err(self.conflict(key.name(), "the object has been modified"))
            }
            Err(error) => Err(self.refused(error)),
        }
    }

    /// Removes many objects, each at a revision of its own: a client that loses its connection between the events of
    /// two removals can then go on after the first. Objects that vanish meanwhile are passed over.
    ///
    /// # Errors
    /// The first refusal; what stood before it is removed, and stays so.
    pub async fn delete_many(
        &self,
        context: &RequestContext,
        objects: &[Arc<CachedObject>],
        options: &DeleteOptions,
    ) -> Result<(), ApiError> {
        for batch in objects.chunks(DELETED_AT_ONCE) {
            let mut transactions = Vec::with_capacity(batch.len());
            let mut planned = Vec::with_capacity(batch.len());
            let mut refused = None;
            for object in batch {
                match self
                    .plan_delete(context, object.key(), &object.entry(), options)
                    .await
                {
                    Ok(DeleteStep::Commit(transaction)) => {
                        transactions.push(transaction);
                        planned.push(object.key());
                    }
                    Ok(DeleteStep::Done(_)) => {}
                    Err(error) => {
                        refused = Some(error);
                        break;
                    }
                }
            }
            let outcomes = self.store.transact_many(transactions).await;
            let mut overtaken = Vec::new();
            for (key, outcome) in planned.into_iter().zip(outcomes) {
                if let Outcome::Conflict { current, .. } = outcome.map_err(|error| self.refused(error))?
                    && current.is_some()
                {
                    overtaken.push(key);
                }
            }
            for result in join_all(
                overtaken
                    .into_iter()
                    .map(|key| self.delete(context, key, options)),
            )
            .await
            {
                match result {
                    Err(error) if !error.is(crate::error::Reason::NotFound) => return Err(error),
                    _ => {}
                }
            }
            if let Some(refused) = refused {
                return Err(refused);
            }
        }
        Ok(())
    }

    async fn plan_delete(
        &self,
        context: &RequestContext,
        key: &Key,
        entry: &Entry,
        options: &DeleteOptions,
    ) -> Result<DeleteStep, ApiError> {
        let object = decode_stored(key, entry)?;
        self.check_preconditions(key, &object, entry, options)?;
        let mut rules = WriteContext {
            now: self.clock.now(),
            namespace_terminating: false,
        };
        let attributes = Attributes {
            operation: Operation::Delete,
            resource: &self.resource,
            context,
            part: Part::Main,
            namespace: key.namespace(),
            name: key.name(),
            object: None,
            old: Some(&object),
            dry_run: options.dry_run,
        };
        self.admission.validate(&attributes).await?;
        let strategy = &self.resource.strategy;
        if strategy.refuse_delete(&object, &rules).is_some() {
            // Looked up only where it matters: for a namespace that is gone the host itself is asked.
            rules.namespace_terminating = self.admission.is_namespace_ending(key.namespace()).await;
        }
        if let Some(why) = strategy.refuse_delete(&object, &rules) {
            return Err(ApiError::forbidden(
                self.resource.group_resource(),
                key.name(),
                why,
            ));
        }
        let grace = strategy.grace_period(&object, options.grace_period_seconds);
        Ok(match deletion::decide(&object, options, grace, rules.now) {
            Deletion::Unchanged => DeleteStep::Done(Deleted::Held(Written::from_entry(entry.clone()))),
            Deletion::Remove if options.dry_run => DeleteStep::Done(Deleted::Gone {
                uid: metadata_text(&object, "uid").to_owned(),
            }),
            Deletion::Remove => DeleteStep::Commit(Transaction::delete(key.clone(), entry.modified)),
            Deletion::Mark(marked) => {
                let value = self.encode(&marked)?;
                if options.dry_run {
                    DeleteStep::Done(Deleted::Held(Written {
                        value,
                        revision: Some(entry.modified),
                    }))
                } else {
                    let marks = Transaction::update(key.clone(), entry.modified, value);
                    DeleteStep::Commit(marks.growing(true))
                }
            }
        })
    }

    /// `Err` inside holds what the key holds now, when somebody was faster.
    async fn commit_delete(
        &self,
        transaction: Transaction,
        entry: &Entry,
    ) -> Result<Result<Deleted, Option<Entry>>, ApiError> {
        let put = transaction.write.value().cloned();
        Ok(match self.transact(transaction).await? {
            Outcome::Conflict { current, .. } => Err(current),
            Outcome::Committed { revision } => Ok(if let Some(value) = put {
                Deleted::Held(Written {
                    value,
                    revision: Some(revision),
                })
            } else {
                let object = decode(&entry.value.bytes).unwrap_or_default();
                Deleted::Gone {
                    uid: metadata_text(&object, "uid").to_owned(),
                }
            }),
        })
    }

    fn check_preconditions(
        &self,
        key: &Key,
        object: &Value,
        entry: &Entry,
        options: &DeleteOptions,
    ) -> Result<(), ApiError> {
        let conflict = |why: String| ApiError::conflict(self.resource.group_kind(), key.name(), why);
        let uid = metadata_text(object, "uid");
        if let Some(wanted) = options.preconditions.uid.as_deref()
            && wanted != uid
        {
            return Err(conflict(format!(
                "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might \
                 have been deleted and then recreated"
            )));
        }
        let revision = entry.modified.to_string();
        if let Some(wanted) = options.preconditions.resource_version.as_deref()
            && wanted != revision
        {
            return Err(conflict(format!(
                "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record \
                 ({revision}). The object might have been modified"
            )));
        }
        Ok(())
    }

    /// Checks that an object is the one the URL names, and fills in its namespace.
    ///
    /// # Errors
    /// 400 for another name or namespace.
    pub fn settle_identity(&self, namespace: &str, name: &str, object: &mut Value) -> Result<(), ApiError> {
        let said = metadata_text(object, "name");
        if said.is_empty() {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({name} based on URL) was undeterminable: name must be provided"
            )));
        }
        if said != name {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({said}) does not match the name on the URL ({name})"
            )));
        }
        metadata::settle_namespace(&self.resource, object, namespace)
    }

    fn check_revision(&self, new: &Value, entry: &Entry, name: &str) -> Result<(), ApiError> {
        let text = metadata_text(new, "resourceVersion");
        let said = parse_revision(text).map_err(|_| {
            ApiError::unclassified(format!("strconv.ParseUint: parsing {text:?}: invalid syntax"))
        })?;
        match said {
            None | Some(0) if self.resource.strategy.allows_unconditional_update() => Ok(()),
            None | Some(0) => Err(ApiError::invalid(
                self.resource.group_resource(),
                name,
                vec![StatusCause {
                    reason: "FieldValueInvalid".into(),
                    message: "Invalid value: 0: must be specified for an update".to_owned(),
                    field: "metadata.resourceVersion".to_owned(),
                }],
            )),
            Some(said) if said == entry.modified.0 => Ok(()),
            Some(_) => Err(self.conflict(
                name,
                "the object has been modified; please apply your changes to the latest version and try again",
            )),
        }
    }

    fn conflict(&self, name: &str, why: impl std::fmt::Display) -> ApiError {
        ApiError::conflict(self.resource.group_resource(), name, why)
    }

    fn refuse_faults(&self, object: &Value, faults: &ErrorList) -> Result<(), ApiError> {
        if faults.is_empty() {
            return Ok(());
        }
        Err(ApiError::invalid_fields(
            self.resource.group_kind(),
            metadata_text(object, "name"),
            faults,
        ))
    }

    fn attributes<'a>(
        &'a self,
        request: &WriteRequest<'a>,
        operation: Operation,
        namespace: &'a str,
        object: &'a Value,
    ) -> Attributes<'a> {
        Attributes {
            operation,
            resource: &self.resource,
            context: request.context,
            part: request.part,
            namespace,
            name: metadata_text(object, "name"),
            object: None,
            old: None,
            dry_run: request.options.dry_run,
        }
    }

    /// Writes down who owns the fields that this write sets.
    fn record_owner(&self, request: WriteRequest<'_>, old: Option<&Value>, new: &mut Value) {
        let derived = || default_manager(&request.context.user_agent);
        let manager = request.options.field_manager.clone().unwrap_or_else(derived);
        let writer = Writer {
            manager: &manager,
            api_version: &request.version.api_version,
            subresource: (request.part == Part::Status).then_some("status"),
            time: &time_text(self.clock.now()),
        };
        let endpoint = Endpoint {
            schema: &request.version.schema,
            reset_fields: self.resource.reset_fields(request.part),
            versions: &OneVersion,
        };
        record_update(&endpoint, old, new, &writer);
        if let Some(old) = old {
            keep_times_of_unchanged(old, new);
        }
    }

    fn encode(&self, object: &Value) -> Result<drydock_storage::Value, ApiError> {
        let stored = encode_stored(object)
            .ok_or_else(|| ApiError::internal("an object without a uid was to be stored"))?;
        Ok(drydock_storage::Value {
            bytes: Bytes::from(stored.bytes),
            form: Arc::clone(&self.resource.storage_version().api_version),
            splice_offset: u32::try_from(stored.resource_version_at)
                .map_err(|error| ApiError::too_large("the object is too large").because(error))?,
        })
    }

    /// The answer to what the store refused. A value that cannot be read is set apart in the cache as well.
    fn refused(&self, error: StoreError) -> ApiError {
        if let StoreError::Corrupt { key, .. } = &error {
            self.cache.suspect(key);
        }
        error.into()
    }

    async fn transact(&self, transaction: Transaction) -> Result<Outcome, ApiError> {
        self.store
            .transact(transaction)
            .await
            .map_err(|error| self.refused(error))
    }
}

enum Attempt {
    Done(Written),
    /// Somebody was faster: what the key holds now.
    Overtaken(Option<Entry>),
}

enum DeleteStep {
    Done(Deleted),
    Commit(Transaction),
}

/// Owner references that stand twice are kept once, and the client is told.
fn drop_duplicate_owners(request: WriteRequest<'_>, object: &mut Value) {
    if let Some(warning) = object_meta::drop_duplicate_owners(object) {
        request.context.warnings.add(warning);
    }
}

fn generate_name(object: &mut Value) {
    let name = object_meta::generate_name(metadata_text(object, "generateName"), &mut fastrand::Rng::new());
    metadata_mut(object).insert("name".to_owned(), name.into());
}

fn decode_stored(key: &Key, entry: &Entry) -> Result<Value, ApiError> {
    decode(&entry.value.bytes).map_err(|error| {
        ApiError::storage_read(format!("the stored object {key} cannot be decoded")).because(error)
    })
}

/// A stored payload as JSON.
///
/// # Errors
/// Bytes that are none.
pub fn decode(bytes: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice(bytes)
}
