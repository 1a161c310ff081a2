//! How does the embedded host read and write objects?
//!
//! It reads the storage, so that what it decides from is what was committed, and writes through the registry, so that
//! its writes keep to the rules of every other write.

use std::sync::Arc;

use drydock_apiserver::error::ApiError;
use drydock_apiserver::registry::resource::{Part, Resource};
use drydock_apiserver::request::options::{DeleteOptions, Preconditions, WriteOptions};
use drydock_apiserver::request::user::MASTERS;
use drydock_machinery::clock::Clock;
use drydock_storage::{At, Entry, Key, Page, Revision, Store};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::pod::{member_mut, set};
use drydock_apiserver::registry::caller::Caller;
use drydock_apiserver::registry::endpoint::Endpoint;
use drydock_apiserver::registry::store::{Change, ResourceStore, WriteRequest};
use drydock_apiserver::request::{UserInfo, Warnings};

/// The name under which the embedded host writes.
pub(crate) const NAME: &str = "drydock-standalone";

/// A resource by group and plural.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    pub(crate) group: &'static str,
    pub(crate) plural: &'static str,
}

impl Kind {
    pub(crate) const NAMESPACES: Self = Self {
        group: "",
        plural: "namespaces",
    };
    pub(crate) const NODES: Self = Self {
        group: "",
        plural: "nodes",
    };
    pub(crate) const PODS: Self = Self {
        group: "",
        plural: "pods",
    };
    pub(crate) const EVENTS: Self = Self {
        group: "",
        plural: "events",
    };
    pub(crate) const RECORDED_EVENTS: Self = Self {
        group: "events.k8s.io",
        plural: "events",
    };
    pub(crate) const BUDGETS: Self = Self {
        group: "policy",
        plural: "poddisruptionbudgets",
    };
    pub(crate) const DEPLOYMENTS: Self = Self {
        group: "apps",
        plural: "deployments",
    };
    pub(crate) const REPLICA_SETS: Self = Self {
        group: "apps",
        plural: "replicasets",
    };
    pub(crate) const STATEFUL_SETS: Self = Self {
        group: "apps",
        plural: "statefulsets",
    };

    /// Whether the key is that of an object of this resource.
    pub(crate) fn holds(self, key: &Key) -> bool {
        let group = if self.group.is_empty() {
            drydock_apiserver::registry::resource::CORE_KEY_GROUP
        } else {
            self.group
        };
        key.group() == group && key.resource() == self.plural
    }
}

/// Every object of the server, in the hands of the embedded host.
pub(crate) struct Objects<S: Store> {
    store: S,
    resources: Vec<Arc<ResourceStore<S>>>,
    user: Arc<UserInfo>,
    /// Collects warnings, which nobody reads.
    warnings: Warnings,
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
        }
    }

    /// Every resource.
    pub(crate) fn resources(&self) -> &[Arc<ResourceStore<S>>] {
        &self.resources
    }

    /// The objects of a resource.
    ///
    /// # Errors
    /// 404 when it is not served.
    pub(crate) fn of(&self, kind: Kind) -> Result<&ResourceStore<S>, ApiError> {
        let is_it = |own: &Resource| own.group == kind.group && own.plural == kind.plural;
        self.resources
            .iter()
            .find(|own| is_it(&own.resource))
            .map(|own| &**own)
            .ok_or_else(ApiError::no_route)
    }

    /// All objects of a resource, or those in one namespace.
    pub(crate) async fn list(&self, kind: Kind, namespace: Option<&str>) -> Result<Vec<Value>, ApiError> {
        self.scan(&self.of(kind)?.resource, namespace).await
    }

    /// As [`Objects::list`], for a resource that is at hand.
    pub(crate) async fn scan(
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

    /// An object, if there is one.
    pub(crate) async fn find(
        &self,
        kind: Kind,
        namespace: &str,
        name: &str,
    ) -> Result<Option<Value>, ApiError> {
        let key = self.of(kind)?.key(namespace, name)?;
        let found = self.store.get(&key).await?;
        found.entry.map(|entry| read(&key, &entry)).transpose()
    }

    /// An object.
    ///
    /// # Errors
    /// 404 when there is none.
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

    /// Stores a new object.
    pub(crate) async fn create(
        &self,
        kind: Kind,
        namespace: &str,
        mut object: Value,
    ) -> Result<(), ApiError> {
        let own = self.of(kind)?;
        let endpoint = Endpoint::stored(&own.resource);
        set(&mut object, "kind", json!(own.resource.kind));
        set(&mut object, "apiVersion", json!(&*endpoint.face().api_version));
        let request = WriteRequest {
            caller: self.caller(),
            options: &self.options,
            endpoint: &endpoint,
            part: Part::Main,
        };
        own.create(request, namespace, object).await.map(drop)
    }

    /// Edits an object; the edit is repeated on the newer one when somebody was faster. The answer is its revision.
    pub(crate) async fn edit(
        &self,
        place: Place<'_>,
        part: Part,
        edit: impl FnMut(&mut Value) -> Result<(), ApiError> + Send,
    ) -> Result<Option<Revision>, ApiError> {
        let own = self.of(place.kind)?;
        let endpoint = Endpoint::stored(&own.resource);
        let request = WriteRequest {
            caller: self.caller(),
            options: &self.options,
            endpoint: &endpoint,
            part,
        };
        own.update(request, place.namespace, place.name, &mut Edit(edit))
            .await
            .map(|written| written.revision)
    }

    /// Removes an object of this uid, if it is still there, within a grace period.
    pub(crate) async fn delete(
        &self,
        place: Place<'_>,
        uid: &str,
        grace_seconds: Option<i64>,
    ) -> Result<(), ApiError> {
        let own = self.of(place.kind)?;
        let key = own.key(place.namespace, place.name)?;
        let options = DeleteOptions {
            preconditions: Preconditions {
                uid: Some(uid.to_owned()),
                resource_version: None,
            },
            grace_period_seconds: grace_seconds,
            ..DeleteOptions::default()
        };
        own.delete(self.caller(), &key, &options).await.map(drop)
    }
}

/// Where an object is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) kind: Kind,
    pub(crate) namespace: &'a str,
    pub(crate) name: &'a str,
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
