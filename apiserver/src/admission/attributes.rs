//! A write as the policy of the cluster sees it: in any of the versions of the resource.
//!
//! Every object handed out is a copy, so nothing that runs here can change what is compared or stored. Copies are made when
//! a webhook or a policy matches, one for each version that is asked for.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use jiff::Timestamp;
use serde_json::{Map, Value, json};
use tokio::sync::OnceCell;

use super::namespace_lifecycle::namespace_not_read;
use crate::error::ApiError;
use crate::host::{Host, Namespace};
use crate::registry::admission::{Operation, Options, WriteAttributes};
use crate::registry::endpoint::Endpoint;
use crate::registry::metadata::metadata_mut;
use crate::registry::part::Part;
use crate::registry::resource::metadata_text;
use crate::request::AuditRecord;
use crate::request::options::{DeleteOptions, Propagation, WriteOptions};

/// The phase of admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Objects are as the client sent them, and may be changed.
    Mutating,
    /// Objects are as they will be stored.
    Validating,
}

/// The labels of a namespace.
type Labels = Arc<BTreeMap<String, String>>;

/// A write, and its objects in the versions that were asked for.
pub struct Attributes<'a> {
    write: WriteAttributes<'a>,
    phase: Phase,
    host: &'a Arc<dyn Host>,
    now: Timestamp,
    /// The hub after changes of the mutating phase; `None` if there were none.
    changed: Option<Value>,
    endpoints: Vec<Endpoint>,
    /// By endpoint.
    objects: Vec<OnceLock<Value>>,
    old_objects: Vec<OnceLock<Value>>,
    namespace: OnceCell<Labels>,
}

impl<'a> Attributes<'a> {
    /// The attributes of a write at a time.
    #[must_use]
    pub fn new(write: WriteAttributes<'a>, phase: Phase, host: &'a Arc<dyn Host>, now: Timestamp) -> Self {
        let endpoints: Vec<Endpoint> = Endpoint::all(write.endpoint.resource()).collect();
        let empty = || endpoints.iter().map(|_| OnceLock::new()).collect();
        Self {
            write,
            phase,
            host,
            now,
            changed: None,
            objects: empty(),
            old_objects: empty(),
            endpoints,
            namespace: OnceCell::new(),
        }
    }

    /// The write as the registry describes it. Its object is the one before changes: see [`Self::hub`].
    #[must_use]
    pub const fn write(&self) -> &WriteAttributes<'a> {
        &self.write
    }

    /// The kind of write.
    #[must_use]
    pub const fn operation(&self) -> Operation {
        self.write.operation
    }

    /// The subresource of the request, or empty.
    #[must_use]
    pub const fn subresource(&self) -> &'static str {
        match self.write.part {
            Part::Main => "",
            Part::Status => "status",
        }
    }

    /// The name in the request, in the version of the request: empty for a create before its name is generated, and for
    /// the delete of a collection.
    #[must_use]
    pub fn name(&self) -> Cow<'_, str> {
        if self.write.of_collection || self.write.name.is_empty() {
            return Cow::Borrowed("");
        }
        self.write.shown_name()
    }

    /// The versions of the resource, that of the request first. The others are in the order of preference.
    pub fn versions(&self) -> impl Iterator<Item = &Endpoint> {
        let requested = self.write.endpoint.face().id();
        let is_other = move |endpoint: &&Endpoint| endpoint.face().id() != requested;
        std::iter::once(self.write.endpoint).chain(self.endpoints.iter().filter(is_other))
    }

    /// The object in its stored form as changed so far; `None` for a delete.
    #[must_use]
    pub fn hub(&self) -> Option<&Value> {
        self.changed.as_ref().or(self.write.object)
    }

    /// The stored object in its stored form; `None` for a create.
    #[must_use]
    pub const fn old_hub(&self) -> Option<&Value> {
        self.write.old
    }

    /// The object in a version, as changed so far; `None` for a delete.
    ///
    /// # Errors
    /// 500 for a bug in a conversion.
    pub fn object(&self, endpoint: &Endpoint) -> Result<Option<&Value>, ApiError> {
        let Some(hub) = self.hub() else {
            return Ok(None);
        };
        // In the mutating phase an update has the resourceVersion that the client sent, if any.
        let revision = self.phase == Phase::Validating && self.write.operation == Operation::Update;
        self.shown(&self.objects, endpoint, hub, revision).map(Some)
    }

    /// The stored object in a version; `None` for a create.
    ///
    /// # Errors
    /// 500 for a bug in a conversion.
    pub fn old_object(&self, endpoint: &Endpoint) -> Result<Option<&Value>, ApiError> {
        let Some(hub) = self.old_hub() else {
            return Ok(None);
        };
        self.shown(&self.old_objects, endpoint, hub, true).map(Some)
    }

    fn shown<'b>(
        &self,
        copies: &'b [OnceLock<Value>],
        endpoint: &Endpoint,
        hub: &Value,
        with_revision: bool,
    ) -> Result<&'b Value, ApiError> {
        let id = endpoint.face().id();
        let index = self.endpoints.iter().position(|own| own.face().id() == id);
        let copy = index
            .and_then(|index| copies.get(index))
            .ok_or_else(|| ApiError::internal("a version of another resource"))?;
        if let Some(shown) = copy.get() {
            return Ok(shown);
        }
        let mut object = endpoint.from_hub(hub.clone())?;
        if with_revision && let Some(revision) = self.write.revision {
            metadata_mut(&mut object).insert("resourceVersion".to_owned(), revision.to_string().into());
        }
        Ok(copy.get_or_init(|| object))
    }

    /// Takes over an object that a webhook or a policy has changed, in the version in which it was shown. Fields that the
    /// version does not have are dropped. Returns whether the object changed.
    ///
    /// # Errors
    /// 500 for an object of another kind, and for one that does not fit the schema.
    pub fn change(&mut self, endpoint: &Endpoint, mut object: Value) -> Result<bool, ApiError> {
        let text = |member: &str| object.get(member).and_then(Value::as_str).unwrap_or_default();
        let (version, kind) = (text("apiVersion"), text("kind"));
        if *version != *endpoint.face().api_version || kind != endpoint.kind() {
            return Err(ApiError::internal(format_args!(
                "the object became a {kind} in version {version}"
            )));
        }
        if object
            .get("metadata")
            .is_none_or(|metadata| !metadata.is_object())
        {
            return Err(ApiError::internal("the object has lost its metadata"));
        }
        endpoint.conform(&mut object).map_err(ApiError::internal)?;
        let hub = endpoint
            .into_hub(object, self.hub(), self.now)
            .map_err(ApiError::internal)?;
        if self.hub() == Some(&hub) {
            return Ok(false);
        }
        self.changed = Some(hub);
        self.objects = self.endpoints.iter().map(|_| OnceLock::new()).collect();
        Ok(true)
    }

    /// The changed object in its stored form; `None` if nothing changed it.
    #[must_use]
    pub fn into_changed(self) -> Option<Value> {
        self.changed
    }

    /// The options of the request as the object that the policy of a cluster sees.
    #[must_use]
    pub fn options(&self) -> Value {
        match self.write.options {
            Options::Write(options) => write_options(self.write.operation, options),
            Options::Delete(options) => delete_options(options),
        }
    }

    /// The labels of the namespace of the request; `None` for a cluster-scoped object.
    ///
    /// # Errors
    /// 404 if there is no such namespace, 500 or 503 if it cannot be looked up.
    pub async fn namespace_labels(&self) -> Result<Option<&Labels>, ApiError> {
        if self.write.namespace.is_empty() {
            return Ok(None);
        }
        let name = self.write.namespace;
        let look_up = async || match self.host.namespace(name).await {
            Ok(Namespace::Active(labels) | Namespace::Terminating(labels)) => Ok(labels),
            Ok(Namespace::Missing) => Err(ApiError::namespace_not_found(name)),
            Err(error) => Err(namespace_not_read(error)),
        };
        self.namespace.get_or_try_init(look_up).await.map(Some)
    }

    /// The 403 of admission with the text of a rule.
    #[must_use]
    pub fn forbidden(&self, why: impl std::fmt::Display) -> ApiError {
        forbidden(&self.write, why)
    }

    /// Adds a warning for the client.
    pub fn warn(&self, text: impl Into<String>) {
        self.write.caller.warnings.add(text);
    }

    /// The audit record of the request, for annotations.
    #[must_use]
    pub const fn audit(&self) -> &AuditRecord {
        self.write.caller.audit
    }
}

/// The 403 of admission with the text of a rule. An object without a name is named by its `generateName`.
#[must_use]
pub fn forbidden(write: &WriteAttributes<'_>, why: impl std::fmt::Display) -> ApiError {
    let shown = write.shown_name();
    let generated = || write.object.map(|object| metadata_text(object, "generateName"));
    let name = if shown.is_empty() {
        generated().unwrap_or_default()
    } else {
        &shown
    };
    ApiError::forbidden(write.endpoint.group_resource(), name, why)
}

/// An options object with these members; null ones are left out.
fn options_object<const N: usize>(kind: &str, members: [(&str, Value); N]) -> Value {
    let types = [("kind", json!(kind)), ("apiVersion", json!("meta.k8s.io/v1"))];
    let present = members.into_iter().filter(|(_, value)| !value.is_null());
    let members = types.into_iter().chain(present);
    members.map(|(name, value)| (name.to_owned(), value)).collect()
}

fn write_options(operation: Operation, options: &WriteOptions) -> Value {
    let kind = if operation == Operation::Create {
        "CreateOptions"
    } else {
        "UpdateOptions"
    };
    options_object(
        kind,
        [
            ("dryRun", json!(options.dry_run.then_some(["All"]))),
            ("fieldManager", json!(options.field_manager)),
            ("fieldValidation", json!(options.sent_field_validation)),
        ],
    )
}

fn delete_options(options: &DeleteOptions) -> Value {
    let preconditions: Map<String, Value> = [
        ("uid", &options.preconditions.uid),
        ("resourceVersion", &options.preconditions.resource_version),
    ]
    .into_iter()
    .filter_map(|(member, value)| Some((member.to_owned(), json!(value.as_ref()?))))
    .collect();
    let propagation = options.propagation.map(|propagation| match propagation {
        Propagation::Background => "Background",
        Propagation::Foreground => "Foreground",
        Propagation::Orphan => "Orphan",
    });
    options_object(
        "DeleteOptions",
        [
            ("gracePeriodSeconds", json!(options.grace_period_seconds)),
            (
                "preconditions",
                json!((!preconditions.is_empty()).then_some(preconditions)),
            ),
            (
                "orphanDependents",
                json!(options.explicitly_not_orphaned.then_some(false)),
            ),
            (
                "propagationPolicy",
                json!(propagation.filter(|_| !options.explicitly_not_orphaned)),
            ),
            ("dryRun", json!(options.dry_run.then_some(["All"]))),
        ],
    )
}
