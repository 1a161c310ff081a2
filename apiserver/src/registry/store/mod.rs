//! Creates, updates and deletes objects of every kind.
//!
//! ```text
//! create   into_hub ─ mutate ─ metadata ─ strategy ─ managed fields ─ validate ─ admission ─ encode ─ transact(absent)
//! update   decode ─ change ─ into_hub ─ mutate ─ restore ─ strategy ─ managed fields ─ validate ─ admission ─ encode ─ transact(revision)
//!            ▲                                                                                                       │
//!            └───────────────────────────────── conflict with a concurrent write ◄───────────────────────────────────┘
//! delete   decode ─ preconditions ─ mutate ─ admission ─ finalizers ─ transact(revision)
//! ```
//!
//! `mutate` is the mutating phase of admission. Where it has something to do, managed fields are recorded before it.
//!
//! Nothing is written after a commit, and no response is sent before it.

mod apply;
mod create;
mod delete;
mod growth;
mod mutate;
mod update;

use std::sync::Arc;

use drydock_machinery::apply::managed_fields::{self, Writer, default_manager, record_update};
use drydock_machinery::clock::Clock;
use drydock_machinery::field_error::ErrorList;
use drydock_machinery::object_meta;
use drydock_storage::{Entry, Key, Outcome, Revision, Store, StoreError, Transaction};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use self::apply::Applied;
pub use self::delete::{DeleteRequest, Deleted};
pub use self::update::Change;
use super::admission::{Admission, Operation, Options, WriteAttributes};
use super::caller::Caller;
use super::endpoint::{Endpoint, OwnerVersions};
use super::metadata::{self, metadata_mut, time_text};
use super::part::Part;
use super::resource::{Resource, metadata_text};
use crate::cache::{CachedObject, Freshness, Query, ReadError, Scope, Selection, WatchCache};
use crate::error::ApiError;
use crate::request::options::WriteOptions;
use crate::telemetry::spans;

/// The circumstances of a write: the client, the version, the part and the options.
#[derive(Debug, Clone, Copy)]
pub struct WriteRequest<'a> {
    /// The client.
    pub caller: Caller<'a>,
    /// The options of the request.
    pub options: &'a WriteOptions,
    /// The version the object is sent in.
    pub endpoint: &'a Endpoint,
    /// The part that is written.
    pub part: Part,
    /// How the managed fields of the new object come about.
    pub ownership: Ownership,
}

impl<'a> WriteRequest<'a> {
    /// The name of the field manager.
    fn field_manager(&self) -> String {
        let named = self.options.field_manager.clone();
        named.unwrap_or_else(|| default_manager(self.caller.user_agent))
    }

    /// The writer in managed fields entries.
    fn writer(&self, manager: &'a str, time: &'a str) -> Writer<'a> {
        Writer {
            manager,
            api_version: &self.endpoint.face().api_version,
            subresource: (self.part == Part::Status).then_some("status"),
            time,
        }
    }
}

/// How the managed fields of a new object come about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// They are recorded: the writer owns the fields that it changes.
    Recorded,
    /// The object has them already, as the result of an apply.
    Applied,
}

/// The object after a write.
#[derive(Debug, Clone)]
pub struct Written {
    /// The stored form.
    pub value: drydock_storage::Value,
    /// Its revision; `None` for a create in a dry run.
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

/// The objects of one resource: reads from the cache, writes to the store.
pub struct ResourceStore<S: Store> {
    /// The resource.
    pub resource: Arc<Resource>,
    /// The current objects and their recent history.
    pub cache: WatchCache<S>,
    store: S,
    admission: Arc<dyn Admission>,
    clock: Arc<dyn Clock>,
}

impl<S: Store> ResourceStore<S> {
    /// The objects of a resource in a store.
    #[must_use]
    pub fn new(
        resource: Arc<Resource>,
        store: S,
        cache: WatchCache<S>,
        admission: Arc<dyn Admission>,
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

    /// The key and the object with a name in the version of an endpoint.
    ///
    /// # Errors
    /// 404, and the errors of the cache.
    pub async fn find(
        &self,
        endpoint: &Endpoint,
        namespace: &str,
        name: &str,
        freshness: Freshness,
    ) -> Result<(Key, Arc<CachedObject>), ApiError> {
        let key = endpoint.key(namespace, name)?;
        let found = self.read(&key, freshness).await?;
        let object = found.ok_or_else(|| endpoint.not_found(name))?;
        endpoint.check_name(object.value(), name)?;
        Ok((key, object))
    }

    /// The object with a key in the cache.
    ///
    /// # Errors
    /// Those of the cache.
    pub async fn read(
        &self,
        key: &Key,
        freshness: Freshness,
    ) -> Result<Option<Arc<CachedObject>>, ReadError> {
        spans::within("cacher.Get", self.cache.get(key, freshness)).await
    }

    /// Checks that the object has the name and namespace of the URL, and sets its namespace.
    ///
    /// # Errors
    /// 400 for another name or namespace.
    pub fn check_identity(&self, namespace: &str, name: &str, object: &mut Value) -> Result<(), ApiError> {
        let sent = metadata_text(object, "name");
        if sent.is_empty() {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({name} based on URL) was undeterminable: name must be provided"
            )));
        }
        if sent != name {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({sent}) does not match the name on the URL ({name})"
            )));
        }
        metadata::set_namespace(&self.resource, object, namespace)
    }

    fn attributes<'a>(
        &'a self,
        request: &WriteRequest<'a>,
        operation: Operation,
        namespace: &'a str,
        object: &'a Value,
    ) -> WriteAttributes<'a> {
        WriteAttributes {
            operation,
            resource: &self.resource,
            endpoint: request.endpoint,
            caller: request.caller,
            part: request.part,
            namespace,
            name: metadata_text(object, "name"),
            object: None,
            old: None,
            revision: None,
            options: Options::Write(request.options),
            of_collection: false,
            dry_run: request.options.dry_run,
        }
    }

    /// Updates `metadata.managedFields`: the client becomes the owner of the fields that this write changes. Fields are compared
    /// and recorded in the version of the request.
    fn record_managed_fields(
        &self,
        request: WriteRequest<'_>,
        old: Option<&Value>,
        new: &mut Value,
    ) -> Result<(), ApiError> {
        let manager = request.field_manager();
        let endpoint = request.endpoint;
        let face = endpoint.face();
        let time = time_text(self.clock.now());
        let writer = request.writer(&manager, &time);
        let versions = OwnerVersions::new(endpoint, self.clock.now());
        let target = self.ownership_target(request, &versions);
        if face.is_hub() {
            record_update(&target, old, new, &writer);
        } else {
            let old = old.map(|old| endpoint.from_hub(old.clone())).transpose()?;
            let mut converted = endpoint.from_hub(new.clone())?;
            record_update(&target, old.as_ref(), &mut converted, &writer);
            let entries = metadata_mut(&mut converted).remove("managedFields");
            set_managed_fields(new, endpoint.stored_owners(entries));
        }
        Ok(())
    }

    fn ownership_target<'a>(
        &self,
        request: WriteRequest<'a>,
        versions: &'a OwnerVersions<'a>,
    ) -> managed_fields::Endpoint<'a> {
        managed_fields::Endpoint {
            schema: &request.endpoint.face().schema,
            reset_fields: self.resource.reset_fields(request.part),
            versions,
        }
    }

    /// All objects as of now, for the server itself.
    ///
    /// # Errors
    /// The errors of the cache, and 500 for an object that cannot be decoded.
    pub async fn objects<T: DeserializeOwned>(&self) -> Result<Vec<T>, ApiError> {
        let (group, plural) = self.resource.key_prefix();
        let query = Query {
            selection: Selection::new(group, plural, Scope::All, None, None),
            start: None,
            limit: 0,
        };
        let page = self.cache.list(&query, Freshness::MostRecent.into()).await?;
        let read = |object: Arc<CachedObject>| {
            let value = self.decode(object.key(), &object.entry().value)?;
            serde_json::from_value(value).map_err(|error| {
                ApiError::storage_read(format!("the stored object {} has another shape", object.key()))
                    .because(error)
            })
        };
        page.objects.map(read).collect()
    }

    /// Decodes a stored value to the hub. The error names the key.
    fn decode(&self, key: &Key, value: &drydock_storage::Value) -> Result<Value, ApiError> {
        self.resource.decode(value).map_err(|error| {
            ApiError::storage_read(format!("the stored object {key} cannot be decoded")).because(error)
        })
    }

    /// The API error for an error of the store. The cache checks a value that the store could not read.
    fn store_error(&self, error: StoreError) -> ApiError {
        if let StoreError::Corrupt { key, .. } | StoreError::Sealed { key, .. } = &error {
            self.cache.suspect(key);
        }
        error.into()
    }

    async fn transact(&self, transaction: Transaction) -> Result<Outcome, ApiError> {
        spans::within("Transact", self.store.transact(transaction))
            .await
            .map_err(|error| self.store_error(error))
    }
}

fn conflict(request: &WriteRequest<'_>, name: &str, why: impl std::fmt::Display) -> ApiError {
    ApiError::conflict(request.endpoint.group_resource(), name, why)
}

/// Rejects a hub with errors, which name the object and its fields as the endpoint shows them.
fn reject_invalid(endpoint: &Endpoint, hub: &Value, errors: ErrorList) -> Result<(), ApiError> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::invalid_fields(
        endpoint.group_kind(),
        &endpoint.name_of(hub),
        &endpoint.shown_errors(errors),
    ))
}

fn set_managed_fields(object: &mut Value, entries: Option<Value>) {
    let metadata = metadata_mut(object);
    match entries {
        Some(entries) => metadata.insert("managedFields".to_owned(), entries),
        None => metadata.remove("managedFields"),
    };
}

/// Removes duplicate owner references, with a warning to the client.
fn drop_duplicate_owners(request: WriteRequest<'_>, object: &mut Value) {
    if let Some(warning) = object_meta::drop_duplicate_owners(object) {
        request.caller.warnings.add(warning);
    }
}
