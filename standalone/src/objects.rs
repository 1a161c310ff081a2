//! How the embedded host reads and writes objects.
//!
//! It reads from the storage, so that it decides from committed state, and writes through the registry, so that the same
//! rules apply as to every other write.

use std::sync::Arc;

use drydock_apiserver::error::ApiError;
use drydock_apiserver::registry::caller::Caller;
use drydock_apiserver::registry::endpoint::Endpoint;
use drydock_apiserver::registry::part::Part;
use drydock_apiserver::registry::resource::Resource;
use drydock_apiserver::registry::store::{Change, DeleteRequest, Ownership, ResourceStore, WriteRequest};
use drydock_apiserver::request::options::{DeleteOptions, Preconditions, WriteOptions};
use drydock_apiserver::request::user::MASTERS;
use drydock_apiserver::request::{AuditRecord, UserInfo, Warnings};
use drydock_machinery::clock::Clock;
use drydock_storage::{At, Entry, Key, Page, Revision, Store};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::object::{member_mut, set, text};

/// The field manager and user agent of the embedded host.
pub(crate) const NAME: &str = "drydock-standalone";

/// A resource by group and plural.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) group: &'static str,
    pub(crate) plural: &'static str,
}

impl Kind {
    pub(crate) const NAMESPACES: Self = Self::new("", "namespaces");
    pub(crate) const NODES: Self = Self::new("", "nodes");
    pub(crate) const PODS: Self = Self::new("", "pods");
    pub(crate) const CORE_EVENTS: Self = Self::new("", "events");
    pub(crate) const EVENTS: Self = Self::new("events.k8s.io", "events");
    pub(crate) const BUDGETS: Self = Self::new("policy", "poddisruptionbudgets");
    pub(crate) const DEPLOYMENTS: Self = Self::new("apps", "deployments");
    pub(crate) const REPLICA_SETS: Self = Self::new("apps", "replicasets");
    pub(crate) const STATEFUL_SETS: Self = Self::new("apps", "statefulsets");

    pub(crate) const fn new(group: &'static str, plural: &'static str) -> Self {
        Self { group, plural }
    }

    /// Whether an object of this resource has the key.
    pub(crate) fn has(self, key: &Key) -> bool {
        let group = if self.group.is_empty() {
            drydock_apiserver::registry::resource::CORE_KEY_GROUP
        } else {
            self.group
        };
        key.group() == group && key.resource() == self.plural
    }
}

/// Access of the embedded host to every object of the server.
pub(crate) struct Objects<S: Store> {
    store: S,
    resources: Vec<Arc<ResourceStore<S>>>,
    user: Arc<UserInfo>,
    /// The warnings of its own writes are not read.
    warnings: Warnings,
    /// Its own writes are not requests.
    audit: AuditRecord,
    options: WriteOptions,
    clock: Arc<dyn Clock>,
}

impl<S: Store> Objects<S> {
    pub(crate) fn new(store: S, resources: Vec<Arc<ResourceStore<S>>>, clock: Arc<dyn Clock>) -> Self {
        let options = WriteOptions {
            field_manager: Some(NAME.to_owned()),
            ..WriteOptions::default()
        };
        Self {
            store,
            resources,
            user: Arc::new(UserInfo {
                name: format!("system:{NAME}"),
                groups: vec![MASTERS.to_owned()],
                ..UserInfo::default()
            }),
            warnings: Warnings::default(),
            audit: AuditRecord::default(),
            options,
            clock,
        }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(crate) fn store(&self) -> &S {
        &self.store
    }

    /// The identity under which the embedded host writes.
    pub(crate) fn caller(&self) -> Caller<'_> {
        Caller {
            user: &self.user,
            user_agent: NAME,
            warnings: &self.warnings,
            audit: &self.audit,
        }
    }

    /// The stores of all resources.
    pub(crate) fn resources(&self) -> &[Arc<ResourceStore<S>>] {
        &self.resources
    }

    /// The store of a resource.
    ///
    /// # Errors
    /// 404 if the resource is not served.
    pub(crate) fn store_of(&self, kind: Kind) -> Result<&ResourceStore<S>, ApiError> {
        let is_it = |own: &Resource| own.group == kind.group && own.plural == kind.plural;
        self.resources
            .iter()
            .find(|own| is_it(&own.resource))
            .map(|own| &**own)
            .ok_or_else(ApiError::no_route)
    }

    /// All objects of a resource, or those in one namespace.
    pub(crate) async fn list(&self, kind: Kind, namespace: Option<&str>) -> Result<Vec<Value>, ApiError> {
        self.list_resource(&self.store_of(kind)?.resource, namespace)
            .await
    }

    /// As [`Objects::list`], for a known resource.
    pub(crate) async fn list_resource(
        &self,
        resource: &Resource,
        namespace: Option<&str>,
    ) -> Result<Vec<Value>, ApiError> {
        let page = Page::default();
        let scan = self
            .store
            .scan(&resource.range(namespace), At::Latest, page)
            .await?;
        scan.entries
            .into_iter()
            .map(|(key, entry)| read(&key, &entry))
            .collect()
    }

    /// An object, if it exists.
    pub(crate) async fn find(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, ApiError> {
        let key = Endpoint::stored(&self.store_of(kind)?.resource).key(namespace, name)?;
        let found = self.store.get(&key).await?;
        found.entry.map(|entry| read(&key, &entry)).transpose()
    }

    /// An object.
    ///
    /// # Errors
    /// 404 if it does not exist.
    pub(crate) async fn get(&self, kind: Kind, namespace: &str, name: &str) -> Result<Value, ApiError> {
        let found = self.find(kind, namespace, name).await?;
        found.ok_or_else(|| {
            ApiError::not_found(
                drydock_apiserver::error::GroupResource {
                    group: kind.group,
                    resource: kind.plural,
                },
                name,
            )
        })
    }

    /// Creates an object.
    pub(crate) async fn create(
        &self,
        kind: Kind,
        namespace: &str,
        mut object: Value,
    ) -> Result<(), ApiError> {
        let own = self.store_of(kind)?;
        let endpoint = Endpoint::stored(&own.resource);
        set(&mut object, "kind", json!(own.resource.kind));
        set(&mut object, "apiVersion", json!(&*endpoint.face().api_version));
        let request = WriteRequest {
            caller: self.caller(),
            options: &self.options,
            endpoint: &endpoint,
            part: Part::Main,
            ownership: Ownership::Recorded,
        };
        own.create(request, namespace, object).await.map(drop)
    }

    /// Updates an object; after a write conflict, `edit` runs again on the newer object. Returns the new revision, if any.
    pub(crate) async fn edit(
        &self,
        at: ObjectRef<'_>,
        part: Part,
        edit: impl FnMut(&mut Value) -> Result<(), ApiError> + Send,
    ) -> Result<Option<Revision>, ApiError> {
        let own = self.store_of(at.kind)?;
        let endpoint = Endpoint::stored(&own.resource);
        let request = WriteRequest {
            caller: self.caller(),
            options: &self.options,
            endpoint: &endpoint,
            part,
            ownership: Ownership::Recorded,
        };
        own.update(request, at.namespace, at.name, &mut Edit(edit))
            .await
            .map(|written| written.revision)
    }

    /// Deletes an object as it was read, with a grace period. The uid is a precondition.
    pub(crate) async fn delete(
        &self,
        kind: Kind,
        object: &Value,
        grace_seconds: Option<i64>,
    ) -> Result<(), ApiError> {
        let own = self.store_of(kind)?;
        let at = ObjectRef::to(kind, object);
        let options = DeleteOptions {
            preconditions: Preconditions {
                uid: Some(text(object, "/metadata/uid").to_owned()),
                resource_version: None,
            },
            grace_period_seconds: grace_seconds,
            ..DeleteOptions::default()
        };
        let request = DeleteRequest {
            caller: self.caller(),
            endpoint: &Endpoint::stored(&own.resource),
            options: &options,
            of_collection: false,
        };
        own.delete(request, at.namespace, at.name).await.map(drop)
    }
}

/// An object by kind, namespace and name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ObjectRef<'a> {
    pub(crate) kind: Kind,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
}

impl<'a> ObjectRef<'a> {
    /// The reference to an object of a kind.
    pub(crate) fn to(kind: Kind, object: &'a Value) -> Self {
        Self {
            kind,
            namespace: text(object, "/metadata/namespace"),
            name: text(object, "/metadata/name"),
        }
    }
}

struct Edit<F>(F);

impl<F: FnMut(&mut Value) -> Result<(), ApiError> + Send> Change for Edit<F> {
    fn apply(&mut self, current: &Value) -> Result<Value, ApiError> {
        let mut object = current.clone();
        (self.0)(&mut object)?;
        Ok(object)
    }

    fn uid_is_precondition(&self) -> bool {
        true
    }
}

/// A stored object of a built-in kind, which has one version, with its resourceVersion.
///
/// # Errors
/// 500 for a value that cannot be decoded.
pub(crate) fn read(key: &Key, entry: &Entry) -> Result<Value, ApiError> {
    let mut object: Value = serde_json::from_slice(&entry.value.bytes).map_err(|error| {
        ApiError::storage_read(format!("the stored object {key} cannot be decoded")).because(error)
    })?;
    let Revision(revision) = entry.modified;
    set(
        member_mut(&mut object, "metadata"),
        "resourceVersion",
        json!(revision.to_string()),
    );
    Ok(object)
}
