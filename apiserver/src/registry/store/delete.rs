//! Deletes of one object, of many objects, and of objects that cannot be read.

use std::pin::pin;
use std::sync::Arc;

use drydock_storage::{Entry, Growth, Key, Outcome, Removable, Store, StoreError, Transaction};
use futures_util::future::{BoxFuture, join_all};
use futures_util::{FutureExt as _, StreamExt as _, stream};
use serde_json::{Value, json};

use super::{ResourceStore, Written};
use crate::cache::{CachedObject, Freshness};
use crate::error::{ApiError, Reason, StatusCause};
use crate::registry::admission::{Operation, Options, WriteAttributes};
use crate::registry::backoff::Backoff;
use crate::registry::caller::Caller;
use crate::registry::deletion::{self, Deletion};
use crate::registry::endpoint::Endpoint;
use crate::registry::metadata::{self, metadata_mut};
use crate::registry::part::Part;
use crate::registry::resource::metadata_text;
use crate::registry::strategy::WriteContext;
use crate::request::options::{DeleteOptions, UNSAFE_DELETE};

/// How many deletes of a collection are passed to the store together: one batch of its commit thread.
const DELETE_BATCH: usize = 1024;

/// How many deletes of a collection are planned at a time, webhooks included.
const DELETES_PLANNED: usize = 16;

/// The outcome of a delete.
#[derive(Debug, Clone)]
pub enum Deleted {
    /// The object has been removed.
    Removed {
        /// Its `metadata.uid`; empty if the object could not be read.
        uid: String,
    },
    /// The object stays until its finalizers are removed and its grace period has ended.
    Marked(Written),
}

/// The circumstances of a delete: the client, the version and the options.
#[derive(Debug, Clone, Copy)]
pub struct DeleteRequest<'a> {
    /// The client.
    pub caller: Caller<'a>,
    /// The version in which the object is named, and its uid if that is a precondition.
    pub endpoint: &'a Endpoint,
    /// The options of the request.
    pub options: &'a DeleteOptions,
    /// Whether the request is for a collection and names no object.
    pub of_collection: bool,
}

/// What is left to do for a delete.
enum DeleteStep {
    /// Nothing has to be stored.
    Done(Deleted),
    /// The transaction to commit.
    Commit(Transaction),
}

impl<S: Store> ResourceStore<S> {
    /// Removes an object, or sets its deletion timestamp if finalizers or a grace period hold it.
    ///
    /// # Errors
    /// Every error of a delete: 403, 404, 409, 5xx.
    pub async fn delete(
        &self,
        request: DeleteRequest<'_>,
        namespace: &str,
        name: &str,
    ) -> Result<Deleted, ApiError> {
        let found = self.find(request.endpoint, namespace, name, Freshness::MostRecent);
        let (key, object) = found.await?;
        self.delete_entry(request, &key, object.entry()).await
    }

    /// Deletes an object, given a state of it.
    async fn delete_entry(
        &self,
        request: DeleteRequest<'_>,
        key: &Key,
        mut entry: Entry,
    ) -> Result<Deleted, ApiError> {
        let mut backoff = Backoff::default();
        loop {
            let step = self.plan_delete(request, key, &entry).await?;
            let transaction = match step {
                DeleteStep::Done(deleted) => return Ok(deleted),
                DeleteStep::Commit(transaction) => transaction,
            };
            match self.commit_delete(transaction, &entry).await? {
                Ok(deleted) => return Ok(deleted),
                Err(Some(newer)) => entry = newer,
                Err(None) => {
                    let object = self.resource.decode(&entry.value).unwrap_or_default();
                    return Err(request.endpoint.not_found(&request.endpoint.name_of(&object)));
                }
            }
            backoff.wait().await;
        }
    }

    /// Removes an object only if its stored value cannot be read. Preconditions, finalizers and admission context cannot be
    /// checked, so the user needs a separate permission.
    ///
    /// # Errors
    /// 403, 404, 409 for a concurrent change, 422 for an object that can be read, 5xx.
    pub async fn delete_unreadable(
        &self,
        caller: Caller<'_>,
        endpoint: &Endpoint,
        namespace: &str,
        name: &str,
    ) -> Result<Deleted, ApiError> {
        let key = &endpoint.key(namespace, name)?;
        let resource = endpoint.group_resource();
        self.admission
            .check_unsafe_delete(caller, endpoint, namespace, name)
            .await?;
        match self.store.get(key).await {
            Err(StoreError::Corrupt { .. } | StoreError::Sealed { .. }) => {}
            Err(error) => return Err(error.into()),
            Ok(found) if found.entry.is_none() => return Err(endpoint.not_found(name)),
            Ok(_) => {
                let cause = StatusCause {
                    reason: "FieldValueInvalid".into(),
                    message:
                        "Invalid value: true: is exclusively used to delete corrupt object(s), try again by \
                              removing this option"
                            .to_owned(),
                    field: UNSAFE_DELETE.to_owned(),
                };
                return Err(ApiError::invalid(resource, name, vec![cause]));
            }
        }
        tracing::warn!(%key, user = caller.user.name, "removing an object that cannot be read");
        match self.store.remove_damaged(key, Removable::DamagedOrSealed).await {
            Ok(Outcome::Committed { .. }) => Ok(Deleted::Removed { uid: String::new() }),
            Ok(Outcome::Conflict { .. }) | Err(StoreError::NotDamaged) => {
                Err(ApiError::conflict(resource, name, "the object has been modified"))
            }
            Err(error) => Err(self.store_error(error)),
        }
    }

    /// Deletes many objects, each in a transaction of its own, so that a watch can resume between two of them. Objects that
    /// have been removed concurrently are skipped.
    ///
    /// # Errors
    /// The first error. The objects before it have been deleted.
    pub async fn delete_many(
        &self,
        request: DeleteRequest<'_>,
        objects: &[Arc<CachedObject>],
    ) -> Result<(), ApiError> {
        let plans: Vec<_> = objects.iter().map(|object| self.plan(request, object)).collect();
        let plans = stream::iter(plans)
            .buffered(DELETES_PLANNED)
            .ready_chunks(DELETE_BATCH);
        let mut plans = pin!(plans);
        // What is planned is committed before a plan is waited for: slow webhooks delay a collection and do not stop it.
        while let Some(batch) = plans.next().await {
            let mut transactions = Vec::with_capacity(batch.len());
            let mut planned = Vec::with_capacity(batch.len());
            let mut first_error = None;
            for (key, plan) in batch {
                match plan {
                    Ok(DeleteStep::Commit(transaction)) => {
                        transactions.push(transaction);
                        planned.push(key);
                    }
                    Ok(DeleteStep::Done(_)) => {}
                    Err(error) => {
                        first_error = Some(error);
                        break;
                    }
                }
            }
            let outcomes = self.store.transact_many(transactions).await;
            let mut conflicted = Vec::new();
            for (key, outcome) in planned.into_iter().zip(outcomes) {
                if let Outcome::Conflict {
                    current: Some(current),
                    ..
                } = outcome.map_err(|error| self.store_error(error))?
                {
                    conflicted.push((key, current));
                }
            }
            for result in join_all(
                conflicted
                    .into_iter()
                    .map(|(key, current)| self.delete_entry(request, key, current)),
            )
            .await
            {
                match result {
                    Err(error) if !error.is(Reason::NotFound) => return Err(error),
                    _ => {}
                }
            }
            if let Some(error) = first_error {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Plans the delete of an object of a collection.
    fn plan<'a>(
        &'a self,
        request: DeleteRequest<'a>,
        object: &'a CachedObject,
    ) -> BoxFuture<'a, (&'a Key, Result<DeleteStep, ApiError>)> {
        async move {
            let plan = self.plan_delete(request, object.key(), &object.entry()).await;
            (object.key(), plan)
        }
        .boxed()
    }

    /// Checks preconditions, admission and the kind's context, and decides what the delete does.
    async fn plan_delete(
        &self,
        request: DeleteRequest<'_>,
        key: &Key,
        entry: &Entry,
    ) -> Result<DeleteStep, ApiError> {
        let DeleteRequest {
            caller,
            endpoint,
            options,
            of_collection,
        } = request;
        let mut object = self.decode(key, &entry.value)?;
        check_preconditions(request, &object, entry)?;
        let mut context = WriteContext {
            now: self.clock.now(),
            namespace_terminating: false,
        };
        let attributes = WriteAttributes {
            operation: Operation::Delete,
            resource: &self.resource,
            endpoint,
            caller,
            part: Part::Main,
            namespace: key.namespace(),
            name: key.name(),
            object: None,
            old: Some(&object),
            revision: Some(entry.modified),
            options: Options::Delete(options),
            of_collection,
            dry_run: options.dry_run,
        };
        if self.admission.mutates(&attributes) {
            self.admission.mutate(&attributes).await?;
        }
        self.admission.check(&attributes).await?;
        self.admission.validate(&attributes).await?;
        let strategy = &self.resource.strategy;
        let is_held = endpoint
            .face()
            .alias
            .is_some_and(|alias| (alias.is_held)(&object));
        if is_held || strategy.refuse_delete(&object, &context).is_some() {
            // Looked up only if the result matters: the lookup of a missing namespace is a request to the host.
            context.namespace_terminating = self.admission.is_namespace_terminating(key.namespace()).await;
        }
        if let Some(why) = strategy.refuse_delete(&object, &context) {
            let name = endpoint.name_of(&object);
            return Err(ApiError::forbidden(endpoint.group_resource(), &name, why));
        }
        let has_changed = self.set_hold(endpoint, &mut object, is_held && !context.namespace_terminating);
        let grace = self
            .resource
            .capabilities
            .grace_period
            .and_then(|grace_period| grace_period(&object, options.grace_period_seconds));
        let collection = endpoint.face().collection_finalizers();
        let is_unheld = |finalizer: &str| strategy.is_released(&object, finalizer);
        let deletion = deletion::decide(&object, options, &collection, is_unheld, grace, context.now);
        let deletion = match deletion {
            Deletion::Unchanged if has_changed => Deletion::Mark(object.clone()),
            other => other,
        };
        Ok(match deletion {
            Deletion::Unchanged => DeleteStep::Done(Deleted::Marked(Written::from_entry(entry.clone()))),
            Deletion::Remove if options.dry_run => DeleteStep::Done(Deleted::Removed {
                uid: metadata_text(&object, "uid").to_owned(),
            }),
            Deletion::Remove => DeleteStep::Commit(Transaction::delete(key.clone(), entry.modified)),
            Deletion::Mark(marked) => {
                let value = self.resource.encode(&marked)?;
                if options.dry_run {
                    DeleteStep::Done(Deleted::Marked(Written {
                        value,
                        revision: Some(entry.modified),
                    }))
                } else {
                    let transaction = Transaction::update(key.clone(), entry.modified, value);
                    DeleteStep::Commit(transaction.growing(Growth::Deletion))
                }
            }
        })
    }

    /// The inner `Err` is a conflict with a concurrent write, with the current entry; `None` if the object was removed.
    async fn commit_delete(
        &self,
        transaction: Transaction,
        entry: &Entry,
    ) -> Result<Result<Deleted, Option<Entry>>, ApiError> {
        let put = transaction.write.value().cloned();
        Ok(match self.transact(transaction).await? {
            Outcome::Conflict { current, .. } => Err(current),
            Outcome::Committed { revision } => Ok(if let Some(value) = put {
                Deleted::Marked(Written {
                    value,
                    revision: Some(revision),
                })
            } else {
                let object = self.resource.decode(&entry.value).unwrap_or_default();
                Deleted::Removed {
                    uid: metadata_text(&object, "uid").to_owned(),
                }
            }),
        })
    }

    /// Adds the finalizer by which finalizers that only the endpoint's version shows hold the object, or removes those that
    /// a delete in any version ends.
    fn set_hold(&self, endpoint: &Endpoint, object: &mut Value, is_held: bool) -> bool {
        let holds: Vec<&str> = self
            .resource
            .faces
            .iter()
            .filter_map(|face| Some(face.alias?.hold))
            .collect();
        if holds.is_empty() {
            return false;
        }
        let mut finalizers = metadata::strings(object, "finalizers");
        let before = finalizers.clone();
        finalizers.retain(|finalizer| !holds.contains(&finalizer.as_str()));
        if let Some(alias) = endpoint.face().alias.filter(|_| is_held) {
            finalizers.push(alias.hold.to_owned());
        }
        let has_changed = finalizers != before;
        if has_changed {
            metadata_mut(object).insert("finalizers".to_owned(), json!(finalizers));
        }
        has_changed
    }
}

fn check_preconditions(request: DeleteRequest<'_>, object: &Value, entry: &Entry) -> Result<(), ApiError> {
    let endpoint = request.endpoint;
    let preconditions = &request.options.preconditions;
    let conflict = |why: String| ApiError::conflict(endpoint.group_kind(), &endpoint.name_of(object), why);
    let uid = endpoint.other_uid(metadata_text(object, "uid"));
    if let Some(wanted) = preconditions.uid.as_deref()
        && wanted != uid
    {
        return Err(conflict(format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have been \
             deleted and then recreated"
        )));
    }
    let revision = entry.modified.to_string();
    if let Some(wanted) = preconditions.resource_version.as_deref()
        && wanted != revision
    {
        return Err(conflict(format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record \
             ({revision}). The object might have been modified"
        )));
    }
    Ok(())
}
