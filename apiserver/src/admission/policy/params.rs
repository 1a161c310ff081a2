//! The objects that bindings give to policies as `params`, and the namespaces that policies see.
//!
//! A kind is followed from the time a policy that matches refers to it. This takes the right to list and watch it, which
//! the administrator who creates such policies grants.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use drydock_machinery::selector::label::Selector;
use k8s_openapi::api::admissionregistration::v1::{ParamKind, ParamRef};
use serde_json::Value;
use tokio::time::{Instant, timeout};

use crate::host::{Followed, FollowedKind, Host, ServedKind, Versions};
use crate::registry::resource::metadata_text;

/// How long a request waits until the objects of a kind are loaded.
const SYNC_WAIT: Duration = Duration::from_secs(1);
/// How long a kind counts as absent that the host did not serve.
const ABSENT: Duration = Duration::from_secs(2);
/// How many kinds are followed at most.
const MAX_KINDS: usize = 64;

/// The kinds that are followed for policies.
pub(super) struct Params {
    host: Arc<dyn Host>,
    followed: Mutex<HashMap<(String, String), Kind>>,
    /// Kinds that the host did not serve, and when.
    absent: Mutex<HashMap<(String, String), Instant>>,
}

#[derive(Clone)]
struct Kind {
    served: ServedKind,
    objects: Arc<Followed>,
}

/// The `paramKind` of a policy, which the host serves.
pub(super) struct Resolved<'a> {
    declared: &'a ParamKind,
    kind: Kind,
}

impl Params {
    pub(super) fn new(host: Arc<dyn Host>) -> Self {
        Self {
            host,
            followed: Mutex::default(),
            absent: Mutex::default(),
        }
    }

    /// The `paramKind` of a policy; `None` if the policy has none.
    ///
    /// # Errors
    /// The host does not serve the kind, or cannot be asked: a fault of the policy, whatever its bindings refer to.
    pub(super) async fn resolve<'a>(
        &self,
        declared: Option<&'a ParamKind>,
    ) -> Result<Option<Resolved<'a>>, String> {
        let Some(declared) = declared else { return Ok(None) };
        let kind = self.kind(declared).await?;
        Ok(Some(Resolved { declared, kind }))
    }

    /// The objects for a binding in a request's namespace, `None` standing for no object.
    ///
    /// # Errors
    /// What is wrong with the binding.
    pub(super) async fn of(
        &self,
        kind: Option<&Resolved<'_>>,
        reference: Option<&ParamRef>,
        namespace: &str,
    ) -> Result<Vec<Option<Arc<Value>>>, String> {
        let (Some(resolved), Some(reference)) = (kind, reference) else {
            return Ok(vec![None]);
        };
        self.select(&resolved.kind, resolved.declared, reference, namespace)
            .await
    }

    /// The kind, which is followed from now on.
    async fn kind(&self, kind: &ParamKind) -> Result<Kind, String> {
        let api_version = kind.api_version.clone().unwrap_or_default();
        let key = (api_version, kind.kind.clone().unwrap_or_default());
        if let Some(known) = self.known(&key) {
            return Ok(known);
        }
        let (group, version) = key.0.rsplit_once('/').unwrap_or(("", &key.0));
        let not_found = || {
            format!(
                "failed to find resource referenced by paramKind: '{group}/{version}, Kind={}'",
                key.1
            )
        };
        if self.is_absent(&key) {
            return Err(not_found());
        }
        let served = match self.host.served_kind(group, version, &key.1).await {
            Ok(Some(served)) => served,
            Ok(None) => {
                self.note_absent(key.clone());
                return Err(not_found());
            }
            Err(error) => return Err(format!("{}: {error}", not_found())),
        };
        let followed = FollowedKind {
            group: Cow::Owned(group.to_owned()),
            resource: Cow::Owned(served.plural.clone()),
            kind: Cow::Owned(key.1.clone()),
            versions: Versions::Named(version.to_owned()),
        };
        let mut all = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.get(&key) {
            return Ok(known.clone());
        }
        if all.len() >= MAX_KINDS {
            all.clear();
        }
        let objects = self.host.follow(followed).ok_or_else(not_found)?;
        let kind = Kind { served, objects };
        all.insert(key, kind.clone());
        Ok(kind)
    }

    fn is_absent(&self, key: &(String, String)) -> bool {
        let absent = self.absent.lock().unwrap_or_else(PoisonError::into_inner);
        absent.get(key).is_some_and(|since| since.elapsed() < ABSENT)
    }

    fn note_absent(&self, key: (String, String)) {
        let mut absent = self.absent.lock().unwrap_or_else(PoisonError::into_inner);
        absent.retain(|_, since| since.elapsed() < ABSENT);
        if absent.len() < MAX_KINDS {
            absent.insert(key, Instant::now());
        }
    }

    fn known(&self, key: &(String, String)) -> Option<Kind> {
        let all = self.followed.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(key).cloned()
    }

    async fn select(
        &self,
        kind: &Kind,
        param_kind: &ParamKind,
        reference: &ParamRef,
        namespace: &str,
    ) -> Result<Vec<Option<Arc<Value>>>, String> {
        let own = reference.namespace.as_deref().unwrap_or_default();
        let namespace = match (kind.served.is_namespaced, own, namespace) {
            (false, "", _) => "",
            (false, _, _) => {
                return Err(
                    "paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned(),
                );
            }
            (true, "", "") => {
                return Err(
                    "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
                        .to_owned(),
                );
            }
            (true, "", namespace) => namespace,
            (true, own, _) => own,
        };
        if timeout(SYNC_WAIT, kind.objects.synced()).await.is_err() {
            return Err(format!(
                "paramKind kind `&ParamKind{{APIVersion:{},Kind:{},}}` not yet synced to use for admission",
                param_kind.api_version.as_deref().unwrap_or_default(),
                param_kind.kind.as_deref().unwrap_or_default()
            ));
        }
        let objects = Arc::clone(&kind.objects.objects());
        let in_namespace = |object: &&Arc<Value>| metadata_text(object, "namespace") == namespace;
        let found: Vec<Arc<Value>> = match (&reference.name, &reference.selector) {
            (Some(name), _) => {
                let named =
                    |object: &&Arc<Value>| in_namespace(object) && metadata_text(object, "name") == name;
                match objects.items.iter().find(named) {
                    Some(object) => vec![Arc::clone(object)],
                    // An object that was just created may not have been seen yet.
                    None => self.read(kind, namespace, name).await?.into_iter().collect(),
                }
            }
            (None, Some(selector)) => {
                let selector = Selector::try_from(selector).map_err(
                    |errors: drydock_machinery::field_error::ErrorList| {
                        errors
                            .iter()
                            .map(ToString::to_string)
                            .collect::<Vec<_>>()
                            .join(", ")
                    },
                )?;
                let selected = |object: &&Arc<Value>| {
                    let labels = object.pointer("/metadata/labels");
                    in_namespace(object) && selector.matches(|key| labels?.get(key)?.as_str())
                };
                objects.items.iter().filter(selected).map(Arc::clone).collect()
            }
            (None, None) => return Err("one of name or selector must be provided".to_owned()),
        };
        if found.is_empty() && reference.parameter_not_found_action.as_deref() == Some("Deny") {
            return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
        }
        Ok(found.into_iter().map(Some).collect())
    }

    async fn read(&self, kind: &Kind, namespace: &str, name: &str) -> Result<Option<Arc<Value>>, String> {
        let read = self.host.read(kind.objects.kind(), namespace, name);
        read.await
            .map(|object| object.map(Arc::new))
            .map_err(|error| error.to_string())
    }

    /// A namespace; `None` if it does not exist.
    ///
    /// # Errors
    /// The host cannot be asked.
    pub(super) async fn namespace(&self, name: &str) -> Result<Option<Arc<Value>>, String> {
        let kind = ParamKind {
            api_version: Some("v1".to_owned()),
            kind: Some("Namespace".to_owned()),
        };
        let kind = self.kind(&kind).await?;
        if timeout(SYNC_WAIT, kind.objects.synced()).await.is_ok() {
            let objects = Arc::clone(&kind.objects.objects());
            let is_named = |object: &&Arc<Value>| metadata_text(object, "name") == name;
            if let Some(object) = objects.items.iter().find(is_named) {
                return Ok(Some(Arc::clone(object)));
            }
        }
        self.read(&kind, "", name).await
    }
}
